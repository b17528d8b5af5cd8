"""Known-wrong versions of conv2d. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.contract.int_pair import pair
from kernelworks.ops.convolution.conv2d.contract import CONTRACT, convolve, windows_of
from kernelworks.templates.mutants import VECTOR, generic

__all__ = ["MUTANTS"]

NAMES = ("x", "weight", "bias", "stride", "padding", "dilation", "groups")


def _wide(args: tuple[Any, ...]) -> dict[str, Any]:
    return {n: a.double() if isinstance(a, Tensor) else a for n, a in zip(NAMES, args, strict=True)}


def _with(**changed: Callable[..., Any]) -> Callable[..., Any]:
    """The definition of changed arguments, each a function of all of them; of results of another shape the part that
    fits, and zeros."""

    def run(*args: Any) -> Any:
        wide = _wide(args)
        right = convolve(**wide)
        made = convolve(**(wide | {n: change(**wide) for n, change in changed.items()}))
        found = torch.zeros_like(right)
        rows, columns = (min(a, b) for a, b in zip(made.shape[2:], right.shape[2:], strict=True))
        found[..., :rows, :columns] = made[..., :rows, :columns]
        return found.to(args[0].dtype)

    return run


def _then(change: Callable[..., Tensor]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        wide = _wide(args)
        return change(convolve(**wide), **wide).to(args[0].dtype)

    return run


def _clamped(x: Tensor, padding: Any, **args: Any) -> Tensor:
    """The picture's edge is repeated where zeros belong."""
    top, left = pair(padding)
    return torch.nn.functional.pad(x, (left, left, top, top), mode="replicate") if x.numel() else x


def _edge(*args: Any) -> Any:
    wide = _wide(args)
    if not wide["x"].numel():
        return convolve(**wide).to(args[0].dtype)
    return convolve(**(wide | {"x": _clamped(**wide), "padding": 0})).to(args[0].dtype)


def _wrapped(*args: Any) -> Any:
    """What lies over the end of a row is read from the next one."""
    wide = _wide(args)
    top, left = pair(wide["padding"])
    flat = wide["x"].flatten(2)
    B, _, H, W = wide["x"].shape
    if not left or not H or not B:
        return convolve(**wide).to(args[0].dtype)
    ahead = torch.nn.functional.pad(flat, (left, left))
    rows = torch.stack([ahead[..., h * W : h * W + W + 2 * left] for h in range(H)], 2)
    return convolve(**(wide | {"x": rows, "padding": (top, 0)})).to(args[0].dtype)


def _last_block(*args: Any) -> Any:
    """A block of products overwrites the ones before it."""
    wide = _wide(args)
    each = wide["weight"].shape[1]
    kept = max(each - 1, 0) // 4 * 4
    mask = torch.arange(each) >= kept
    return convolve(**(wide | {"weight": wide["weight"] * mask[:, None, None]})).to(args[0].dtype)


def _bfloat16_sums(*args: Any) -> Any:
    x, weight, bias, stride, padding, dilation, groups = args
    total: Any = None
    for i, j, part in windows_of(weight, stride, padding, dilation).taps(x.float()):
        made = torch.einsum(
            "bgchw,gfc->bgfhw", part.unflatten(1, (groups, -1)), weight.float().unflatten(0, (groups, -1))[..., i, j]
        ).bfloat16()
        total = made if total is None else (total + made)
    y = total.float().flatten(1, 2)
    return (y if bias is None else y + bias.float()[:, None, None]).to(x.dtype)


def _stale_columns(y: Tensor, **args: Any) -> Tensor:
    y = y.clone()
    if y.shape[-1] % VECTOR and y.numel():
        y[..., -1] = 0.0
    return y


def _turned(weight: Tensor, **args: Any) -> Tensor:
    return weight.flip(2, 3)


def _crossed(weight: Tensor, **args: Any) -> Tensor:
    return weight.mT if weight.shape[2] == weight.shape[3] else weight.flip(3)


def _mixed(x: Tensor, groups: int, **args: Any) -> Tensor:
    """Channels are dealt out to groups in turn, in place of runs of them."""
    mixed: Tensor = x.unflatten(1, (-1, groups)).transpose(1, 2).flatten(1, 2)
    return mixed


MUTANTS = (
    *generic(CONTRACT.reference, ("x",), NAMES),
    Mutant("flipped", _with(weight=_turned), "a convolution for a cross-correlation"),
    Mutant("rows for columns", _with(weight=_crossed), "the window's two dimensions change places"),
    Mutant("bias missing", _with(bias=lambda **_: None), "the bias is not added"),
    Mutant("no padding", _with(padding=lambda **_: 0, x=lambda x, padding, **_: torch.nn.functional.pad(
        x, (0, 2 * pair(padding)[1], 0, 2 * pair(padding)[0]))), "padding on one side alone"),
    Mutant("the edge for zeros", _edge, "the picture's edge is repeated around it"),
    Mutant("the next row", _wrapped, "what lies over the end of a row is read from the next one"),
    Mutant("stride of the other dimension", _with(stride=lambda stride, **_: pair(stride)[::-1]), "the pair is turned"),
    Mutant("padding of the other dimension", _with(padding=lambda padding, **_: pair(padding)[::-1]),
           "the pair is turned"),
    Mutant("no dilation", _with(dilation=lambda **_: 1), "the window's elements lie side by side"),
    Mutant("groups in turn", _with(x=_mixed), "channels are dealt out to groups in turn"),
    Mutant("first picture", _with(x=lambda x, **_: x[:1].expand_as(x)), "one picture for the batch"),
    Mutant("the last block", _last_block, "a block of products overwrites the ones before it"),
    Mutant("bfloat16 sums", _bfloat16_sums, "the sum is kept in bfloat16"),
    Mutant("stale column", _then(_stale_columns), "the last column of a partial vector is not written"),
)  # fmt: skip
