"""The kernel map of one model, from the record of its diagnosis: one account of time."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernelworks.records import Diagnosis, Hotspot, MapOp
from kernelworks.records.model_map import MappedCalls, ModelMap

__all__ = ["model_map"]

CHOSEN_KERNEL = re.compile(
    r"kw\.(?P<op>\w+): (?P<kernel>.+)"
)  # what a hotspot says of the kernel that its calls would take


def model_map(record: Diagnosis, ops: Sequence[MapOp]) -> ModelMap:
    """The hotspots of a diagnosis, each with the op that it is, the op's family, kernel, certificate and exercises.

    Cost: nothing is run. ``ops``: the kernel map of this machine.
    """
    by_name = {op.op: op for op in ops}
    calls = sorted((_mapped(one, by_name) for one in record.hotspots), key=lambda one: -one.seconds)
    return ModelMap(
        program=record.program, machine=record.peaks.name, wall_s=record.wall_s, calls=tuple(calls),
        elsewhere_s=max(0.0, record.wall_s - sum(one.seconds for one in calls)), rough=record.rough, date=record.date,
    )  # fmt: skip


def _op_name(hotspot: Hotspot, known: Sequence[str]) -> str:
    """The op of kernelworks that a hotspot's calls are; torch names what is behind a function ``_softmax`` or
    ``native_layer_norm``, and inductor's kernels are named after the operators in them."""
    chosen = CHOSEN_KERNEL.match(hotspot.op_kernel)
    if chosen:
        return chosen["op"]
    plain = hotspot.op.removeprefix("inductor: ").removeprefix("aten::").removesuffix(" (backward)")
    names = (plain, plain.removeprefix("_"), plain.removeprefix("native_"), plain.removeprefix("kernelworks::"))
    return next((name for name in names if name in known), "")


def _mapped(hotspot: Hotspot, by_name: dict[str, MapOp]) -> MappedCalls:
    name = _op_name(hotspot, list(by_name))
    op, chosen = by_name.get(name), CHOSEN_KERNEL.match(hotspot.op_kernel)
    kernel = chosen["kernel"] if chosen else ""
    rows = [row for row in op.kernels if row.name == kernel] if op else []
    return MappedCalls(
        operator=hotspot.op, module=hotspot.module, source=hotspot.source, calls=hotspot.calls,
        seconds=hotspot.seconds, share=hotspot.share, share_of_roofline=hotspot.achieved if hotspot.modelled else None,
        bottleneck=hotspot.bottleneck, op=name, family=op.family if op else "", kernel=kernel,
        verified=any(row.certificate and not row.reason for row in rows), page=op.op_package if op else "",
        exercises=op.exercises if op else (),
    )  # fmt: skip
