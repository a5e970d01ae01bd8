#!/usr/bin/env python3
"""Makes a suite of ONNX's own node tests that `ep conformance --onnx` reads, from the `onnx` package.

    pip install -r requirements.txt
    generate.py DIR [--only NAME,NAME...]     writes DIR/suite.json and DIR/tensors.bin
    generate.py --list REPORT.json            prints the cases of a report that did not run, with the reasons

suite.json is one object:

    format     1
    onnx       the version of the package
    cases      a list of
      name       test_softmax_axis_0
      op         the operator that the case is about
      opset      the version of the default operator set
      rtol atol  tolerances, relative and absolute
      skip       why there is no more of this case: what follows is left out then
      inputs     a list of {name, tensor}; an optional input that is absent is not in it
      outputs    likewise, in the order of the graph's outputs: what is expected
      nodes      a list of {op, inputs, outputs, attrs}, sorted so that each comes after what it reads; a name is
                 empty where an optional operand is absent; `op` begins with the domain, if that is not the default

A tensor is {dtype, shape, at}: `at` is the offset in bytes into tensors.bin, where the elements stand row by row,
little-endian, a bool being one byte. `dtype` is one of bool, i8, u8, i16, u16, i32, u32, i64, u64, f16, bf16, f32, f64.
An attribute is an object with one key: i (integer), f (float, as text, which can also be inf or nan), s (text), is and
fs (lists of these), t (tensor), or g (a graph, whose content is left out).
"""

import argparse
import json
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
ALIGNMENT = 8


def pinned():
    lines = (line.split("#")[0].strip() for line in (HERE / "requirements.txt").read_text().splitlines())
    return dict(line.split("==") for line in lines if line)


def packages():
    """The modules that the cases come from, of exactly the pinned versions."""
    advice = f"install the pinned packages with: pip install -r {HERE / 'requirements.txt'}"
    try:
        import numpy
        import onnx
        import onnx.backend.test.case.node
    except ImportError as e:
        sys.exit(f"generate.py: {e}; {advice}")
    for module in (numpy, onnx):
        wanted = pinned()[module.__name__]
        if module.__version__ != wanted:
            sys.exit(f"generate.py: {module.__name__} {module.__version__} is installed, {wanted} is needed; {advice}")
    return numpy, onnx


class Skip(Exception):
    """A case that the format cannot say."""


class Writer:
    """Tensors into one file, equal ones once."""

    def __init__(self, numpy, onnx):
        self.numpy, self.onnx = numpy, onnx
        self.blob, self.known = bytearray(), {}
        names = onnx.TensorProto
        self.dtypes = {
            names.BOOL: "bool", names.INT8: "i8", names.UINT8: "u8", names.INT16: "i16", names.UINT16: "u16",
            names.INT32: "i32", names.UINT32: "u32", names.INT64: "i64", names.UINT64: "u64",
            names.FLOAT16: "f16", names.BFLOAT16: "bf16", names.FLOAT: "f32", names.DOUBLE: "f64",
        }

    def dtype(self, elem_type):
        name = self.dtypes.get(elem_type)
        if name is None:
            kind = self.onnx.TensorProto.DataType.Name(elem_type).lower()
            raise Skip(f"no dtype `{kind}`")
        return name

    def tensor(self, value):
        if isinstance(value, (list, tuple, dict)):
            raise Skip("sequences are no tensors")
        if value is None:
            raise Skip("optional values are no tensors")
        if isinstance(value, self.onnx.TensorProto):
            dtype = self.dtype(value.data_type)
            value = self.onnx.numpy_helper.to_array(value)
        elif isinstance(value, (self.onnx.SequenceProto, self.onnx.OptionalProto, self.onnx.SparseTensorProto)):
            raise Skip("sequences, optional and sparse values are no tensors")
        else:
            value = self.numpy.asarray(value)
            if value.dtype == object or value.dtype.kind in "SU":
                raise Skip("no dtype `string`")
            dtype = self.dtype(self.onnx.helper.np_dtype_to_tensor_dtype(value.dtype))
        # `ascontiguousarray` would make a vector of a scalar.
        content = value.astype(value.dtype.newbyteorder("<")).tobytes() if value.dtype.kind != "V" else value.tobytes()
        if content not in self.known:
            self.blob += bytes(-len(self.blob) % ALIGNMENT)
            self.known[content] = len(self.blob)
            self.blob += content
        return {"dtype": dtype, "shape": list(value.shape), "at": self.known[content]}

    def attribute(self, a):
        kinds = self.onnx.AttributeProto
        match a.type:
            case kinds.INT:
                return {"i": a.i}
            case kinds.FLOAT:
                return {"f": repr(float(a.f))}
            case kinds.STRING:
                return {"s": a.s.decode()}
            case kinds.INTS:
                return {"is": list(a.ints)}
            case kinds.FLOATS:
                return {"fs": [repr(float(f)) for f in a.floats]}
            case kinds.TENSOR:
                return {"t": self.tensor(a.t)}
            case kinds.GRAPH:
                return {"g": a.g.name}
        raise Skip(f"no attribute like `{a.name}`, of kind {kinds.AttributeType.Name(a.type).lower()}")

    def node(self, node):
        op = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        attrs = {a.name: self.attribute(a) for a in node.attribute}
        return {"op": op, "inputs": list(node.input), "outputs": list(node.output), "attrs": attrs}

    def case(self, test):
        graph = test.model.graph
        about = {n.op_type for n in graph.node}
        default = [o.version for o in test.model.opset_import if not o.domain]
        case = {
            "name": test.name,
            "op": about.pop() if len(about) == 1 else "",
            "opset": default[0] if default else 0,
            "rtol": test.rtol,
            "atol": test.atol,
        }
        try:
            for value in (*graph.input, *graph.output):
                kind = value.type.WhichOneof("value")
                if kind != "tensor_type":
                    raise Skip(f"{kind.removesuffix('_type')} values are no tensors")
                self.dtype(value.type.tensor_type.elem_type)
            if graph.initializer or graph.sparse_initializer or test.model.functions or len(test.data_sets) != 1:
                raise Skip("initializers, functions or several data sets")
            inputs, outputs = test.data_sets[0]
            tensors = lambda infos, values: [
                {"name": i.name, "tensor": self.tensor(v)} for i, v in zip(infos, values, strict=True)
            ]
            nodes = [self.node(n) for n in graph.node]
            return case | {
                "inputs": tensors(graph.input, inputs),
                "outputs": tensors(graph.output, outputs),
                "nodes": nodes,
            }
        except Skip as why:
            return case | {"skip": str(why)}


def suite(directory, only):
    numpy, onnx = packages()
    warnings.simplefilter("ignore")
    tests = sorted(onnx.backend.test.case.node.collect_testcases(None), key=lambda t: t.name)
    if only:
        missing = set(only) - {t.name for t in tests}
        if missing:
            sys.exit(f"generate.py: there is no case {', '.join(sorted(missing))}")
        tests = [t for t in tests if t.name in only]
    writer = Writer(numpy, onnx)
    cases = [writer.case(t) for t in tests]
    # Of a function spelled out in simpler operators, the function.
    by_name = {c["name"]: c["op"] for c in cases}
    for case in cases:
        plain = case["name"].split("_expanded")[0]
        case["op"] = by_name.get(plain) or case["op"] or "graph"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tensors.bin").write_bytes(writer.blob)
    index = {"format": 1, "onnx": onnx.__version__, "cases": cases}
    lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in index.pop("cases"))
    head = json.dumps(index)[:-1]
    (directory / "suite.json").write_text(f'{head}, "cases": [\n{lines}\n]}}\n')
    skipped = sum("skip" in c for c in cases)
    print(f"{directory}: {len(cases)} cases, {skipped} of them without content, {len(writer.blob)} bytes of tensors")


def listing(report):
    cases = json.loads(report.read_text())["cases"]
    left_out = [c for c in cases if c["outcome"] in ("not_mapped", "unsupported") and c["name"].startswith("onnx/")]
    print("# ONNX's node tests that are not run, each with the reason; written by generate.py --list.")
    for case in sorted(left_out, key=lambda c: c["name"]):
        print(case["name"].rsplit("/", 1)[1], "", case["message"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", type=Path, help="where the suite is written")
    parser.add_argument("--only", help="names of cases, with commas between them")
    parser.add_argument("--list", type=Path, metavar="REPORT.json", help="a report of `ep conformance --onnx`")
    args = parser.parse_args()
    if args.list:
        listing(args.list)
    elif args.directory:
        suite(args.directory, args.only.split(",") if args.only else None)
    else:
        parser.error("a directory is needed")


if __name__ == "__main__":
    main()
