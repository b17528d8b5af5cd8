"""compute-sanitizer's memcheck and racecheck over small cases of every GPU kernel: the part `sanitizer` of h200.py.

One process a row and tool, several at a time. Each run that ends is put on record at once, so that being cut off loses
nothing, and a later call makes only the runs that are missing: of rows or cases that changed since, or out of time.
torch's caching allocator is off: its blocks would hide a read past a tensor's end.
"""

from __future__ import annotations

import concurrent.futures
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from kernelworks.dispatch.op import OPS
from kernelworks.records.json_text import format_lines

TOOLS = {"memcheck": [], "racecheck": ["--racecheck-report", "analysis", "--print-limit", "100"]}
SHORTEST = 20.0  # seconds: what a run takes before its first call
MOST_LINES = 16  # of a tool's words that are kept

# What is run of a row: the largest cases that a tool gets through, or by name the ones that reach every kernel.
MOST = ["--elements", "100000", "--calls", "12"]
NAMED: dict[str, str] = {
    "causal_conv1d.triton": "no bias, states, final;no silu, states, final;L=513;L=513, channels last;D=521;W=64 L=37;"
    "a long line",
    "attention.sm90": "tiles, causal;tiles, whole;tiles, D=64 whole;tiles, D=64 one a head;tiles, D=64 long;"
    "tiles, D=64 causal;large prefill;D=64;tiles, window 150 top_left, D=128;tiles, window 130 top_left, D=64;"
    "tiles, D=256 whole;tiles, D=256 causal;tiles, window 190 top_left, D=256;tiles, whole, long;"
    "tiles, whole, blocks of keys;tiles, causal, long;"
    "tiles, sinks 2.0, D=64 64on8 300x300 top_left 128 None",
    "attention.sm90_backward": "tiles, causal@bfloat16;tiles, whole, gradients@bfloat16;"
    "tiles, D=64 causal, gradients@bfloat16;tiles, more queries than keys@bfloat16;large prefill;D=128;"
    "tiles, window 150 top_left, D=128;tiles, window 130 top_left, D=64",
    "attention.sm90_backward_wide": "tiles, D=256 gradients 8on8 257x321 bottom_right@bfloat16;"
    "tiles, D=256 gradients 6on2 700x300 bottom_right@float16",
    "attention.sm90_decode": "few, D=64 2x6on2 5x301 top_left None;few, D=64 1x5on1 3x2049 bottom_right 700;"
    "few, D=64 1x4on1 4x3000 None None;few, D=128 1x2on1 8x3 bottom_right None;few, D=128 3x16on1 1x129 None None;"
    "few, D=128 1x16on2 2x4001 bottom_right None;few, D=256 1x4on1 4x64 bottom_right 20;"
    "few, D=256 1x8on1 1x65 None None;few, D=256 2x16on2 2x2501 bottom_right None",
    "attention.triton": "tiles, whole@bfloat16;Lq=33 Lk=200 causal;decode D=16;mask and causal;"
    "few queries, split@bfloat16;Lk=509@bfloat16",
    "block_sparse_attention.sm90": "D=64;D=128;D=256;D=64 causal;D=128 causal;D=256 causal",
    "block_sparse_attention.sm90_backward": "D=64;D=128;D=64 causal;D=128 causal",
    "attention_fp8.sm90": "Lq=129 Lk=257 needles None;Lq=140 Lk=140 normal top_left;scales of each, 4 heads on 2;"
    "Lq=200 Lk=90 normal bottom_right@float16",
    "cross_entropy.sm90": "sum N=4096;mean N=4096, 1 flows in;48x32000 mean;40x16384 sum;600x20000 none;37x128256 mean",
    "cross_entropy.triton": "sum N=32003, 1 flows in;none N=32003;48x32000 mean;many rows;mean N=4097;"
    "none N=33, 1 flows in;3x300001 mean",
    "layer_norm.sm90_backward": "701x4608@bfloat16;700x5120@float16;300x8192@float16;901x16384@bfloat16;"
    "mean 1e4, 500x16384@bfloat16;600x6144@bfloat16;301x12000@float16",
    "layer_norm.triton_split": "2x9001;normal 2x70001;no parameters 2x70001",
    "rms_norm.triton_split": "2x9001;normal 2x70001;no parameters 2x70001",
    "linear_add.sm90": "M=300 N=528 K=264;M=17 N=72 K=200",
    "linear_gelu.sm90": "none, M=300 N=528 K=264;tanh, M=300 N=528 K=264",
    "linear_silu_mul.sm90": "M=300 N=528 K=264;M=17 N=72 K=200",
    "rms_norm_linear.sm90": "M=300 N=528 K=264;M=17 N=72 K=200",
    "linear.sm90": "M=300 N=520 K=264;M=8 N=1001 K=264;M=11 N=1000 K=1032;"
    "M=1 N=1000 K=1032;M=1 N=1 K=4096;M=1 N=1001 K=14344;M=2 N=4099 K=2056;M=2 N=521 K=8200;M=4 N=523 K=8200;"
    "M=1 N=28672 K=8192;M=5 N=520 K=4616;M=8 N=4096 K=4096",
    "linear.sm90_middle": "M=17 N=8 K=8;M=32 N=4104 K=264;M=25 N=5128 K=4616;M=31 N=6152 K=520;M=17 N=8200 K=1160;"
    "M=24 N=17000 K=136;M=33 N=4096 K=2056;M=64 N=5128 K=520;M=50 N=8200 K=1032;M=40 N=7400 K=4104;M=100 N=3080 K=1032;"
    "M=127 N=5000 K=4616;M=128 N=10312 K=520;M=65 N=14344 K=264;M=129 N=72 K=64;M=300 N=520 K=264;M=512 N=5128 K=520;"
    "M=400 N=6152 K=264",
    "softmax.triton": "many rows;long and climbing;dim 1 of [2, 4500, 3];dim 0 of [300, 70];dim 1 of [2, 9001];N=4096;"
    "50x32769",
    "log_softmax.triton": "many rows;dim 1 of [2, 4500, 3];dim 0 of [300, 70];dim 1 of [2, 9001];N=4096;50x32769",
}


def arguments(op: str, kernel: str) -> list[str]:
    """What ``verify.sanitized`` is told to run of a kernel."""
    named = NAMED.get(f"{op}.{kernel}")
    return ["--calls", str(max(26, 2 * len(named.split(";")))), "--cases", named] if named else MOST


def gpu_kernels() -> list[tuple[str, str]]:
    return [(op.name, kernel.name) for op in OPS.values() for kernel in op.kernels if kernel.device == "cuda"]


def words(output: str) -> list[str]:
    """What a tool said, without its banner, blank lines and repeats of one finding: the summary is the last line."""
    said = [line.lstrip("=").strip() for line in output.splitlines() if line.startswith("=========")]
    said = [line for line in said if line and line != "COMPUTE-SANITIZER" and "Saved host backtrace" not in line]
    last = [line for line in said if "SUMMARY" in line]
    found = {re.sub(r"\(\d+,\d+,\d+\)|0x[0-9a-f]+", "", line): line for line in said if line not in last}
    return [line[:300] for line in (*list(found.values())[:MOST_LINES], *last)]


def _finished(line: dict[str, Any]) -> bool:
    """Whether a run came to its end, and found something or made every call that it was to make."""
    return line["exit"] is not None and bool(line["calls"]) and not (line["exit"] == 0 and line.get("cut_off"))


def current(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The finished runs of a record whose row has not changed since, each with the date it was made."""
    hashes = {(op, kernel): OPS[op].kernel(kernel).hash() for op, kernel in gpu_kernels()}
    return [
        {"date": record.get("date"), "commit": record.get("commit"), **line}
        for line in record.get("rows", ())
        if _finished(line) and hashes.get((line["op"], line["kernel"])) == line.get("source_hash")
    ]


class Runs:
    """The record in a file, to which runs are added one by one."""

    def __init__(self, file: Path, head: dict[str, Any], again: bool) -> None:
        self.file, self.head, self.lock = file, head, threading.Lock()
        before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        self.lines = {self._key(line): line for line in current(before)}
        same = {key for key, line in self.lines.items() if line.get("arguments") == arguments(*key[:2])}
        self.clean = {key for key, line in self.lines.items() if line["exit"] == 0}
        self.done = set() if again else same & self.clean

    @staticmethod
    def _key(line: dict[str, Any]) -> tuple[str, str, str]:
        return line["op"], line["kernel"], line["tool"]

    def found(self) -> dict[str, Any]:
        every = [(op, kernel, tool) for op, kernel in gpu_kernels() for tool in TOOLS]
        missing = [f"{op}.{kernel} {tool}" for op, kernel, tool in every if self._unfinished(op, kernel, tool)]
        return {"rows": [self.lines[key] for key in every if key in self.lines], "not_done": missing}

    def _unfinished(self, *key: str) -> bool:
        line = self.lines.get((key[0], key[1], key[2]))
        return line is None or not _finished(line)

    def add(self, line: dict[str, Any]) -> None:
        """A run that came to no end replaces none that did."""
        with self.lock:
            if _finished(line) or self._unfinished(*self._key(line)):
                self.lines[self._key(line)] = line
            written = format_lines({**self.head, **self.found()}) + "\n"
            partial = self.file.with_suffix(".partial")
            partial.write_text(written, encoding="utf-8")
            partial.replace(self.file)


def run(op: str, kernel: str, tool: str, limit: float) -> dict[str, Any]:
    """One run under a tool, ended after ``limit`` seconds; the process makes no call in the last third of them."""
    more = arguments(op, kernel)
    inner = [
        sys.executable,
        "-m",
        "kernelworks.verify.sanitizer",
        op,
        kernel,
        "--seconds",
        f"{limit * 2 / 3:.0f}",
        *more,
    ]
    watched = ["compute-sanitizer", "--tool", tool, *TOOLS[tool], "--show-backtrace", "no", "--error-exitcode", "9"]
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(
            [*watched, *inner], stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )  # fmt: skip
        try:
            status: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = None
        log.seek(0)
        output = log.read()
    said = words(output) if status is not None else [*words(output), f"not done within {limit:.0f} s"]
    calls = re.findall(r"^call \d+: .*", output, re.MULTILINE)
    line = {
        "op": op, "kernel": kernel, "tool": tool, "exit": status, "calls": len(calls),
        "cut_off": next(iter(re.findall(r"^out of time at .*", output, re.MULTILINE)), ""),
        "summary": said, "seconds": round(time.monotonic() - begin, 1), "arguments": more,
        "source_hash": OPS[op].kernel(kernel).hash(),
    }  # fmt: skip
    print(f"{op}.{kernel} {tool}: exit {status}, {len(calls)} calls, {line['seconds']} s: {said[-1:]}", flush=True)
    if status != 0:
        print(output[-2500:], flush=True)
    return line


def measure(
    file: Path, head: dict[str, Any], only: set[str], *, limit: float, within: float, again: bool,
    tools: Collection[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Makes the runs that are missing in ``file`` (all with ``again``), for the ops or rows named by ``only`` where any
    are. None lasts longer than ``limit`` seconds, and ``within`` seconds from now the last one ends."""
    end, runs = time.monotonic() + within, Runs(file, head, again)

    def one(job: tuple[str, str, str]) -> None:
        left = min(limit, end - time.monotonic())
        if left >= SHORTEST:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            runs.add({"date": now, "commit": head["commit"], **run(*job, left)})

    jobs = [
        (op, kernel, tool)
        for tool in ("racecheck", "memcheck")
        for op, kernel in gpu_kernels()
        if (not tools or tool in tools) and (not only or op in only or f"{op}.{kernel}" in only)
    ]
    jobs = sorted((job for job in jobs if job not in runs.done), key=lambda job: job in runs.clean)
    with concurrent.futures.ThreadPoolExecutor(max_workers=max(2, (os.cpu_count() or 4) - 2)) as pool:
        list(pool.map(one, jobs))
    return runs.found()
