"""The arguments of norms of channels, their rows in torch's functions, and the launches of their C++ functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.sharing import choose_threads
from kernelworks.contract import ABSENT, describe, need_tensor
from kernelworks.contract.arguments import Flag, need_int
from kernelworks.contract.channel_layout import BATCH, empty_like_input, memory_format, problem_of, rows_of_sample
from kernelworks.contract.tensor_argument import GivenArguments, Wrong

__all__ = [
    "ChannelCount", "ChannelVector", "OwnStatistics", "along_channels", "forward_launch", "from_rows",
    "gradient_launch", "over_channels", "to_rows",
]  # fmt: skip

VECTORS = ("running_mean", "running_var", "weight", "bias")  # along the channels, all of one dtype
WIDTH = 64  # columns that a thread takes at a time of a tensor whose channels lie side by side

# ---------------------------------------------------------------- arguments


@dataclass(frozen=True)
class ChannelCount:
    """A number of groups of as many channels each."""

    schema = "int"
    of: str = "x"

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        need_int(name, value)
        channels = given[self.of].shape[1]
        if value < 1 or channels % value:
            raise ValueError(f"{name} must be at least 1 and divide {self.of}'s {channels} channels, got {value}")

    def right(self, given: GivenArguments) -> Any:
        return 1

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        yield f"{name} is a float", 2.0, TypeError, f"{name} must be an int"
        yield f"{name} is 0", 0, ValueError, f"{name} must be at least 1 and divide"
        more = given[self.of].shape[1] + 1
        yield f"{name} that does not divide", more, ValueError, f"{name} must be at least 1 and divide"

    def __str__(self) -> str:
        return f"a number that divides {self.of}'s channels"


@dataclass(frozen=True)
class ChannelVector:
    """A number for each channel of another: of its dtype, or of float32, and all such arguments of one; or None.
    ``beside``: the argument that must be given with it."""

    of: str = "x"
    beside: str = ""

    @property
    def schema(self) -> str:
        return "Tensor?"

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        need_tensor(name, value, optional=True)
        other = given[self.of]
        if self.beside and (value is None) != (given.get(self.beside, ABSENT) is None):
            raise ValueError(f"{name} must be given together with {self.beside}, got {describe(value)}")
        if value is None:
            return
        accepted = {other.dtype, torch.float32}
        if value.dtype not in accepted:
            raise TypeError(f"{name} must have {self.of}'s dtype or float32, got {describe(value)}")
        if torch.device(value.device).type != torch.device(other.device).type:
            raise ValueError(f"{name} must be on {self.of}'s device {other.device}, got {value.device}")
        if tuple(value.shape) != (other.shape[1],):
            raise ValueError(
                f"{name} must have shape [{other.shape[1]}], {self.of}'s channels; got {list(value.shape)}"
            )
        for key in VECTORS[: VECTORS.index(name)]:
            first = given.get(key)
            if first is not None and first.dtype != value.dtype:
                raise TypeError(f"{name} must have {key}'s dtype {describe(first)}, got {describe(value)}")

    def right(self, given: GivenArguments) -> Any:
        return torch.ones(given[self.of].shape[1])

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        right = self.right(given)
        yield f"{name} is a number", 1.0, TypeError, f"{name} must be a torch.Tensor or None"
        yield f"{name} of another length", torch.ones(len(right) - 1), ValueError, f"{name} must have shape"
        yield f"{name} of two dimensions", torch.ones(1, len(right)), ValueError, f"{name} must have shape"
        yield f"{name} of another dtype", right.half(), TypeError, f"{name} must have"
        if self.beside:
            yield f"{name} missing", None, ValueError, f"{name} must be given together with {self.beside}"

    def __str__(self) -> str:
        return f"a vector as long as {self.of} has channels, of its dtype or float32, or None"


@dataclass(frozen=True)
class OwnStatistics(Flag):
    """Whether a row's own statistics are taken, of more than one element, or the running ones, which must be there."""

    rows: str = BATCH

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        super().check(name, value, given)
        shape = given["x"].shape
        of_one = math.prod(shape[2:]) * (shape[0] if self.rows == BATCH else 1)
        if value and of_one == 1:
            raise ValueError(f"x must have more than one value per channel where {name} is True, got {list(shape)}")
        if not value and given.get("running_mean") is None:
            raise ValueError(f"running_mean must be given where {name} is False")

    def right(self, given: GivenArguments) -> Any:
        return True

    def __str__(self) -> str:
        return "True for the statistics of x, of more than one value per channel; False for the running ones"


# ---------------------------------------------------------------- rows in torch


def to_rows(rows: str, x: Tensor, groups: int) -> Tensor:
    """x with each row in its last dimension."""
    if rows == BATCH:
        return x.transpose(0, 1).reshape(x.shape[1], math.prod((x.shape[0], *x.shape[2:])))
    count = rows_of_sample(rows, x, groups)
    return x.reshape(x.shape[0], count, math.prod(x.shape[1:]) // max(count, 1))


def from_rows(rows: str, made: Tensor, x: Tensor) -> Tensor:
    """What ``to_rows`` made of something of x's shape, as x has it."""
    if rows == BATCH:
        return made.reshape(x.shape[1], x.shape[0], *x.shape[2:]).transpose(0, 1)
    return made.reshape(x.shape)


def along_channels(parameter: Tensor, x: Tensor) -> Tensor:
    """A vector of the channels, as it is broadcast against x."""
    return parameter.reshape(-1, *[1] * (x.dim() - 2))


def over_channels(terms: Tensor) -> Tensor:
    """The sum over all dimensions but that of the channels."""
    return terms.sum((0, *range(2, terms.dim())))


# ---------------------------------------------------------------- launches


def _width(c: int, groups: int, batch: bool, threads: int) -> int:
    """The columns of a block: whole rows, and enough blocks for the threads."""
    channels = 1 if batch else c // groups
    wanted = max(16, min(WIDTH, c // threads)) if batch else WIDTH
    return min(c, channels * max(1, wanted // channels))


def _plain(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.contiguous()


def forward_launch(kernel: Callable[..., Any], rows: str) -> Callable[..., Tensor]:
    """``call(x, weight, bias, groups, eps, out, given=, moved=, momentum=)``: ``given`` are a mean and a variance in
    the place of the row's own, ``moved`` running ones that are moved towards those."""
    none: tuple[Tensor | None, Tensor | None] = (None, None)

    def call(
        x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float, out: Tensor | None,
        given: tuple[Any, Any] = none, moved: tuple[Any, Any] = none, momentum: float = 0.0,
    ) -> Tensor:  # fmt: skip
        output: Tensor = empty_like_input(x) if out is None else out
        layout = memory_format(output)
        x = x.contiguous(memory_format=layout)
        if not x.numel():
            return output
        n, c, s, count, batch = problem_of(rows, x, groups)
        run, threads = choose_threads(kernel, x.numel())
        width = _width(c, count, batch, threads)
        plain = tuple(_plain(t) for t in moved)
        run(
            output, x, _plain(weight), _plain(bias), *(_plain(t) for t in given), *plain,
            torch.empty(2 * (c if batch else n * count) + 8 * width * threads, dtype=torch.float64), n, c, s, count,
            batch, s == 1 or layout is not torch.contiguous_format, eps, momentum, width, threads,
        )  # fmt: skip
        for target, made in zip(moved, plain, strict=True):
            if target is not None and made is not None and target.data_ptr() != made.data_ptr():
                target.copy_(made)  # it was not contiguous
        return output

    return call


def gradient_launch(kernel: Callable[..., Any], rows: str) -> Callable[..., tuple[Tensor, ...]]:
    """``call(grad, x, weight, bias, groups, eps, wanted, out, given=)``: the gradients of x, weight and bias."""

    def call(
        grad: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float,
        wanted: tuple[bool, bool], out: Any, given: tuple[Any, Any] = (None, None),
    ) -> tuple[Tensor, ...]:  # fmt: skip
        layout = memory_format(x)
        grad_x = torch.empty_like(x, memory_format=layout) if out is None else out[0]
        x, grad = x.contiguous(memory_format=layout), grad.contiguous(memory_format=layout)
        made = [
            None if p is None or not want else torch.zeros(p.shape, dtype=p.dtype)
            for p, want in zip((weight, bias), wanted, strict=True)
        ]
        if x.numel():
            n, c, s, count, batch = problem_of(rows, x, groups)
            run, threads = choose_threads(kernel, 2 * x.numel())
            width = _width(c, count, batch, threads)
            shares = 2 * c * (1 if batch else n)
            run(
                grad_x, *made, grad, x, _plain(weight), None if weight is not None else _plain(bias),
                *(_plain(t) for t in given), torch.empty(shares + 8 * width * threads, dtype=torch.float64), n, c, s,
                count, batch, s == 1 or layout is not torch.contiguous_format, eps, width, threads,
            )  # fmt: skip
        return (grad_x, *(x.new_empty(0) if m is None else m for m in made))

    return call
