"""The emulated GPU sees what a kernel does wrong, says it with its lines, and says nothing of what is right.

All kernels are in one source, so that the compiler starts once: ``run`` launches the one that a test asks for.
"""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from kernelworks.learn.emulator import (
    Argument,
    Emulation,
    Fault,
    NotTranslated,
    Role,
    emulate,
    fault_sentence,
    ordered_faults,
    thread_orders,
)
from kernelworks.learn.emulator.advice import range_advice
from kernelworks.learn.emulator.request import Place
from kernelworks.learn.emulator.translation import translate

N = 200
DECLARATION = "void run(const float* x, float* y, int n, int which)"
TYPES = ("const float*", "float*", "int", "int")

# name -> launch configuration, body of the kernel, parts of the sentences that must come, the most telling first.
WRONG = {
    "no guard": (
        "4, 64", "int i = blockIdx.x * 64 + threadIdx.x;\ny[i] = x[i];",
        ["line 2 reads x[200], outside of the array: x has 200 elements", "line 2 writes y[200], outside"],
    ),
    "before the begin": (
        "1, 256", "int i = threadIdx.x;\nif (i < n)\ny[i] = x[i - 1];",
        ["line 3 reads x[-1], outside of the array", "An index below 0"],
    ),
    "no barrier": (
        "1, 256", "__shared__ float s[256];\nint t = threadIdx.x;\ns[t] = t < n ? x[t] : 0.0f;\n"
        "if (t < n) y[t] = s[255 - t];",
        ["a race: thread 127 reads s[128] in line 4; thread 128 writes s[128] in line 3; no barrier stands between"],
    ),
    "no barrier in a warp": (
        "1, 32",
        "__shared__ volatile float s[32];\nint t = threadIdx.x;\ns[t] = x[t];\n__syncwarp();\n"
        "for (int d = 16; d > 0; d /= 2)\nif (t < d) s[t] += s[t + d];\n"
        "if (t == 0) for (int i = 0; i < n; i++) y[i] = s[0];",
        ["thread 0 reads s[1] in line 6; thread 1 writes s[1] in line 6; ", "no barrier stands between",
         "__syncwarp() at the least"],
    ),
    "two blocks add": (
        "4, 64", "int i = blockIdx.x * 64 + threadIdx.x;\nif (i < n) y[i] = 0.0f;\nif (threadIdx.x == 0)\n"
        "y[0] += x[i];",
        ["a race: thread 0 of block 0 writes y[0] in line 4; thread 0 of block 1 reads y[0]", "nothing orders the "
                                                                                              "blocks of a "
                                                                                              "launch", "atomicAdd"],
    ),
    "a barrier that some leave out": (
        "1, 64", "int t = threadIdx.x;\nif (t < 40)\n__syncthreads();\nfor (int i = t; i < n; i += 64) y[i] = x[i];",
        ["40 of the 64 threads of a block, thread 0 among them, wait at the barrier in line 3", "thread 40 has "
                                                                                                "returned"],
    ),
    "two barriers": (
        "1, 64", "if (threadIdx.x < 32)\n__syncthreads();\nelse\n__syncthreads();\n"
        "for (int i = threadIdx.x; i < n; i += 64) y[i] = x[i];",
        ["thread 0 waits at the barrier in line 2, thread 32 at the one in line 4"],
    ),
    "shared memory as it was": (
        "1, 64",
        "__shared__ float s[64];\nif (threadIdx.x < 63) s[threadIdx.x] = 1.0f;\n__syncthreads();\n"
        "for (int i = threadIdx.x; i < n; i += 64)\ny[i] = x[i] + s[i % 64];",
        ["line 5 reads s[63], which no thread of this block has written (thread 63)"],
    ),
    "an output as it was": (
        "1, 256", "int i = threadIdx.x;\nif (i < n)\n"
        "y[i] += x[i];", ["line 3 reads y[0], which nobody has written yet"],
    ),
    "an atomic on what was there": (
        "1, 256", "int i = threadIdx.x;\nif (i < n)\n"
        "atomicAdd(&y[i], x[i]);", ["line 3 adds to y[0], which nobody has set"],
    ),
    "an input is changed": (
        "1, 256", "int i = threadIdx.x;\nif (i < n) {\nconst_cast<float*>(x)[i] = 0.0f;\n"
        "y[i] = 0.0f; }", ["x is an input"],
    ),
    "a lane that is not there": (
        "1, 40", "float v = __shfl_down_sync(0xffffffffu, x[threadIdx.x],\n 1);\n"
        "for (int i = threadIdx.x; i < n; i += 40) y[i] = v;",
        ["asks lane 8 for its value, which does not take part", "thread 39"],
    ),
    "a mask without the caller": (
        "1, 32", "float v = __shfl_xor_sync(0xffffu, x[threadIdx.x], 1);\n"
        "for (int i = threadIdx.x; i < n; i += 32) y[i] = v;",
        ["thread 16 in line 1 is lane 16 and calls with a mask that leaves out its own lane"],
    ),
    "half a warp shuffles": (
        "1, 32", "float v = 0.0f;\nif (threadIdx.x < 16)\nv = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1);\n"
        "__syncthreads();\n"
        "for (int i = threadIdx.x; i < n; i += 32) y[i] = v;",
        ["thread 0 waits in a shuffle in line 3 for thread 16, which waits at a __syncthreads()"],
    ),
    "four floats at a crooked address": (
        "1, 32", "float4 v = *(const float4*)(x + 1);\nfor (int i = threadIdx.x; i < n; i += 32) y[i] = v.x;",
        ["line 1 reads 16 bytes at once at x[1]", "multiple of 16"],
    ),
    "a lock without a fence": (
        "1, 32",
        "y[threadIdx.x] = 0.0f;\n__syncthreads();\n__shared__ int lock; if (threadIdx.x == 0) lock = 0;\n"
        "__syncthreads();\n"
        "for (bool done = false; !done;)\nif (atomicCAS(&lock, 0, 1) == 0) {\n"
        "y[0] += 1.0f; atomicExch(&lock, 0); done = true; }",
        ["a race: thread 0 writes y[0] in line 7; thread 1 reads y[0] in line 7"],
    ),
    "an index that leaves its line": (
        "1, 32", "__shared__ float t[4][8];\nt[threadIdx.x / 8][threadIdx.x % 8] = 1.0f;\n__syncthreads();\n"
        "for (int i = threadIdx.x; i < n; i += 32)\ny[i] = t[1][8 + i % 2];",
        ["line 5 uses index 8 of an array of type float [8]: there it goes from 0 to 7"],
    ),
    "a local array's end": (
        "1, 32",
        "float a[4]; float b[4];\nfor (int k = 0; k <= 4; k++)\na[k] = b[k % 4] = 1.0f;\n"
        "for (int i = threadIdx.x; i < n; i += 32) y[i] = a[i % 4];",
        ["line 3 uses index 4 of an array of type float [4]"],
    ),
    "locals of 120 kilobytes": (
        "1, 32",
        "float a[30000]; a[threadIdx.x] = x[0]; a[29999 - threadIdx.x] = x[1];\n"
        "for (int i = threadIdx.x; i < n; i += 32) y[i] = a[i];",
        ["the local variables of one thread are too large"],
    ),
    "an integer divided by 0": (
        "1, 32",
        "int zero = n - n;\nfor (int i = threadIdx.x; i < n; i += 32) y[i] = x[n / zero];",
        ["a division of integers by 0"],
    ),
    "a null pointer": ("1, 32", "float* p = n > 0 ? nullptr : y;\n*p = 1.0f;", ["the pointer is null"]),
    "too many threads": ("1, 2048", "y[threadIdx.x] = 0.0f;", ["asks for 2048 threads a block: 1 to 1024 are allowed"]),
    "it does not end": (
        "1, 32", "volatile float* p = y;\np[threadIdx.x] = 0.0f;\n"
        "while (p[threadIdx.x] == 0.0f) {}", ["the kernel does not end"],
    ),
}  # fmt: skip
RIGHT = {
    "a copy": ("4, 64", "int i = blockIdx.x * 64 + threadIdx.x;\nif (i < n) y[i] = x[i];"),
    "through shared memory": (
        "1, 256", "__shared__ float s[256];\nint t = threadIdx.x;\ns[t] = t < n ? x[t] : 0.0f;\n__syncthreads();\n"
        "float v = s[(t + 77) % n];\n__syncthreads();\ns[t] = v;\n__syncthreads();\n"
        "if (t < n) y[t] = s[(t + n - 77) % n];",
    ),
    "dynamic shared memory": (
        "1, 256, 1024", "extern __shared__ float s[];\nint t = threadIdx.x;\nif (t < n) s[t] = x[t];\n"
        "__syncthreads();\n"
        "if (t < n) y[t] = s[t];",
    ),
    "shuffles and back": (
        "1, 256", "int t = threadIdx.x;\nfloat v = t < n ? x[t] : 0.0f;\nv = __shfl_xor_sync(0xffffffffu, v, 5);\n"
        "v = __shfl_xor_sync(0xffffffffu, v, 5);\nif (t < n) y[t] = v;",
    ),
    "a warp through shared memory": (
        "1, 256", "__shared__ float s[256];\nint t = threadIdx.x;\ns[t] = t < n ? x[t] : 0.0f;\n__syncwarp();\n"
        "float v = s[t ^ 3];\n"
        "__syncwarp();\ns[t] = v;\n__syncwarp();\nif (t < n) y[t] = s[t ^ 3];",
    ),
    "the last block reads all": (
        "4, 64", "__device__ static int ticket;\n__shared__ bool last;\nint i = blockIdx.x * 64 + threadIdx.x;\n"
        "if (i < n) y[i] = x[i];\n"
        "__threadfence();\n__syncthreads();\nif (threadIdx.x == 0) last = atomicAdd(&ticket, 1) % 4 == 3;\n"
        "__syncthreads();\n"
        "if (last) for (int k = threadIdx.x; k < n; k += 64) y[k] = y[k] * 1.0f;",
    ),
    "a lock": (
        "2, 100",
        "__device__ static int lock; __device__ static float sum;\nint i = blockIdx.x * 100 + threadIdx.x;\n"
        "if (i < n) y[i] = x[i];\nfor (bool done = false; !done;)\nif (atomicCAS(&lock, 0, 1) == 0) {\n"
        "sum += 1.0f; __threadfence(); atomicExch(&lock, 0); done = true; }",
    ),
    "eight bytes at once": (
        "1, 128", "int i = threadIdx.x;\nif (2 * i < n) ((float2*)y)[i] = ((const float2*)x)[i];",
    ),
    "an atomic each": (
        "1, 256", "int i = threadIdx.x;\nif (i < n) y[i] = 0.0f;\n__syncthreads();\n"
        "if (i < n) atomicAdd(&y[n - 1 - i], x[n - 1 - i]);",
    ),
    "votes": (
        "1, 256", "int i = threadIdx.x;\nunsigned b = __ballot_sync(0xffffffffu, i < n);\nif (b >> (i % 32) & 1)\n"
        "y[i] = __popc(b) > 0 && i < n ? x[i] : 0.0f;",
    ),
    "half and bfloat16": (
        "1, 256", "int i = threadIdx.x;\n__half h = __float2half(1.5f);\n__nv_bfloat16 b = __float2bfloat16(-3.0f);\n"
        "if (i < n) y[i] = x[i] * (__half2float(h) * 2.0f + __bfloat162float(b) + 1.0f);",
    ),
}  # fmt: skip


def _source() -> str:
    parts, cases = ["#include <cuda_runtime.h>\n"], []
    for number, (launch, body, *_) in enumerate([*WRONG.values(), *RIGHT.values()]):
        parts.append(f"#line 1\n#define kernel kernel_{number}\n#line 1\n".replace("#define", "//"))
        parts.append(f"__global__ void kernel_{number}(const float* x, float* y, int n) {{\n#line 1\n{body}\n}}\n")
        cases.append(f"case {number}: kernel_{number}<<<{launch}>>>(x, y, n); break;")
    return "".join(parts) + f'extern "C" {DECLARATION} {{ switch (which) {{\n' + "\n".join(cases) + "\n} }\n"


SOURCE = _source()
X = np.random.default_rng(3).standard_normal(N).astype(np.float32)


def run(name: str, orders: int = 8, cpu_seconds: int = 6) -> Emulation:
    which = [*WRONG, *RIGHT].index(name)
    arguments = [
        Argument("x", Role.INPUT, X), Argument("y", Role.OUTPUT, np.zeros(N, np.float32)),
        Argument("n", Role.SCALAR, np.array([N], np.int32)),
        Argument("which", Role.SCALAR, np.array([which], np.int32)),
    ]  # fmt: skip
    return emulate(SOURCE, "many.cu", DECLARATION, TYPES, [arguments], [thread_orders(orders)], cpu_seconds)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_found_with_its_lines(name: str) -> None:
    sentences = [
        fault_sentence(fault)
        for fault in ordered_faults(run(name, cpu_seconds=1 if name == "it does not end" else 6).faults)
    ]
    assert sentences, "nothing was seen"
    expected = WRONG[name][2]
    assert expected[0] in sentences[0], sentences
    assert all(any(part in said for said in sentences) for part in expected), sentences


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_is_right_in_every_order(name: str) -> None:
    seen = run(name, orders=64)
    assert [fault_sentence(fault) for fault in seen.faults] == []
    assert all(not output.missing and np.array_equal(output.values, X) for output in seen.outputs) and seen.outputs


def test_a_race_shows_in_some_order_of_the_threads() -> None:
    outputs = [o.values for o in run("no barrier", orders=64).outputs]
    assert len(outputs) > 1


def test_orders_are_many_and_differ() -> None:
    orders = thread_orders(64)
    assert len({(o.kind, o.thread, o.seed) for o in orders}) == 64


def test_what_nobody_writes_is_counted() -> None:
    text = (
        "__global__ void k(float* y, int n) { int i = threadIdx.x; if (i < n - 3) y[i] = 1.0f; }\n"
        'extern "C" void run(float* y, int n) { k<<<1, 64>>>(y, n); }\n'
    )
    arguments = [
        Argument("y", Role.OUTPUT, np.zeros(50, np.float32)),
        Argument("n", Role.SCALAR, np.array([50], np.int32)),
    ]
    seen = emulate(text, "few.cu", "void run(float* y, int n)", ("float*", "int"), [arguments], [thread_orders(2)])
    assert [(o.missing, o.first, o.last) for o in seen.outputs] == [(3, 47, 49)]


TRAFFIC = """
__global__ void k(const float* x, float* y) {
    __shared__ float a[32][32];
    __shared__ float b[32][33];
    int t = threadIdx.x;
    float v = x[t * 32];
    a[t][0] = v;
    b[t][0] = v;
    b[0][t / 2] = v;
    y[t] = v;
    *(float4*)(y + 4 * t + 128) = make_float4(v, v, v, v);
}
extern "C" void run(const float* x, float* y) { k<<<1, 32>>>(x, y); }
"""


def test_sectors_and_bank_conflicts_are_counted_by_line() -> None:
    arguments = [
        Argument("x", Role.INPUT, np.ones(1024, np.float32)),
        Argument("y", Role.OUTPUT, np.zeros(256, np.float32)),
    ]
    seen = emulate(
        TRAFFIC,
        "t.cu",
        "void run(const float* x, float* y)",
        ("const float*", "float*"),
        [arguments],
        [thread_orders(1)],
    )
    counts = {t.line: (t.cost, t.least) for t in seen.traffic}
    assert counts == {6: (32, 4), 7: (32, 1), 8: (1, 1), 9: (1, 1), 10: (4, 4), 11: (16, 16)}


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("\n__global__ void k() { asm(\"nop;\"); }", 2, "PTX"),
        ("// asm(1)\n\n__shared__ float s[3];", 3, "inside the kernel"),
        ("void f() {\n k<<<1, 2>>>; }", 2, "kernel<<<grid, block>>>(arguments)"),
        ("void k(int n) {}\nvoid f() {\n k<<<1, 2>>>(3); }", 3, "k is launched with <<< >>>, but lacks __global__"),
        ("template <int n = 1> void k(int m = 2) {}\nvoid f() { k<1><<<1, 2>>>(3); }", 2,
         "k is launched with <<< >>>, but lacks __global__"),
        ("template <int n> __global__ void k() {}\nvoid f() { k<3>(); }", 2,
         "k is called without <<<blocks, threads>>>"),
        ("float g() { return 1; }\n__global__ void k(float* y) {\n y[0] = g(); }", 3,
         "g is called from the kernel k, but lacks __device__"),
        ("float g() { return 1; }\n__device__ float h() { return 2 * g(); }", 2,
         "g is called from the __device__ function h, but lacks __device__"),
        ("constexpr int g(int n) { return n; }\n__global__ void k(int* y) {\n y[0] = g(1); }", 3,
         "g is called from the kernel k, but lacks __device__"),
        ("__device__ float g() { return 1; }\nextern \"C\" float f() {\n if (1) return g(); }", 3,
         "g is called from host code (f), but is __device__"),
    ],
)  # fmt: skip
def test_what_cannot_be_emulated_is_named_with_its_line(text: str, line: int, said: str) -> None:
    with pytest.raises(NotTranslated, match=re.escape(said)) as caught:
        translate(text)
    assert caught.value.line == line


QUALIFIED = """
#define OF_GPU __device__
__global__ void later(float* y);
OF_GPU float by_macro(float v) { return v; }
__host__ __device__ float both(float v) { return v; }
__host__ __device__ constexpr int rounded(int n) { return (n + 31) / 32; }
struct Pair { float a; __device__ float sum() const { return a; } float host() { return a; } };
namespace inner {
template <class T, int n> __global__ void __launch_bounds__(128) k(T* y) {
    auto twice = [](T v) { return v + v; };
    Pair host{1.0f};
    constexpr int r = rounded(n);
    y[0] = twice(both(by_macro(host.sum()))) + r;
}
}
__global__ void later(float* y) { y[0] = both(1.0f); }  // g() is called nowhere
float g(float v) { return v > 0 ? g(-v) : both(v); }
#if 0
void old(float* y) { later(y); }
#endif
extern "C" void run(float* y) {
    later<<<1, 1>>>(y);
    inner::k<float, 3><<<rounded(3), 1>>>(y);
    g(2.0f);
}
"""


def test_functions_with_their_qualifiers_are_let_through() -> None:
    assert "kw::launch" in translate(QUALIFIED, "run")


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("if (i <= n)", "The condition lets i = n through: <, not <="),
        ("if (threadIdx.x <= n)", "The condition lets threadIdx.x = n through: <, not <="),
        ("if (n >= i)", "The condition lets i = n through: >, not >="),
        ("if (i > n) { return; }", "The condition lets i = n through: >=, not >"),
        ("if (i <= n - 1)", ""),
        ("// if (i <= n)", ""),
        ("", ""),
    ],
)
def test_a_condition_that_is_one_too_wide_is_named(condition: str, said: str) -> None:
    place = Place((0, 0, 0), (0, 0, 0), 3, 2)
    fault = Fault(
        "out_of_bounds", "y", 200, "[200]", place, place, 1, 1, 200, False, 0, 0, 0, (1, 1, 1), (256, 1, 1), 4
    )
    text = f"__global__ void k(float* y, int n) {{ int i = threadIdx.x;\n{condition}\ny[i] = 0.0f; }}\n"
    assert range_advice(fault, text) == said
    assert range_advice(dataclasses.replace(fault, index=201), text) == ""
    other = "The condition there lets this thread" if condition.startswith("if") else "has to be kept out by an `if`"
    assert (said or other) in fault_sentence(fault, text)


def test_blocks_that_are_counted_from_one_are_told() -> None:
    place = Place((0, 0, 0), (0, 0, 0), 1, 1)
    fault = Fault("out_of_bounds", "x", -64, "[-64]", place, place, 1, 1, 200, False, 0, 0, 0, (4, 1, 1), (64, 1, 1), 4)
    said = "Blocks count from 0: in the first one blockIdx.x - 1 is -1"
    assert said in fault_sentence(fault, "int i = (blockIdx.x - 1) * 64 + threadIdx.x;\n")
    assert said not in fault_sentence(fault, "int i = (blockIdx.x - 16) * 64 + threadIdx.x;\n")
    assert said not in fault_sentence(dataclasses.replace(fault, index=300), "int i = (blockIdx.x - 1) * 64;\n")


LAUNCH = """void f() {
  __shared__ float a[2][3],
    b; // <<<
  k<float, 3><<<1,
  2>>>(a, "<<<",
  b);
  g();
}
"""


def test_lines_stay_where_they_are() -> None:
    made = translate(LAUNCH).splitlines()
    assert len(made) == len(LAUNCH.splitlines()) and made[6].strip() == "g();"
    assert "kw::shared_array" in made[1] and "k<float, 3>(a, " in made[3]
