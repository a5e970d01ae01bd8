//! Memory of a device that works later.

use ep_core::primitive::{BinaryOp, IndexMode, UnaryOp};
use ep_core::{Code, DType};
use ep_ops::{MemoryFormat, Ops};
use ep_registry::Runtime;
use ep_registry::config::ProviderConfig;
use ep_sim::SimProvider;

const LEN: i64 = 1000;

/// `sim:0` with memory for so many tensors of [`LEN`] f32 and so many bytes more, and work that takes its time.
fn small(tensors: i64, more_bytes: i64) -> Runtime {
    crate::log::install();
    let mut settings = ProviderConfig::new("sim", "");
    settings.required = true;
    settings.options.insert("devices".into(), "1".into());
    settings.options.insert("max_delay_us".into(), "2000".into());
    settings.options.insert("memory_bytes".into(), (tensors * LEN * 4 + more_bytes).to_string());
    Runtime::builder().linked_with::<SimProvider>(settings).build().unwrap()
}

/// What was dropped is only given back when queued work is done with it, and a host is faster than that.
#[test]
fn memory_of_what_was_dropped_is_waited_for() {
    let runtime = small(3, 64);
    let ops = Ops::new(&runtime, "sim:0").unwrap();
    let mut x = ops.full(DType::F32, &[LEN], 1.0).unwrap();
    for i in 0..20 {
        x = match i % 4 {
            0 => ops.unary(UnaryOp::NEGATIVE, &x).unwrap(),
            1 => ops.clone(&x, MemoryFormat::Contiguous).unwrap(),
            2 => ops.unary(UnaryOp::ABS, &x).unwrap(),
            _ => {
                let ones = ops.tensor(&vec![1.0f32; LEN as usize], &[LEN]).unwrap();
                ops.add_n(&[&x, &ones]).unwrap()
            }
        };
    }
    assert_eq!(ops.to_vec::<f32>(&x).unwrap(), vec![6.0; LEN as usize]);
    // What is still there is in nobody's way to say so.
    let all = [ops.empty(DType::F32, &[LEN]).unwrap(), ops.empty(DType::F32, &[LEN]).unwrap()];
    assert_eq!(ops.unary(UnaryOp::ABS, &x).unwrap_err().code(), Code::OutOfMemory);
    drop(all);
    ops.unary(UnaryOp::ABS, &x).unwrap();
}

/// What is changed in place takes no memory, in any order of the dimensions.
#[test]
fn in_place_there_is_room() {
    let runtime = small(2, 256);
    let ops = Ops::new(&runtime, "sim:0").unwrap();
    let x = ops.full(DType::F32, &[LEN / 20, 20], 1.0).unwrap().t().unwrap();
    let y = ops.full(DType::F32, &[LEN / 20, 20], 2.0).unwrap().t().unwrap();
    assert_eq!(ops.binary(BinaryOp::ADD, &x, &y).unwrap_err().code(), Code::OutOfMemory);
    ops.binary_(BinaryOp::ADD, &x, &y).unwrap();
    ops.binary_(BinaryOp::SUB, &x, &y.narrow(0, 0, 1).unwrap()).unwrap();
    ops.binary_scalar_(BinaryOp::MUL, &x, 3.0).unwrap();
    ops.unary_(UnaryOp::NEGATIVE, &x).unwrap();
    let (x, y) = (x.t().unwrap(), y.t().unwrap());
    let index = ops.tensor(&[0i32], &[1]).unwrap();
    ops.scatter_add_(&x, &index, &y.narrow(0, 0, 1).unwrap(), 0, IndexMode::ERROR).unwrap();
    drop((y, index));
    let found = ops.to_vec::<f32>(&x).unwrap();
    assert!(found.iter().enumerate().all(|(i, x)| *x == if i < 20 { -1.0 } else { -3.0 }), "{found:?}");
}

/// What has gaps is converted while it is copied, which takes no memory but the output's.
#[test]
fn gaps_are_left_out_by_the_cast() {
    let runtime = small(2, 64);
    let ops = Ops::new(&runtime, "sim:0").unwrap();
    let x = ops.full(DType::F32, &[20, LEN / 20], -1.5).unwrap().narrow(1, 1, LEN / 20 - 1).unwrap();
    let found = ops.cast(&x, DType::I32).unwrap();
    assert_eq!(found.shape(), x.shape());
    drop(x);
    assert!(ops.to_vec::<i32>(&found).unwrap().iter().all(|x| *x == -1));
}

/// Rows along any dimension of what is dense in another order are computed as they lie.
#[test]
fn softmax_copies_nothing_that_is_dense() {
    let runtime = small(3, 64);
    let ops = Ops::new(&runtime, "sim:0").unwrap();
    let x = ops.full(DType::F32, &[LEN / 20, 20], 0.0).unwrap().t().unwrap();
    for (dim, size) in [(0, 20.0), (1, 50.0)] {
        let y = ops.softmax(&x, dim).unwrap();
        assert_eq!(y.strides(), x.strides());
        let found = ops.to_vec::<f32>(&y.t().unwrap()).unwrap();
        assert!(found.iter().all(|y| (y * size - 1.0).abs() < 1e-5), "{found:?}");
        let dx = ops.softmax_backward(&y, &x, dim).unwrap();
        assert_eq!(dx.strides(), x.strides());
    }
}
