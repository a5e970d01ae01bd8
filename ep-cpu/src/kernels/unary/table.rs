//! Which unary op runs on which dtypes.

use super::ops::*;
use super::{Op, UnaryKernel, UnaryRow};
use crate::kernels::cast;
use crate::kernels::elem::{Bool, Complex, Storage};
use crate::kernels::formula::Formula;
use ep_core::DType;
use ep_core::primitive::UnaryOp;
use half::{bf16, f16};
use std::sync::OnceLock;

/// The ops; their indices are what [`lookup`] takes.
pub const OPS: &[&str] = UnaryOp::NAMES;

/// The kernel of `OPS[op]` from `src` to `dst`; `None` if there is none.
pub fn lookup(op: usize, src: DType, dst: DType) -> Option<UnaryKernel> {
    let rows = rows();
    let found = rows.binary_search_by_key(&(op, src, dst), |r| (r.op, r.src, r.dst)).ok()?;
    Some(rows[found].kernel)
}

/// Every supported combination, ordered by op, source and destination dtype.
pub fn rows() -> &'static [UnaryRow] {
    static ROWS: OnceLock<Vec<UnaryRow>> = OnceLock::new();
    ROWS.get_or_init(|| {
        let mut rows = table();
        rows.sort_by_key(|r| (r.op, r.src, r.dst));
        rows
    })
}

fn table() -> Vec<UnaryRow> {
    let mut t = Table(Vec::new());

    t.formula::<Elu>("elu");
    t.formula_by_sign::<Celu, RisingCelu>("celu");
    t.formula::<Gelu>("gelu");
    t.float::<HardSwish>("hard_swish");
    t.float::<HardSigmoid>("hard_sigmoid");
    t.float::<HardShrink>("hard_shrink");
    t.float::<HardTanh>("hard_tanh");
    t.float::<LeakyRelu>("leaky_relu");
    t.formula::<Mish>("mish");
    t.formula::<Selu>("selu");
    t.formula::<Silu>("silu");
    t.float::<SoftShrink>("soft_shrink");
    t.float::<SoftSign>("soft_sign");
    t.formula::<SoftPlus>("soft_plus");
    t.formula::<Tanh>("tanh");
    t.float::<Threshold>("threshold");
    t.formula::<FastGelu>("fast_gelu");
    t.formula::<QuickGelu>("quick_gelu");

    t.formula::<Acos>("acos");
    t.formula::<Acosh>("acosh");
    t.formula::<Asin>("asin");
    t.formula::<Asinh>("asinh");
    t.formula::<Atan>("atan");
    t.formula::<Atanh>("atanh");
    t.formula::<Cos>("cos");
    t.formula::<Cosh>("cosh");
    t.formula::<Digamma>("digamma");
    t.formula::<Trigamma>("trigamma");
    t.formula::<Erf>("erf");
    t.formula::<Erfc>("erfc");
    t.formula::<Exp>("exp");
    t.formula::<Exp2>("exp2");
    t.formula::<Expm1>("expm1");
    t.formula::<Lgamma>("lgamma");
    t.formula::<Log>("log");
    t.formula::<Log2>("log2");
    t.formula::<Log10>("log10");
    t.formula::<Log1p>("log1p");
    t.formula::<LogSigmoid>("log_sigmoid");
    t.float::<Reciprocal>("reciprocal");
    t.float::<ReciprocalNoNan>("reciprocal_no_nan");
    t.formula::<Rsqrt>("rsqrt");
    t.formula::<Sigmoid>("sigmoid");
    t.formula::<Sin>("sin");
    t.formula::<Sinh>("sinh");
    t.float::<Sqrt>("sqrt");
    t.formula::<Tan>("tan");

    t.bool::<Relu>("relu").int::<Relu>("relu").row::<Relu, f32, f32>("relu").row::<Relu, f64, f64>("relu");
    t.bits_of_half::<ReluBits<{ f16::NEG_INFINITY.to_bits() }>>("relu", DType::F16);
    t.bits_of_half::<ReluBits<{ bf16::NEG_INFINITY.to_bits() }>>("relu", DType::BF16);
    t.bool::<SquareRelu>("square_relu").int::<SquareRelu>("square_relu").float::<SquareRelu>("square_relu");
    t.bool::<Abs>("abs").int::<Abs>("abs").row::<Abs, f32, f32>("abs").row::<Abs, f64, f64>("abs");
    t.bits_of_half::<AbsBits>("abs", DType::F16).bits_of_half::<AbsBits>("abs", DType::BF16);
    t.bool::<Sign>("sign").int::<Sign>("sign").float::<Sign>("sign");
    t.bool::<Square>("square").bits::<Square>("square").float::<Square>("square");
    t.bool::<NotEqualZero>("not_equal_zero").bits::<NotEqualZero>("not_equal_zero");
    t.float::<NotEqualZero>("not_equal_zero");
    t.bits::<Negative>("negative")
        .row::<Negative, f32, f32>("negative")
        .row::<Negative, f64, f64>("negative");
    t.bits_of_half::<NegativeBits>("negative", DType::F16)
        .bits_of_half::<NegativeBits>("negative", DType::BF16);
    t.row::<LogicalNot, Bool, Bool>("bitwise_not").bits::<BitwiseNot>("bitwise_not");

    t.copy("identity", &DType::ALL);
    let whole = [&[DType::BOOL], DType::INT].concat();
    t.copy("ceil", &whole).float::<Ceil>("ceil");
    t.copy("floor", &whole).float::<Floor>("floor");
    t.copy("trunc", &whole).float::<Trunc>("trunc");
    t.copy("round", &whole).float::<Rint>("round");
    t.copy("rint", &whole).float::<Rint>("rint");
    t.copy("nan_assign", &whole).float::<NanAssign>("nan_assign");
    for (src, dst, kernel) in cast::rows() {
        t.push("cast", *src, *dst, *kernel);
    }

    t.test::<LogicalNot>("logical_not");
    t.test::<IsInf>("is_inf");
    t.test::<IsNan>("is_nan");
    t.test::<IsFinite>("is_finite");

    t.complex::<Conj>("conj");
    t.complex::<ComplexNegative>("negative");
    t.complex::<ComplexSquare>("square");
    t.complex::<ComplexReciprocal>("reciprocal");
    t.complex::<ComplexSqrt>("sqrt");
    t.complex::<ComplexExp>("exp");
    t.parts::<f16>().parts::<bf16>().parts::<f32>().parts::<f64>();
    t.0
}

type C64 = Complex<f32>;
type C128 = Complex<f64>;

/// Adds the rows of a group of dtypes.
struct Table(Vec<UnaryRow>);

impl Table {
    fn push(&mut self, name: &str, src: DType, dst: DType, kernel: UnaryKernel) {
        let op = OPS.iter().position(|&n| n == name).expect("every row names an op of OPS");
        self.0.push(UnaryRow { op, src, dst, kernel });
    }

    fn row<O: Op<S, D>, S: Storage, D: Storage>(&mut self, name: &str) -> &mut Self {
        self.push(name, S::DTYPE, D::DTYPE, UnaryKernel::of::<O, S, D>());
        self
    }

    fn copy(&mut self, name: &str, dtypes: &[DType]) -> &mut Self {
        for &d in dtypes {
            self.push(name, d, d, cast::copy(d));
        }
        self
    }

    fn bool<O: Op<Bool, Bool>>(&mut self, name: &str) -> &mut Self {
        self.row::<O, Bool, Bool>(name)
    }

    /// The rows of an unsigned integer and of the signed one of its size, for an op that gives both the same bits.
    fn both_signs<O: Op<S, D>, S: Storage, D: Storage>(
        &mut self,
        name: &str,
        (src, dst): (DType, DType),
    ) -> &mut Self {
        self.push(name, src, dst, UnaryKernel::of::<O, S, D>());
        self.row::<O, S, D>(name)
    }

    fn bits<O: Op<u8, u8> + Op<u16, u16> + Op<u32, u32> + Op<u64, u64>>(&mut self, name: &str) -> &mut Self {
        self.both_signs::<O, u8, u8>(name, (DType::I8, DType::I8))
            .both_signs::<O, u16, u16>(name, (DType::I16, DType::I16))
            .both_signs::<O, u32, u32>(name, (DType::I32, DType::I32))
            .both_signs::<O, u64, u64>(name, (DType::I64, DType::I64))
    }

    fn int<O>(&mut self, name: &str) -> &mut Self
    where
        O: Op<i8, i8> + Op<u8, u8> + Op<i16, i16> + Op<u16, u16>,
        O: Op<i32, i32> + Op<u32, u32> + Op<i64, i64> + Op<u64, u64>,
    {
        self.row::<O, i8, i8>(name).row::<O, u8, u8>(name).row::<O, i16, i16>(name).row::<O, u16, u16>(name);
        self.row::<O, i32, i32>(name)
            .row::<O, u32, u32>(name)
            .row::<O, i64, i64>(name)
            .row::<O, u64, u64>(name)
    }

    fn float<O: Op<f16, f16> + Op<bf16, bf16> + Op<f32, f32> + Op<f64, f64>>(
        &mut self,
        name: &str,
    ) -> &mut Self {
        self.row::<O, f16, f16>(name)
            .row::<O, bf16, bf16>(name)
            .row::<O, f32, f32>(name)
            .row::<O, f64, f64>(name)
    }

    fn bits_of_half<O: Op<u16, u16>>(&mut self, name: &str, dtype: DType) -> &mut Self {
        self.push(name, dtype, dtype, UnaryKernel::of::<O, u16, u16>());
        self
    }

    fn formula<F: Formula<1>>(&mut self, name: &str) {
        self.push(name, DType::F16, DType::F16, UnaryKernel::formula::<F, f16>());
        self.push(name, DType::BF16, DType::BF16, UnaryKernel::formula::<F, bf16>());
        self.push(name, DType::F32, DType::F32, UnaryKernel::formula::<F, f32>());
        self.push(name, DType::F64, DType::F64, UnaryKernel::formula::<F, f64>());
    }

    /// `G` where the first attribute is below 0.
    fn formula_by_sign<F: Formula<1>, G: Formula<1>>(&mut self, name: &str) {
        self.push(name, DType::F16, DType::F16, UnaryKernel::formula_by_sign::<F, G, f16>());
        self.push(name, DType::BF16, DType::BF16, UnaryKernel::formula_by_sign::<F, G, bf16>());
        self.push(name, DType::F32, DType::F32, UnaryKernel::formula_by_sign::<F, G, f32>());
        self.push(name, DType::F64, DType::F64, UnaryKernel::formula_by_sign::<F, G, f64>());
    }

    fn complex<O: Op<C64, C64> + Op<C128, C128>>(&mut self, name: &str) -> &mut Self {
        self.row::<O, C64, C64>(name).row::<O, C128, C128>(name)
    }

    /// Of ops that tell signed integers apart by their bits alone.
    fn test<O>(&mut self, name: &str) -> &mut Self
    where
        O: Op<Bool, Bool> + Op<u8, Bool> + Op<u16, Bool> + Op<u32, Bool> + Op<u64, Bool>,
        O: Op<f16, Bool> + Op<bf16, Bool> + Op<f32, Bool> + Op<f64, Bool>,
    {
        self.row::<O, Bool, Bool>(name);
        self.both_signs::<O, u8, Bool>(name, (DType::I8, DType::BOOL))
            .both_signs::<O, u16, Bool>(name, (DType::I16, DType::BOOL))
            .both_signs::<O, u32, Bool>(name, (DType::I32, DType::BOOL))
            .both_signs::<O, u64, Bool>(name, (DType::I64, DType::BOOL));
        self.row::<O, f16, Bool>(name).row::<O, bf16, Bool>(name);
        self.row::<O, f32, Bool>(name).row::<O, f64, Bool>(name)
    }

    /// Between the complex dtypes and the floats `R`.
    fn parts<R: Storage>(&mut self) -> &mut Self
    where
        Real: Op<C64, R> + Op<C128, R>,
        Imag: Op<C64, R> + Op<C128, R>,
        RealGrad: Op<R, C64> + Op<R, C128>,
        ImagGrad: Op<R, C64> + Op<R, C128>,
    {
        self.row::<Real, C64, R>("real").row::<Real, C128, R>("real");
        self.row::<Imag, C64, R>("imag").row::<Imag, C128, R>("imag");
        self.row::<RealGrad, R, C64>("real_grad").row::<RealGrad, R, C128>("real_grad");
        self.row::<ImagGrad, R, C64>("imag_grad").row::<ImagGrad, R, C128>("imag_grad")
    }
}
