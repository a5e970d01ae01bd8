//! Views mean what PyTorch's mean, and move nothing.

use crate::model::{Model, Step, apply, shape, step};
use crate::under::{devices, invalid, ops};
use ep_core::DType;
use ep_ops::{MemoryFormat, Ops, Tensor};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Chains of views show what index arithmetic says, share the storage, and leave it as it is.
    #[test]
    fn chains_of_views(base in shape(), steps in prop::collection::vec(step(), 0..7), on in 0..2usize) {
        let ops = ops(devices()[on]);
        let count: i64 = base.iter().product();
        let data: Vec<i32> = (0..count as i32).map(|i| 1000 + 7 * i).collect();
        let root = ops.tensor(&data, &base).unwrap();
        let (mut t, mut m) = (root.alias(), Model::whole(&base));
        for step in steps {
            let before = (t.alias(), m.clone());
            (t, m) = match (apply(step, t, m), step) {
                (Ok(done), _) => done,
                // Then the same by a copy, which shows the same.
                (Err(e), Step::View(_)) => {
                    prop_assert!(e.message().contains("use Ops::reshape, which copies"), "{e}");
                    before
                }
                (Err(e), step) => panic!("{step:?}: {e}"),
            };
            prop_assert_eq!(t.shape(), m.shape.as_slice(), "{:?}", step);
            prop_assert!(t.shares_storage(&root));
            if m.at.len() > 2000 {
                break;
            }
        }
        prop_assert_eq!(t.numel(), m.at.len() as i64);
        prop_assert_eq!(ops.to_vec::<i32>(&t).unwrap(), m.read(&data), "{:?}", t);
        let flat = ops.reshape(&t, &[t.numel()]).unwrap();
        prop_assert_eq!(ops.to_vec::<i32>(&flat).unwrap(), m.read(&data));
        prop_assert_eq!(ops.to_vec::<i32>(&root).unwrap(), data);
    }
}

fn numbers(ops: &Ops<'_>, shape: &[i64]) -> Tensor {
    ops.arange(DType::I32, 0, shape.iter().product::<i64>(), 1).unwrap().view(shape).unwrap()
}

/// Strides and offsets as PyTorch prints them.
#[test]
fn strides_of_views() {
    let ops = ops("cpu:0");
    let x = numbers(&ops, &[2, 3, 4]);
    let told = |t: ep_core::Result<Tensor>| {
        let t = t.unwrap();
        format!("{:?} {:?} {}", t.shape(), t.strides(), t.offset())
    };
    assert_eq!(told(x.permute(&[2, 0, 1])), "[4, 2, 3] [1, 12, 4] 0");
    assert_eq!(told(x.permute(&[-1, -3, -2])), "[4, 2, 3] [1, 12, 4] 0");
    assert_eq!(told(x.transpose(0, -1)), "[4, 3, 2] [1, 4, 12] 0");
    assert_eq!(told(x.select(0, -1)), "[3, 4] [4, 1] 12");
    assert_eq!(told(x.select(0, 1).unwrap().t()), "[4, 3] [1, 4] 12");
    assert_eq!(told(x.narrow(1, 1, 2)), "[2, 2, 4] [12, 4, 1] 4");
    assert_eq!(told(x.narrow(1, -2, 2)), "[2, 2, 4] [12, 4, 1] 4");
    assert_eq!(told(x.slice(2, 1, 100, 2)), "[2, 3, 2] [12, 4, 2] 1");
    assert_eq!(told(x.slice(2, -3, -1, 1)), "[2, 3, 2] [12, 4, 1] 1");
    assert_eq!(told(x.slice(2, 3, 1, 1)), "[2, 3, 0] [12, 4, 1] 3");
    assert_eq!(told(x.unsqueeze(0)), "[1, 2, 3, 4] [24, 12, 4, 1] 0");
    assert_eq!(told(x.unsqueeze(-1)), "[2, 3, 4, 1] [12, 4, 1, 1] 0");
    assert_eq!(told(x.unsqueeze(1).unwrap().squeeze(1)), "[2, 3, 4] [12, 4, 1] 0");
    assert_eq!(told(x.squeeze(1)), "[2, 3, 4] [12, 4, 1] 0");
    assert_eq!(told(x.unsqueeze(1).unwrap().expand(&[-1, 5, -1, -1])), "[2, 5, 3, 4] [12, 0, 4, 1] 0");
    assert_eq!(told(x.unfold(2, 3, 1)), "[2, 3, 2, 3] [12, 4, 1, 1] 0");
    assert_eq!(told(x.flip(&[0, 2])), "[2, 3, 4] [-12, 4, -1] 15");
    assert_eq!(told(x.as_strided(&[2, 2], &[1, 2], 20)), "[2, 2] [1, 2] 20");
    assert_eq!(told(x.view(&[-1, 6])), "[4, 6] [6, 1] 0");
    let one = ops.tensor(&[5i32], &[]).unwrap();
    assert_eq!(told(one.unsqueeze(0)), "[1] [1] 0");
    assert_eq!(told(one.transpose(0, -1)), "[] [] 0");
    assert_eq!(told(one.t()), "[] [] 0");
    assert_eq!(told(one.unfold(0, 1, 1)), "[1] [1] 0");
    assert_eq!(told(one.flip(&[0])), "[] [] 0");
    assert_eq!(told(one.squeeze(-1)), "[] [] 0");
    assert_eq!(told(ops.flatten(&one, 0, -1)), "[1] [1] 0");
    assert_eq!(told(ops.flatten(&x, 1, -1)), "[2, 12] [12, 1] 0");
    assert!(ops.flatten(&x, 0, 1).unwrap().shares_storage(&x));
    assert!(!ops.flatten(&x.transpose(0, 1).unwrap(), 0, 1).unwrap().shares_storage(&x));
}

#[test]
fn refusals() {
    let ops = ops("cpu:0");
    let x = numbers(&ops, &[2, 3]);
    let one = ops.tensor(&[5i32], &[]).unwrap();
    let name = "Tensor(i32[2, 3], strides [3, 1], on cpu:0)";
    let texts = [
        (invalid(x.permute(&[0])), format!("permute {name} by [0]: 1 dimensions for 2")),
        (invalid(x.permute(&[0, 0])), format!("permute {name} by [0, 0]: dimension 0 comes twice")),
        (invalid(x.permute(&[0, -3])), format!("permute {name} by [0, -3]: dimension -3 of 2: -2 to 1 are possible")),
        (invalid(x.transpose(0, 2)), format!("transpose {name}: dimension 2 of 2: -2 to 1 are possible")),
        (invalid(x.narrow(1, 2, 2)), format!("narrow {name}: 2 elements from 2 on of dimension 1, which has 3")),
        (invalid(x.narrow(1, -4, 1)), format!("narrow {name}: 1 elements from -4 on of dimension 1, which has 3")),
        (invalid(x.narrow(1, 1, -1)), format!("narrow {name}: -1 elements from 1 on of dimension 1, which has 3")),
        (
            invalid(x.slice(1, 0, 3, 0)),
            format!("slice {name}: step 0; it is at least 1 (use flip to go backwards)"),
        ),
        (invalid(x.select(1, 3)), format!("select {name}: index 3 of dimension 1, which has 3")),
        (invalid(x.unsqueeze(4)), format!("unsqueeze {name}: dimension 4 of 3: -3 to 2 are possible")),
        (
            invalid(x.view(&[3, -1, 4])),
            format!("view {name}: shape [3, -1, 4] does not hold the 6 elements that there are"),
        ),
        (
            invalid(x.t().unwrap().view(&[6])),
            "view Tensor(i32[3, 2], strides [1, 3], on cpu:0) as [6]: at least one dimension spans two that do not \
             follow each other in memory; use Ops::reshape, which copies"
                .to_owned(),
        ),
        (
            invalid(x.unfold(1, 4, 1)),
            format!("unfold {name}: windows of 4 each 1 of dimension 1, which has 3; steps are at least 1"),
        ),
        (
            invalid(x.as_strided(&[2, 2], &[3, 3], 0)),
            "as_strided: shape [2, 2] with strides [3, 3] and offset 0 needs the elements 0 to 6 of a storage of 6"
                .to_owned(),
        ),
        (
            invalid(x.as_strided(&[3], &[-1], 1)),
            "as_strided: shape [3] with strides [-1] and offset 1 needs the elements -1 to 1 of a storage of 6".to_owned(),
        ),
        (
            invalid(x.as_strided(&[i64::MAX], &[i64::MAX], i64::MAX)),
            format!(
                "as_strided: shape [{0}] with strides [{0}] and offset {0} needs the elements {0} to {1} of a storage of 6",
                i64::MAX,
                i128::from(i64::MAX) * i128::from(i64::MAX)
            ),
        ),
        (
            invalid(x.as_strided(&[2, 2], &[1], 0)),
            "as_strided: shape [2, 2] and strides [1] differ in length".to_owned(),
        ),
        (invalid(x.flip(&[1, -1])), format!("flip {name} along [1, -1]: dimension 1 comes twice")),
        (invalid(x.unsqueeze(0).unwrap().t()), {
            "t of Tensor(i32[1, 2, 3], strides [6, 3, 1], on cpu:0): rank 3, and at most 2 is possible; use transpose".to_owned()
        }),
        (
            invalid(one.narrow(0, 0, 1)),
            "narrow Tensor(i32[], strides [], on cpu:0): a single element has no dimension 0".to_owned(),
        ),
        (
            invalid(one.expand(&[1, 1, 1, 1, 1, 1, 1, 1, 1])),
            "a tensor i32[1, 1, 1, 1, 1, 1, 1, 1, 1]: rank 9, and at most 8 is possible".to_owned(),
        ),
        (
            invalid(one.expand(&[1 << 32, 1 << 32])),
            "shape [4294967296, 4294967296] has more elements than an i64 counts".to_owned(),
        ),
        (invalid(ops.flatten(&x, 1, 0)), format!("flatten {name}: dimension 1 comes after 0")),
    ];
    for (found, wanted) in texts {
        assert_eq!(found, wanted);
    }
    assert!(one.expand(&[1; 8]).is_ok());
}

#[test]
fn buffers_come_and_go() {
    for device in devices() {
        let ops = ops(device);
        let buffer = ops.device().upload(&[1i32, 2, 3, 4, 5, 6]).unwrap();
        let address = buffer.address();
        let x = Tensor::from_buffer(buffer, &[2, 3]).unwrap();
        let y = x.t().unwrap();
        let told = invalid(x.into_buffer());
        assert!(told.ends_with("shares its buffer; drop its views, or clone it first"), "{told}");
        let told = invalid(y.into_buffer());
        assert!(told.ends_with("is not all of its buffer in order; clone it first"), "{told}");

        let x = Tensor::from_buffer(ops.device().upload(&[1i32, 2, 3, 4, 5, 6]).unwrap(), &[2, 3]).unwrap();
        let back = x.t().unwrap().t().unwrap();
        drop(x);
        let buffer = back.into_buffer().unwrap();
        assert_eq!(buffer.download::<i32>().unwrap(), [1, 2, 3, 4, 5, 6]);
        assert_ne!((buffer.address(), address), (0, 0));
        assert_eq!(
            invalid(Tensor::from_buffer(buffer, &[2, 2])),
            "a buffer of 6 elements for a tensor i32[2, 2]; give it as many"
        );
        let none = Tensor::from_buffer(ops.device().alloc(DType::F32, 0).unwrap(), &[3, 0]).unwrap();
        assert!(none.is_contiguous(MemoryFormat::Contiguous));
        assert_eq!(ops.to_vec::<f32>(&none.t().unwrap()).unwrap(), [0f32; 0]);
        let buffer = ops.device().alloc(DType::I32, 1).unwrap();
        let huge = Tensor::from_buffer(buffer, &[1 << 40, 1 << 40]);
        assert_eq!(
            invalid(huge),
            "shape [1099511627776, 1099511627776] has more elements than an i64 counts"
        );
    }
}
