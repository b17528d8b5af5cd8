"""KernelBench's problems as they are, on a GPU: the reference of each goes before the judge as its own candidate.

    python benchmarks/kernelbench_on_gpu.py KERNELBENCH/level1 KERNELBENCH/level2 [--jobs 7] [--threads 2] \\
        [--seconds 600] [--order FILE] [--rows rows.jsonl] [--peaks FILE]

judges several beside each other, which share the GPU by turns, and appends a line of JSON for each to ``--rows``. Those
that are in it are left out, so it goes on where it was stopped. ``--order`` names files in the order in which they are
taken. ``--write`` puts the rows on record, and the table of docs/reference/check-problem-kernelbench.md beside what the
problem check says of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
RESULTS = HERE / "benchmarks" / "results"
RECORD, CHECKED = RESULTS / "kernelbench-on-gpu.json", RESULTS / "kernelbench-lint.json"
PAGE = HERE / "docs" / "reference" / "check-problem-kernelbench.md"


MARK = "<!-- written by benchmarks/kernelbench_on_gpu.py -->"
SECTION = f"""
## At their own sizes, on a GPU

As they are, `python benchmarks/kernelbench_on_gpu.py KERNELBENCH/level1 KERNELBENCH/level2` has the judge take each
problem's reference as a candidate, several beside each other on one GPU.

{MARK}
<!-- end -->
"""


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.stem.rstrip('_')}"


def paths(args: argparse.Namespace) -> list[Path]:
    found = sorted(p for folder in args.folders for p in folder.glob("*.py"))
    if args.order is None:
        return found
    wanted = args.order.read_text(encoding="utf-8").split()
    return sorted(
        (p for p in found if any(named(p).startswith(word) for word in wanted)),
        key=lambda p: next(n for n, word in enumerate(wanted) if named(p).startswith(word)),
    )


# ---------------------------------------------------------------- one process


def claimed(path: Path, rows: Path) -> Any:
    """A lock that nobody else has and that ends with this process; None if a row is there, or another is at it."""
    file = open(rows.with_name(f"{rows.name}.{named(path).replace('/', '-')}.lock"), "w")  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    there = rows.read_text(encoding="utf-8").splitlines() if rows.exists() else []
    if any(json.loads(line)["problem"] == named(path) for line in there):
        file.close()
        return None
    return file


def judging(args: argparse.Namespace, number: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, [cores[(number * args.threads + i) % len(cores)] for i in range(args.threads)])
    from kernelworks.judge.process.pool import Nursery
    from kernelworks.measure.peaks import get_peaks
    from kernelworks.records import GpuPeaks, from_json

    given = None if args.peaks is None else json.loads(args.peaks.read_text(encoding="utf-8"))["peaks"]
    limits = get_peaks(rough=True, device="cuda") if given is None else from_json(GpuPeaks, json.dumps(given))
    with Nursery() as nursery:
        for path in paths(args):
            held = claimed(path, args.rows)
            if held is None:
                continue
            row = judged(path, args.threads, limits, nursery)
            with open(args.rows, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            held.close()


def judged(path: Path, threads: int, limits: Any, nursery: Any) -> dict[str, Any]:
    from kernelworks.judge.formats import kernelbench, problem_on_device
    from kernelworks.judge.harness import Budget
    from kernelworks.judge.session import Sitting
    from kernelworks.search.workers import cores as shares

    budget = Budget(
        reference_s=0.5, least_cases=3, most_cases=3, many=12, many_s=0.3, looks=1, shapes=0, gradients=0, build_s=90.0,
        answer_s=30.0, all_reasons=False,
    )  # fmt: skip
    begin, source = time.monotonic(), path.read_text(encoding="utf-8")
    problem = problem_on_device(kernelbench.problem_in(path, source), "cuda")
    candidate = kernelbench.candidate_in(Path("reference.py"), re.sub(r"\bModel\b", "ModelNew", source))
    row: dict[str, Any] = {"problem": named(path)}
    alone, beside = shares.turns("cuda")
    try:
        with Sitting(
            problem, nursery=nursery, budget=budget, peaks=limits, threads=threads, alone=alone, beside=beside
        ) as sitting:
            row["set_up_s"] = round(time.monotonic() - begin, 1)
            found = sitting.judge(candidate)
    except Exception as error:  # of any kind: the next problem is another one
        said = f"{type(error).__name__}: {error}"[:400]
        return row | {"verdict": "failed", "reasons": [said], "seconds": round(time.monotonic() - begin, 1)}
    return row | {
        "verdict": found.verdict, "reasons": [f"{one.kind}: {one.said}"[:400] for one in found.reasons],
        "remarks": [f"{one.kind}: {one.said}"[:200] for one in found.remarks], "worst": found.worst,
        "calls": found.calls, "bound": list(found.bound)[:2], "machine": found.machine, "date": found.date,
        "versions": found.versions, "paces": [dataclasses.asdict(one) for one in found.paces],
        "seconds": round(time.monotonic() - begin, 1),
    }  # fmt: skip


# ---------------------------------------------------------------- all of them


def beside_each_other(args: argparse.Namespace) -> None:
    """Processes that judge, until all is judged or the time is over."""
    begin = time.monotonic()
    command = [sys.executable, __file__, *sys.argv[1:]]
    hands = [
        subprocess.Popen([*command, "--number", str(number)], start_new_session=True) for number in range(args.jobs)
    ]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        while time.monotonic() - begin < args.seconds and any(hand.poll() is None for hand in hands):
            time.sleep(0.5)
    finally:
        for hand in hands:
            if hand.poll() is None:
                os.killpg(hand.pid, signal.SIGKILL)
            hand.wait()


def read(rows: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()] if rows.exists() else []


def problem_check(row: dict[str, Any]) -> str:
    """What the problem check says of it at sizes of a CPU; "" where it has not looked."""
    if CHECKED.is_file():
        found = json.loads(CHECKED.read_text(encoding="utf-8"))["rows"].get(row["problem"])
        return "" if found is None else str(found["verdict"])
    return ""


def why(row: dict[str, Any]) -> str:
    return "; ".join(row.get("reasons", [])).replace("|", "/").replace("\n", " ")


def counted(rows: list[dict[str, Any]]) -> str:
    verdicts = [row["verdict"] for row in rows]
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(sorted(verdicts)))
    sound = [row for row in rows if problem_check(row) not in ("", "not worth scoring")]
    right = sum(row["verdict"] == "right" for row in sound)
    worth = f"Of {len(sound)} that the problem check finds worth a score the judge passes {right}."
    return f"{len(rows)} problems: {counts}. {worth}"


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        counted(rows),
        "",
        "| problem | its reference as a candidate | worst, of the bound | problem check |",
        "|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda r: (r["problem"].split("/")[0], int(re.findall(r"/(\d+)", r["problem"])[0]))):
        worst = f"{row['worst']:.2f}" if row.get("worst") is not None else ""
        said = row["verdict"] if row["verdict"] == "right" else why(row)[:160] or row["verdict"]
        lines.append(f"| {row['problem']} | {said} | {worst} | {problem_check(row)} |")
    first = next((row for row in rows if "machine" in row), {})
    told = ", ".join(f"{package} {version}" for package, version in first.get("versions", {}).items())
    return "\n".join([*lines, "", f"<sub>{first.get('machine', '')}, {told}, {first.get('date', '')[:10]}</sub>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--jobs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2, help="of each")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--order", type=Path)
    parser.add_argument("--rows", type=Path, default=Path("kernelbench-on-gpu.jsonl"))
    parser.add_argument("--peaks", type=Path, help="what `kernelworks machine --device cuda --json` wrote")
    parser.add_argument("--write", action="store_true", help="put the rows on record, and the page's table")
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.number is not None:
        judging(args, args.number)
        return
    if args.folders:
        if args.peaks is None:
            from kernelworks.measure.peaks import get_peaks

            get_peaks(rough=True, device="cuda")  # before others are at work there; kept for them
        beside_each_other(args)
    rows = read(args.rows)
    for row in rows:
        worst = f"{row['worst']:.2f}" if row.get("worst") is not None else "-"
        print(f"{row['problem']:60s} {row['verdict']:10s} {worst:5s} {row['seconds']:5.1f} s  {why(row)[:100]}")
    print(counted(rows))
    if args.write:
        RECORD.write_text(
            json.dumps({"rows": {row["problem"]: row for row in rows}}, indent=1) + "\n", encoding="utf-8"
        )
        page = PAGE.read_text(encoding="utf-8")
        page = page if MARK in page else page.rstrip("\n") + "\n" + SECTION
        before, _, rest = page.partition(MARK)
        behind = rest.partition("<!-- end -->")[2]
        PAGE.write_text(f"{before}{MARK}\n{table(rows)}<!-- end -->{behind}", encoding="utf-8")


if __name__ == "__main__":
    main()
