#!/usr/bin/env python3
"""Writes the golden files in `data/`. See README.md."""

import argparse
import pathlib

import arrays
import binary
import rows
import unary

FILES = {
    "elementwise_unary": unary.unary, "cast": unary.cast, "fill": unary.fill,
    "broadcast_elementwise_binary": binary.binary,
    **arrays.FILES,
    **rows.FILES,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ops", nargs="*", help="ops to make the files of; default: all")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "data")
    args = parser.parse_args()
    for op in args.ops or FILES:
        FILES[op]().write(args.out)


if __name__ == "__main__":
    main()
