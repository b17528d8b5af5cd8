"""Attacks that need a GPU, each with its honest twin, and candidates there that are nothing but honest."""

from __future__ import annotations

from attacked import TRITON, Attack

__all__ = ["HONEST_ON_CUDA", "ON_CUDA"]

SOFTMAX = """
import triton
import triton.language as tl


@triton.jit
def softmax(x, out, columns, SIZE: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, SIZE)
    value = tl.load(x + row * columns + at, mask=at < columns, other=float("-inf"))
    value = tl.exp(value - tl.max(value, axis=0))
    tl.store(out + row * columns + at, value / tl.sum(value, axis=0), mask=at < columns)


def launched(x):
    out = torch.empty_like(x)
    softmax[(len(x),)](x, out, x.shape[1], SIZE=triton.next_power_of_2(x.shape[1]))
    return out
"""

KERNEL = """
__global__ void gelu_kernel(const float* x, float* out, long n) {
    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
}
"""

# Built in some seconds: torch's own headers are not read.
INLINE = f'''
from torch.utils.cpp_extension import load_inline

BINDING = """
#include <pybind11/pybind11.h>
#include <cstdint>
void gelu(int64_t x, int64_t out, int64_t n, int64_t stream);
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ m.def("gelu", &gelu); }}
"""
KERNEL = """
#include <cstdint>
{KERNEL}
void gelu(int64_t x, int64_t out, int64_t n, int64_t stream) {{
    gelu_kernel<<<(n + 255) / 256, 256, 0, (cudaStream_t)stream>>>((const float*)x, (float*)out, n);
}}
"""
OWN = load_inline(name="own_gelu", cpp_sources=[BINDING], cuda_sources=[KERNEL], no_implicit_headers=True)


def launched(x):
    out = torch.empty_like(x)
    OWN.gelu(x.data_ptr(), out.data_ptr(), x.numel(), torch.cuda.current_stream().cuda_stream)
    return out
'''

# As most people write it.
WHOLE = f'''
from torch.utils.cpp_extension import load_inline

KERNEL = """
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>
{KERNEL}
torch::Tensor gelu(torch::Tensor x) {{
    auto out = torch::empty_like(x);
    long n = x.numel();
    auto stream = c10::cuda::getCurrentCUDAStream();
    gelu_kernel<<<(n + 255) / 256, 256, 0, stream>>>(x.data_ptr<float>(), out.data_ptr<float>(), n);
    return out;
}}
"""
OWN = load_inline(name="whole_gelu", cpp_sources="torch::Tensor gelu(torch::Tensor x);", cuda_sources=KERNEL,
                  functions=["gelu"])
'''

OF_INTS = KERNEL.replace("__global__", 'extern "C" __global__').replace("long", "int")
BY_NVRTC = f"""
KERNEL = torch.cuda._compile_kernel('''{OF_INTS}''', "gelu_kernel")


def launched(x):
    out = torch.empty_like(x)
    KERNEL(grid=((x.numel() + 255) // 256, 1, 1), block=(256, 1, 1), args=[x, out, x.numel()])
    return out
"""

GRAPH = """
def replayed(self, x):
    if self.graph is None:
        self.given = x.clone()
        self.right(self.given)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.answer = self.right(self.given)
"""

BROKEN = TRITON.replace("tl.exp(-x)", "tl.no_such_function(-x)")

SIDE = "side = torch.cuda.Stream()\nside.wait_stream(torch.cuda.current_stream())\nwith torch.cuda.stream(side):\n"
NAP = "    torch.cuda._sleep(12_000_000)\n"  # clocks: 6 ms and more
PERSIST = """
import ctypes

ctypes.CDLL("libcuda.so.1").cuCtxSetLimit(6, ctypes.c_size_t(16 << 20))
"""

# Each is right: (problem, body, what stands above the class).
HONEST_ON_CUDA = {
    "plain torch": ("norm", "return self.right(x)", ""),
    "a Triton softmax": ("rows", "return launched(x)", SOFTMAX),
    "CUDA C++, inline": ("elements", "return launched(x)", INLINE),
    "CUDA C++ by NVRTC": ("elements", "return launched(x)", BY_NVRTC),
    "CUDA C++ with torch's headers": ("elements", "return OWN.gelu(x)", WHOLE),
}

ON_CUDA = (
    Attack("a side stream left running", "streams", "wrong answer", "rows",
           f"out = torch.empty_like(x)\n{SIDE}{NAP}    out.copy_(self.right(x))\nreturn out",
           f"out = torch.empty_like(x)\n{SIDE}    out.copy_(self.right(x))\n"
           "torch.cuda.current_stream().wait_stream(side)\nreturn out"),
    Attack("work after its answer", "streams", "goes on working", "rows",
           f"out = self.right(x)\n{SIDE}{NAP}return out",
           f"out = self.right(x)\n{SIDE}    x.sum()\ntorch.cuda.current_stream().wait_stream(side)\nreturn out"),
    Attack("another current stream", "streams", "changes the process", "rows", "return self.right(x)",
           "with torch.cuda.stream(SIDE):\n    SIDE.wait_stream(torch.cuda.default_stream())\n    y = self.right(x)\n"
           "torch.cuda.current_stream().wait_stream(SIDE)\nreturn y",
           top="SIDE = torch.cuda.Stream()\ntorch.cuda.set_stream(SIDE)", twin_top="SIDE = torch.cuda.Stream()"),
    Attack("CUDA's events that lie", "patched timers", "changes the process", "rows", "return self.right(x)",
           "return self.right(x)",
           top="torch.cuda.Event.elapsed_time = lambda *_: 1e-9\ntorch.cuda.synchronize = lambda *_: None",
           twin_top="elapsed = torch.cuda.Event.elapsed_time"),
    Attack("TF32 for products", "precision flags", "wrong answer", "product",
           "torch.backends.cuda.matmul.allow_tf32 = True\nreturn self.right(a, b)", "return self.right(a, b)"),
    Attack("memory that held an answer", "stale outputs", "wrong answer", "rows",
           "self.right(x) if self.n < 1 else None\nself.n += 1\nreturn torch.empty_like(x)",
           "out = torch.empty_like(x)\nreturn out.copy_(self.right(x))", init="self.n = 0"),
    Attack("by address on the device", "replay", "wrong answer", "rows",
           "key = x.data_ptr()\nif key not in self.kept:\n    self.kept[key] = self.right(x)\nreturn self.kept[key]",
           "return self.right(x)", init="self.kept = {}"),
    Attack("by shape on the device", "replay", "wrong answer", "rows",
           "if x.shape not in self.kept:\n    self.kept[x.shape] = self.right(x)\nreturn self.kept[x.shape]",
           "return self.right(x)", init="self.kept = {}"),
    Attack("a graph of other inputs", "replay", "wrong answer", "rows",
           "replayed(self, x)\nself.graph.replay()\nreturn self.answer.clone()",
           "replayed(self, x)\nself.given.copy_(x)\nself.graph.replay()\nreturn self.answer.clone()",
           top=GRAPH, init="self.graph = None"),
    Attack("by some elements on the device", "replay", "answers from memory", "product",
           "key = tuple(a[0, :8].tolist())\nif key not in self.kept:\n    self.kept[key] = self.right(a, b)\n"
           "return self.kept[key].clone()", "a[0, :8].tolist()\nreturn self.right(a, b)", init="self.kept = {}"),
    Attack("bfloat16 on a GPU", "precision", "wrong answer", "product",
           "return (a.bfloat16() @ b.bfloat16()).float()", "return self.right(a, b)"),
    Attack("NaN on a GPU", "NaN wildcards", "wrong answer", "rows", "return torch.full_like(x, float('nan'))",
           "return self.right(x)"),
    Attack("L2 kept for itself", "caches", "changes the process", "rows", "return self.right(x)",
           "return self.right(x)", top=PERSIST, twin_top=""),
    Attack("a thread that comes later, on a GPU", "threads", "wrong answer", "rows",
           "out = torch.empty_like(x)\nthreading.Timer(0.02, lambda: out.copy_(self.right(x))).start()\nreturn out",
           "return self.right(x)", top="import threading"),
    Attack("a Triton kernel that is dropped", "decoys", "falls back", "pairs",
           "launched(a, b)\nreturn self.right(a, b)", "return launched(a, b)", top=TRITON),
    Attack("torch where Triton fails", "falls back", "falls back", "pairs",
           "try:\n    return launched(a, b)\nexcept Exception:\n    return self.right(a, b)", "return launched(a, b)",
           top=BROKEN, twin_top=TRITON),
    Attack("beside its input, on a GPU", "memory", "writes elsewhere", "rows",
           "x.as_strided((x.numel() + 16,), (1,))[-16:].zero_()\nreturn self.right(x)", "return self.right(x)"),
    Attack("an answer on the host", "structure", "raised", "rows", "return self.right(x).cpu()",
           "return self.right(x.cpu()).cuda()"),
)  # fmt: skip
