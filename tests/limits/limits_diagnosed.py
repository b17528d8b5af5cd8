"""What a diagnosis does not see or predict, and what Hopper's attention does not take."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from limit import Limit, x

import kernelworks as kw
from kernelworks.contract import Request, TensorSpec

TRACE = Path(__file__).resolve().parents[1] / "diagnose" / "traces" / "large.json.gz"


def profiled() -> Any:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        return kw.diagnose(x)


def async_in_a_loop() -> Any:
    async def program() -> None: ...

    async def loop() -> None:
        from kernelworks.profile.program import from_function

        from_function(program).run()

    asyncio.run(loop())


def target(text: str, **how: Any) -> Callable[[], Any]:
    from kernelworks.profile.program import from_target

    return lambda: from_target(text, **how)


def diagnosed(program: Callable[[], Any], others: float = 0.0, budget_s: float = 0.1) -> Any:
    """The record of a program on a machine of round figures, of whose cores others use a share."""
    from machines import record

    from kernelworks.measure.clock import noise

    def times() -> noise.CpuTimes:
        now = time.monotonic()
        return noise.CpuTimes(now, 2 * others * now, 0.0, 2, {1: others * now})

    with mock.patch.object(noise, "cpu_times", times):
        return kw.diagnose(program, peaks=record(), budget_s=budget_s)


def endless_fix() -> str:
    from kernelworks.diagnose.sites.modules import Roots, SwappedModules
    from kernelworks.profile.budget import BudgetExceeded

    modules = tuple(torch.nn.GELU() for _ in range(3))
    try:
        with SwappedModules(Roots(modules, (), fresh=False), most_s=1e-9):
            return ""
    except BudgetExceeded as over:
        return f"the budget was too small: {over}"


def asleep() -> str:
    # Enough to look between ops on a machine that is busy.
    return str(diagnosed(lambda: time.sleep(0.02), budget_s=2.0).sentence)


def unmodelled() -> tuple[str, str]:
    """Ops of a sparse, a nested and a quantized tensor as they are listed, and as they are expected. Nor has a graph
    that torch.compile made a model if none of its kernels shows."""
    from kernelworks.profile.cost.calls import work
    from kernelworks.profile.trace import GRAPH_ANNOTATION, Call, Place

    sparse, nested = x().to_sparse(), torch.nested.nested_tensor([x(), x(2, 16)])
    quantized = torch.quantize_per_tensor(x(), 0.1, 0, torch.qint8)
    listed = diagnosed(
        lambda: (sparse.sin(), sparse.to_sparse_csr() @ x(16, 2), nested.sin(), quantized.relu())
    ).unmodelled
    graph = Call(
        f"{GRAPH_ANNOTATION} a graph", 0, 1, shapes=[], strides=[], dtypes=[], scalars=[], place=Place("", "", 0, "")
    )
    assert work(graph) is None
    want = ("matmul: 1 call,", "relu: 1 call,", "sin: 2 calls")
    return ", ".join(line for line in want if any(its.startswith(line) for its in listed)), ", ".join(want)


def on_a_gpu() -> str:
    """What is said of a kernel of ours in a recorded program of an H200."""
    from eligible import only
    from machines import gpu_record

    from kernelworks.diagnose.account.on_gpu import Gpu
    from kernelworks.diagnose.record import make_diagnosis
    from kernelworks.profile.on_gpu import fit_timeline
    from kernelworks.profile.overhead import Floors

    with mock.patch.object(sys, "path", [*sys.path, str(TRACE.parents[1])]):
        from recorded import load

    runs, facts = load(TRACE)
    survey = runs["survey"]
    floors = Floors(event=0.5e-6, gap=0.5e-6, span=0.4e-6, fault=0.0, free=0.0)
    timed = fit_timeline(facts["wall"], runs["timed"].trace(), survey.trace(), floors, persistent=survey.persistent)
    with only("triton"):
        found = make_diagnosis("large", timed, Gpu(gpu_record(), floors))
    unknown = [hotspot for hotspot in found.hotspots if "was not benchmarked" in hotspot.action]
    assert unknown and not any(hotspot.high_s for hotspot in unknown)
    assert not any(hotspot.action.startswith("swap in") and not hotspot.high_s for hotspot in found.hotspots)
    return "; ".join(hotspot.action for hotspot in unknown)


PROGRAMS = [
    Limit("A budget is a finite number of seconds above 0.", lambda: kw.diagnose(x, budget_s=float("nan")), ValueError,
          "budget_s must be a finite number of seconds above 0"),
    Limit("An optimization that would take longer than the budget, beside the program's own runs, is not tried.",
          endless_fix, says="the budget was too small: swapping took longer than the budget"),
    Limit("torch's profiler cannot run beside a diagnosis.", profiled, RuntimeError, "torch's profiler is running"),
    Limit("An async program is not diagnosed in a running event loop.", async_in_a_loop, RuntimeError,
          "an event loop is running"),
    Limit("A program on the command line is a Python file; a notebook is not.", target(f"{__file__[:-3]}.ipynb"),
          FileNotFoundError, "program must be a Python file"),
    Limit("A method needs an object: wrap it in a function.", target(f"{__file__}:Limit.method"), AttributeError,
          "must name a function of the file"),
    Limit("A function on the command line takes no arguments.", target(f"{__file__}:diagnosed"), TypeError,
          "must take no arguments"),
    Limit("On a busy machine nothing is predicted without `--rough`.", lambda: diagnosed(x, others=0.5).sentence,
          says="so times are as they were then"),
    Limit("Native code outside torch, waiting and other threads are measured; nothing else is known of them.",
          asleep, says="was not modelled, so nothing is"),
    Limit("Ops on sparse, nested and quantized tensors have no model, nor have graphs of `torch.compile` whose kernels "
          "do not show.", unmodelled),
    Limit("On a GPU only `--fix` predicts the gain of a kernel.", on_a_gpu,
          says="was not benchmarked"),
]  # fmt: skip


# ---------------------------------------------------------------- Hopper


def attention(pass_: str = "forward", dim: int = 128, queries: int = 64, row: int = 0, **changed: Any) -> Request:
    """Attention on a GPU as the dispatcher sees it; ``row`` is the stride from one query to the next."""
    dtype = changed.pop("dtype", torch.bfloat16)
    across = queries * (row or dim)
    q = TensorSpec((1, 2, queries, dim), dtype, (2 * across, across, row or dim, 1), "cuda")
    k = TensorSpec((1, 2, 64, dim), dtype, (128 * dim, 64 * dim, dim, 1), "cuda")
    named = {"q": q, "k": k, "v": k, "causal": None, "window": None, "scale": None, "mask": None}
    return Request("attention", pass_, named | changed)


def declined(**changed: Any) -> Callable[[], str]:
    """Why the forward does not take this."""
    from kernelworks.ops.attention.attention import sm90

    return lambda: str(sm90.guard(attention(**changed)))


def declined_by_both(**changed: Any) -> Callable[[], str]:
    """Why the forward does not take this; nor do the gradients."""
    from kernelworks.ops.attention.attention import sm90_backward

    def reasons() -> str:
        assert sm90_backward.guard(attention("backward", **changed)) is not None
        return declined(**changed)()

    return reasons


def declined_backward(**changed: Any) -> Callable[[], str]:
    """Why the gradients do not take this."""
    from kernelworks.ops.attention.attention import sm90_backward

    return lambda: str(sm90_backward.guard(attention("backward", **changed)))


def declined_on_a100() -> str:
    from kernelworks.machine.gpu_targets import GPU_TARGETS, compiled_for
    from kernelworks.ops.attention.attention import OP

    with compiled_for(GPU_TARGETS["sm_80"]):
        return str(OP.kernel("triton").guard(attention()))


def in_one_order() -> tuple[str, str]:
    from kernelworks.ops.attention.attention import sm90_backward, triton

    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        with mock.patch.object(triton, "backward", lambda *args: "Triton's"):
            return str(sm90_backward.backward(*[None] * 11)), "Triton's"
    finally:
        torch.use_deterministic_algorithms(before)


MASK = dataclasses.replace(attention().args["q"], dtype=torch.bool)
HOPPER = [
    Limit("Attention's kernels in CUDA C++ take heads of 64, 128 or 256; Triton's or torch's serve what they decline.",
          declined_by_both(dim=96), says="a head_dim of 64, 128 or 256"),
    Limit("Their gradients take heads of 64 or 128.", declined_backward(dim=256), says="a head_dim of 64 or 128"),
    Limit("They take bfloat16 and float16.", declined_by_both(dtype=torch.float32), says="takes bfloat16 and float16"),
    Limit("They take no mask.", declined_by_both(mask=MASK), says="takes no mask"),
    Limit("Neither takes a softcap.", declined_backward(softcap=50.0), says="takes no softcap"),
    Limit("Their forward takes a scale above 0.", declined(scale=-0.5), says="the scale must be positive"),
    Limit("Their forward takes more than 16 queries to a head of keys.", declined(queries=16),
          says="takes more than 16 queries to a head of keys"),
    Limit("Their forward takes strides of whole 16 bytes.", declined(row=132), says="strides must be multiples of 8"),
    Limit("Their gradients of queries may differ in the last bits from run to run; under "
          "`torch.use_deterministic_algorithms(True)` Triton's kernels make them.", in_one_order),
    Limit("On other GPUs attention's Triton kernel declines heads of 64 or 128 in 16 bits, which a launch for Hopper "
          "serves; torch's runs.", declined_on_a100, says="runs on compute capability 9.0 (Hopper)"),
]  # fmt: skip
