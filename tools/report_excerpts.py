"""Reports of diagnoses on record as pages show them: excerpts of the text, and pictures of a terminal, numbered if a
page explains their parts."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console, RenderableType
from rich.segment import Segment, Segments
from rich.style import Style

from kernelworks.records import Diagnosis, compare, from_json
from kernelworks.report import compare as report_compare
from kernelworks.report import diagnose, picture
from kernelworks.report.next_steps import Files

__all__ = ["PARTS", "draw_numbered", "draw_screen"]

RESULTS = Path("benchmarks") / "results"
TUTORIAL = Path("examples") / "classify.py"
SHOWN = "diagnose-qwen3.json"  # the diagnosis of README.md and of the pictures
SCREEN_LINES, PART_LINES = 34, 14
WIDTH, GUTTER = 80, 3
# The heads of a report's parts, in the order in which docs/how-to/read-a-diagnosis.md explains them.
HEADS = ("RESULT", "NEXT", "WHERE THE TIME GOES", "HOTSPOTS", "FINDINGS", "OPTIMIZATIONS")
BADGE = Style(bold=True, reverse=True)

Line = Sequence[Segment]


def _text_lines(report: RenderableType) -> list[str]:
    """What rich prints of a report on a terminal of 80 columns without colours, line by line."""
    console = Console(width=WIDTH, file=io.StringIO(), force_terminal=False, no_color=True, highlight=False)
    with console.capture() as captured:
        console.print(report)
    return [line.rstrip() for line in captured.get().strip("\n").splitlines()]


def _files(folder: str) -> Files:
    """Where the tutorial's commands write."""
    return Files(f"{folder}/classify-epoch.html", f"{folder}/classify-epoch.json")


def _section(lines: Sequence[str], head: str, most: int) -> list[str]:
    """One part of a report, from its head to the empty line after it; without a head all of it, with dots for what is
    cut off."""
    first = next((i for i, line in enumerate(lines) if head and line.startswith(head)), 0)
    rest = lines[first:]
    whole = list(itertools.takewhile(str.strip, rest)) if head else list(rest)
    return [*whole[:most], *(["..."] if not head and len(whole) > most else [])]


def _rendered(report: RenderableType) -> list[Line]:
    console = Console(width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor", highlight=False)
    lines = console.render_lines(report, console.options.update(width=WIDTH), pad=False)
    while lines and not _text(lines[0]).strip():
        lines = lines[1:]
    return list(lines)


def _text(line: Line) -> str:
    return "".join(segment.text for segment in line)


def _as_one(lines: Sequence[Line]) -> Segments:
    return Segments([segment for line in lines for segment in (*line, Segment.line())])


def _screen(report: RenderableType, most: int, label: str) -> str:
    """The first lines of a report as a picture, up to the end of a part."""
    lines = _rendered(report)[:most]
    return picture.svg(_as_one(lines), WIDTH, label)


def _numbered(report: RenderableType, most: int, label: str) -> str:
    """The same with a number before each part: 1 is the program's line, the parts follow in their order. A part that
    takes more than ``most`` lines is cut."""
    shown: list[Line] = []
    in_part = 0
    for at, line in enumerate(_rendered(report)):
        text = _text(line)
        head = next((i for i, name in enumerate(HEADS, 2) if re.match(rf"{name}\b", text)), 1 if at == 0 else None)
        in_part = 0 if head is not None else in_part + 1
        if in_part < most or not text.strip():
            mark = Segment(f" {head} ", BADGE) if head is not None else Segment(" " * GUTTER)
            shown.append([mark, Segment(" "), *line])
        elif in_part == most:
            shown.append([Segment(" " * (GUTTER + 5) + "...")])
    return picture.svg(_as_one(shown), WIDTH + GUTTER + 1, label)


# ---------------------------------------------------------------- from the records


def _report(
    name: str, head: str = "", most: int = 1000, *, fixed: bool = True, files: Files | None = None
) -> Callable[[Path], str]:
    """The report of a recorded diagnosis as a terminal prints it, or one part of it; without its fix as a diagnosis
    alone prints it. ``files`` are where the page says that it was written."""

    def part(root: Path) -> str:
        record = _diagnosis(root, name)
        if record is None:
            return ""
        report = diagnose.diagnosis(record if fixed else dataclasses.replace(record, fix=None), WIDTH, files=files)
        lines = _section(_text_lines(report), head, most)
        return "\n".join(["```text", *lines, "```", ""])

    return part


def _diagnosis(root: Path, name: str) -> Diagnosis | None:
    path = root / RESULTS / name
    return from_json(Diagnosis, path.read_text(encoding="utf-8")) if path.is_file() else None


def _program(root: Path) -> str:
    """The tutorial's program, without what an example says of itself."""
    text = (root / TUTORIAL).read_text(encoding="utf-8")
    begin = text.index("import time\n")
    return "\n".join(["```python", text[begin:].rstrip("\n"), "```", ""])


def _patch(name: str) -> Callable[[Path], str]:
    """The diff of a fix on record, as ``show --patch`` writes it."""

    def part(root: Path) -> str:
        record = _diagnosis(root, name)
        if record is None or record.fix is None or not record.fix.patch:
            return ""
        return "\n".join(["```diff", record.fix.patch.rstrip("\n"), "```", ""])

    return part


def _compared(before: str, after: str) -> Callable[[Path], str]:
    """What ``kernelworks compare`` prints of two diagnoses on record."""

    def part(root: Path) -> str:
        paths = [(root / RESULTS / name).resolve() for name in (before, after)]
        if not all(path.is_file() for path in paths):
            return ""
        names = [Path(folder) / "classify-epoch.json" for folder in ("before", "after")]  # as commands say
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            for name, path in zip(names, paths, strict=True):
                name.parent.mkdir()
                shutil.copyfile(path, name)
            lines = _text_lines(report_compare.comparison(compare.compare(*names)))
        return "\n".join(["```text", *lines, "```", ""])

    return part


def draw_screen(root: Path) -> str:
    """The first screen of a diagnosis on record as a terminal shows it; nothing without one."""
    record = _diagnosis(root, SHOWN)
    if record is None:
        return ""
    report = diagnose.diagnosis(record, WIDTH)
    return _screen(report, SCREEN_LINES, f"A diagnosis of {record.program}")


def draw_numbered(root: Path) -> str:
    """The same with its parts numbered."""
    record = _diagnosis(root, SHOWN)
    if record is None:
        return ""
    report = diagnose.diagnosis(record, WIDTH)
    return _numbered(report, PART_LINES, f"A diagnosis of {record.program}, its parts numbered")


# What a page may show of them, by the part's name.
PARTS: dict[str, Callable[[Path], str]] = {
    "diagnose": _report("diagnose-minilm.json", most=60),
    "readme_fix": _report(SHOWN, "RESULT", 2),
    "gpu_training": _report("h200-diagnose-training.json", most=30),
    "tutorial_program": _program,
    "tutorial_diagnosis": _report("tutorial-before.json", most=60, files=_files("before")),
    "tutorial_fix": _report("tutorial-fix.json", files=_files("kernelworks-out")),
    "tutorial_patch": _patch("tutorial-fix.json"),
    "compared": _compared("tutorial-before.json", "tutorial-after.json"),
}
