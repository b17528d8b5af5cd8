"""What ``kernelworks climb`` does with its arguments: lists, starts, climbs, draws, and writes the documents."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernelworks.climb.climber import unmeasured_result
from kernelworks.climb.compilation import compile_rung
from kernelworks.climb.driver import climb
from kernelworks.climb.journey import journey
from kernelworks.climb.ladder import Ladder, ladder_named
from kernelworks.climb.ladder_folders import folders
from kernelworks.climb.requirements import expected_minutes, hardware, lacking_rungs
from kernelworks.climb.template import start
from kernelworks.climb.triton_interpreting import interpret_ladder
from kernelworks.records import from_json, to_json
from kernelworks.records.climb import Climb, RungResult
from kernelworks.report.climb import evidence, page, terminal, worklog
from kernelworks.report.climb import tile as tiles
from kernelworks.report.terminal import Advance, document, stderr, stdout

__all__ = [
    "OUT",
    "Verdict",
    "check_ladder",
    "documents",
    "list_ladders",
    "rewrite_documents",
    "run_climb",
    "start_ladder",
    "tile",
    "verdict",
    "write",
    "write_pages",
]  # fmt: skip

OUT = Path("kernelworks-out")
DEVICES = {"cpu": "CPU", "cuda": "GPU"}
LATER = "it was written after this climb"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a climb comes to: "" if every rung that runs here has its figure, "wrong", "ambiguous", or "no figure";
    and the sentence that says so."""

    what: str = ""
    said: str = ""


def verdict(rungs: Sequence[RungResult]) -> Verdict:
    """A wrong rung outweighs a busy machine. A rung that cannot run here has no figure; one of them must have one."""
    for status in ("wrong", "ambiguous"):
        found = [r for r in rungs if r.status == status]
        if found:
            numbers = ", ".join(str(r.number) for r in found)
            return Verdict(status, f"{status}: no figure for rung {numbers}: {found[0].reason}")
    if rungs and not any(r.times for r in rungs):
        return Verdict("no figure", f"no rung has a figure: {rungs[0].reason}")
    return Verdict()


def start_ladder(name: str | None, device: str) -> str:
    """Starts a user's own ladder. Raises ValueError without a name that can be used."""
    if not name:
        raise ValueError("give your ladder a name: kernelworks climb new NAME")
    folder = start(name, device=device)
    return f"a ladder to begin with: {folder}\nnext: edit it, then: kernelworks climb {name}"


def list_ladders(leading_up: Mapping[str, Sequence[str]], *, json: bool) -> None:
    """Every ladder with what it needs, how long it takes, its rungs, and the exercises that lead up to it."""
    found = [ladder_named(str(folder)) for folder in folders().values()]
    if json:
        plain = [
            {
                "ladder": x.name,
                "device": x.problem.device,
                "title": x.problem.title,
                "rungs": [r.title for r in x.rungs],
                "needs": hardware(x),
                "minutes": expected_minutes(x),
                "not_here": [r.number for r in lacking_rungs(x)],
                "exercises": list(leading_up.get(x.name, ())),
            }
            for x in found
        ]
        document(to_json(plain))
        return
    if not found:
        stderr().print("no ladders are here; start one: kernelworks climb new NAME")
    for ladder in found:
        stdout().print(
            f"{ladder.name} ({DEVICES[ladder.problem.device]}): {ladder.problem.title}", style="bold", markup=False
        )
        for line in _asks(ladder, leading_up.get(ladder.name, ())):
            stdout().print(f"      {line}", style="dim", markup=False)
        for rung in ladder.rungs:
            stdout().print(f"  {rung.number:>2}  {rung.title}", markup=False)
    stdout().print("exercises that lead up to them: kernelworks learn", markup=False)


def _asks(ladder: Ladder, leading_up: Sequence[str]) -> list[str]:
    """What a climb needs and takes, and what to do before it."""
    minutes = expected_minutes(ladder)
    lines = [f"needs {hardware(ladder)}; about {minutes} minute{'s' if minutes > 1 else ''} on a quiet machine"]
    lacking = lacking_rungs(ladder)
    if lacking:
        lines.append(f"here {len(ladder.rungs) - len(lacking)} of {len(ladder.rungs)} rungs run")
    if leading_up:
        lines.append(f"first write it yourself: kernelworks learn start {' or '.join(leading_up)}")
    return lines


def check_ladder(name: str, *, json: bool) -> Verdict:
    """Compiles every rung, runs none, and shows what the compiler made of it; a rung in Triton is run by its
    interpreter, on small sizes."""
    ladder = ladder_named(name)
    found = [compile_rung(ladder, rung) for rung in ladder.rungs]
    if ladder.problem.language == "triton":
        tried = {one.rung: one for one in interpret_ladder(ladder.folder)}
        found = [one if one.error or not tried[one.rung].wrong
                 else dataclasses.replace(one, error=f"wrong in Triton's interpreter: {tried[one.rung].wrong}")
                 for one in found]  # fmt: skip
    broken = [rung.number for rung, one in zip(ladder.rungs, found, strict=True) if one.error]
    outcome = Verdict("wrong", f"not as it must be: rung {', '.join(map(str, broken))}") if broken else Verdict()
    if json:
        document(to_json([dataclasses.asdict(one) for one in found]))
        return outcome
    for rung, one in zip(ladder.rungs, found, strict=True):
        stdout().print(f"{rung.number:>2}  {rung.title}", style="bold")
        if one.error:
            stdout().print(f"    {one.error}", style="red", markup=False)
            continue
        taken = ", ".join(
            f"{what.replace('_', ' ')} {count}" for what, count in one.resources.items() if not what.startswith("loop_")
        )
        loop = ", ".join(f"{count} {what}" for what, count in one.instructions.items())
        lines = [
            taken,
            f"hot loop, {one.loop} instructions{': ' if loop else ''}{loop}" if one.loop else one.note,
            evidence.operands(one.resources),
        ]
        for line in filter(None, lines):
            stdout().print(f"    {line}", markup=False, soft_wrap=True)
    return outcome


def tile(out: Path | None, *, json: bool) -> None:
    """One tile's journey as text, and as a picture in a page in the folder ``out``, if there is one."""
    record = journey()
    if json:
        document(to_json(record))
        return
    stdout().print(tiles.text(record))
    if out is None:
        return
    path = out / "tile.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(tiles.page(record), encoding="utf-8")
    print(f"\nthe picture: {path}")


def run_climb(
    name: str, rung: int | None, out: Path | None, advance: Advance, *, named: bool = False, json: bool,
    rough: bool = False,
) -> Verdict:  # fmt: skip
    """Climbs, shows, and writes to the folder ``out``, if there is one: beside other ladders unless it is ``named`` for
    this one."""
    ladder = ladder_named(name)

    def done(result: RungResult) -> None:
        if not json:
            stdout().print(terminal.line(result, ladder.problem.unit))

    record = climb(ladder, rung, rough=rough, progress=advance, done=done)
    found = verdict(record.rungs)
    if json:
        document(to_json(record))
    else:
        stdout().print()
        if found.said:
            stdout().print(found.said, style="bold", markup=False)
        stdout().print(terminal.table(record))
        for sentence in terminal.totals(record):
            stdout().print(sentence, markup=False)
    if out is not None:
        paths = write(record, ladder, out if named else out / ladder.name)
        if not json:
            print(f"\nthe page: {paths[2]}   the worklog: {paths[1]}   the record: {paths[0]}")
    return found


def write(record: Climb, ladder: Ladder, folder: Path) -> tuple[Path, Path, Path]:
    """results.json, worklog.md and the page of a climb. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "results.json", folder / "worklog.md", folder / f"{record.ladder}.html"
    for path, text in zip(paths, (to_json(record) + "\n", *documents(record, ladder, folder)), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def documents(record: Climb, ladder: Ladder, folder: Path) -> tuple[str, str]:
    """The worklog as it reads in a folder, and the page."""
    sources = {rung.path.name: rung.code() for rung in ladder.rungs}
    where = Path(os.path.relpath(ladder.folder, folder)).as_posix()
    return worklog.worklog(record, sources, where), page.page(record, sources)


def rewrite_documents(root: Path) -> list[Path]:
    """Writes results.json and worklog.md of every ladder below a folder anew from its record, in which rungs that were
    written after it stand as not run. Runs nothing."""
    paths = sorted(root.glob("*/**/results.json"))
    for path in paths:
        record, ladder = _record_of(path, root)
        path.write_text(to_json(record) + "\n", encoding="utf-8")
        path.with_name("worklog.md").write_text(documents(record, ladder, path.parent)[0], encoding="utf-8")
    return paths


def write_pages(root: Path, out: Path) -> list[Path]:
    """Writes the page of every ladder below a folder to ``out``, at its place below the folder. Runs nothing."""
    pages = []
    for path in sorted(root.glob("*/**/results.json")):
        record, ladder = _record_of(path, root)
        pages.append(out / path.parent.relative_to(root) / f"{record.ladder}.html")
        pages[-1].parent.mkdir(parents=True, exist_ok=True)
        pages[-1].write_text(documents(record, ladder, path.parent)[1], encoding="utf-8")
    return pages


def _record_of(path: Path, root: Path) -> tuple[Climb, Ladder]:
    ladder = ladder_named(str(root / path.relative_to(root).parts[0]))
    record = from_json(Climb, path.read_text(encoding="utf-8"))
    known = {rung.file for rung in record.rungs}
    later = [
        dataclasses.replace(unmeasured_result(rung, "not run", LATER), target=", ".join(rung.targets))
        for rung in ladder.rungs
        if rung.path.name not in known
    ]
    return dataclasses.replace(record, rungs=tuple(sorted((*record.rungs, *later), key=lambda r: r.number))), ladder


if __name__ == "__main__":
    for path in rewrite_documents(Path("ladders")):
        print(f"{path.parent}: written anew from its results.json")
