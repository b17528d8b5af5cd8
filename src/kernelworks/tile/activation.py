"""What an expression of the table of activations may call on a GPU, and such functions as kernels.

    @kernel
    def elu_value(x, alpha):
        return tl.where(x > 0.0, x, alpha * exp_less_one(x))

    elu_forward, elu_backward = functions(__file__, elu_value, elu_gradient)

A value's function takes an element in float32 and up to two numbers, a gradient's the gradient that flows in before
them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import triton.language as tl

from kernelworks.build.triton import Kernel, Launch, configs, kernel
from kernelworks.tile.exp import exp
from kernelworks.tile.pointwise import Pointwise, inside, tile, whole

MOST_NUMBERS = 2
LOWEST = tl.constexpr(-104.5)
LOG2_E = tl.constexpr(1.44269504)


@kernel
def exp_less_one(d):
    """e^d - 1 for d <= 0: 2^n (e^r - 1) + (2^n - 1), of which the first keeps its digits around 0 and the second is at
    least a half elsewhere."""
    d = tl.maximum(d, LOWEST, propagate_nan=tl.PropagateNan.ALL)
    n = tl.floor(d * LOG2_E + 0.5)
    r = tl.fma(n, -1.42860677e-6, tl.fma(n, -0.693145752, d))
    q = tl.fma(r, 2.48015873e-5, 1.98412698e-4)
    q = tl.fma(q, r, 1.38888889e-3)
    q = tl.fma(q, r, 8.33333333e-3)
    q = tl.fma(q, r, 4.16666667e-2)
    q = tl.fma(q, r, 1.66666667e-1)
    q = tl.fma(q, r, 0.5)
    power = tl.exp2(n)
    return tl.where(d == 0.0, d, tl.fma(power, tl.fma(q * r, r, r), power - 1.0))  # -0 keeps its sign


@kernel
def log_one_more(e):
    """log(1 + e) for 0 <= e <= 1: 2 atanh(z) with z = e / (2 + e)."""
    z = e / (2.0 + e)
    zz = z * z
    q = tl.fma(zz, 1.0 / 17.0, 1.0 / 15.0)
    q = tl.fma(q, zz, 1.0 / 13.0)
    q = tl.fma(q, zz, 1.0 / 11.0)
    q = tl.fma(q, zz, 1.0 / 9.0)
    q = tl.fma(q, zz, 1.0 / 7.0)
    q = tl.fma(q, zz, 1.0 / 5.0)
    q = tl.fma(q, zz, 1.0 / 3.0)
    twice = z + z
    return tl.fma(twice * zz, q, twice)


@kernel
def sigmoid(x):
    """Of any x: neither overflows nor cancels."""
    e = exp(-tl.abs(x))
    return tl.where(x < 0.0, e, 1.0) / (1.0 + e)


@kernel
def tanh(x):
    """Of any x; 0 keeps its sign."""
    t = exp_less_one(-2.0 * tl.abs(x))
    y = t / (2.0 + t)
    return tl.where(x == 0.0, x, tl.where(x < 0.0, y, -y))


@kernel
def _applied(
    output, grad, x, first, second, N, grad_stride, x_stride, mask, FUNCTION: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    operands = (tl.load(tile(x, x_stride, ROWS, COLUMNS), mask=mask).to(tl.float32),)
    if first is not None:
        operands = operands + (first,)  # noqa: RUF005
    if second is not None:
        operands = operands + (second,)  # noqa: RUF005
    if grad is not None:
        operands = (tl.load(tile(grad, grad_stride, ROWS, COLUMNS), mask=mask).to(tl.float32),) + operands  # noqa: RUF005
    tl.store(tile(output, N, ROWS, COLUMNS), FUNCTION(*operands), mask=mask)


@kernel
def _elements(
    output, grad, x, first, second, M, N, grad_stride, x_stride, FUNCTION: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    if whole(M, N, ROWS, COLUMNS):
        _applied(output, grad, x, first, second, N, grad_stride, x_stride, None, FUNCTION, ROWS, COLUMNS)
    else:
        mask = inside(M, N, ROWS, COLUMNS)
        _applied(output, grad, x, first, second, N, grad_stride, x_stride, mask, FUNCTION, ROWS, COLUMNS)


ELEMENTS = Kernel(_elements)


class _Numbered:
    """Launches of one function."""

    def __init__(self, op_package: str, pass_: str, function: Any) -> None:
        self.configs, self.pass_, self.function = configs(op_package), pass_, function
        self.flat, self.strided = functools.cache(self._flat), functools.cache(self._strided)

    def _flat(self, bits: int, dtype: torch.dtype) -> tuple[Launch, int]:
        chosen = self.configs.pick(self.pass_, bits=bits, word=0, dtype=dtype)
        return ELEMENTS.at(FUNCTION=self.function, ROWS=0, **chosen), chosen["COLUMNS"]

    def _strided(self, rows: int, columns: int, dtype: torch.dtype) -> Launch:
        chosen = self.configs.pick("strided", dtype=dtype)
        return ELEMENTS.at(FUNCTION=self.function, ROWS=rows, COLUMNS=columns, **chosen)

    def __call__(self, output: Any, inputs: tuple[Any, ...], numbers: tuple[float, ...]) -> None:
        given = (*(float(n) for n in numbers), *(None,) * (MOST_NUMBERS - len(numbers)))
        ahead = (None,) * (2 - len(inputs))  # no gradient flows into a forward

        def bound(launch: Launch) -> Callable[..., None]:
            def run(grid: tuple[int, int, int], output: Any, *rest: Any) -> None:
                tensors, sizes = rest[: len(inputs)], rest[len(inputs) :]
                launch(grid, output, *ahead, *tensors, *given, *sizes[:2], *ahead, *sizes[2:])

            return run

        def flat(bits: int, dtype: torch.dtype) -> Any:
            launch, columns = self.flat(bits, dtype)
            return bound(launch), columns

        Pointwise(flat, lambda *sizes: bound(self.strided(*sizes)))((output,), inputs)  # type: ignore[arg-type,return-value]


def functions(op_package: str, value: Any, gradient: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """An op package's ``forward(x, *numbers)`` and ``backward(grad, x, *numbers, needs)``."""
    ahead, back = _Numbered(op_package, "forward", value), _Numbered(op_package, "backward", gradient)
    empty_like = torch.empty_like

    def forward(x: Any, *numbers: float, out: Any = None) -> Any:
        output = empty_like(x) if out is None else out
        ahead(output, (x,), numbers)
        return output

    def backward(grad: Any, x: Any, *rest: Any, out: Any = None) -> Any:
        output = empty_like(x) if out is None else out
        back(output, (grad, x), rest[:-1])
        return output

    return forward, backward
