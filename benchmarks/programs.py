"""The suite of programs: eager, torch's switches, our backend, ``--fix`` and its plan, each in a process of its own.

    python benchmarks/programs.py [--only encoder,lstm] [--modes default,fix] [--seconds 1500] [--out FILE]

| mode | what runs |
|---|---|
| ``eager`` | the program as its author wrote it, twice in turns: how far two equal variants differ |
| ``default``, ``reduce-overhead`` (on a GPU), ``max-autotune-no-cudagraphs`` | ``model.compile`` with that mode |
| ``kernelworks`` | ``model.compile(backend="kernelworks")`` |
| ``fix`` | ``kernelworks diagnose FILE:PROGRAM --fix --json`` |
| ``plan`` | ``kernelworks.apply`` of the plan of the fix on record, beside torch's switches: one process for all |

Every switch is timed in turns with eager, after everything is compiled; ``fix`` brings its own turns. A mode that
raises or takes too long is an entry that says so. What is on record is not measured again (``--again`` does) unless its
runs lay far apart, so the suite can be measured part by part: ``--seconds`` ends it in time, nothing that was cut off
is recorded, and what is left is said.

The switches beside a plan are those that ran in processes of their own; if none is on record, all of them but a GPU's
max-autotune, which takes minutes. So ``--modes fix,plan`` is the shortest record that compares a program with them,
whether its fix found a plan or nothing.

A record is useful wherever it ends: ``--by N`` programs (as many as ``--together``) have all their variants, then their
fixes and plans, then come the next N. On a GPU those that torch compiles soonest come first.

``--together N``, for a machine with many cores: torch's switches prepare in N processes at once, and as soon as one has
ended the next begins. Whichever has compiled everything is timed there and then, while the others, compilers and all,
are halted (SIGSTOP), and their time limits with them: one that takes long holds up itself alone. What fails for want of
memory beside others has another turn without them. Compilers have their shares of the cores, unless
TORCHINDUCTOR_COMPILE_THREADS says how many. What max-autotune measures while it chooses is disturbed by its neighbours;
torch keeps what it chose, so a fix of the same program has that too. What a fix, our backend and a plan measure is not
disturbed: each has the machine alone.

All processes share torch's caches of compiled code: TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR, by default torch's
own folders, which are the user's and stay. A fix comes after torch's switches of the same program and finds what they
compiled, as it would where somebody had tried them before.

The record goes to ``benchmarks/results/programs-cpu.json`` or ``programs-cuda.json``; ``make docs`` makes the tables.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from program_variant import KEPT_PLAN, MODES, PLAN, PROGRAMS, SWITCHES
from side_by_side import LEAST_S, RESULT, Entry, Heard, Started, Task, end_on_sigterm, side_by_side

from kernelworks.machine import environment
from kernelworks.measure.bench.results import head as provenance
from kernelworks.records.json_text import format_lines
from kernelworks.report import programs as report

HERE = Path(__file__).resolve().parent
PATH = re.compile(r"(?<![\w.~-])/(?:[^\s/\"':]+/)+([^\s/\"':]+)")  # of a file from its machine's root
ON_GPU = torch.cuda.is_available()
ALL = ("eager", "default", "reduce-overhead", "fix", "kernelworks", "max-autotune-no-cudagraphs", PLAN)
ALONE = ("kernelworks", PLAN)  # what measures while it prepares
# Beside a plan, of a program that was not compiled on its own: max-autotune takes minutes of a GPU.
UNTRIED = ("default", "reduce-overhead" if ON_GPU else "max-autotune-no-cudagraphs")
# As torch compiles them on a GPU, by the ops that it traces: few and plain ones first.
QUICKEST = (
    "input_bound", "lstm", "ridge", "overhead_bound", "recommender", "conv_inference", "vit", "encoder", "autocast",
    "trainer", "speech", "conv_training", "prefill", "moe", "diffusion", "translate", "decode", "state_space",
)  # fmt: skip
Files = Mapping[str, Any]
KEPT = (
    "before_s", "after_s", "gain_s", "predicted_gain_s", "noise_s", "rounds", "refused", "ambiguous", "rough", "agrees",
    "error_before", "error_after", "against", "notes", "code", "plan", "budget_s",
)  # fmt: skip
TRIED = ("optimization", "place", "outcome", "why", "predicted_gain_s", "gain_s", "cost_s")


def head() -> dict[str, Any]:
    """Machine, date, commit, versions."""
    threads = {} if ON_GPU else {"threads": torch.get_num_threads()}
    return {**provenance("cuda" if ON_GPU else "cpu", ("transformers", "triton")), **threads}


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _short(value: Any) -> Any:
    if isinstance(value, dict) and all(isinstance(each, float) for each in value.values()):
        return {key: _short(each) for key, each in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value


class Record:
    """The results file. Rows of another machine, or of another version of torch, are not continued."""

    def __init__(self, path: Path) -> None:
        self.path, self.head = path, head()
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}
        if path.is_file():
            known = json.loads(path.read_text(encoding="utf-8"))
            same = all(known.get(key) == self.head.get(key) for key in ("versions", "threads"))
            if same and known["machine"]["kind"] == self.head["machine"]["kind"]:
                self.rows = {(row["program"], row["mode"]): row for row in known["rows"]}
            else:
                print(f"{path.name} is of another machine or other versions: begun anew", file=sys.stderr)

    def switches(self, program: str) -> list[str]:
        """Torch's switches under which a program ran; those to try if no process had one."""
        tried = [mode for mode in report.SWITCHES if (program, mode) in self.rows]
        return [mode for mode in tried if "failed" not in self.rows[program, mode]] if tried else list(UNTRIED)

    def keep(self, program: str, mode: str, found: dict[str, Any]) -> None:
        figures = {key: _short(value) for key, value in found.items()}
        if "failed" in figures:  # where it lies on this machine says nothing
            figures["failed"] = PATH.sub(r"\1", figures["failed"])
        row = {"program": program, "mode": mode, **figures, "date": now(), "commit": self.head["commit"]}
        self.rows[program, mode] = row
        text = format_lines({**self.head, "rows": list(self.rows.values())}) + "\n"
        environment.write_whole(self.path, text, f"{self.path.stem}-")
        print(report.line(row), flush=True)


# ---------------------------------------------------------------- processes


def run_variants(
    tasks: Iterable[Task],
    scratch: Path,
    limit: float,
    end: float,
    tell: Callable[[Task, Entry | None], None],
    *,
    together: int = 1,
    given: Mapping[str, Files] | None = None,
) -> None:
    """Each task in a process of its own (``side_by_side``). ``given`` are files that a program's process finds in its
    folder, what they hold by their names."""

    def start(task: Task, heard: Heard) -> Started:
        name, mode = task
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-{mode}-", dir=scratch))
        for file, holds in (given or {}).get(name, {}).items():
            (folder / file).write_text(json.dumps(holds), encoding="utf-8")
        command = [sys.executable, str(HERE / "program_variant.py"), name, mode, str(scratch / "answers")]
        return Started([*command, str(folder / RESULT)], folder, limit, heard=heard, environment=_shares(together))

    side_by_side(tasks, start, end=end, together=together, tell=tell)


def _shares(together: int) -> dict[str, str]:
    """The cores for the compilers of one of so many processes: twice its share, as most of them trace at any time."""
    if together == 1 or "TORCHINDUCTOR_COMPILE_THREADS" in os.environ:
        return {}
    return {"TORCHINDUCTOR_COMPILE_THREADS": str(max(2 * len(os.sched_getaffinity(0)) // together, 2))}


def fixed(name: str, file: str, scratch: Path, limit: float, end: float, more: list[str]) -> Entry | None:
    """One program under ``diagnose --fix``; None where the end of the time cut it off."""
    target = f"{PROGRAMS / file}:{name}"
    command = [sys.executable, "-m", "kernelworks", "diagnose", target, "--fix", "--json", *more]
    begin = time.monotonic()
    process = Started(command, Path(tempfile.mkdtemp(prefix=f"{name}-fix-", dir=scratch)), limit)
    try:
        ended = process.ended.wait(timeout=max(min(process.deadline, end) - begin, 0.0))
    finally:
        process.end()
    if not ended:
        return None if process.deadline > end else process.took_too_long()
    text = process.all_said()
    try:
        record = json.loads(text[text.index("{") :])
    except ValueError:
        return {"failed": f"exit code {process.process.returncode}: {process.last()}"}
    if record["fix"] is None:
        return {"failed": record["sentence"]}
    breakdown, wall, fix = record["time_breakdown"], record["wall_s"], record["fix"]
    return {
        **{key: fix[key] for key in KEPT if key in fix},
        **({"predicted_gain_s": None} if fix["unknown_prediction"] else {}),
        "optimizations": [{key: tried[key] for key in TRIED} for tried in fix["optimizations"]],
        "wall_s": wall, "sentence": record["sentence"], "time_breakdown": sum(breakdown.values()) / wall,
        "unexplained": breakdown.get("unexplained", 0.0) / wall, "exit": process.process.returncode,
        "took_s": time.monotonic() - begin,
    }  # fmt: skip


def again(
    record: Record, name: str, scratch: Path, limit: float, end: float, tell: Callable[[Task, Entry | None], None]
) -> None:
    """A program with the plan of its fix on record, in turns with the switches that ran, and beside what it gained what
    the fix had gained. A process in which a switch raises measures nothing: the next goes without that one."""
    fix = record.rows[name, "fix"]
    gained = {"then": fix["after_s"] / fix["before_s"], "of": fix["date"]}
    plan = {KEPT_PLAN.name: fix["plan"]} if fix.get("plan") else {}
    raised: list[str] = list(record.rows.get((name, PLAN), {}).get("raised", ()))
    while True:
        found: list[Entry | None] = []
        switches = [mode for mode in record.switches(name) if mode not in raised]
        given = {name: {**plan, SWITCHES.name: switches}}
        run_variants([(name, PLAN)], scratch, limit, end, lambda _, entry: found.append(entry), given=given)  # noqa: B023
        entry = found[0] if found else None
        if entry is None or "raised" not in entry:
            break
        raised += entry["raised"]
    tell((name, PLAN), entry and {**entry, **({"raised": raised} if raised else {}), **gained})


def to_do(record: Record, wanted: list[Task], *, again: bool) -> tuple[list[Task], list[Task]]:
    """What is not on record, or of another fix's plan; and what is, and is rough."""

    def known(task: Task) -> bool:
        row, fix = record.rows.get(task), record.rows.get((task[0], "fix"))
        return row is not None and (task[1] != PLAN or fix is None or row["of"] == fix["date"])

    tasks = [task for task in wanted if again or not known(task)]
    return tasks, [task for task in wanted if task not in tasks and report.is_rough(record.rows[task])]


def in_groups(tasks: list[Task], programs: list[str], by: int) -> list[list[Task]]:
    """The tasks in the order in which they are done, those together that may be prepared at once: of ``by`` programs at
    a time torch's switches, mode by mode, then each of the others by itself."""
    groups = []
    for first in range(0, len(programs), by):
        some = [task for task in tasks if task[0] in programs[first : first + by]]
        apart = [task for task in some if task[1] in (*ALONE, "fix")]
        switches = [task for task in some if task not in apart]
        groups += [switches] * bool(switches) + [[task] for task in apart]
    return groups


def left(tasks: Iterable[Task]) -> str:
    """The tasks by their modes, in words."""
    by_mode: dict[str, list[str]] = {}
    for name, mode in tasks:
        by_mode.setdefault(mode, []).append(name)
    return "; ".join(f"{mode} of {', '.join(names)}" for mode, names in by_mode.items())


def measure(
    record: Record, groups: list[list[Task]], files: Mapping[str, str], scratch: Path, given: argparse.Namespace
) -> list[Task]:
    """Does the tasks, and records what came of each; those that are left when the time ends."""
    end = time.monotonic() + given.seconds
    todo = [task for group in groups for task in group]

    def tell(task: Task, entry: Entry | None) -> None:
        if entry is not None:
            todo.remove(task)
            record.keep(*task, entry)

    for group in groups:
        if end - time.monotonic() < LEAST_S:
            break
        name, mode = group[0]
        if mode == PLAN and "failed" in record.rows.get((name, "fix"), {"failed": ""}):
            todo.remove(group[0])
            print(f"{name:15s} {PLAN}: no fix of it is on record, or it failed")
        elif mode == PLAN:
            again(record, name, scratch, given.limit, end, tell)
        elif mode == "fix":
            limit = given.fix_limit or given.limit
            tell(group[0], fixed(name, files[name], scratch, limit, end, given.fix_with.split()))
        else:
            run_variants(group, scratch, given.limit, end, tell, together=1 if mode in ALONE else given.together)
    return todo


def main() -> int:
    sys.path.insert(0, str(PROGRAMS))
    import suite

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(QUICKEST if ON_GPU else suite.PAIRS), help="names of programs")
    parser.add_argument("--modes", default=",".join(ALL))
    parser.add_argument("--seconds", type=float, default=1e9, help="after which nothing is measured any more")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one program and mode")
    parser.add_argument("--fix-limit", type=float, default=0, help="seconds for one fix, by default those of --limit")
    parser.add_argument("--together", type=int, default=1, help="processes of torch's switches at once")
    parser.add_argument("--by", type=int, default=0, help="programs done before the next, by default --together")
    parser.add_argument("--again", action="store_true", help="also what is on record")
    parser.add_argument("--fix-with", default="", help='more words for diagnose, such as "--rough --budget 60"')
    parser.add_argument("--out", type=Path, default=HERE / "results" / f"programs-{'cuda' if ON_GPU else 'cpu'}.json")
    given = parser.parse_args()
    programs, modes = given.only.split(","), [m for m in given.modes.split(",") if ON_GPU or m != "reduce-overhead"]
    unknown = [n for n in programs if n not in suite.PAIRS] + [m for m in modes if m not in (*MODES, "fix", PLAN)]
    if unknown:
        parser.error(f"no program or mode of the suite: {', '.join(unknown)}")
    if given.together < 1 or given.by < 0:
        parser.error(f"--together {given.together} --by {given.by}: at least one process, of at least one program")
    end_on_sigterm()
    record = Record(given.out)
    wanted, by = [(p, m) for m in modes for p in programs], given.by or given.together
    missing, rough = to_do(record, wanted, again=given.again)
    groups = in_groups(missing, programs, by) + in_groups(rough, programs, by)
    scratch = Path(tempfile.mkdtemp(prefix="programs-"))  # logs stay there
    tasks = measure(record, groups, suite.FILES, scratch, given)
    print(f"\n{report.summary(list(record.rows.values()))}{f'. Left: {left(tasks)}' if tasks else ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
