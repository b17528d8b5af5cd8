"""An operator of a recorded trace on the terminal: its layers down to the instructions of a GPU's kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from kernelworks.records.descent import DeviceKernel, DeviceLoop, OperatorTime
from kernelworks.report import quantity
from kernelworks.report.descent.layers import declined_kernels, dispatch_choice, layer, roofline_place, upper_layers

__all__ = ["device_operator"]

MOST_LINES = 18  # of a loop, unless everything is shown
MOST_NAME = 72
MOST_OPERATIONS = 6
DECISIVE, HEAVY = ("matrix product", "load", "store", "asynchronous copy"), 8  # what a stretch is shown for
# What stands before an instruction, by what it is there for; the others have none.
MARKS = {
    "matrix product": "product", "multiply-add": "multiply", "other arithmetic operation": "arith",
    "special function": "special", "load": "load", "store": "store", "asynchronous copy": "copy",
    "shared load": "shared", "shared store": "shared", "shuffle": "shuffle", "wait": "wait", "spill": "SPILL",
    "conversion": "convert",
}  # fmt: skip


def device_operator(one: OperatorTime, *, verbose: bool) -> Iterator[RenderableType]:
    """Its layers, from the module to the kernels' code."""
    calls = f", {one.calls} call{'s' if one.calls > 1 else ''}" if one.calls else ""
    host = f", {quantity.seconds(one.host_s)} of the host" if one.host_s else ""
    took = f"  {quantity.seconds(one.seconds)} of the GPU, {quantity.percent(one.share)} of all its work{calls}{host}"
    yield Text.assemble((one.operator, "bold"), took)
    yield from upper_layers(one)
    yield layer("dispatcher", _dispatcher(one))
    yield from declined_kernels(one)
    yield layer("roofline", roofline_place(one) if one.calls else "unknown: no operator says how much work this is")
    for kernel in one.kernels:
        yield from _kernel(kernel, verbose=verbose)


def _dispatcher(one: OperatorTime) -> Text:
    makers = ", ".join(dict.fromkeys(kernel.maker for kernel in one.kernels))
    ran = f"ran: {makers or 'no kernel'}"
    if one.kernel:
        return Text.assemble(f"{ran}; of such a call on this kind of GPU ", dispatch_choice(one))
    if one.op:
        return Text(f"{ran}; kernelworks has an op of its own: `kernelworks explain {one.op}`")
    if makers == "inductor":
        return Text("torch.compile: inductor wrote the kernel, for these shapes")
    return Text(f"{ran}; kernelworks has no op for it")


def _kernel(kernel: DeviceKernel, *, verbose: bool) -> Iterator[RenderableType]:
    name = kernel.name if verbose or len(kernel.name) <= MOST_NAME else f"{kernel.name[: MOST_NAME - 3]}..."
    each = quantity.seconds(kernel.seconds / max(1, kernel.runs))
    runs = f"{kernel.runs} run{'s' if kernel.runs > 1 else ''} of {each}"
    head = f"{quantity.percent(kernel.share)} "
    yield layer("kernel", Text.assemble(head, (name, "bold"), f" by {kernel.maker}, {runs}"))
    if kernel.grid:
        parts = [f"grid {_product(kernel.grid)}, block {_product(kernel.block)}"]
        parts += [f"{kernel.registers} registers a thread"] if kernel.registers else []
        parts += [f"{kernel.shared_bytes} bytes of shared memory"] if kernel.shared_bytes else []
        yield layer("launch", ", ".join(parts))
    for said in kernel.said:
        yield layer("", said)
    if kernel.source:
        yield layer("source", kernel.source)
    for label, counts in (("Triton IR", kernel.ir), ("PTX", kernel.ptx)):
        if counts:
            yield layer(label, _counts(counts, verbose=verbose))
    if kernel.loop is None:
        yield layer("code", "not at hand")
        return
    yield from _loop(kernel.loop, kernel.code, verbose=verbose)


def _product(sizes: Sequence[int]) -> str:
    kept = list(sizes)
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return " x ".join(map(str, kept))


def _counts(counts: dict[str, int], *, verbose: bool) -> str:
    shown = list(counts.items()) if verbose else list(counts.items())[:MOST_OPERATIONS]
    left = len(counts) - len(shown)
    return ", ".join(f"{count} {name}" for name, count in shown) + (f", {left} more kinds" if left else "")


def _loop(loop: DeviceLoop, code: str, *, verbose: bool) -> Iterator[RenderableType]:
    label = "SASS" if loop.whole else "hot loop"
    whole = "" if loop.whole else f"; the kernel has {loop.kernel_instructions} instructions"
    yield layer(label, f"{loop.explained[0]}{whole} ({code})")
    for line in loop.explained[1:]:
        yield layer("", line)
    for text, kind in _shown(loop.lines, verbose=verbose):
        mark = MARKS.get(kind, "").ljust(9)
        yield layer("", Text.assemble((mark, "red"), (text, "" if kind in MARKS else "dim")))


def _shown(lines: Sequence[tuple[str, str]], *, verbose: bool) -> Iterator[tuple[str, str]]:
    """All, or of a long loop the stretch with the most that does its work."""
    if verbose or len(lines) <= MOST_LINES:
        yield from lines
        return
    worth = [HEAVY if kind in DECISIVE else kind in MARKS for _, kind in lines]
    best = max(range(len(lines) - MOST_LINES + 1), key=lambda at: sum(worth[at : at + MOST_LINES]))
    if best:
        yield f"... {best} instructions", ""
    yield from lines[best : best + MOST_LINES]
    left = len(lines) - best - MOST_LINES
    if left:
        yield f"... {left} instructions", ""
