"""How much a problem moves and multiplies, without its memory or its time; and smaller sizes at which it fits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from kernelworks.judge.formats import text
from kernelworks.judge.problem import Problem, Shape

__all__ = ["Size", "fit_shape", "size_of"]

SMALLEST = 8  # what a constant is not halved below
TRIES = 64


@dataclass(frozen=True)
class Size:
    bytes: float  # of inputs, weights and outputs
    flop: float  # of products


def size_of(loaded: Any) -> Size | None:
    """On tensors without contents; None where the problem does not run on such."""
    counter = FlopCounterMode(display=False)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            model = loaded.reference(*loaded.init())
            inputs = loaded.inputs()
            with counter:
                result = model(*inputs)
    except Exception:
        return None
    weights = list(model.parameters()) if isinstance(model, nn.Module) else []
    tensors = [t for t in pytree.tree_leaves((inputs, result, weights)) if isinstance(t, Tensor)]
    return Size(float(sum(t.numel() * t.element_size() for t in tensors)), float(counter.get_total_flops()))


def fit_shape(
    problem: Problem, load: Callable[[Problem, Shape, Path], Any], folder: Path, most_bytes: float, most_flop: float
) -> tuple[Shape, Size | None]:
    """The problem's own shape where it is within the limits, else one whose largest constants were halved until it is;
    and the size of its own. Where none is within them, the smallest that runs. Texts are written into ``folder``."""
    own = problem.shapes[0]

    def measured(sizes: dict[str, int]) -> Size | None:
        return size_of(load(problem, Shape("smaller", sizes), folder))

    first = measured(dict(own.sizes))
    if first is None or (first.bytes <= most_bytes and first.flop <= most_flop):
        return own, first
    constants = _constants(problem)
    sizes = dict(own.sizes)
    fixed: set[str] = set()
    size: Size | None = first
    for _ in range(TRIES):
        if size is not None and size.bytes <= most_bytes and size.flop <= most_flop:
            return Shape("smaller", sizes, required=False), first
        able = {n: v for n, v in (constants | sizes).items() if n not in fixed and v >= 2 * SMALLEST}
        if not able:
            break
        name = max(able, key=lambda n: able[n])
        alike = [n for n, v in able.items() if v == able[name]]  # a square's sides may have a name each
        for some in ([name], alike) if len(alike) > 1 else ([name],):
            tried = sizes | {n: able[n] // 2 for n in some}
            smaller = measured(tried)
            if smaller is not None and not math.isclose(smaller.bytes, size.bytes if size else 0.0):
                sizes, size = tried, smaller
                break
        else:
            fixed.add(name)  # it does not run with less of it, or is no size
    return (own if sizes == dict(own.sizes) else Shape("smaller", sizes, required=False)), first


def _constants(problem: Problem) -> dict[str, int]:
    """Those that only inputs and arguments are made of. What the reference itself reads a candidate has written down,
    too, and would have as it was."""
    found: dict[str, int] = {}
    for name, source in problem.files.items():
        if name.endswith(".py"):
            named = text.constants(text.parse_module(source, name))
            read = text.names_read_by(problem.entry, source)
            found |= {n: v for n, v in named.items() if n.partition("[")[0] not in read}
    return found
