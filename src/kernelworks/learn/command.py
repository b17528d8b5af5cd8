"""What ``kernelworks learn`` does with its arguments, and how it says it."""

from __future__ import annotations

import dataclasses
import json as json_text
import re
import time
from collections.abc import Callable
from pathlib import Path

from rich.table import Table
from rich.text import Text

from kernelworks.learn.checking import CheckResult, Times, check
from kernelworks.learn.exercise import Exercise, exercise_named, exercises
from kernelworks.learn.measured_peaks import EXPLAINED_SHARE, limit_of, recorded_peaks
from kernelworks.learn.progress import Progress, ProgressOfOne
from kernelworks.report.terminal import document, stdout

__all__ = [
    "check_file",
    "give_hint",
    "list_exercises",
    "named_or_next",
    "show_exercise",
    "show_language",
    "show_solution",
    "start",
    "watch",
]

LANGUAGE_PAGE = Path(__file__).resolve().parent / "cpp.md"
WATCH_S = 0.3  # between two looks at a file that is watched
DENSE = 2  # operations a byte: from here on a rate is told in operations
MOST_PRINTED_LINES = 8
FAR = 2.0  # times as long: even a busy machine does not hide it
SLOWER = 1.2  # times the solution's time: clearly slower
ALIKE = 0.1  # of a time: what two runs of the same code differ by
MARKS = {"done": "x", "begun": "~", "solution seen": "o"}


def _say(text: str = "", style: str = "") -> None:
    stdout().print(text, style=style or None, markup=False, soft_wrap=True)


def _next(progress: Progress, behind: Exercise | None = None) -> Exercise | None:
    """The first exercise of the course that is neither done nor given up, in the family of ``behind`` if it has one."""
    left = [e for e in exercises().values() if (p := progress.of(e)) is None or p.word == "begun"]
    in_family = [e for e in left if behind and e.family == behind.family]
    return next(iter(in_family + left), None)


def _go_on(upcoming: Exercise, progress: Progress) -> str:
    """The line to type for the next exercise."""
    verb = "check" if progress.of(upcoming) else "start"
    return f"kernelworks learn {verb} {upcoming.name}"


def named_or_next(name: str | None, progress: Progress, *, last: bool = False, json: bool = False) -> Exercise:
    """The exercise of that name. Without one the exercise that was started or checked last if that is asked for, or the
    next one, and its name is said. Raises ValueError if there is none."""
    if name:
        found = exercise_named(Path(name).stem if "/" in name or Path(name).suffix else name)
        _named_file(found, progress, name)
        return found
    meant = exercises().get(progress.last) if last else None
    meant = meant or _next(progress)
    if meant is None:
        raise ValueError("every exercise is done; name one to look at it again")
    if not json:
        _say(f"{meant.name}: {meant.title}", "dim")
    return meant


def list_exercises(progress: Progress, *, json: bool) -> None:
    """The course with the learner's progress, and what comes next."""
    found, upcoming = exercises(), _next(progress)
    if json:
        plain = [
            {
                "name": e.name, "title": e.title, "family": e.family, "language": e.language, "ladder": e.ladder,
                "progress": dataclasses.asdict(p) if (p := progress.of(e)) else None,
            }
            for e in found.values()
        ]  # fmt: skip
        document(json_text.dumps({"exercises": plain, "next": upcoming.name if upcoming else None}, indent=1))
        return
    family = ""
    for one in found.values():
        if one.family != family:
            family = one.family
            _say(family, "bold")
        known = progress.of(one)
        mark = MARKS[known.word] if known else " "
        language = "" if one.language in ("cpp", one.family) else f" ({one.language})"
        best = f"  {_duration(known.best_s)}" if known and known.best_s else ""
        _say(f"  [{mark}] {one.name:<22} {one.title}{language}{best}")
    done = sum(bool((p := progress.of(e)) and p.right) for e in found.values())
    _say()
    _say(f"{done} of {len(found)} done" + (f"; {_listed_next(upcoming, progress)}" if upcoming else ""))


def _listed_next(upcoming: Exercise, progress: Progress) -> str:
    return f"{'go on' if progress.of(upcoming) else 'next'}: {_go_on(upcoming, progress)}"


def start(exercise: Exercise, progress: Progress, *, json: bool) -> None:
    """Copies the starting file into the learner's folder, unless there is one."""
    path = progress.file(exercise)
    fresh = not path.exists()
    if fresh:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(exercise.start_path.read_text(encoding="utf-8"), encoding="utf-8")
        (path.parent / "README.md").write_text(exercise.text, encoding="utf-8")
    progress.keep(exercise)
    if json:
        document(json_text.dumps({"exercise": exercise.name, "file": str(path), "copied": fresh}))
        return
    if not fresh:
        _say(f"{path} is there already and stays as it is; remove it to begin anew")
        _say(f"the page again: kernelworks learn show {exercise.name}")
        _say(_mend(exercise, path))
        return
    _say(exercise.text.strip())
    _say()
    _say(f"your file: {path}  (this page lies beside it: README.md)", "bold")
    _say(_mend(exercise, path))


def _mend(exercise: Exercise, path: Path) -> str:
    """What to do with a file that is not right yet."""
    return (
        f"NEXT   change {path} in an editor and save it, then: kernelworks learn check {exercise.name}\n"
        f"       a hint: kernelworks learn hint {exercise.name}"
    )


def show_language(*, json: bool) -> None:
    """What of C++ the exercises need, beside Python."""
    page = LANGUAGE_PAGE.read_text(encoding="utf-8")
    if json:
        document(json_text.dumps({"text": page}))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    rows = [cells for line in page.splitlines() if line.startswith("|") and (cells := _cells(line))]
    for head in rows[0]:
        table.add_column(head, overflow="fold")
    for row in rows[1:]:
        table.add_row(*(Text(cell) for cell in row))
    prose = page.replace("`", "").replace("**", "")
    before, after = (part.strip() for part in re.split(r"(?:^\|.*\n)+", prose, flags=re.M))
    _say(f"{before}\n")
    stdout().print(table)
    _say(f"\n{after}")


def _cells(line: str) -> list[str]:
    """The cells of a table's line, as they are read; empty for the line below the head."""
    cells = [cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", line.replace("`", ""))[1:-1]]
    return [] if set(cells[0]) == {"-"} else cells


def show_exercise(exercise: Exercise, progress: Progress, *, json: bool) -> None:
    """The exercise's page."""
    if json:
        known = progress.of(exercise)
        document(json_text.dumps({
            "exercise": exercise.name, "title": exercise.title, "function": exercise.function, "text": exercise.text,
            "hints": len(exercise.hints), "progress": dataclasses.asdict(known) if known else None,
        }, indent=1))  # fmt: skip
        return
    _say(exercise.text.strip())


def give_hint(exercise: Exercise, progress: Progress, *, json: bool) -> None:
    """The next hint, after those that were given."""
    if not progress.file(exercise).exists():
        raise ValueError(_not_begun(exercise, progress.file(exercise)))
    known = progress.of(exercise) or ProgressOfOne()
    count = min(known.hints + 1, len(exercise.hints))
    progress.keep(exercise, hints=count)
    given = exercise.hints[:count]
    if json:
        document(json_text.dumps({"exercise": exercise.name, "hints": given, "left": len(exercise.hints) - count}))
        return
    for number, text in enumerate(given, 1):
        _say(f"{number}. {text}", "" if number == count else "dim")
    left = len(exercise.hints) - count
    give_up = "" if known.right or known.gave_up else " --give-up"
    _say(f"({left} more)" if left else f"(that was the last one; kernelworks learn solution {exercise.name}{give_up})")


def show_solution(exercise: Exercise, progress: Progress, *, give_up: bool, json: bool) -> bool:
    """The solution, to whoever has passed or gives up; False if neither is so."""
    known = progress.of(exercise) or ProgressOfOne()
    if not (known.right or known.gave_up or give_up):
        return False
    if not known.right and progress.folder.exists():
        progress.keep(exercise, gave_up=True)
    text = exercise.solution_path.read_text(encoding="utf-8")
    if json:
        document(json_text.dumps({"exercise": exercise.name, "solution": text}))
    else:
        _say(text.rstrip())
    return True


# ---------------------------------------------------------------- check


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def _beside(times: Times) -> str:
    """The solution's time beside the learner's; on a busy machine if they are far apart."""
    if times.busy:
        large = max(times.ratio, 1 / times.ratio) if times.ratio else 0.0
        if large < FAR:
            return ""
        if times.ratio > 1:
            return f"; about {large:.2g}x the solution's time"
        return f"; about {large:.2g}x as fast as the solution"
    if abs(times.ratio - 1) < ALIKE:
        return "; as fast as the solution"
    if times.ratio > 1:
        return f"; {times.ratio:.2f}x the solution's time"
    return f"; {1 / times.ratio:.2f}x as fast as the solution"


def _times_lines(exercise: Exercise, times: Times) -> list[str]:
    is_arithmetic = times.flop > DENSE * times.bytes
    rate = (times.flop if is_arithmetic else times.bytes) / times.yours_s / 1e9
    unit = "GFLOP/s" if is_arithmetic else "GB/s"
    threads = f", {times.threads} threads" if times.threads > 1 else ""
    spread = f"{_duration(times.low_s)} to {_duration(times.high_s)}"
    place = f"{times.about}{threads}: {rate:.3g} {unit}{_beside(times)}"
    lines = [f"TIME   {_duration(times.yours_s)} a call ({spread}), {place}"]
    if times.busy:
        lines.append(f"       rough: {times.busy}")
    peaks = recorded_peaks()
    limit = limit_of(times.flop, times.bytes, times.threads, peaks) if peaks else None
    if limit is None:
        lines.append(
            "       `kernelworks machine` measures this machine once; then a check says how near to its peak you are"
        )
    else:
        share = min(1.0, limit.seconds / times.yours_s)
        lines.append(f"       {share:.0%} of the measured peak ({limit.name})")
        if not times.busy and share >= EXPLAINED_SHARE:
            return [*lines, f"BOUND  by {limit.bound}: little is left to gain on this machine"]
        if not times.busy:
            lines.append(f"BOUND  not by {limit.bound}: the loop waits for itself, or for what it need not do")
    return [*lines, *_faster_lines(exercise, times)]


def _faster_lines(exercise: Exercise, times: Times) -> list[str]:
    """What to try: only what the file does not do yet, by its time beside the solution's."""
    if not exercise.faster:
        return []
    if times.ratio >= (FAR if times.busy else SLOWER):
        return [f"TRY    {exercise.faster}"]
    if times.busy:
        return []
    fast = "faster than" if times.ratio < 1 - ALIKE else "about as fast as" if times.ratio > 1 + ALIKE else "as fast as"
    return [f"TRY    nothing more is needed, it is {fast} the solution; to go on: {exercise.faster}"]


def _refusal_lines(result: CheckResult, path: Path) -> list[str]:
    found = result.verdict
    assert found is not None
    many = f"all {found.cases}" if found.failures == found.cases else f"{found.failures} of {found.cases}"
    cases = f" ({many} cases fail)" if found.cases > 1 else ""
    lines = [f"WRONG  it {found.sentence}" if _is_deed(found.sentence) else f"WRONG  {found.sentence}"]
    lines.append(f"       {found.detail}{cases}")
    if found.line:
        code = path.read_text(encoding="utf-8", errors="replace").splitlines()
        text = code[found.line - 1].strip() if found.line <= len(code) else ""
        lines.append(f"       {path.name}, line {found.line}: {text}")
    return lines


def _is_deed(sentence: str) -> bool:
    """Whether the sentence lacks its subject, which is the function."""
    return sentence.split(" ", 1)[0] in {
        "reads", "writes", "changes", "does", "divides", "leaves", "ends", "uses", "lets",
        "shifts", "converts",
    }  # fmt: skip


def _not_begun(exercise: Exercise, path: Path) -> str:
    if path.parent.parent.exists():
        return f"there is no {path} yet: kernelworks learn start {exercise.name}"
    return (
        f"there is no {path.parent.parent} in {Path.cwd()} or above it: go to the folder in which you typed "
        f"`kernelworks learn start`, or begin here: kernelworks learn start {exercise.name}"
    )


def _named_file(exercise: Exercise, progress: Progress, named: str) -> None:
    """Raises ValueError where somebody names a file that is not the one that a check looks at."""
    own = progress.file(exercise)
    if named and Path(named).suffix and Path(named).exists() and not (own.exists() and own.samefile(named)):
        raise ValueError(f"a check looks at {own} alone, and {named} is another file: put your text there")


def check_file(exercise: Exercise, progress: Progress, *, json: bool) -> bool:
    """Checks the learner's file, says what came of it and keeps it; whether it is right. Raises FileNotFoundError
    where the exercise was not begun, and what ``check`` raises."""
    path = progress.file(exercise)
    if not path.exists():
        raise ValueError(_not_begun(exercise, path))
    result = check(exercise, path)
    known, right = progress.of(exercise) or ProgressOfOne(), result.outcome == "right"
    best = result.times.yours_s if result.times and not result.times.busy else None
    best = min(filter(None, (known.best_s, best)), default=None)
    progress.keep(exercise, checks=known.checks + 1, right=known.right or right, best_s=best if right else known.best_s)
    upcoming = _next(progress, exercise)
    if json:
        plain = dataclasses.asdict(result) | {"file": str(path), "next": upcoming.name if upcoming else None}
        document(json_text.dumps(plain, indent=1))
        return right
    if result.outcome == "not compiled":
        for message in result.messages:
            where = f"{path.name}, line {message.line}: " if message.line else ""
            _say(f"NOT COMPILED  {where}{message.plain or message.text}", "red")
            if message.code:
                _say(f"       {message.code}")
            if message.plain:
                _say(f"       {'Triton' if exercise.language == 'triton' else 'g++'}: {message.text}", "dim")
        _say(_mend(exercise, path), "dim")
        return False
    for line in result.printed.splitlines()[:MOST_PRINTED_LINES]:
        _say(f"PRINTED  {line}", "dim")
    if not right:
        first, *rest = _refusal_lines(result, path)
        _say(first, "red")
        for line in rest:
            _say(line)
        for note in result.notes:
            _say(f"NOTE   {path.name}, line {note.line}: {note.plain or note.text}")
            _say(f"       {note.code}")
        _say(_mend(exercise, path), "dim")
        return False
    verdict = result.verdict
    assert verdict is not None
    _say(
        f"RIGHT  {verdict.cases} cases against float64; the largest error is {verdict.worst:.2g} of the allowed one",
        "green",
    )
    for line in _times_lines(exercise, result.times) if result.times else [f"       not timed: {result.untimed}"]:
        _say(line)
    for line in _after(exercise, upcoming, progress):
        _say(line)
    return True


def _after(exercise: Exercise, upcoming: Exercise | None, progress: Progress) -> list[str]:
    lines = []
    if exercise.ladder:
        lines.append(f"ALSO   kernelworks climb {exercise.ladder}: the same, from naive code to the peak, rung by rung")
    if exercise.op:
        lines.append(f"ALSO   kernelworks map {exercise.op}: this package's kernels of it")
    lines.append(f"SEE    kernelworks learn solution {exercise.name}")
    if upcoming:
        lines.append(f"NEXT   {_go_on(upcoming, progress)}: {upcoming.title}")
    return lines


def watch(exercise: Exercise, progress: Progress, pause: Callable[[float], None] = time.sleep) -> None:
    """Checks the file now, and whenever it is written, until it is interrupted."""
    path, last = progress.file(exercise), -1.0
    while True:
        try:
            now = path.stat().st_mtime
        except FileNotFoundError:
            now = last  # an editor is about to put another file in its place
        if now != last:
            last = now
            _say(f"--- {time.strftime('%H:%M:%S')} {path}", "dim")
            check_file(exercise, progress, json=False)
        pause(WATCH_S)
