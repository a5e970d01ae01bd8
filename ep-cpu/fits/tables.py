#!/usr/bin/env python3
"""Prints tables of src/kernels/math/pieces.rs, widening.rs, wide_pieces.rs and tails.rs as Rust: functions as polynomials on pieces.

    python3 -m venv target/fits && target/fits/bin/pip install -r tests/goldens/requirements.txt
    target/fits/bin/python ep-cpu/fits/tables.py cdf

Each piece has the least largest relative error (Lawson's weighted least squares), with coefficients rounded to f32 one after
the other, so that the later ones make up for what the earlier ones lost. It is an expansion about a centre at which the function
is, but for a hundredth of an ulp, a number of f32, so that the first coefficient loses nothing. The error printed to stderr is
that of the polynomial with its rounded coefficients, in exact arithmetic.
"""

import argparse
import sys
from functools import partial

import mpmath as mp
import numpy as np

mp.mp.prec = 100
NODES, STEPS = 400, 60
# The constants of the tanh form of GELU, as kernels have them.
LINEAR, CUBIC = mp.mpf(0.7978845608028654), mp.mpf(0.044714998453855515)


def single(x):
    return float(np.float32(float(x)))


def precise(function, points):
    return np.array([np.longdouble(mp.nstr(function(mp.mpf(float(x))), 30)) for x in points], dtype=np.longdouble)


def fit(function, start, end, centre, degree, leading, weight=None):
    """Coefficients in the difference to `centre`, of which `leading` are given, and their largest error over `weight`."""
    nodes = (start + end) / 2 + (end - start) / 2 * np.cos(np.pi * (np.arange(NODES) + 0.5) / NODES)
    nodes = nodes.astype(np.longdouble)
    values, weights = precise(function, nodes), precise(weight or function, nodes)
    difference = nodes - np.longdouble(centre)
    scale = np.longdouble((end - start) / 2 if centre else end)
    found = list(leading)
    for count in range(len(found), degree + 1):
        known = sum(np.longdouble(c) * difference**i for i, c in enumerate(found))
        powers = [(difference / scale) ** (count + j) / weights for j in range(degree + 1 - count)]
        powers, wanted = np.stack(powers, 1).astype(float), ((values - known) / weights).astype(float)
        share = np.ones(NODES) / NODES
        for _ in range(STEPS):
            root = np.sqrt(share)
            solution, *_ = np.linalg.lstsq(powers * root[:, None], wanted * root, rcond=None)
            share = share * np.abs(powers @ solution - wanted)
            share /= share.sum()
        found.append(single(solution[0] / float(scale) ** count))
    known = sum(np.longdouble(c) * difference**i for i, c in enumerate(found))
    return found, float(np.abs((known - values) / weights).max())


def centre_by_argument(function, start, end, weight=None):
    """The f32 nearest to the middle at which the function is a number of f32, and that number; it is off by less than a
    hundredth of an ulp of `weight`, or of the function."""
    below = above = np.float32((start + end) / 2)
    for _ in range(4000):
        for x in (above, below):
            value = function(mp.mpf(float(x)))
            size = (weight or function)(mp.mpf(float(x)))
            if abs(float(value - mp.mpf(single(value)))) < 0.01 * np.spacing(np.float32(float(size))):
                return float(x), single(value)
        above, below = np.nextafter(above, np.float32(99)), np.nextafter(below, np.float32(0))
    raise ValueError(f"no centre in {start}..{end}")


def centre_by_value(function, inverse, start, end):
    """The same by going through values, of which a flat function has fewer."""
    below = above = np.float32(float(function(mp.mpf((start + end) / 2))))
    best = (np.inf, 0.0, 0.0)
    for _ in range(401):
        for value in (above, below):
            if value >= 1:
                continue
            x = single(inverse(mp.mpf(float(value))))
            off = abs(float(function(mp.mpf(x)) - mp.mpf(float(value)))) / float(np.spacing(value))
            if start <= x <= end:
                best = min(best, (off, x, float(value)))
            if best[0] < 0.01:
                return best[1:]
        above, below = np.nextafter(above, np.float32(2)), np.nextafter(below, np.float32(0))
    return best[1:]


def number(x):
    x = np.float32(x)
    if x == 0:
        return "0.0"
    if abs(x) >= 1e-4:
        return np.format_float_positional(x, unique=True, trim="0")
    digits, exponent = np.format_float_scientific(x, unique=True, trim="-").split("e")
    return f"{digits if '.' in digits else digits + '.0'}e{int(exponent)}"


def table(numbers, indent):
    lines, line = [], " " * (indent + 4)
    for text in (number(x) + "," for x in numbers):
        if len(line) + len(text) > 100:
            lines.append(line.rstrip())
            line = " " * (indent + 4)
        line += text + " "
    return "\n".join([" " * indent + "Table([", *lines, line.rstrip(), " " * indent + "]),"])


def pieces(name, function, scale, growth, degree, weight=None):
    """`Pieces`: 32, that of `t` being the integer below `t (scale + growth t)`; errors are over `weight`, or the function."""
    def edge(k):
        return k / scale if growth == 0 else ((scale**2 + 4 * growth * k) ** 0.5 - scale) / (2 * growth)

    found, worst = [], 0.0
    for k in range(32):
        start, end = edge(k), edge(k + 1)
        # The number of a piece is rounded, too.
        margin = 0.002 * (end - start)
        centre, value = centre_by_argument(function, start, end, weight)
        coefficients, error = fit(function, max(start - margin, 0), end + margin, centre, degree, [value], weight)
        worst = max(worst, error)
        found.append([centre, *coefficients])
    print(f"{name}: {worst:.2g}", file=sys.stderr)
    end = np.float32(edge(32) * (1 - 2e-6)) if growth else np.float32(edge(32))
    print(f"static {name}: Pieces<{degree + 1}, {str(growth != 0).lower()}> = Pieces {{")
    print(f"    scale: {number(scale)},\n    growth: {number(growth)},\n    end: {number(end)},\n    centers: [")
    for column in range(degree + 2):
        values = [piece[column] for piece in found]
        indent = 8 if column == 0 else 12
        if column:
            print("        [")
        print(table(values[:16], indent), table(values[16:], indent), sep="\n")
        print("        ]," if column else "    ],\n    coefficients: [")
    print("    ],\n};")


def widening(name, function, inverse, start, end, first_slope, degree=6):
    """`Widening`: 16, four to each power of two of `t + start`."""
    edges = [2.0**k * m - start for k in range(-3, 5) for m in (1, 1.25, 1.5, 1.75)]
    edges = [0.0, *[edge for edge in edges if edge > 0][:15], end]
    slots, worst = [None] * 16, 0.0
    for a, b in zip(edges, edges[1:]):
        if a == 0:
            # The first piece is `t` and what the function has beyond it.
            known = [0.0] * (1 if first_slope else 2)
            centre = 0.0
            coefficients, error = fit(lambda t: function(t) - t, 1e-3, b, 0.0, degree, known, function)
            if not first_slope:
                coefficients[1] = 1.0
        else:
            centre, value = centre_by_value(function, inverse, a, b)
            coefficients, error = fit(function, a, b, centre, degree, [value])
        worst = max(worst, error)
        slot = int(np.float32((a + b) / 2 + start).view(np.uint32)) >> 21 & 15
        slots[slot] = [centre, *coefficients]
    print(f"{name}: {worst:.2g}", file=sys.stderr)
    first = edges[1] + start if first_slope else 0.0
    print(f"static {name}: Widening<{degree + 1}> = Widening {{")
    print(f"    start: {number(start)},\n    first: {number(first)},\n    end: {number(end)},\n    centers:")
    for column in range(degree + 2):
        print(table([slot[column] for slot in slots], 8))
        if column == 0:
            print("    coefficients: [")
    print("    ],\n};")


def far_cdf_tail(start=4.0, end=15.2, degree=6):
    def ratio(u):
        t = 1 / mp.sqrt(u)
        return t * mp.ncdf(-t) * mp.exp(t * t / 2)

    coefficients, error = fit(ratio, end**-2, start**-2, 0.0, degree, [])
    print(f"FAR_CDF_TAIL: {error:.2g}", file=sys.stderr)
    print(f"const FAR_CDF_TAIL: [f64; {degree + 1}] = [{', '.join(f'{c:.9g}' for c in coefficients)}];")


def precise_centre(function, inverse, start, end):
    """The f64 nearest to the middle at which the function is a number of f64 but for a hundredth of an ulp, and that number.
    It is looked for among values where `inverse` tells their arguments, as a flat function has few of them."""
    middle = float((start + end) / 2)
    below = above = middle if inverse is None else float(function(mp.mpf(middle)))
    for _ in range(4000):
        for x in (above, below):
            if inverse is not None and x >= 1:
                continue
            x = x if inverse is None else float(inverse(mp.mpf(x)))
            value = function(mp.mpf(x))
            if start <= x <= end and abs(value - float(value)) < 0.01 * np.spacing(float(value)):
                return float(x), float(value)
        above, below = np.nextafter(above, np.inf), np.nextafter(below, -np.inf)
    raise ValueError(f"no centre in {start}..{end}")


def precise_fit(function, start, end, centre, degree, leading, weight=None):
    """As `fit`, rounded to f64, by nodes at which the error of an interpolation is near the least."""
    count = 3 * (degree + 1)
    nodes = [(start + end + (end - start) * mp.cos(mp.pi * (k + 0.5) / count)) / 2 for k in range(count)]
    values, weights = [function(x) for x in nodes], [(weight or function)(x) for x in nodes]
    found = list(leading)
    for first in range(len(found), degree + 1):
        rows = mp.matrix(count, degree + 1 - first)
        rest = mp.matrix(count, 1)
        for i, x in enumerate(nodes):
            known = sum(c * (x - centre) ** k for k, c in enumerate(found))
            rest[i] = (values[i] - known) / weights[i]
            for k in range(first, degree + 1):
                rows[i, k - first] = (x - centre) ** k / weights[i]
        found.append(float(mp.lu_solve(rows.T * rows, rows.T * rest)[0]))
    checked = [start + (end - start) * mp.mpf(k) / 200 for k in range(1, 201)]
    off = [abs(sum(c * (x - centre) ** k for k, c in enumerate(found)) - function(x)) / (weight or function)(x)
           for x in checked]
    return found, float(max(off))


def wide_pieces(name, function, inverse, start, end, first_slope, degree):
    """`WidePieces`: 16, four to each power of two of `t + start`."""
    mp.mp.prec = 250
    edges = [mp.mpf(2) ** k * m - start for k in range(-3, 6) for m in (1, 1.25, 1.5, 1.75)]
    edges = [mp.mpf(0), *[edge for edge in edges if edge > 0][:15], mp.mpf(end)]
    slots, worst = [None] * 16, 0.0
    for a, b in zip(edges, edges[1:]):
        if a == 0 and first_slope:
            # The first piece is `t` and what the function has beyond it.
            centre = 0.0
            coefficients, error = precise_fit(lambda t: function(t) - t, a, b, centre, degree, [0.0], function)
        else:
            centre, value = precise_centre(function, inverse, a, b)
            coefficients, error = precise_fit(function, a, b, centre, degree, [value])
        worst = max(worst, error)
        slot = int(np.float64(float((a + b) / 2 + start)).view(np.uint64)) >> 50 & 15
        slots[slot] = [centre, *coefficients]
    print(f"{name}: {worst:.2g}", file=sys.stderr)
    first = float(edges[1] + start) if first_slope else 0.0
    print(f"static {name}: WidePieces<{degree + 1}> = WidePieces {{\n    start: {start!r},\n    first: {first!r},\n    centers:")
    for column in range(degree + 2):
        print("        WideTable([")
        for k in range(0, 16, 4):
            print(" " * 12 + " ".join(f"{slot[column]!r}," for slot in slots[k:k + 4]))
        print("        ]),")
        if column == 0:
            print("    coefficients: [")
    print("    ],\n};")


TABLES = {
    "cdf": partial(pieces, "CDF", lambda t: mp.ncdf(-t), 1.4, 0.46, 6),
    "fast_cdf": partial(
        pieces, "FAST_CDF", lambda t: 1 / (1 + mp.exp(2 * LINEAR * (t + CUBIC * t**3))), 1.3, 0.66, 6
    ),
    "gelu_slope": partial(
        pieces, "GELU_SLOPE", lambda t: mp.ncdf(-t) - t * mp.npdf(t), 1.4, 0.46, 6,
        weight=lambda t: mp.ncdf(-t) + t * mp.npdf(t)
    ),
    "logistic": partial(pieces, "LOGISTIC", lambda t: 1 / (1 + mp.exp(t)), 2.0, 0.0, 5),
    "tanh": partial(widening, "TANH", mp.tanh, mp.atanh, 0.625, 9.3, False),
    "erf": partial(widening, "ERF", mp.erf, mp.erfinv, 0.3125, 4.0, True),
    "far_cdf_tail": far_cdf_tail,
    "wide_erf": partial(wide_pieces, "ERF", mp.erf, mp.erfinv, 0.4375, 6.0, True, 13),
    "wide_erfcx": partial(
        wide_pieces, "ERFCX", lambda t: mp.erfc(t) * mp.exp(t * t), None, 2.0, 30.0, False, 14
    ),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE",
                        help="tables to print: " + ", ".join(TABLES) + "; default: all")
    tables = parser.parse_args().tables or TABLES
    for name in tables:
        if name not in TABLES:
            parser.error(f"no table {name}; there are {', '.join(TABLES)}")
    for name in tables:
        TABLES[name]()


if __name__ == "__main__":
    main()
