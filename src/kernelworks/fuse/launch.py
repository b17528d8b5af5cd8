"""The call of a kernel, written out for the arguments of its function: views, numbers, outputs, launch, results."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.sharing import choose_threads
from kernelworks.contract.philox import threshold_of
from kernelworks.dispatch.generated_code import run_generated_code
from kernelworks.fuse.expression import ELEMENTS
from kernelworks.fuse.lowering import LoweredGraph, Result

__all__ = ["numbers_of", "scale_of", "stream_texts", "written_launch"]

WORD64 = (1 << 64) - 1


def scale_of(p: float) -> float:
    """What kept elements are multiplied by."""
    return 1.0 / (1.0 - p) if p < 1.0 else 0.0


def _signed(word: int) -> int:
    """64 bits as the signed integer that holds them."""
    word &= WORD64
    return word - (1 << 64) if word >> 63 else word


SCOPE: dict[str, Any] = {
    "scale_of": scale_of, "threshold_of": threshold_of, "signed": _signed, "empty_like": torch.empty_like,
    "empty": torch.empty, "shared": choose_threads, "math": math, "inf": math.inf, "nan": math.nan,
}  # fmt: skip


@functools.lru_cache(maxsize=4096)
def _evaluator(texts: tuple[str, ...], count: int) -> Callable[..., tuple[Any, ...]]:
    scope = dict(SCOPE)
    given = ", ".join(f"a{i}" for i in range(count))
    run_generated_code(f"def numbers({given}):\n    return ({''.join(t + ', ' for t in texts)})\n", scope, "numbers")
    found: Callable[..., tuple[Any, ...]] = scope["numbers"]
    return found


def numbers_of(lowered: LoweredGraph, leaves: Sequence[Any]) -> tuple[float, ...]:
    """The numbers that a kernel is given at a call."""
    return _evaluator(tuple(lowered.numbers), len(leaves))(*leaves)


def stream_texts(lowered: LoweredGraph, leaves: Sequence[Any]) -> list[tuple[int, int, float]]:
    """Seed, offset and share to drop of each stream of random bits at a call."""
    texts = tuple(text for s in lowered.streams for text in (s.seed, s.offset, s.p))
    found = _evaluator(texts, len(leaves))(*leaves)
    return [(int(found[i]), int(found[i + 1]), float(found[i + 2])) for i in range(0, len(found), 3)]


def written_launch(
    lowered: LoweredGraph, count: int, function: Any, nanoseconds: float | None, device: str
) -> Callable[..., tuple[Any, ...]]:
    """``launch(*leaves)``, which returns the results. ``function`` takes outputs, inputs, numbers, streams and, if
    ``nanoseconds`` says what one thread needs, the number of threads."""
    e, scope = lowered.expression, dict(SCOPE)
    scope["function"], scope["device"] = function, torch.device(device)
    lines, inputs = list[str](), list[str]()
    for k, view in enumerate(lowered.arguments):
        if view.chain:
            scope[f"view{k}"] = view.of
            lines.append(f"i{k} = view{k}(a{view.place})")
            inputs.append(f"i{k}")
        else:
            inputs.append(f"a{view.place}")
    for k, output in enumerate(e.outputs):
        scope[f"dtype{k}"], scope[f"shape{k}"] = output.dtype, output.shape
        like = _like(lowered, output.shape) if output.place == ELEMENTS else None
        if like is None:
            lines.append(f"o{k} = empty(shape{k}, dtype=dtype{k}, device=device)")
        elif e.inputs[like].dtype is output.dtype:
            lines.append(f"o{k} = empty_like({inputs[like]})")
        else:
            lines.append(f"o{k} = empty_like({inputs[like]}, dtype=dtype{k})")
    streams = [f"signed({s.seed}), signed({s.offset}), threshold_of({s.p})" for s in lowered.streams]
    given = [*(f"o{k}" for k in range(len(e.outputs))), *inputs, *lowered.numbers, *streams]
    if not e.outputs:
        pass
    elif nanoseconds is not None:
        lines.append(f"run, threads = shared(function, {nanoseconds!r})")
        lines.append(f"run({', '.join([*given, 'threads'])})")
    else:
        lines.append(f"function({', '.join(given)})")
    results = [_result(k, result, scope, e) for k, result in enumerate(lowered.results)]
    lines.append(f"return ({''.join(r + ', ' for r in results)})")
    leaves = ", ".join(f"a{i}" for i in range(count))
    body = "\n".join(f"    {line}" for line in lines)
    run_generated_code(f"def launch({leaves}):\n{body}\n", scope, "launch of a fused kernel")
    launch: Callable[..., tuple[Any, ...]] = scope["launch"]
    return launch


def _like(lowered: LoweredGraph, shape: tuple[int, ...]) -> int | None:
    """The input whose order in memory the outputs take: the first that has their shape."""
    return next((k for k, i in enumerate(lowered.expression.inputs) if i.shape == shape), None)


def _result(k: int, result: Any, scope: dict[str, Any], e: Any) -> str:
    if result is None:
        return "None"
    if not isinstance(result, Result):
        scope[f"result{k}"] = result.of
        return f"result{k}(a{result.place})"
    text = f"o{result.output}"
    shape = e.outputs[result.output].shape
    if result.total is not None:
        scope[f"total{k}"], scope[f"type{k}"] = functools.partial(_total, result.total), result.dtype
        text, shape = f"total{k}({text}).to(type{k})", result.total
    if shape != result.shape:
        scope[f"shape_of{k}"] = result.shape
        text += f".view(shape_of{k})"
    return text


def _total(shape: tuple[int, ...], elements: Tensor) -> Tensor:
    return elements.sum_to_size(shape)
