"""Times of the kernels beside PyTorch and a device copy: python3 bench.py [GROUP...] [--compiled] [--tune]

Each row is the median of event times over buffers that rotate beyond L2. `share` is the time of a device copy of as
many bytes (read and written), rotated alike, over the kernel's.
"""
import json
import math
import os
import sys

import numpy as np

import plan
from device import Device, median_us

ROTATION = 512 << 20
ROWS = []


def row(group, name, dtype, make, moved, torch_fn=None, **options):
    """`make(addresses of operands)` plans launches; `operands` are (dtype, elements)."""
    ROWS.append(dict(group=group, name=name, dtype=dtype, make=make, moved=moved, torch=torch_fn, **options))


S = plan.SIZE
WIDTHS = [(49152, 32), (49152, 128), (49152, 512), (49152, 1024), (49152, 2048), (49152, 4096), (49152, 8192), (24576, 16384), (8192, 32768), (4096, 131072)]
ODD = [(49152, 1000), (16384, 3001), (4096, 50257)]


def held_configs(cols, size, sources, tune):
    """Candidates of rows.cuh for a width."""
    if not tune:
        return [None]
    packs, found = plan.ceil_div(cols, 16 // size), [None]
    for lanes in (2, 4, 8, 16, 32):
        each = plan.ceil_div(packs, lanes)
        if each <= (16 if sources == 1 else 8) and lanes <= packs:
            for rows in (1, 2, 4):
                if rows * each <= 8 or rows == 1:
                    found += [(t, lanes, 0, rows, each) for t in (128, 256)]
    for blocks in (1, 2, 4, 8):
        for threads in (64, 128, 256, 512, 1024):
            each = plan.ceil_div(packs, threads * blocks)
            if (2 if blocks > 1 else 1) <= each <= (8 if sources == 1 else 4) and each * threads * blocks < packs * 2 and packs >= 128:
                found.append((threads, 32, blocks, 1, each))
    return found


def build(tune):
    for dtype in ("f32", "f16", "bf16"):
        e = S[dtype]
        for rows, cols in WIDTHS + ODD:
            if rows * cols * e > 3 << 30:
                rows //= 4
            n = rows * cols
            even = (rows, cols) not in ODD
            for held in held_configs(cols, e, 1, tune and even):
                row("softmax", f"{rows}x{cols}", dtype, lambda a, r=rows, c=cols, d=dtype, h=held: [plan.softmax(0, d, d, r, c, a[0], a[1], held=h)], 2 * n * e,
                    lambda t, o, r=rows, c=cols: __import__("torch").softmax(t[0].view(r, c), -1, out=o.view(r, c)), srcs=[(dtype, n)], dst=(dtype, n), held=held)
            if not tune:
                for force in ("wide", "shared"):
                    if cols >= 1024 and even:
                        row("softmax_" + force, f"{rows}x{cols}", dtype, lambda a, r=rows, c=cols, d=dtype, f=force: [plan.softmax(0, d, d, r, c, a[0], a[1], force=f)], 2 * n * e, srcs=[(dtype, n)], dst=(dtype, n))
                row("log_softmax", f"{rows}x{cols}", dtype, lambda a, r=rows, c=cols, d=dtype: [plan.softmax(1, d, d, r, c, a[0], a[1])], 2 * n * e,
                    lambda t, o, r=rows, c=cols: __import__("torch").log_softmax(t[0].view(r, c), -1, out=o.view(r, c)), srcs=[(dtype, n)], dst=(dtype, n))
            for held in held_configs(cols, e, 2, tune and even):
                row("softmax_backward", f"{rows}x{cols}", dtype, lambda a, r=rows, c=cols, d=dtype, h=held: [plan.softmax_backward(0, d, d, r, c, a[0], a[1], a[2], held=h)], 3 * n * e,
                    lambda t, o, r=rows, c=cols: __import__("torch")._softmax_backward_data(t[1].view(r, c), t[0].view(r, c), -1, t[0].dtype), srcs=[(dtype, n), (dtype, n)], dst=(dtype, n), held=held)
            if not tune and cols >= 128:
                import_f = lambda t, o, r=rows, c=cols: __import__("torch").nn.functional.layer_norm(t[0].view(r, c), (c,), t[1], t[2])
                row("layer_norm", f"{rows}x{cols}", dtype, lambda a, r=rows, c=cols, d=dtype: [plan.norm(0, d, r, c, 1e-5, a[0], a[3], a[1], a[2])], 2 * n * e, import_f, srcs=[(dtype, n), (dtype, cols), (dtype, cols)], dst=(dtype, n))
                row("rms_norm", f"{rows}x{cols}", dtype, lambda a, r=rows, c=cols, d=dtype: [plan.norm(1, d, r, c, 1e-5, a[0], a[2], a[1])], 2 * n * e,
                    lambda t, o, r=rows, c=cols: __import__("torch").nn.functional.rms_norm(t[0].view(r, c), (c,), t[1], 1e-5), srcs=[(dtype, n), (dtype, cols)], dst=(dtype, n))
        if tune:
            continue
        n = 1 << 26
        for op, f in [("gelu", "aten.gelu.out"), ("tanh", "tanh"), ("exp", "exp"), ("relu", "relu"), ("sigmoid", "sigmoid"), ("silu", "silu")]:
            def peer(t, o, op=op):
                import torch
                return dict(gelu=torch.ops.aten.gelu.out, tanh=torch.tanh, exp=torch.exp, sigmoid=torch.sigmoid, silu=torch.ops.aten.silu.out, relu=lambda x, out: torch.clamp_min(x, 0, out=out))[op](t[0], out=o)
            row("unary", op, dtype, lambda a, d=dtype, op=op: [plan.unary(op, d, d, [n], a[0], a[1])], 2 * n * e, peer, srcs=[(dtype, n)], dst=(dtype, n))
        row("binary", "add", dtype, lambda a, d=dtype: [plan.binary("add", d, d, [[n], [n]], a[:2], a[2])], 3 * n * e, lambda t, o: __import__("torch").add(t[0], t[1], out=o), srcs=[(dtype, n)] * 2, dst=(dtype, n))
        row("binary", "row 8192x8192+8192", dtype, lambda a, d=dtype: [plan.binary("add", d, d, [[8192, 8192], [8192]], a[:2], a[2])], 2 * n * e, lambda t, o: __import__("torch").add(t[0].view(8192, 8192), t[1], out=o.view(8192, 8192)), srcs=[(dtype, n), (dtype, 8192)], dst=(dtype, n))
        row("binary", "col 8192x8192+8192x1", dtype, lambda a, d=dtype: [plan.binary("add", d, d, [[8192, 8192], [8192, 1]], a[:2], a[2])], 2 * n * e, lambda t, o: __import__("torch").add(t[0].view(8192, 8192), t[1].view(8192, 1), out=o.view(8192, 8192)), srcs=[(dtype, n), (dtype, 8192)], dst=(dtype, n))
        row("binary", "scalar", dtype, lambda a, d=dtype: [plan.binary("add", d, d, [[n], []], [a[0], 0], a[1], scalars={2: (0, 0)})], 2 * n * e, lambda t, o: __import__("torch").add(t[0], 1.5, out=o), srcs=[(dtype, n)], dst=(dtype, n))
        row("add", "3 sources", dtype, lambda a, d=dtype: [plan.add(d, n, a[:3], a[3])], 4 * n * e, lambda t, o: __import__("torch").add(__import__("torch").add(t[0], t[1], out=o), t[2], out=o), srcs=[(dtype, n)] * 3, dst=(dtype, n))
        row("fill", "2^26", dtype, lambda a, s=e: [plan.fill_memory(s, n, a[0], (0, 0))], n * e, lambda t, o: o.fill_(1.5), srcs=[], dst=(dtype, n))
        m, k, c = 64 * 64 * 222 * 222, 64 * 64 * 224 * 224, 64 * 64 * 200 * 200
        row("pad", "4096x222x222+1", dtype, lambda a, s=e: [plan.pad(s, (4096, 222, 222), (0, 1, 1), (0, 1, 1), (0, 0), a[0], a[1])], (m + k) * e, lambda t, o: __import__("torch").nn.functional.pad(t[0].view(4096, 222, 222), (1, 1, 1, 1)), srcs=[(dtype, m)], dst=(dtype, k))
        row("copy_nd", "4096x222x222[200x200]", dtype, lambda a, s=e: [plan.copy(s, [4096, 200, 200], [222 * 222, 222, 1], [40000, 200, 1], a[0] + (11 * 222 + 11) * s, a[1])], 2 * c * e, lambda t, o: o.view(4096, 200, 200).copy_(t[0].view(4096, 222, 222)[:, 11:211, 11:211]), srcs=[(dtype, m)], dst=(dtype, c))
        row("reduce", "sum rows 49152x1024", dtype, lambda a, d=dtype: [*plan.reduce("sum", d, d, 49152, 1024, 1, a[0], a[2], a[1])], 49152 * 1024 * e, lambda t, o: t[0].view(49152, 1024).sum(1), srcs=[(dtype, 49152 * 1024), ("i8", 1 << 24)], dst=(dtype, 49152))
        row("reduce", "sum all 2^26", dtype, lambda a, d=dtype: [*plan.reduce("sum", d, d, 1, n, 1, a[0], a[2], a[1])], n * e, lambda t, o: t[0].sum(), srcs=[(dtype, n), ("i8", 1 << 24)], dst=(dtype, 1))
        row("reduce", "sum columns 8192x8192", dtype, lambda a, d=dtype: [*plan.reduce("sum", d, d, 1, 8192, 8192, a[0], a[2], a[1])], n * e, lambda t, o: t[0].view(8192, 8192).sum(0), srcs=[(dtype, n), ("i8", 1 << 26)], dst=(dtype, 8192))
        row("arg_reduce", "argmax rows 8192x8192", dtype, lambda a, d=dtype: [*plan.arg_reduce("argmax", d, "i64", 8192, 8192, 1, a[0], a[2], a[1])], n * e, lambda t, o: t[0].view(8192, 8192).argmax(1), srcs=[(dtype, n), ("i8", 1 << 24)], dst=("i64", 8192))
    if tune:
        return
    n = 1 << 26
    for s, d in [("f32", "f16"), ("f16", "f32"), ("f32", "bf16"), ("f32", "i8"), ("i8", "f32"), ("f32", "f64")]:
        row("cast", f"{s}->{d}", s, lambda a, s=s, d=d: [plan.unary("cast", s, d, [n], a[0], a[1])], n * (S[s] + S[d]), lambda t, o: o.copy_(t[0]), srcs=[(s, n)], dst=(d, n))
    row("one_hot", "65536x1000", "i64", lambda a: [plan.one_hot("wrap", "i64", 8, 65536, 1000, (1, 0), (0, 0), a[0], a[1], a[0])], 65536 * 8008, lambda t, o: __import__("torch").nn.functional.one_hot(t[0], 1000), srcs=[("index", 65536, 1000)], dst=("i64", 65536000))
    for dtype in ("f32", "f16", "i8"):
        e = S[dtype]
        for shape, perm in [((8192, 8192), (1, 0)), ((64, 128, 112, 112), (0, 2, 3, 1)), ((64, 112, 112, 128), (0, 3, 1, 2)), ((32, 16, 2048, 64), (0, 2, 1, 3)), ((64, 3, 512, 512), (0, 2, 3, 1)), ((37, 41, 43, 47, 9), (4, 2, 0, 3, 1))]:
            n_p = math.prod(shape)
            row("permute", f"{shape}->{perm}", dtype, lambda a, s=shape, p=perm, e=e: [plan.permute(e, s, p, a[0], a[1])], 2 * n_p * e,
                lambda t, o, s=shape, p=perm: o.view([s[q] for q in p]).copy_(t[0].view(s).permute(p)), srcs=[(dtype, n_p)], dst=(dtype, n_p), compiled=lambda t, s=shape, p=perm: t.view(s).permute(p).contiguous())
        for vocab, width, k in [(50000, 768, 65536), (1000000, 64, 1 << 20), (50000, 7, 1 << 20), (256000, 4096, 16384)]:
            row("gather", f"{vocab}x{width}[{k}]", dtype, lambda a, v=vocab, w=width, k=k, e=e: [plan.gather("wrap", "i64", e, 1, 1, v, w, k, a[1], a[0], a[2], a[1])], 2 * k * width * e + 8 * k,
                lambda t, o, v=vocab, w=width, k=k: __import__("torch").index_select(t[0].view(v, w), 0, t[1], out=o.view(k, w)), srcs=[(dtype, vocab * width, "shared"), ("index", k, vocab)], dst=(dtype, k * width))


def main():
    tune, compiled = "--tune" in sys.argv, "--compiled" in sys.argv
    groups = [a for a in sys.argv[1:] if not a.startswith("--")]
    build(tune)
    rows = [r for r in ROWS if not groups or r["group"] in groups]
    device = Device()
    fake = [1 << 30] * 5
    device.compile([l.spec for r in rows for l in r["make"](fake)], os.cpu_count())
    for spec, log in device.failed:
        print("COMPILER", spec, log[:400])
    import torch

    torch.manual_seed(1)
    types = dict(f32=torch.float32, f16=torch.float16, bf16=torch.bfloat16, f64=torch.float64, i8=torch.int8, i64=torch.int64)

    def tensor(dtype, count, limit=None):
        if dtype == "index":
            return torch.randint(0, limit, (count,), device="cuda")
        if dtype[0] == "i":
            return torch.randint(-100, 100, (count,), device="cuda", dtype=types[dtype])
        out = torch.empty(count, device="cuda", dtype=types[dtype])
        for part in out.split(1 << 27):
            part.copy_(torch.randn(part.numel(), device="cuda"))
        return out

    copies, results, cached = {}, [], {}

    def copy_us(moved):
        size = max(1 << 20, moved // 2)
        if size not in copies:
            sets = max(1, min(16, -(-ROTATION // (2 * size))))
            buffers = [(torch.empty(size, dtype=torch.uint8, device="cuda"), torch.empty(size, dtype=torch.uint8, device="cuda")) for _ in range(sets)]
            copies[size] = median_us([lambda b=b: b[1].copy_(b[0]) for b in buffers])
        return copies[size]

    last_key = None
    for r in rows:
        try:
            key = json.dumps([r["srcs"], r["dst"]])
            if key != last_key:
                data, shared, last_key = None, {}, key
                sets = max(1, min(16, -(-ROTATION // max(1, r["moved"]))))
                data = []
                for _ in range(sets):
                    srcs = []
                    for k, s in enumerate(r["srcs"]):
                        if s[-1] == "shared":
                            if k not in shared:
                                shared[k] = tensor(*s[:2])
                            srcs.append(shared[k])
                        else:
                            srcs.append(tensor(*s))
                    data.append((srcs, torch.empty(r["dst"][1], device="cuda", dtype=types[r["dst"][0]])))
            calls = []
            for srcs, dst in data:
                launches = r["make"]([t.data_ptr() for t in srcs] + [dst.data_ptr()])
                prepared = [device.prepare(l) for l in launches]
                calls.append(prepared[0] if len(prepared) == 1 else lambda p=prepared: [c() for c in p])
            us = median_us(calls)
            out = dict(group=r["group"], name=r["name"], dtype=r["dtype"], us=round(us, 2), share=round(copy_us(r["moved"]) / us, 3))
            if r.get("held"):
                out["held"] = r["held"]
            spec = launches[0].spec
            out["spec"] = str(spec)
            if r["torch"] and not r.get("held"):
                out["torch_us"] = round(median_us([lambda s=s, d=d: r["torch"](s, d) for s, d in data], 8), 2)
                if compiled and (r["group"] == "softmax" and r["dtype"] == "f32" or "compiled" in r):
                    torch._dynamo.reset()
                    f = r.get("compiled")
                    if f is None:
                        shape = tuple(map(int, r["name"].split("x")))
                        g = torch.softmax if r["group"] == "softmax" else torch.log_softmax
                        f = lambda t, shape=shape, g=g: g(t.view(shape), -1)
                    c = torch.compile(f, dynamic=False)
                    out["compiled_us"] = round(median_us([lambda s=s: c(s[0]) for s, d in data], 8), 2)
            results.append(out)
        except Exception as error:
            results.append(dict(group=r["group"], name=r["name"], dtype=r["dtype"], error=f"{type(error).__name__} {str(error)[:200]}", held=r.get("held")))
            data, last_key = None, None
            torch.cuda.empty_cache()
    folder = os.environ.get("OUT")
    if folder:
        with open(f"{folder}/{'tune' if tune else 'bench'}{'_'.join(groups)}.jsonl", "w") as f:
            f.writelines(json.dumps(r) + "\n" for r in results)
    if tune:
        best = {}
        for r in results:
            if "us" in r:
                best.setdefault((r["group"], r["dtype"], r["name"]), []).append((r["us"], r["share"], r.get("held")))
        for key, tried in best.items():
            default = [t for t in tried if t[2] is None][0]
            print(*key, "default", default[:2], "best", *[f"{u} {s} {h};" for u, s, h in sorted(tried, key=lambda t: t[0])[:4]])
        return
    for r in results:
        if "error" in r:
            print(r["group"], r["dtype"], r["name"], r["error"])
        else:
            print(f"{r['group']} {r['dtype']} {r['name']}: {r['us']} us, share {r['share']}, torch {r.get('torch_us')}, compiled {r.get('compiled_us')}")


if __name__ == "__main__":
    main()
