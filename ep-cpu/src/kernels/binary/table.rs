//! Which binary op runs on which dtypes.

use super::ops::*;
use super::{BinaryKernel, BinaryRow, Op, backward, complex};
use crate::kernels::elem::{Bool, Complex, Storage};
use crate::kernels::formula::Formula;
use ep_core::DType;
use ep_core::primitive::BinaryOp;
use half::{bf16, f16};
use std::sync::OnceLock;

/// The ops; their indices are what [`lookup`] takes.
pub const OPS: &[&str] = BinaryOp::NAMES;

/// The kernel of `OPS[op]` from two `src` to `dst`; `None` if there is none.
pub fn lookup(op: usize, src: DType, dst: DType) -> Option<BinaryKernel> {
    let rows = rows();
    let found = rows.binary_search_by_key(&(op, src, dst), |r| (r.op, r.src, r.dst)).ok()?;
    Some(rows[found].kernel)
}

/// Every supported combination, ordered by op, source and destination dtype.
pub fn rows() -> &'static [BinaryRow] {
    static ROWS: OnceLock<Vec<BinaryRow>> = OnceLock::new();
    ROWS.get_or_init(|| {
        let mut rows = table();
        rows.sort_by_key(|r| (r.op, r.src, r.dst));
        rows
    })
}

type C64 = Complex<f32>;
type C128 = Complex<f64>;

fn table() -> Vec<BinaryRow> {
    let mut t = Table(Vec::new());

    t.wrapping::<Add>("add");
    t.wrapping::<Sub>("sub");
    t.wrapping::<Mul>("mul");
    t.row::<Div, Bool, Bool>("div").int::<Div>("div").float_and_halves::<Div, DivHalves>("div");
    t.real::<Max>("max");
    t.real::<Min>("min");
    t.row::<Pow, Bool, Bool>("pow").int::<Pow>("pow").formula::<PowFloat>("pow");
    t.row::<Fmod, Bool, Bool>("fmod").int::<Fmod>("fmod").formula::<FmodFloat>("fmod");
    t.row::<FloorDiv, Bool, Bool>("floor_div")
        .int::<FloorDiv>("floor_div")
        .formula::<FloorDivFloat>("floor_div");
    t.real::<TruncDiv>("trunc_div");
    t.row::<FloorMod, Bool, Bool>("floor_mod")
        .int::<FloorMod>("floor_mod")
        .formula::<FloorModFloat>("floor_mod");
    t.formula::<ScalarBasePowerGrad>("scalar_base_power_grad");
    t.formula::<ScalarExpPowerGrad>("scalar_exp_power_grad");
    t.formula::<Zeta>("zeta");
    for (name, kernel) in [("add", complex::add()), ("sub", complex::sub()), ("mul", complex::mul())] {
        t.push(name, DType::COMPLEX64, DType::COMPLEX64, kernel);
    }
    t.row::<ComplexAdd, C128, C128>("add");
    t.row::<ComplexSub, C128, C128>("sub");
    t.row::<ComplexMul, C128, C128>("mul");
    t.complex::<ComplexDiv>("div");

    t.test_of_bits::<Equal>("equal").row::<Equal, C64, Bool>("equal").row::<Equal, C128, Bool>("equal");
    t.test_of_bits::<NotEqual>("not_equal").row::<NotEqual, C64, Bool>("not_equal");
    t.row::<NotEqual, C128, Bool>("not_equal");
    t.test::<LessThan>("less_than");
    t.test::<LessEqual>("less_equal");
    t.test::<GreaterThan>("greater_than");
    t.test::<GreaterEqual>("greater_equal");
    t.test::<IsClose>("is_close");
    t.test::<IsCloseEqualNan>("is_close_equal_nan");
    t.test_of_bits::<LogicalAnd>("logical_and");
    t.test_of_bits::<LogicalOr>("logical_or");
    t.test_of_bits::<LogicalXor>("logical_xor");

    t.bits::<BitwiseAnd>("bitwise_and").row::<BitwiseAnd, Bool, Bool>("bitwise_and");
    t.bits::<BitwiseOr>("bitwise_or").row::<BitwiseOr, Bool, Bool>("bitwise_or");
    t.bits::<BitwiseXor>("bitwise_xor").row::<BitwiseXor, Bool, Bool>("bitwise_xor");

    t.float::<backward::Identity>("identity_backward_with_dy_x");
    t.formula::<backward::Elu>("elu_backward_with_dy_x");
    t.formula::<backward::Celu>("celu_backward_with_dy_y");
    t.formula::<backward::Gelu>("gelu_backward_with_dy_x");
    t.formula::<backward::HardSwish>("hard_swish_backward_with_dy_x");
    t.float::<backward::HardSigmoid>("hard_sigmoid_backward_with_dy_x");
    t.float::<backward::HardShrink>("hard_shrink_backward_with_dy_y");
    t.float::<backward::HardTanh>("hard_tanh_backward_with_dy_y");
    t.float_and_halves::<backward::LeakyRelu, backward::LeakyReluHalves>("leaky_relu_backward_with_dy_x");
    t.formula::<backward::Mish>("mish_backward_with_dy_x");
    t.float_and_halves::<backward::Relu, backward::ReluHalves>("relu_backward_with_dy_y");
    t.float_and_halves::<backward::Relu, backward::ReluHalves>("relu_backward_with_dy_x");
    t.formula::<backward::Selu>("selu_backward_with_dy_x");
    t.formula::<backward::Silu>("silu_backward_with_dy_x");
    t.formula::<backward::SoftSign>("soft_sign_backward_with_dy_x");
    t.formula::<backward::SoftPlus>("soft_plus_backward_with_dy_x");
    t.float::<backward::SoftShrink>("soft_shrink_backward_with_dy_y");
    t.formula::<backward::Tanh>("tanh_backward_with_dy_y");
    t.float::<backward::Threshold>("threshold_backward_with_dy_x");
    t.formula::<backward::SigmoidY>("sigmoid_backward_with_dy_y");
    t.formula::<backward::SigmoidX>("sigmoid_backward_with_dy_x");
    t.float::<backward::Abs>("abs_backward_with_dy_x");
    t.formula::<backward::Acos>("acos_backward_with_dy_x");
    t.formula::<backward::Acosh>("acosh_backward_with_dy_x");
    t.formula::<backward::Asin>("asin_backward_with_dy_x");
    t.formula::<backward::Asinh>("asinh_backward_with_dy_x");
    t.formula::<backward::Atan>("atan_backward_with_dy_x");
    t.formula::<backward::Atanh>("atanh_backward_with_dy_x");
    t.formula::<backward::Cos>("cos_backward_with_dy_x");
    t.formula::<backward::Cosh>("cosh_backward_with_dy_x");
    t.formula::<backward::Erf>("erf_backward_with_dy_x");
    t.formula::<backward::Erfc>("erfc_backward_with_dy_x");
    t.formula::<backward::Exp>("exp_backward_with_dy_x");
    t.formula::<backward::Exp2>("exp2_backward_with_dy_x");
    t.formula::<backward::Exp>("expm1_backward_with_dy_x");
    t.formula::<backward::Lgamma>("lgamma_backward_with_dy_x");
    t.formula::<backward::Digamma>("digamma_backward_with_dy_x");
    t.formula::<backward::Log>("log_backward_with_dy_x");
    t.formula::<backward::Log2>("log2_backward_with_dy_x");
    t.formula::<backward::Log10>("log10_backward_with_dy_x");
    t.formula::<backward::Log1p>("log1p_backward_with_dy_x");
    t.formula::<backward::LogSigmoid>("log_sigmoid_backward_with_dy_x");
    t.formula::<backward::Reciprocal>("reciprocal_backward_with_dy_x");
    t.formula::<backward::ReciprocalNoNan>("reciprocal_no_nan_backward_with_dy_x");
    t.formula::<backward::Rsqrt>("rsqrt_backward_with_dy_x");
    t.formula::<backward::Sin>("sin_backward_with_dy_x");
    t.formula::<backward::Sinh>("sinh_backward_with_dy_x");
    t.formula::<backward::Sqrt>("sqrt_backward_with_dy_x");
    t.complex::<ComplexSqrtBackward>("sqrt_backward_with_dy_x");
    t.float::<backward::Square>("square_backward_with_dy_x");
    t.formula::<backward::Tan>("tan_backward_with_dy_x");
    t.formula::<backward::FastGelu>("fast_gelu_backward_with_dy_x");
    t.formula::<backward::QuickGelu>("quick_gelu_backward_with_dy_x");
    t.float::<backward::SquareRelu>("square_relu_backward_with_dy_x");
    t.0
}

/// Adds the rows of a group of dtypes.
struct Table(Vec<BinaryRow>);

impl Table {
    fn push(&mut self, name: &str, src: DType, dst: DType, kernel: BinaryKernel) {
        let op = OPS.iter().position(|&n| n == name).expect("every row names an op of OPS");
        self.0.push(BinaryRow { op, src, dst, kernel });
    }

    fn row<O: Op<S, D>, S: Storage, D: Storage>(&mut self, name: &str) -> &mut Self {
        self.push(name, S::DTYPE, D::DTYPE, BinaryKernel::of::<O, S, D>());
        self
    }

    /// The rows of an unsigned integer and of the signed one of its size, for an op that gives both the same bits.
    fn both_signs<O: Op<S, D>, S: Storage, D: Storage>(
        &mut self,
        name: &str,
        (src, dst): (DType, DType),
    ) -> &mut Self {
        self.push(name, src, dst, BinaryKernel::of::<O, S, D>());
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

    /// `O`, whose loop over groups of f16 and bf16 compilers make poor vectors of: these compute `F`, which is the same.
    fn float_and_halves<O: Op<f32, f32> + Op<f64, f64>, F: Formula<2>>(&mut self, name: &str) {
        self.row::<O, f32, f32>(name).row::<O, f64, f64>(name).halves::<F>(name);
    }

    fn halves<F: Formula<2>>(&mut self, name: &str) {
        self.push(name, DType::F16, DType::F16, BinaryKernel::formula::<F, f16>());
        self.push(name, DType::BF16, DType::BF16, BinaryKernel::formula::<F, bf16>());
    }

    fn formula<F: Formula<2>>(&mut self, name: &str) {
        self.halves::<F>(name);
        self.push(name, DType::F32, DType::F32, BinaryKernel::formula::<F, f32>());
        self.push(name, DType::F64, DType::F64, BinaryKernel::formula::<F, f64>());
    }

    fn real<O>(&mut self, name: &str)
    where
        O: Op<Bool, Bool> + Op<i8, i8> + Op<u8, u8> + Op<i16, i16> + Op<u16, u16>,
        O: Op<i32, i32> + Op<u32, u32> + Op<i64, i64> + Op<u64, u64>,
        O: Op<f16, f16> + Op<bf16, bf16> + Op<f32, f32> + Op<f64, f64>,
    {
        self.row::<O, Bool, Bool>(name).int::<O>(name).float::<O>(name);
    }

    fn wrapping<O>(&mut self, name: &str)
    where
        O: Op<Bool, Bool> + Op<u8, u8> + Op<u16, u16> + Op<u32, u32> + Op<u64, u64>,
        O: Op<f16, f16> + Op<bf16, bf16> + Op<f32, f32> + Op<f64, f64>,
    {
        self.row::<O, Bool, Bool>(name).bits::<O>(name).float::<O>(name);
    }

    fn complex<O: Op<C64, C64> + Op<C128, C128>>(&mut self, name: &str) {
        self.row::<O, C64, C64>(name).row::<O, C128, C128>(name);
    }

    fn test<O>(&mut self, name: &str) -> &mut Self
    where
        O: Op<Bool, Bool> + Op<i8, Bool> + Op<u8, Bool> + Op<i16, Bool> + Op<u16, Bool>,
        O: Op<i32, Bool> + Op<u32, Bool> + Op<i64, Bool> + Op<u64, Bool>,
        O: Op<f16, Bool> + Op<bf16, Bool> + Op<f32, Bool> + Op<f64, Bool>,
    {
        self.row::<O, Bool, Bool>(name);
        self.row::<O, i8, Bool>(name).row::<O, u8, Bool>(name).row::<O, i16, Bool>(name);
        self.row::<O, u16, Bool>(name).row::<O, i32, Bool>(name).row::<O, u32, Bool>(name);
        self.row::<O, i64, Bool>(name).row::<O, u64, Bool>(name);
        self.row::<O, f16, Bool>(name).row::<O, bf16, Bool>(name);
        self.row::<O, f32, Bool>(name).row::<O, f64, Bool>(name)
    }

    /// As `test`, of ops that tell signed integers apart by their bits alone.
    fn test_of_bits<O>(&mut self, name: &str) -> &mut Self
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
}
