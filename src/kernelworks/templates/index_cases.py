"""Cases, mutants and refused indices that all ops along an index share (``along_index.py``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import Case, Mutant
from kernelworks.contract.arguments import Error
from kernelworks.contract.cases import SMOOTH, VALUES, draw
from kernelworks.contract.index_argument import picked_shape
from kernelworks.templates.mutants import generic

if TYPE_CHECKING:
    from kernelworks.templates.along_index import AlongIndex

__all__ = ["cases_of", "device_cases", "index_errors", "mutants_of", "timed_cases"]

ONE, FEW = "one index", "few indices"  # all the same; many times the same ones


def _given(
    entry: AlongIndex, shape: tuple[int, ...], dim: int, count: int, kind: str, generator: Generator, dtype:
    torch.dtype,
    spread: str = "", kept: torch.dtype = torch.int64, shorter: bool = False, alpha: float = 1.0,
) -> dict[str, Any]:  # fmt: skip
    """A call's arguments: ``count`` indices along the dimension, of which ``shorter`` leaves out some lines."""
    x = draw(kind, generator, dtype, *shape)
    size = shape[dim] if shape else 1
    if entry.rows:
        own: tuple[int, ...] = (count,)
    else:
        own = tuple(max(0, n - shorter) for n in shape)
        own = (*own[: dim % len(own)], count, *own[dim % len(own) + 1 :]) if own else ()
    most = {ONE: min(1, size), FEW: min(3, size)}.get(spread, size)
    index = torch.randint(0, max(1, most), own, generator=generator, dtype=kept)
    if index.numel() > 2 and not spread:  # both ends
        index.view(-1)[0], index.view(-1)[-1] = size - 1, 0
    given: dict[str, Any] = {"x": x, "dim": dim, "index": index}
    if entry.adds:
        given[entry.source] = draw(kind, generator, dtype, *picked_shape(x, dim, index, entry.rows))
    if "alpha" in entry.arguments:
        given["alpha"] = alpha
    return given


def _case(
    entry: AlongIndex, shape: tuple[int, ...], dim: int, count: int, kind: str = "normal", text: str = "", **more: Any
) -> Case:
    own = {key: more.pop(key) for key in ("spread", "kept", "shorter", "alpha") if key in more}
    name = f"{kind}, " * (kind != "normal") + f"{count} along dim {dim} of {list(shape)}{text}"
    name += "".join(f", {str(value).removeprefix('torch.')}" for value in own.values())
    return Case(name, lambda g, d: _given(entry, shape, dim, count, kind, g, d, **own), **more)


# Shape, dimension, how many indices, whether layouts are tried.
_SHAPES: tuple[tuple[tuple[int, ...], int, int, bool], ...] = (
    ((5, 7), 0, 3, True), ((5, 7), 1, 9, True), ((5, 7), -2, 6, False), ((3, 17, 6), 1, 20, True), ((9,), 0, 4, True),
    ((4, 1), 0, 7, False), ((1, 33), 0, 2, False), ((2, 3, 4, 65), 2, 5, False), ((2, 3, 4, 65), -1, 130, False),
    ((6, 5, 1), 1, 3, False), ((70, 16), 0, 70, False), ((3, 300), 1, 17, False), ((11, 131), 0, 64, False),
    ((0, 5), 1, 2, False), ((4, 0), 0, 2, False), ((4, 6), 0, 0, False), ((4, 6), 1, 0, False), ((2, 257), 0, 5, False),
)  # fmt: skip


def cases_of(entry: AlongIndex) -> Iterator[Case]:
    for shape, dim, count, layouts in _SHAPES:
        yield _case(entry, shape, dim, count, layouts=layouts)
    if not entry.rows:
        yield _case(entry, (), 0, 1)
        yield _case(entry, (7, 9), 0, 5, shorter=True)
        yield _case(entry, (7, 4, 9), -1, 12, shorter=True)
    for kind in VALUES:
        yield _case(entry, (6, 33), 0, 9, kind, gradients=kind in SMOOTH)
        yield _case(entry, (5, 21), 1, 30, kind, gradients=kind in SMOOTH)
    for shape, dim in (((40, 24), 0), ((3, 50), 1)):
        for spread in (ONE, FEW):
            yield _case(entry, shape, dim, 200, spread=spread)
        yield _case(entry, shape, dim, 19, kept=torch.int32, layouts=True)
    if "alpha" in entry.arguments:
        for alpha in (0.0, -2.0, 0.3):
            yield _case(entry, (8, 19), 0, 21, alpha=alpha)
    yield _case(entry, (1031, 48), 0, 300)
    yield _case(entry, (64, 600), 1, 70, spread=FEW)


_TIMED = (((4096, 1024), 0, 2048), ((256, 8192), 1, 8192))


def timed_cases(entry: AlongIndex, dtype: torch.dtype, times: int = 1) -> Iterator[Case]:
    """What is timed, of a first dimension so many times as long."""
    for (rows, columns), dim, count in _TIMED:
        yield _case(entry, (rows * times, columns), dim, count * (times if dim == 0 else 1), dtypes=(dtype,))


def device_cases(entry: AlongIndex) -> Iterator[Case]:
    yield _case(entry, (5003, 300), 0, 4099)
    yield _case(entry, (203, 4001), 1, 5000, spread=FEW)


# ---------------------------------------------------------------- refused indices


def index_errors(entry: AlongIndex) -> Iterator[Error]:
    for number, (what, value, text) in enumerate((
        ("an index past the end", 4, "index must be in [0, 4), x's dimension 0; got 4 at position 1"),
        ("a negative index", -1, "index must be in [0, 4), x's dimension 0; got -1 at position 1"),
    )):  # fmt: skip
        kept = (torch.int64, torch.int32)[number]

        def call(value: int = value, kept: torch.dtype = kept) -> dict[str, Any]:
            generator = torch.Generator().manual_seed(0)
            given = _given(entry, (4, 3), 0, 5, "normal", generator, torch.float32, kept=kept)
            given["index"].view(-1)[0], given["index"].view(-1)[1] = 0, value
            return given

        yield what, call, IndexError, text


# ---------------------------------------------------------------- mutants


def mutants_of(entry: AlongIndex) -> tuple[Mutant, ...]:
    names = tuple(entry.arguments)

    def changed(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            given = dict(zip(names, args, strict=True))
            wide = {n: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for n, v in given.items()}
            return entry.reference(**wide | change(wide))[0].to(args[0].dtype)

        return run

    def turned(given: dict[str, Any]) -> dict[str, Any]:
        index = given["index"]
        return {"index": index.flip(given["dim"] if index.dim() > 1 else 0) if index.dim() else index}

    def next_one(given: dict[str, Any]) -> dict[str, Any]:
        size = given["x"].shape[given["dim"]] if given["x"].dim() else 1
        return {"index": (given["index"] + 1) % max(1, size)}

    def last_again(given: dict[str, Any]) -> dict[str, Any]:
        """The last index is taken for the one before."""
        index = given["index"].clone()
        if index.numel() > 1:
            index.view(-1)[-1] = index.view(-1)[-2]
        return {"index": index}

    tensors = ("x",)
    own = [
        Mutant("index turned", changed(turned), "indices are read from the other end"),
        Mutant("next one", changed(next_one), "each index is one too large"),
        Mutant("last index again", changed(last_again), "the last index is not read"),
    ]
    if entry.adds:
        own += [
            Mutant("overwritten", _overwritten(entry), "of equal indices one alone counts"),
            Mutant("without x", changed(lambda given: {"x": torch.zeros_like(given["x"])}), "sums begin at 0"),
            Mutant("bfloat16 sums", _narrow_sums(entry), "sums are kept in bfloat16"),
        ]
    if "alpha" in entry.arguments:
        own.append(Mutant("no alpha", changed(lambda given: {"alpha": 1.0}), "alpha does not scale"))
    return (*generic(entry.reference, tensors, names, entry.contract.results_in_order), *own)


def _overwritten(entry: AlongIndex) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        given = dict(zip(entry.arguments, args, strict=True))
        x, dim, index = given["x"].double(), given["dim"], given["index"].long()
        source = given[entry.source].double() * given.get("alpha", 1.0)
        if entry.rows:
            made = x.clone()
            made.index_copy_(dim, index, x.index_select(dim, index) + source)
        else:
            made = x.scatter(dim, index, x.gather(dim, index) + source)
        return made.to(args[0].dtype)

    return run


def _narrow_sums(entry: AlongIndex) -> Callable[..., Any]:
    """Two halves of the indices, each sum rounded to bfloat16."""

    def run(*args: Any) -> Any:
        given = dict(zip(entry.arguments, args, strict=True))
        made = entry.reference(
            **{n: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for n, v in given.items()}
            | {"x": torch.zeros_like(args[0]).double()}
        )[0]
        return (made.bfloat16().double() + args[0].double()).to(args[0].dtype)  # fmt: skip

    return run
