"""broadcast_elementwise_binary."""

import math
from fractions import Fraction

import numpy as np
from mpmath import mp, mpf

from formats import (DTYPES, FLOATS, INF, INTS, NAN, PARTS, File, distinct, generator, limits, near, rounded, settled, specials,
                     spread, wrap)
from unary import (A0, A1, ATTR, POINTS, SELU_ALPHA, SELU_SCALE, SQRT2, any_int, complex_points, digamma, erfc,
                   fast_gelu_argument, fixed_ints, is_pole, points, sigmoid, soft_plus, trigamma)


def sign(x):
    return math.copysign(1, x)


def product(x, y):
    """IEEE's product of a float and a float, mpf or fraction, before rounding."""
    if isinstance(y, Fraction):
        if y == 0 or x == 0 or not math.isfinite(x):
            return product(x, float((y > 0) - (y < 0)))
        exact = Fraction(x) * y
        return mpf(exact.numerator) / mpf(exact.denominator)
    if x != x or y != y:
        return NAN
    s = sign(x) * (sign(y) if isinstance(y, float) else int(mp.sign(y)) or 1)
    if math.isinf(x) or mp.isinf(y):
        return NAN if x == 0 or y == 0 else s * INF
    return s * 0.0 if x == 0 or y == 0 else mp.fmul(x, y, exact=True)


def add(x, y):
    exact = math.isfinite(x) and math.isfinite(y) and x + y != 0
    return mp.fadd(x, y, exact=True) if exact else x + y


def div(x, y):
    if x != x or y != y:
        return NAN
    if y == 0:
        return NAN if x == 0 else sign(x) * sign(y) * INF
    exact = math.isfinite(x) and math.isfinite(y) and x != 0
    return mpf(x) / mpf(y) if exact else x / y


def fmod(x, y):
    return NAN if x != x or y != y or math.isinf(x) or y == 0 else math.fmod(x, y)


def floor_mod(x, y):
    r = fmod(x, y)
    if r == 0:
        return math.copysign(0.0, y)
    return add(r, y) if r == r and (r < 0) != (y < 0) else r


def floor_div(x, y):
    if x != x or y != y or y == 0:
        return div(x, y)
    if math.isinf(x):
        return NAN
    if math.isinf(y):
        q = -1 if x != 0 and sign(x) != sign(y) else 0
    else:
        q = math.floor(Fraction(x) / Fraction(y))
    return mpf(q) if q else sign(x) * sign(y) * 0.0


def power(x, y):
    if not (math.isfinite(x) and math.isfinite(y)) or x == 0 or y == 0:
        if x == 0 and y < 0:
            return math.copysign(INF, x) if y % 2 == 1 else INF
        return math.pow(x, y)
    if x < 0 and y != math.floor(y):
        return NAN
    magnitude = mp.exp(mpf(y) * mp.log(abs(mpf(x)))) if abs(x) != 1 else mpf(1)
    # Exact where the result is.
    for roots in (0, 1, 2):
        root, n = abs(mpf(x)), y * 2**roots
        if abs(y) <= 64 and n == math.floor(n):
            for _ in range(roots):
                root = mp.sqrt(root)
            magnitude = root ** int(n)
            break
    return -magnitude if x < 0 and y % 2 == 1 else magnitude


def zeta(s, q):
    if s != s or q != q or s < 1:
        return NAN
    if s == 1 or q <= 0 and q == math.floor(q):
        return INF
    if q > 0:
        return hurwitz(mpf(s), mpf(q))
    if s != math.floor(s):
        return NAN
    n = -math.floor(q)
    below = mp.fsum((mpf(q) + k) ** -int(s) for k in range(n))
    return below + hurwitz(mpf(s), mpf(q) + n)


def hurwitz(s, q):
    # With few bits mpmath loses many of them where both arguments are large.
    with mp.workprec(600):
        return hurwitz_of_many_bits(s, q)


def hurwitz_of_many_bits(s, q):
    if s <= 60 and q >= 1:
        return mp.zeta(s, q)
    terms, total = 0, mpf(0)
    while True:
        term = (q + terms) ** -s
        total += term
        terms += 1
        if term < total * mpf(2) ** -150:
            return total
        if s <= 60 and terms == 1:
            return total + mp.zeta(s, q + 1)


def close(x, y, equal_nan):
    if x != x or y != y:
        return equal_nan and x != x and y != y
    distance = abs(x - y)
    if isinstance(x, int):
        distance = float(distance)
    return x == y or distance <= ATTR[0] + abs(ATTR[1] * y) and distance < INF


# From two floats to something to round; the last is given the dtype.
MATH = {
    "add": add,
    "sub": lambda x, y: add(x, -y),
    "mul": product,
    "div": div,
    "max": lambda x, y: NAN if x != x or y != y else max(x, y),
    "min": lambda x, y: NAN if x != x or y != y else min(x, y),
    "pow": power,
    "fmod": fmod,
    "floor_div": floor_div,
    "floor_mod": floor_mod,
}
TESTS = {
    "equal": lambda x, y: x == y, "not_equal": lambda x, y: x != y,
    "less_than": lambda x, y: x < y, "less_equal": lambda x, y: x <= y,
    "greater_than": lambda x, y: x > y, "greater_equal": lambda x, y: x >= y,
    "is_close": lambda x, y: close(x, y, False), "is_close_equal_nan": lambda x, y: close(x, y, True),
    "logical_and": lambda x, y: bool(x) and bool(y), "logical_or": lambda x, y: bool(x) or bool(y),
    "logical_xor": lambda x, y: bool(x) != bool(y),
}


def int_pow(x, y):
    if y < 0:
        return 1 if x == 1 else (1 if y % 2 == 0 else -1) if x == -1 else 0
    return pow(x, y, 1 << 64)


INT_MATH = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y,
    "div": lambda x, y: truncated(x, y), "trunc_div": lambda x, y: truncated(x, y),
    "max": max, "min": min, "pow": int_pow,
    "fmod": lambda x, y: x - y * truncated(x, y) if y else 0,
    "floor_div": lambda x, y: x // y if y else 0, "floor_mod": lambda x, y: x % y if y else 0,
    "bitwise_and": lambda x, y: x & y, "bitwise_or": lambda x, y: x | y, "bitwise_xor": lambda x, y: x ^ y,
}


def truncated(x, y):
    return 0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


DY, ZERO = object(), object()


def gated(u, slope):
    """Derivative of x sigmoid(u(x)), and the size of its terms."""

    def g(x):
        s, t = sigmoid(u(x)), sigmoid(-u(x))
        return s + x * slope(x) * s * t

    def size(x):
        s, t = sigmoid(u(x)), sigmoid(-u(x))
        return s + abs(x * slope(x) * s * t)

    return g, size


def mish_terms(x):
    t, s = mp.tanh(soft_plus(x)), sigmoid(x)
    return t, x * s * mp.sech(soft_plus(x)) ** 2


def gelu_terms(x):
    return erfc(-x / SQRT2) / 2, x * mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi)


C_GELU = mpf(0.7978845608028654)
SILU = gated(lambda x: x, lambda x: 1)
QUICK = gated(lambda x: mpf(1.702) * x, lambda x: mpf(1.702))
FAST = gated(lambda x: 2 * fast_gelu_argument(x), lambda x: 2 * C_GELU * (1 + 3 * mpf(0.044714998453855515) * x * x))
GELU = (lambda x: sum(gelu_terms(x)), lambda x: sum(map(abs, gelu_terms(x))))
MISH = (lambda x: sum(mish_terms(x)), lambda x: sum(map(abs, mish_terms(x))))
ERF_SLOPE = 2 / mp.sqrt(mp.pi)


def root(f):
    return lambda x: 1 / mp.sqrt(f(x)) if f(x) > 0 else mp.inf if f(x) == 0 else mp.nan


def one_minus_square(x):
    return (1 - x) * (1 + x)


def inverse(f):
    return lambda x: 1 / f(x) if f(x) != 0 else mp.inf


def selected(test, otherwise):
    return lambda x: DY if test(x) else otherwise(x) if callable(otherwise) else otherwise


# name: (derivative of a finite x but 0: a number, or which of dy and 0 it selects; at 0, -0, inf, -inf, NaN; points of
# interest; ranges; size of the terms where they cancel).
ALL = (0.0, 0.0, 0.0, 0.0, NAN)
BACKWARD = {
    "identity_backward_with_dy_x": (lambda x: DY, (DY,) * 5, [], [(-3, 3)], None),
    "elu_backward_with_dy_x": (selected(lambda x: x > 0, lambda x: A0 * mp.exp(x)), (0.75, 0.75, DY, 0.0, NAN), [-745, -103],
                               [(-40, 3)], None),
    "celu_backward_with_dy_y": (selected(lambda y: y > 0, lambda y: Fraction(float(y)) * 4 / 3 + 1), (1.0, 1.0, DY, -INF, NAN), [-0.75],
                                [(-0.75, 1)], lambda y: abs(y / A0) + 1),
    "gelu_backward_with_dy_x": (GELU[0], (0.5, 0.5, 1.0, 0.0, NAN), [-0.7517915, -38, -14], [(-5, 5), (-40, 10)], GELU[1]),
    "hard_swish_backward_with_dy_x": (lambda x: DY if x >= 3 else ZERO if x <= -3 else Fraction(float(x)) / 3 + Fraction(1, 2),
                                      (0.5, 0.5, DY, ZERO, NAN), [3, -3, -1.5], [(-4, 4)], lambda x: abs(x / 3) + mpf(0.5)),
    "hard_sigmoid_backward_with_dy_x": (lambda x: ZERO if abs(x) >= 3 else mpf(1) / 6, (mpf(1) / 6,) * 2 + (ZERO, ZERO, mpf(1) / 6),
                                        [3, -3], [(-4, 4)], None),
    "hard_shrink_backward_with_dy_y": (lambda y: DY, (ZERO, ZERO, DY, DY, DY), [], [(-2, 2)], None),
    "hard_tanh_backward_with_dy_y": (lambda y: ZERO if y in (A0, A1) else DY, (DY,) * 5, [0.75, 1.5], [(0.7, 1.6)], None),
    "leaky_relu_backward_with_dy_x": (selected(lambda x: x > 0, A0), (0.75, 0.75, DY, 0.75, 0.75), [], [(-3, 3)], None),
    "mish_backward_with_dy_x": (MISH[0], (0.6, 0.6, 1.0, 0.0, NAN), [-1.1924, 20, 40, -103], [(-5, 5), (-50, 50)], MISH[1]),
    "relu_backward_with_dy_y": (selected(lambda x: x > 0, ZERO), (ZERO, ZERO, DY, ZERO, ZERO), [], [(-3, 3)], None),
    "relu_backward_with_dy_x": (selected(lambda x: x > 0, ZERO), (ZERO, ZERO, DY, ZERO, ZERO), [], [(-3, 3)], None),
    "selu_backward_with_dy_x": (lambda x: SELU_SCALE * (1 if x > 0 else SELU_ALPHA * mp.exp(x)),
                                (SELU_SCALE * SELU_ALPHA,) * 2 + (SELU_SCALE, 0.0, NAN), [-745, -103], [(-40, 3)], None),
    "silu_backward_with_dy_x": (SILU[0], (0.5, 0.5, 1.0, 0.0, NAN), [-1.2784645, -88, -103, 36], [(-5, 5), (-50, 50)], SILU[1]),
    "soft_sign_backward_with_dy_x": (lambda x: 1 / (1 + abs(x)) ** 2, (1.0, 1.0, 0.0, 0.0, NAN), [], [(-20, 20)], None),
    "soft_plus_backward_with_dy_x": (selected(lambda x: x * A0 > A1, lambda x: sigmoid(x * A0)), (0.5, 0.5, DY, 0.0, NAN), [2],
                                     [(-40, 3)], None),
    "soft_shrink_backward_with_dy_y": (lambda y: DY, (ZERO, ZERO, DY, DY, DY), [], [(-2, 2)], None),
    "tanh_backward_with_dy_y": (one_minus_square, (1.0, 1.0, -INF, -INF, NAN), [1, -1], [(-1, 1)], None),
    "threshold_backward_with_dy_x": (lambda x: ZERO if x <= A0 else DY, (ZERO, ZERO, DY, ZERO, DY), [0.75], [(-2, 2)], None),
    "sigmoid_backward_with_dy_y": (lambda y: y * (1 - y), (0.0, -0.0, -INF, -INF, NAN), [1], [(0, 1)], None),
    "sigmoid_backward_with_dy_x": (lambda x: sigmoid(x) * sigmoid(-x), (0.25, 0.25, 0.0, 0.0, NAN), [88, -103, 36], [(-40, 40)], None),
    "abs_backward_with_dy_x": (lambda x: mpf(-1) if x < 0 else DY, (ZERO, ZERO, DY, -1.0, DY), [], [(-3, 3)], None),
    "acos_backward_with_dy_x": (lambda x: -root(one_minus_square)(x), (-1.0, -1.0, NAN, NAN, NAN), [1, -1], [(-1, 1)], None),
    "acosh_backward_with_dy_x": (root(lambda x: -one_minus_square(x)), (NAN, NAN, 0.0, 0.0, NAN), [1], [(1, 30)], None),
    "asin_backward_with_dy_x": (root(one_minus_square), (1.0, 1.0, NAN, NAN, NAN), [1, -1], [(-1, 1)], None),
    "asinh_backward_with_dy_x": (root(lambda x: 1 + x * x), (1.0, 1.0, 0.0, 0.0, NAN), [], [(-10, 10)], None),
    "atan_backward_with_dy_x": (lambda x: 1 / (1 + x * x), (1.0, 1.0, 0.0, 0.0, NAN), [], [(-10, 10)], None),
    "atanh_backward_with_dy_x": (inverse(one_minus_square), (1.0, 1.0, -0.0, -0.0, NAN), [1, -1], [(-1, 1)], None),
    "cos_backward_with_dy_x": (lambda x: -mp.sin(x), (-0.0, 0.0, NAN, NAN, NAN), [k * math.pi / 2 for k in range(1, 9)],
                               [(-10, 10), (-1000, 1000)], None),
    "cosh_backward_with_dy_x": (mp.sinh, (0.0, -0.0, INF, -INF, NAN), [], [(-5, 5), (-80, 80)], None),
    "erf_backward_with_dy_x": (lambda x: ERF_SLOPE * mp.exp(-x * x), (ERF_SLOPE,) * 2 + (0.0, 0.0, NAN), [9.3, 26], [(-5, 5)], None),
    "erfc_backward_with_dy_x": (lambda x: -ERF_SLOPE * mp.exp(-x * x), (-ERF_SLOPE,) * 2 + (-0.0, -0.0, NAN), [9.3, 26], [(-5, 5)],
                                None),
    "exp_backward_with_dy_x": (mp.exp, (1.0, 1.0, INF, 0.0, NAN), [709.78, -745], [(-5, 5), (-80, 80)], None),
    "exp2_backward_with_dy_x": (lambda x: mp.ln2 * mpf(2) ** x, (mp.ln2, mp.ln2, INF, 0.0, NAN), [1024, -1074], [(-5, 5), (-120, 120)],
                                None),
    "expm1_backward_with_dy_x": (mp.exp, (1.0, 1.0, INF, 0.0, NAN), [709.78, -745], [(-5, 5), (-80, 80)], None),
    "lgamma_backward_with_dy_x": (digamma, (-INF, INF, INF, NAN, NAN), [1.4616321449683623, -1.0, -2.0], [(-10, 10), (0, 20)], None),
    "digamma_backward_with_dy_x": (trigamma, (INF, INF, 0.0, NAN, NAN), [-1.0, -2.0], [(-10, 10), (0, 20)], None),
    "log_backward_with_dy_x": (lambda x: 1 / x, (INF, -INF, 0.0, -0.0, NAN), [], [(-3, 3)], None),
    "log2_backward_with_dy_x": (lambda x: 1 / (x * mp.ln2), (INF, -INF, 0.0, -0.0, NAN), [], [(-3, 3)], None),
    "log10_backward_with_dy_x": (lambda x: 1 / (x * mp.ln10), (INF, -INF, 0.0, -0.0, NAN), [], [(-3, 3)], None),
    "log1p_backward_with_dy_x": (inverse(lambda x: 1 + x), (1.0, 1.0, 0.0, -0.0, NAN), [-1], [(-3, 3)], None),
    "log_sigmoid_backward_with_dy_x": (lambda x: sigmoid(-x), (0.5, 0.5, 0.0, 1.0, NAN), [88, 103, -36], [(-40, 40)], None),
    "reciprocal_backward_with_dy_x": (lambda x: -1 / (x * x), (-INF, -INF, -0.0, -0.0, NAN), [], [(-3, 3)], None),
    "reciprocal_no_nan_backward_with_dy_x": (lambda x: -1 / (x * x), (ZERO, ZERO, -0.0, -0.0, NAN), [], [(-3, 3)], None),
    "rsqrt_backward_with_dy_x": (lambda x: -1 / (2 * x * mp.sqrt(x)) if x > 0 else mp.nan, (-INF, -INF, -0.0, NAN, NAN), [],
                                 [(0, 3)], None),
    "sin_backward_with_dy_x": (mp.cos, (1.0, 1.0, NAN, NAN, NAN), [k * math.pi / 2 for k in range(1, 9)], [(-10, 10), (-1000, 1000)],
                               None),
    "sinh_backward_with_dy_x": (mp.cosh, (1.0, 1.0, INF, INF, NAN), [], [(-5, 5), (-80, 80)], None),
    "sqrt_backward_with_dy_x": (root(lambda x: 4 * x), (INF, -INF, 0.0, NAN, NAN), [], [(0, 3)], None),
    "square_backward_with_dy_x": (lambda x: 2 * x, (0.0, -0.0, INF, -INF, NAN), [], [(-3, 3)], None),
    "tan_backward_with_dy_x": (lambda x: 1 / mp.cos(x) ** 2, (1.0, 1.0, NAN, NAN, NAN), [k * math.pi / 2 for k in range(1, 9)],
                               [(-10, 10), (-1000, 1000)], None),
    "fast_gelu_backward_with_dy_x": (FAST[0], (0.5, 0.5, 1.0, 0.0, NAN), [-0.75246, -5, -10], [(-5, 5), (-15, 10)], FAST[1]),
    "quick_gelu_backward_with_dy_x": (QUICK[0], (0.5, 0.5, 1.0, 0.0, NAN), [-0.7511, -50, -60], [(-5, 5), (-40, 30)], QUICK[1]),
    "square_relu_backward_with_dy_x": (lambda x: 2 * x if x > 0 else ZERO, (ZERO, ZERO, INF, ZERO, ZERO), [], [(-3, 3)], None),
}
# The two power gradients have the same form, but x first and dy second.
POWER_GRADS = {
    "scalar_base_power_grad": (lambda x: mp.exp(x * mp.log(A0)) * mp.log(A0), (mp.log(A0),) * 2 + (-0.0, -INF, NAN), [0, 10],
                               [(-100, 100)], None),
    "scalar_exp_power_grad": (lambda x: A0 * x ** (A0 - 1) if x > 0 else mp.nan, (INF, INF, 0.0, 0.0, NAN), [1], [(0, 10)], None),
}


def slope_at(table, x):
    f, special, _, _, _ = table
    if x != x:
        return special[4]
    if x == 0:
        return special[0 if sign(x) > 0 else 1]
    if math.isinf(x):
        return special[2 if x > 0 else 3]
    return f(mpf(x))


def factors(dtype, count):
    """Factors dy of everyday size, and now and then special ones; the same for every function."""
    rng = generator("dy", dtype)
    out = [rounded(dtype, spread(dtype, rng, -8, 8)) for _ in range(count)]
    fixed = [0.0, -0.0, INF, -INF, NAN, 1.0, -1.0]
    for i in range(5, len(out), 23):
        out[i] = fixed[i % len(fixed)]
    return out


def backward(dtype, name, table):
    """dy, x and what to round, and where terms cancel the size of dy times them."""
    _, _, interest, ranges, size = table
    x = points(dtype, interest, ranges, generator("backward", name, dtype))
    if name.startswith("acosh"):
        # At the far end of the forward's gap the sign depends on how the formula is written.
        x = [rounded(dtype, -1.25) if v == -1 else v for v in x]
    dy, y, sizes = factors(dtype, len(x)), [], []
    _, normal, largest = limits(dtype)
    for i, v in enumerate(x):
        slope = slope_at(table, v)
        if slope is DY or slope is ZERO:
            y.append(rounded(dtype, dy[i] if slope is DY else 0.0))
        else:
            # What overflows or underflows before it meets dy is not judged together with it.
            if not isinstance(slope, Fraction) and mp.isfinite(slope) and slope != 0 and not normal * 1024 <= abs(slope) <= largest / 1024:
                dy[i] = 1.0
            y.append(settled(dtype, lambda: product(dy[i], slope_at(table, v)), product(dy[i], slope)))
        if size:
            plain = math.isfinite(v) and v != 0 and math.isfinite(dy[i])
            sizes.append(min(abs(dy[i]) * size(mpf(v)), mpf(2) ** 1000) if plain else 0.0)
    return dy, x, y, sizes


def pairs(dtype):
    """Every special value with every other, and pairs of like, of unlike and of nearly equal size."""
    rng = generator("pairs", dtype)
    tiny, normal, largest = limits(dtype)
    few = [0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 2.0, 3.0, -3.0, 2.5, -7.0, INF, -INF, NAN, tiny, -tiny, normal, largest, -largest]
    out = [(a, b) for a in few for b in few]
    out += [(rounded(dtype, a), rounded(dtype, b)) for a, b in ((1.0, 0.1), (6.0, -3.0), (1e3, 1e-3), (-1.0, 0.1), (9.0, 0.3))]

    def draw():
        pick = rng.random()
        a = spread(dtype, rng) if pick < 0.3 else spread(dtype, rng, -10, 10)
        if pick < 0.15:
            b = spread(dtype, rng)
        elif pick < 0.5:
            b = spread(dtype, rng, -10, 10)
        elif pick < 0.7:
            b = rng.choice((1, -1)) * near(dtype, a, 4)[rng.randrange(9)] if math.isfinite(rounded(dtype, a)) else 1.0
        elif pick < 0.85:
            a, b = float(rng.randrange(-40, 40)), float(rng.randrange(-12, 12))
        else:
            b = a * rng.randrange(2, 200) * rng.choice((1, -1)) if pick < 0.92 else a / rng.randrange(2, 200)
        return rounded(dtype, a), rounded(dtype, b)

    out = distinct(out, draw, POINTS)
    return [a for a, _ in out], [b for _, b in out]


def power_pairs(dtype):
    some = list(zip(*pairs(dtype)))[:900]
    rng = generator("pow", dtype)
    _, _, largest = limits(dtype)

    def draw():
        x = abs(spread(dtype, rng, -8, 8)) if rng.random() < 0.6 else rng.uniform(0.9, 1.1) if rng.random() < 0.5 else spread(dtype, rng)
        # Results across the whole range of the dtype and a little beyond.
        goal = rng.uniform(-1.05, 1.05) * math.log(largest)
        y = goal / math.log(abs(x)) if abs(x) != 1 and rng.random() < 0.7 else float(rng.randrange(-20, 20)) / rng.choice((1, 2))
        return rounded(dtype, x), rounded(dtype, y)

    out = distinct(some, draw, POINTS)
    return [a for a, _ in out], [b for _, b in out]


def zeta_pairs(dtype):
    rng = generator("zeta", dtype)
    out = [(s, q) for s in (1.0, 0.5, 2.0, 3.0, 1.5, NAN, -1.0) for q in (0.0, -1.0, -4.0, 1.0, 0.5, -0.5, 2.5, NAN)]
    for s in near(dtype, 1.0, 2):
        out += [(s, 1.0), (s, 2.5)]

    def draw():
        pick = rng.random()
        s = 1 + 2.0 ** rng.uniform(-6, 4.5) if pick < 0.7 else float(rng.randrange(2, 30))
        q = 2.0 ** rng.uniform(-8, 12) if pick < 0.85 else -rng.uniform(0, 12)
        if pick > 0.6 and pick < 0.7:
            s = rng.uniform(30, 120)
            q = rng.uniform(0.2, 4)
        s, q = rounded(dtype, s), rounded(dtype, q)
        # Odd powers of bases on both sides of zero cancel next to the half-integers.
        return (s, q) if q > 0 or s != math.floor(s) or abs(abs(q % 1) - 0.5) > 0.05 else draw()

    out = distinct(out, draw, POINTS)
    return [s for s, _ in out], [q for _, q in out]


def int_pairs(dtype):
    rng = generator("int pairs", dtype)
    few = fixed_ints(dtype)
    small = [x for x in range(-6, 7) if dtype[0] == "i" or x >= 0]

    def draw():
        return any_int(dtype, rng), rng.choice(small) if rng.random() < 1 / 3 else any_int(dtype, rng)

    out = distinct([(a, b) for a in few for b in few], draw, POINTS)
    return [a for a, _ in out], [b for _, b in out]


def binary():
    file = File("broadcast_elementwise_binary")

    def add_record(name, src, dst, a, b, y, scale=()):
        # A flat launch; broadcasting has records of its own.
        file.add(selectors={"op": name}, dtypes={"src": src, "dst": dst}, attrs={"attr0": ATTR[0], "attr1": ATTR[1]},
                 dims={"src0_dims": [len(a)], "src1_dims": [len(b)]}, reads=[("src0", src, a), ("src1", src, b)],
                 writes=[("dst", dst, y)], scales={"dst": scale} if scale else {})

    for dtype in FLOATS:
        a, b = pairs(dtype)
        for name, f in MATH.items():
            x, y = power_pairs(dtype) if name == "pow" else (a, b)
            add_record(name, dtype, dtype, x, y, [settled(dtype, lambda: f(u, v)) for u, v in zip(x, y)])
        inner = "f64" if dtype == "f64" else "f32"
        whole = [settled(inner, lambda: div(u, v)) for u, v in zip(a, b)]
        whole = [math.copysign(float(math.trunc(q)), q) if math.isfinite(q) else q for q in whole]
        add_record("trunc_div", dtype, dtype, a, b, [rounded(dtype, q) for q in whole])
        x, y = zeta_pairs(dtype)
        add_record("zeta", dtype, dtype, x, y, [settled(dtype, lambda: zeta(u, v)) for u, v in zip(x, y)])
        for name, f in TESTS.items():
            add_record(name, dtype, "bool", a, b, [int(f(u, v)) for u, v in zip(a, b)])
        for name, table in BACKWARD.items():
            dy, x, y, sizes = backward(dtype, name, table)
            add_record(name, dtype, dtype, dy, x, y, sizes)
        for name, table in POWER_GRADS.items():
            dy, x, y, _ = backward(dtype, name, table)
            add_record(name, dtype, dtype, x, dy, y)
    for dtype in ["bool"] + INTS:
        a, b = int_pairs(dtype) if dtype != "bool" else ([0, 0, 1, 1], [0, 1, 0, 1])
        for name, f in INT_MATH.items():
            y = [f(u, v) for u, v in zip(a, b)]
            add_record(name, dtype, dtype, a, b, [int(v != 0) if dtype == "bool" else wrap(dtype, v) for v in y])
        for name, f in TESTS.items():
            add_record(name, dtype, "bool", a, b, [int(f(u, v)) for u, v in zip(a, b)])
    for dtype, part in PARTS.items():
        complex_binary(add_record, dtype, part)
    broadcasts(file)
    return file


def complex_binary(add_record, dtype, part):
    rng = generator("complex pairs", dtype)
    a, b = complex_points(dtype, rng, POINTS), complex_points(dtype, rng, POINTS)
    rng.shuffle(b)
    for i in range(0, POINTS, 5):
        b[i] = a[i]
    both = lambda re, im: complex(rounded(part, re), rounded(part, im))
    exact = lambda z: (mpf(z.real), mpf(z.imag))

    def mul(u, v):
        (p, q), (r, s) = exact(u), exact(v)
        return both(p * r - q * s, p * s + q * r)

    def quotient(u, v):
        (p, q), (r, s) = exact(u), exact(v)
        n = r * r + s * s
        return both((p * r + q * s) / n, (q * r - p * s) / n)

    def sqrt_backward(dy, x):
        p, q = exact(x)
        length = mp.sqrt(p * p + q * q)
        long = mp.sqrt((abs(p) + length) / 2)
        short = abs(q) / long / 2
        re, im = (short, long) if p < 0 else (long, short)
        im = -2 * im * int(sign(x.imag))
        re = 2 * re
        n = re * re + im * im
        im = -im
        # dy / (2 conj(root)) is dy times twice the root over its norm.
        (r, s) = exact(dy)
        return both((r * re - s * im) / n, (r * im + s * re) / n)

    # Each part is rounded by itself, so a part that is zero is one exactly.
    add_record("add", dtype, dtype, a, b, [complex(rounded(part, add(u.real, v.real)), rounded(part, add(u.imag, v.imag)))
                                           for u, v in zip(a, b)])
    add_record("sub", dtype, dtype, a, b, [complex(rounded(part, add(u.real, -v.real)), rounded(part, add(u.imag, -v.imag)))
                                           for u, v in zip(a, b)])
    add_record("mul", dtype, dtype, a, b, [mul(u, v) for u, v in zip(a, b)])
    divisor = [v if v != 0 else complex(1, -2) for v in b]
    add_record("div", dtype, dtype, a, divisor, [quotient(u, v) for u, v in zip(a, divisor)])
    add_record("equal", dtype, "bool", a, b, [int(u == v) for u, v in zip(a, b)])
    add_record("not_equal", dtype, "bool", a, b, [int(u != v) for u, v in zip(a, b)])
    add_record("sqrt_backward_with_dy_x", dtype, dtype, a, divisor, [sqrt_backward(u, v) for u, v in zip(a, divisor)])


SHAPES_OF_BOTH = [([3, 4], [4]), ([2, 1, 3], [4, 3]), ([5, 1], [1, 7]), ([2, 5, 10, 5], [5, 1, 5, 10, 1][1:]), ([1], [6]),
                  ([], [2, 3]), ([0, 3], [1, 3]), ([2, 3, 0], [1]), ([5, 1, 5, 10, 1], [2, 5, 10, 5]), ([], [])]


def broadcasts(file):
    """NumPy is asked what broadcasts to what."""
    rng = np.random.default_rng(7)
    for dtype, kind in (("i32", np.int32), ("f32", np.float32), ("i8", np.int8), ("f64", np.float64), ("u16", np.uint16)):
        for shapes in SHAPES_OF_BOTH:
            try:
                np.broadcast_shapes(*shapes)
            except ValueError:
                continue
            a, b = (rng.integers(-100, 100, s).astype(kind) for s in shapes)
            for name, f, dst in (("sub", np.subtract, dtype), ("less_than", np.less, "bool")):
                y = f(a, b)
                file.add(selectors={"op": name}, dtypes={"src": dtype, "dst": dst}, dims={"src0_dims": shapes[0], "src1_dims": shapes[1]},
                         reads=[("src0", dtype, a.tobytes()), ("src1", dtype, b.tobytes())],
                         writes=[("dst", dst, np.asarray(y).tobytes())])
                if a.size:
                    # A scalar on either side.
                    file.add(selectors={"op": name}, dtypes={"src": dtype, "dst": dst}, dims={"src0_dims": shapes[0]},
                             scalars={"scalar1": 7}, reads=[("src0", dtype, a.tobytes())],
                             writes=[("dst", dst, np.asarray(f(a, kind(7))).tobytes())])
                    file.add(selectors={"op": name}, dtypes={"src": dtype, "dst": dst}, dims={"src1_dims": shapes[1]},
                             scalars={"scalar0": 2.5 if dtype[0] == "f" else 7}, reads=[("src1", dtype, b.tobytes())],
                             writes=[("dst", dst, np.asarray(f(kind(2.5 if dtype[0] == "f" else 7), b)).tobytes())])
    for shapes in (([2, 3], [2]), ([4], [3])):
        file.add(selectors={"op": "add"}, dtypes={"src": "f32", "dst": "f32"}, dims={"src0_dims": shapes[0], "src1_dims": shapes[1]},
                 reads=[("src0", "f32", [0.0] * 6), ("src1", "f32", [0.0] * 6)], error=True)
