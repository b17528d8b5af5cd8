"""How near the model of time is where it was not made: calls that nobody had timed, each predicted before it was.

    python benchmarks/h200_unseen.py [--calls FILE] [--out FILE] [--seconds 60]

A call is a line ``op|row|arguments``, tensors as a timing's call has them (``x bf16[384,5120]``), other arguments as
``name=value``; without a file those on record are measured anew. The prediction is that of the model as it lies here.
Times are those of a call in a queue, as ``autotune`` takes them: by the host's clock, the median of queues of 8 ms over
a quarter of a second.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.dispatch.op import OPS, Op
from kernelworks.measure.autotune.live import detach_args, kernelworks_call
from kernelworks.measure.bench.results import head
from kernelworks.measure.roofline.kernel_time import estimate_kernel_time
from kernelworks.records import GpuPeaks, from_json

RESULTS = Path(__file__).resolve().parent / "results"
OUT = RESULTS / "h200-unseen.json"
DTYPES = {
    "bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "i64": torch.int64,
    "f8_e4m3fn": torch.float8_e4m3fn,
}  # fmt: skip
TENSOR = re.compile(rf"(\w+) ({'|'.join(DTYPES)})\[([\d,]+)\]")
QUEUE_S, RACE_S = 0.008, 0.25
WORDS: dict[str, Any] = {"True": True, "False": False, "None": None}
EPS = 1e-6
DATE = datetime.datetime.now(datetime.UTC).date().isoformat()

Line = dict[str, Any]


def arguments(op: Op, text: str, draw: torch.Generator) -> tuple[Any, ...]:
    """The arguments of a call: random tensors, numbers below ``top=`` where they are indices."""
    found: dict[str, Any] = dict.fromkeys(op.passes["forward"].names)
    said = dict(re.findall(r"(\w+)=([\w.-]+)", text))
    for name, dtype, sizes in TENSOR.findall(text):
        shape = tuple(int(size) for size in sizes.split(","))
        found[name] = _tensor(name, DTYPES[dtype], shape, int(said.get("top", 0)), draw)
    for name, value in said.items():
        if name in found:
            number = re.fullmatch(r"-?\d+", value)
            found[name] = WORDS[value] if value in WORDS else int(value) if number else value
    if "eps" in found:
        found["eps"] = EPS
    return tuple(found.values())


def _tensor(name: str, dtype: torch.dtype, shape: tuple[int, ...], top: int, draw: torch.Generator) -> Tensor:
    if dtype == torch.int64:
        return torch.randint(0, top, shape, device=draw.device, generator=draw)
    if name.endswith("descale"):
        return torch.ones(shape, device=draw.device)
    wide = torch.bfloat16 if dtype.itemsize == 1 else dtype
    found = torch.empty(shape, device=draw.device, dtype=wide).normal_(generator=draw)
    return (found * shape[-1] ** -0.5 if len(shape) == 2 and "weight" in name else found).to(dtype)


def queued_us(call: Callable[[], Any]) -> float:
    """Microseconds of a call, one of many in a queue."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    count = max(1, min(400, int(QUEUE_S / (time.perf_counter() - begin))))
    took: list[float] = []
    until = time.perf_counter() + RACE_S
    while len(took) < 9 or time.perf_counter() < until:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        torch.cuda.synchronize()
        took.append(1e6 * (time.perf_counter() - begin) / count)
    return statistics.median(took)


def measured(calls: list[tuple[str, str, str]], known: GpuPeaks, until: float) -> Iterator[Line]:
    draw = torch.Generator("cuda").manual_seed(0)
    for name, row, text in calls:
        if time.perf_counter() > until:
            print(f"the time for it was over before {name} {text}")
            return
        op = OPS[name]
        args = detach_args(op, arguments(op, text, draw))
        said = estimate_kernel_time(op, op.request("forward", args), row, known, alone=False).seconds * 1e6
        line = {"op": name, "kernel": row, "call": text, "predicted_us": round(said, 1)}
        took = queued_us(kernelworks_call(op, args, row))
        yield {**line, "us": round(took, 1), "date": DATE, "source_hash": op.kernel(row).hash()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=Path, help="lines op|row|arguments")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--machine", type=Path, default=RESULTS / "h200-machine.json")
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    until = time.perf_counter() + given.seconds
    known = from_json(GpuPeaks, json.dumps(json.loads(given.machine.read_text(encoding="utf-8"))["peaks"]))
    before: list[Line] = json.loads(OUT.read_text(encoding="utf-8"))["rows"] if OUT.is_file() else []
    calls = [(line["op"], line["kernel"], line["call"]) for line in before]
    if given.calls:
        calls = [(o, r, c) for o, r, c in (x.split("|") for x in given.calls.read_text("utf-8").splitlines() if x)]
    rows = []
    for line in measured(calls, known, until):
        rows.append(line)
        off = line["predicted_us"] / line["us"] - 1
        print(f"{line['us']:9.1f} us {off:+5.0%} {line['op']}.{line['kernel']} {line['call']}")
        text = ",\n  ".join(json.dumps(row) for row in rows)
        here = json.dumps({**head("cuda", ("triton",)), "rows": []}, indent=1)
        given.out.write_text(here.replace('"rows": []', f'"rows": [\n  {text}\n ]') + "\n", encoding="utf-8")
    near = sum(abs(row["predicted_us"] / row["us"] - 1) <= 0.1 for row in rows)
    print(f"of {len(rows)} calls {near} were predicted within 10%")


if __name__ == "__main__":
    main()
