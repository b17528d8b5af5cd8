"""What the pytest plug-in measures: a callable against a yardstick in the same minute, and that against a baseline.

The code of the baseline is gone when the new code is measured, so both are held against a yardstick: a fixed work of
torch's that takes turns with the callable (``measure/clock/duel.py``). A clock that is lower today, or a neighbour,
slows both, and leaves their ratio alone. If torch's version changed, the yardstick may have changed too: then the
callable's own times are compared.

A baseline is a line of a file beside the tests, ``test_model.speed.json``, for each test and kind of machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kernelworks.machine import kind_of
from kernelworks.machine.environment import write_whole
from kernelworks.measure.clock.duel import duel
from kernelworks.measure.clock.turns import measuring_alone
from kernelworks.records.compare import LEAST_NOISE
from kernelworks.records.json_text import build_record, format_lines, read_json

__all__ = [
    "BrokenBaseline", "SpeedBaseline", "SpeedVerdict", "baseline_path", "compare_speed", "measure_speed",
    "read_baselines", "store_baseline",
]  # fmt: skip

DUELS = 3  # A measurement is so many; what they differ by is noise.
RETRIES = 2  # What looks slower is measured again so often: a real slowdown is there each time.
BATCH_S = 0.002  # The callable runs so long in one sample at the least: the clock's own cost is nothing then.
PRODUCT, COPY = 256, 1 << 20  # sizes of the yardstick: a matrix, and elements
VERSION = 1
SUFFIX = ".speed.json"
MOST_WAIT_S = 120.0  # for another measurement on this machine


class BrokenBaseline(ValueError):
    """A file of baselines that cannot be read; the text says what to do."""


@dataclass(frozen=True)
class SpeedBaseline:
    """One measurement of one test on one kind of machine."""

    test: str
    kind: str  # of machine: the CPU's, and the GPU's if it took part
    threads: int
    torch: str  # version
    ratio: float  # the callable's time over the yardstick's
    spread: float  # of the ratio, as a share of it
    seconds: float  # of one call
    date: str
    noisy: bool = False  # never kept: the machine was too busy to say anything


@dataclass(frozen=True)
class _Baselines:
    version: int
    measurements: tuple[SpeedBaseline, ...] = field(default=())


@dataclass(frozen=True)
class SpeedVerdict:
    """``change`` is of the time (0.05: 5% slower), ``noise`` half its interval. ``skipped`` says why there is none."""

    now: SpeedBaseline | None = None
    before: SpeedBaseline | None = None
    change: float = 0.0
    noise: float = 0.0
    skipped: str = ""

    @property
    def is_significant(self) -> bool:
        return abs(self.change) > self.noise

    def is_slower(self, limit: float) -> bool:
        return not self.skipped and self.is_significant and self.change > limit

    def __str__(self) -> str:
        if self.skipped or self.now is None or self.before is None:
            return self.skipped
        interval = f"{100 * self.change:+.1f}% +- {100 * self.noise:.1f}%"
        word = ("slower" if self.change > 0 else "faster") if self.is_significant else "not significant"
        times = f"{_time(self.now.seconds)} now, {_time(self.before.seconds)} on {self.before.date[:10]}"
        other = f" with torch {self.before.torch}" if self.before.torch != self.now.torch else ""
        return f"{interval}, {word} ({times}{other})"


def _time(seconds: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


# ---------------------------------------------------------------- measuring


def measure_speed(test: str, call: Callable[[], Any]) -> tuple[SpeedBaseline, Any]:
    """The measurement of a callable, and what its first call returned. Raises what the callable raises."""
    result = call()
    on_gpu = torch.cuda.is_initialized() and _has_cuda(result, call)
    wait = torch.cuda.synchronize if torch.cuda.is_initialized() else None
    with measuring_alone(lambda line: None, most_s=MOST_WAIT_S):
        took = _seconds(call, wait)
        yardstick = _yardstick("cuda" if on_gpu else "cpu")
        unit = _seconds(yardstick, wait)
        batch = max(1, math.ceil(BATCH_S / max(took, 1e-8))) if took < BATCH_S else 1
        units = max(1, round(batch * took / max(unit, 1e-8)))
        found = [duel(_repeated(yardstick, units), _repeated(call, batch), wait).result for _ in range(DUELS)]
    ratios = [one.torch_us / one.ours_us * units / batch for one in found]
    ratio = statistics.median(ratios)
    apart = (max(ratios) - min(ratios)) / (2 * ratio)
    noisy = sum(one.is_noisy for one in found) * 2 > len(found)
    kind = kind_of("cpu") + (f"+{kind_of('cuda')}" if on_gpu else "")
    return SpeedBaseline(
        test=test, kind=kind, threads=torch.get_num_threads(), torch=torch.__version__, ratio=ratio,
        spread=max(apart, statistics.median(one.spread for one in found)),
        seconds=statistics.median(one.torch_us for one in found) / 1e6 / batch,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), noisy=noisy,
    ), result  # fmt: skip


def _has_cuda(*values: Any) -> bool:
    held = [getattr(value, "args", ()) for value in values], [getattr(value, "keywords", {}) for value in values]
    leaves = pytree.tree_leaves((values, held))
    return any(isinstance(leaf, torch.Tensor) and leaf.is_cuda for leaf in leaves)


def _yardstick(device: str) -> Callable[[], Any]:
    """A work of torch's of both kinds, arithmetic and memory, that is the same each time."""
    matrix = torch.full((PRODUCT, PRODUCT), 0.5, device=device)
    source, into = torch.zeros(COPY, device=device), torch.empty(COPY, device=device)
    product = torch.empty_like(matrix)

    def run() -> None:
        with torch.no_grad():
            torch.mm(matrix, matrix, out=product)
            into.copy_(source)

    return run


def _seconds(call: Callable[[], Any], wait: Callable[[], Any] | None) -> float:
    """About how long a call takes, warm: the least of a few."""
    least, begun = math.inf, time.perf_counter()
    for _ in range(5):
        begin = time.perf_counter()
        call()
        if wait is not None:
            wait()
        least = min(least, time.perf_counter() - begin)
        if time.perf_counter() - begun > 0.5:
            break
    return least


def _repeated(call: Callable[[], Any], times: int) -> Callable[[], Any]:
    if times == 1:
        return call

    def run() -> None:
        for _ in range(times):
            call()

    return run


# ---------------------------------------------------------------- comparing


def compare_speed(
    test: str, known: Sequence[SpeedBaseline], path: Path, limit: float, measure: Callable[[], SpeedBaseline]
) -> SpeedVerdict:  # fmt: skip
    """Holds a measurement against the baseline of its kind of machine among the ``known`` ones. What looks slower than
    the limit is measured again, and the least is what counts. Nothing is measured if no baseline can be of this one."""
    here = kind_of("cpu")
    known = [one for one in known if one.test == test and one.kind.partition("+")[0] == here]
    if not known:
        return SpeedVerdict(skipped=_absent(here, path))
    now = measure()
    if now.noisy:
        now = measure()
    if now.noisy:
        return SpeedVerdict(now, skipped="measurement too noisy: other processes used the machine")
    before = next((one for one in known if one.kind == now.kind), None)
    if before is None:
        return SpeedVerdict(now, skipped=_absent(now.kind, path))
    if before.threads != now.threads:
        said = f"the baseline in {path.name} is of {before.threads} threads, these are {now.threads}"
        return SpeedVerdict(now, before, skipped=f"{said}: --kernelworks-update measures one")
    found = _verdict(before, now)
    for _ in range(RETRIES):
        if not found.is_slower(limit):
            break
        again = measure()
        if not again.noisy:
            found = min(found, _verdict(before, again), key=lambda verdict: verdict.change)
    return found


def _absent(kind: str, path: Path) -> str:
    return f"no baseline of this kind of machine ({kind}) in {path.name}: --kernelworks-update measures one"


def _verdict(before: SpeedBaseline, now: SpeedBaseline) -> SpeedVerdict:
    same = before.torch == now.torch
    change = now.ratio / before.ratio - 1 if same else now.seconds / before.seconds - 1
    return SpeedVerdict(now, before, change, max(math.hypot(before.spread, now.spread), LEAST_NOISE))


# ---------------------------------------------------------------- the file


def baseline_path(test_file: Path) -> Path:
    return test_file.with_name(f"{test_file.stem}{SUFFIX}")


def read_baselines(path: Path) -> list[SpeedBaseline]:
    """Those in a file; none if there is no file. Raises BrokenBaseline."""
    try:
        found = build_record(_Baselines, read_json(path))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        said = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise BrokenBaseline(f"{path} is no file of baselines ({said}): --kernelworks-update writes it anew") from None
    if found.version != VERSION:
        raise BrokenBaseline(
            f"{path} is of version {found.version}, {VERSION} is read: --kernelworks-update writes it anew"
        )
    wrong = next((one for one in found.measurements if not _makes_sense(one)), None)
    if wrong is not None:
        raise BrokenBaseline(f"{path} has no figures for {wrong.test[:100]!r}: --kernelworks-update writes it anew")
    return list(found.measurements)


def _makes_sense(one: SpeedBaseline) -> bool:
    figures = (one.ratio, one.seconds, one.spread + 1)
    return all(math.isfinite(figure) and figure > 0 for figure in figures) and one.spread >= 0


def store_baseline(path: Path, now: SpeedBaseline) -> str:
    """Puts a measurement in place of the last of its test on its kind of machine, and leaves the others. Gives a remark
    on a file that could not be read, which is kept beside. Raises OSError."""
    with _locked(path.parent):
        remark = ""
        try:
            held = read_baselines(path)
        except BrokenBaseline:
            held, aside = [], path.with_name(f"{path.name}.broken")
            os.replace(path, aside)
            remark = f"{path.name} could not be read: it is {aside.name} now"
        kept = [one for one in held if (one.test, one.kind) != (now.test, now.kind)]
        ordered = sorted([*kept, now], key=lambda one: (one.test, one.kind))
        lines = [{k: v for k, v in dataclasses.asdict(one).items() if k != "noisy"} for one in ordered]
        write_whole(path, format_lines({"version": VERSION, "measurements": lines}) + "\n", f".{path.name}.")
    return remark


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """A folder's lock, which leaves no file behind and ends with its holder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: a rename is whole all the same
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
