"""What ops of the pairwise template take, and the inputs that their kernels fail on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import Case, describe, need_dtype, need_tensor
from kernelworks.contract.arguments import Arguments
from kernelworks.contract.cases import normal
from kernelworks.contract.tensor_argument import GivenArguments, T, Wrong

__all__ = ["ARGUMENTS", "BENCH_CASES", "CASES", "DEVICE_BENCH_CASES", "DEVICE_CASES", "draw_points"]

F32 = (torch.float32,)

# ---------------------------------------------------------------- arguments


@dataclass(frozen=True)
class LengthScale:
    """A tensor of one positive element, float32 or of another's dtype, on its device. The values are not looked at."""

    schema = "Tensor"
    of: str

    def check(self, name: str, value: Any, given: GivenArguments) -> None:
        other = given[self.of]
        need_tensor(name, value)
        need_dtype(name, value, tuple(dict.fromkeys((torch.float32, other.dtype))))
        given.check_device(name, value)
        if any(size != 1 for size in value.shape):
            raise ValueError(f"{name} must have one element, got {describe(value)}")

    def right(self, given: GivenArguments) -> Any:
        return torch.ones(())

    def wrong(self, name: str, given: GivenArguments) -> Iterator[Wrong]:
        yield f"{name} is a word", "1", TypeError, f"{name} must be a torch.Tensor"
        yield f"{name} of two elements", torch.ones(2), ValueError, f"{name} must have one element"
        yield f"{name} of float64", torch.ones((), dtype=torch.float64), TypeError, f"{name} must have dtype"

    def __str__(self) -> str:
        return f"one element, float32 or of {self.of}'s dtype"


ARGUMENTS: Arguments = {
    "x": T("N D", where=("D >= 1",)), "y": T("M D", like="x"), "v": T("M E", like="x"),
    "length_scale": LengthScale("x"),
}  # fmt: skip

# ---------------------------------------------------------------- cases

Sizes = tuple[int, int, int, int]  # N, M, D, E


def draw_points(
    generator: Generator, dtype: torch.dtype, sizes: Sizes, *, scale: float = 1.0, length_scale: float | None = None,
    mean: float = 0.0, shape: tuple[int, ...] = (),
) -> dict[str, Tensor]:  # fmt: skip
    """Normal points and weights; the length scale is that of a pair's usual distance, if none is given."""
    n, m, d, e = sizes
    unit = scale * d**0.5 if length_scale is None else length_scale
    return {
        "x": normal(generator, dtype, n, d, scale=scale, mean=mean),
        "y": normal(generator, dtype, m, d, scale=scale, mean=mean),
        "v": normal(generator, dtype, m, e),
        "length_scale": torch.full(shape, unit, dtype=torch.float32),
    }


def _case(sizes: Sizes, name: str = "", **more: Any) -> Case:
    drawn = {key: more.pop(key) for key in ("scale", "length_scale", "mean", "shape") if key in more}
    n, m, d, e = sizes
    label = f"N={n} M={m} D={d} E={e}"
    return Case(
        f"{name} {label}".strip(), lambda g, t: draw_points(g, t, sizes, **drawn), **more
    )  # fmt: skip


def _same(generator: Generator, dtype: torch.dtype, sizes: Sizes, length_scale: float = 1.0) -> dict[str, Tensor]:
    """Columns that are the rows themselves: the same tensor twice."""
    made = draw_points(generator, dtype, sizes, length_scale=length_scale)
    return made | {"y": made["x"]}


def _duplicates(generator: Generator, dtype: torch.dtype) -> dict[str, Tensor]:
    made = draw_points(generator, dtype, (40, 48, 3, 2))
    again = made["x"][torch.randint(0, 5, (48,), generator=generator)]
    return made | {"x": made["x"][torch.arange(40) % 7], "y": again}


def _far(generator: Generator, dtype: torch.dtype) -> dict[str, Tensor]:
    """1e4 from the origin and 1e-3 apart: what |x|^2 + |y|^2 - 2 x.y loses altogether."""
    made = draw_points(generator, dtype, (37, 70, 3, 2), length_scale=2e-3)
    x, y = (1e4 + 1e-3 * torch.randint(0, 4, made[name].shape, generator=generator) for name in "xy")
    return made | {"x": x.to(dtype), "y": y.to(dtype)}


def _own_dtype(generator: Generator, dtype: torch.dtype) -> dict[str, Tensor]:
    made = draw_points(generator, dtype, (19, 35, 3, 2), length_scale=1.7)
    return made | {"length_scale": made["length_scale"].to(dtype)}


def _with(value: float) -> Any:
    def make(generator: Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        made = draw_points(generator, dtype, (19, 35, 3, 2))
        made["x"][4, 1] = made["y"][34, 2] = value
        return made

    return make


SIZES: tuple[Sizes, ...] = (
    (0, 5, 3, 1), (5, 0, 3, 1), (5, 5, 3, 0), (1, 1, 1, 1), (2, 1, 3, 1), (1, 2, 2, 3), (1, 300, 3, 1), (70, 1, 3, 1),
    (33, 70, 1, 1), (65, 257, 2, 1), (64, 256, 3, 1), (67, 515, 3, 1), (21, 35, 3, 8), (35, 40, 4, 1), (130, 61, 5, 2),
    (17, 31, 16, 3), (40, 19, 64, 8),
)  # fmt: skip
LAYOUTS: tuple[Sizes, ...] = ((35, 40, 4, 1), (17, 31, 16, 3))

CASES = (
    *(_case(sizes, layouts=sizes in LAYOUTS) for sizes in SIZES),
    Case("length scale of the points' dtype", _own_dtype),
    Case("same tensor twice", lambda g, d: _same(g, d, (40, 40, 3, 1))),
    Case("duplicates", _duplicates),
    Case("far from the origin, close together", _far, dtypes=F32),
    Case("identity: a tiny length scale", lambda g, d: _same(g, d, (40, 40, 2, 2), 1e-6)),
    _case((19, 33, 3, 1), "the smallest length scale", length_scale=1e-30, dtypes=F32, gradients=False),
    _case((19, 33, 3, 1), "a huge length scale", length_scale=1e6),
    _case((19, 33, 3, 1), "the largest length scale", length_scale=1e30, dtypes=F32),
    _case((19, 33, 3, 2), "huge points", scale=1e25, dtypes=F32, gradients=False),
    _case((19, 33, 3, 2), "tiny points", scale=1e-25, dtypes=F32, gradients=False),
    _case((19, 33, 3, 2), "most of K underflows", length_scale=0.12),
    _case((19, 33, 3, 2), "a mean beside the spread", mean=30.0, length_scale=2.0, shape=(1, 1)),
    *(Case(f"{value} in the points", _with(value), gradients=False) for value in (torch.inf, torch.nan)),
    _case((40, 2305, 3, 1), "in pieces", pieces=12, dtypes=F32),
)  # fmt: skip

DEVICE_CASES = (
    _case((1031, 2053, 3, 1), dtypes=F32),
    _case((513, 777, 16, 8), layouts=True),
    _case((257, 300, 64, 3)),
    _case((20_000, 100_003, 3, 1), "in pieces", pieces=16, dtypes=F32),
)

BENCH_CASES = (
    _case((1024, 1024, 3, 1), dtypes=F32),
    _case((16384, 16384, 3, 1), pieces=32, dtypes=F32),
    _case((4096, 4096, 16, 8), pieces=32, dtypes=F32),
)
DEVICE_BENCH_CASES = (
    _case((100_000, 100_000, 3, 1), pieces=32, dtypes=F32),
    _case((16384, 16384, 64, 8), pieces=32, dtypes=F32),
)
