"""The suite of programs: eager, torch's switches, our backend, ``--fix`` and its plan, each in a process of its own.

    python benchmarks/programs.py [--only encoder,lstm] [--modes default,fix] [--seconds 1500] [--out FILE]

| mode | what runs |
|---|---|
| ``eager`` | the program as its author wrote it, twice in turns: what two arms differ by where nothing differs |
| ``default``, ``reduce-overhead`` (on a GPU), ``max-autotune-no-cudagraphs`` | ``model.compile`` with that mode |
| ``kernelworks`` | ``model.compile(backend="kernelworks")`` |
| ``fix`` | ``kernelworks diagnose FILE:PROGRAM --fix --json`` |
| ``plan`` | ``kernelworks.apply`` of the plan of the fix on record, beside the switches that ran: one process for all |

Every switch is timed in turns with eager, after everything is compiled; ``fix`` brings its own turns. A mode that
raises or takes too long is an entry that says so. What is on record is not measured again (``--again`` does) unless its
runs lay far apart, so the suite can be measured part by part: ``--seconds`` ends it in time, and nothing that was cut
off is recorded.
``--together N`` prepares N processes at once (for a machine with many cores) and times one after another while the
others wait.

The record goes to ``benchmarks/results/programs-cpu.json`` or ``programs-cuda.json``; ``make docs`` makes the tables.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from program_arm import MODES, PLAN, PROGRAMS, SWITCHES

from kernelworks.bench.results import head as provenance
from kernelworks.layout import in_lines
from kernelworks.report import programs as report

HERE = Path(__file__).resolve().parent
ON_GPU = torch.cuda.is_available()
ALL = ("eager", "default", "reduce-overhead", "fix", "kernelworks", "max-autotune-no-cudagraphs", PLAN)
Files = Mapping[str, Any]
LEAST_S = 15.0  # what is begun with less than this left would be cut off
KEPT = (
    "before_s", "after_s", "gain_s", "predicted_gain_s", "noise_s", "rounds", "refused", "ambiguous", "rough", "agrees",
    "error_before", "error_after", "against", "notes", "code", "plan",
)  # fmt: skip
TRIED = ("remedy", "place", "taken", "why", "predicted_gain_s", "gain_s", "cost_s")


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
    """The results file. Rows of another machine, or of other versions of torch, are not gone on with."""

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
        """Torch's switches under which a program ran."""
        return [mode for mode in report.SWITCHES if "failed" not in self.rows.get((program, mode), {"failed": ""})]

    def keep(self, program: str, mode: str, found: dict[str, Any]) -> None:
        figures = {key: _short(value) for key, value in found.items()}
        row = {"program": program, "mode": mode, **figures, "date": now(), "commit": self.head["commit"]}
        self.rows[program, mode] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(in_lines({**self.head, "rows": list(self.rows.values())}) + "\n", encoding="utf-8")
        print(report.line(row), flush=True)


# ---------------------------------------------------------------- processes


class Started:
    """A process and all that it starts, ended together."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.log = folder / "log.txt"
        self.lines: queue.Queue[str] = queue.Queue()
        with self.log.open("w") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder,
                start_new_session=True,
            )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def until(self, word: str, deadline: float) -> bool:
        """Whether the process said the word before it ended; TimeoutError past the deadline."""
        while True:
            try:
                line = self.lines.get(timeout=max(deadline - time.monotonic(), 0.01))
            except queue.Empty:
                raise TimeoutError from None
            if not line or line.strip() == word:
                return bool(line)

    def go(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and left word why
            self.process.stdin.write("go\n")
            self.process.stdin.flush()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def last(self) -> str:
        """The last line of what it wrote to stderr."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip()[:300] if lines else "nothing was said"


def timed_out(limit: float, cut: bool) -> dict[str, Any] | None:
    """The entry for what took too long; None where it was cut off before its limit."""
    return None if cut else {"failed": f"took more than {limit:.0f} s"}


def arms(
    tasks: list[tuple[str, str]], scratch: Path, limit: float, end: float, given: Mapping[str, Files] | None = None
) -> dict[tuple[str, str], Any]:
    """Prepares all of these at once, then times one after another. ``given`` are files that a program's process finds
    in its folder, what they hold by their names."""
    deadline = min(time.monotonic() + limit, end)
    cut, running = deadline == end, {}
    for name, mode in tasks:
        folder = Path(tempfile.mkdtemp(dir=scratch))
        for file, holds in (given or {}).get(name, {}).items():
            (folder / file).write_text(json.dumps(holds), encoding="utf-8")
        command = [str(HERE / "program_arm.py"), name, mode, str(scratch / "answers"), str(folder / "result.json")]
        running[name, mode] = (Started([sys.executable, *command], folder), folder / "result.json")
    ready, found = {}, {}
    try:
        for task, (process, _) in running.items():
            try:
                ready[task] = process.until("ready", deadline)
            except TimeoutError:
                process.end()
                found[task] = timed_out(limit, cut)
        for task, (process, result) in running.items():
            if task in found:
                continue
            last = min(time.monotonic() + limit, end)
            try:
                if ready[task]:
                    process.go()
                    process.until("", last)
            except TimeoutError:
                found[task] = timed_out(limit, last == end)
                continue
            finally:
                process.end()
            said = {"failed": f"ended without a word: {process.last()}"}
            found[task] = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else said
    finally:
        for process, _ in running.values():
            process.end()
    return found


def fixed(name: str, file: str, scratch: Path, limit: float, end: float, more: list[str]) -> dict[str, Any] | None:
    """One program under ``diagnose --fix``."""
    target = f"{PROGRAMS / file}:{name}"
    command = [sys.executable, "-m", "kernelworks", "diagnose", target, "--fix", "--json", *more]
    begin, deadline = time.monotonic(), min(time.monotonic() + limit, end)
    process = Started(command, Path(tempfile.mkdtemp(dir=scratch)))
    said: list[str] = []
    try:
        while True:
            line = process.lines.get(timeout=max(deadline - time.monotonic(), 0.01))
            if not line:
                break
            said.append(line)
    except queue.Empty:
        return timed_out(limit, deadline == end)
    finally:
        process.end()
    text = "".join(said)
    try:
        record = json.loads(text[text.index("{") :])
    except ValueError:
        return {"failed": f"exit code {process.process.returncode}: {process.last()}"}
    if record["fix"] is None:
        return {"failed": record["sentence"]}
    footer, wall, fix = record["footer"], record["wall_s"], record["fix"]
    return {
        **{key: fix[key] for key in KEPT if key in fix},
        "remedies": [{key: tried[key] for key in TRIED} for tried in fix["remedies"]],
        "wall_s": wall, "sentence": record["sentence"], "footer": sum(footer.values()) / wall,
        "unexplained": footer.get("unexplained", 0.0) / wall, "exit": process.process.returncode,
        "took_s": time.monotonic() - begin,
    }  # fmt: skip


def again(record: Record, names: list[str], scratch: Path, limit: float, end: float) -> dict[tuple[str, str], Any]:
    """These programs with the plans of their fixes on record, in turns with the switches that ran, and beside what each
    gained what its fix had gained."""
    fixes = {name: record.rows[name, "fix"] for name in names}
    given = {name: {"plan.json": fixes[name]["plan"], SWITCHES.name: record.switches(name)} for name in names}
    found = arms([(name, PLAN) for name in names], scratch, limit, end, given)
    for (name, _), entry in found.items():
        if entry is not None:
            fix = fixes[name]
            entry.update(then=fix["after_s"] / fix["before_s"], of=fix["date"])
    return found


def to_do(record: Record, wanted: list[tuple[str, str]], *, again: bool) -> list[tuple[str, str]]:
    """What is not on record, or of another fix's plan; then what is, and is rough."""

    def known(task: tuple[str, str]) -> bool:
        row, fix = record.rows.get(task), record.rows.get((task[0], "fix"))
        return row is not None and (task[1] != PLAN or fix is None or row["of"] == fix["date"])

    tasks = [task for task in wanted if again or not known(task)]
    return tasks + [task for task in wanted if task not in tasks and report.rough(record.rows[task])]


def main() -> int:
    sys.path.insert(0, str(PROGRAMS))
    import suite

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(suite.PAIRS), help="names of programs")
    parser.add_argument("--modes", default=",".join(ALL))
    parser.add_argument("--seconds", type=float, default=1e9, help="after which nothing is measured any more")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one program and mode")
    parser.add_argument("--together", type=int, default=1, help="processes that are prepared at once")
    parser.add_argument("--again", action="store_true", help="also what is on record")
    parser.add_argument("--fix-with", default="", help='more words for diagnose, such as "--rough --budget 60"')
    parser.add_argument("--out", type=Path, default=HERE / "results" / f"programs-{'cuda' if ON_GPU else 'cpu'}.json")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started ends too
    end = time.monotonic() + given.seconds
    programs, modes = given.only.split(","), [m for m in given.modes.split(",") if ON_GPU or m != "reduce-overhead"]
    unknown = [n for n in programs if n not in suite.PAIRS] + [m for m in modes if m not in (*MODES, "fix", PLAN)]
    if unknown:
        parser.error(f"no program or mode of the suite: {', '.join(unknown)}")
    record = Record(given.out)
    wanted = [(p, m) for m in modes for p in programs]
    tasks = to_do(record, wanted, again=given.again)
    scratch = Path(tempfile.mkdtemp(prefix="programs-"))
    while tasks and end - time.monotonic() > LEAST_S:
        group = [tasks[0]]
        if tasks[0][1] != "fix":
            group = [task for task in tasks if task[1] == tasks[0][1]][: given.together]
        tasks = [task for task in tasks if task not in group]
        if group[0][1] == PLAN:
            planned = [name for name, _ in group if record.rows.get((name, "fix"), {}).get("plan")]
            found = again(record, planned, scratch, given.limit, end)
            for name in {name for name, _ in group} - set(planned):
                print(f"{name:15s} {PLAN}: its fix is not on record, or found no plan")
        elif group[0][1] == "fix":
            name = group[0][0]
            found = {group[0]: fixed(name, suite.FILES[name], scratch, given.limit, end, given.fix_with.split())}
        else:
            found = arms(group, scratch, given.limit, end)
        for (name, mode), entry in found.items():
            if entry is None:
                tasks.append((name, mode))  # cut off, and still to be done
            else:
                record.keep(name, mode, entry)
    left = f"; {len(tasks)} of the runs asked for are left" if tasks else ""
    print(f"\n{report.summary(list(record.rows.values()))}{left}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
