"""Which of KernelBench's problems are worth a score, and whether the judge passes their references as candidates:

    python benchmarks/kernelbench.py KERNELBENCH/level1 KERNELBENCH/level2 [--only NAMES] [--seconds 3600]

writes the table of docs/reference/check-problem-kernelbench.md from folders with KernelBench's files. Sizes for a GPU
are halved until they fit (as ``check-problem`` does), and the reference is judged at those. What is on record is
kept, but for what ``--only`` names; ``--anew`` forgets it.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import re
import time
from pathlib import Path
from typing import Any

from kernelworks.judge import Budget, judge
from kernelworks.judge.formats import kernelbench
from kernelworks.judge.problem import Problem
from kernelworks.judge.problem_check import check_problem
from kernelworks.machine import machine
from kernelworks.profile.program import versions
from kernelworks.records.problem_check import WEAK, WORTH, ProblemCheck

HERE = Path(__file__).resolve().parents[1]
RECORD = HERE / "benchmarks" / "results" / "kernelbench-lint.json"
PAGE = HERE / "docs" / "reference" / "check-problem-kernelbench.md"
PART = re.compile(r"(<!-- written by benchmarks/kernelbench.py -->\n).*?(<!-- end -->)", re.S)
BUDGET = Budget(reference_s=5.0, most_cases=8, many=100, many_s=2.0)


def judged(problem: Problem, found: ProblemCheck) -> str:
    """The reference as a candidate, at the sizes that were looked at."""
    shape = dataclasses.replace(problem.shapes[0], sizes={**problem.shapes[0].sizes, **found.sizes})
    smaller = dataclasses.replace(problem, shapes=(shape,))
    source = re.sub(r"\bModel\b", "ModelNew", problem.files[kernelbench.FILE])
    record = judge(kernelbench.candidate_in(Path("reference.py"), source), smaller, budget=BUDGET)
    why = f": {record.reasons[0].kind}: {record.reasons[0].said}" if record.reasons else ""
    return record.verdict + why


def row(path: Path) -> dict[str, Any]:
    source = re.sub(r""",\s*device=["']cuda["']""", "", path.read_text(encoding="utf-8"))
    problem = kernelbench.problem_in(path, source)
    found = check_problem(problem, device="cuda")
    begin = time.perf_counter()
    worth = found.verdict in (WORTH, WEAK)
    verdict = judged(problem, found) if worth else ""
    return {
        "problem": f"{path.parent.name}/{path.stem.rstrip('_')}", "verdict": found.verdict,
        "findings": [dataclasses.asdict(one) for one in found.findings], "sizes": found.sizes,
        "seconds": round(found.seconds, 1), "reference": verdict, "judged_s": round(time.perf_counter() - begin, 1),
    }  # fmt: skip


def table(record: dict[str, Any]) -> str:
    rows = sorted(record["rows"].values(), key=lambda r: _place(r["problem"]))
    verdicts = [r["verdict"] for r in rows]
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(sorted(verdicts)))
    passed = [r for r in rows if r["reference"]]
    right = sum(r["reference"] == "right" for r in passed)
    lines = [
        f"{len(rows)} problems: {counts}. The judge passes {right} references of the {len(passed)} worth a score.",
        "",
        "| problem | verdict | why | looked at with | its reference as a candidate |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for r in rows:
        why = "; ".join(f"{f['kind']}: {_short(f['said'])}" for f in r["findings"])
        sizes = ", ".join(f"`{name}={size}`" for name, size in r["sizes"].items()) or "its own sizes"
        lines.append(f"| {r['problem']} | {r['verdict']} | {why} | {sizes} | {r['reference']} |")
    named = ", ".join(f"{package} {version}" for package, version in record["versions"].items())
    return "\n".join([*lines, "", f"<sub>{record['machine']}, {named}, {record['date']}</sub>", ""])


def _place(name: str) -> tuple[str, int]:
    level, _, rest = name.partition("/")
    return level, int(re.match(r"\d*", rest)[0] or 0)  # type: ignore[index]


def _short(said: str) -> str:
    """What was seen, without what follows from it, which the page says."""
    return said.split(": ")[0].replace("|", "/")


def written(record: dict[str, Any]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    page = PART.sub(lambda match: match[1] + table(record) + match[2], text)
    for path, new in ((RECORD, json.dumps(record, indent=1) + "\n"), (PAGE, page)):
        aside = path.with_suffix(".new")
        aside.write_text(new, encoding="utf-8")
        os.replace(aside, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--only", default="", help="of problems whose names contain one of these, by comma")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--anew", action="store_true")
    args = parser.parse_args()
    rows = {} if args.anew or not RECORD.is_file() else json.loads(RECORD.read_text(encoding="utf-8"))["rows"]
    begin = time.monotonic()
    for path in sorted(p for folder in args.folders for p in folder.glob("*.py")):
        name = f"{path.parent.name}/{path.stem.rstrip('_')}"
        wanted = not args.only or any(word in name for word in args.only.split(","))
        if (name in rows and not args.only) or not wanted or time.monotonic() - begin > args.seconds:
            continue
        rows[name] = row(path)
        print(name, rows[name]["verdict"], rows[name]["reference"], flush=True)
        record = {
            "rows": rows, "machine": machine().name, "versions": versions(),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        }  # fmt: skip
        written(record)


if __name__ == "__main__":
    main()
