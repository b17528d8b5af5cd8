"""Programs under torch.compile: inductor's kernels timed, named back to the program, counted from their own code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from kernelworks.profile.calls import Call, Place
from kernelworks.profile.cost import Work
from kernelworks.profile.cost.calls import work
from kernelworks.profile.inductor.compiled_graphs import KERNEL
from kernelworks.profile.inductor.dynamo import Step, TracedGraphs
from kernelworks.profile.inductor.provenance import origins
from kernelworks.profile.inductor_code import Kernel, graph_of, parse_module
from kernelworks.profile.timeline import profile_run, survey_run

ROWS, WIDTH = 64, 128


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(self.norm(x))
        return nn.functional.gelu(h) + x


class Net(nn.Module):
    """Of one block: g++ takes seconds for each kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture(scope="module")
def training() -> Iterator[Callable[[], Any]]:
    """A step under torch.compile, which has compiled all it needs."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Net()
    compiled, x = torch.compile(model), torch.randn(ROWS, WIDTH)

    def step() -> None:
        model.zero_grad()
        compiled(x).sum().backward()

    step()
    step()
    yield step
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def calls(training: Callable[[], Any]) -> list[Call]:
    before = dict(torch._dynamo.utils.counters["stats"])
    found = survey_run(training, float("inf"))[0].calls
    assert dict(torch._dynamo.utils.counters["stats"]) == before, "looking made it compile anew"
    return found


def _kernels(calls: list[Call], word: str) -> list[Call]:
    return [call for call in calls if call.kernel is not None and word in call.kernel.fused_name]


def test_kernels_are_named_back_to_operators_modules_and_lines(calls: list[Call]) -> None:
    first = Block.forward.__code__.co_firstlineno
    norm = _kernels(calls, "native_layer_norm")[0]
    assert norm.display_name.startswith("inductor: ") and "native_layer_norm" in norm.display_name
    assert norm.place.source == f"test_compiled.py:{first + 1}"
    assert norm.place.module == "Net.layers.*"
    gelu = [call for call in _kernels(calls, "gelu") if not call.backward][-1]
    assert gelu.place.source == f"test_compiled.py:{first + 2}"
    products = [call for call in calls if call.name == "aten::addmm"]
    assert [call.place.module for call in products] == ["Net.layers.*.up"]
    assert any(call.backward and call.kernel is not None for call in calls)


def test_the_same_calls_are_seen_in_a_timing_pass_and_the_program_is_as_it_was(
    training: Callable[[], Any], calls: list[Call]
) -> None:
    trace = profile_run(training)
    assert [call.name for call in trace.calls if call.graph] == [call.name for call in calls if call.graph]
    modules = sys.modules["torch._inductor.codecache"].PyCodeCache.modules  # type: ignore[attr-defined]
    assert not any(
        "kernelworks" in str(getattr(kernel, "__module__", "")) for m in modules for kernel in vars(m).values()
    )


def test_every_kernel_has_the_work_of_its_code(calls: list[Call]) -> None:
    """Forward: a norm reads x and two vectors, a gelu with its sum reads two matrices and writes one, erf each."""
    matrix = ROWS * WIDTH * 4
    assert all(work(call) is not None for call in calls if call.name.startswith(KERNEL))
    norm = work(_kernels(calls, "native_layer_norm")[0])
    assert norm is not None and matrix <= norm.read <= 1.1 * matrix and matrix <= norm.written <= 1.1 * matrix
    gelu = work([call for call in _kernels(calls, "gelu") if not call.backward][-1])
    assert gelu is not None
    assert gelu.transcendental == ROWS * WIDTH
    assert gelu.function == "erf"
    assert gelu.read >= 2 * matrix and gelu.written == matrix


# ---------------------------------------------------------------- code

DYNAMIC = Kernel(
    "cpp_fused_exp_0",
    """
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C"  void  kernel(const float* in_ptr0,
                       const int64_t* in_ptr1,
                       at::BFloat16* out_ptr0,
                       const int64_t ks0)
{
    #pragma omp for
    for(int64_t x0=static_cast<int64_t>(0L); x0<static_cast<int64_t>(ks0); x0+=static_cast<int64_t>(1L))
    {
        for(int64_t x1=static_cast<int64_t>(0L); x1<static_cast<int64_t>(33L); x1+=static_cast<int64_t>(16L))
        {
            if(C10_LIKELY(x1 >= static_cast<int64_t>(0) && x1 < static_cast<int64_t>(32L)))
            {
                auto tmp0 = in_ptr1[static_cast<int64_t>(x0)];
                auto tmp1 = at::vec::Vectorized<float>::loadu(in_ptr0 + static_cast<int64_t>(x1 + 33L*tmp0), 16);
                auto tmp2 = tmp1.exp();
                auto tmp3 = tmp2 * tmp1;
                tmp3.store(out_ptr0 + static_cast<int64_t>(x1 + 33L*x0));
            }
            if(C10_UNLIKELY(x1 >= static_cast<int64_t>(32L) && x1 < static_cast<int64_t>(33L)))
            {
                auto tmp1 = in_ptr0[static_cast<int64_t>(x1 + 33L*tmp0)];
                auto tmp2 = std::exp(tmp1);
            }
        }
    }
}
""",
)
TRITON = Kernel(
    "triton_poi_fused_add_tanh_0",
    """
@triton.jit
def triton_poi_fused_add_tanh_0(in_ptr0, in_ptr1, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 4096
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    x2 = xindex
    x0 = (xindex % 64)
    tmp0 = tl.load(in_ptr0 + (x2), None)
    tmp1 = tl.load(in_ptr1 + (x0), None, eviction_policy='evict_last')
    tmp2 = tmp0 + tmp1
    tmp3 = libdevice.tanh(tmp2)
    tl.store(out_ptr0 + (x2), tmp3, None)
""",
)


def _call(kernel: Kernel, *given: tuple[list[int], torch.dtype] | int) -> Call:
    shapes = [[] if isinstance(item, int) else item[0] for item in given]
    strides: list[Any] = [torch.empty(shape, device="meta").stride() if shape else [] for shape in shapes]
    dtypes = [None if isinstance(item, int) else item[1] for item in given]
    scalars = [item if isinstance(item, int) else None for item in given]
    return Call(
        KERNEL + kernel.name, 0, 1, shapes=shapes, strides=strides, dtypes=dtypes, scalars=scalars, kernel=kernel
    )


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        # 5 of 1000 rows of 33 are looked up; what is left over after whole vectors is counted with them
        (
            _call(DYNAMIC, ([1000, 33], torch.float32), ([5], torch.int64), ([5, 33], torch.bfloat16), 5),
            Work(165.0, 165.0, 5 * 33 * 4 + 5 * 8, 5 * 33 * 2, "float32", "exp"),
        ),
        # a vector that each row reads is read once
        (
            _call(TRITON, ([64, 64], torch.bfloat16), ([64], torch.bfloat16), ([64, 64], torch.bfloat16), 4096),
            Work(4096.0, 4096.0, 4096 * 2 + 64 * 2, 4096 * 2, "float32", "tanh"),
        ),
    ],
    ids=["cpp", "triton"],
)
def test_work_is_counted_from_the_code(call: Call, expected: Work) -> None:
    assert work(call) == expected


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("cpp_fused_add_native_layer_norm_view_1", "inductor: add+native_layer_norm"),
        ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_2", "inductor: add+mean+mul+pow+..."),
        ("triton_tem_fused_addmm_gelu_3", "inductor: addmm+gelu"),
        ("triton_per_fused__softmax_0", "inductor: _softmax"),
        ("cpp_fused_0", "cpp_fused_0"),
    ],
)
def test_the_name_of_a_kernel_says_its_operators(name: str, shown: str) -> None:
    assert Kernel(name, "").display_name == shown


# ---------------------------------------------------------------- places

MODULE = """
triton_poi_fused_relu_0 = async_compile.triton('triton_poi_fused_relu_0', 'def triton', device_str='cuda')

def call(args):
    arg0_1, arg1_1, arg2_1 = args
    with torch.cuda._DeviceGuard(0):
        buf0 = empty_strided_cuda((8, 8), (8, 1), torch.float32)
        # Topologically Sorted Source Nodes: [y], Original ATen: [aten.mm]
        extern_kernels.mm(arg0_1, reinterpret_tensor(arg2_1, (8, 8), (1, 8), 0), out=buf0)
        buf1 = buf0; del buf0  # reuse
        triton_poi_fused_relu_0.run(buf1, 64, stream=stream0)
        buf2 = empty_strided_cuda((8, 8), (8, 1), torch.float32)
        extern_kernels.mm(buf1, arg1_1, out=buf2)
    return (buf2, )
"""
GRAPH = """
class <lambda>(torch.nn.Module):
    def forward(self, arg0_1: "f32[8, 8][8, 1]", arg1_1: "f32[8, 8][8, 1]", arg2_1: "f32[8, 8][8, 1]"):
        # File: /home/me/net.py:3 in forward, code: y = self.a(x)
        permute: "f32[8, 8][1, 8]cuda:0" = torch.ops.aten.permute.default(arg2_1, [1, 0])
        mm: "f32[8, 8][8, 1]cuda:0" = torch.ops.aten.mm.default(arg0_1, permute);  arg0_1 = permute = None

        # File: /home/me/net.py:4 in forward, code: z = torch.relu(y)
        relu: "f32[8, 8][8, 1]cuda:0" = torch.ops.aten.relu.default(mm);  mm = None

        # File: /home/me/net.py:5 in forward, code: return z @ w
        mm_1: "f32[8, 8][8, 1]cuda:0" = torch.ops.aten.mm.default(relu, arg1_1);  relu = arg1_1 = None
        return (mm_1,)
"""


def test_calls_are_placed_by_the_data_that_they_read() -> None:
    steps = {"y": Step("linear", Place("Net.a", "net.py:3", 0, "Net.a"), ("z",))}
    found = origins(
        parse_module(MODULE), graph_of(GRAPH), TracedGraphs((steps,), {"net.py:4": ("Net",), "net.py:5": ("Net",)})
    )
    assert [(place.module, place.source) for place in found] == [
        ("Net.a", "net.py:3"),
        ("Net", "net.py:4"),
        ("Net", "net.py:5"),
    ]


def test_code_that_cannot_be_read_gives_no_names_and_no_error() -> None:
    assert parse_module("def call(:").invocations == ()
    assert graph_of("nothing of the kind") == {}
