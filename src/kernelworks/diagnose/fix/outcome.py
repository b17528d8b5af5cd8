"""The result of a search as a record: on which machine, what it saved, and an error in one line."""

from __future__ import annotations

import time
import traceback
from pathlib import Path
from typing import Any

from kernelworks.diagnose.optimization import Scene
from kernelworks.machine import place_of
from kernelworks.records.fix import Fix, SearchStep

__all__ = ["fix_record", "in_a_line", "note_step", "place", "with_budget"]

MOST_STEPS = 400  # in a record
MOST_TEXT = 4096  # characters of an error that are looked at


def fix_record(was: float, now: float, **fields: Any) -> Fix:
    """The record of a fix; by default of one that applied nothing."""
    applied: dict[str, Any] = {
        "replaced": (), "left": (), "predicted_gain_s": 0.0, "error_before": 0.0, "error_after": 0.0, "agrees": True,
        "rounds": 0, "against": "",
    }  # fmt: skip
    return Fix(before_s=was, after_s=now, gain_s=was - now, **applied | fields)


def place(device: str) -> str:
    """The kind of machine to which outcomes belong."""
    try:
        return place_of(device)
    except RuntimeError:  # a GPU that recordings stand for
        return device


def with_budget(what: str, scene: Scene | None) -> str:
    """What a search is doing, with what is left of its budget."""
    if scene is None or scene.budget is None:
        return what
    left = min(max(0.0, scene.budget.seconds_left), scene.budget.seconds)
    return f"{what}, {left:.0f} s of {scene.budget.seconds:.0f} left"


def in_a_line(error: BaseException) -> str:
    """An error in one line, also one that cannot say itself, or not in characters that a file takes. One without words
    says where it was raised: an assertion's reader needs no less."""
    try:
        text = str(error)[:MOST_TEXT].encode(errors="replace").decode().strip().splitlines()
    except Exception:  # of the error's own class
        text = []
    said = text[0][:300] if text else _where_raised(error)
    return f"{type(error).__name__}{f': {said}' if said else ''}"


def _where_raised(error: BaseException) -> str:
    """File, line and function; "" if it was not raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"in {frames[-1].name}, {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def note_step(steps: list[SearchStep], what: str, scene: Scene | None) -> list[SearchStep]:
    """The steps with this one, unless it is the last one still."""
    if steps and steps[-1].what == what:
        return steps
    begun = scene.budget.begun if scene is not None and scene.budget is not None else time.perf_counter()
    at_s = round(max(0.0, time.perf_counter() - begun), 2)
    return [*steps, SearchStep(at_s, what)] if len(steps) < MOST_STEPS else steps
