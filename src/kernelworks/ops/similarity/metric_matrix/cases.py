"""The inputs that matrices of kernel functions are verified on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator

from kernelworks.contract import Case
from kernelworks.contract.cases import normal
from kernelworks.ops.similarity.metric_matrix.contract import KernelFunction

__all__ = ["bench_cases", "cases", "device_bench_cases", "device_cases"]

F32 = (torch.float32,)
Sizes = tuple[int, int, int]
Points = dict[str, Any]
SIZES: tuple[Sizes, ...] = (
    (0, 5, 3), (5, 0, 3), (1, 1, 1), (1, 1, 5), (2, 1, 3), (1, 300, 3), (70, 1, 3), (33, 70, 1), (65, 257, 2),
    (64, 256, 3), (67, 515, 3), (35, 40, 4), (130, 61, 5), (17, 31, 16), (40, 19, 64), (6, 33, 131),
)  # fmt: skip
LAYOUTS: tuple[Sizes, ...] = ((35, 40, 4), (17, 31, 16))


def _drawn(generator: Generator, dtype: torch.dtype, sizes: Sizes, scale: float = 1.0, mean: float = 0.0) -> Points:
    n, m, d = sizes
    return {
        name: normal(generator, dtype, rows, d, scale=scale, mean=mean) for name, rows in (("x", n), ("y", m))
    }  # fmt: skip


def _label(numbers: Points) -> str:
    return "".join(f" {name}={value}" for name, value in numbers.items())


def _sized(sizes: Sizes, numbers: Points, **more: Any) -> Case:
    n, m, d = sizes
    return Case(f"N={n} M={m} D={d}{_label(numbers)}", lambda g, t: _drawn(g, t, sizes) | numbers, **more)


def _same(generator: Generator, dtype: torch.dtype) -> Points:
    x = normal(generator, dtype, 40, 3)
    return {"x": x, "y": x}


def _whole(generator: Generator, dtype: torch.dtype) -> Points:
    """Whole coordinates: products that cancel an offset, and coordinates that two points share."""
    return {
        name: torch.randint(-2, 3, (rows, 2), generator=generator).to(dtype) for name, rows in (("x", 30), ("y", 37))
    }  # fmt: skip


def _far(generator: Generator, dtype: torch.dtype) -> Points:
    """1e4 from the origin and 1e-3 apart, some of them twice."""
    return {
        name: (1e4 + 1e-3 * torch.randint(0, 4, (rows, 3), generator=generator)).to(dtype)
        for name, rows in (("x", 37), ("y", 70))
    }  # fmt: skip


def _opposed(generator: Generator, dtype: torch.dtype) -> Points:
    """Every product is below 0, as a power of an odd degree then is."""
    made = _drawn(generator, dtype, (21, 35, 3))
    return {"x": made["x"].abs() + 0.25, "y": -made["y"].abs() - 0.25}


def _with(value: float) -> Callable[..., Points]:
    def make(generator: Generator, dtype: torch.dtype) -> Points:
        made = _drawn(generator, dtype, (19, 35, 3))
        made["x"][4, 1] = made["y"][34, 2] = value
        return made

    return make


def _units(scale: float, numbers: Points) -> tuple[Callable[..., Points], Points]:
    """Points in units so large or small that their products leave float32, and the gamma of such units."""
    known = dict(numbers)
    if "gamma" in known:
        known["gamma"] = 0.5 / scale ** (2 if "degree" in known else 1)
    return (lambda g, t: _drawn(g, t, (19, 33, 3), scale=scale) | known), known


def cases(function: KernelFunction) -> tuple[Case, ...]:
    """Sizes with the settings of numbers in turn; what bends k with each of them."""
    every = function.settings
    made = [
        _sized(sizes, numbers, layouts=sizes in LAYOUTS)
        for i, sizes in enumerate(SIZES) for numbers in (every if sizes in LAYOUTS else (every[i % len(every)],))
    ]  # fmt: skip
    shapes: tuple[tuple[str, Callable[..., Points], Points], ...] = (
        ("same tensor twice", _same, {}), ("whole coordinates", _whole, {}), ("products below 0", _opposed, {}),
        ("far from the origin, close together", _far, {"dtypes": F32}), ("nan", _with(torch.nan), {"gradients": False}),
        ("a mean beside the spread", lambda g, t: _drawn(g, t, (19, 33, 3), mean=30.0), {"dtypes": F32}),
    )  # fmt: skip
    for name, make, more in shapes:
        made += [
            Case(f"{name}{_label(numbers)}", lambda g, t, make=make, numbers=numbers: make(g, t) | numbers, **more)
            for numbers in every
        ]
    for name, scale in (("large units", 1e12), ("small units", 1e-12)):
        make, known = _units(scale, every[0])
        made.append(Case(f"{name}{_label(known)}", make, dtypes=F32))
    return tuple(made)


def device_cases(function: KernelFunction) -> tuple[Case, ...]:
    sizes: tuple[Sizes, ...] = ((1031, 2053, 3), (513, 777, 16), (257, 300, 64))
    return tuple(
        _sized(each, function.settings[i % len(function.settings)], layouts=i == 1) for i, each in enumerate(sizes)
    )


def bench_cases(function: KernelFunction) -> tuple[Case, ...]:
    return tuple(_sized(sizes, function.settings[0], dtypes=F32) for sizes in ((1024, 1024, 3), (4096, 4096, 16)))


def device_bench_cases(function: KernelFunction) -> tuple[Case, ...]:
    return tuple(_sized(sizes, function.settings[0], dtypes=F32) for sizes in ((16_384, 16_384, 3), (32_768, 8192, 64)))
