"""The kernel map as a page: families, what each is in a model and as a kernel, ops, and which kernels are verified."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from kernelworks.records import MapKernel, MapOp
from kernelworks.report import quantity
from kernelworks.report.family_readings import family_readings

__all__ = ["MAP_SCRIPTS", "MAP_STYLES", "map_parts"]

MAP_STYLES, MAP_SCRIPTS = ("style/map.css",), ("style/map.js",)

PLAIN_KERNELS = ("torch", "reference")  # kernels that need no certificate


def map_parts(ops: Sequence[MapOp]) -> tuple[str, list[str]]:
    """Title and body of the page."""
    families = list(dict.fromkeys(op.family for op in ops))
    verified = sum(kernel_state(kernel) == "verified" for op in ops for kernel in op.kernels)
    ours = sum(kernel.name not in PLAIN_KERNELS for op in ops for kernel in op.kernels)
    parts = [
        "<h1>Kernel map</h1>",
        f'<p class="sentence">{len(ops)} ops in {len(families)} families; {verified} of {ours} kernels are verified '
        "for this kind of machine.</p>",
        '<p class="context">A kernel is dispatched only if a certificate holds for its source, compiler and '
        "instruction set here. Of a GPU that is not here, certificates that ship are shown.</p>",
        '<p class="script"><label for="map-filter">Filter </label><input id="map-filter" type="search" '
        'placeholder="softmax, norm, avx512" autocomplete="off"></p>',
    ]
    for family in families:
        parts += _family(family, [op for op in ops if op.family == family])
    return "kernelworks map", parts


def kernel_state(kernel: MapKernel) -> str:
    """``verified``, ``unverified``, or ``plain`` if it needs no certificate."""
    if kernel.name in PLAIN_KERNELS:
        return "plain"
    return "verified" if kernel.certificate and not kernel.reason else "unverified"


def _family(family: str, ops: Sequence[MapOp]) -> Iterator[str]:
    yield f'<section class="family"><h2 id="{escape(family)}">{escape(family)}</h2>'
    reading = family_readings().get(family)
    if reading is not None:
        rows = (("in a model", reading.model), ("as a kernel", reading.kernel), ("how it fails", reading.failure))
        yield '<dl class="reading">'
        yield from (f"<dt>{name}</dt><dd>{escape(said)}</dd>" for name, said in rows)
        yield "</dl>"
    yield '<div class="ops">'
    yield from (_op(op) for op in ops)
    yield "</div></section>"


def _op(op: MapOp) -> str:
    words = " ".join((op.op, op.family, *(kernel.name for kernel in op.kernels)))
    marks = " ".join(
        f'<span class="kernel {kernel_state(kernel)}">{escape(kernel.name)}</span>'
        for kernel in op.kernels
        if kernel.name not in PLAIN_KERNELS
    )
    lines = [f"<li><code>{escape(call)}</code></li>" for call in op.calls]
    lines += [f"<li>{escape(kernel.name)}: {escape(_standing(kernel))}</li>" for kernel in op.kernels]
    lines += [f"<li>learn it: <code>kernelworks learn start {escape(name)}</code></li>" for name in op.exercises]
    lines.append(f"<li>source: {escape(op.source)}</li>")
    return (
        f'<details class="mapped" data-words="{escape(words)}"><summary><span class="op">{escape(op.op)}</span> {marks}'
        f"</summary><p><code>{escape(op.formula)}</code></p><ul>{''.join(lines)}</ul></details>"
    )


def _standing(kernel: MapKernel) -> str:
    """What is known of a kernel, in a line."""
    if kernel_state(kernel) == "plain":
        return "plain torch, needs no certificate"
    said = [kernel.reason.split("; run")[0]] if kernel.reason else [f"verified {kernel.certificate} on {kernel.kind}"]
    if kernel.worst is not None:
        said.append(f"worst error {kernel.worst:.2f} of its bound")
    if kernel.share_of_bound is not None:
        said.append(f"{quantity.percent(kernel.share_of_bound)} of its roofline")
    if kernel.ratio is not None:
        said.append(f"{quantity.ratio(kernel.ratio)} over {kernel.baseline}")
    return ", ".join(said)
