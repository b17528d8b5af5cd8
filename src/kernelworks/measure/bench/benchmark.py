"""Bench an op on the CPU or a GPU: for every case the gate first, then the race, then the bound beside it."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from kernelworks import ops
from kernelworks.build import background
from kernelworks.contract import UNIT_ROUNDOFF, Case, Kernel, Request
from kernelworks.contract.complex_numbers import is_inexact, number_kind
from kernelworks.contract.results import Equations
from kernelworks.dispatch.choose import choose, eligible_ways
from kernelworks.dispatch.mutation import own_arguments, results_of
from kernelworks.dispatch.op import OPS, Op
from kernelworks.measure import peaks
from kernelworks.measure.bench import baselines as table
from kernelworks.measure.clock.noise import Noise, Quiet
from kernelworks.measure.clock.page_faults import without_page_faults
from kernelworks.measure.clock.race import Race, TimeStats, race
from kernelworks.measure.clock.race_on_gpu import COPY, copy_of, host_us, race_on_gpu
from kernelworks.measure.clock.turns import measuring_alone
from kernelworks.measure.roofline import bound as roofline
from kernelworks.measure.roofline.forecast import limit
from kernelworks.measure.roofline.kernel_time import count_values
from kernelworks.ops.baselines import Maker
from kernelworks.records import BenchResult, GpuPeaks, Peaks, Variant
from kernelworks.records.base import Records
from kernelworks.verify.compare import sort_as_promised
from kernelworks.verify.parity import judge
from kernelworks.verify.reference import Reference, copy_tensors, flat_outputs, output_reference

__all__ = ["OURS", "SETS", "bench", "check_names"]

OURS = "kernelworks"  # This variant is the public function, whatever kernel the dispatcher takes.
SETS = 3  # So many sets of inputs rotate.
WIN = 1.10  # From this speedup over the best baseline on, the two halves of a race must agree.
DISAGREE = 0.15
SAME_OP = 64  # A baseline that is more unit roundoffs off (normwise) computes something else.

Progress = Callable[..., None]
Quiets = Callable[[], Quiet]


@dataclass
class _Entrant:
    """One variant: a call for each input set, and what its outputs were found to be.

    ``held`` says that the contract's bound holds for it: for kernels of ours, not for torch's kernels, whoever calls
    them; ``inner`` which of the contract's bounds (see ``Kernel``).
    """

    name: str
    calls: list[Callable[[], Any]]
    ours: bool
    held: bool
    inner: str = "float32"
    fresh: Callable[[int], Any] | None = None  # the results of a call on arguments that no call has written to
    worst: float = 0.0  # error as a share of the bound
    wrong: str = ""

    def __call__(self, index: int) -> object:
        return self.calls[index]()


@dataclass
class _Bench:
    """One case in one dtype: its inputs, what is right on them, and who runs."""

    op: Op
    case: Case
    dtype: torch.dtype
    references: list[Reference]
    device: str = "cpu"
    entrants: list[_Entrant] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    others: dict[tuple[int, str], Reference] = field(default_factory=dict)

    def reference_for(self, index: int, inner: str) -> Reference:
        """The reference of one input set with the bounds for kernels that keep ``inner`` between two products."""
        if inner == "float32":
            return self.references[index]
        if (index, inner) not in self.others:
            args = self.references[index].args
            with torch.device(self.device):
                self.others[index, inner] = output_reference(self.op, self.case, self.dtype, args, inner=inner)
        return self.others[index, inner]


def _inputs(op: Op, case: Case, dtype: torch.dtype, device: str = "cpu") -> list[Reference]:
    """The input sets with their float64 outputs and bounds. On a GPU one set does: its cache is emptied every time."""
    references = []
    with torch.device(device):
        for seed in range(SETS if device == "cpu" else 1):
            args = case.make(torch.Generator(device).manual_seed(seed), dtype)
            references.append(output_reference(op, case, dtype, args))
    return references


# ---------------------------------------------------------------- variants


def _public(op: Op) -> Callable[..., Any]:
    """The function that users call; the op itself if no function has its name."""
    return getattr(ops, op.name, None) or op


def _ours(op: Op, kernel: str | None = None) -> Maker:
    """Calls of the public function with the contract's names. Those that it lacks may only be absent or off."""
    function = _public(op)
    takes = set(inspect.signature(function).parameters)
    asked = {} if kernel is None else {"kernel": kernel}

    def make(args: Mapping[str, Any]) -> Callable[[], Any]:
        given = {n: v for n, v in args.items() if n in takes or (v is not None and v is not False)}
        if set(given) <= takes:
            return functools.partial(function, **given, **asked)
        return functools.partial(op, *args.values(), **asked)

    return make


def _enter(b: _Bench, name: str, make: Maker, kernel: Kernel | None = None) -> None:
    """Adds a variant, judged on every input set. ``make(args)`` prepares the call for one set, or returns
    None to decline.

    In-place ops get copies of their own, so that every variant starts from the same values. ``kernel`` is our kernel
    that runs, None for a baseline.
    """
    names = b.op.passes["forward"].names

    def prepared(index: int) -> tuple[tuple[Any, ...], Callable[[], Any] | None]:
        args = own_arguments(b.op, b.references[index].positional(b.op), copy_tensors)
        return args, make(dict(zip(names, args, strict=True)))

    def fresh(index: int) -> tuple[Any, ...]:
        args, call = prepared(index)
        assert call is not None
        return results_of(b.op, call(), args)

    held = kernel is not None and kernel.name != "torch"
    inner = kernel.inner if kernel is not None and held else "float32"
    entrant = _Entrant(name, [], kernel is not None, held, inner, fresh)
    try:
        for index in range(len(b.references)):
            args, call = prepared(index)
            if call is None:
                return
            outputs = results_of(b.op, call(), args)
            worst, wrong = _judged(entrant, outputs, b.reference_for(index, entrant.inner), b.dtype)
            entrant.calls.append(call)
            entrant.worst = max(entrant.worst, worst)
            entrant.wrong = entrant.wrong or wrong
    except Exception as error:
        if kernel is not None:
            raise
        lines = str(error).strip().splitlines() or [""]
        b.notes.append(f"{name} did not run: {type(error).__name__}: {lines[0][:200]}")
        return
    b.entrants.append(entrant)


def _call(function: Callable[..., Any]) -> Maker:
    return lambda args: functools.partial(function, **args)


def _judged(entrant: _Entrant, outputs: Any, reference: Reference, dtype: torch.dtype) -> tuple[float, str]:
    """The worst error as a share of the bound, and what is wrong."""
    worst, wrong = judge(outputs, reference)
    return worst, wrong if entrant.held else _another_op(outputs, reference, dtype)


def _another_op(result: Any, reference: Reference, dtype: torch.dtype) -> str:
    """What is wrong with a baseline, "" if it computes the same op.

    A baseline is not held to our bound (it may round more often, and is what users have); it must only be the same
    function, so that beating it means something. Its error is reported beside its time.
    """
    whole = flat_outputs(result)
    named = dict(zip(reference.names, whole, strict=False))
    outputs = [reference.drawn_output(i, got) for i, got in enumerate(whole)]
    for i, (got, want) in enumerate(zip(outputs, reference.outputs, strict=False)):
        if got.shape != want.shape:
            return f"output {i}: shape {list(got.shape)}, expected {list(want.shape)}"
        relation = reference.relation(i)
        if not is_inexact(want.dtype) or isinstance(relation, Equations):
            wrong = reference.compare_output(i, whole[i], named)[1]
            if wrong:
                return f"output {i}: {wrong}"
            continue
        if sort_as_promised(relation, want, reference.args) is not None:
            got, want = (t.gather(*sort_as_promised(relation, t, reference.args)) for t in (got, want))
        if number_kind(got.dtype) != number_kind(want.dtype):
            return f"output {i}: dtype {got.dtype}, expected {want.dtype}"
        error = (got.to(want.dtype) - want).norm().item()
        if not error <= SAME_OP * UNIT_ROUNDOFF[dtype] * want.norm().item():
            return f"output {i}: off by {error:.3g} in norm, expected norm {want.norm().item():.3g}"
    return "" if len(outputs) >= len(reference.outputs) else f"returned {len(outputs)} outputs"


def _enter_all(b: _Bench, kernels: Sequence[str], *, baselines: bool, compile: bool) -> None:
    request = b.op.request("forward", b.references[0].positional(b.op))
    choice = choose(b.op, request)
    _enter(b, OURS, _ours(b.op), choice.kernel)
    if choice.native and not kernels:  # the one that would run if it were quicker
        kernels = list(eligible_ways(b.op, request)[0])[:1]
    for kernel in kernels:
        _enter(b, kernel, _ours(b.op, kernel), b.op.kernel(kernel))
    if not baselines:
        return
    _enter(b, "eager", _call(table.eager_baseline(b.op)))
    inductor = table.inductor_baseline(b.op) if compile else None
    if inductor is not None:
        with torch._inductor.config.patch(compile_threads=1):
            _enter(b, "inductor", _call(inductor))
    for name, maker in table.library_baselines(b.op, b.device).items():
        _enter(b, name, maker)


# ---------------------------------------------------------------- the result


def _gate(b: _Bench) -> str:
    return "; ".join(f"{e.name}: {e.wrong}" for e in b.entrants if e.wrong)


def _still_right(b: _Bench) -> None:
    """After the timing our variants must give what they gave before: nothing was kept from an earlier call."""
    for entrant in (e for e in b.entrants if e.ours):
        for i in range(len(b.references)):
            again = entrant.fresh if b.op.contract.mutates and entrant.fresh else entrant  # inputs have moved on
            _, wrong = _judged(entrant, again(i), b.reference_for(i, entrant.inner), b.dtype)
            entrant.wrong = entrant.wrong or (f"after timing: {wrong}" if wrong else "")


def _race_in_halves(b: _Bench, budget_s: float, known: Peaks | GpuPeaks, *, cold: bool, quiet: Quiets) -> Race:
    """Two races of half the budget, the second from the other end, pooled. On a GPU a device copy runs beside work that
    memory limits."""
    variants: dict[str, Callable[[int], object]] = {e.name: e for e in b.entrants}
    if b.device == "cuda" and limit(b.op, _request(b), known, math.inf).bottleneck not in ("compute", "transcendental"):
        copy = copy_of(b.op.contract.cost(_request(b)).bytes)
        variants[COPY] = lambda index: copy()
    halves = [
        race_on_gpu(dict(order), budget_s=budget_s / 2)
        if b.device == "cuda"
        else race(dict(order), SETS, budget_s=budget_s / 2, cold=cold, quiet=quiet())
        for order in (list(variants.items()), list(variants.items())[::-1])
    ]
    others = [e.name for e in b.entrants if not e.ours]
    if others:
        gains = [min(half.ratio(name, OURS) for name in others) for half in halves]
        if max(gains) > WIN and abs(gains[0] - gains[1]) > DISAGREE * max(gains):
            b.notes.append(f"the two halves of the race disagree: {gains[0]:.2f}x and {gains[1]:.2f}x over the best")
    return halves[0] + halves[1]


def _request(b: _Bench) -> Request:
    args = b.references[0].positional(b.op)
    return count_values(b.op, b.op.request("forward", args), args)


def _variant_record(name: str, timed: TimeStats, least_s: float, entrant: _Entrant | None, device: str) -> Variant:
    share = least_s / timed.median
    return Variant(
        name, timed.median * 1e6, timed.low * 1e6, timed.high * 1e6, timed.samples,
        share_of_bound=min(1.0, share) if device == "cuda" else share,
        worst=None if entrant is None else entrant.worst,
        host_us=host_us(entrant) if device == "cuda" and entrant is not None else None,
    )  # fmt: skip


def _result(b: _Bench, found: Race | None, known: Peaks | GpuPeaks, *, cold: bool) -> BenchResult:
    request = _request(b)
    cost = b.op.contract.cost(request)
    least = limit(b.op, request, known, math.inf if cold else SETS * cost.bytes)
    bottleneck = least.bottleneck
    variants: tuple[Variant, ...] = ()
    if found is not None:
        ours = found.stats(OURS).median
        near = limit(b.op, request, known, 0.0) if b.device == "cuda" else least
        bottleneck = roofline.bottleneck_of(roofline.applicable_bound(least, near, ours), ours)
        entrants = {e.name: e for e in b.entrants}
        variants = tuple(
            _variant_record(n, found.stats(n), least.seconds, entrants.get(n), b.device) for n in found.samples
        )
    return BenchResult(
        op=b.op.name, case=b.case.name, dtype=str(b.dtype).removeprefix("torch."), threads=request.threads,
        cache="cold" if cold else "warm", flop=cost.flop, bytes=cost.bytes, bound_us=least.seconds * 1e6,
        bottleneck=bottleneck, variants=variants, chosen=choose(b.op, request).kernel.name, gate=_gate(b),
        thrown=found.thrown if found is not None else 0, notes=tuple(b.notes), device=b.device,
        rough=str(Noise(found.taken)) if found is not None and found.taken else "",
    )  # fmt: skip


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _wanted(op: Op, cases: Sequence[str] | None, device: str) -> list[Case]:
    """The benchmark cases of a device, or those of them that were named."""
    there = (op.contract.device_bench_cases if device == "cuda" else ()) or op.contract.bench_cases
    missing = set(cases or ()) - {c.name for c in there}
    if missing:
        names = ", ".join(c.name for c in there)
        raise ValueError(f"cases must be among {names} for {op.name}; got {', '.join(sorted(missing))}")
    return [c for c in there if cases is None or c.name in cases]


def check_names(
    op: str, *, cases: Sequence[str] | None = None, kernels: Sequence[str] = (), device: str = "cpu"
) -> list[Case]:
    """The cases that ``bench`` would time. Raises ValueError for an unknown op, case, kernel or device."""
    if op not in OPS:
        raise ValueError(f"op must be one of {', '.join(OPS)}, got {op!r}")
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, got {device!r}")
    for kernel in kernels:
        OPS[op].kernel(kernel)
    return _wanted(OPS[op], cases, device)


@background.measuring()
def bench(
    op: str,
    cases: Sequence[str] | None = None,
    threads: int | None = None,
    *,
    dtypes: Sequence[torch.dtype] | None = None,
    kernels: Sequence[str] = (),
    baselines: bool = True,
    compile: bool = True,
    caches: Sequence[str] = ("warm",),
    budget_s: float | None = None,
    known: Peaks | GpuPeaks | None = None,
    quiet: Quiets | None = None,
    progress: Progress | None = None,
    device: str = "cpu",
    rough: bool = False,
) -> Records[BenchResult]:
    """Races an op's public function against torch eager, torch.compile and the family's baselines, on its bench cases.

    First the gate: every variant runs on exactly the inputs that are timed and is judged against float64 (ours by the
    contract's bound); if one is wrong there are no figures and ``gate`` says why. Then all variants are timed
    interleaved: on the CPU with page faults kept out and noisy windows thrown away, on a GPU between CUDA events with
    L2 filled before each call and a device copy of the same bytes as one more variant.

    Args:
        op: its name. cases, dtypes: only these of the contract's ``bench_cases`` (GPU: ``device_bench_cases``).
        threads: torch's thread count for every variant; unchanged without it.
        kernels: kernels to time by name beside what the dispatcher takes; if that is torch's function, by default the
            first verified one.
        baselines, compile: whether the others run at all, and whether torch.compile (seconds a case) does.
        caches: ``"warm"`` (inputs rotate among three sets) and ``"cold"`` (caches overwritten before each call); on a
            GPU always cold.
        budget_s: timed seconds a variant and case, by default 0.8 and on a GPU 0.1. known: measured peaks, by default
            this machine's, measured if need be.
        device: "cpu" or "cuda".
        rough: give figures while other processes use the machine, too: each result's ``rough`` says so, and times are
            from the least to the most.
    Raises: ValueError for an unknown op, case, kernel or device; RuntimeError without such a device; Ambiguous when the
        machine stays busy and ``rough`` was not asked for.
    """
    for cache in caches:
        if cache not in ("warm", "cold"):
            raise ValueError(f"caches must be among warm, cold; got {cache!r}")
    wanted = check_names(op, cases=cases, kernels=kernels, device=device)
    found = OPS[op]
    known = known or peaks.get_peaks(progress, device=device, rough=rough)
    quiet = quiet or (lambda: Quiet(patience=40, rough=rough))
    pairs = [(c, d) for c in wanted for d in c.dtypes if dtypes is None or d in dtypes]
    results: Records[BenchResult] = Records()
    alone = measuring_alone(lambda line: None if progress is None else progress(line, 0, 0))
    with alone, _threads(threads), without_page_faults() as no_faults, torch.inference_mode():
        for done, (case, dtype) in enumerate(pairs):
            if progress is not None:
                progress(f"{op} {case.name} {str(dtype).removeprefix('torch.')}", done, len(pairs))
            b = _Bench(found, case, dtype, _inputs(found, case, dtype, device), device)
            if not no_faults:
                b.notes.append("page faults are part of the times: this C library cannot be told to keep memory")
            _enter_all(b, kernels, baselines=baselines, compile=compile)
            for cache in caches if device == "cpu" else ("cold",):
                cold = cache == "cold"
                budget = budget_s or (0.8 if device == "cpu" else 0.1)
                timed = None if _gate(b) else _race_in_halves(b, budget, known, cold=cold, quiet=quiet)
                if timed is not None:
                    _still_right(b)
                results.append(_result(b, None if _gate(b) else timed, known, cold=cold))
            del b
            if device == "cuda":  # float64 references are large
                torch.cuda.empty_cache()
    return results
