"""Peaks that were measured before, kept per machine, and per GPU, driver and power limit.

An entry that is not exactly what was written is not used.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import time
from pathlib import Path
from typing import Literal, overload

from kernelworks.dispatch.user_warning import warn_user
from kernelworks.machine import environment, has_gpu
from kernelworks.machine.float32_products import Float32Products
from kernelworks.measure.clock.noise import LIMIT
from kernelworks.measure.clock.turns import measuring_alone
from kernelworks.measure.peaks import gpu, survey
from kernelworks.measure.peaks.mending import repair_record
from kernelworks.measure.peaks.survey import Progress, measure
from kernelworks.records import GpuPeaks, Peaks, from_json, to_json
from kernelworks.records.json_text import format_lines, read_json

__all__ = ["cached_peaks", "forget_peaks", "get_peaks", "save_peaks"]

Device = Literal["cpu", "cuda"]
ROUGH_S = 1800.0  # Peaks from a busy machine serve other rough figures for this long.
BRIEF_S = 1800.0  # Peaks from one round serve other diagnoses for this long.


def _fingerprint(device: str) -> str:
    return gpu.fingerprint() if device == "cuda" else survey.fingerprint()


def _path(device: str = "cpu") -> Path:
    return environment.cache_dir("peaks") / f"{_fingerprint(device)}.json"


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


_found: dict[Path, Peaks | GpuPeaks] = {}


@overload
def cached_peaks(device: Literal["cpu"] = "cpu") -> Peaks | None: ...
@overload
def cached_peaks(device: Literal["cuda"]) -> GpuPeaks | None: ...
@overload
def cached_peaks(device: str) -> Peaks | GpuPeaks | None: ...


def cached_peaks(device: str = "cpu") -> Peaks | GpuPeaks | None:
    """The peaks measured before on this machine, or on its GPU with ``device="cuda"``; None without any.

    Measures nothing and never raises for a bad entry.
    """
    if device == "cuda" and not has_gpu():
        return None
    path = _path(device)
    if path not in _found:
        record = _read(path, device)
        if record is None:
            return None
        _found[path] = record
    return _found[path]


def _read(path: Path, device: str) -> Peaks | GpuPeaks | None:
    record: Peaks | GpuPeaks
    try:
        note = read_json(path)
        body = json.dumps(note["peaks"], sort_keys=True)
        if note["sha256"] != _digest(body):
            return None
        record = from_json(GpuPeaks, body) if device == "cuda" else from_json(Peaks, body)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if record.fingerprint != _fingerprint(device):
        return None
    return repair_record(record)  # it may be of a time when figures were kept that contradict each other


def _rough_path() -> Path:
    return environment.cache_dir("peaks") / f"{_fingerprint('cpu')}.rough.json"


def _brief_path() -> Path:
    return environment.cache_dir("peaks") / f"{_fingerprint('cpu')}.brief.json"


def _recent(path: Path, seconds: float) -> Peaks | None:
    """What was measured of late, for some: while others used the machine, or in one round."""
    try:
        recent = 0 <= time.time() - path.stat().st_mtime < seconds
    except OSError:
        return None
    found = _read(path, "cpu") if recent else None
    return found if isinstance(found, Peaks) else None


def save_peaks(record: Peaks | GpuPeaks) -> Path:
    """Write one entry through a rename, so that a reader sees a whole one or none. Raises OSError."""
    path = _path("cuda" if isinstance(record, GpuPeaks) else "cpu")
    _written(path, record)
    _found.pop(path, None)
    return path


def _written(path: Path, record: Peaks | GpuPeaks) -> None:
    plain = json.loads(to_json(record))
    note = {"sha256": _digest(json.dumps(plain, sort_keys=True)), "peaks": plain}
    environment.write_whole(path, format_lines(note), prefix=".writing-")


def forget_peaks() -> None:
    """Drop what this process has read; the next ``cached_peaks`` reads the file again."""
    _found.clear()


@overload
def get_peaks(
    progress: Progress | None = None, *, again: bool = False, device: Literal["cpu"] = "cpu", rough: bool = False,
    brief: bool = False,
) -> Peaks: ...  # fmt: skip
@overload
def get_peaks(
    progress: Progress | None = None, *, again: bool = False, device: Literal["cuda"], rough: bool = False,
    brief: bool = False,
) -> GpuPeaks: ...  # fmt: skip
@overload
def get_peaks(
    progress: Progress | None = None, *, again: bool = False, device: str, rough: bool = False, brief: bool = False
) -> Peaks | GpuPeaks: ...


def get_peaks(
    progress: Progress | None = None, *, again: bool = False, device: str = "cpu", rough: bool = False,
    brief: bool = False,
) -> Peaks | GpuPeaks:  # fmt: skip
    """The measured peaks of this machine, or of its GPU with ``device="cuda"``: from the cache, else measured (30 to
    50 s) and cached. ``again`` measures in any case. With ``rough`` a busy machine is measured all the same, once
    (8 s): that serves other rough figures for half an hour, and its ``foreign_share`` says what others took.
    With ``brief`` what is not in the cache is measured once too, while nobody uses the machine, and serves for half an
    hour: a round that a neighbour slowed unseen, in another virtual machine on the same silicon, is not to be believed
    for longer.

    Raises Ambiguous when the machine is too busy to measure, BuildError without a compiler, RuntimeError if there
    is no GPU. If the cache folder cannot be written, the result is still returned, with a warning.
    """
    record = None if again else _known(device, rough=rough, brief=brief)
    if record is not None:
        return record
    with measuring_alone(functools.partial(_waiting, progress)):
        record = None if again else _known(device, rough=rough, brief=brief)  # of another process, meanwhile
        return record or _measured(progress, device, rough=rough, brief=brief)


def _waiting(progress: Progress | None, line: str) -> None:
    if progress is not None:
        progress(line, 0, 0)


def _known(device: str, *, rough: bool, brief: bool) -> Peaks | GpuPeaks | None:
    record = cached_peaks(device)
    if record is None and (rough or brief) and device == "cpu":
        record = _recent(_brief_path(), BRIEF_S)
    if record is None and rough and device == "cpu":
        record = _recent(_rough_path(), ROUGH_S)
    return record


def _measured(progress: Progress | None, device: str, *, rough: bool, brief: bool) -> Peaks | GpuPeaks:
    record: Peaks | GpuPeaks
    if device == "cuda":
        precision = Float32Products.of_process()
        try:
            record = gpu.measure(progress, rough=rough)
        finally:
            precision.restore()
        if record.foreign_share > LIMIT:  # it serves this once
            return record
    elif brief or rough:
        windows = survey.quiet_windows(rough=True)
        record = measure(progress, brief=True) if brief else measure(progress, quiet=windows)
        with contextlib.suppress(OSError):
            _written(_brief_path() if brief else _rough_path(), record)
        return record
    else:
        record = measure(progress)
    try:
        save_peaks(record)
    except OSError as error:
        warn_user(f"the peaks were measured but could not be cached: {error}")
    _found[_path(device)] = record
    return record
