//! A small launch of each op that has kernels of its own, in each way that it can go.

use ep_core::primitive::{
    Add, AddCall, AddDesc, Arange, ArangeCall, ArangeDesc, ArgReduce, ArgReduceCall, ArgReduceDesc,
    ArgReduceOp, BatchGather, BatchGatherCall, BatchGatherDesc, BinaryOp, BroadcastElementwiseBinary,
    BroadcastElementwiseBinaryCall, BroadcastElementwiseBinaryDesc, BroadcastElementwiseUnary,
    BroadcastElementwiseUnaryCall, BroadcastElementwiseUnaryDesc, ConstantPad, ConstantPadCall,
    ConstantPadDesc, CopyNd, CopyNdCall, CopyNdDesc, ElementwiseUnary, ElementwiseUnaryCall,
    ElementwiseUnaryDesc, Gather, GatherCall, GatherDesc, IndexMode, LayerNorm, LayerNormCall, LayerNormDesc,
    OneHot, OneHotCall, OneHotDesc, Permute, PermuteCall, PermuteDesc, Reduce, ReduceCall, ReduceDesc,
    ReduceOp, RmsNorm, RmsNormCall, RmsNormDesc, ScatterAdd, ScatterAddCall, ScatterAddDesc, StridedCopy,
    StridedCopyCall, StridedCopyDesc, UnaryOp, Where, WhereCall, WhereDesc,
};
use ep_core::{DType, Result, Scalar};
use ep_registry::{Buffer, Device, NoMemory, Runtime, Stream};

const F32: DType = DType::F32;

/// Buffers of the launches: sources, results, indices, and the runtime that they belong to.
pub struct Bench<'a> {
    pub runtime: &'a Runtime,
    pub device: &'a Device,
    pub stream: &'a Stream,
    pub x: Buffer,
    pub y: Buffer,
    pub halves: Buffer,
    pub indices: Buffer,
    pub places: Buffer,
}

/// Elements of each buffer.
pub const COUNT: usize = 1 << 14;

impl<'a> Bench<'a> {
    pub fn new(runtime: &'a Runtime, device: &'a Device, stream: &'a Stream) -> Result<Bench<'a>> {
        Ok(Bench {
            runtime,
            device,
            stream,
            x: device.upload(&vec![1.0f32; COUNT])?,
            y: device.alloc(F32, COUNT)?,
            halves: device.alloc(DType::F16, COUNT)?,
            indices: device.upload(&vec![0i32; COUNT])?,
            places: device.alloc(DType::I64, COUNT)?,
        })
    }

    pub fn add(&mut self, sources: usize) -> Result<()> {
        let add = self.runtime.primitive::<Add>(self.device, AddDesc::new(F32))?;
        let srcs = vec![&self.x; sources];
        add.launch(self.stream, AddCall { count: 1000, dst: &mut self.y, srcs: &srcs })
    }

    pub fn binary(&mut self, op: BinaryOp, a: &[i64], b: &[i64]) -> Result<()> {
        let desc = BroadcastElementwiseBinaryDesc::new(op, F32, F32);
        let binary = self.runtime.primitive::<BroadcastElementwiseBinary>(self.device, desc)?;
        let call = BroadcastElementwiseBinaryCall {
            src0_dims: a,
            src1_dims: b,
            scalar0: Scalar::None,
            scalar1: Scalar::None,
            src0: &self.x,
            src1: &self.x,
            dst: &mut self.y,
        };
        binary.launch(self.stream, call)
    }

    pub fn unary(&mut self, op: UnaryOp) -> Result<()> {
        let desc = ElementwiseUnaryDesc::new(op, F32, F32);
        let unary = self.runtime.primitive::<ElementwiseUnary>(self.device, desc)?;
        unary.launch(self.stream, ElementwiseUnaryCall { count: 1000, src: &self.x, dst: &mut self.y })
    }

    pub fn strided_unary(&mut self) -> Result<()> {
        let desc = BroadcastElementwiseUnaryDesc::new(UnaryOp::EXP, F32, F32);
        let unary = self.runtime.primitive::<BroadcastElementwiseUnary>(self.device, desc)?;
        let call = BroadcastElementwiseUnaryCall {
            src_dims: &[8, 1],
            src_strides: &[3, 1],
            dst_dims: &[8, 16],
            dst_strides: &[16, 1],
            src: &self.x,
            dst: &mut self.y,
        };
        unary.launch(self.stream, call)
    }

    pub fn choose(&mut self) -> Result<()> {
        let choose = self.runtime.primitive::<Where>(self.device, WhereDesc::new(DType::I32, F32))?;
        let call = WhereCall {
            cond_dims: &[8, 16],
            x_dims: &[16],
            y_dims: &[8, 1],
            cond: &self.indices,
            x: &self.x,
            y: &self.x,
            dst: &mut self.y,
        };
        choose.launch(self.stream, call)
    }

    pub fn permute(&mut self, src_dims: &[i64], permutation: &[i64]) -> Result<()> {
        let permute = self.runtime.primitive::<Permute>(self.device, PermuteDesc::new(F32))?;
        let call = PermuteCall { src_dims, permutation, src: &self.x, dst: &mut self.y };
        permute.launch(self.stream, call)
    }

    pub fn copy_nd(&mut self) -> Result<()> {
        let copy = self.runtime.primitive::<CopyNd>(self.device, CopyNdDesc::new(F32))?;
        let call = CopyNdCall {
            dst_dims: &[8, 20],
            dst_pos: &[1, 4],
            src_dims: &[8, 16],
            src_pos: &[2, 0],
            extent: &[5, 12],
            src: &self.x,
            dst: &mut self.y,
        };
        copy.launch(self.stream, call)
    }

    pub fn strided_copy(&mut self) -> Result<()> {
        let copy = self.runtime.primitive::<StridedCopy>(self.device, StridedCopyDesc::new(F32, F32))?;
        let (dims, src_strides, dst_strides) = (&[4, 5], &[-5, 1], &[6, 1]);
        let call = StridedCopyCall {
            dims,
            src_strides,
            dst_strides,
            src_offset: 15,
            dst_offset: 0,
            src: &self.x,
            dst: &mut self.y,
        };
        copy.launch(self.stream, call)?;
        let cast = StridedCopyDesc::new(F32, DType::F16);
        let cast = self.runtime.primitive::<StridedCopy>(self.device, cast)?;
        let call = StridedCopyCall {
            dims,
            src_strides,
            dst_strides: &[5, 1],
            src_offset: 15,
            dst_offset: 0,
            src: &self.x,
            dst: &mut self.halves,
        };
        cast.launch(self.stream, call)
    }

    pub fn pad(&mut self) -> Result<()> {
        let pad = self.runtime.primitive::<ConstantPad>(self.device, ConstantPadDesc::new(F32))?;
        let call = ConstantPadCall {
            src_dims: &[8, 16],
            padding_before: &[1, -2],
            padding_after: &[0, 3],
            value: Scalar::F64(0.5),
            src: &self.x,
            dst: &mut self.y,
        };
        pad.launch(self.stream, call)
    }

    pub fn gather(&mut self, mode: IndexMode) -> Result<()> {
        let desc = GatherDesc::new(mode, DType::I32, F32);
        let gather = self.runtime.primitive::<Gather>(self.device, desc)?;
        let call = GatherCall {
            outer: 2,
            processed: 10,
            inner: 8,
            num_indices: 6,
            offset: 0,
            size: 0,
            indices: &self.indices,
            src: &self.x,
            dst: &mut self.y,
        };
        gather.launch(self.stream, call)?;
        let desc = BatchGatherDesc::new(mode, DType::I32, F32);
        let gather = self.runtime.primitive::<BatchGather>(self.device, desc)?;
        let call = BatchGatherCall {
            batch: 2,
            outer: 2,
            processed: 10,
            inner: 3,
            num_indices: 6,
            offset: 0,
            size: 0,
            indices: &self.indices,
            src: &self.x,
            dst: &mut self.y,
        };
        gather.launch(self.stream, call)
    }

    pub fn scatter_add(&mut self) -> Result<()> {
        let desc = ScatterAddDesc::new(IndexMode::ERROR, DType::I32, F32);
        let scatter = self.runtime.primitive::<ScatterAdd>(self.device, desc)?;
        let call = ScatterAddCall {
            outer: 2,
            processed: 10,
            inner: 8,
            num_indices: 6,
            offset: 0,
            size: 0,
            indices: &self.indices,
            src: &self.x,
            dst: &mut self.y,
        };
        scatter.launch(self.stream, call)
    }

    pub fn one_hot(&mut self) -> Result<()> {
        let desc = OneHotDesc::new(IndexMode::ZERO, DType::I32, F32);
        let one_hot = self.runtime.primitive::<OneHot>(self.device, desc)?;
        let call = OneHotCall {
            num_indices: 6,
            depth: 10,
            offset: 0,
            size: 0,
            on: Scalar::None,
            off: Scalar::F64(-1.0),
            indices: &self.indices,
            dst: &mut self.y,
        };
        one_hot.launch(self.stream, call)
    }

    pub fn arange(&mut self) -> Result<()> {
        let arange = self.runtime.primitive::<Arange>(self.device, ArangeDesc::new(F32))?;
        let call = ArangeCall { count: 1000, start: Scalar::None, step: Scalar::F64(0.5), dst: &mut self.y };
        arange.launch(self.stream, call)
    }

    pub fn layer_norm(&mut self, rows: i64, cols: i64) -> Result<()> {
        let norm = self.runtime.primitive::<LayerNorm>(self.device, LayerNormDesc::new(F32, F32))?;
        let call = LayerNormCall {
            rows,
            cols,
            src: &self.x,
            gamma: &self.x,
            beta: NoMemory,
            dst: &mut self.y,
            mean: NoMemory,
            rstd: NoMemory,
        };
        norm.launch(self.stream, call)
    }

    pub fn rms_norm(&mut self, rows: i64, cols: i64) -> Result<()> {
        let norm = self.runtime.primitive::<RmsNorm>(self.device, RmsNormDesc::new(F32, F32))?;
        let (dst, inv_rms) = (&mut self.y, NoMemory);
        norm.launch(self.stream, RmsNormCall { rows, cols, src: &self.x, weight: NoMemory, dst, inv_rms })
    }

    pub fn reduce(&mut self, op: ReduceOp, outer: i64, reduced: i64, inner: i64) -> Result<()> {
        let reduce = self.runtime.primitive::<Reduce>(self.device, ReduceDesc::new(op, F32, F32))?;
        let (src, dst) = (&self.x, &mut self.y);
        reduce.launch(self.stream, ReduceCall { outer, reduced, inner, src, dst })
    }

    pub fn arg_reduce(&mut self, outer: i64, reduced: i64, inner: i64) -> Result<()> {
        let desc = ArgReduceDesc::new(ArgReduceOp::ARGMAX, F32, DType::I64);
        let search = self.runtime.primitive::<ArgReduce>(self.device, desc)?;
        let (src, dst) = (&self.x, &mut self.places);
        search.launch(self.stream, ArgReduceCall { outer, reduced, inner, src, dst })
    }

    /// One launch of each.
    pub fn each(&mut self) -> Result<()> {
        self.add(3)?;
        self.binary(BinaryOp::ADD, &[8, 16], &[16])?;
        self.unary(UnaryOp::GELU)?;
        self.strided_unary()?;
        self.choose()?;
        self.permute(&[33, 65], &[1, 0])?;
        self.copy_nd()?;
        self.strided_copy()?;
        self.pad()?;
        self.gather(IndexMode::ERROR)?;
        self.scatter_add()?;
        self.one_hot()?;
        self.arange()?;
        self.layer_norm(4, 32)?;
        self.rms_norm(4, 33)?;
        self.reduce(ReduceOp::SUM, 1, COUNT as i64, 1)?;
        self.arg_reduce(1, COUNT as i64, 1)
    }

    /// The other ways.
    pub fn others(&mut self) -> Result<()> {
        self.add(1)?;
        self.add(9)?;
        self.binary(BinaryOp::POW, &[], &[4, 4])?;
        self.permute(&[3, 5, 2], &[2, 1, 0])?;
        self.permute(&[3, 5, 8], &[1, 0, 2])?;
        self.permute(&[3, 5], &[0, 1])?;
        self.permute(&[64, 64], &[1, 0])?;
        self.layer_norm(1, COUNT as i64)?;
        self.rms_norm(0, 5)?;
        self.rms_norm(5, 0)?;
        self.reduce(ReduceOp::MAX, 4, 8, 33)?;
        self.reduce(ReduceOp::MEAN, 1, COUNT as i64 / 2, 2)?;
        self.reduce(ReduceOp::PROD, 600, 9, 1)?;
        self.arg_reduce(4, 8, 33)?;
        self.arg_reduce(1, COUNT as i64 / 2, 2)?;
        self.arg_reduce(600, 9, 1)
    }
}
