"""Flop and bytes as formulas over a call's arguments; ``aten.FORMULAS`` says which op has which.

A formula gives the work that any implementation must do: every distinct input byte read once, every output byte
written once, the textbook count of arithmetic (a multiply-add is 2 flop; a square root or a division is 1), and
elementary functions apart. None if the arguments do not tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from kernelworks.profile.cost import NOTHING, Work
from kernelworks.profile.cost.operands import Arguments, Operand, broadcast, total_bytes
from kernelworks.profile.cost.results import result_bytes, results

__all__ = [
    "Formula",
    "adamw",
    "concatenation",
    "copy",
    "ctc",
    "data_movement",
    "elementwise",
    "embedding_backward",
    "embedding_bag",
    "foreach_copy",
    "foreach_zero",
    "fresh",
    "gather",
    "indexing",
    "lists",
    "loop",
    "loss_backward",
    "maximum",
    "nll_loss",
    "norm",
    "norm_backward",
    "nothing",
    "power",
    "reduction",
    "scan",
    "scatter",
    "sequence",
    "softmax",
    "sorted_search",
]  # fmt: skip

Formula = Callable[[Arguments], Work | None]


def _promoted(operands: list[Operand]) -> torch.dtype:
    found = torch.bool
    for operand in [o for o in operands if o.shape] or operands:
        found = torch.promote_types(found, operand.dtype)
    return found


# ---------------------------------------------------------------- one result per element


def elementwise(
    flop: float = 1.0, function: str = "", calls: float = 1.0, result: torch.dtype | None = None
) -> Formula:
    """``flop`` and, with ``function``, ``calls`` elementary functions an element of the broadcast shape."""

    def count(a: Arguments) -> Work | None:
        operands = a.operands
        if not operands:
            return None
        dtype = _promoted(operands)
        operands = [o for o in operands if o.shape] or operands[:1]  # a number comes as a tensor without dimensions
        shape = operands[0].shape if a.in_place else broadcast(operands)
        out = operands[0].dtype if a.in_place else result or dtype
        n = math.prod(shape)
        read = total_bytes(operands)
        return Work(flop * n, calls * n if function else 0.0, read, n * out.itemsize, "float32", function or "exp")

    return count


def loop(flop: float = 1.0, function: str = "", calls: float = 1.0) -> Formula:
    """One pass over the largest tensor given or returned: ``flop`` and ``calls`` elementary functions for each of its
    elements. Every argument is read, every result written."""

    def count(a: Arguments) -> Work | None:
        written = result_bytes(a)
        if written is None or not a.all_operands:
            return None
        n = float(max(o.numel for o in [*a.all_operands, *(results(a) or ())]))
        moved = written + total_bytes(a.mutated_operands)
        return Work(
            flop * n, calls * n if function else 0.0, total_bytes(a.all_operands), moved, "float32", function or "exp"
        )

    return count


def power(a: Arguments) -> Work | None:
    """x^p: multiplications for whole p up to 4 and a root for 1/2, else a logarithm and an exponential."""
    exponent = a[1]
    cheap = isinstance(exponent, (int, float)) and (exponent in (0, 1, 2, 3, 4, 0.5, -0.5, -1, -2))
    return elementwise(max(abs(float(exponent)) - 1, 1.0) if cheap else 1.0, "" if cheap else "exp", 2.0)(a)


def fresh(flop: float = 0.0) -> Formula:
    """Writes its first tensor without reading it (fill_, zero_, normal_, uniform_)."""

    def count(a: Arguments) -> Work | None:
        operands = a.operands
        if not operands:
            return None
        return Work(flop * operands[0].numel, 0.0, 0.0, operands[0].bytes)

    return count


def copy(a: Arguments) -> Work | None:
    """copy_(destination, source)."""
    target, source = a[0], a[1]
    if not isinstance(target, Operand) or not isinstance(source, Operand):
        return None
    return Work(0.0, 0.0, source.bytes, target.bytes)


def data_movement(a: Arguments) -> Work | None:
    """Arithmetic is not its matter: every argument is read (no more of it than is written), every result written."""
    written = result_bytes(a)
    if written is None or not a.all_operands:
        return None
    written += total_bytes(a.mutated_operands)
    return Work(0.0, 0.0, min(total_bytes(a.all_operands), written), written)


def concatenation(a: Arguments) -> Work | None:
    """cat, stack: every input read, the same bytes written."""
    if not isinstance(a[0], list):
        return None
    size = result_bytes(a)
    return Work(0.0, 0.0, total_bytes(a[0]), sum(o.numel * o.dtype.itemsize for o in a[0]) if size is None else size)


def sequence(a: Arguments) -> Work | None:
    """arange, linspace: numbers made from nothing, one flop each."""
    out = results(a)
    return Work(float(out[0].numel), 0.0, 0.0, out[0].bytes) if out else None


# ---------------------------------------------------------------- reductions


def reduction(
    flop: float = 1.0, result: torch.dtype | None = None, outputs: int = 1, functions: float = 0.0
) -> Formula:
    """``flop`` and ``functions`` exponentials an element read; one result per kept element."""

    def count(a: Arguments) -> Work | None:
        x = a[0]
        if not isinstance(x, Operand):
            return None
        written = result_bytes(a)
        if written is None:
            gone = a.dims("dim", len(x.shape))
            n = math.prod(size for d, size in enumerate(x.shape) if d not in gone)
            written = n * ((result or x.dtype).itemsize + 8 * (outputs - 1))
        return Work(flop * x.numel, functions * x.numel, x.bytes, written)

    return count


def maximum(a: Arguments) -> Work | None:
    """max and min: of everything, along a dimension with its indices, or of two tensors."""
    if isinstance(a[1], Operand):
        return elementwise(1.0)(a)
    return reduction(outputs=2 if len(a) > 1 else 1)(a)


def scan(flop: float = 1.0, log: bool = False) -> Formula:
    """``flop`` an element of the first argument, which alone is read; with ``log`` for each halving of its last
    dimension too (sorts)."""

    def count(a: Arguments) -> Work | None:
        x, written = a[0], result_bytes(a)
        if not isinstance(x, Operand) or written is None:
            return None
        n = a.dims("dim", len(x.shape))[-1:] if log and x.shape else ()
        halvings = math.log2(max(x.shape[n[0]], 2)) if n else math.log2(max(x.numel, 2)) if log else 1.0
        written += total_bytes(o for o in a.mutated_operands if o is not x)
        return Work(flop * x.numel * halvings, 0.0, x.bytes, written)

    return count


def sorted_search(a: Arguments) -> Work | None:
    """searchsorted, bucketize, isin: a search in a sorted line for each result."""
    out = results(a)
    if not out or not a.operands:
        return None
    line = min(o.shape[-1] if o.shape else 1 for o in a.operands)
    return Work(out[0].numel * math.log2(max(line, 2)), 0.0, total_bytes(a.operands), out[0].bytes)


def softmax(a: Arguments) -> Work | None:
    """max, subtract, exp, sum, divide: 4 flop and 1 exp an element."""
    x = a[0]
    if not isinstance(x, Operand):
        return None
    written = result_bytes(a)
    return Work(4.0 * x.numel, x.numel, x.bytes, x.numel * x.dtype.itemsize if written is None else written)


def norm(flop: float) -> Formula:
    """A normalisation: ``flop`` an element, its small parameters read, statistics not counted."""

    def count(a: Arguments) -> Work | None:
        x = a[0]
        if not isinstance(x, Operand):
            return None
        return Work(flop * x.numel, 0.0, total_bytes(a.operands), x.numel * x.dtype.itemsize)

    return count


def norm_backward(flop: float) -> Formula:
    """The backward of one: only the gradients that are asked for are written; x is asked for as a rule."""

    def count(a: Arguments) -> Work | None:
        grad, written = a[0], result_bytes(a)
        if not isinstance(grad, Operand):
            return None
        size = grad.numel * grad.dtype.itemsize
        return Work(flop * grad.numel, 0.0, total_bytes(a.operands), size if written is None else written)

    return count


# ---------------------------------------------------------------- look-ups


def gather(table: int = 0) -> Formula:
    """Reads the indices and what they point at in argument ``table``, which is what it writes."""

    def count(a: Arguments) -> Work | None:
        x, written = a[table], result_bytes(a)
        if not isinstance(x, Operand) or written is None:
            return None
        rest = total_bytes(o for o in a.operands if o is not x)
        return Work(0.0, 0.0, min(x.bytes, written) + rest, written)

    return count


def nll_loss(a: Arguments) -> Work | None:
    """nll_loss(x, target): one entry a target."""
    x, target, written = a[0], a[1], result_bytes(a)
    if not (isinstance(x, Operand) and isinstance(target, Operand)):
        return None
    size = target.numel * x.dtype.itemsize
    return Work(0.0, 0.0, size + total_bytes(a.operands[1:]), size if written is None else written)


def embedding_bag(a: Arguments) -> Work | None:
    """embedding_bag(table, ids, offsets): the rows that the ids point at, summed."""
    x, ids, out = a["weight"], a["indices"], results(a)
    if not (isinstance(x, Operand) and isinstance(ids, Operand)) or not out or not x.shape:
        return None
    rows = ids.numel * x.shape[-1]
    rest = total_bytes(o for o in a.operands if o is not x)
    return Work(float(rows), 0.0, min(x.bytes, rows * x.dtype.itemsize) + rest, out[0].bytes)


def indexing(a: Arguments) -> Work | None:
    """x[index]: the profiler does not record the indices, but the restrided x below has the shape of the result, and
    the block that it was seen to allocate its size."""
    x = a[0]
    if not isinstance(x, Operand):
        return None
    sizes = [
        math.prod(child.scalars[1]) * x.dtype.itemsize
        for child in a.call.children
        if child.name == "aten::as_strided" and len(child.scalars) > 1 and isinstance(child.scalars[1], list)
    ]
    size = max(sizes, default=0) or max((size for _, size in a.call.made), default=0)
    return Work(0.0, 0.0, min(x.bytes, size) if size > x.bytes else size, size) if size else None


def scatter(a: Arguments) -> Work | None:
    """scatter, index_add, index_copy, index_put: the source and indices read; in place as much written as the source
    has, else a whole copy."""
    operands = a.operands
    if len(operands) < 2:
        return None
    into, rest = operands[0], operands[1:]
    source = next((o for o in reversed(rest) if o.dtype == into.dtype), rest[0])
    if a.in_place:
        return Work(float(source.numel), 0.0, total_bytes(rest), source.numel * into.dtype.itemsize)
    written = result_bytes(a)
    size = into.numel * into.dtype.itemsize if written is None else written
    return Work(float(source.numel), 0.0, total_bytes(operands), size)


def ctc(a: Arguments) -> Work | None:
    """ctc_loss(log probabilities [T, N, C], targets): three sums of exponentials at each step of the labels with blanks
    between them; backward as much again."""
    x, labels = a["log_probs"], a["targets"]
    if not (isinstance(x, Operand) and isinstance(labels, Operand)) or len(x.shape) < 2:
        return None
    samples = x.shape[1] if len(x.shape) > 2 else 1
    steps = x.shape[0] * (2 * labels.numel + samples)
    written = x.bytes if "backward" in a.name else samples * x.dtype.itemsize
    return Work(6.0 * steps, 3.0 * steps, total_bytes([x, labels]), written)


def embedding_backward(a: Arguments) -> Work | None:
    grad, index, rows = a[0], a[1], a[2]
    if not (isinstance(grad, Operand) and isinstance(index, Operand)) or not isinstance(rows, int):
        return None
    written = rows * grad.shape[-1] * grad.dtype.itemsize
    return Work(grad.numel, 0.0, grad.bytes + index.bytes, written)


def loss_backward(a: Arguments) -> Work | None:
    """nll_loss_backward(grad, x, target): one entry a row, the rest zeros."""
    x = a[1]
    return Work(0.0, 0.0, a[2].bytes, x.numel * x.dtype.itemsize) if isinstance(x, Operand) else None


# ---------------------------------------------------------------- lists, optimisers


def lists(flop: float = 1.0, written: int | None = None) -> Formula:
    """_foreach_ and fused optimisers: every list read; ``written`` numbers a tensor written, else what torch says is
    changed or returned. Gradients are marked as changed (they may be scaled), and as a rule are not."""

    def count(a: Arguments) -> Work | None:
        first = next(
            (item for item in a.items if isinstance(item, list) and item and isinstance(item[0], Operand)), None
        )
        if first is None:
            return None
        grads = a["grads"] if isinstance(a["grads"], list) else []
        changed = [o for o in a.mutated_operands if not any(o is grad for grad in grads)]
        out = total_bytes(changed) + sum(o.bytes for o in results(a) or ()) or total_bytes(first)
        if written is not None:
            out = sum(written * o.dtype.itemsize for o in first)
        return Work(flop * sum(o.numel for o in first), 0.0, total_bytes(a.all_operands), out)

    return count


def foreach_copy(a: Arguments) -> Work | None:
    """_foreach_copy_(targets, sources)."""
    if not isinstance(a[0], list) or not isinstance(a[1], list):
        return None
    return Work(0.0, 0.0, total_bytes(a[1]), total_bytes(a[0]))


def adamw(a: Arguments) -> Work | None:
    """Reads parameters, gradients and both moments, writes all but the gradients: 14 flop a parameter."""
    tensors = [item for item in a.items if isinstance(item, list) and item and isinstance(item[0], Operand)]
    if len(tensors) < 4:
        return None
    sizes = [sum(o.bytes for o in group) for group in tensors[:4]]
    n = sum(o.numel for o in tensors[0])
    return Work(14.0 * n, 0.0, sum(sizes), sizes[0] + sizes[2] + sizes[3])


def foreach_zero(a: Arguments) -> Work | None:
    """_foreach_zero_."""
    return Work(written=total_bytes(a[0])) if isinstance(a[0], list) else None


def nothing(a: Arguments) -> Work | None:
    return NOTHING
