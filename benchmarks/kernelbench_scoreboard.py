"""The scoreboard of KernelBench's problems on this machine's CPU or GPU: is the reference sound, does the judge take it
for right, and, on a quiet machine, how quick are torch, its compiler and our kernels there:

    python benchmarks/kernelbench_scoreboard.py KERNELBENCH/level1 ... [--only NAMES] [--seconds 3600] [--times]

writes ``docs/reference/kernelbench-scoreboard.md`` from its record. The problems' files are the user's own; none is
kept here. Each problem is judged at the sizes that ``check-problem`` halves it to. What is on record is kept, but for
what ``--only`` names; ``--anew`` forgets it. ``--times`` then times those whose reference is right and that have no
times yet (``scoreboard_times``), in windows in which others left the cores alone that this process may use: a problem
without a quiet one goes without. Pinned to cores of its own (``taskset -c 4,5``) one share of the problems is timed
beside others. Ours is the problem's module after a swap, with the kernels that are verified on this kind of machine;
where none is, torch runs there too.

Several processes, or several machines, share the problems out and put their rows together afterwards:

    python benchmarks/kernelbench_scoreboard.py KERNELBENCH/level2 KERNELBENCH/level3 --share 3/32 --out rows-3.json
    python benchmarks/kernelbench_scoreboard.py --merge rows-*.json

``--device cuda`` asks the GPU, at the problems' own sizes as far as its memory goes, and always takes times; the judge
is not asked there (``scoreboard_times``):

    CUDA_VISIBLE_DEVICES=0 python benchmarks/kernelbench_scoreboard.py KERNELBENCH/level1 --device cuda --share 1/2 \\
        --out rows-1.json
    python benchmarks/kernelbench_scoreboard.py --device cuda --merge rows-*.json

``--search 20`` then has loop schedules searched for that many seconds of each problem whose reference is right and that
has no search yet (``scoreboard_search``).
``--most`` and ``--memory`` bound what a problem may take: one that takes more has a row that says so.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import scoreboard_search
import scoreboard_times

from kernelworks.judge import Budget, judge_all
from kernelworks.judge.formats import kernelbench
from kernelworks.judge.problem import Problem
from kernelworks.judge.problem_check import check_problem
from kernelworks.judge.process.pool import Nursery
from kernelworks.machine import machine
from kernelworks.measure.peaks import get_peaks
from kernelworks.profile.program import versions
from kernelworks.records import to_json
from kernelworks.records.judgement import Judgement
from kernelworks.records.problem_check import WEAK, WORTH

HERE = Path(__file__).resolve().parents[1]
RESULTS = HERE / "benchmarks" / "results"
RECORD, GPU_RECORD = RESULTS / "kernelbench-scoreboard.json", RESULTS / "kernelbench-scoreboard-gpu.json"
PAGE = HERE / "docs" / "reference" / "kernelbench-scoreboard.md"
PART = re.compile(r"(<!-- written by benchmarks/kernelbench_scoreboard.py -->\n).*?(<!-- end -->)", re.S)
GPU_PART = re.compile(r"(<!-- of a GPU, by benchmarks/kernelbench_scoreboard.py -->\n).*?(<!-- end -->)", re.S)
QUICK = Budget(
    reference_s=2.0,
    most_cases=8,
    many=24,
    many_s=1.0,
    looks=1,
    shapes=1,
    gradients=1,
    answer_s=300.0,
    build_s=600.0,
)
VARIANTS = ("eager", "compiled", "ours")
SHORTEST_S = 10.0  # in which a problem can be asked
BEGUN = "begun"  # a row of a problem that its process has not come to the end of, or never will
OVER = "not judged"  # a row of a problem that took more time or memory than it was given
UNDONE = (OVER, scoreboard_times.FAILED)
MOST_S = {"cpu": 1800.0, "cuda": 180.0}  # that a problem is given; what it stands still for others is not counted
JOBS = 8


class Overrun(BaseException):  # not for whoever takes a candidate's exceptions
    """A problem takes more than it was given."""


def said_of(found: Judgement) -> str:
    why = f": {found.reasons[0].kind}: {found.reasons[0].said[:160]}" if found.reasons else ""
    return found.verdict + why


def timed(found: dict[str, Any], on: str) -> dict[str, Any]:
    """Seconds of a call by each, and the least time as a share of ours, of what a race found."""
    seconds = {"compiled" if name == "default" else name: one for name, one in found["seconds"].items()}
    limit, ours = found["limit_s"] or 0.0, seconds.get("ours", 0.0)
    return {
        "seconds": seconds, "over": found["over"], "rounds": found["rounds"], "limit_s": limit,
        "limit_share": limit / ours if ours else 0.0, "bound_by": found["bound_by"], "machine": on,
    }  # fmt: skip


def problem_at(path: Path, sizes: dict[str, int] | None = None) -> Problem:
    """The problem on a CPU, at these sizes or at its own."""
    source = re.sub(r""",\s*device=["']cuda["']""", "", path.read_text(encoding="utf-8"))
    problem = kernelbench.problem_in(path, source)
    shape = dataclasses.replace(problem.shapes[0], sizes={**problem.shapes[0].sizes, **(sizes or {})})
    return dataclasses.replace(problem, shapes=(shape,)) if sizes else problem


def row(path: Path, args: argparse.Namespace, nursery: Nursery) -> dict[str, Any]:
    problem = problem_at(path)
    source = problem.files[kernelbench.FILE]
    begin = time.perf_counter()
    found = check_problem(problem, device="cpu", threads=args.threads, nursery=nursery)
    kinds = [one.kind for one in found.findings]
    fatal = [one.kind for one in found.findings if one.fatal]
    made: dict[str, Any] = {
        "problem": f"{path.parent.name}/{path.stem.rstrip('_')}", "sizes": found.sizes, "verdict": found.verdict,
        "text": hashlib.sha256(source.encode()).hexdigest()[:16], "findings": fatal or kinds, "reference": "",
        "threads": args.threads,
    }  # fmt: skip
    if found.verdict in (WORTH, WEAK):
        made |= _judged(problem_at(path, found.sizes), source, args.threads, nursery)
    return made | {"took_s": round(time.perf_counter() - begin, 1)}


def _judged(problem: Problem, source: str, threads: int, nursery: Nursery) -> dict[str, Any]:
    """The reference as a candidate."""
    plain = kernelbench.candidate_in(Path("reference.py"), re.sub(r"\bModel\b", "ModelNew", source))
    (found,) = judge_all([plain], problem, over=VARIANTS[:1], budget=QUICK, threads=threads, nursery=nursery)
    return {"reference": said_of(found)}


def table(record: dict[str, Any]) -> str:
    rows = sorted(record["rows"].values(), key=lambda r: _place(r["problem"]))
    clocked = [r for r in rows if r.get("times")]
    machines = list(dict.fromkeys(place for each in (0, 1, 2) for r in rows for place in places(r)[each : each + 1]))
    lines = [_told(rows) + f" Times are on record for {len(clocked)}.", ""]
    levels = list(dict.fromkeys(_place(r["problem"])[0] for r in rows))
    if len(levels) > 1:
        each = ((level, [r for r in rows if _place(r["problem"])[0] == level]) for level in levels)
        lines += [*(f"- {level}: {_told(those)}" for level, those in each), ""]
    if clocked:
        lines += [*scoreboard_times.ratios(groups(clocked)), ""]
    lines += [
        "| problem | sizes | sound | its reference | eager | compiled | ours | share of the limit | search | machine |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        sizes = ", ".join(f"`{name}={size}`" for name, size in r["sizes"].items()) or "its own"
        sound = r["verdict"] + (f": {', '.join(dict.fromkeys(r['findings']))}" if r["findings"] else "")
        searched = scoreboard_search.cell(r.get("search"))
        number = ", ".join(str(1 + machines.index(place)) for place in dict.fromkeys(places(r)))
        cells = [r["problem"], sizes, *map(_cell, (sound, r["reference"])), *_times(r.get("times")), _cell(searched)]
        lines.append(f"| {' | '.join(cells)} | {number} |")
    named = (f"<sub>Machine {number}: {name}</sub>" for number, name in enumerate(machines, 1))
    return "\n".join([*lines, "", "<br>\n".join(named), ""])


def places(r: dict[str, Any]) -> list[str]:
    """The machines that judged it, timed it and searched for it."""
    return [found["machine"] for found in (r, r.get("times"), r.get("search")) if found]


def groups(clocked: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The rows of which the means are told, as ``scoreboard_times`` has them: all that are timed, and those that are
    worth a score without a care."""
    every = []
    for r in clocked:
        seconds = {"default" if name == "compiled" else name: one for name, one in r["times"]["seconds"].items()}
        every.append(r | {"seconds": seconds, "over": r["times"]["over"]})
    return [("all that are timed", every), (f"those {WORTH}", [r for r in every if r["verdict"] == WORTH])]


def _told(rows: list[dict[str, Any]]) -> str:
    judged = [r for r in rows if r["reference"]]
    right = sum(r["reference"] == "right" for r in judged)
    over = sum(r["verdict"] == OVER for r in rows)
    left = f" {over} took more time or memory than a problem is given." if over else ""
    are, many = "is" if len(judged) == 1 else "are", "problem" if len(rows) == 1 else "problems"
    return (
        f"{len(rows)} {many}; {len(judged)} {are} worth a score. The judge takes {right} of their references for "
        f"right.{left}"
    )


def _times(found: dict[str, Any] | None) -> list[str]:
    if not found:
        return [""] * 4
    each = [found["seconds"].get(name) for name in VARIANTS]
    share = f"{100 * found['limit_share']:.0f}% ({found['bound_by']})" if found["limit_share"] else ""
    return [*(f"{1e6 * seconds:.4g} us" if seconds else "" for seconds in each), share]


def _cell(said: str) -> str:
    return said.replace("|", "/").replace("\n", " ")


def _place(name: str) -> tuple[str, int]:
    level, _, rest = name.partition("/")
    return level, int(re.match(r"\d*", rest)[0] or 0)  # type: ignore[index]


def page(text: str, record: dict[str, Any]) -> str:
    """The text of the page with the table of a record."""
    return PART.sub(lambda match: match[1] + table(record) + match[2], text)


def gpu_page(text: str, record: dict[str, Any]) -> str:
    """The text of the page with the table of a GPU's record."""
    rows = sorted(record["rows"].values(), key=lambda r: _place(r["problem"]))
    return GPU_PART.sub(lambda match: match[1] + scoreboard_times.table(rows) + match[2], text)


def here(name: str = "") -> str:
    """This machine, or what of it is named, what runs on it, and the day."""
    named = ", ".join(f"{package} {version}" for package, version in versions().items())
    return f"{name or machine().name}, {named}, {datetime.datetime.now(datetime.UTC).date().isoformat()}"


def known(path: Path) -> dict[str, Any]:
    """The rows of a record, by problem."""
    return dict(json.loads(path.read_text(encoding="utf-8"))["rows"]) if path.is_file() else {}


def written(rows: dict[str, Any], out: Path) -> None:
    """The record, and its page if it is the one that is published."""
    record = {"rows": rows}
    texts = {out: json.dumps(record, indent=1) + "\n"}
    if out in (RECORD, GPU_RECORD):
        made = page if out == RECORD else gpu_page
        texts[PAGE] = made(PAGE.read_text(encoding="utf-8"), record)
    for path, new in texts.items():
        aside = path.with_suffix(".new")
        aside.write_text(new, encoding="utf-8")
        os.replace(aside, path)


def merged(rows: dict[str, Any], others: list[dict[str, Any]]) -> dict[str, Any]:
    """Rows with those of others in their places: one that was judged before one that was not, else the later."""
    found = dict(rows)
    for each in others:
        for name, one in each.items():
            if one["verdict"] != BEGUN and not (one["verdict"] in UNDONE and name in found):
                found[name] = carried(found.get(name), one)
    return found


@contextlib.contextmanager
def bounded(seconds: float, gib: float) -> Iterator[None]:
    """Raises Overrun in the block once it has taken so long, or its processes hold so much memory. The judge's work is
    done in processes of its own: this one waits for them, so that a signal is heard at once."""
    over = threading.Event()
    said: list[str] = []

    def heard(*_: object) -> None:
        raise Overrun(said[0] if said else "interrupted")

    def watch() -> None:
        until = time.monotonic() + seconds
        while not over.wait(0.5):
            held = _held_bytes(os.getpid()) / 2**30
            if time.monotonic() > until or held > gib:
                said.append(f"more than {seconds:.0f} s" if held <= gib else f"more than {gib:.0f} GiB")
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                return

    before = signal.signal(signal.SIGUSR1, heard)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        signal.signal(signal.SIGUSR1, before)


def _held_bytes(root: int) -> int:
    """What a process and all that descend from it hold in memory."""
    parents, held = {}, {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = Path(entry.path, "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
                parents[int(entry.name)] = int(fields.split()[1])
                held[int(entry.name)] = int(fields.split()[21]) * os.sysconf("SC_PAGE_SIZE")
    family, size = {root}, 0
    while len(family) > size:
        size = len(family)
        family |= {pid for pid, parent in parents.items() if parent in family}
    return sum(held.get(pid, 0) for pid in family)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--only", default="", help="of problems whose names contain one of these, by comma")
    parser.add_argument("--share", default="1/1", metavar="I/N", help="every N-th problem alone, from the I-th on")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, help="a file of its own for the rows, and no page")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="put rows into the record; judge none")
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which no further problem is begun")
    parser.add_argument("--until", type=float, default=float("inf"), help="the second of the epoch at which it ends")
    parser.add_argument("--most", type=float, help="seconds that a problem is given: 1800, of a GPU 180")
    parser.add_argument(
        "--jobs", type=int, default=JOBS, help="of a GPU: problems that are made ready beside each other"
    )
    parser.add_argument(
        "--peaks", type=Path, default=scoreboard_times.PEAKS, help="of a GPU, as `machine --json` has them"
    )
    parser.add_argument("--memory", type=float, default=16.0, help="GiB that a problem's processes may hold together")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--times", action="store_true", help="of what has none on record, too")
    parser.add_argument(
        "--search", type=float, default=0.0, metavar="SECONDS", help="of each problem, what has none, too"
    )
    parser.add_argument("--anew", action="store_true", help="forget what is on record")
    args = parser.parse_args()
    if bool(args.folders) == bool(args.merge):
        parser.error("one of the two: folders of problems, or --merge with files of rows")
    if not re.fullmatch(r"[1-9]\d*/[1-9]\d*", args.share) or share_of(args.share)[0] > share_of(args.share)[1]:
        parser.error(f"--share takes I/N with I from 1 to N, got {args.share!r}")
    args.most = args.most or MOST_S[args.device]
    args.out = args.out or (RECORD if args.device == "cpu" else GPU_RECORD)
    return args


def share_of(said: str) -> tuple[int, int]:
    first, _, step = said.partition("/")
    return int(first), int(step)


def problems(args: argparse.Namespace, rows: dict[str, Any]) -> Iterator[tuple[str, Path]]:
    """Those that are asked for and not on record."""
    files = (path for folder in args.folders for path in folder.glob("*.py"))
    order = sorted(files, key=lambda path: _place(f"{path.parent.name}/{path.name}"))
    first, step = share_of(args.share)
    for path in order[first - 1 :: step]:
        name = f"{path.parent.name}/{path.stem.rstrip('_')}"
        if any(word in name for word in args.only.split(",")) if args.only else name not in rows:
            yield name, path


def asked(name: str, path: Path, args: argparse.Namespace, held: contextlib.ExitStack, nursery: Nursery | None) -> Any:
    """The row of a problem and the nursery that is left: none where the problem took more than it is given."""
    start = time.monotonic()
    try:
        with bounded(min(args.until - time.time(), args.most), args.memory):
            nursery = nursery or held.enter_context(Nursery())
            return row(path, args, nursery), nursery
    except Overrun as error:
        held.close()
        if args.until - time.time() < 1.0:
            return None, None
        took = round(time.monotonic() - start, 1)
        return blank(name, OVER) | {"findings": [str(error)], "took_s": took}, None


def carried(before: dict[str, Any] | None, made: dict[str, Any]) -> dict[str, Any]:
    """A row with what an earlier run took the time for, if it is of the same text at the same sizes."""
    same = before is not None and all(before.get(k) == made.get(k) for k in ("text", "sizes", "threads"))
    return {k: before[k] for k in ("times", "search") if k in before} | made if same and before is not None else made


def blank(name: str, verdict: str) -> dict[str, Any]:
    return {"problem": name, "sizes": {}, "verdict": verdict, "findings": [], "reference": ""}


def main() -> None:
    args = _arguments()
    os.environ["KERNELWORKS_CHOOSE"] = "listed"  # a judge's process sees no tuning record: torch would run
    rows = {} if args.anew else known(args.out)
    if args.merge:
        written(merged(rows, [known(path) for path in args.merge]), args.out)
        return
    (on_cpu if args.device == "cpu" else on_gpu)(args, rows)


def on_gpu(args: argparse.Namespace, rows: dict[str, Any]) -> None:
    """Of each problem a row, written as it is made. One that failed is on record too: ``--only`` asks it again."""

    def tell(name: str, row: dict[str, Any]) -> None:
        if row["verdict"] != scoreboard_times.FAILED or name not in rows:
            rows[name] = row | {"machine": here(row.get("device", "a GPU"))}
            written(rows, args.out)
        print(name, scoreboard_times.said(row), flush=True)

    scoreboard_times.raced(dict(problems(args, rows)), args, tell)


def on_cpu(args: argparse.Namespace, rows: dict[str, Any]) -> None:
    base = known(RECORD) if args.out != RECORD and not args.anew else {}
    to_judge = dict(problems(args, base | rows))
    if (args.times or args.search) and args.only:
        to_judge = {name: path for name, path in to_judge.items() if name not in base | rows}
    judged(to_judge, args, rows)
    if args.times:
        on_the_clock(args, rows, base)
    if args.search:
        searched(args, rows, base)


def judged(files: dict[str, Path], args: argparse.Namespace, rows: dict[str, Any]) -> None:
    """Of each problem a row, written as it is made."""
    begin, on = time.monotonic(), here()
    nursery: Nursery | None = None
    with contextlib.ExitStack() as held:
        for name, path in files.items():
            if time.monotonic() - begin > args.seconds or args.until - time.time() < SHORTEST_S:
                break
            before = rows.get(name)
            if args.out != RECORD:  # whoever starts again after a process that was killed does not ask it once more
                rows[name] = before or blank(name, BEGUN) | {"machine": on}
                written(rows, args.out)
            made, nursery = asked(name, path, args, held, nursery)
            if made is None:  # the end of the time, not of what the problem is given
                if before is None:
                    rows.pop(name, None)
            else:
                rows[name] = carried(before, made | {"machine": on})
                print(name, made["verdict"], made["reference"], made["took_s"], flush=True)
            written(rows, args.out)


def on_the_clock(args: argparse.Namespace, rows: dict[str, Any], base: dict[str, Any]) -> None:
    """Times of those whose reference is right, at the sizes that they were judged at."""
    every, cores, on = base | rows, sorted(os.sched_getaffinity(0)), pinned_here(args.threads)
    files = right_without("times", args, every)

    def tell(name: str, row: dict[str, Any]) -> None:
        if "seconds" in row:
            rows[name] = every[name] | {"times": timed(row, on)}
            written(rows, args.out)
        print(name, scoreboard_times.said(row), flush=True)

    with tempfile.TemporaryDirectory(prefix="kernelworks-peaks-") as folder:
        args.peaks, args.jobs = Path(folder) / "peaks.json", min(args.jobs, len(cores))
        args.peaks.write_text(to_json(get_peaks(rough=True)), encoding="utf-8")
        scoreboard_times.raced(files, args, tell, {name: every[name]["sizes"] for name in files})


def searched(args: argparse.Namespace, rows: dict[str, Any], base: dict[str, Any]) -> None:
    """Schedules for those whose reference is right, at the sizes that they were judged at."""
    every, on, begin = base | rows, pinned_here(args.threads), time.monotonic()
    for name, path in right_without("search", args, every).items():
        if time.monotonic() - begin > args.seconds or args.until - time.time() < SHORTEST_S:
            break
        problem = problem_at(path, every[name]["sizes"])
        try:
            with bounded(min(args.until - time.time(), args.most), args.memory):
                found = scoreboard_search.searched(problem, args.search, args.threads, QUICK)
        except Overrun as error:
            found = scoreboard_search.nothing(args.search, str(error))
        rows[name] = every[name] | {"search": found | {"machine": on}}
        print(name, scoreboard_search.cell(found), flush=True)
        written(rows, args.out)


def right_without(what: str, args: argparse.Namespace, every: dict[str, Any]) -> dict[str, Path]:
    """The files of those whose reference is right and that have none of it yet; all of them that ``--only`` names."""
    return {
        name: path for name, path in problems(args, {})
        if every.get(name, {}).get("reference") == "right" and (args.only or what not in every[name])
    }  # fmt: skip


def pinned_here(threads: int) -> str:
    """This machine with the threads and the cores that are used of it."""
    cores = os.sched_getaffinity(0)
    pinned = f", pinned to {len(cores)} of {os.cpu_count()} cores" if len(cores) != os.cpu_count() else ""
    return here(f"{machine().name}, {threads} thread{'s' if threads > 1 else ''}{pinned}")


if __name__ == "__main__":
    main()
