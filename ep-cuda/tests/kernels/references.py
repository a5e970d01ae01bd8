"""Results that the kernels are compared with: NumPy and PyTorch in f64, by the formulas of docs/primitives.md."""
import math

import numpy as np

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, math.inf, -math.inf, math.nan, 1e-30, -1e-30, 6e-8,
           20.0, -20.0, 88.0, -88.0, -86.9, -100.0, 1e4, -1e4, 2.5, -2.5, 1.5, -1.5, 1e30, -1e30]


def special(dtype, count, rng, low=-6.0, high=6.0):
    """Random numbers with every special one among them."""
    x = rng.uniform(low, high, count)
    x[: min(count, len(SPECIAL))] = SPECIAL[:count]
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def spacing(kind, x):
    """The distance to the next float of the format at this size, in f64."""
    bits, least = dict(f16=(10, -14), bf16=(7, -126), f32=(23, -126), c64=(23, -126)).get(kind, (52, -1022))
    with np.errstate(all="ignore"):
        e = np.where((x == 0) | ~np.isfinite(x), least, np.floor(np.log2(np.abs(x))))
    return np.ldexp(1.0, np.maximum(np.maximum(e, least) - bits, -1074).astype(int))


def ulps(kind, found, expected, dtype):
    """The largest error in units of the last place; infinity where NaN or infinities differ."""
    with np.errstate(all="ignore"):
        rounded = expected.astype(dtype).astype(np.float64)
    found = found.astype(np.float64)
    same = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
    with np.errstate(all="ignore"):
        error = np.where(same, 0, np.abs(found - expected) / spacing(kind, rounded))
        largest = float(np.finfo(dtype).max) if kind != "bf16" else 3.3895313892515355e38
        edge = np.isinf(found) != np.isinf(rounded)
        near = np.minimum(np.abs(found), np.abs(rounded)) >= largest * 0.999
    error = np.where(edge, np.where(near & ~np.isnan(found) & ~np.isnan(rounded), 0, np.inf), error)
    return np.where(np.isnan(error), np.inf, error)


def by_mpmath(name):
    """The gamma family, exactly rounded to f64; infinities and poles by the contract."""

    def function(x, a, b):
        import mpmath

        mpmath.mp.prec = 100
        poles = dict(digamma=math.nan, trigamma=math.inf, lgamma=math.inf)
        ends = dict(digamma=(math.nan, math.inf), trigamma=(math.nan, 0.0), lgamma=(math.inf, math.inf))

        def one(v):
            if v != v:
                return v
            if name == "gelu":
                return math.nan if v == -math.inf else v if v > 40 else float(v * mpmath.erfc(-mpmath.mpf(v) / mpmath.sqrt(2)) / 2)
            if math.isinf(v):
                return ends[name][v > 0]
            if v == 0 and name == "digamma":
                return -math.copysign(math.inf, v)
            if v <= 0 and v == math.floor(v):
                return poles[name]
            if name == "lgamma":
                return float(mpmath.loggamma(v).real)
            return float(mpmath.psi(int(name == "trigamma"), v).real)

        return np.array([one(float(v)) for v in x])

    return function


def unary_real():
    """Functions of x in f64 and two attributes."""
    import torch

    t = lambda f: lambda x, a, b: f(torch.from_numpy(x)).numpy()
    special = torch.special
    sigmoid = lambda x: np.where(x < 0, np.exp(x) / (1 + np.exp(np.minimum(x, 0))), 1 / (1 + np.exp(-np.maximum(x, 0))))
    soft_plus = lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))

    def times(x, u):
        # Far below zero the exponential would vanish before the product does.
        s = sigmoid(u)
        return np.where((s == 0) & np.isfinite(x), -0.0, x * s)

    fast = lambda x: 0.7978845608028654 * (x + 0.044714998453855515 * x * x * x)
    mish = lambda x: np.where(x < -700, x * 0, np.where(x > 30, x, x * np.tanh(soft_plus(x))))
    keep = lambda x, y: np.where(np.isnan(x), x, y)
    return dict(
        elu=lambda x, a, b: np.where(x > 0, x, a * np.expm1(x)),
        celu=lambda x, a, b: np.where(x > 0, x, a * np.expm1(x / a)),
        relu=lambda x, a, b: np.where(x <= 0, 0, x), gelu=by_mpmath("gelu"),
        hard_swish=lambda x, a, b: np.where(x >= 3, x, np.where(x <= -3, 0, x * (x + 3) / 6)),
        hard_sigmoid=lambda x, a, b: np.where(x >= 3, 1, np.where(x <= -3, 0, (x + 3) / 6)),
        hard_shrink=lambda x, a, b: np.where(np.abs(x) <= a, 0, x),
        hard_tanh=lambda x, a, b: np.where(x >= b, b, np.where(x <= a, a, x)),
        leaky_relu=lambda x, a, b: np.where(x > 0, x, x * a), mish=lambda x, a, b: keep(x, mish(x)),
        selu=lambda x, a, b: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
        silu=lambda x, a, b: times(x, x),
        soft_shrink=lambda x, a, b: np.where(x > a, x - a, np.where(x < -a, x + a, np.where(np.isnan(x), x, 0))),
        soft_sign=lambda x, a, b: x / (1 + np.abs(x)),
        # In f64 the product's rounding would outweigh the result's.
        soft_plus=lambda x, a, b: np.where(x * a > b, x, soft_plus(np.longdouble(x) * a) / a),
        tanh=lambda x, a, b: np.tanh(x), threshold=lambda x, a, b: np.where(x <= a, b, x),
        fast_gelu=lambda x, a, b: times(x, 2 * fast(x)), quick_gelu=lambda x, a, b: times(x, 1.702 * x),
        square_relu=lambda x, a, b: np.where(x > 0, x * x, 0), abs=lambda x, a, b: np.abs(x),
        acos=lambda x, a, b: np.arccos(x), acosh=lambda x, a, b: np.arccosh(x), asin=lambda x, a, b: np.arcsin(x),
        asinh=lambda x, a, b: np.arcsinh(x), atan=lambda x, a, b: np.arctan(x), atanh=lambda x, a, b: np.arctanh(x),
        ceil=lambda x, a, b: np.ceil(x), cos=lambda x, a, b: np.cos(x), cosh=lambda x, a, b: np.cosh(x),
        digamma=by_mpmath("digamma"), trigamma=by_mpmath("trigamma"),
        erf=t(special.erf), erfc=t(special.erfc), exp=lambda x, a, b: np.exp(x), exp2=lambda x, a, b: np.exp2(x),
        expm1=lambda x, a, b: np.expm1(x), floor=lambda x, a, b: np.floor(x), lgamma=by_mpmath("lgamma"),
        log=lambda x, a, b: np.log(x), log2=lambda x, a, b: np.log2(x), log10=lambda x, a, b: np.log10(x),
        log1p=lambda x, a, b: np.log1p(x), log_sigmoid=lambda x, a, b: -soft_plus(-x), negative=lambda x, a, b: -x,
        reciprocal=lambda x, a, b: 1 / x, reciprocal_no_nan=lambda x, a, b: np.where(x == 0, 0, 1 / x),
        rint=lambda x, a, b: np.rint(x), round=lambda x, a, b: np.rint(x), rsqrt=lambda x, a, b: 1 / np.sqrt(x),
        sigmoid=lambda x, a, b: sigmoid(x), sign=lambda x, a, b: np.where(np.isnan(x), 0, np.sign(x)),
        sin=lambda x, a, b: np.sin(x), sinh=lambda x, a, b: np.sinh(x), sqrt=lambda x, a, b: np.sqrt(x),
        square=lambda x, a, b: x * x, tan=lambda x, a, b: np.tan(x), trunc=lambda x, a, b: np.trunc(x),
        not_equal_zero=lambda x, a, b: np.where(x == 0, 0, 1), nan_assign=lambda x, a, b: np.where(np.isnan(x), 0, x),
    )


def binary_real():
    """Functions of two f64, without gradients."""
    import torch

    def zeta(s, q):
        return torch.special.zeta(torch.from_numpy(s), torch.from_numpy(q)).numpy()

    return dict(
        add=np.add, sub=np.subtract, mul=np.multiply, div=np.divide, max=np.maximum, min=np.minimum, pow=np.power,
        fmod=np.fmod, floor_div=np.floor_divide, floor_mod=np.mod, zeta=zeta,
    )


# The function of PyTorch whose gradient each op is, by autograd on f64; those by y are given the forward's result.
def gradients():
    import torch
    import torch.nn.functional as F

    return dict(
        elu_backward_with_dy_x=lambda x: F.elu(x, 1.5), gelu_backward_with_dy_x=F.gelu,
        hard_swish_backward_with_dy_x=F.hardswish, hard_sigmoid_backward_with_dy_x=F.hardsigmoid,
        leaky_relu_backward_with_dy_x=lambda x: F.leaky_relu(x, 1.5), mish_backward_with_dy_x=F.mish,
        relu_backward_with_dy_x=F.relu, selu_backward_with_dy_x=F.selu, silu_backward_with_dy_x=F.silu,
        soft_sign_backward_with_dy_x=F.softsign, sigmoid_backward_with_dy_x=torch.sigmoid,
        acos_backward_with_dy_x=torch.acos, acosh_backward_with_dy_x=torch.acosh, asin_backward_with_dy_x=torch.asin,
        asinh_backward_with_dy_x=torch.asinh, atan_backward_with_dy_x=torch.atan, atanh_backward_with_dy_x=torch.atanh,
        cos_backward_with_dy_x=torch.cos, cosh_backward_with_dy_x=torch.cosh, erf_backward_with_dy_x=torch.erf,
        erfc_backward_with_dy_x=torch.erfc, exp_backward_with_dy_x=torch.exp, exp2_backward_with_dy_x=torch.exp2,
        expm1_backward_with_dy_x=torch.expm1, lgamma_backward_with_dy_x=torch.lgamma,
        digamma_backward_with_dy_x=torch.digamma, log_backward_with_dy_x=torch.log,
        log2_backward_with_dy_x=torch.log2, log10_backward_with_dy_x=torch.log10,
        log1p_backward_with_dy_x=torch.log1p, log_sigmoid_backward_with_dy_x=F.logsigmoid,
        reciprocal_backward_with_dy_x=torch.reciprocal, rsqrt_backward_with_dy_x=torch.rsqrt,
        sin_backward_with_dy_x=torch.sin, sinh_backward_with_dy_x=torch.sinh, sqrt_backward_with_dy_x=torch.sqrt,
        square_backward_with_dy_x=torch.square, tan_backward_with_dy_x=torch.tan,
        fast_gelu_backward_with_dy_x=lambda x: F.gelu(x, approximate="tanh"),
        quick_gelu_backward_with_dy_x=lambda x: x * torch.sigmoid(1.702 * x),
        square_relu_backward_with_dy_x=lambda x: F.relu(x) ** 2, abs_backward_with_dy_x=torch.abs,
        soft_plus_backward_with_dy_x=lambda x: F.softplus(x, 1.5, 2.0),
        threshold_backward_with_dy_x=lambda x: F.threshold(x, 1.5, 2.0), identity_backward_with_dy_x=lambda x: x * 1,
    )


def odd_f32(x):
    """f64 as f32, cut off, with the lowest bit set where that lost something: ml_dtypes rounds to f32 on the way to bf16, and
    rounding twice may miss the nearest."""
    y = x.astype(np.float32)
    y = np.where(np.abs(y.astype(np.float64)) > np.abs(x), np.nextafter(y, np.float32(0)), y)
    inexact = np.isfinite(x) & (y.astype(np.float64) != x)
    return (y.view(np.uint32) | inexact.astype(np.uint32)).view(np.float32)


def cast(x, src, dst, dtype):
    """By the rules of `cast`. Integers beyond 2^53 are not given to half types here."""
    with np.errstate(all="ignore"):
        if src[0] == "c" and dst[0] != "c" and dst != "b8":
            x = x.real
        if dst == "b8":
            return (x != 0).astype(np.uint8)
        if src == "b8":
            x = (x != 0).astype(np.int64)
        if dst[0] in "iu" and (src[0] in "fc" or src == "bf16"):
            info, x = np.iinfo(dtype), x.astype(np.float64)
            out = np.zeros(x.shape, dtype)
            inside = (x > float(info.min) - 1) & (x < float(info.max) + 1)
            out[inside] = np.trunc(x[inside]).astype(dtype)
            out[x >= float(info.max)] = info.max
            out[x <= float(info.min)] = info.min
            return out
        if dst == "bf16" and (src[0] in "iu" or src in ("f64", "c128")):
            return odd_f32(x.astype(np.float64)).astype(dtype)
        return x.astype(dtype)
