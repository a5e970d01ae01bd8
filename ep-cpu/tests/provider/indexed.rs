//! `gather`, `batch_gather`, `scatter_add` and `one_hot`.

use crate::support::{Num, Random, Rig, bytes_of, decode, encode_all};
use ep_core::primitive::{
    BatchGather, BatchGatherCall, BatchGatherDesc, Gather, GatherCall, GatherDesc, IndexMode, OneHot,
    OneHotCall, OneHotDesc, ScatterAdd, ScatterAddCall, ScatterAddDesc,
};
use ep_core::{Code, DType, Scalar};

/// The dtypes of indices.
const INDICES: [DType; 2] = [DType::I32, DType::I64];

/// An index of each kind into an axis of 7, of which 2 to 5 are there, and the row that it picks in each mode.
const LIST: [i64; 8] = [2, 6, 4, 0, 5, -5, 3, 2];
const ROWS_WRAP: [Option<usize>; 8] = [Some(0), None, Some(2), None, Some(3), Some(0), Some(1), Some(0)];
const ROWS_ZERO: [Option<usize>; 8] = [Some(0), None, Some(2), None, Some(3), None, Some(1), Some(0)];
const SIZES: [(&str, i64); 6] =
    [("outer", 2), ("processed", 4), ("inner", 3), ("num_indices", 8), ("offset", 2), ("size", 7)];

fn cases() -> impl Iterator<Item = (DType, DType, IndexMode, [Option<usize>; 8])> {
    INDICES.into_iter().flat_map(|indices| {
        DType::ALL.into_iter().flat_map(move |data| {
            [(IndexMode::WRAP, ROWS_WRAP), (IndexMode::ZERO, ROWS_ZERO)]
                .map(|(mode, rows)| (indices, data, mode, rows))
        })
    })
}

fn whole(list: &[i64]) -> Vec<Num> {
    list.iter().map(|&i| Num::Int(i.into())).collect()
}

#[test]
fn gather_and_batch_gather_of_every_dtype() {
    let (rig, mut random) = (Rig::new(), Random::new());
    for (index, data, mode, rows) in cases() {
        let size = data.size().unwrap();
        let src = encode_all(data, &random.wholes(data, 24));
        let indices = rig.upload(index, &whole(&LIST));
        let buffer = rig.upload_bytes(data, &src);
        let dtypes = [("indices", index), ("data", data)];
        let request = |op| rig.request(op, &[("mode", mode.name().unwrap())], &dtypes);
        let typed = rig.runtime.primitive::<Gather>(rig.cpu(), GatherDesc::new(mode, index, data)).unwrap();
        let named = rig.runtime.primitive_dyn(rig.cpu(), &request("gather")).unwrap();
        let got = rig.outputs(
            data,
            48,
            |dst| {
                let call = GatherCall {
                    outer: 2,
                    processed: 4,
                    inner: 3,
                    num_indices: 8,
                    offset: 2,
                    size: 7,
                    indices: &indices,
                    src: &buffer,
                    dst,
                };
                typed.launch(&rig.stream, call)
            },
            |dst| {
                let args =
                    SIZES.iter().try_fold(named.args(), |args, (name, size)| args.size(name, *size))?;
                let args = args.read("indices", &indices)?.read("src", &buffer)?.write("dst", dst)?;
                named.launch(&rig.stream, args)
            },
        );
        let row_of = |slab: usize, row: Option<usize>| match row {
            Some(row) => src[(slab * 4 + row) * 3 * size..][..3 * size].to_vec(),
            None => vec![0; 3 * size],
        };
        let want: Vec<u8> = (0..2).flat_map(|slab| rows.map(|row| row_of(slab, row)).concat()).collect();
        assert_eq!(got, want, "gather {index} {data} {mode:?}");

        // Two batches of four indices each, of one slab.
        let typed =
            rig.runtime.primitive::<BatchGather>(rig.cpu(), BatchGatherDesc::new(mode, index, data)).unwrap();
        let named = rig.runtime.primitive_dyn(rig.cpu(), &request("batch_gather")).unwrap();
        let got = rig.outputs(
            data,
            24,
            |dst| {
                let call = BatchGatherCall {
                    batch: 2,
                    outer: 1,
                    processed: 4,
                    inner: 3,
                    num_indices: 4,
                    offset: 2,
                    size: 7,
                    indices: &indices,
                    src: &buffer,
                    dst,
                };
                typed.launch(&rig.stream, call)
            },
            |dst| {
                let sizes = [("batch", 2), ("outer", 1), ("processed", 4), ("inner", 3), ("num_indices", 4)];
                let args =
                    sizes.iter().try_fold(named.args(), |args, (name, size)| args.size(name, *size))?;
                let args = args.size("offset", 2)?.size("size", 7)?.read("indices", &indices)?;
                named.launch(&rig.stream, args.read("src", &buffer)?.write("dst", dst)?)
            },
        );
        let want: Vec<u8> = (0..8).flat_map(|i| row_of(i / 4, rows[i])).collect();
        assert_eq!(got, want, "batch_gather {index} {data} {mode:?}");
    }
}

#[test]
fn scatter_add_of_every_dtype() {
    let (rig, mut random) = (Rig::new(), Random::new());
    for (index, data, mode, rows) in cases().filter(|(_, data, ..)| *data != DType::BOOL) {
        let (src, old) = (random.wholes(data, 48), random.wholes(data, 24));
        let indices = rig.upload(index, &whole(&LIST));
        let buffer = rig.upload(data, &src);
        let desc = ScatterAddDesc::new(mode, index, data);
        let typed = rig.runtime.primitive::<ScatterAdd>(rig.cpu(), desc).unwrap();
        let dtypes = [("indices", index), ("data", data)];
        let request = rig.request("scatter_add", &[("mode", mode.name().unwrap())], &dtypes);
        let named = rig.runtime.primitive_dyn(rig.cpu(), &request).unwrap();
        let mut dst = rig.upload(data, &old);
        let call = ScatterAddCall {
            outer: 2,
            processed: 4,
            inner: 3,
            num_indices: 8,
            offset: 2,
            size: 7,
            indices: &indices,
            src: &buffer,
            dst: &mut dst,
        };
        typed.launch(&rig.stream, call).unwrap();
        let mut again = rig.upload(data, &old);
        let args = SIZES.iter().try_fold(named.args(), |args, (name, size)| args.size(name, *size)).unwrap();
        let args = args.read("indices", &indices).unwrap().read("src", &buffer).unwrap();
        named.launch(&rig.stream, args.write("dst", &mut again).unwrap()).unwrap();
        let mut want = old;
        for (i, row) in rows.into_iter().enumerate() {
            let Some(row) = row else { continue };
            for (slab, col) in (0..6).map(|k| (k / 3, k % 3)) {
                let to = &mut want[(slab * 4 + row) * 3 + col];
                *to = match (*to, src[(slab * 8 + i) * 3 + col]) {
                    (Num::Int(a), Num::Int(b)) => Num::Int(a + b),
                    (Num::Complex(a, b), Num::Complex(c, d)) => Num::Complex(a + c, b + d),
                    (a, b) => Num::Float(a.float() + b.float()),
                };
            }
        }
        let want = encode_all(data, &want);
        assert_eq!((bytes_of(dst), bytes_of(again)), (want.clone(), want), "{index} {data} {mode:?}");
    }
}

#[test]
fn one_hot_of_every_dtype() {
    let rig = Rig::new();
    for (index, data, mode, rows) in cases() {
        let indices = rig.upload(index, &whole(&LIST));
        let typed = rig.runtime.primitive::<OneHot>(rig.cpu(), OneHotDesc::new(mode, index, data)).unwrap();
        let dtypes = [("indices", index), ("data", data)];
        let request = rig.request("one_hot", &[("mode", mode.name().unwrap())], &dtypes);
        let named = rig.runtime.primitive_dyn(rig.cpu(), &request).unwrap();
        for (on, off) in [(Scalar::None, Scalar::None), (Scalar::I64(0), Scalar::F64(3.0))] {
            let got = rig.outputs(
                data,
                32,
                |dst| {
                    let (num_indices, depth, offset, size) = (8, 4, 2, 7);
                    let call =
                        OneHotCall { num_indices, depth, offset, size, on, off, indices: &indices, dst };
                    typed.launch(&rig.stream, call)
                },
                |dst| {
                    let args = named.args().size("num_indices", 8)?.size("depth", 4)?.size("offset", 2)?;
                    let args = args.size("size", 7)?.scalar("on", on)?.scalar("off", off)?;
                    named.launch(&rig.stream, args.read("indices", &indices)?.write("dst", dst)?)
                },
            );
            let [on, off] = if on == Scalar::None { [1, 0] } else { [0, 3] };
            let want = rows
                .iter()
                .flat_map(|row| (0..4).map(move |j| Num::Int(if *row == Some(j) { on } else { off })));
            let want: Vec<_> = want.collect();
            assert_eq!(got, encode_all(data, &want), "{index} {data} {mode:?}");
        }
    }
}

#[test]
fn a_wrong_index_is_named_and_the_stream_goes_on() {
    let rig = Rig::new();
    let desc = GatherDesc::new(IndexMode::ERROR, DType::I32, DType::F32);
    let gather = rig.runtime.primitive::<Gather>(rig.cpu(), desc).unwrap();
    let src = rig.cpu().upload(&[1.5f32, 2.5]).unwrap();
    let launch = |list: &[i32; 3]| {
        let indices = rig.cpu().upload(list).unwrap();
        let mut dst = rig.cpu().upload(&[0f32; 3]).unwrap();
        let (outer, processed, inner, num_indices) = (1, 2, 1, 3);
        let (indices, src, offset, size) = (&indices, &src, 0, 0);
        let call =
            GatherCall { outer, processed, inner, num_indices, offset, size, indices, src, dst: &mut dst };
        gather.launch(&rig.stream, call).map(|()| decode(DType::F32, &bytes_of(dst)))
    };
    let e = launch(&[1, 0, -1]).unwrap_err();
    assert_eq!(e.code(), Code::InvalidArgument);
    assert!(e.message().contains("index -1 at position 2"), "{e}");
    assert_eq!(launch(&[1, 0, 1]).unwrap(), [2.5, 1.5, 2.5].map(Num::Float));
}
