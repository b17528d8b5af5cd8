"""A function of elements as kernels: an op package gives the function, and one kernel applies it to tensors of any
strides.

    @kernel
    def value(x):
        return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)

    forward, backward = functions(__file__, value, slopes)

``value`` takes the tensors' elements in float32 and returns the output's; ``slopes`` takes the gradient that flows in
and the same elements, and returns their gradients, a tuple where there are several. One that takes ``dtype`` besides
gets the tensors' element type, for a shorter way where that has few digits. An op with words gives for both a dict, by
word.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton.language as tl

from kernelworks.build.triton import Kernel, Launch, configs
from kernelworks.build.triton import kernel as kernel
from kernelworks.tile.pointwise import Pointwise, inside, tile, whole

MOST_OUTPUTS, MOST_INPUTS = 3, 4  # of a kernel: the rest of its parameters is None


@kernel
def _load(pointer, stride, mask, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    return tl.load(tile(pointer, stride, ROWS, COLUMNS), mask=mask).to(tl.float32)


@kernel
def _applied(
    first, second, third, a, b, c, d, N, a_stride, b_stride, c_stride, d_stride, mask, FUNCTION: tl.constexpr,
    TYPED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    operands = (_load(a, a_stride, mask, ROWS, COLUMNS),)
    if b is not None:
        operands = operands + (_load(b, b_stride, mask, ROWS, COLUMNS),)  # noqa: RUF005
    if c is not None:
        operands = operands + (_load(c, c_stride, mask, ROWS, COLUMNS),)  # noqa: RUF005
    if d is not None:
        operands = operands + (_load(d, d_stride, mask, ROWS, COLUMNS),)  # noqa: RUF005
    if TYPED:
        made = FUNCTION(*operands, a.dtype.element_ty)
    else:
        made = FUNCTION(*operands)
    if second is None:
        tl.store(tile(first, N, ROWS, COLUMNS), made, mask=mask)
    else:
        tl.store(tile(first, N, ROWS, COLUMNS), made[0], mask=mask)
        tl.store(tile(second, N, ROWS, COLUMNS), made[1], mask=mask)
        if third is not None:
            tl.store(tile(third, N, ROWS, COLUMNS), made[2], mask=mask)


@kernel
def _elements(
    first, second, third, a, b, c, d, M, N, a_stride, b_stride, c_stride, d_stride, FUNCTION: tl.constexpr,
    TYPED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    if whole(M, N, ROWS, COLUMNS):
        _applied(
            first, second, third, a, b, c, d, N, a_stride, b_stride, c_stride, d_stride, None, FUNCTION, TYPED, ROWS,
            COLUMNS,
        )  # fmt: skip
    else:
        mask = inside(M, N, ROWS, COLUMNS)
        _applied(
            first, second, third, a, b, c, d, N, a_stride, b_stride, c_stride, d_stride, mask, FUNCTION, TYPED, ROWS,
            COLUMNS,
        )  # fmt: skip


ELEMENTS = Kernel(_elements)


class _Applied:
    """Launches of one function: ``Pointwise`` finds the sizes, and all that the kernel has no tensor for is None."""

    def __init__(self, op_package: str, pass_: str, function: Any, word: int, outputs: int, inputs: int) -> None:
        self.configs, self.pass_, self.word = configs(op_package), pass_, word
        self.outputs, self.inputs = outputs, inputs
        self.constants = {"FUNCTION": function, "TYPED": "dtype" in function.arg_names}
        self.run = Pointwise(functools.cache(self.flat), functools.cache(self.strided))

    def flat(self, bits: int, dtype: torch.dtype) -> tuple[Any, int]:
        """The launch for contiguous tensors of this many elements (its binary digits), and a program's elements."""
        chosen = self.configs.pick(self.pass_, bits=bits, word=self.word, dtype=dtype)
        return self.padded(ELEMENTS.at(**self.constants, ROWS=0, **chosen)), chosen["COLUMNS"]

    def strided(self, rows: int, columns: int, dtype: torch.dtype) -> Any:
        chosen = self.configs.pick("strided", dtype=dtype)
        return self.padded(ELEMENTS.at(**self.constants, ROWS=rows, COLUMNS=columns, **chosen))

    def padded(self, launch: Launch) -> Callable[..., None]:
        outputs, tensors = self.outputs, self.outputs + self.inputs
        no_outputs, no_inputs = (None,) * (MOST_OUTPUTS - outputs), (None,) * (MOST_INPUTS - self.inputs)

        def run(grid: tuple[int, int, int], *given: Any) -> None:
            launch(
                grid, *given[:outputs], *no_outputs, *given[outputs:tensors], *no_inputs, *given[tensors:], *no_inputs
            )

        return run


def functions(op_package: str, value: Any, slopes: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """An op package's ``forward`` and ``backward``. With words, ``value`` and ``slopes`` are dicts of functions, by
    word; in tuning.toml ``word`` is a function's place there, from 0."""
    if not isinstance(value, Mapping):
        value, slopes = {None: value}, {None: slopes}
    tensors = len([n for n in next(iter(value.values())).arg_names if n != "dtype"])
    ahead = {w: _Applied(op_package, "forward", f, i, 1, tensors).run for i, (w, f) in enumerate(value.items())}
    back = {
        w: _Applied(op_package, "backward", f, i, tensors, tensors + 1).run for i, (w, f) in enumerate(slopes.items())
    }
    empty_like = torch.empty_like

    def forward(*args: Any, out: Any = None) -> Any:
        given = args[:tensors]
        output = empty_like(given[0]) if out is None else out
        ahead[args[tensors] if len(args) > tensors else None]((output,), given)
        return output

    def backward(grad: Any, *args: Any, out: Any = None) -> Any:
        given = args[:tensors]  # behind them the word, where there is one, and the needs
        made = tuple(empty_like(t) for t in given) if out is None else out if tensors > 1 else (out,)
        back[args[tensors] if len(args) > tensors + 1 else None](made, (grad, *given))
        return made if tensors > 1 else made[0]

    return forward, backward
