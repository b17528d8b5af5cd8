"""A ladder of which somebody is writing a rung: whenever the file is written, that rung is climbed again."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from kernelworks.climb.driver import climb
from kernelworks.climb.ladder import Ladder, ladder_named
from kernelworks.climb.ladder_folders import ladder_folder
from kernelworks.report.climb import terminal
from kernelworks.report.terminal import Advance, stdout

__all__ = ["watch_ladder"]

WATCH_S = 0.3  # between two looks at the files
Turn = Callable[[], AbstractContextManager[Advance]]


def watch_ladder(
    name: str, rung: int | None, turn: Turn, *, rough: bool = False, pause: Callable[[float], None] = time.sleep
) -> None:
    """Climbs the rung, by default the one that was written last, and from then on whichever is written, until it is
    interrupted. ``turn`` is the context of one climb: others measure while nothing is written. Raises ValueError for a
    ladder or a rung that is not there."""
    folder = ladder_folder(name)
    seen = _written(folder)
    last = max((path for path in seen if _number(path)), key=lambda path: seen[path])
    _climb_one(ladder_named(str(folder)), rung or _number(last), turn, rough=rough)
    while True:
        pause(WATCH_S)
        now = _written(folder)
        changed = sorted(_number(path) for path, when in now.items() if seen.get(path) != when)
        seen = now
        for number in changed:
            try:
                ladder = ladder_named(str(folder))
                _climb_one(ladder, number or ladder.rungs[-1].number, turn, rough=rough)
            except ValueError as error:  # a header that is half written
                stdout().print(str(error), style="red", markup=False)


def _written(folder: Path) -> dict[Path, float]:
    """When each rung was last written, and the problem; what an editor is about to put in its place is not there."""
    rungs = (p for p in folder.glob("[0-9][0-9]_*") if p.suffix in (".cpp", ".cu", ".py"))
    paths = (*rungs, folder / "problem.py")
    found = {}
    for path in paths:
        try:
            found[path] = path.stat().st_mtime
        except FileNotFoundError:
            continue
    if not any(_number(path) for path in found):
        raise ValueError(f"{folder} has no rung: a file NN_idea.cpp, NN_idea.cu or NN_idea.py")
    return found


def _number(path: Path) -> int:
    """Of the rung in a file; 0 for the problem, which is all rungs'."""
    return int(path.name[:2]) if path.name[:2].isdigit() else 0


def _climb_one(ladder: Ladder, number: int, turn: Turn, *, rough: bool) -> None:
    path = next((r.path for r in ladder.rungs if r.number == number), ladder.folder / "problem.py")
    stdout().print(f"--- {time.strftime('%H:%M:%S')} {path}", style="dim", markup=False)
    with turn() as advance:
        record = climb(ladder, number, rough=rough, progress=advance)
    for result in record.rungs:
        stdout().print(terminal.line(result, ladder.problem.unit))
