"""Tune a GPU row: try the configurations that its room offers, on this GPU, and keep those that are right and faster.

A room offers candidates in its tuning.toml, every combination of the listed values; they enter no hash:

    [[space]]
    row = "triton"
    kernel = "forward"
    when = { N = [1, 4096] }
    set = { ROWS = [1, 2], num_warps = [4, 8, 16] }

Each candidate runs in a copy of the room's module of its own, is held to the float64 bound on every case (a
configuration may be wrong where its neighbour is right), and those that pass are timed interleaved. A winner that beats
what is used today by more than noise goes into this user's table for this kind of GPU, which is read before the one
that ships; then the row is proved again, so that the certificate covers what was written. Calls take it from the next
process on.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from kernelworks.build.configs import (
    Point,
    RecordingConfigs,
    clear_configs,
    configs,
    execute_with_configs,
    table_of,
    write_tuned,
)
from kernelworks.contract import Case
from kernelworks.dispatch.op import OPS, Op
from kernelworks.machine import gpu, has_gpu
from kernelworks.measure.clock.race_on_gpu import race_on_gpu
from kernelworks.records import ConfigCandidate, ConfigTuning, Verification
from kernelworks.verify import verify
from kernelworks.verify.compare import compare
from kernelworks.verify.parity import judge
from kernelworks.verify.reference import Reference, compute_reference, copy_tensors, flat_outputs

__all__ = ["best_config", "tune", "unify_choices"]

GAIN = 1.02  # over what is used today: less is noise, and every entry is one more to prove

Progress = Callable[..., None]


def _module(op: Op, op_kernel: str, forced: Mapping[Point, dict[str, Any]]) -> tuple[Any, RecordingConfigs]:
    """The room's triton.py executed afresh, so that nothing it keeps of another candidate is used."""
    source = op.kernel(op_kernel).source
    assert source is not None
    watched = RecordingConfigs(configs(source), op_kernel, forced)
    return execute_with_configs(source, watched), watched


# ---------------------------------------------------------------- one pass of one case


def _arguments(op: Op, pass_: str, expected: Reference) -> tuple[Any, ...] | None:
    """The arguments of a pass; None where the case has no gradients."""
    forward = expected.positional(op)
    mutates = op.contract.mutates
    if pass_ == "forward":
        names = op.passes["forward"].names
        return tuple(copy_tensors(v) if n in mutates else v for n, v in zip(names, forward, strict=True))
    if not expected.gradients:
        return None
    backward = op.passes["backward"]
    outputs = flat_outputs(op.kernel("torch").load("forward")(*forward))
    have: dict[str, Any] = dict(zip(op.passes["forward"].names, forward, strict=True))
    have |= dict(zip(op.contract.outputs, outputs, strict=False))
    have |= {f"grad_{n}": None for n in op.contract.outputs}
    have |= dict(zip((f"grad_{n}" for n in op.contract.outputs), expected.grad_outputs, strict=False))
    have["needs"] = [have.get(n) is not None for n in backward.returns]
    return tuple(have[n] for n in backward.names)


def _wrong(op: Op, pass_: str, expected: Reference, args: tuple[Any, ...], result: Any) -> tuple[float, str]:
    """The worst error as a share of the bound, and what is wrong."""
    if pass_ == "forward":
        names = op.passes["forward"].names
        mutated = [args[names.index(n)] for n in op.contract.mutates]
        return judge(mutated or result, expected)
    worst, message = 0.0, ""
    for name, got in zip(op.passes["backward"].returns, flat_outputs(result), strict=False):
        if name in expected.gradients:
            share, wrong = compare(got, expected.gradients[name], expected.gradient_bounds[name])
            worst, message = max(worst, share), message or (f"gradient of {name}: {wrong}" if wrong else "")
    return worst, message


def _try(
    op: Op, op_kernel: str, pass_: str, expected: Reference, args: tuple[Any, ...], forced: Mapping[Point, Any]
) -> Any:
    """(call, worst, what is wrong) of one candidate; poisoned memory is not needed: the proof does that."""
    module, _ = _module(op, op_kernel, forced)
    call = functools.partial(getattr(module, pass_), *args)
    try:
        fresh = _arguments(op, pass_, expected)
        assert fresh is not None
        worst, wrong = _wrong(op, pass_, expected, fresh, getattr(module, pass_)(*fresh))
        torch.cuda.synchronize()
    except Exception as error:  # too many registers, too much shared memory: a candidate may not compile
        return None, None, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"
    return call, worst, wrong


def best_config(tried: Sequence[Sequence[ConfigCandidate]], used: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration to use: ``used`` or one that is right, and faster by more than noise.

    ``tried`` holds the candidates of every case that picks by the same sizes (the number of rows need not be one of
    them): what is taken is right in all, slower than today by more than noise in none, and fastest in the geometric
    mean of the speedups.
    """
    times = [{str(c.set): c.median_us for c in case if not c.wrong and c.median_us} for case in tried]
    taken, most = dict(used), GAIN
    if not all(str(dict(used)) in case for case in times):
        return taken
    for candidate in tried[0]:
        gains = [case[str(dict(used))] / case.get(str(candidate.set), math.inf) for case in times]
        mean = math.prod(gains) ** (1 / len(gains))
        if min(gains) > 1 / GAIN and mean >= most:
            taken, most = candidate.set, mean
    return taken


def _at_any(call: Callable[[], object]) -> Callable[[int], object]:
    return lambda index: call()


def _tuned(
    op: Op, op_kernel: str, pass_: str, case: Case, dtype: torch.dtype, expected: Reference, point: Point,
    space: Sequence[dict[str, Any]], used: dict[str, Any], budget_s: float,
) -> ConfigTuning:  # fmt: skip
    kernel, dims, _ = point
    args = _arguments(op, pass_, expected)
    assert args is not None
    tried = [used, *(c for c in space if c != used)]
    found: list[ConfigCandidate] = []
    calls: dict[str, Callable[[int], object]] = {}
    for number, candidate in enumerate(tried):
        call, worst, wrong = _try(op, op_kernel, pass_, expected, args, {point: candidate})
        found.append(ConfigCandidate(candidate, worst, wrong))
        if not wrong:
            calls[str(number)] = _at_any(call)
    if calls:
        race = race_on_gpu(calls, budget_s=budget_s)
        for key in calls:
            timed, old = race.stats(key), found[int(key)]
            found[int(key)] = ConfigCandidate(
                old.set, old.worst, old.wrong, timed.median * 1e6, timed.low * 1e6, timed.high * 1e6
            )
    name = str(dtype).removeprefix("torch.")
    return ConfigTuning(op.name, op_kernel, kernel, case.name, name, dict(dims), tuple(found), used, used)


def unify_choices(results: Sequence[ConfigTuning]) -> list[ConfigTuning]:
    """The results with one choice for all cases that pick by the same sizes."""

    def key(result: ConfigTuning) -> tuple[Any, ...]:
        return result.kernel, result.dtype, tuple(result.dims.items())

    chosen = {}
    for one in results:
        chosen[key(one)] = best_config([r.candidates for r in results if key(r) == key(one)], one.used)
    return [dataclasses.replace(r, chosen=chosen[key(r)]) for r in results]


# ---------------------------------------------------------------- all of it


def tune(
    op: str,
    kernel: str = "triton",
    *,
    cases: Sequence[str] | None = None,
    budget_s: float = 0.05,
    keep: bool = True,
    progress: Progress | None = None,
) -> tuple[list[ConfigTuning], list[Verification]]:
    """Tries the configurations that a room offers on the sizes of its GPU benchmark, and keeps the winners.

    Args:
        op, row: the GPU row. cases: only these of the contract's ``device_bench_cases``.
        budget_s: timed seconds a candidate. keep: whether winners are written and the row is proved with them.
    Returns: what was tried for each kernel and size, and the proof of the row (none where nothing was written). A
        table whose proof fails is taken back.
    Raises: ValueError where there is no such op, row or case, or the room offers nothing to try; RuntimeError without a
        GPU.
    """
    if op not in OPS:
        raise ValueError(f"op must be one of {', '.join(OPS)}, got {op!r}")
    if not has_gpu():
        raise RuntimeError("tune needs a CUDA device")
    found = OPS[op]
    found.kernel(kernel)
    source = found.kernel(kernel).source
    candidates = [] if source is None else [s for s in configs(source).spaces if s["op_kernel"] == kernel]
    if not candidates or source is None:
        raise ValueError(f"{op}.{kernel} offers no configurations to choose from ([[space]] in its tuning.toml)")
    there = found.contract.device_bench_cases or found.contract.bench_cases
    unknown = set(cases or ()) - {c.name for c in there}
    if unknown:
        raise ValueError(f"cases must be among {', '.join(c.name for c in there)}; got {', '.join(sorted(unknown))}")
    results: list[ConfigTuning] = []
    for case in (c for c in there if cases is None or c.name in cases):
        for dtype in case.dtypes:
            if progress is not None:
                progress(f"{op} {case.name} {str(dtype).removeprefix('torch.')}")
            results += _case(found, kernel, case, dtype, budget_s)
    results = unify_choices(results)
    winners = [r for r in results if r.chosen != r.used]
    if not keep or not winners:
        return results, []
    return results, _kept(found, kernel, source, winners, progress)


def _case(op: Op, op_kernel: str, case: Case, dtype: torch.dtype, budget_s: float) -> list[ConfigTuning]:
    expected = compute_reference(op, case, dtype, 0, "cuda", op.kernel(op_kernel).inner)
    results, seen = [], set[Point]()
    for pass_ in (p for p in op.kernel(op_kernel).passes if p in op.passes):
        args = _arguments(op, pass_, expected)
        if args is None:
            continue
        module, watched = _module(op, op_kernel, {})
        getattr(module, pass_)(*args)
        for point, used in list(watched.points.items()):
            kernel, dims, kind = point
            candidates = watched.base.candidates(kernel, op_kernel=op_kernel, dtype=kind, **dict(dims))
            if candidates and point not in seen:
                seen.add(point)
                results.append(
                    _tuned(op, op_kernel, pass_, case, dtype, expected, point, candidates, dict(used), budget_s)
                )
    compute_reference.cache_clear()
    torch.cuda.empty_cache()
    return results


def _kept(
    op: Op, op_kernel: str, source: Path, winners: Sequence[ConfigTuning], progress: Progress | None
) -> list[Verification]:
    before = table_of(source)
    entries: dict[str, dict[str, Any]] = {}
    for winner in winners:
        made = _entry(winner)
        held = entries.setdefault(f"{winner.kernel} {made['when']}", made)
        if held is not made:  # another case of the same sizes
            held["measured"] += made["measured"]
    write_tuned(source, list(entries.values()))
    clear_configs()
    verifications = verify(op.name, op_kernel, progress=progress)
    if not all(p.certified for p in verifications):
        write_tuned(source, before, replace=True)
        clear_configs()
    return verifications


def _entry(tuned: ConfigTuning) -> dict[str, Any]:
    """The table's entry: exactly these dims, since nothing else was measured."""
    times = {str(c.set): c.median_us for c in tuned.candidates}
    when: dict[str, Any] = {name: [size, size] for name, size in tuned.dims.items()}
    measured = {
        "case": tuned.case, "us": times[str(tuned.chosen)], "used_us": times[str(tuned.used)], "gpu": gpu().name,
        "driver": gpu().driver, "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }  # fmt: skip
    return {
        "op_kernel": tuned.op_kernel,
        "kernel": tuned.kernel,
        "when": when | {"dtype": [tuned.dtype]},
        "set": tuned.chosen,
        "measured": [measured],
    }
