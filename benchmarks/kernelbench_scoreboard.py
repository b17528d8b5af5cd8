"""The scoreboard of KernelBench's problems on this machine's CPU: is the reference sound, does the judge take it for
right, and, on a quiet machine, how quick are torch, its compiler and our kernels there:

    python benchmarks/kernelbench_scoreboard.py KERNELBENCH/level1 ... [--only NAMES] [--seconds 3600] [--times]

writes ``docs/reference/kernelbench-scoreboard.md`` from its record. The problems' files are the user's own; none is
kept here. Each problem is judged at the sizes that ``check-problem`` halves it to. What is on record is kept, but for
what ``--only`` names; ``--anew`` forgets it. Times are taken with ``--times`` alone, and only of a problem during which
others left the machine alone: a row without them goes without. Ours is the problem's module after a swap, with the
kernels that are verified on this kind of machine; where none is, torch runs there too.
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
import time
from pathlib import Path
from typing import Any

from kernelworks.judge import Budget, judge_all
from kernelworks.judge.formats import kernelbench
from kernelworks.judge.problem import Problem
from kernelworks.judge.problem_check import check_problem
from kernelworks.judge.process.pool import Nursery
from kernelworks.machine import machine
from kernelworks.measure.clock.noise import LIMIT, with_noise
from kernelworks.profile.program import versions
from kernelworks.records.judgement import Judgement
from kernelworks.records.problem_check import WEAK, WORTH

HERE = Path(__file__).resolve().parents[1]
RECORD = HERE / "benchmarks" / "results" / "kernelbench-scoreboard.json"
PAGE = HERE / "docs" / "reference" / "kernelbench-scoreboard.md"
PART = re.compile(
    r"(<!-- written by benchmarks/kernelbench_scoreboard.py -->\n).*?(<!-- end -->)",
    re.S,
)
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
FULL = dataclasses.replace(QUICK, reference_s=20.0, most_cases=48, many=200, many_s=3.0, looks=2, gradients=2)
VARIANTS = ("eager", "compiled", "ours")


def said_of(found: Judgement) -> str:
    why = f": {found.reasons[0].kind}: {found.reasons[0].said[:160]}" if found.reasons else ""
    return found.verdict + why


def timed(found: Judgement) -> dict[str, Any]:
    """Seconds of a call by each, and the least time as a share of ours."""
    seconds = {one.variant: one.median_s for one in found.paces}
    limit, ours = found.limit_s or 0.0, seconds.get("ours", 0.0)
    return {"seconds": seconds, "limit_s": limit, "limit_share": limit / ours if ours else 0.0,
            "bound_by": found.bound_by}  # fmt: skip


def row(path: Path, threads: int, times: bool, nursery: Nursery) -> dict[str, Any]:
    source = re.sub(r""",\s*device=["']cuda["']""", "", path.read_text(encoding="utf-8"))
    problem = kernelbench.problem_in(path, source)
    begin = time.perf_counter()
    found = check_problem(problem, device="cpu", threads=threads, nursery=nursery)
    kinds = [one.kind for one in found.findings]
    fatal = [one.kind for one in found.findings if one.fatal]
    made: dict[str, Any] = {
        "problem": f"{path.parent.name}/{path.stem.rstrip('_')}", "sizes": found.sizes, "verdict": found.verdict,
        "text": hashlib.sha256(source.encode()).hexdigest()[:16], "findings": fatal or kinds, "reference": "",
        "threads": threads,
    }  # fmt: skip
    if found.verdict in (WORTH, WEAK):
        shape = dataclasses.replace(problem.shapes[0], sizes={**problem.shapes[0].sizes, **found.sizes})
        smaller = dataclasses.replace(problem, shapes=(shape,))
        made |= _judged(smaller, source, threads, times, nursery)
    return made | {"took_s": round(time.perf_counter() - begin, 1)}


def _judged(problem: Problem, source: str, threads: int, times: bool, nursery: Nursery) -> dict[str, Any]:
    """The reference as a candidate, and what it is timed against."""
    plain = kernelbench.candidate_in(Path("reference.py"), re.sub(r"\bModel\b", "ModelNew", source))
    over, budget = (VARIANTS, FULL) if times else (VARIANTS[:1], QUICK)
    (found,), noise = with_noise(
        lambda: judge_all([plain], problem, over=over, budget=budget, threads=threads, nursery=nursery)
    )
    quiet = times and noise.share <= LIMIT and found.verdict == "right"
    return {"reference": said_of(found)} | ({"times": timed(found)} if quiet else {})


def table(record: dict[str, Any]) -> str:
    rows = sorted(record["rows"].values(), key=lambda r: _place(r["problem"]))
    judged = [r for r in rows if r["reference"]]
    right = sum(r["reference"] == "right" for r in judged)
    clocked = [r for r in rows if r.get("times")]
    lines = [
        f"{len(rows)} problems; {len(judged)} are worth a score. The judge takes {right} of their references for "
        f"right. Times are on record for {len(clocked)}.",
        "", "| problem | sizes | sound | its reference | eager | compiled | ours | share of the limit |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for r in rows:
        sizes = ", ".join(f"`{name}={size}`" for name, size in r["sizes"].items()) or "its own"
        sound = r["verdict"] + (f": {', '.join(dict.fromkeys(r['findings']))}" if r["findings"] else "")
        lines.append(
            f"| {r['problem']} | {sizes} | {sound} | {_cell(r['reference'])} | {' | '.join(_times(r.get('times')))} |"
        )
    named = ", ".join(f"{package} {version}" for package, version in record["versions"].items())
    return "\n".join([*lines, "", f"<sub>{record['machine']}, {named}, {record['date']}</sub>", ""])


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


def written(rows: dict[str, Any]) -> None:
    record = {
        "rows": rows, "machine": machine().name, "versions": versions(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }  # fmt: skip
    text = page(PAGE.read_text(encoding="utf-8"), record)
    for path, new in ((RECORD, json.dumps(record, indent=1) + "\n"), (PAGE, text)):
        aside = path.with_suffix(".new")
        aside.write_text(new, encoding="utf-8")
        os.replace(aside, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument(
        "--only",
        default="",
        help="of problems whose names contain one of these, by comma",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=3600.0,
        help="after which no further problem is begun",
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--times", action="store_true", help="of what has none on record, too")
    parser.add_argument("--anew", action="store_true")
    args = parser.parse_args()
    os.environ["KERNELWORKS_CHOOSE"] = "listed"  # a judge's process sees no tuning record: torch would run
    rows = {} if args.anew or not RECORD.is_file() else json.loads(RECORD.read_text(encoding="utf-8"))["rows"]
    begin = time.monotonic()
    with contextlib.ExitStack() as stack:
        nursery = stack.enter_context(Nursery())
        files = (path for folder in args.folders for path in folder.glob("*.py"))
        for path in sorted(files, key=lambda path: _place(f"{path.parent.name}/{path.name}")):
            name = f"{path.parent.name}/{path.stem.rstrip('_')}"
            there = name in rows and (not args.times or "times" in rows[name])
            if args.only and not any(word in name for word in args.only.split(",")):
                continue
            if (there and not args.only) or time.monotonic() - begin > args.seconds:
                continue
            rows[name] = row(path, args.threads, args.times, nursery)
            found = rows[name]
            print(name, found["verdict"], found["reference"], found["took_s"], flush=True)
            written(rows)


if __name__ == "__main__":
    main()
