"""Predictions of fixes on this machine, each beside its outcome: what calibrates the next one.

One line of JSON for each optimization that was measured, appended in one write to a file in the cache: whoever reads
it finds whole lines, and skips one that a kill cut short. Predictions are kept as they were made, before any
calibration, so that what was learned from them is not learned twice.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelworks.machine import environment
from kernelworks.records.json_text import build_record, parse_json, read_regular

__all__ = [
    "GAIN_TOLERANCE",
    "NOISE_SHARE",
    "Outcome",
    "append_outcome",
    "calibration",
    "is_prediction_accurate",
    "path",
    "read_outcomes",
]

# A correction needs this many outcomes of an optimization, and reads no more than the last so many.
MIN_OUTCOMES, MAX_OUTCOMES = 4, 32
MAX_FACTOR = 2.0  # a factor beyond it is no matter of calibration: the prediction has missed what happens
NOISE_SHARE = 0.02  # of the wall clock: smaller predictions or gains are noise
GAIN_TOLERANCE = 0.2  # of the gain: a prediction that is further off has not held


@dataclass(frozen=True)
class Outcome:
    """One optimization at one place, measured in turns with the program as it was by then."""

    kind: str  # of machine, with the number of cores or the GPU
    program: str
    optimization: str
    place: str
    says: str
    wall_s: float  # of the program without it
    predicted_s: float  # saved, as predicted from a trial or a replay
    told_s: float  # saved, as told to the user: calibrated
    gain_s: float  # saved, measured
    noise_s: float
    taken: bool
    date: str = ""
    torch: str = ""
    loud: bool = False  # measured while others used the machine: it is told, and nothing is learnt of it

    @property
    def is_accurate(self) -> bool:
        return is_prediction_accurate(self.told_s, self.gain_s, self.wall_s)


def is_prediction_accurate(predicted_s: float, gain_s: float, wall_s: float) -> bool:
    """Whether a prediction was true: within ``GAIN_TOLERANCE`` of the gain, or both within ``NOISE_SHARE`` of the
    wall clock."""
    near = abs(predicted_s - gain_s) <= GAIN_TOLERANCE * abs(gain_s)
    return near or max(abs(predicted_s), abs(gain_s)) <= NOISE_SHARE * wall_s


def path() -> Path:
    """Where the lines are kept."""
    return environment.cache_dir("history") / "outcomes.jsonl"


def append_outcome(outcome: Outcome) -> None:
    """Appends one outcome. Raises OSError where the cache cannot be written."""
    dated = dataclasses.replace(
        outcome, date=outcome.date or datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    )
    line = json.dumps(dataclasses.asdict(dated), allow_nan=False) + "\n"
    to = path()
    to.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(to, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(handle).st_size
        cut = size and os.pread(handle, 1, size - 1) != b"\n"  # a kill left half a line
        os.write(handle, (("\n" if cut else "") + line).encode())
    finally:
        os.close(handle)


def read_outcomes(kind: str | None = None, *, loud: bool = False) -> list[Outcome]:
    """Every outcome that was kept, of one ``kind`` of machine or of all, oldest first; none where there is no file.
    Those that are ``loud`` only if asked for.
    Lines that are no outcomes, of another version or cut short, are passed over."""
    try:
        lines = read_regular(path()).decode(errors="replace").splitlines()
    except OSError:
        return []
    found = []
    names = {f.name for f in dataclasses.fields(Outcome)}
    for line in lines:
        try:
            values = parse_json(line)
            outcome = build_record(Outcome, {name: value for name, value in values.items() if name in names})
        except (ValueError, AttributeError):
            continue
        if (kind is None or outcome.kind == kind) and (loud or not outcome.loud):
            found.append(outcome)
    return found


def calibration(optimization: str, outcomes: Sequence[Outcome]) -> float:
    """By what an optimization's prediction is to be multiplied, from its last outcomes on this kind of machine: the
    middle of what was got for what was predicted; 1 where there are too few of them, or where they say nothing of the
    next."""
    ratios = [
        one.gain_s / one.predicted_s
        for one in outcomes
        if one.optimization == optimization and min(one.predicted_s, one.gain_s) > NOISE_SHARE * one.wall_s
    ][-MAX_OUTCOMES:]
    if len(ratios) < MIN_OUTCOMES:
        return 1.0
    middle = statistics.median(ratios)
    return middle if 1 / MAX_FACTOR <= middle <= MAX_FACTOR else 1.0
