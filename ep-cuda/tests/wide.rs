//! Launches of more than 2^31 elements, or over offsets as large: each primitive whose kernels count in 32 bits takes the
//! one that counts in 64. The fake holds addresses of that many bytes, and no memory.

mod rig;

use ep_core::primitive::{
    BatchGather, BatchGatherCall, BatchGatherDesc, BinaryOp, BroadcastElementwiseBinary,
    BroadcastElementwiseBinaryCall, BroadcastElementwiseBinaryDesc, BroadcastElementwiseUnary,
    BroadcastElementwiseUnaryCall, BroadcastElementwiseUnaryDesc, Cast, CastCall, CastDesc, ConstantPad,
    ConstantPadCall, ConstantPadDesc, CopyNd, CopyNdCall, CopyNdDesc, ElementwiseUnary, ElementwiseUnaryCall,
    ElementwiseUnaryDesc, Fill, FillCall, FillDesc, Gather, GatherCall, GatherDesc, IndexMode, OneHot,
    OneHotCall, OneHotDesc, Permute, PermuteCall, PermuteDesc, StridedCopy, StridedCopyCall, StridedCopyDesc,
    UnaryOp, Where, WhereCall, WhereDesc,
};
use ep_core::{DType, Result, Scalar};
use ep_registry::{Buffer, Device, Runtime, Stream};
use rig::{Rig, Setup};

/// The first number that 31 bits do not hold.
const FAR: i64 = 1 << 31;
/// Elements of the buffers.
const ROOM: i64 = 5 << 30;

/// A host on the fake, with sources and a destination.
struct Wide<'a> {
    runtime: &'a Runtime,
    device: &'a Device,
    stream: &'a Stream,
    x: Buffer,
    y: Buffer,
    indices: Buffer,
}

impl Wide<'_> {
    fn unary(&mut self, count: i64) -> Result<()> {
        let desc = ElementwiseUnaryDesc::new(UnaryOp::ABS, DType::I8, DType::I8);
        let abs = self.runtime.primitive::<ElementwiseUnary>(self.device, desc)?;
        abs.launch(self.stream, ElementwiseUnaryCall { count, src: &self.x, dst: &mut self.y })
    }

    fn cast(&mut self, count: i64) -> Result<()> {
        let same = CastDesc::new(DType::I8, DType::I8);
        let cast = self.runtime.primitive::<Cast>(self.device, same)?;
        cast.launch(self.stream, CastCall { count, src: &self.x, dst: &mut self.y })
    }

    fn strided_unary(&mut self, count: i64) -> Result<()> {
        let desc = BroadcastElementwiseUnaryDesc::new(UnaryOp::ABS, DType::I8, DType::I8);
        let abs = self.runtime.primitive::<BroadcastElementwiseUnary>(self.device, desc)?;
        let call = BroadcastElementwiseUnaryCall {
            src_dims: &[1],
            src_strides: &[1],
            dst_dims: &[count],
            dst_strides: &[1],
            src: &self.x,
            dst: &mut self.y,
        };
        abs.launch(self.stream, call)
    }

    fn binary(&mut self, a: &[i64], b: &[i64]) -> Result<()> {
        let desc = BroadcastElementwiseBinaryDesc::new(BinaryOp::ADD, DType::I8, DType::I8);
        let add = self.runtime.primitive::<BroadcastElementwiseBinary>(self.device, desc)?;
        let call = BroadcastElementwiseBinaryCall {
            src0_dims: a,
            src1_dims: b,
            scalar0: Scalar::None,
            scalar1: Scalar::None,
            src0: &self.x,
            src1: &self.x,
            dst: &mut self.y,
        };
        add.launch(self.stream, call)
    }

    fn choose(&mut self, count: i64) -> Result<()> {
        let choose = self.runtime.primitive::<Where>(self.device, WhereDesc::new(DType::I8, DType::I8))?;
        let call = WhereCall {
            cond_dims: &[count],
            x_dims: &[1],
            y_dims: &[count],
            cond: &self.x,
            x: &self.x,
            y: &self.x,
            dst: &mut self.y,
        };
        choose.launch(self.stream, call)
    }

    fn permute(&mut self, src_dims: &[i64]) -> Result<()> {
        let permute = self.runtime.primitive::<Permute>(self.device, PermuteDesc::new(DType::I8))?;
        let call = PermuteCall { src_dims, permutation: &[1, 0, 2], src: &self.x, dst: &mut self.y };
        permute.launch(self.stream, call)
    }

    fn copy_nd(&mut self, lines: i64) -> Result<()> {
        let copy = self.runtime.primitive::<CopyNd>(self.device, CopyNdDesc::new(DType::I8))?;
        let call = CopyNdCall {
            dst_dims: &[lines, 7],
            dst_pos: &[0, 0],
            src_dims: &[lines, 33],
            src_pos: &[0, 1],
            extent: &[lines, 7],
            src: &self.x,
            dst: &mut self.y,
        };
        copy.launch(self.stream, call)
    }

    fn strided_copy(&mut self, dst: DType, count: i64) -> Result<()> {
        let copy =
            self.runtime.primitive::<StridedCopy>(self.device, StridedCopyDesc::new(DType::I8, dst))?;
        let mut y = self.device.alloc(dst, count as usize)?;
        let call = StridedCopyCall {
            dims: &[count],
            src_strides: &[2],
            dst_strides: &[1],
            src_offset: 0,
            dst_offset: 0,
            src: &self.x,
            dst: &mut y,
        };
        copy.launch(self.stream, call)
    }

    fn pad(&mut self, count: i64) -> Result<()> {
        let pad = self.runtime.primitive::<ConstantPad>(self.device, ConstantPadDesc::new(DType::I8))?;
        let call = ConstantPadCall {
            src_dims: &[count - 3],
            padding_before: &[3],
            padding_after: &[0],
            value: Scalar::I64(1),
            src: &self.x,
            dst: &mut self.y,
        };
        pad.launch(self.stream, call)
    }

    /// Rows of an odd number of bytes.
    fn gather(&mut self, inner: i64) -> Result<()> {
        let desc = GatherDesc::new(IndexMode::WRAP, DType::I32, DType::I8);
        let gather = self.runtime.primitive::<Gather>(self.device, desc)?;
        let call = GatherCall {
            outer: 1,
            processed: 10,
            inner,
            num_indices: 256,
            offset: 0,
            size: 0,
            indices: &self.indices,
            src: &self.x,
            dst: &mut self.y,
        };
        gather.launch(self.stream, call)
    }

    fn batch_gather(&mut self, inner: i64) -> Result<()> {
        let desc = BatchGatherDesc::new(IndexMode::WRAP, DType::I32, DType::I8);
        let gather = self.runtime.primitive::<BatchGather>(self.device, desc)?;
        let call = BatchGatherCall {
            batch: 2,
            outer: 1,
            processed: 10,
            inner,
            num_indices: 128,
            offset: 0,
            size: 0,
            indices: &self.indices,
            src: &self.x,
            dst: &mut self.y,
        };
        gather.launch(self.stream, call)
    }

    fn one_hot(&mut self, depth: i64) -> Result<()> {
        let desc = OneHotDesc::new(IndexMode::WRAP, DType::I32, DType::I8);
        let one_hot = self.runtime.primitive::<OneHot>(self.device, desc)?;
        let call = OneHotCall {
            num_indices: 256,
            depth,
            offset: 0,
            size: 0,
            on: Scalar::None,
            off: Scalar::None,
            indices: &self.indices,
            dst: &mut self.y,
        };
        one_hot.launch(self.stream, call)
    }
}

#[test]
fn what_is_larger_than_31_bits_is_counted_in_64() {
    let rig = Rig::new(Setup { memory_bytes: 1 << 40, ..Setup::default() });
    {
        let runtime = rig.runtime(&[]);
        let device = runtime.device("cuda:0").unwrap();
        let stream = device.stream().unwrap();
        let alloc = || device.alloc(DType::I8, ROOM as usize).unwrap();
        // Written, as far as the host knows: the fake's kernels store nothing.
        let mut x = alloc();
        let fill = runtime.primitive::<Fill>(device, FillDesc::new(DType::I8)).unwrap();
        fill.launch(&stream, FillCall { count: ROOM, value: Scalar::I64(1), dst: &mut x }).unwrap();
        let indices = device.upload(&[0i32; 256]).unwrap();
        let (runtime, stream) = (&runtime, &stream);
        let mut wide = Wide { runtime, device, stream, x, y: alloc(), indices };
        let mut kernel = |run: &dyn Fn(&mut Wide<'_>) -> Result<()>| {
            rig.fake.fail(0, 0);
            run(&mut wide).unwrap();
            let launches = rig.fake.log().into_iter().filter(|l| l.starts_with("cuLaunchKernel"));
            launches.map(|l| l[l.find('(').unwrap() + 1..l.find(',').unwrap()].to_owned()).collect::<Vec<_>>()
        };
        type Run<'a> = &'a dyn Fn(&mut Wide<'_>, i64) -> Result<()>;
        // The kernel, a size with which the largest number is 2^31 - 1 or a little less, and the launch.
        let cases: [(&str, i64, Run<'_>); 15] = [
            ("ep_unary", FAR, &|w, n| w.unary(n)),
            ("ep_unary", FAR, &|w, n| w.cast(n)),
            ("ep_unary", FAR, &|w, n| w.strided_unary(n)),
            ("ep_binary", FAR, &|w, n| w.binary(&[n], &[n])),
            ("ep_binary", FAR / 64, &|w, n| w.binary(&[n, 64], &[64])),
            ("ep_where", FAR, &|w, n| w.choose(n)),
            ("ep_copy", FAR / 6, &|w, n| w.permute(&[2, n, 3])),
            // With room for loads that reach three packs further.
            ("ep_copy_runs", (FAR - 48) / 34, &|w, n| w.permute(&[2, n, 17])),
            // The destination has fewer elements, but the source is far.
            ("ep_copy", FAR / 33, &|w, n| w.copy_nd(n)),
            ("ep_copy", FAR / 2, &|w, n| w.strided_copy(DType::I8, n)),
            ("ep_unary", FAR / 2, &|w, n| w.strided_copy(DType::BOOL, n)),
            // With room for a pack that begins before the source.
            ("ep_pad", FAR - 17, &|w, n| w.pad(n)),
            ("ep_gather", FAR / 256 - 1, &|w, n| w.gather(n)),
            ("ep_gather", FAR / 256 - 1, &|w, n| w.batch_gather(n)),
            ("ep_one_hot", FAR / 256 - 1, &|w, n| w.one_hot(n)),
        ];
        for (i, (name, most, run)) in cases.into_iter().enumerate() {
            assert_eq!(kernel(&|w| run(w, most)), [name], "case {i}, narrow");
            assert_eq!(kernel(&|w| run(w, most + 2)), [format!("{name}<u64>")], "case {i}, wide");
        }
        stream.sync().unwrap();
    }
    rig.assert_clean();
}
