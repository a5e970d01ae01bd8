"""Compiling the kernels with NVRTC, launching them through the driver, and timing them."""
import concurrent.futures
import ctypes
import functools
import glob
import os
import site
import sys

KERNELS = os.environ.get("EP_KERNELS") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../kernels")


@functools.cache
def nvrtc():
    """NVRTC of a toolkit or of pip's nvidia-cuda-nvrtc; its builtins are opened first, by their full path."""
    folders = [f"{p}/nvidia/cu13/lib" for p in site.getsitepackages() + sys.path]
    folders += glob.glob("/usr/local/cuda*/lib64")
    for folder in folders:
        library = glob.glob(f"{folder}/libnvrtc.so.1*")
        builtins = glob.glob(f"{folder}/libnvrtc-builtins.so.1*")
        if library and builtins:
            ctypes.CDLL(builtins[0], mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(library[0])
    raise SystemExit("NVRTC was not found; install a CUDA toolkit or `pip install nvidia-cuda-nvrtc`")


def compile_kernel(file, defines, arch, source=None):
    """Returns (cubin, log): the machine code of one specialisation, or None and the compiler's messages. `source` is that
    of a file that is not among the kernels."""
    rtc = nvrtc()
    headers = sorted(os.path.basename(h) for h in glob.glob(f"{KERNELS}/*.cuh"))
    read = lambda name: open(os.path.join(KERNELS, name), "rb").read()
    names = (ctypes.c_char_p * len(headers))(*[h.encode() for h in headers])
    texts = (ctypes.c_char_p * len(headers))(*[read(h) for h in headers])
    program = ctypes.c_void_p()
    rtc.nvrtcCreateProgram(ctypes.byref(program), source or read(file), file.encode(), len(headers), texts, names)
    options = [f"--gpu-architecture={arch}", "--std=c++17"] + [f"-D{k}={v}" for k, v in sorted(defines.items())]
    status = rtc.nvrtcCompileProgram(
        program, len(options), (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
    )

    def text(size, get):
        n = ctypes.c_size_t()
        size(program, ctypes.byref(n))
        buffer = ctypes.create_string_buffer(n.value)
        get(program, buffer)
        return buffer.raw

    log = text(rtc.nvrtcGetProgramLogSize, rtc.nvrtcGetProgramLog).rstrip(b"\0\n ").decode()
    cubin = text(rtc.nvrtcGetCUBINSize, rtc.nvrtcGetCUBIN) if status == 0 else None
    rtc.nvrtcDestroyProgram(ctypes.byref(program))
    return cubin, log


class Spec:
    """A kernel file with its macros."""

    def __init__(self, file, **defines):
        self.file, self.defines = file, {f"EP_{k}": v for k, v in defines.items()}

    def key(self):
        return (self.file, tuple(sorted(self.defines.items())))

    def __str__(self):
        return f"{self.file} " + " ".join(f"{k[3:]}={v}" for k, v in sorted(self.defines.items()))


ENTRY = {
    "unary.cu": "ep_unary", "binary.cu": "ep_binary", "copy.cu": "ep_copy", "copy_runs.cu": "ep_copy_runs", "where.cu": "ep_where",
    "add.cu": "ep_add", "fill.cu": "ep_fill", "arange.cu": "ep_arange", "pad.cu": "ep_pad", "gather.cu": "ep_gather",
    "one_hot.cu": "ep_one_hot", "transpose.cu": "ep_transpose", "permute.cu": "ep_permute", "interleave.cu": "ep_interleave",
    "reduce.cu": "ep_reduce",
    "arg_reduce.cu": "ep_arg_reduce", "softmax.cu": "ep_softmax", "softmax_backward.cu": "ep_softmax_backward",
    "softmax_wide.cu": "ep_softmax_wide", "softmax_strided.cu": "ep_softmax_strided", "norm.cu": "ep_norm",
    "norm_wide.cu": "ep_norm_wide", "scatter_add.cu": "ep_scatter_add",
}


def compile_job(job):
    return compile_kernel(*job)


class Device:
    """Compiled kernels by their specification, launched on PyTorch's current stream."""

    def __init__(self):
        self.cubins, self.functions, self.failed = {}, {}, []

    def compile(self, specs, workers):
        """Compiles all at once, before any CUDA context exists: the workers are forked."""
        todo = {s.key(): s for s in specs if s.key() not in self.cubins}
        jobs = [(s.file, s.defines, "sm_90") for s in todo.values()]
        with concurrent.futures.ProcessPoolExecutor(workers) as pool:
            for key, (cubin, log) in zip(todo, pool.map(compile_job, jobs, chunksize=1)):
                self.cubins[key] = cubin
                if cubin is None or log:
                    self.failed.append((todo[key], log))

    def function(self, spec):
        key = spec.key()
        if key not in self.functions:
            if self.cubins.get(key) is None:
                raise RuntimeError(f"not compiled: {spec}")
            self.driver = ctypes.CDLL("libcuda.so.1")
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            self.must(self.driver.cuModuleLoadData(ctypes.byref(module), self.cubins[key]), spec)
            name = ENTRY[spec.file].encode()
            self.must(self.driver.cuModuleGetFunction(ctypes.byref(function), module, name), spec)
            self.functions[key] = function
        return self.functions[key]

    def must(self, status, spec):
        if status:
            raise RuntimeError(f"driver error {status}: {spec}")

    def prepare(self, launch):
        """A call without arguments that launches; what it needs is looked up now."""
        import torch

        function = self.function(launch.spec)
        if launch.shared > 40 << 10:
            self.must(self.driver.cuFuncSetAttribute(function, 8, ctypes.c_int(launch.shared)), launch.spec)
        pointer = (ctypes.c_void_p * 1)(ctypes.addressof(launch.args))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        block = launch.block or (int(launch.spec.defines["EP_THREADS"]), 1)
        x, y = map(ctypes.c_uint, block)
        one, grid, shared = ctypes.c_uint(1), ctypes.c_uint(launch.grid), ctypes.c_uint(launch.shared)

        def call():
            if launch.grid == 0:
                return
            self.must(
                self.driver.cuLaunchKernel(
                    function, grid, one, one, x, y, one, shared, stream, pointer, None
                ),
                launch.spec,
            )

        call.keep = launch
        return call

    def launch(self, *launches):
        for launch in launches:
            self.prepare(launch)()


class Launch:
    """One launch: its kernel, the bytes of its argument struct, the number of blocks, dynamic shared memory, and the threads of a
    block in x and y where they are not what the kernel was compiled for."""

    def __init__(self, spec, args, grid, shared=0, block=None):
        self.spec, self.args, self.grid, self.shared, self.block = spec, args, int(grid), shared, block


def median_us(calls, repeats=12):
    """Median over repeats of the mean time of calls that rotate over buffers, by events."""
    import torch

    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for call in calls:
            call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(calls))
    return sorted(times)[len(times) // 2]
