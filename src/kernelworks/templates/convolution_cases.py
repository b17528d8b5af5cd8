"""Cases and mutants that all convolutions share (``convolution.py``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import Case, Mutant
from kernelworks.contract.cases import SMOOTH, VALUES, draw, normal
from kernelworks.contract.int_tuple import ints
from kernelworks.templates.mutants import generic
from kernelworks.templates.window_grid import Grid, Place, in_format, places

if TYPE_CHECKING:
    from kernelworks.templates.convolution import Convolution

__all__ = ["cases_of", "device_cases", "mutants_of", "timed_cases"]

Channels = tuple[int, int, int]  # of the input, filters, groups


def _given(
    entry: Convolution,
    place: Place,
    channels: Channels,
    kind: str,
    bias: bool,
    generator: Generator,
    dtype: torch.dtype,
) -> dict[str, Any]:
    many, filters, groups = channels
    grid = place.grid
    x = in_format(draw(kind, generator, dtype, place.batch, many, *place.sizes), place.channels_last)
    scale = (many // groups * math.prod(grid.size)) ** -0.5
    shape = (many, filters // groups) if entry.transposed else (filters, many // groups)
    weight = normal(generator, dtype, *shape, *grid.size, scale=scale)
    said: dict[str, Any] = {
        "x": x, "weight": in_format(weight, place.channels_last and filters % 2 == 0), "groups": groups,
        "bias": normal(generator, dtype, filters) if bias else None, "stride": grid.stride, "padding": grid.padding,
        "dilation": grid.dilation,
    }  # fmt: skip
    # As much as may be, in every second case.
    said["output_padding"] = tuple(
        (max(s, d) - 1) * bias for s, d in zip(grid.stride, grid.dilation, strict=True)
    )  # fmt: skip
    return {name: said[name] for name in entry.arguments}


def _case(
    entry: Convolution, place: Place, channels: Channels, kind: str = "normal", bias: bool = True, **more: Any
) -> Case:
    name = f"{kind}, " * (kind != "normal") + f"{place}, {channels[0]} to {channels[1]}"
    name += f" in {channels[2]} groups" * (channels[2] > 1) + ", no bias" * (not bias)
    return Case(name, lambda g, d: _given(entry, place, channels, kind, bias, g, d), **more)


# Groups of 4 to 16, depthwise, several filters a channel.
_CHANNELS: tuple[Channels, ...] = (
    (1, 1, 1), (3, 5, 1), (16, 7, 1), (8, 16, 4), (32, 16, 2), (12, 12, 3), (5, 5, 5), (17, 17, 17), (4, 12, 4),
    (64, 32, 16),
)  # fmt: skip


def cases_of(entry: Convolution) -> Iterator[Case]:
    dims = entry.dims
    few = 1 + (dims == 3)  # float64 takes its time in three dimensions
    for i, place in list(enumerate(places(dims)))[::few]:
        slid = replace(place, grid=replace(place.grid, ceil_mode=False))
        yield _case(entry, slid, ((3, 4, 1), (6, 6, 6), (4, 6, 2))[i % 3], bias=i % 2 == 0, layouts=i in (0, 7))
    sizes = (3, 4, 9)[3 - dims :]
    usual = Place(2, sizes, Grid.of(dims, 3, 1, 1))
    for i, channels in list(enumerate(_CHANNELS))[::few]:
        place = replace(usual, grid=Grid.of(dims, 3, 1 + i % 2, 1), channels_last=dims > 1 and i % 2 > 0)
        yield _case(entry, place, channels, bias=i % 3 > 0, layouts=i in (2, 3))
    for i, kind in enumerate(VALUES):
        place = replace(usual, channels_last=dims > 1 and i % 2 > 0)
        yield _case(entry, place, (2, 3, 1), kind, gradients=kind in SMOOTH)
        if few == 1:
            yield _case(entry, usual, (3, 3, 3), kind, bias=False, gradients=kind in SMOOTH)
    two, ones = Grid.of(dims, 2, 2, 0), (1,) * (dims - 1)
    yield _case(entry, Place(1, (2,) * dims, two), (3, 2, 1))  # 2 x 2
    yield _case(entry, Place(1, (*ones, 31), Grid.of(dims, (*ones, 5), 2, 0)), (2, 3, 1))  # one row
    yield _case(entry, Place(1, (2,) * dims, Grid.of(dims, 5, 3, 2, 1)), (2, 2, 1))  # a kernel larger than its input
    yield _case(entry, Place(1, sizes, Grid.of(dims, 1, 1, 0)), (70, 3, 1), bias=False)
    yield _case(entry, Place(1, sizes, Grid.of(dims, 3, 1, 1)), (100, 3, 1))  # more terms than are added up at once
    yield _case(entry, Place(1, (*ones, 150), Grid.of(dims, 3, 1, 1)), (2, 9, 1))


_TIMED_SIZES: dict[int, tuple[tuple[Place, Channels], ...]] = {
    1: ((Place(4, (4096,), Grid.of(1, 5, 1, 2)), (64, 64, 1)), (Place(4, (4096,), Grid.of(1, 7, 1, 3)), (128, 128,
    128))),
    2: ((Place(1, (28, 28), Grid.of(2, 4, 2, 1)), (128, 64, 1)), (Place(1, (56, 56), Grid.of(2, 3, 1, 1)), (64, 64,
    1))),
    3: ((Place(1, (8, 28, 28), Grid.of(3, 3, 1, 1)), (32, 64, 1)), (Place(1, (16, 32, 32), Grid.of(3, 2, 2, 0)), (16,
    32, 1))),
}  # fmt: skip


def timed_cases(entry: Convolution, dtype: torch.dtype, times: int = 1) -> Iterator[Case]:
    """What is timed, of a batch so many times as large."""
    for place, channels in _TIMED_SIZES[entry.dims]:
        larger = replace(place, batch=place.batch * times)
        yield _case(entry, larger, channels, bias=False, dtypes=(dtype,))


def device_cases(entry: Convolution) -> Iterator[Case]:
    sizes = ((5003,), (67, 71), (13, 19, 23))[entry.dims - 1]
    for channels, last in (((64, 96, 1), False), ((32, 32, 32), entry.dims > 1)):
        yield _case(entry, Place(2, sizes, Grid.of(entry.dims, 3, 2, 1), last), channels)


# ---------------------------------------------------------------- mutants


def mutants_of(entry: Convolution) -> tuple[Mutant, ...]:
    names = tuple(entry.arguments)

    def changed(**change: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            given = _wide(dict(zip(names, args, strict=True)))
            right = entry.reference(**given)[0]
            try:
                made = entry.reference(**given | {n: f(**given) for n, f in change.items()})[0]
            except (RuntimeError, ValueError):
                return right.to(args[0].dtype)
            return _fitted(made, right).to(args[0].dtype)

        return run

    def turned(weight: Tensor, **_: Any) -> Tensor:
        return weight.flip(*range(2, weight.dim()))

    def mixed(x: Tensor, groups: int, **_: Any) -> Tensor:
        """Channels are dealt out to groups in turn, in place of runs of them."""
        dealt: Tensor = x.unflatten(1, (-1, groups)).transpose(1, 2).flatten(1, 2)
        return dealt

    def last_channel(x: Tensor, groups: int, **_: Any) -> Tensor:
        shut = x.clone()
        shut[:, -1] = 0.0
        return shut

    own = [
        Mutant("flipped", changed(weight=turned), "a convolution for a cross-correlation, or the other way about"),
        Mutant("bias missing", changed(bias=lambda **_: None), "the bias is not added"),
        Mutant("no dilation", changed(dilation=lambda **_: 1), "a window's elements lie side by side"),
        Mutant("padding one less", changed(padding=lambda padding, **_: tuple(max(0, p - 1) for p in padding)),
               "windows begin one element later"),
        Mutant("groups in turn", changed(x=mixed), "channels are dealt out to groups in turn"),
        Mutant("first of the batch", changed(x=lambda x, **_: x[:1].expand_as(x)), "one for the batch"),
        Mutant("last channel missing", changed(x=last_channel), "the last channel is not read"),
        Mutant("turned input", changed(x=lambda x, **_: x.flip(-1)), "the last dimension is read from the other end"),
        Mutant("bfloat16 sums", _narrow_sums(entry), "two halves of a sum are rounded to bfloat16"),
    ]  # fmt: skip
    if entry.dims > 1:
        swapped = changed(stride=lambda stride, **_: ints(stride, entry.dims)[::-1])
        own.append(Mutant("strides turned", swapped, "the strides change places"))
    return (*generic(entry.reference, ("x",), names), *own)


def _wide(given: dict[str, Any]) -> dict[str, Any]:
    return {n: v.double() if isinstance(v, Tensor) else v for n, v in given.items()}


def _narrow_sums(entry: Convolution) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        given = _wide(dict(zip(entry.arguments, args, strict=True)))
        first, second = given["x"].clone(), given["x"].clone()
        first[:, ::2], second[:, 1::2] = 0.0, 0.0
        halves = (entry.reference(**given | {"x": x, "bias": None})[0].bfloat16().double() for x in (first, second))
        total = sum(halves, torch.zeros((), dtype=torch.float64))
        if given["bias"] is not None:
            total = total + given["bias"].reshape(-1, *(1,) * entry.dims)
        return total.to(args[0].dtype)

    return run


def _fitted(made: Tensor, right: Tensor) -> Tensor:
    """A mutant's result, cut or repeated to the right shape."""
    for dim, size in enumerate(right.shape):
        if made.shape[dim] < size:
            made = made.index_select(dim, torch.arange(size).clamp(max=max(0, made.shape[dim] - 1)))
        made = made.narrow(dim, 0, size)
    return made
