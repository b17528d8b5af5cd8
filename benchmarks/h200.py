"""Every figure on record for a GPU, measured anew in one command.

    python benchmarks/h200.py [--parts machine,proofs,trust,ops,blocks,models,sanitizer] [--only rms_norm] [--out DIR]

| part | what it does | file |
|---|---|---|
| machine | the ceilings of this GPU | h200-machine.json |
| proofs | GPU rows without a certificate that holds are proved, a process each, into the cache | h200-proofs.json |
| trust | odd tensors and derivatives of every kind through each op, beside torch's functions | h200-trust.json |
| ops | each op beside a device copy of the same bytes, torch eager, torch.compile, Liger and cuDNN | h200-ops.json |
| blocks | attention of named blocks, beside FlexAttention and beside our rate for all blocks | h200-blocks.json |
| models | a 1B model: training step and decode, eager, swapped, captured, compiled | h200-models.json |
| sanitizer | compute-sanitizer memcheck and racecheck of the GPU rows that the record lacks | h200-sanitizer.json |

Parts that no clock decides (proofs, trust, sanitizer) run beside each other. Proofs, ops and sanitizer make what is
missing or has changed since, all of it with `--again`. Ops and sanitizer put each line on record as it is made, and
go on where they stopped when they are called again (`--within 100` stops the sanitizer in time).
The parts can be run alone: `h200_ops.py` and `h200_models.py` lie beside this file.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h200_ops
import h200_sanitizer
import h200_trust
from h200_ops import head

from kernelworks import certificates
from kernelworks.layout import in_lines
from kernelworks.machine import gpu
from kernelworks.op import OPS

ROOT = Path(__file__).resolve().parent.parent
UNTIMED = ("proofs", "trust", "sanitizer")


def proofs_part(only: set[str], again: bool) -> dict[str, Any]:
    rows = [
        (op, row)
        for op, row in h200_sanitizer.gpu_rows()
        if (not only or {op, f"{op}.{row}"} & only)
        and (again or certificates.invalid(op, OPS[op].row(row)) is not None)
    ]

    def run(pair: tuple[str, str]) -> dict[str, Any]:
        several = len(list(OPS[pair[0]].room.glob("triton*.py"))) > 1  # files of kernels, each seconds to compile
        jobs = "6" if several else "2"
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
        results = list(pool.map(run, rows))
    found = [c for op, row in h200_sanitizer.gpu_rows() for c in certificates.find(op, row, gpu().kind)]
    return {"rows": results, "certificates": [vars(c) for c in found]}


def rounds(names: list[str]) -> list[list[str]]:
    """The parts in their order, those that no clock decides all together where the first of them stands."""
    beside = [name for name in names if name in UNTIMED]
    first = beside[:1]
    return [beside if name in UNTIMED else [name] for name in names if name not in UNTIMED or [name] == first]


def script(command: list[str], output: Path) -> dict[str, Any]:
    subprocess.run([sys.executable, *command], check=True, stdout=sys.stderr)
    found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="machine,proofs,trust,ops,blocks,models,sanitizer")
    parser.add_argument(
        "--only",
        default="",
        help="these ops alone, for `proofs`, `trust`, `ops`, `sanitizer` (`small`: small calls)",
    )
    parser.add_argument("--limit", type=float, default=150, help="seconds that one run of `sanitizer` may take")
    parser.add_argument("--within", type=float, default=180, help="seconds after which `sanitizer` ends")
    parser.add_argument("--tools", default="", help="memcheck or racecheck alone, for `sanitizer`")
    parser.add_argument("--again", action="store_true", help="makes what is there anew: proofs, ops, sanitizer")
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

    def blocks_part() -> dict[str, Any]:
        scratch = given.out / "h200-blocks.json"
        return script([str(ROOT / "benchmarks" / "h200_blocks.py"), "--out", str(scratch)], scratch)

    def models_part() -> dict[str, Any]:
        scratch = given.out / "h200-models.json"
        return {"figures": script([str(ROOT / "benchmarks" / "h200_models.py"), "--json", str(scratch)], scratch)}

    def ops_part() -> dict[str, Any]:
        file = given.out / "h200-ops.json"
        bad = h200_ops.measure(file, only, again=given.again)
        if bad:
            print(f"ops: {bad} lines failed or are wrong", file=sys.stderr)
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found

    def sanitizer_part() -> dict[str, Any]:
        return h200_sanitizer.measure(
            given.out / "h200-sanitizer.json", head(), only, limit=given.limit, within=given.within, again=given.again,
            tools=set(filter(None, given.tools.split(","))),
        )  # fmt: skip

    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "machine": machine_part, "proofs": lambda: proofs_part(only, given.again),
        "trust": lambda: h200_trust.measure(only), "ops": ops_part, "blocks": blocks_part, "models": models_part,
        "sanitizer": sanitizer_part,
    }  # fmt: skip
    unknown = sorted(set(given.parts.split(",")) - parts.keys())
    if unknown:
        parser.error(f"--parts takes {', '.join(parts)}; got {', '.join(unknown)}")

    def put_on_record(name: str) -> int:
        begin = time.perf_counter()
        try:
            record = {**head(), **parts[name]()}
        except Exception as error:  # the other parts still run; the exit code says that one did not
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            return 1
        record["seconds"] = round(time.perf_counter() - begin, 1)
        file = given.out / f"h200-{name}.json"
        scratch = file.with_suffix(f".{os.getpid()}")
        scratch.write_text(in_lines(record) + "\n", encoding="utf-8")
        scratch.replace(file)
        print(f"{name}: {record['seconds']} s -> {given.out.name}/h200-{name}.json", flush=True)
        return 0

    failed = 0
    for together in rounds(given.parts.split(",")):
        with concurrent.futures.ThreadPoolExecutor(len(together)) as pool:
            failed |= max(pool.map(put_on_record, together))
    return failed


if __name__ == "__main__":
    sys.exit(main())
