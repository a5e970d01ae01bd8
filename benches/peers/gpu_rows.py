"""The rows that are timed on a GPU, by the provider and by PyTorch: one table for both, so that names agree.

`python3 gpu_rows.py [GROUP]` prints a line of JSON for each row, as ep-gpu-bench reads them. A row has
  group, op, dtype, shape   its name
  primitive, selectors, roles, attrs, limits, sizes, dims, scalars   how the provider is asked
  inputs                    {name, dtype, dims, content, shared}: what is read; `shared` inputs do not rotate
  output                    {name, dtype, dims}: what is written
  shift                     elements by which every operand is moved from an aligned address
  bytes, flops              what it has to move and to compute
`call` and `compiled` are PyTorch's: functions of (torch, inputs, output) and of (torch, *inputs), for eager mode and
for torch.compile; None where PyTorch has no such thing.
"""
import json
import math
import re
import sys

SIZES = dict(bool=1, i8=1, u8=1, i32=4, i64=8, f16=2, bf16=2, f32=4, f64=8)
FLOATS = ("f32", "f16", "bf16")
WIDTHS = [(49152, 32), (49152, 128), (49152, 512), (49152, 1024), (49152, 2048), (49152, 4096), (49152, 8192), (24576, 16384), (8192, 32768), (4096, 131072)]
ODD = [(49152, 1000), (16384, 3001), (4096, 50257)]
MISALIGNED = [(49152, 1024), (49152, 4096), (8192, 32768)]
LARGE = 1 << 26


def tensor(name, dtype, dims, content="normal", shared=False):
    return dict(name=name, dtype=dtype, dims=list(dims), content=content, shared=shared)


def size_of(t):
    return math.prod(t["dims"]) * SIZES[t["dtype"]]


def row(group, op, dtype, shape, primitive, inputs, output, call=None, compiled=None, bytes=None, **more):
    moved = sum(map(size_of, inputs)) + size_of(output) if bytes is None else bytes
    asked = dict(selectors={}, roles={}, attrs={}, limits={}, sizes={}, dims={}, scalars={}, shift=0, flops=0)
    return dict(asked, group=group, op=op, dtype=dtype, shape=shape, primitive=primitive, inputs=inputs,
                output=tensor(output["name"], output["dtype"], output["dims"]), bytes=moved, call=call,
                compiled=compiled, **more)


def softmax_family():
    """Softmax of each width with its gradients, aligned or not. Told the width, the provider names its strategy."""
    calls = dict(
        softmax=(lambda t, i, o: t.softmax(i[0], -1, out=o), lambda t, x: t.softmax(x, -1)),
        log_softmax=(lambda t, i, o: t.log_softmax(i[0], -1, out=o), lambda t, x: t.log_softmax(x, -1)),
        softmax_backward=(
            lambda t, i, o: t._softmax_backward_data(i[1], i[0], -1, i[0].dtype, grad_input=o),
            lambda t, y, dy: y * (dy - (y * dy).sum(-1, keepdim=True)),
        ),
        log_softmax_backward=(
            lambda t, i, o: t._log_softmax_backward_data(i[1], i[0], -1, i[0].dtype, out=o),
            lambda t, y, dy: dy - y.exp() * dy.sum(-1, keepdim=True),
        ),
    )
    for op, (call, compiled) in calls.items():
        for dtype in FLOATS:
            for rows, cols, shift in [(*w, 0) for w in WIDTHS + ODD] + [(*w, 1) for w in MISALIGNED]:
                if rows * cols * SIZES[dtype] > 3 << 30:
                    rows //= 4
                dims = (rows, cols)
                if op.endswith("backward"):
                    inputs = [tensor("y", dtype, dims, "unit"), tensor("dy", dtype, dims)]
                else:
                    inputs = [tensor("src", dtype, dims)]
                yield row(op, op, dtype, f"{rows}x{cols}" + (" misaligned" if shift else ""), op, inputs,
                          tensor("dx" if op.endswith("backward") else "dst", dtype, dims), call, compiled,
                          roles=dict(src=dtype, dst=dtype), limits=dict(cols=cols), sizes=dict(rows=rows, cols=cols),
                          shift=shift)


def norms():
    layer = lambda t, x, g, b: t.nn.functional.layer_norm(x, x.shape[-1:], g, b)
    rms = lambda t, x, w: t.nn.functional.rms_norm(x, x.shape[-1:], w, 1e-5)
    for dtype in FLOATS:
        for rows, cols in WIDTHS[1:] + ODD:
            if rows * cols * SIZES[dtype] > 3 << 30:
                rows //= 4
            common = dict(roles=dict(data=dtype, stats="f32"), attrs=dict(epsilon=1e-5), sizes=dict(rows=rows, cols=cols))
            x, y, shape = tensor("src", dtype, (rows, cols)), tensor("dst", dtype, (rows, cols)), f"{rows}x{cols}"
            weights = [tensor(name, dtype, (cols,), shared=True) for name in ("gamma", "beta")]
            yield row("norm", "layer_norm", dtype, shape, "layer_norm", [x, *weights], y,
                      lambda t, i, o: layer(t, *i), layer, **common)
            yield row("norm", "rms_norm", dtype, shape, "rms_norm", [x, tensor("weight", dtype, (cols,), shared=True)], y,
                      lambda t, i, o: rms(t, *i), rms, **common)


def elementwise():
    n = LARGE
    unary = dict(
        gelu=(lambda t, i, o: t.ops.aten.gelu.out(i[0], out=o), lambda t, x: t.nn.functional.gelu(x)),
        tanh=(lambda t, i, o: t.tanh(i[0], out=o), lambda t, x: t.tanh(x)),
        exp=(lambda t, i, o: t.exp(i[0], out=o), lambda t, x: t.exp(x)),
        relu=(lambda t, i, o: t.clamp_min(i[0], 0, out=o), lambda t, x: t.relu(x)),
        sigmoid=(lambda t, i, o: t.sigmoid(i[0], out=o), lambda t, x: t.sigmoid(x)),
        silu=(lambda t, i, o: t.ops.aten.silu.out(i[0], out=o), lambda t, x: t.nn.functional.silu(x)),
    )
    add = lambda t, i, o: t.add(i[0], i[1], out=o)
    plus = lambda t, a, b: a + b
    for dtype in FLOATS:
        flat = lambda name: tensor(name, dtype, (n,))
        for op, (call, compiled) in unary.items():
            yield row("elementwise", op, dtype, "2^26", "elementwise_unary", [flat("src")], flat("dst"), call, compiled,
                      selectors=dict(op=op), roles=dict(src=dtype, dst=dtype), sizes=dict(count=n))
        side = 8192
        for name, b in [("add", None), ("add row", (side,)), ("add column", (side, 1))]:
            a = (side, side) if b else (n,)
            b = b or a
            shape = "2^26" if a == b else "8192x8192+" + "x".join(map(str, b))
            inputs = [tensor("src0", dtype, a), tensor("src1", dtype, b, shared=a != b)]
            yield row("elementwise", name, dtype, shape, "broadcast_elementwise_binary", inputs, tensor("dst", dtype, a), add,
                      plus, selectors=dict(op="add"), roles=dict(src=dtype, dst=dtype),
                      dims=dict(src0_dims=list(a), src1_dims=list(b)))
        yield row("elementwise", "add of three", dtype, "2^26", "add", [flat("srcs")] * 3, flat("dst"),
                  lambda t, i, o: t.add(t.add(i[0], i[1], out=o), i[2], out=o), lambda t, a, b, c: a + b + c,
                  roles=dict(data=dtype), sizes=dict(count=n))
    # Rows that are not of whole packs, and do not begin at multiples of 16 bytes.
    odd = 8191
    for dtype in ("f32", "f16", "i8"):
        dims = (odd, odd)
        inputs = [tensor("src0", dtype, dims), tensor("src1", dtype, (odd,), shared=True)]
        yield row("elementwise", "add row", dtype, f"{odd}x{odd}+{odd}", "broadcast_elementwise_binary", inputs,
                  tensor("dst", dtype, dims), add, plus, selectors=dict(op="add"), roles=dict(src=dtype, dst=dtype),
                  dims=dict(src0_dims=[odd, odd], src1_dims=[odd]))
    for s, d in [("f32", "f16"), ("f16", "f32"), ("f32", "bf16"), ("bf16", "f32"), ("f32", "i8"), ("i8", "f32"), ("f32", "f64")]:
        yield row("elementwise", f"cast to {d}", s, "2^26", "cast", [tensor("src", s, (n,))], tensor("dst", d, (n,)),
                  lambda t, i, o: o.copy_(i[0]), lambda t, x, d=d: x.to(torch_dtype(t, d)), roles=dict(src=s, dst=d),
                  sizes=dict(count=n))


def memory():
    n = LARGE
    whole, padded, cut = (4096, 222, 222), (4096, 224, 224), (4096, 200, 200)
    window = lambda x: x[:, 11:211, 11:211]
    for dtype in FLOATS:
        # What is compiled makes its output too, here as in all rows.
        full = lambda t, dtype=dtype: t.full((n,), 1.5, dtype=torch_dtype(t, dtype), device="cuda")
        yield row("memory", "fill", dtype, "2^26", "fill", [], tensor("dst", dtype, (n,)), lambda t, i, o: o.fill_(1.5), full,
                  roles=dict(data=dtype), sizes=dict(count=n), scalars=dict(value=1.5))
        pad = lambda t, x: t.nn.functional.pad(x, (1, 1, 1, 1), value=0.5)
        yield row("memory", "pad", dtype, "4096x222x222+1", "constant_pad", [tensor("src", dtype, whole)],
                  tensor("dst", dtype, padded), lambda t, i, o: pad(t, i[0]), pad, roles=dict(data=dtype),
                  dims=dict(src_dims=list(whole), padding_before=[0, 1, 1], padding_after=[0, 1, 1]), scalars=dict(value=0.5))
    for dtype in (*FLOATS, "i8"):
        yield row("memory", "copy_nd", dtype, "4096x222x222[200x200]", "copy_nd", [tensor("src", dtype, whole)],
                  tensor("dst", dtype, cut), lambda t, i, o: o.copy_(window(i[0])), lambda t, x: window(x).clone(memory_format=t.contiguous_format),
                  bytes=2 * math.prod(cut) * SIZES[dtype], roles=dict(data=dtype),
                  dims=dict(dst_dims=list(cut), dst_pos=[0, 0, 0], src_dims=list(whole), src_pos=[0, 11, 11], extent=list(cut)))
    count, depth = 65536, 1000
    one_hot = lambda t, x: t.nn.functional.one_hot(x, depth)
    yield row("memory", "one_hot", "i64", f"{count}x{depth}", "one_hot", [tensor("indices", "i64", (count,), depth)],
              tensor("dst", "i64", (count, depth)), lambda t, i, o: one_hot(t, i[0]), one_hot, selectors=dict(mode="wrap"),
              roles=dict(indices="i64", data="i64"), sizes=dict(num_indices=count, depth=depth))


def permute():
    shapes = [((8192, 8192), (1, 0)), ((64, 128, 112, 112), (0, 2, 3, 1)), ((64, 112, 112, 128), (0, 3, 1, 2)), ((32, 16, 2048, 64), (0, 2, 1, 3)), ((64, 3, 512, 512), (0, 2, 3, 1)), ((37, 41, 43, 47, 9), (4, 2, 0, 3, 1))]
    for dtype in ("f32", "f16", "i8"):
        for dims, order in shapes:
            turn = lambda x, order=order: x.permute(order)
            name = "x".join(map(str, dims)) + " by " + "".join(map(str, order))
            yield row("permute", "permute", dtype, name, "permute", [tensor("src", dtype, dims)],
                      tensor("dst", dtype, [dims[i] for i in order]), lambda t, i, o, turn=turn: o.copy_(turn(i[0])),
                      lambda t, x, turn=turn: turn(x).contiguous(), roles=dict(data=dtype),
                      dims=dict(src_dims=list(dims), permutation=list(order)))


def gather():
    for dtype in ("f32", "f16", "i8"):
        for vocab, width, picks in [(50000, 768, 65536), (1000000, 64, 1 << 20), (50000, 7, 1 << 20), (256000, 4096, 16384)]:
            moved = 2 * picks * width * SIZES[dtype] + 8 * picks
            inputs = [tensor("indices", "i64", (picks,), vocab), tensor("src", dtype, (vocab, width), shared=True)]
            yield row("gather", "gather", dtype, f"{vocab}x{width}[{picks}]", "gather", inputs,
                      tensor("dst", dtype, (picks, width)), lambda t, i, o: t.index_select(i[1], 0, i[0], out=o),
                      lambda t, at, table: table[at], bytes=moved, selectors=dict(mode="wrap"),
                      roles=dict(indices="i64", data=dtype),
                      sizes=dict(outer=1, processed=vocab, inner=width, num_indices=picks))
    outer, processed, inner, picks = 64, 4096, 256, 2048
    for dtype in ("f32", "f16"):
        inputs = [tensor("indices", "i64", (picks,), processed), tensor("src", dtype, (outer, processed, inner), shared=True)]
        output = tensor("dst", dtype, (outer, picks, inner))
        yield row("gather", "gather_axis1", dtype, f"{outer}x{processed}x{inner}[{picks}]", "gather", inputs, output,
                  lambda t, i, o: t.index_select(i[1], 1, i[0], out=o), lambda t, at, table: table[:, at],
                  bytes=2 * size_of(output) + 8 * picks, selectors=dict(mode="wrap"), roles=dict(indices="i64", data=dtype),
                  sizes=dict(outer=outer, processed=processed, inner=inner, num_indices=picks))


def reduce():
    for dtype in FLOATS:
        for name, outer, reduced, inner in [("rows", 49152, 1024, 1), ("all", 1, LARGE, 1), ("columns", 1, 8192, 8192)]:
            dims = (outer, reduced, inner)
            yield row("reduce", f"sum of {name}", dtype, "x".join(map(str, dims)), "reduce", [tensor("src", dtype, dims)],
                      tensor("dst", dtype, (outer, inner)), lambda t, i, o: t.sum(i[0], 1, out=o), lambda t, x: x.sum(1),
                      selectors=dict(op="sum"), roles=dict(src=dtype, dst=dtype),
                      sizes=dict(outer=outer, reduced=reduced, inner=inner))
        yield row("reduce", "argmax of rows", dtype, "8192x8192", "arg_reduce", [tensor("src", dtype, (8192, 8192))],
                  tensor("dst", "i64", (8192,)), lambda t, i, o: t.argmax(i[0], 1, out=o), lambda t, x: x.argmax(1),
                  selectors=dict(op="argmax"), roles=dict(src=dtype, dst="i64"), sizes=dict(outer=8192, reduced=8192, inner=1))


def matmul():
    shapes = [(1, 1024, 1024, 1024), (1, 4096, 4096, 4096), (1, 8192, 8192, 8192), (512, 128, 128, 64), (1, 16, 4096, 4096), (1, 1, 4096, 4096)]
    for dtype in FLOATS:
        for batch, m, n, k in shapes:
            if dtype == "f32" and m == 8192:
                continue
            inputs = [tensor("a", dtype, (batch, m, k)), tensor("b", dtype, (batch, k, n))]
            yield row("matmul", "matmul", dtype, f"{batch}x{m}x{n}x{k}", "batch_matmul", inputs,
                      tensor("c", dtype, (batch, m, n)), lambda t, i, o: t.bmm(i[0], i[1], out=o), None,
                      flops=2 * batch * m * n * k, selectors=dict(transpose_a="none", transpose_b="none"),
                      roles=dict(data=dtype), sizes=dict(batch=batch, m=m, n=n, k=k))


def launches():
    """Rows of so few elements that the host's part is what they cost. `statement` is PyTorch's, with the operands by their
    names: as a program has it, without a call around it. What a row's operands would be made of in a program, such as a view
    that is turned, is made once, by `setup`."""
    few = (4,)
    table = [
        ("fill", "fill", {}, [], ("dst", few), "dst.fill_(1.5)", dict(roles=["data"], sizes=dict(count=4), scalars=dict(value=1.5))),
        ("add", "broadcast_elementwise_binary", dict(op="add"), [("src0", few), ("src1", few)], ("dst", few),
         "torch.add(src0, src1, out=dst)", dict(roles=["src", "dst"], dims=dict(src0_dims=few, src1_dims=few))),
        ("add row", "broadcast_elementwise_binary", dict(op="add"), [("src0", (8, 8)), ("src1", (8,))], ("dst", (8, 8)),
         "torch.add(src0, src1, out=dst)", dict(roles=["src", "dst"], dims=dict(src0_dims=(8, 8), src1_dims=(8,)))),
        ("exp", "elementwise_unary", dict(op="exp"), [("src", few)], ("dst", few), "torch.exp(src, out=dst)",
         dict(roles=["src", "dst"], sizes=dict(count=4))),
        ("softmax", "softmax", {}, [("src", (4, 16))], ("dst", (4, 16)), "torch.softmax(src, -1, out=dst)",
         dict(roles=["src", "dst"], limits=dict(cols=16), sizes=dict(rows=4, cols=16))),
        ("permute", "permute", {}, [("src", (8, 8))], ("dst", (8, 8)), "dst.copy_(turned)",
         dict(setup="turned = src.t()", roles=["data"], dims=dict(src_dims=(8, 8), permutation=(1, 0)))),
        ("gather", "gather", dict(mode="wrap"), [("indices", few, "i64", 8), ("src", (8, 4))], ("dst", (4, 4)),
         "torch.index_select(src, 0, indices, out=dst)",
         dict(roles=["data"], sizes=dict(outer=1, processed=8, inner=4, num_indices=4))),
        ("sum of rows", "reduce", dict(op="sum"), [("src", (8, 8))], ("dst", (8,)), "torch.sum(src, 1, out=dst)",
         dict(roles=["src", "dst"], sizes=dict(outer=8, reduced=8, inner=1))),
        ("matmul", "matmul", dict(transpose_a="none", transpose_b="none"), [("a", (64, 64)), ("b", (64, 64))], ("c", (64, 64)),
         "torch.mm(a, b, out=c)", dict(roles=["data"], sizes=dict(m=64, n=64, k=64))),
    ]
    for op, primitive, selectors, inputs, output, statement, more in table:
        operand = lambda name, dims, dtype="f32", content="normal": tensor(name, dtype, dims, content)
        inputs = [operand(*i) for i in inputs]
        roles = {name: "f32" for name in more.pop("roles")}
        roles.update({t["name"]: t["dtype"] for t in inputs if t["dtype"] != "f32"})
        shape = "x".join(map(str, inputs[0 if op != "gather" else 1]["dims"] if inputs else output[1]))
        yield dict(row("launch", op, "f32", shape, primitive, inputs, operand(*output), selectors=selectors, roles=roles, **more),
                   statement=statement)


def rows(group=None):
    """All rows, or those of a group, in order."""
    tables = [softmax_family, norms, elementwise, memory, permute, gather, reduce, matmul]
    return [r for table in tables for r in table() if group in (None, r["group"])]


def forced(strategy):
    """Rows of softmax for a provider that is told to use this strategy; it says of each width whether it does."""
    for r in rows("softmax"):
        if r["dtype"] != "bf16" and re.fullmatch(r"\d+x\d+", r["shape"]) and (r["sizes"]["rows"], r["sizes"]["cols"]) not in ODD:
            yield dict(r, group="strategies", op=strategy)


def groups():
    return list(dict.fromkeys(r["group"] for r in rows()))


def name(r):
    return f"{r['op']} {r['dtype']} {r['shape']}"


def torch_dtype(torch, name):
    return dict(bool=torch.bool, i8=torch.int8, u8=torch.uint8, i32=torch.int32, i64=torch.int64, f16=torch.float16,
                bf16=torch.bfloat16, f32=torch.float32, f64=torch.float64)[name]


def main():
    if sys.argv[1:] == ["--groups"]:
        print(*groups())
        return
    for r in rows(*sys.argv[1:2]):
        print(json.dumps({k: v for k, v in r.items() if k not in ("call", "compiled")}))


if __name__ == "__main__":
    main()
