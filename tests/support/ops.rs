//! Launches that every provider can do, in few words.

use ep_core::primitive::{
    BinaryOp, BroadcastElementwiseBinary, BroadcastElementwiseBinaryCall, BroadcastElementwiseBinaryDesc,
    ElementwiseUnary, ElementwiseUnaryCall, ElementwiseUnaryDesc, UnaryOp,
};
use ep_core::{DType, Result, Scalar};
use ep_registry::{Device, NoMemory, Primitive, Read, Runtime, Stream, ViewMut};

/// `dst = src + x` on f32.
#[derive(Debug, Clone)]
pub struct AddScalar(pub Primitive<BroadcastElementwiseBinary>);

impl AddScalar {
    /// Looks it up.
    ///
    /// # Panics
    /// When the device cannot do it.
    pub fn new(runtime: &Runtime, device: &Device) -> AddScalar {
        let desc = BroadcastElementwiseBinaryDesc::new(BinaryOp::ADD, DType::F32, DType::F32);
        AddScalar(runtime.primitive(device, desc).expect("every provider here adds f32"))
    }

    /// Launches it on `n` elements.
    ///
    /// # Errors
    /// The launch's.
    pub fn launch<'a>(
        &self,
        stream: &Stream,
        n: usize,
        src: impl Into<Read<'a>>,
        x: f32,
        dst: impl Into<ViewMut<'a>>,
    ) -> Result<()> {
        let dims = [n as i64];
        let call = BroadcastElementwiseBinaryCall {
            src0_dims: &dims,
            src1_dims: &[],
            scalar0: Scalar::None,
            scalar1: x.into(),
            src0: src,
            src1: NoMemory,
            dst,
        };
        self.0.launch(stream, call)
    }
}

/// `dst = src0 + src1` on f32.
#[derive(Debug, Clone)]
pub struct Add(pub Primitive<BroadcastElementwiseBinary>);

impl Add {
    /// Looks it up.
    ///
    /// # Panics
    /// When the device cannot do it.
    pub fn new(runtime: &Runtime, device: &Device) -> Add {
        Add(AddScalar::new(runtime, device).0)
    }

    /// Launches it on `n` elements.
    ///
    /// # Errors
    /// The launch's.
    pub fn launch<'a>(
        &self,
        stream: &Stream,
        n: usize,
        src0: impl Into<Read<'a>>,
        src1: impl Into<Read<'a>>,
        dst: impl Into<ViewMut<'a>>,
    ) -> Result<()> {
        let dims = [n as i64];
        let (scalar0, scalar1) = (Scalar::None, Scalar::None);
        let call = BroadcastElementwiseBinaryCall {
            src0_dims: &dims,
            src1_dims: &dims,
            scalar0,
            scalar1,
            src0,
            src1,
            dst,
        };
        self.0.launch(stream, call)
    }
}

/// `dst = -src` on i32.
#[derive(Debug, Clone)]
pub struct Negate(pub Primitive<ElementwiseUnary>);

impl Negate {
    /// Looks it up.
    ///
    /// # Panics
    /// When the device cannot do it.
    pub fn new(runtime: &Runtime, device: &Device) -> Negate {
        let desc = ElementwiseUnaryDesc::new(UnaryOp::NEGATIVE, DType::I32, DType::I32);
        Negate(runtime.primitive(device, desc).expect("every provider here negates i32"))
    }

    /// Launches it on `n` elements.
    ///
    /// # Errors
    /// The launch's.
    pub fn launch<'a>(
        &self,
        stream: &Stream,
        n: usize,
        src: impl Into<Read<'a>>,
        dst: impl Into<ViewMut<'a>>,
    ) -> Result<()> {
        self.0.launch(stream, ElementwiseUnaryCall { count: n as i64, src, dst })
    }
}
