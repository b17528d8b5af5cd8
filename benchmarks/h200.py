"""Every figure on record for a GPU, measured anew in one command, within eight minutes.

    python benchmarks/h200.py [--parts machine,verifications,ops,blocks,models,trust,sanitizer] [--within S] [--again]

| part | what it does | file |
|---|---|---|
| machine | the measured peaks of this GPU | h200-machine.json |
| verifications | GPU kernels without a certificate that holds are verified, a process each, into the cache |
h200-verifications.json |
| ops | each op beside a device copy of the same bytes, torch eager, torch.compile, Liger and cuDNN | h200-ops.json |
| blocks | attention of named blocks, beside FlexAttention and beside our rate for all blocks | h200-blocks.json |
| models | a 1B model: training step and decode, eager, swapped, captured, compiled; its answers | h200-models.json |
| trust | odd tensors and derivatives of every kind through each op, beside torch's functions | h200-trust.json |
| sanitizer | compute-sanitizer memcheck and racecheck of the GPU kernels that the record lacks | h200-sanitizer.json |

Ops, blocks and models are processes side by side (``side_by_side.py``): all of them compile at once on every core, and
as soon as one has all of its own ready it is timed alone, whatever it consists of, while the others are halted, their
compilers too. Trust and sanitizer, which no clock decides, come after the last clock and share what time is left.

All parts but the first make what is missing or has changed since, everything with ``--again``. Each line goes on
record as it is made; what ``--within`` leaves no time for is named, and made by the next call. How long each part took
and what is missing stands in h200-run.json. The parts can be run alone: their scripts lie beside this file. A step by
``max-autotune`` is left to ``h200_models.py``, since that search of kernels takes longer than all of this.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h200_blocks
import h200_models
import h200_ops
import h200_sanitizer
import h200_trust
from h200_ops import head
from side_by_side import RESULT, Entry, Heard, Started, Task, end_on_sigterm, side_by_side

from kernelworks.dispatch import certificates
from kernelworks.dispatch.op import OPS
from kernelworks.machine import gpu
from kernelworks.records.json_text import format_lines

ROOT = Path(__file__).resolve().parent.parent
HERE = Path(__file__).resolve().parent
PARTS = ("machine", "verifications", "ops", "blocks", "models", "trust", "sanitizer")
TIMED = ("ops", "blocks", "models")
READY_SHARE = 0.45  # of the time, in which ops and blocks are made ready; what is not is compiled when it is measured
STANDING_S = 300.0  # for which the others stand still while one is timed
SAID = 5  # lines of what a process said last, where it failed
JOBS = 3  # Processes of one verification; all at once use as many as there are cores, or they outgrow the memory.
MOST_SAID = 300  # characters
LEAST_S = 25.0  # what is begun with less than this left comes to nothing


def unverified(code: int, said: Any) -> str:
    """Why a verification failed, in a line; "" if it did not."""
    if not code:
        return ""
    if not isinstance(said, list):
        return f"NOT VERIFIED: {said['stderr'].strip() or said['stdout'].strip() or f'exit code {code}'}"[:MOST_SAID]
    failures = [failure for verification in said for failure in verification["failures"]]
    checks = [name for verification in said for name, right in verification["checks"].items() if not right]
    first = f"{failures[0]['case']}: {failures[0]['message']}" if failures else "no case was tried"
    return f"NOT VERIFIED, {len(failures)} failures, {', '.join(checks)}: {first}"[:MOST_SAID]


def _ended(command: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Runs it with its own workers, which end with it. Raises subprocess.TimeoutExpired."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # a worker that is left holds the pipe open
        process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def verifications_part(
    only: set[str], again: bool, until: float, keep: Callable[[dict[str, Any]], None], jobs: int = JOBS
) -> dict[str, Any]:  # fmt: skip
    """The ops of most cases begin first. What was verified by then is kept after each, with its certificates. A
    verification that ``until`` (of the monotonic clock) cuts short, or leaves no time for, is named. ``jobs``:
    processes of one verification."""
    kernels = [
        (op, kernel)
        for op, kernel in h200_sanitizer.gpu_kernels()
        if (not only or {op, f"{op}.{kernel}"} & only)
        and (again or certificates.invalid_reason(op, OPS[op].kernel(kernel)) is not None)
    ]

    def made() -> list[dict[str, Any]]:
        """The certificates that hold here, of these kernels and of others."""
        held = (
            (op, kernel, c)
            for op, kernel in h200_sanitizer.gpu_kernels()
            for c in certificates.find_certificates(op, kernel, gpu().kind)
        )
        return [vars(c) for op, kernel, c in held if certificates.is_current(c, OPS[op].kernel(kernel))]

    def run(pair: tuple[str, str]) -> dict[str, Any]:
        command = [sys.executable, "-m", "kernelworks", "verify", ".".join(pair), "--jobs", str(jobs), "--json"]
        begin, left = time.perf_counter(), until - time.monotonic()
        try:
            if left < LEAST_S:
                raise subprocess.TimeoutExpired(command, 0.0)
            done = _ended(command, left)
        except subprocess.TimeoutExpired:
            print(f"{'.'.join(pair):32s} NO TIME", flush=True)
            return {"op": pair[0], "kernel": pair[1], "exit": -1, "seconds": 0.0, "verification": {"stderr": "no time"}}
        seconds = time.perf_counter() - begin
        try:
            said = json.loads(done.stdout)
        except ValueError:
            said = {"stdout": done.stdout[-2000:], "stderr": done.stderr[-2000:]}
        print(f"{'.'.join(pair):32s} {unverified(done.returncode, said) or 'verified'} {seconds:6.1f} s", flush=True)
        found = {"op": pair[0], "kernel": pair[1], "exit": done.returncode, "seconds": seconds, "verification": said}
        with lock:
            taken.append(found)
            keep({"rows": list(taken), "certificates": made()})
        return found

    taken: list[dict[str, Any]] = []
    lock = threading.Lock()
    if not kernels:
        return {}
    kernels.sort(key=lambda pair: -len(OPS[pair[0]].contract.cases))
    with concurrent.futures.ThreadPoolExecutor(max(1, (os.cpu_count() or 4) // jobs)) as pool:
        results = list(pool.map(run, kernels))
    for at, found in enumerate(results):
        if found["exit"] > 0:  # it may have had no memory beside others
            results[at] = run((found["op"], found["kernel"]))
    return {"rows": results, "certificates": made()}


def machine_part() -> dict[str, Any]:
    command = [sys.executable, "-m", "kernelworks", "machine", "--device", "cuda", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()][-SAID:]
        raise RuntimeError(
            f"`kernelworks machine` ended with {done.returncode}: {' / '.join(said) or 'without a word'}"
        )
    return {"peaks": json.loads(done.stdout)}


def written(file: Path, record: dict[str, Any]) -> None:
    scratch = file.with_suffix(f".{os.getpid()}")
    scratch.write_text(format_lines(record) + "\n", encoding="utf-8")
    scratch.replace(file)


class Run:
    """One call of this script: what it is asked for, until when, and what is known of it so far."""

    def __init__(
        self, out: Path, parts: list[str], *, only: str = "", within: float, again: bool = False, limit: float = 150.0,
        tools: str = "", jobs: int = JOBS,
    ) -> None:  # fmt: skip
        self.out, self.parts, self.only, self.again, self.limit = out, parts, only, again, limit
        self.jobs = jobs
        self.tools = set(filter(None, tools.split(",")))
        self.begin, self.within, self.head = time.monotonic(), within, head()
        self.end = self.begin + within
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []
        self.figures = h200_models.Figures(self.file("models"), self.head) if "models" in parts else None

    def file(self, part: str) -> Path:
        return self.out / f"h200-{part}.json"

    def left(self) -> float:
        return self.end - time.monotonic()

    @property
    def some(self) -> set[str]:
        return set(filter(None, self.only.split(",")))

    def alone(self, part: str, make: Callable[[], dict[str, Any]]) -> None:
        """A part that is made in this process, and its file; nothing on record changes where it fails."""
        begin = time.monotonic()
        try:
            found = make()
        except Exception as error:  # the other parts still run; the exit code says that one did not
            self.failed.append(f"{part}: {type(error).__name__}: {error}")
            print(self.failed[-1], file=sys.stderr, flush=True)
            return
        self.seconds[part] = round(time.monotonic() - begin, 1)
        if found:
            written(self.file(part), {**self.head, **found})
        print(f"{part}: {self.seconds[part]} s, at {time.monotonic() - self.begin:.0f}", flush=True)

    # ------------------------------------------------------------ side by side

    def of_models(self) -> list[Task]:
        return h200_models.tasks_of([*h200_models.TASKS, *h200_models.PARTS], searched=False)

    def tasks(self) -> list[Task]:
        models = self.of_models() if self.figures else []
        wanted = [task for task in models if self.again or not (self.figures and self.figures.has(task))]
        return [*wanted, *((part, "") for part in ("ops", "blocks") if part in self.parts)]

    def start(self, task: Task, heard: Heard) -> Started:
        folder = Path(tempfile.mkdtemp(prefix=f"{task[0]}-"))
        if task[1]:
            command = h200_models.command_of(task, folder / RESULT, ["--no-tiny"])
            environment = h200_models.environment_of(task)
        else:
            command = [sys.executable, str(HERE / f"h200_{task[0]}.py"), "--out", str(self.file(task[0]).resolve())]
            command += ["--result", str(folder / RESULT), "--within", str(round(READY_SHARE * self.within))]
            command += ["--again"] if self.again else []
            command += ["--only", self.only] if task[0] == "ops" else []
            command, environment = ["nice", "-n", "3", *command], {}
        return Started(command, folder, self.within, heard=heard, environment=environment, echo=not task[1])

    def tell(self, task: Task, entry: Entry | None) -> None:
        now = f"at {time.monotonic() - self.begin:.0f} s"
        if task[1] and self.figures:
            self.figures.tell(task, entry)
            print(f"{' '.join(task)}: {now}", flush=True)
            return
        found = entry or {"failed": "cut off"}
        said = [*found.get("bad", ()), *([found["failed"]] if "failed" in found else [])]
        self.failed += [f"{task[0]}: {line}" for line in said]
        self.seconds |= {f"{task[0]}, {name[:-2]}": found[name] for name in ("ready_s", "timed_s") if name in found}
        print(f"{task[0]}: {found}, {now}", flush=True)

    def timed(self) -> None:
        begin, tasks = time.monotonic(), self.tasks()
        side_by_side(tasks, self.start, end=self.end, together=len(tasks), tell=self.tell, standing=STANDING_S)
        self.seconds["ops, blocks and models"] = round(time.monotonic() - begin, 1)

    # ------------------------------------------------------------ all of it

    def verified(self, found: dict[str, Any]) -> None:
        written(self.file("verifications"), {**self.head, **found})

    def all(self) -> int:
        if "machine" in self.parts:
            self.alone("machine", machine_part)
        if "verifications" in self.parts:
            self.alone(
                "verifications", lambda: verifications_part(self.some, self.again, self.end, self.verified, self.jobs)
            )
        if set(self.parts) & set(TIMED):
            self.timed()
        untimed: dict[str, Callable[[], dict[str, Any]]] = {
            "trust": lambda: h200_trust.on_record(
                self.file("trust"), self.head, self.some, within=self.left(), again=self.again
            ),
            "sanitizer": lambda: h200_sanitizer.measure(
                self.file("sanitizer"), self.head, self.some, limit=self.limit, within=self.left(), again=self.again,
                tools=self.tools,
            ),
        }  # fmt: skip
        beside = [part for part in untimed if part in self.parts and self.left() > LEAST_S]
        with concurrent.futures.ThreadPoolExecutor(max(1, len(beside))) as pool:
            list(pool.map(lambda part: self.alone(part, untimed[part]), beside))
        return self.told()

    def missing(self) -> dict[str, list[str]]:
        """What the record lacks, or has of other sources."""
        found: dict[str, list[str]] = {}
        if "ops" in self.parts:
            found["ops"] = h200_ops.missing(self.file("ops"), self.head, self.some)
        if "blocks" in self.parts:
            found["blocks"] = h200_blocks.missing(self.file("blocks"))
        if self.figures:
            found["models"] = [" ".join(task) for task in self.of_models() if not self.figures.has(task)]
        for part in ("trust", "sanitizer"):
            if part in self.parts and self.file(part).is_file():
                found[part] = json.loads(self.file(part).read_text(encoding="utf-8")).get("not_done", [])
        return {part: names for part, names in found.items() if names}

    def told(self) -> int:
        missing, seconds = self.missing(), round(time.monotonic() - self.begin, 1)
        for part, names in missing.items():
            print(f"missing of {part}, {len(names)}: {'; '.join(names)}")
        said = {
            "within": self.within, "again": self.again, "parts": self.parts, "seconds": seconds,
            "of_parts": self.seconds, "failed": self.failed, "missing": missing,
        }  # fmt: skip
        origin = {name: value for name, value in self.head.items() if name != "sources"}
        written(self.file("run"), {**origin, **said})
        print(f"{seconds} s of {self.within:.0f}", flush=True)
        return int(bool(self.failed or missing))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument(
        "--only", default="", help="these ops alone, for verifications, ops, trust, sanitizer (`small`: small calls)"
    )
    parser.add_argument("--within", type=float, default=450, help="seconds that all of it may take, once imported")
    parser.add_argument("--limit", type=float, default=150, help="seconds that one run of `sanitizer` may take")
    parser.add_argument("--jobs", type=int, default=JOBS, help="processes of one verification: more where few are made")
    parser.add_argument("--tools", default="", help="memcheck or racecheck alone, for `sanitizer`")
    parser.add_argument("--again", action="store_true", help="makes anew what is on record")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    given = parser.parse_args()
    parts = given.parts.split(",")
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"--parts takes {', '.join(PARTS)}; got {', '.join(unknown)}")
    given.out.mkdir(parents=True, exist_ok=True)
    end_on_sigterm()
    return Run(
        given.out, parts, only=given.only, within=given.within, again=given.again, limit=given.limit, tools=given.tools,
        jobs=given.jobs,
    ).all()  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
