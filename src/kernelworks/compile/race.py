"""The race of a region: inductor's version of it, and one with a kernel of ours, both compiled and timed in turn.

The cache keeps the result. Its key is what the region computes, the kind of machine, threads, versions, inductor's
settings and the sources of the kernel, so that the next compile of the same region, in any process, measures nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from kernelworks.compile.calls import OpCall, TensorView, value_of
from kernelworks.compile.region import Region, with_copy
from kernelworks.compile.replace import replace_call
from kernelworks.compile.split_passes import backward_args, kernels_of
from kernelworks.contract.complex_numbers import is_inexact
from kernelworks.dispatch.mutation import as_tuple
from kernelworks.dispatch.tuning_records import MARGIN, torch_version
from kernelworks.machine import environment, place_of
from kernelworks.measure.clock.duel import OverTime, clock, duel
from kernelworks.records.json_text import format_lines, read_json

__all__ = [
    "RegionRaceResult",
    "backward_speedup",
    "forward_speedup",
    "inputs_of",
    "isolate_compilation",
    "keep",
    "pass_speedups",
    "path_of",
    "race_graph",
    "race_region",
    "read_race_result",
    "recall_race",
]

FORMAT = 1


@dataclass(frozen=True)
class RegionRaceResult:
    """One race of a region. ``halves`` is inductor's time over the time with the kernel, in both halves of the race."""

    inductor_us: float
    kernel_us: float
    halves: tuple[float, float]
    spread: float
    noisy: bool

    @property
    def ratio(self) -> float:
        return min(self.halves)

    @property
    def beats_inductor(self) -> bool:
        """Whether the speedup is significant in both halves."""
        return self.ratio >= (1 + 2 * self.spread if self.noisy else MARGIN)

    def __str__(self) -> str:
        said = f"{self.kernel_us:.4g} us against inductor's {self.inductor_us:.4g} in its region"
        return said + (", measurement too noisy" if self.noisy else "")


# ---------------------------------------------------------------- what is kept


def path_of(name: str, device: str, parts: Sequence[object]) -> Path:
    """Where the result of a race is kept that depends on ``parts``, and on the machine, its threads and torch."""
    threads = torch.get_num_threads() if device == "cpu" else 0
    key = hashlib.sha256(repr((FORMAT, torch_version(), threads, *parts)).encode()).hexdigest()[:24]
    return environment.cache_dir("compile") / place_of(device) / f"{name}.{key}.json"


def read_race_result(path: Path) -> RegionRaceResult | None:
    """The result that is kept of a race; None if there is none, or none that can be read."""
    try:
        record = read_json(path)
        numbers = [float(record[n]) for n in ("inductor_us", "kernel_us", "spread")]
        halves = (float(record["halves"][0]), float(record["halves"][1]))
        return RegionRaceResult(numbers[0], numbers[1], halves, numbers[2], bool(record["noisy"]))
    except (OSError, ValueError, KeyError, TypeError, IndexError, OverflowError):
        return None


def keep(path: Path, made: RegionRaceResult, lines: Sequence[str]) -> None:
    """Keeps the result of a race, with what it was of in ``lines``. A noisy one is not kept: it is measured again."""
    if made.noisy:
        return
    record = {"format": FORMAT, **vars(made), "halves": list(made.halves), "of": list(lines)}
    with contextlib.suppress(OSError):  # then it is benchmarked again next time
        environment.write_whole(path, format_lines(record) + "\n", prefix=f".{path.name}-")


def _path(op_call: OpCall, region: Region, kernel: str, patches: Mapping[str, Any]) -> Path:
    sources = _sources(op_call, kernel)
    place = region.place_of(op_call.node)
    parts = (region.description, place, op_call.op.name, kernel, sources, sorted(map(repr, patches.items())))
    return path_of(op_call.op.name, op_call.args[0].device.type, parts)


def _sources(op_call: OpCall, kernel: str) -> list[str]:
    return [r.hash() for name in kernels_of(kernel) for r in (op_call.op.kernel(name),) if r.source is not None]


def recall_race(op_call: OpCall, region: Region, kernel: str, patches: Mapping[str, Any]) -> RegionRaceResult | None:
    """The earlier result of a race of this region, in this process or another; None if there was none."""
    return read_race_result(_path(op_call, region, kernel, patches))


# ---------------------------------------------------------------- the race


def race_region(
    op_call: OpCall, region: Region, kernel: str, inputs: Sequence[Tensor], patches: Mapping[str, Any], until: float
) -> RegionRaceResult:
    """Benchmarks the region with the call made by ``kernel`` against inductor's version of it. ``inputs`` are the
    region's. Raises OverTime if there was no time for it, and whatever compiling raises."""
    plain, _ = with_copy(region)
    changed, twins = with_copy(region)
    replace_call(op_call, kernel, twins.__getitem__)
    changed.recompile()
    device = op_call.args[0].device
    with isolate_compilation(device), region.state.activate():
        theirs = _compile_variant(plain, inputs, region, patches)
        if time.perf_counter() > until:
            raise OverTime("the time budget was used up")
        ours = _compile_variant(changed, inputs, region, patches)
        made = _duel(ours, theirs, device, until)
    keep(_path(op_call, region, kernel, patches), made, region.description.splitlines())
    return made


def race_graph(ours: Callable[..., Any], theirs: Callable[..., Any], inputs: Sequence[Any]) -> RegionRaceResult:
    """Benchmarks two ways to run a graph that records no gradients; what it writes to is written to."""
    device = next(t.device for t in inputs if isinstance(t, Tensor))
    with isolate_compilation(device), torch.no_grad():
        return _duel(lambda: ours(*inputs), lambda: theirs(*inputs), device, math.inf)


def _duel(
    ours: Callable[[], object], theirs: Callable[[], object], device: torch.device, until: float
) -> RegionRaceResult:
    wait = (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else None
    alike = wait is not None or torch.get_num_threads() == 1
    left_s = max(until - time.perf_counter(), 2.0)
    duel_result = duel(ours, theirs, wait, alike=alike, until=clock() + left_s).result
    return RegionRaceResult(
        duel_result.torch_us, duel_result.ours_us, duel_result.halves, duel_result.spread, duel_result.is_noisy
    )


@contextlib.contextmanager
def isolate_compilation(device: torch.device) -> Iterator[None]:
    """Apart from the compilation that goes on: its tracing, its metrics, its random numbers.

    Backward passes run in this thread meanwhile. A GPU's otherwise run in one of autograd's own; the first of a region
    is compiled there, and would wait for Dynamo's lock on compilations, which this thread holds: for ever.
    """
    from torch._dynamo.utils import get_metrics_context

    devices = [device.index or 0] if device.type == "cuda" else []
    metrics: Any = get_metrics_context()
    before = dict(vars(metrics))
    vars(metrics).update(_level=0, _metrics={})  # a backward that compiles here is no part of the program's
    try:
        apart = torch._guards.tracing(None), torch.random.fork_rng(devices=devices)
        with apart[0], apart[1], torch.autograd.set_multithreading_enabled(False):
            yield
    finally:
        vars(metrics).update(before)


def _compile_variant(
    module: fx.GraphModule, inputs: Sequence[Tensor], region: Region, patches: Mapping[str, Any]
) -> Callable[[], object]:
    """The region compiled by inductor, as a call; with its gradients if the program asks for them."""
    from torch._inductor.compile_fx import compile_fx

    run: Any = compile_fx(module, list(inputs), config_patches=dict(patches))
    leaves = [t for t in inputs if t.requires_grad]
    if not (region.state.grad and leaves):
        return lambda: run(*inputs)
    ends = [t for t in run(*inputs) if t.requires_grad]
    flows = [torch.ones_like(t) for t in ends]

    def trained() -> object:
        ends = [t for t in run(*inputs) if t.requires_grad]
        return torch.autograd.grad(ends, leaves, flows, allow_unused=True)

    return trained if flows else lambda: run(*inputs)


def forward_speedup(op_call: OpCall, kernel: str) -> float:
    """The kernel's speedup over torch's function in a forward by itself: a look of some milliseconds that spares
    compiling a region without hope."""
    op, args = op_call.op, _drawn(op_call)
    with torch.no_grad(), torch._guards.tracing(None):
        ours, theirs = (lambda: op.run("forward", args, None, kernel)), (lambda: op.native(*args))
        return duel(ours, theirs, _waiting(op_call)).result.ratio


def backward_speedup(op_call: OpCall, kernel: str) -> float:
    """The same of the gradients."""
    op, args = op_call.op, _drawn(op_call)
    names = op.passes["forward"].names
    with torch._guards.tracing(None):
        with torch.enable_grad():
            held = [a.requires_grad_() if n in op_call.wanted else a for n, a in zip(names, args, strict=True)]
            made = as_tuple(op.native(*held))[0]
        leaves, flow = [a for n, a in zip(names, held, strict=True) if n in op_call.wanted], torch.ones_like(made)
        flat = tuple(a.detach() if isinstance(a, Tensor) else a for a in args)
        given = backward_args(op, flat, (made.detach(),), flow, op_call.wanted)
        ours = lambda: op.run("backward", given, None, kernel)  # noqa: E731
        theirs = lambda: torch.autograd.grad(made, leaves, flow, retain_graph=True)  # noqa: E731
        return duel(ours, theirs, _waiting(op_call)).result.ratio


def pass_speedups(op_call: OpCall, kernels: tuple[str, str], words: str) -> tuple[float, float]:
    """The speedups of two kernels alone over torch's function: in the forward, and in the gradients. ``words`` say what
    the call is given; the result is kept."""
    device = op_call.args[0].device.type
    path = path_of(op_call.op.name, device, (words, "alone", *kernels, _sources(op_call, "+".join(kernels))))
    before = read_race_result(path)
    if before is not None:
        return before.halves
    made = forward_speedup(op_call, kernels[0]), backward_speedup(op_call, kernels[1])
    keep(path, RegionRaceResult(0.0, 0.0, made, 0.0, noisy=False), [words])
    return made


def _drawn(op_call: OpCall) -> tuple[Any, ...]:
    generator = torch.Generator(op_call.args[0].device).manual_seed(0)
    return tuple(_like(a, None, generator).detach() if isinstance(a, Tensor) else a for a in op_call.args)


def _waiting(op_call: OpCall) -> Callable[[], None] | None:
    device = op_call.args[0].device
    return (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else None


def inputs_of(op_call: OpCall, region: Region, given: Mapping[fx.Node, Any]) -> list[Tensor]:
    """Tensors that look as the region's inputs do: the program's own where it hands them in, drawn ones elsewhere, and
    masks that hide nothing."""
    generator = torch.Generator(op_call.args[0].device).manual_seed(0)
    clear = _clear(op_call)
    drawn = [_like(value_of(node), given.get(node), generator) for node in region.inputs]
    return [
        torch.full_like(t, clear[node]) if node in clear and given.get(node) is None else t
        for node, t in zip(region.inputs, drawn, strict=True)
    ]


def _clear(op_call: OpCall) -> dict[fx.Node, float]:
    """What the tensors hold of which the op's masks are made, if those hide nothing."""
    held: dict[fx.Node, float] = {}
    waiting = [source for source in op_call.sources if isinstance(source, TensorView)]
    while waiting:
        view = waiting.pop()
        waiting += [a for _, args in view.steps for a in args if isinstance(a, TensorView)]
        names = [step for step, _ in view.steps]
        if value_of(view.node).dtype is torch.bool:
            held[view.node] = float("logical_not" not in names)
        elif "eq" in names:
            held[view.node] = 0.0
    return held


def _like(value: Tensor, own: Any, generator: torch.Generator) -> Tensor:
    if isinstance(own, Tensor) and not hasattr(own, "fake_mode"):
        return own.detach().requires_grad_(value.requires_grad)
    extent = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True)) if value.numel() else 0
    if is_inexact(value.dtype):
        kind = torch.complex64 if value.dtype.is_complex else torch.float32
        flat = torch.randn(extent, dtype=kind, generator=generator, device=generator.device).to(value.dtype)
    else:  # a mask that hides nothing; else the first of any table
        flat = torch.full((extent,), value.dtype is torch.bool, dtype=value.dtype)
    made = flat.to(value.device).as_strided(value.shape, value.stride())
    return made.requires_grad_(value.requires_grad)
