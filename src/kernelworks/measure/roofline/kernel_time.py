"""The time that a kernel of ours should take on a GPU, by ``time_model.estimate_time``, and how that compares with
figures on record.

The op package's ``times.toml`` says what a kernel does beside what the contract counts: one table for each kernel and
pass, the first whose ``when`` holds. A pass without a table streams once over what it reads and writes:

    [[kernels]]
    op_kernel = "sm90_backward"
    pass = "backward"
    when = { D = [64, 128] }         # of the contract's dimensions, inclusive
    kernels = 3
    scratch = ["14 * rows * D"]      # and the other words of ``Manner``
    source = "where this was read or measured"
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from kernelworks.contract import Request
from kernelworks.contract.tensors import MEMORY, leaves, tensor_kind
from kernelworks.dispatch.op import OPS, Op
from kernelworks.measure.roofline import bound as roofline
from kernelworks.measure.roofline.time_model import Manner, Piece, TimeEstimate, estimate_time
from kernelworks.measure.roofline.waves import product_of
from kernelworks.records import GpuPeaks

__all__ = ["ModelComparison", "compare_model", "count_values", "estimate_kernel_time", "manner", "piece_of", "tables"]

TIMES = "times.toml"
WORDS = frozenset(f.name for f in fields(Manner))


@functools.cache
def tables(op_package: Path) -> tuple[Mapping[str, Any], ...]:
    """The tables of an op package, in their order; none without such a file. Raises ValueError for an unknown word."""
    path = op_package / TIMES
    if not path.is_file():
        return ()
    found = tomllib.loads(path.read_text(encoding="utf-8")).get("kernels", [])
    for table in found:
        unknown = table.keys() - WORDS - {"op_kernel", "pass", "when"}
        if unknown or not {"op_kernel", "pass", "source"} <= table.keys():
            said = f"unknown words {sorted(unknown)}" if unknown else "op_kernel, pass and source must be given"
            raise ValueError(f"{path.parent.name}/{TIMES}: {said}")
    return tuple(found)


def manner(op: Op, kernel: str, pass_: str, dims: Mapping[str, int]) -> Manner:
    """How a kernel goes about a call of these dimensions."""
    for table in tables(op.op_package):
        ranges = table.get("when", {}).items()
        if (table["op_kernel"], table["pass"]) == (kernel, pass_) and all(
            a <= dims[name] <= b for name, (a, b) in ranges
        ):
            said: dict[str, Any] = {
                name: tuple(v) if isinstance(v, list) else v for name, v in table.items() if name in WORDS
            }
            return Manner(**said)
    return Manner()


def count_values(op: Op, request: Request, args: Sequence[Any]) -> Request:
    """The request, with what its work hangs on beside shapes, counted in the forward's arguments if they hold data.
    Waits for a GPU; of most ops it is the request as it was."""
    values = op.contract.values
    if values is None or any(tensor_kind(t) != MEMORY or t.device.type == "meta" for t in leaves(args)):
        return request
    return replace(request, values=values.count(dict(zip(op.passes["forward"].names, args, strict=True))))


def piece_of(op: Op, request: Request) -> Piece:
    """What a call cannot do without, as its contract counts it; by its values, if the request has them."""
    cost, unit = op.contract.cost(request), str(op.contract.unit(request)).removeprefix("torch.")
    values = dict(request.values)
    lengths = values.pop("lengths", {})
    return Piece(
        cost.flop, cost.transcendental, cost.bytes_read, cost.bytes_written, unit,
        {**op.contract.dims(request), **values}, op.contract.elementary, lengths,
    )  # fmt: skip


def estimate_kernel_time(op: Op, request: Request, kernel: str, known: GpuPeaks, *, alone: bool = True) -> TimeEstimate:
    """The time that a kernel of ours should take for a call: on an idle GPU between two events, or in the middle of a
    program. If a request lacks the values that its work depends on, it is the time of ``Contract.assumed``."""
    piece = piece_of(op, request)
    how = manner(op, kernel, request.pass_, piece.dims)
    return estimate_time(piece, how, known, alone=alone)


# ---------------------------------------------------------------- beside figures on record


@dataclass(frozen=True)
class ModelComparison:
    """One line of a record, in microseconds: the prediction from shapes and measured peaks, the bound, the time."""

    case: str
    kernel: str
    bound_us: float
    expected_us: float
    measured_us: float
    terms: Mapping[str, float]  # of the prediction, in seconds

    @property
    def bound_by(self) -> str:
        return TimeEstimate(0.0, dict(self.terms)).bound_by

    @property
    def off(self) -> float:
        """Of the measured time: above 0 the model says too much."""
        return self.expected_us / self.measured_us - 1


def compare_model(lines: Iterable[Mapping[str, Any]], known: GpuPeaks) -> list[ModelComparison]:
    """The lines of ``h200-ops.json`` that kernels of ours ran, in their order. Nothing here predicts
    torch's own kernels."""
    found = []
    for line in lines:
        op = OPS.get(line["op"])
        if "failed" in line or not line.get("work") or not line.get("source_hash") or op is None:
            continue
        piece = Piece(**line["work"], function=op.contract.elementary)
        pass_ = "backward" if line["pass"] == "backward" else "forward"
        how = manner(op, line["kernel"], pass_, piece.dims)
        if op.contract.values is not None and how.each and "pairs" not in piece.dims:  # of which only flop was counted
            piece = replace(piece, transcendental=piece.flop / product_of(how.each, piece.dims))
        said = estimate_time(
            piece, how, known, warm=bool(line.get("flop"))
        )  # what power limits was warm when it was timed
        least = roofline.bound(
            piece.flop, piece.transcendental, piece.read + piece.written, float("inf"), piece.dtype, 1, known,
            written_bytes=piece.written, function=piece.function,
        )  # fmt: skip
        case = f"{line['op']} {line['pass']} {line['shape']}"
        us = (least.seconds * 1e6, said.seconds * 1e6, 1e3 * line["ms"]["ours"])
        found.append(ModelComparison(case, line["kernel"], *us, said.terms))
    return found
