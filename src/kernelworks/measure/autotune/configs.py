"""The configurations of a GPU kernel, tried on this GPU: those that are right and faster are kept.

An op package lists candidates in its tuning.toml, every combination of the listed values; they enter no hash:

    [[space]]
    op_kernel = "triton"
    kernel = "forward"
    when = { N = [1, 4096] }
    set = { ROWS = [1, 2], num_warps = [4, 8, 16] }

Each candidate runs in a copy of the kernel's module. It is compared with the float64 reference on every case, since a
configuration may be wrong and its neighbour right. Those that pass are timed interleaved. If a winner beats today's
configuration by more than noise, it goes into this user's table for this kind of GPU, which is read before the one that
ships. Then the kernel is verified again, so that its certificate covers the new table. A process that has read the old
table keeps it: calls take the new one from the next process on (``worker``).
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
from kernelworks.dispatch.mutation import own_arguments, results_of
from kernelworks.dispatch.op import Op
from kernelworks.machine import gpu, has_gpu
from kernelworks.measure.clock.race_on_gpu import race_on_gpu
from kernelworks.records import ConfigCandidate, ConfigTuning, Verification
from kernelworks.verify import verify
from kernelworks.verify.parity import judge, judge_gradients
from kernelworks.verify.reference import Reference, compute_reference, copy_tensors, flat_outputs, follow_choice

__all__ = ["best_config", "try_configs", "unify_choices", "validate_request"]

GAIN = 1.02  # The least speedup over today's configuration: less is noise, and every entry must be verified.

Progress = Callable[..., None]


def _module(op: Op, op_kernel: str, forced: Mapping[Point, dict[str, Any]]) -> tuple[Any, RecordingConfigs]:
    """The kernel's module executed afresh, so that nothing it keeps of another candidate is used."""
    source = op.kernel(op_kernel).source
    assert source is not None
    recorder = RecordingConfigs(configs(source), op_kernel, forced)
    return execute_with_configs(source, recorder), recorder


# ---------------------------------------------------------------- one pass of one case


def _arguments(op: Op, pass_: str, expected: Reference) -> tuple[Any, ...] | None:
    """The arguments of a pass; None if the case has no gradients."""
    forward = own_arguments(op, expected.positional(op), copy_tensors)
    if pass_ == "forward":
        return forward
    if not expected.gradients:
        return None
    backward = op.passes["backward"]
    outputs = flat_outputs(op.kernel("torch").load("forward")(*forward))
    have: dict[str, Any] = dict(zip(op.passes["forward"].names, forward, strict=True))
    have |= dict(zip(op.contract.returned_outputs, outputs, strict=False))
    have |= {f"grad_{n}": None for n in op.contract.returned_outputs}
    have |= dict(zip((f"grad_{n}" for n in op.contract.returned_outputs), expected.grad_outputs, strict=False))
    have["needs"] = [have.get(n) is not None for n in backward.returns]
    return tuple(have[n] for n in backward.names)


def _wrong(op: Op, pass_: str, expected: Reference, args: tuple[Any, ...], result: Any) -> tuple[float, str]:
    """The worst error as a share of the bound, and what is wrong ("" if nothing is)."""
    if pass_ == "forward":
        return judge(results_of(op, result, args), expected)
    backward = op.passes["backward"]
    expected = follow_choice(op, expected, dict(zip(backward.names, args, strict=True)))
    found = zip(backward.returns, flat_outputs(result), strict=False)
    shares, message = judge_gradients([(name, got) for name, got in found if name in expected.gradients], expected)
    return max(shares.values(), default=0.0), message


def _try(
    op: Op, op_kernel: str, pass_: str, expected: Reference, args: tuple[Any, ...], forced: Mapping[Point, Any]
) -> Any:
    """The call of one candidate, its worst error and what is wrong. Poisoned memory is left to verification."""
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
    """The configuration to use: ``used``, or one that is right and faster by more than noise.

    ``tried`` holds the candidates of every case that picks by the same sizes (the number of rows need not be one of
    them). The winner is right in all of them, slower by more than noise in none, and has the best geometric mean of the
    speedups.
    """
    times = [{str(c.set): c.median_us for c in case if not c.wrong and c.median_us} for case in tried]
    best, best_gain = dict(used), GAIN
    if not all(str(dict(used)) in case for case in times):
        return best
    for candidate in tried[0]:
        gains = [case[str(dict(used))] / case.get(str(candidate.set), math.inf) for case in times]
        mean = math.prod(gains) ** (1 / len(gains))
        if min(gains) > 1 / GAIN and mean >= best_gain:
            best, best_gain = candidate.set, mean
    return best


def _ignore_index(call: Callable[[], object]) -> Callable[[int], object]:
    return lambda index: call()


def _tune_point(
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
            calls[str(number)] = _ignore_index(call)
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


# ---------------------------------------------------------------- the whole op


def validate_request(op: Op, kernel: str, cases: Sequence[str] | None) -> None:
    """Raises ValueError if the op has no such kernel or case, or the kernel no candidates; RuntimeError without a
    GPU."""
    if not has_gpu():
        raise RuntimeError("configurations are tried on a CUDA device, and there is none here")
    source = op.kernel(kernel).source
    if source is None or not any(space["op_kernel"] == kernel for space in configs(source).spaces):
        raise ValueError(f"{op.name}.{kernel} lists no configurations to try ([[space]] in its tuning.toml)")
    names = [case.name for case in _bench_cases(op)]
    unknown = sorted(set(cases or ()) - set(names))
    if unknown:
        raise ValueError(f"cases must be among {', '.join(names)}; got {', '.join(unknown)}")


def _bench_cases(op: Op) -> Sequence[Case]:
    return op.contract.device_bench_cases or op.contract.bench_cases


def try_configs(
    op: Op,
    kernel: str = "triton",
    *,
    cases: Sequence[str] | None = None,
    budget_s: float = 0.05,
    keep: bool = True,
    progress: Progress | None = None,
) -> tuple[list[ConfigTuning], list[Verification]]:
    """Tries the configurations that a GPU kernel lists on the sizes of the op's GPU benchmark, and keeps the winners.

    Args:
        cases: only these of the contract's ``device_bench_cases``.
        budget_s: timed seconds a candidate.
        keep: whether winners are written and the kernel is verified with them.
    Returns: what was tried for each GPU kernel and size, and the kernel's verification (none if nothing was written).
        A table that fails verification is taken back.
    Raises: what ``validate_request`` raises.
    """
    validate_request(op, kernel, cases)
    source = op.kernel(kernel).source
    assert source is not None
    results: list[ConfigTuning] = []
    for case in (c for c in _bench_cases(op) if cases is None or c.name in cases):
        for dtype in case.dtypes:
            if progress is not None:
                progress(f"{op.name} {case.name} {str(dtype).removeprefix('torch.')}")
            results += _tune_case(op, kernel, case, dtype, budget_s)
    results = unify_choices(results)
    winners = [r for r in results if r.chosen != r.used]
    if not keep or not winners:
        return results, []
    return results, _keep_winners(op, kernel, source, winners, progress)


def _tune_case(op: Op, op_kernel: str, case: Case, dtype: torch.dtype, budget_s: float) -> list[ConfigTuning]:
    expected = compute_reference(op, case, dtype, 0, "cuda", op.kernel(op_kernel).inner)
    results, seen = [], set[Point]()
    for pass_ in (p for p in op.kernel(op_kernel).passes if p in op.passes):
        args = _arguments(op, pass_, expected)
        if args is None:
            continue
        module, recorder = _module(op, op_kernel, {})
        getattr(module, pass_)(*args)
        for point, used in list(recorder.points.items()):
            kernel, dims, kind = point
            candidates = recorder.base.candidates(kernel, op_kernel=op_kernel, dtype=kind, **dict(dims))
            if candidates and point not in seen:
                seen.add(point)
                results.append(
                    _tune_point(op, op_kernel, pass_, case, dtype, expected, point, candidates, dict(used), budget_s)
                )
    compute_reference.cache_clear()
    torch.cuda.empty_cache()
    return results


def _keep_winners(
    op: Op, op_kernel: str, source: Path, winners: Sequence[ConfigTuning], progress: Progress | None
) -> list[Verification]:
    before = table_of(source)
    entries: dict[str, dict[str, Any]] = {}
    for winner in winners:
        made = _entry(winner)
        same = entries.setdefault(f"{winner.kernel} {made['when']}", made)
        if same is not made:  # another case of the same sizes
            same["measured"] += made["measured"]
    write_tuned(source, list(entries.values()))
    clear_configs()
    verifications = verify(op.name, op_kernel, progress=progress)
    if not all(verification.certified for verification in verifications):
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
