"""Shapes as a table shows them: calls whose sizes differ little fall together, ``8x513..528x128``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelworks.profile.cost.operands import Arguments, Operand
from kernelworks.profile.trace import Call

__all__ = ["Signature", "bucket_sizes", "clusters", "signature"]

Signature = tuple[tuple[tuple[int, ...], str], ...]

SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "float64": "f64", "int64": "i64", "int32": "i32"}
RATIO = 2  # Sizes further apart than this are different work.


def signature(call: Call) -> Signature:
    """Shapes and dtypes of the tensor arguments; of a list of tensors the first three."""
    found: list[tuple[tuple[int, ...], str]] = []
    for item in Arguments(call).items:
        for operand in (item if isinstance(item, list) else [item])[:3]:
            if isinstance(operand, Operand):
                found.append((operand.shape, str(operand.dtype).removeprefix("torch.")))
    return tuple(found)


def bucket_sizes(shapes: Signature) -> Any:
    """Sizes by their power of two: calls of a growing cache look alike."""
    return tuple((tuple(n.bit_length() for n in shape), dtype) for shape, dtype in shapes)


def clusters(signatures: Sequence[Signature]) -> list[tuple[str, list[int]]]:
    """Groups of positions whose signatures have the same ranks and dtypes and no size over twice another's."""
    found: list[tuple[Signature, list[int]]] = []
    by_signature: dict[Signature, list[int]] = {}
    for i, signature in enumerate(signatures):
        by_signature.setdefault(signature, []).append(i)
    for signature in sorted(by_signature, key=_sizes):
        for first, members in found:
            if _close(first, signature):
                members.extend(by_signature[signature])
                break
        else:
            found.append((signature, list(by_signature[signature])))
    return [(_text([signatures[i] for i in members]), sorted(members)) for _, members in found]


def _sizes(signature: Signature) -> tuple[int, ...]:
    return tuple(size for shape, _ in signature for size in shape)


def _close(a: Signature, b: Signature) -> bool:
    if [(len(shape), dtype) for shape, dtype in a] != [(len(shape), dtype) for shape, dtype in b]:
        return False
    return all(max(x, y) <= RATIO * min(x, y) for x, y in zip(_sizes(a), _sizes(b), strict=True))


def _text(signatures: Sequence[Signature]) -> str:
    pieces = []
    for column in zip(*signatures, strict=True):
        shapes, dtype = [shape for shape, _ in column], column[0][1]
        sizes = "x".join(_range([shape[d] for shape in shapes]) for d in range(len(shapes[0]))) or "scalar"
        pieces.append(f"{SHORT.get(dtype, dtype)} {sizes}")
    return ", ".join(pieces)


def _range(sizes: list[int]) -> str:
    low, high = min(sizes), max(sizes)
    return str(low) if low == high else f"{low}..{high}"
