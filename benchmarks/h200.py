"""Every figure on record for a GPU, measured anew in one command.

    python benchmarks/h200.py [--parts machine,proofs,ops,models,sanitizer] [--only rms_norm,softmax] [--out FOLDER]

| part | what it does | file |
|---|---|---|
| machine | the ceilings of this GPU | h200-machine.json |
| proofs | every GPU row proved, one process an op; certificates are written to the cache | h200-proofs.json |
| ops | each op beside a device copy of the same bytes, torch eager, torch.compile, Liger and cuDNN | h200-ops.json |
| models | a 1B model: training step and decode, eager and swapped | h200-models.json |
| sanitizer | compute-sanitizer memcheck and racecheck over every GPU row | h200-sanitizer.json |

On an H200 with 16 cores machine, proofs, ops and models took 13, 91, 73 and 63 s; the sanitizer takes longer than 90 s.
The parts can be run alone: `h200_ops.py` and `h200_models.py` lie beside this file.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h200_ops
import torch

from kernelworks import certificates
from kernelworks.bench.results import commit
from kernelworks.dispatch import OPS
from kernelworks.machine import gpu
from kernelworks.map import source_hashes

ROOT = Path(__file__).resolve().parent.parent


def gpu_rows() -> list[tuple[str, str]]:
    return [(op.name, row.name) for op in OPS.values() for row in op.rows if row.device == "cuda"]


def proofs_part() -> dict[str, Any]:
    def run(pair: tuple[str, str]) -> dict[str, Any]:
        jobs = "6" if pair[0] == "attention" else "2"  # its kernels take seconds each to compile
        command = [sys.executable, "-m", "kernelworks", "prove", ".".join(pair), "--jobs", jobs, "--json"]
        begin = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - begin
        print(f"{'.'.join(pair):32s} {'proved' if done.returncode == 0 else 'NOT PROVED'} {seconds:6.1f} s", flush=True)
        try:
            said = json.loads(done.stdout)
        except ValueError:
            said = {"stdout": done.stdout[-2000:], "stderr": done.stderr[-2000:]}
        return {"op": pair[0], "row": pair[1], "exit": done.returncode, "seconds": seconds, "proof": said}

    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count() or 4) as pool:
        results = list(pool.map(run, gpu_rows()))
    found = [c for op, row in gpu_rows() for c in certificates.find(op, row, gpu().kind)]
    return {"rows": results, "certificates": [vars(c) for c in found]}


def sanitizer_part() -> dict[str, Any]:
    """Small cases of every row under compute-sanitizer, without torch's caching allocator: its blocks would hide a read
    past a tensor's end."""
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}

    def run(job: tuple[tuple[str, str], str]) -> dict[str, Any]:
        (op, row), tool = job
        inner = [sys.executable, "-m", "kernelworks.prove.sanitized", op, row]
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", *inner]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=150)
        except subprocess.TimeoutExpired:
            print(f"{op}.{row} {tool}: not done within 150 s", flush=True)
            return {"op": op, "row": row, "tool": tool, "exit": None, "calls": 0, "summary": ["not done within 150 s"]}
        said = re.findall(r"=+ +(.*SUMMARY.*|Invalid .*|Error: .*|.*[Rr]ace reported.*| +(?:at|by) .*)", done.stdout)
        cases = re.findall(r"(\d+) calls", done.stdout)
        print(f"{op}.{row} {tool}: exit {done.returncode}, {cases[:1]} {said[-1:] or done.stderr[-200:]}", flush=True)
        return {"op": op, "row": row, "tool": tool, "exit": done.returncode, "calls": int(cases[0]) if cases else 0,
                "summary": [line[:300] for line in said[-12:]], "source_hash": OPS[op].row(row).hash()}  # fmt: skip

    jobs = [(pair, tool) for pair in gpu_rows() for tool in ("memcheck", "racecheck")]
    with concurrent.futures.ThreadPoolExecutor(max_workers=max(2, (os.cpu_count() or 4) - 2)) as pool:
        return {"rows": list(pool.map(run, jobs))}


def script(command: list[str], output: Path) -> dict[str, Any]:
    subprocess.run([sys.executable, *command], check=True, stdout=sys.stderr)
    found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return found


def head() -> dict[str, Any]:
    here = gpu()
    return {
        "machine": {"kind": here.kind, "name": here.name, "driver": here.driver, "power_limit_w": here.power_limit_w},
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "sources": source_hashes(),
        "versions": {
            "python": platform.python_version(), "torch": str(torch.__version__), "cuda": str(torch.version.cuda),
            "triton": importlib.import_module("triton").__version__,
        },
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="machine,proofs,ops,models,sanitizer")
    parser.add_argument("--only", default="", help="these ops alone, for the part `ops`")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    only = set(filter(None, given.only.split(",")))

    def machine_part() -> dict[str, Any]:
        scratch = given.out / "h200-machine.json"
        command = ["-m", "kernelworks", "machine", "--device", "cuda", "--json"]
        done = subprocess.run([sys.executable, *command], check=True, capture_output=True, text=True)
        scratch.write_text(done.stdout, encoding="utf-8")
        return {"ceilings": json.loads(done.stdout)}

    def models_part() -> dict[str, Any]:
        scratch = given.out / "h200-models.json"
        return {"figures": script([str(ROOT / "benchmarks" / "h200_models.py"), "--json", str(scratch)], scratch)}

    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "machine": machine_part, "proofs": proofs_part, "ops": lambda: h200_ops.measure(only), "models": models_part,
        "sanitizer": sanitizer_part,
    }  # fmt: skip
    failed = 0
    for name in given.parts.split(","):
        begin = time.perf_counter()
        try:
            record = {**head(), **parts[name]()}
        except Exception as error:  # the other parts still run; the exit code says that one did not
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            failed = 1
            continue
        record["seconds"] = round(time.perf_counter() - begin, 1)
        (given.out / f"h200-{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {record['seconds']} s -> {given.out.name}/h200-{name}.json", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
