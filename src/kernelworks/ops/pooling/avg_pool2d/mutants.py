"""Known-wrong versions of avg_pool2d. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.contract.int_pair import pair
from kernelworks.ops.pooling.avg_pool2d.contract import CONTRACT, reference, windows_of
from kernelworks.templates.mutants import generic

__all__ = ["MUTANTS"]

NAMES = ("x", "kernel_size", "stride", "padding", "count_include_pad")


def _with(**changed: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        given = dict(zip(NAMES, args, strict=True)) | {"x": args[0].double()}
        return reference(**(given | {n: change(**given) for n, change in changed.items()}))[0].to(args[0].dtype)

    return run


def _last_tap(*args: Any) -> Any:
    """A window's last element is left out."""
    x, size = args[0].double(), pair(args[1])
    taps = [part for _, _, part in windows_of(*args[1:4]).taps(x)]
    (made,) = reference(x, *args[1:])
    (count,) = reference(torch.ones_like(x), *args[1:])
    less = (made - taps[-1] / (size[0] * size[1])) if args[4] else made - taps[-1] * 0.5 * count
    return less.to(args[0].dtype)


def _largest(*args: Any) -> Any:
    found: Tensor = torch.stack([part for _, _, part in windows_of(*args[1:4]).taps(args[0].double())]).amax(0)
    return found.to(args[0].dtype)


MUTANTS = (
    *generic(CONTRACT.reference, ("x",), NAMES),
    Mutant("padding counted", _with(count_include_pad=lambda **_: True), "what lies outside is counted"),
    Mutant("padding not counted", _with(count_include_pad=lambda **_: False), "what lies outside is not counted"),
    Mutant("last element missing", _last_tap, "a window's last element is left out"),
    Mutant("the largest", _largest, "the maximum for the mean"),
    Mutant("turned picture", _with(x=lambda x, **_: x.flip(3)), "columns are read from the other end"),
    Mutant("first picture", _with(x=lambda x, **_: x[:1].expand_as(x)), "one picture for the batch"),
)
