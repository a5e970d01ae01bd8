"""elementwise_unary, cast and fill."""

import functools
import math

from mpmath import mp, mpf

from formats import (DTYPES, FLOATS, INF, INTS, NAN, PARTS, SHAPES, File, distinct, generator, int_range, limits, near, rounded, settled, specials,
                     spread, wrap)

POINTS = 2000
ATTR = (0.75, 1.5)
A0, A1 = map(mpf, ATTR)


def sigmoid(x):
    return 1 / (1 + mp.exp(-x))


def soft_plus(x):
    return mp.log1p(mp.exp(x)) if x < 0 else x + mp.log1p(mp.exp(-x))


def erfc(x):
    """Beyond 10^4, where it is 0 or 2 in every dtype but keeps its sign and side, that of 10^4."""
    return mp.erfc(max(min(x, mpf(10) ** 4), -mpf(10) ** 4))


def is_pole(x):
    return x <= 0 and x == mp.floor(x)


def lgamma(x):
    if is_pole(x):
        return mp.inf
    if x > 0:
        return mp.loggamma(x)
    return mp.log(mp.pi / abs(mp.sinpi(x))) - mp.loggamma(1 - x)


def digamma(x):
    if is_pole(x):
        return mp.nan
    if x > 0:
        return mp.digamma(x)
    return mp.digamma(1 - x) - mp.pi * mp.cospi(x) / mp.sinpi(x)


def trigamma(x):
    if is_pole(x):
        return mp.inf
    if x > 0:
        return mp.psi(1, x)
    return (mp.pi / mp.sinpi(x)) ** 2 - mp.psi(1, 1 - x)


def fast_gelu_argument(x):
    return mpf(0.7978845608028654) * (x + mpf(0.044714998453855515) * x**3)


SELU_SCALE, SELU_ALPHA = mpf(1.0507009873554805), mpf(1.6732632423543772)
SQRT2 = mp.sqrt(2)


def guarded(f, inside):
    return lambda x: f(x) if inside(x) else mp.nan


def nearest_even(x):
    return mp.nint(x)


# name: (function of a finite x but 0, values at 0, -0, inf, -inf, points of interest, ranges).
# An exact zero from a finite x is +0, or has the sign of x where the name is in SIGNED_ZERO.
SIGNED_ZERO = {"ceil", "floor", "trunc", "round", "rint"}
HALF_PI = math.pi / 2
TRIG = [k * HALF_PI for k in range(-12, 13) if k] + [355.0, 1e5, 1e22, 6381956970095103.0 * 2.0**797]
ROUNDS = [k + 0.5 for k in range(-6, 7)] + [2.0**22 + 0.5, 2.0**51 + 0.5, 2.0**52, 2.0**53, -(2.0**51) - 0.5, 1023.5]
LGAMMA_ROOTS = [1, 2, -2.4570247382208006, -2.7476826467274127, -3.14358088834998, -3.955294284858598,
                -4.039361839740537, -4.991544640560048, -5.0082181683225935]
DIGAMMA_ROOTS = [1.4616321449683623, -0.5040830082644554, -1.5734984731623904, -2.6107208684441447,
                 -3.635293366436901, -4.653237761743142]
# In f64 and f32, where e^x is halfway from the largest number to infinity, the least normal one, and half the least
# number of all: log(2^1024 - 2^970), log(2^-1022), log(2^-1075).
EXP_OVER, EXP_NORMAL, EXP_UNDER = ([709.782712893384, 88.72283908187067], [-708.3964185322641, -87.3365447505531],
                                   [-745.1332191019412, -103.97207708399179])
# Where 1 + e^x is halfway to 1's neighbour, 1 - e^x to the one below: log(2^-53), log(2^-54).
ONE = [-36.7368005696771, -16.635532333438686, -37.42994775023705, -17.328679513998633]
# Where cosh is halfway to infinity.
COSH_OVER = [710.475860073944, 89.41598626243062]
# Where gates times x are normal and half the least number: roots of log(x) - c x - log1p(e^(-c x)) - log(2^-1022) and so on.
SILU = [-714.9686572379665, -751.7556304135238, -91.85677532459547, -108.66030361932556]
QUICK_GELU = [-419.76269569542546, -441.3766849434017, -53.65399570749889, -63.527348758093034]
FAST_GELU = [-21.176880491993494, -21.54707565497368, -10.100637502490063, -10.770868370805967]
GELU = [-37.61586831395599, -38.58014022378236, -13.146246717861361, -14.356067982158693]
# Where erfc is normal, half the least number, and halfway to 2.
ERFC = [26.54325845425098, 27.226017111108362, 9.194549449134673, 10.054194928818095, -5.8635847487551676, -3.832506856900711]
POLES = [-float(k) for k in range(1, 12)] + [-100.0, -1000.0]
FUNCTIONS = {
    "elu": (lambda x: x if x > 0 else A0 * mp.expm1(x), (0.0, -0.0, INF, -0.75), [-37, -745], [(-40, 5)]),
    "celu": (lambda x: x if x > 0 else A0 * mp.expm1(x / A0), (0.0, -0.0, INF, -0.75), [-27], [(-40, 5)]),
    "relu": (lambda x: max(x, mpf(0)), (0.0, 0.0, INF, 0.0), [], [(-3, 3)]),
    "gelu": (lambda x: x * erfc(-x / SQRT2) / 2, (0.0, -0.0, INF, NAN), GELU + [8.3], [(-15, 10), (-40, -10)]),
    "hard_swish": (lambda x: mpf(0) if x <= -3 else x if x >= 3 else x * (x + 3) / 6, (0.0, -0.0, INF, 0.0), [-3, 3],
                   [(-4, 4)]),
    "hard_sigmoid": (lambda x: mpf(0) if x <= -3 else mpf(1) if x >= 3 else (x + 3) / 6, (0.5, 0.5, 1.0, 0.0), [-3, 3],
                     [(-4, 4)]),
    "hard_shrink": (lambda x: mpf(0) if abs(x) <= A0 else x, (0.0, 0.0, INF, -INF), [0.75, -0.75], [(-2, 2)]),
    "hard_tanh": (lambda x: min(max(x, A0), A1), (0.75, 0.75, 1.5, 0.75), [0.75, 1.5], [(-1, 3)]),
    "leaky_relu": (lambda x: x if x > 0 else A0 * x, (0.0, -0.0, INF, -INF), [], [(-3, 3)]),
    "mish": (lambda x: x * mp.tanh(soft_plus(x)), (0.0, -0.0, INF, NAN), SILU + [-36, 20, 40, -1.19],
             [(-40, 25), (-750, -80)]),
    "selu": (lambda x: SELU_SCALE * (x if x > 0 else SELU_ALPHA * mp.expm1(x)),
             (0.0, -0.0, INF, rounded("f64", -SELU_SCALE * SELU_ALPHA)), [-37], [(-40, 5)]),
    "silu": (lambda x: x * sigmoid(x), (0.0, -0.0, INF, NAN), SILU + [-36, 37, -1.278], [(-40, 40), (-750, -80)]),
    "soft_shrink": (lambda x: x + A0 if x < -A0 else x - A0 if x > A0 else mpf(0), (0.0, 0.0, INF, -INF), [0.75, -0.75],
                    [(-2, 2)]),
    "soft_sign": (lambda x: x / (1 + abs(x)), (0.0, -0.0, NAN, NAN), [], [(-20, 20)]),
    "soft_plus": (lambda x: x if x * A0 > A1 else soft_plus(x * A0) / A0, (rounded("f64", mp.log(2) / A0),) * 2 + (INF, 0.0),
                  [2, -50, -1000], [(-40, 3), (-1000, -80)]),
    "tanh": (mp.tanh, (0.0, -0.0, 1.0, -1.0), [9.010913339828708, 19.061547465398498, 22, 0.0005, 0.55], [(-10, 10), (-1, 1)]),
    "threshold": (lambda x: A1 if x <= A0 else x, (1.5, 1.5, INF, 1.5), [0.75], [(-2, 2)]),
    "fast_gelu": (lambda x: x * sigmoid(2 * fast_gelu_argument(x)), (0.0, -0.0, INF, NAN), FAST_GELU + [-5], [(-22, 10)]),
    "quick_gelu": (lambda x: x * sigmoid(mpf(1.702) * x), (0.0, -0.0, INF, NAN), QUICK_GELU + [-50], [(-60, 30), (-440, -50)]),
    "square_relu": (lambda x: x * x if x > 0 else mpf(0), (0.0, 0.0, INF, 0.0), [], [(-3, 30)]),
    "abs": (abs, (0.0, 0.0, INF, INF), [], [(-3, 3)]),
    "acos": (guarded(mp.acos, lambda x: abs(x) <= 1), (rounded("f64", mp.pi / 2),) * 2 + (NAN, NAN), [1, -1, 0.5, -0.5],
             [(-1, 1), (0.99, 1), (-1, -0.99)]),
    "acosh": (guarded(mp.acosh, lambda x: x >= 1), (NAN, NAN, INF, NAN), [1, 2], [(1, 1.01), (1, 30)]),
    "asin": (guarded(mp.asin, lambda x: abs(x) <= 1), (0.0, -0.0, NAN, NAN), [1, -1, 0.5, -0.5], [(-1, 1), (0.99, 1)]),
    "asinh": (mp.asinh, (0.0, -0.0, INF, -INF), [1e-4], [(-3, 3), (-100, 100)]),
    "atan": (mp.atan, (0.0, -0.0, HALF_PI, -HALF_PI), [0.4375, 0.6875, 1.1875, 2.4375], [(-5, 5)]),
    "atanh": (lambda x: mp.atanh(x) if abs(x) < 1 else mp.inf * x if abs(x) == 1 else mp.nan, (0.0, -0.0, NAN, NAN),
              [1, -1, 0.5], [(-1, 1), (0.99, 1)]),
    "ceil": (mp.ceil, (0.0, -0.0, INF, -INF), ROUNDS, [(-4, 4), (-1000, 1000)]),
    "cos": (mp.cos, (1.0, 1.0, NAN, NAN), TRIG, [(-10, 10), (-1000, 1000)]),
    "cosh": (mp.cosh, (1.0, 1.0, INF, INF), COSH_OVER + [88.7, 11.09], [(-5, 5), (-711, 711), (-90, 90)]),
    "digamma": (digamma, (-INF, INF, INF, NAN), DIGAMMA_ROOTS + POLES, [(-10, 10), (0, 3), (0, 50)]),
    "trigamma": (trigamma, (INF, INF, 0.0, NAN), POLES, [(-10, 10), (0, 3), (0, 50)]),
    "erf": (lambda x: mp.erf(x) if abs(x) < 10000 else mp.sign(x), (0.0, -0.0, 1.0, -1.0), [0.5, 0.84375, 1.25, 5.92, 3.92], [(-3, 3), (-6.5, 6.5)]),
    "erfc": (erfc, (1.0, 1.0, 0.0, 2.0), [0.5, 0.84375, 1.25, -6] + ERFC, [(-3, 3), (-7, 28), (0, 11)]),
    "exp": (mp.exp, (1.0, 1.0, INF, 0.0), EXP_OVER + EXP_NORMAL + EXP_UNDER + [11.09, -16.6],
            [(-5, 5), (-746, 710), (-104, 89)]),
    "exp2": (lambda x: mpf(2) ** x, (1.0, 1.0, INF, 0.0), [1024, -1022, -1074, -1075, 128, -126, -149, -150, 16, -24],
             [(-5, 5), (-1076, 1025), (-150, 129)]),
    "expm1": (mp.expm1, (0.0, -0.0, INF, -1.0), EXP_OVER + ONE + [11.09, 0.35], [(-5, 5), (-40, 710), (-18, 89)]),
    "floor": (mp.floor, (0.0, -0.0, INF, -INF), ROUNDS, [(-4, 4), (-1000, 1000)]),
    "lgamma": (lgamma, (INF, INF, INF, INF), LGAMMA_ROOTS + POLES + [2.5599833278516383e305, 4.085003365866873e36],
               [(-10, 10), (0, 3), (0, 50)]),
    "log": (guarded(mp.log, lambda x: x > 0), (-INF, -INF, INF, NAN), [1, math.e, 0.7071], [(0, 3), (0.9, 1.1), (0, 1000)]),
    "log2": (guarded(lambda x: mp.log(x) / mp.ln2, lambda x: x > 0), (-INF, -INF, INF, NAN), [1, 0.7071, 8, 1024], [(0, 3), (0.9, 1.1)]),
    "log10": (guarded(lambda x: mp.log(x) / mp.ln10, lambda x: x > 0), (-INF, -INF, INF, NAN), [1, 0.7071, 10, 1000, 1e22],
              [(0, 3), (0.9, 1.1)]),
    "log1p": (lambda x: mp.log1p(x) if x > -1 else -mp.inf if x == -1 else mp.nan, (0.0, -0.0, INF, NAN), [-1, 0.41, -0.29],
              [(-1, 3), (-0.1, 0.1)]),
    "log_sigmoid": (lambda x: -soft_plus(-x), (rounded("f64", -mp.ln2),) * 2 + (-0.0, -INF),
                    [-x for x in EXP_NORMAL + EXP_UNDER] + [36, -36], [(-40, 40), (80, 750)]),
    "negative": (lambda x: -x, (-0.0, 0.0, -INF, INF), [], [(-3, 3)]),
    "reciprocal": (lambda x: 1 / x, (INF, -INF, 0.0, -0.0), [], [(-3, 3)]),
    "reciprocal_no_nan": (lambda x: 1 / x, (0.0, 0.0, 0.0, -0.0), [], [(-3, 3)]),
    "rint": (nearest_even, (0.0, -0.0, INF, -INF), ROUNDS, [(-4, 4), (-1000, 1000)]),
    "round": (nearest_even, (0.0, -0.0, INF, -INF), ROUNDS, [(-4, 4), (-1000, 1000)]),
    "rsqrt": (guarded(lambda x: 1 / mp.sqrt(x), lambda x: x > 0), (INF, -INF, 0.0, NAN), [], [(0, 5)]),
    "sigmoid": (sigmoid, (0.5, 0.5, 1.0, 0.0), EXP_NORMAL + EXP_UNDER + [-x for x in ONE] + [-16.6], [(-40, 40), (-750, -80)]),
    "sign": (lambda x: mpf(1) if x > 0 else mpf(-1), (0.0, 0.0, 1.0, -1.0), [], [(-3, 3)]),
    "sin": (mp.sin, (0.0, -0.0, NAN, NAN), TRIG, [(-10, 10), (-1000, 1000)]),
    "sinh": (mp.sinh, (0.0, -0.0, INF, -INF), COSH_OVER + [88.7, 11.09, 0.3], [(-5, 5), (-711, 711), (-90, 90)]),
    "sqrt": (guarded(mp.sqrt, lambda x: x > 0), (0.0, -0.0, INF, NAN), [], [(0, 5)]),
    "square": (lambda x: x * x, (0.0, 0.0, INF, INF), [], [(-3, 3)]),
    "tan": (mp.tan, (0.0, -0.0, NAN, NAN), TRIG, [(-10, 10), (-1000, 1000)]),
    "trunc": (lambda x: mp.sign(x) * mp.floor(abs(x)), (0.0, -0.0, INF, -INF), ROUNDS, [(-4, 4), (-1000, 1000)]),
    "not_equal_zero": (lambda x: mpf(1), (0.0, 0.0, 1.0, 1.0), [], [(-3, 3)]),
    "nan_assign": (lambda x: x, (0.0, -0.0, INF, -INF), [], [(-3, 3)]),
}
# Values at NaN; the rest gives NaN.
AT_NAN = {"sign": 0.0, "square_relu": 0.0, "not_equal_zero": 1.0, "nan_assign": 0.0}


def points(dtype, interest, ranges, rng, count=POINTS):
    """Distinct numbers of a dtype: special ones, those at and towards points of interest, and random ones."""
    precision, _, _ = SHAPES[dtype]
    found = {}

    def put(x):
        x = rounded(dtype, x)
        found.setdefault((math.copysign(1, x) if x == x else 0, "nan" if x != x else x), x)

    for x in specials(dtype):
        put(x)
    for c in interest:
        for x in near(dtype, c, 3):
            put(x)
        for k in range(2, precision + 2, 3):
            put(c * (1 + 2.0**-k))
            put(c * (1 - 2.0**-k))
    while len(found) < count:
        pick = rng.random()
        if pick < 0.35:
            put(spread(dtype, rng))
        elif pick < 0.5:
            put(spread(dtype, rng, -12, 8))
        else:
            low, high = rng.choice(ranges)
            put(rng.uniform(low, high))
    return list(found.values())


def value(name, x):
    """The function of a float, as something to round."""
    f, (at_zero, at_minus_zero, at_inf, at_minus_inf), _, _ = FUNCTIONS[name]
    if x != x:
        return AT_NAN.get(name, NAN)
    if x == 0:
        return at_zero if math.copysign(1, x) > 0 else at_minus_zero
    if math.isinf(x):
        return at_inf if x > 0 else at_minus_inf
    y = f(mpf(x))
    return math.copysign(0.0, x) if y == 0 and name in SIGNED_ZERO else y


# Values at a zero or an infinity that are roundings themselves, exactly.
EXACT = {
    "soft_plus": {0.0: mp.log(2) / A0}, "selu": {-INF: -SELU_SCALE * SELU_ALPHA}, "acos": {0.0: mp.pi / 2},
    "atan": {INF: mp.pi / 2, -INF: -mp.pi / 2}, "log_sigmoid": {0.0: -mp.ln2},
}


def golden(name, dtype, x):
    exact = EXACT.get(name, {}).get(x)
    return rounded(dtype, exact) if exact is not None else settled(dtype, lambda: value(name, x))


def fixed_ints(dtype):
    low, high = int_range(dtype)
    return [x for x in (0, 1, -1, 2, -2, 3, 7, -7, 10, low, low + 1, high, high - 1) if low <= x <= high]


def any_int(dtype, rng):
    """An integer of any size."""
    low, high = int_range(dtype)
    width = rng.randrange(1, 8 * DTYPES[dtype][1] + 1) if dtype != "bool" else 1
    x = rng.getrandbits(width) * rng.choice((1, -1))
    return min(max(x, low), high)


def int_points(dtype, rng, count):
    out = fixed_ints(dtype)
    return out + [any_int(dtype, rng) for _ in range(count - len(out))]


def distinct_ints(dtype, rng):
    return distinct(fixed_ints(dtype), lambda: any_int(dtype, rng), POINTS)


def whole_points(dtype):
    """All of a byte's values."""
    if DTYPES[dtype][1] > 1:
        return distinct_ints(dtype, generator("unary", dtype))
    low, high = int_range(dtype)
    return [low + i % (high + 1 - low) for i in range(256)]


INT_FUNCTIONS = {
    "relu": lambda x: max(x, 0),
    "square_relu": lambda x: max(x, 0) ** 2,
    "abs": abs,
    "sign": lambda x: (x > 0) - (x < 0),
    "square": lambda x: x * x,
    "not_equal_zero": lambda x: int(x != 0),
    "negative": lambda x: -x,
    "bitwise_not": lambda x: ~x,
    "identity": lambda x: x, "ceil": lambda x: x, "floor": lambda x: x, "trunc": lambda x: x, "round": lambda x: x,
    "rint": lambda x: x, "nan_assign": lambda x: x,
}
TESTS = {
    "is_inf": math.isinf, "is_nan": math.isnan, "is_finite": math.isfinite, "logical_not": lambda x: not x,
}


@functools.cache
def cases():
    """Every function: its name, dtypes, operand and result."""
    out = []

    def add(name, src, dst, x, y):
        out.append((name, src, dst, x, y))

    for name, (_, _, interest, ranges) in FUNCTIONS.items():
        for dtype in FLOATS:
            x = points(dtype, interest, ranges, generator("unary", name, dtype))
            add(name, dtype, dtype, x, [golden(name, dtype, v) for v in x])
    for dtype in ["bool"] + INTS:
        x = whole_points(dtype)
        for name, f in INT_FUNCTIONS.items():
            if dtype == "bool":
                if name != "negative":
                    add(name, dtype, dtype, x, [1 - v if name == "bitwise_not" else int(f(v) != 0) for v in x])
            else:
                add(name, dtype, dtype, x, [wrap(dtype, f(v)) for v in x])
    for dtype in ["bool"] + INTS + FLOATS:
        if dtype in FLOATS:
            x = points(dtype, [], [(-3, 3)], generator("test", dtype))
        else:
            x = whole_points(dtype)
        for name, f in TESTS.items():
            add(name, dtype, "bool", x, [int(f(v)) for v in x])
    for dtype, part in PARTS.items():
        complex_unary(add, dtype, part)
    for dtype in FLOATS:
        x = points(dtype, [], [(-3, 3)], generator("unary", "identity", dtype))
        add("identity", dtype, dtype, x, x)
    for src in DTYPES:
        x = cast_points(src, generator("cast", src))
        for dst in DTYPES:
            add("cast", src, dst, x, [cast_value(v, src, dst) for v in x])
    return out


def unary():
    file = File("elementwise_unary")
    for name, src, dst, x, y in cases():
        file.add(selectors={"op": name}, dtypes={"src": src, "dst": dst}, attrs={"attr0": ATTR[0], "attr1": ATTR[1]},
                 sizes={"count": len(x)}, reads=[("src", src, x)], writes=[("dst", dst, y)])
    return file


def complex_points(dtype, rng, count, everyday=False):
    """Pairs of parts: special finite ones, and random ones of like and of unlike size."""
    part = PARTS[dtype]
    out = []
    few = [0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 3.0, -1e-5]
    for re in few:
        for im in few:
            out.append(complex(rounded(part, re), rounded(part, im)))
    while len(out) < count:
        low, high = (-6, 6) if everyday or rng.random() < 0.7 else (-40, 40)
        re, im = spread(part, rng, low, high), spread(part, rng, low, high)
        if rng.random() < 0.2:
            im = re * (1 + rng.uniform(-1e-3, 1e-3))
        out.append(complex(rounded(part, re), rounded(part, im)))
    return out


def signed(x, like):
    """A part that is zero, with the sign of another number."""
    return math.copysign(0.0, like) if x == 0 else x


def complex_unary(add, dtype, part):
    rng = generator("complex", dtype)
    x = complex_points(dtype, rng, POINTS)
    small = complex_points(dtype, rng, POINTS, everyday=True)
    both = lambda re, im: complex(rounded(part, re), rounded(part, im))

    def parts(z):
        return mpf(z.real), mpf(z.imag)

    def square(z):
        a, b = parts(z)
        return both(a * a - b * b, 2 * a * b)

    def reciprocal(z):
        a, b = parts(z)
        n = a * a + b * b
        return both(a / n, -b / n)

    def sqrt(z):
        if z == 0:
            return complex(0.0, z.imag)
        a, b = parts(z)
        length = mp.sqrt(a * a + b * b)
        long = mp.sqrt((abs(a) + length) / 2)
        short = abs(b) / long / 2
        re, im = (short, long) if math.copysign(1, z.real) < 0 else (long, short)
        im = rounded(part, im)
        return complex(rounded(part, re), math.copysign(im, z.imag))

    def exp(z):
        a, b = parts(z)
        return complex(rounded(part, mp.exp(a) * mp.cos(b)), signed(rounded(part, mp.exp(a) * mp.sin(b)), z.imag))

    spare = iter(complex(1.5, k) for k in range(4))
    nonzero = [z if z != 0 else next(spare) for z in x]
    add("conj", dtype, dtype, x, [z.conjugate() for z in x])
    add("negative", dtype, dtype, x, [complex(-z.real, -z.imag) for z in x])
    add("identity", dtype, dtype, x, x)
    add("square", dtype, dtype, x, [square(z) for z in x])
    add("reciprocal", dtype, dtype, nonzero, [reciprocal(z) for z in nonzero])
    add("sqrt", dtype, dtype, x, [sqrt(z) for z in x])
    add("exp", dtype, dtype, small, [exp(z) for z in small])
    for real in FLOATS:
        add("real", dtype, real, x, [rounded(real, mpf(z.real)) if z.real else z.real for z in x])
        add("imag", dtype, real, x, [rounded(real, mpf(z.imag)) if z.imag else z.imag for z in x])
        r = points(real, [], [(-3, 3)], generator("parts", real))
        add("real_grad", real, dtype, r, [complex(rounded(part, v), 0.0) for v in r])
        add("imag_grad", real, dtype, r, [complex(0.0, rounded(part, v)) for v in r])


def cast_value(x, src, dst):
    if dst == "bool":
        return int(x != 0)
    if dst in PARTS:
        z = complex(x) if src in PARTS else None
        return complex(rounded(PARTS[dst], z.real if z is not None else x), rounded(PARTS[dst], z.imag) if z is not None else 0.0)
    if src in PARTS:
        x = x.real
    if dst in FLOATS:
        return rounded(dst, x)
    if src in FLOATS or src in PARTS:
        low, high = int_range(dst)
        return 0 if x != x else high if x == INF else low if x == -INF else min(max(int(x), low), high)
    return wrap(dst, x)


def cast_points(dtype, rng):
    """Values on both sides of what other dtypes round, truncate and saturate at."""
    if dtype in PARTS:
        part = cast_points(PARTS[dtype], rng)
        other = part[::-1]
        return [complex(a, b) for a, b in zip(part, other)]
    if dtype == "bool":
        return [0, 1]
    edges = [s * (2**k + d) for k in (7, 8, 11, 15, 16, 24, 25, 31, 32, 53, 54, 63, 64) for d in (-1, 0, 1) for s in (1, -1)]
    ties = [(0x101 << k) + d for k in (3, 22, 54) for d in (-1, 0, 1)] + [(1 << 54) + (1 << 30) + d for d in (-1, 0, 1)]
    if dtype not in FLOATS:
        low, high = int_range(dtype)
        fixed = [x for x in edges + ties + [-x for x in ties] if low <= x <= high]
        return list(dict.fromkeys(fixed + (distinct_ints(dtype, rng) if DTYPES[dtype][1] > 1 else list(range(low, high + 1)))))
    out = specials(dtype)
    for dst in FLOATS:
        tiny, normal, largest = limits(dst)
        for x in (tiny / 2, tiny * 1.5, normal, largest):
            out += near(dtype, x, 2) + near(dtype, -x, 2)
        out += near(dtype, largest * (1 + 2.0 ** -(SHAPES[dst][0] + 1)), 2)
        out += near(dtype, 1 + 2.0 ** -SHAPES[dst][0], 2)
    for x in edges:
        out += near(dtype, x, 1) + [rounded(dtype, x + 0.5)]
    return distinct(out, lambda: rounded(dtype, spread(dtype, rng) if rng.random() < 0.5 else rng.uniform(-300, 300)), POINTS)


def cast():
    file = File("cast")
    for src in DTYPES:
        x = cast_points(src, generator("cast", src))
        for dst in DTYPES:
            # NaN payloads survive a copy, which is tested elsewhere; here a NaN is a NaN.
            file.add(dtypes={"src": src, "dst": dst}, sizes={"count": len(x)}, reads=[("src", src, x)],
                     writes=[("dst", dst, [cast_value(v, src, dst) for v in x])])
    return file


SCALARS = [(True, "bool"), (False, "bool"), (-3, "i64"), (300, "i64"), (-(1 << 63), "i64"), ((1 << 64) - 1, "u64"),
           ((0x101 << 54) + 1, "i64"), (-2.75, "f64"), (1e300, "f64"), (-INF, "f64"), (NAN, "f64"), (0.1, "f64"),
           (1 + 2.0**-11 + 2.0**-40, "f64"), (complex(0.5, -1.5), "complex128"), (complex(0, 3), "complex128")]


def fill():
    file = File("fill")
    for dtype in DTYPES:
        for x, kind in SCALARS:
            file.add(dtypes={"data": dtype}, sizes={"count": 137}, scalars={"value": x},
                     writes=[("dst", dtype, [cast_value(x, kind, dtype)] * 137)])
        file.add(dtypes={"data": dtype}, sizes={"count": 0}, scalars={"value": 1}, writes=[("dst", dtype, [])])
        file.add(dtypes={"data": dtype}, sizes={"count": 5}, error=True)
    return file
