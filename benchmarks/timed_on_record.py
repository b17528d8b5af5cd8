"""Timings of a CPU that is not at hand, made of the medians on record for it: ``python benchmarks/timed_on_record.py``.

``benchmarks/results/ops-N-threads.json`` holds medians of torch's function and of ours on one kind of machine, taken in
quiet windows, inputs in rotation. They are no races in two halves: both halves are given the ratio on record, the
spread is given as the most that a timing may have, and only what won by ``LEAST`` is made a tuning record. The kernel
is the one that the tables of preferences of that commit took. ``autotune`` on such a machine races all of them anew.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch

from kernelworks.contract import Request
from kernelworks.dispatch import certificates, tuning_records
from kernelworks.dispatch.op import OPS, Op
from kernelworks.dispatch.tuning_records import NOISE_LIMIT, RaceResult, TuningRecord
from kernelworks.ops import linear  # noqa: F401  fills OPS

LEAST = 1.10  # torch's median over ours
RESULTS = Path(__file__).resolve().parent / "results"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def arguments(op: str, case: str, dtype: torch.dtype) -> tuple[Any, ...]:
    """The call that a case's name stands for."""

    def t(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    sizes = [int(n) for n in re.findall(r"\d+", case)]
    if op == "rms_norm":
        return t(*sizes), t(sizes[1]), 1e-6, None
    if op == "layer_norm":
        return t(*sizes), t(sizes[1]), t(sizes[1]), 1e-5
    if op == "softmax":
        return t(*sizes), -1
    if op == "gelu":
        return t(*sizes), "tanh"
    if op == "silu_mul":
        return t(*sizes), t(*sizes)
    if op == "rope":
        heads, kv, length, dim = sizes
        return t(1, heads, length, dim), t(1, kv, length, dim), t(length, dim), t(length, dim), False
    if op == "linear":
        return t(sizes[0], sizes[2]), t(sizes[1], sizes[2]), None
    heads, kv, queries, keys = sizes
    shapes = (1, heads, queries, 128), (1, kv, keys, 128), (1, kv, keys, 128)
    return *(t(*s) for s in shapes), "top_left" if "causal" in case else None, None, None, None, False


def row_of(op: Op, case: str, dtype: torch.dtype) -> str:
    """The kernel that was timed: the first listed, but for one row of a product in bfloat16, which is bound by
    memory."""
    if op.name == "linear" and dtype == torch.bfloat16 and case.startswith("1x"):
        return "avx512"
    return next(row.name for row in op.kernels if row.device == "cpu")


def timing(record: dict[str, Any], row: dict[str, Any], kind: str) -> TuningRecord | None:
    name, dtype_name, case = re.fullmatch(r"(\w+?)(?: tanh)? (float32|bfloat16|float16) (.*)", row["case"]).groups()  # type: ignore[union-attr]
    op, dtype, ours, theirs = OPS[name], DTYPES[dtype_name], row["us"]["ours"], row["us"]["eager"]
    ratio, way = theirs / ours, row_of(op, case, dtype)
    if ratio < LEAST or row["wrong"]:
        return None
    given = op.request("forward", arguments(name, case, dtype))
    request = Request(op.name, "forward", given.args, record["threads"], (), given.free)
    held = next(
        (c for c in certificates.find_certificates(name, way, kind) if c.source_hash == op.kernel(way).hash()), None
    )
    if held is None:  # the kernel that was timed is no more
        return None
    return TuningRecord(
        op=name, pass_="forward", way=way, bucket=tuning_records.bucket_of(op.contract, request),
        call=tuning_records.call_of(request), place=f"{kind}-{record['machine']['cores']}cores",
        threads=record["threads"],
        source_hash=held.source_hash, toolchain=held.toolchain, torch=record["versions"]["torch"].split("+")[0],
        whole=RaceResult(ours, theirs, (ratio, ratio), NOISE_LIMIT), backward=None, date=record["date"][:10],
        note="of the medians on record, halves and spread not measured",
    )  # fmt: skip


def main() -> None:
    found: list[TuningRecord] = []
    for path in sorted(RESULTS.glob("ops-*-threads.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        made = (timing(record, row, record["machine"]["kind"]) for row in record["rows"])
        found += [t for t in made if t is not None]
    print(tuning_records.write_shipped(found, found[0].place), len(found))


if __name__ == "__main__":
    main()
