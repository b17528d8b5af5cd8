"""Cases and mutants that all poolings share (``pooling.py``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import Case, Mutant
from kernelworks.contract.cases import SMOOTH, VALUES, draw
from kernelworks.contract.int_tuple import ints
from kernelworks.templates.mutants import generic
from kernelworks.templates.window_grid import Grid, Place, in_format, places

if TYPE_CHECKING:
    from kernelworks.templates.pooling import Pool

__all__ = ["cases_of", "device_cases", "mutants_of", "timed_cases"]

TIES = "few values, nan and inf"  # many equal ones in a window, zeros of either sign, NaN, infinities


def _values(kind: str, generator: Generator, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if kind != TIES:
        return draw(kind, generator, dtype, *shape)
    x = torch.randint(-1, 2, shape, generator=generator).to(dtype)
    which = torch.randint(0, 12, shape, generator=generator)
    for number, value in enumerate((torch.nan, torch.inf, -torch.inf, -0.0)):
        x = torch.where(which == number, torch.full(shape, value, dtype=dtype), x)
    return x


def _given(
    pool: Pool, place: Place, channels: int, kind: str, generator: Generator, dtype: torch.dtype, number: int
) -> dict[str, Any]:
    """A call's arguments; what a place says nothing of hangs on the case's number."""
    grid = place.grid
    x = in_format(_values(kind, generator, dtype, (place.batch, channels, *place.sizes)), place.channels_last)
    said = {"stride": grid.stride, "padding": grid.padding, "dilation": grid.dilation, "ceil_mode": grid.ceil_mode}
    said |= {"x": x, "kernel_size": grid.size, "return_indices": number % 3 != 1, "count_include_pad": number % 2 == 0}
    said |= {"divisor_override": 3 if number % 5 == 4 else None}
    return {name: said[name] for name in pool.arguments}


def _case(pool: Pool, place: Place, channels: int, number: int, kind: str = "normal", **more: Any) -> Case:
    said = {1: ", whole" * (number % 2 == 0), 0: ", values alone" * (number % 3 == 1)}[int(pool.fold == "mean")]
    name = f"{kind}, " * (kind != "normal") + f"{place}, {channels} channels{said}"
    return Case(name, lambda g, d: _given(pool, place, channels, kind, g, d, number), **more)


def cases_of(pool: Pool) -> Iterator[Case]:
    dims, largest = pool.dims, pool.fold == "max"
    for i, place in enumerate(places(dims, dilated=largest)):
        yield _case(pool, place, (1, 3, 19)[i % 3], i, layouts=i in (4, 7))
    usual, apart = Grid.of(dims, 3, 1, 1), Grid.of(dims, 2, None, 0)
    sizes = (6, 5, 19)[3 - dims :]
    for i, kind in enumerate((*VALUES, TIES)):
        gradients = kind in SMOOTH or largest
        if kind == TIES and not largest:
            continue
        yield _case(pool, Place(2, sizes, usual), 2, 3 * i, kind, gradients=gradients)
        yield _case(pool, Place(1, sizes, apart, dims > 1), 18, 3 * i, kind, gradients=gradients)
        if kind == TIES:
            yield _case(pool, Place(2, sizes, Grid.of(dims, 3, 2, 1, 2), dims > 1), 5, 3 * i, kind)
    yield _case(pool, Place(1, (*sizes[:-1], 300), Grid.of(dims, 4, 3, 2)), 2, 8)


TIMED_SIZES = {
    1: ((16, 64, (8192,), Grid.of(1, 8, 1, 4)), (64, 192, (4096,), Grid.of(1, 2, 2, 0))),
    2: ((8, 64, (112, 112), Grid.of(2, 3, 2, 1)), (16, 32, (128, 128), Grid.of(2, 4, 1, 1))),
    3: ((4, 32, (32, 32, 32), Grid.of(3, 3, 1, 1)), (4, 32, (32, 64, 64), Grid.of(3, 2, 2, 0))),
}


def timed_cases(pool: Pool, dtype: torch.dtype, times: int = 1) -> Iterator[Case]:
    """What is timed, of a batch so many times as large."""
    for batch, channels, sizes, grid in TIMED_SIZES[pool.dims]:
        yield _case(pool, Place(times * batch, sizes, grid), channels, 1, dtypes=(dtype,))


def device_cases(pool: Pool) -> Iterator[Case]:
    """Some thousands of programs."""
    sizes = ((40_003,), (203, 197), (31, 37, 35))[pool.dims - 1]
    for number, channels_last in ((0, False), (3, pool.dims > 1)):
        yield _case(pool, Place(4, sizes, Grid.of(pool.dims, 3, 2, 1), channels_last), 6, number)


# ---------------------------------------------------------------- mutants


def mutants_of(pool: Pool) -> tuple[Mutant, ...]:
    names = tuple(pool.arguments)

    def changed(**change: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            given = dict(zip(names, args, strict=True)) | {"x": args[0].double()}
            return _rounded(pool.reference(**given | {n: f(**given) for n, f in change.items()}), args[0].dtype)

        return run

    def aside(**given: Any) -> Any:
        """Strides of the other end's dimension."""
        stride = given["kernel_size"] if given["stride"] is None else given["stride"]
        return ints(stride, pool.dims)[::-1]

    def last_missing(*args: Any) -> Any:
        given = dict(zip(names, args, strict=True))
        x, grid = args[0].double(), pool.call_of(given).grid
        small = torch.finfo(torch.float64).min if pool.fold == "max" else 0.0
        shut = x.clone()
        shut[..., -1] = small
        return (
            _rounded(pool.reference(**given | {"x": shut}), args[0].dtype) if grid.size[-1] > 1 else _right(pool, args)
        )

    own = [
        Mutant("turned", changed(x=lambda x, **_: x.flip(-1)), "the last dimension is read from the other end"),
        Mutant("first of the batch", changed(x=lambda x, **_: x[:1].expand_as(x)), "one for the batch"),
        Mutant("last element missing", last_missing, "the last element of each line is left out"),
    ]
    if pool.dims > 1:
        own.append(Mutant("strides turned", _same_shape(pool, changed(stride=aside)), "the strides change places"))
    if pool.fold == "mean":
        own += [
            Mutant("padding counted", changed(count_include_pad=lambda **_: True), "what lies outside is counted"),
            Mutant("padding not counted", changed(count_include_pad=lambda **_: False), "it is not counted"),
            Mutant("over the end counted", _over_the_end(pool), "what ceil_mode adds is counted"),
        ]
    else:
        own += [
            Mutant("the last of equals", _last_of_equals(pool), "of equal elements the last is named"),
            Mutant("zeros around", _zeros_around(pool), "what lies outside is 0"),
            Mutant("no dilation", _same_shape(pool, changed(dilation=lambda **_: 1)), "elements lie side by side"),
            Mutant("index in a line", _in_a_line(pool), "indices count along the last dimension alone"),
        ]
    return (*generic(pool.reference, ("x",), names, pool.contract.results_in_order), *own)


def _rounded(made: tuple[Tensor, ...], dtype: torch.dtype) -> Any:
    outputs = tuple(t.to(dtype) if t.is_floating_point() else t for t in made)
    return outputs if len(outputs) > 1 else outputs[0]


def _right(pool: Pool, args: tuple[Any, ...]) -> Any:
    return _rounded(pool.reference(args[0].double(), *args[1:]), args[0].dtype)


def _same_shape(pool: Pool, run: Callable[..., Any]) -> Callable[..., Any]:
    """A mutant's results, cut or repeated to the right shape; the right ones if torch refuses its arguments."""

    def mended(*args: Any) -> Any:
        right = _right(pool, args)
        try:
            made = run(*args)
        except (RuntimeError, ValueError):
            return right
        pairs = zip(_all(made), _all(right), strict=True)
        outputs = tuple(_fitted(t, want) for t, want in pairs)
        return outputs if len(outputs) > 1 else outputs[0]

    return mended


def _all(made: Any) -> tuple[Tensor, ...]:
    return made if isinstance(made, tuple) else (made,)


def _fitted(made: Tensor, want: Tensor) -> Tensor:
    for dim, size in enumerate(want.shape):
        if made.shape[dim] < size:
            made = made.index_select(dim, torch.arange(size).clamp(max=made.shape[dim] - 1))
        made = made.narrow(dim, 0, size)
    return made


def _over_the_end(pool: Pool) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        given = dict(zip(tuple(pool.arguments), args, strict=True))
        grid = pool.call_of(given).grid
        total: Any = sum(part for _, part in grid.taps(args[0].double()))
        size = 1
        for n in grid.size:
            size *= n
        right = _right(pool, args)
        counted = given["count_include_pad"] and not given.get("divisor_override")
        return (total / size).to(args[0].dtype) if counted else right

    return run


def _last_of_equals(pool: Pool) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        given = dict(zip(tuple(pool.arguments), args, strict=True))
        right = _right(pool, args)
        if not given["return_indices"]:
            return right
        x, grid = args[0].double(), pool.call_of(given).grid
        numbers = torch.arange(x[0, 0].numel(), dtype=torch.float64).reshape(1, 1, *x.shape[2:]).expand_as(x)
        last = right[1]
        for (_, part), (_, number) in zip(grid.taps(x, -torch.inf), grid.taps(numbers, -1.0), strict=True):
            last = torch.where((part == right[0].double()) & (number >= 0), number.long(), last)
        return right[0], last

    return run


def _zeros_around(pool: Pool) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        given = dict(zip(tuple(pool.arguments), args, strict=True))
        right = _right(pool, args)
        taps = [part for _, part in pool.call_of(given).grid.taps(args[0].double())]
        values = torch.stack(taps).amax(0).to(args[0].dtype)
        return (values, right[1]) if given["return_indices"] else values

    return run


def _in_a_line(pool: Pool) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        right = _right(pool, args)
        if not isinstance(right, tuple):
            return right
        length = args[0].shape[-1]
        return right[0], right[1] % length if pool.dims > 1 else right[1].clamp(max=max(0, length - 2))

    return run
