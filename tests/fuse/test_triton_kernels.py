"""Triton kernels of functions where there is no GPU: in Triton's interpreter against float64 and the CPU's kernels, and
compiled for sm_90."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import forked
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

import kernelworks as kw
from kernelworks.build.triton import compiling
from kernelworks.fuse.expression import ELEMENTS, Expression, Input, Node, Output
from kernelworks.fuse.gpu_kernel import geometry_of, triton_function
from kernelworks.fuse.making import trace_settled
from kernelworks.fuse.trace import trace_forward

# Kernels of the GPU's kind on CPU tensors. `pair(function, *args)` calls both kinds and says how ours was verified.
START = """
import dataclasses, numpy, torch, torch.nn.functional as F, warnings
import kernelworks as kw
from kernelworks.contract.philox import keep_mask
from kernelworks.dispatch import tuning_records
from kernelworks.fuse import back_ends, functions, gpu_kernel, making, race
from kernelworks.measure.clock.duel import Duel
from kernelworks.verify import triton_interpreter

triton_interpreter._round_as_a_gpu()
numpy.seterr(all="ignore")
race.duel = lambda *given: Duel(tuning_records.RaceResult(1.0, 2.0, (2.0, 2.0), 0.0), 6)  # an interpreter wins none
tuning_records.write = tuning_records.remember

def fused_by(end, function):
    fused = kw.fuse(function)
    def call(*args):
        making.back_end_of = lambda device: end()
        return fused(*args)
    call.explain = fused.explain
    return call

def pair(function, *args):
    ours, cpus = fused_by(back_ends.gpu_back_end, function), fused_by(back_ends.cpu_back_end, function)
    found, wanted = ours(*args), cpus(*args)
    said = ours.explain()
    assert "triton, verified on 6 inputs" in said and "unfused" not in said, said
    for a, b in zip(*((t if isinstance(t, (tuple, list)) else (t,)) for t in (found, wanted)), strict=True):
        assert a.dtype is b.dtype and a.shape == b.shape and a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=2e-5 if a.dtype is torch.float32 else 1e-2, atol=1e-5, equal_nan=True)
    return ours, found
"""

PROGRAMS = {
    "chain": """
def chain(x, bias, residual, scale):
    return F.gelu(x + bias) * scale + residual
pair(chain, torch.randn(6, 70), torch.randn(70), torch.randn(6, 70), 0.7)
pair(chain, torch.randn(70, 6).t(), torch.randn(140)[::2], torch.randn(6, 70), 0.7)
pair(chain, torch.randn(6, 70).bfloat16(), torch.randn(6, 1).bfloat16(), torch.randn(1, 70).bfloat16(), 0.7)
pair(chain, torch.randn(3, 5, 33), torch.randn(5, 1), torch.randn(3, 1, 33), -2.0)
pair(chain, torch.randn(2, 5, 4, 3).to(memory_format=torch.channels_last), torch.randn(1), torch.randn(()), 2)
""",
    "rows": """
def scores(x, weight):
    shares = F.softmax(x, -1)
    return shares * weight, shares.amax(-1), x.amin(-1, keepdim=True), x.mean(-1)
def norm(x, weight, bias):
    return F.layer_norm(x, (x.shape[-1],), weight, bias, 1e-5)
pair(scores, torch.randn(6, 70), torch.randn(70))
pair(scores, torch.randn(70, 6).t(), torch.randn(70))
pair(norm, torch.randn(3, 2, 131).half(), torch.randn(131).half(), torch.randn(131).half())
gpu_kernel.LONGEST_ROW = 32
pair(scores, torch.randn(2, 3, 201), torch.randn(201))
pair(norm, torch.randn(3, 201), torch.randn(201), torch.randn(201))
""",
    "functions": """
def every(x, y, b):
    half = x.abs() + 0.5
    return [
        torch.log(half), torch.log1p(half), torch.expm1(x), torch.exp(y), torch.erf(x), x.sqrt(), x.rsqrt(),
        torch.where(b, x, y), (x > y) & b, x.to(torch.bfloat16), x.to(torch.float16).float() * y, F.mish(x), F.elu(x),
        x / y, torch.maximum(x, y), F.gelu(x, approximate="tanh"), F.softplus(x), torch.tanh(x), F.silu(y), ~b,
    ]
def steps(x):
    return x.round(), x.floor(), x.ceil(), x.trunc()
pair(every, torch.randn(3, 67), torch.randn(3, 67), torch.rand(3, 67) > 0.5)
_, found = pair(steps, torch.tensor([0.5, 1.5, 2.5, -0.5, -0.2, 4194303.5, 8388609.0, -2.5]))
assert found[0].tolist() == [0.0, 2.0, 2.0, -0.0, -0.0, 4194304.0, 8388609.0, -2.0]
assert found[0].signbit()[3:5].all()
""",
    "dropout": """
x = torch.rand(7, 131) + 1.0
for seed, offset, p in ((0, 0, 0.5), (2**62 + 1, 2**40, 0.1), (-3, 5, 0.9), (1, 2, 0.0), (1, 2, 1.0)):
    _, found = pair(lambda x, p, seed, offset: kw.dropout(x, p, seed, offset), x, p, seed, offset)
    assert torch.equal(found != 0, keep_mask(x.shape, p, seed, offset))
def block(x, bias, residual, p, seed):
    return kw.dropout(F.silu(x + bias), p, seed) + residual
pair(block, x.t().contiguous().t(), torch.randn(131), torch.randn(7, 131), 0.3, 11)
""",
    "gradients": """
def chain(x, bias, residual, p, seed):
    return kw.dropout(F.gelu(x + bias), p, seed) * residual
def norm(x, weight, bias):
    return F.layer_norm(x, (x.shape[-1],), weight, bias, 1e-5)
for function, args in (
    (chain, (torch.randn(9, 67), torch.randn(67), torch.randn(9, 1), 0.3, 5)),
    (norm, (torch.randn(9, 67), torch.randn(67), torch.randn(67))),
):
    made = []
    for end in (back_ends.gpu_back_end, back_ends.cpu_back_end):
        given = [a.clone().requires_grad_() if isinstance(a, torch.Tensor) else a for a in args]
        fused = fused_by(end, function)
        leaves = [a for a in given if isinstance(a, torch.Tensor)]
        made.append(torch.autograd.grad(fused(*given).square().sum(), leaves))
        assert "itself" not in fused.explain() and "misses" not in fused.explain(), fused.explain()
    assert "gradients" in fused.explain()
    for a, b in zip(*made, strict=True):
        assert a.shape == b.shape and a.dtype is b.dtype
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
""",
    "a wrong one": """
wrong = dataclasses.replace(functions.ELEMENT_FUNCTIONS["sub"], triton="{0} - {1} * 1.0001")
functions.ELEMENT_FUNCTIONS["sub"] = wrong
making._checker = lambda: "another"
ours = fused_by(back_ends.gpu_back_end, lambda x, y: x - y)
x, y = torch.randn(3, 5), torch.randn(3, 5)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert torch.equal(ours(x, y), x - y)
assert any("misses float64" in str(w.message) for w in caught)
assert "unfused" in ours.explain()
""",
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_interpreted_kernels_are_those_of_the_cpu(program: str) -> None:
    done = forked.python(code=START + PROGRAMS[program], TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def chain(x: Tensor, bias: Tensor, residual: Tensor, scale: float) -> Tensor:
    return F.gelu(x + bias) * scale + residual


def scores(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    shares = F.softmax(x, -1)
    return shares * weight, shares.amax(-1)


def dropped_norm(x: Tensor, weight: Tensor, p: float, seed: int) -> Tensor:
    return F.layer_norm(kw.dropout(x, p, seed) + x, (x.shape[-1],), weight, None, 1e-5)


def on_meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


HALF = torch.bfloat16
CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "chain": (chain, (on_meta(4096, 4096), on_meta(4096), on_meta(4096, 4096), 0.5)),
    "chain, transposed": (chain, (on_meta(4096, 4096).t(), on_meta(4096), on_meta(4096, 4096), 0.5)),
    "softmax": (scores, (on_meta(600, 4096), on_meta(4096))),
    "softmax of long rows": (scores, (on_meta(600, 40960), on_meta(40960))),
    "norm of what is dropped": (dropped_norm, (on_meta(4096, 4096, dtype=HALF), on_meta(4096, dtype=HALF), 0.1, 5)),
}


@pytest.mark.parametrize("call", CALLS)
def test_kernels_of_functions_compile_for_sm_90(call: str) -> None:
    function, args = CALLS[call]
    leaves, tree = pytree.tree_flatten((args, {}))
    _, lowered, _ = trace_settled(lambda g, s: trace_forward(function, g, tree, s), leaves, frozenset(), sums=False)
    e = lowered.expression
    outputs = [on_meta(*o.shape, dtype=o.dtype) for o in e.outputs]
    inputs = [view.of(leaves[view.place]) for view in lowered.arguments]
    with compiling() as compiled:
        triton_function(e)(*outputs, *inputs, *[0.5] * e.numbers, *[5, 6, 7] * e.randoms)
    (made,) = compiled
    taken = made.resources()
    assert taken["local"] == taken["stack"] == 0, taken


def test_dimensions_are_merged_where_operands_go_on() -> None:
    def found(*operands: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[int, int, tuple[str, ...]]:
        e = Expression(
            operands[0][0], [Input(torch.float32, shape) for shape, _ in operands[1:]], [Node("input", (0,))]
        )
        e.outputs = [Output(0, torch.float32, operands[0][0], ELEMENTS)]
        made = geometry_of(e, [shape for shape, _ in operands], [strides for _, strides in operands])
        return made.rows, made.columns, made.layout.steps

    whole = (2, 3, 4), (12, 4, 1)
    assert found(whole, whole) == (1, 24, ("1", "1"))
    assert found(whole, whole, ((4,), (1,))) == (6, 4, ("s1", "s1", "01"))
    assert found(whole, ((2, 1, 1), (1, 1, 1))) == (2, 12, ("s1", "s0"))
    assert found(whole, ((3, 1), (1, 1))) == (6, 4, ("ss1", "0s0"))
    assert found(whole, ((2, 3, 4), (1, 2, 6))) == (6, 4, ("sss", "sss"))
    assert found(((2, 3, 4), (1, 2, 6)), ((2, 3, 4), (1, 2, 6))) == (1, 24, ("1", "1"))
    assert found(((2, 3), (1, 2)), ((2, 3), (1, 2)), ((), ())) == (1, 6, ("1", "1", "0"))
