"""The weighted sum of the rows that each token named: the way back from experts to tokens."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, in_float64, into, python_kernel, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract.arguments import schema_of
from kernelworks.contract.memory_layout import as_rows
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import Array
from kernelworks.ops.routing.combine.contract import ARGUMENTS, CONTRACT, named_rows, reference
from kernelworks.ops.routing.combine.mutants import MUTANTS

__all__ = ["OP", "combine"]


def combine(
    rows: Array, weights: Array, places: Array, *, out: Array | None = None, kernel: str | None = None
) -> Array:  # fmt: skip
    """The weighted sum of the rows that each token named: ``output[t] = sum_j weights[t, j] rows[places[t, j]]``.

    Args:
        rows: [R, H], what the experts made, float32, bfloat16 or float16, any strides.
        weights: [T, k] of rows' dtype or float32, what each of a token's rows weighs.
        places: [T, k], int64 or int32, which rows they are. One outside [0, R) names none: it adds nothing, whatever
            its weight, and takes no gradient.
        out: where to write: a contiguous [T, H] tensor of rows' dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [T, H] of rows' dtype. The same bits every time, in gradients too: no sum depends on which thread
        comes first.

    Error bound: u |output| + k 2^-24 sum |weight row|, u the unit roundoff of the dtype; a row's gradient the same with
    the number of places that name it; a weight's as ``linear``'s.
    Cost: 2 T k H flop; reads each named row once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Shazeer et al. 2017, arXiv:1701.06538; Gale et al. 2022, arXiv:2211.15841.
    """
    output: Array = OP.call(rows, weights, places, out, kernel)
    return output


def _elements(rows: Tensor, places: Tensor) -> float:
    """About what one thread takes of nanoseconds: an eighth for an element of a row that is named."""
    return 0.125 * places.numel() * rows.shape[1]


def _forward(lib: Any, rows: Tensor, weights: Tensor, places: Tensor, out: Any = None) -> Tensor:
    output: Tensor = torch.empty((places.shape[0], rows.shape[1]), dtype=rows.dtype) if out is None else out
    run, threads = choose_threads(lib.combine, _elements(rows, places))
    run(output, as_rows(rows), weights.contiguous(), places.contiguous(), threads)
    return output


def _backward(
    lib: Any, grad: Tensor, rows: Tensor, weights: Tensor, places: Tensor, needs: list[bool], out: Any = None
) -> tuple[Tensor, Tensor]:
    of_rows, of_weights = _empty_gradients(rows, weights, needs) if out is None else out
    flows, named = as_rows(grad), places.contiguous()
    if needs[0]:
        starts, choices = (
            torch.empty(rows.shape[0] + 1, dtype=torch.int64),
            torch.empty(places.numel(), dtype=torch.int64),
        )
        run, threads = choose_threads(lib.combine_grad_rows, _elements(rows, places) + 0.125 * rows.numel())
        run(of_rows, flows, weights.contiguous(), named, starts, choices, threads)
    if needs[1]:
        run, threads = choose_threads(lib.combine_grad_weights, _elements(rows, places))
        run(of_weights, flows, as_rows(rows), named, threads)
    return of_rows, of_weights


def _empty_gradients(rows: Tensor, weights: Tensor, needs: list[bool]) -> tuple[Tensor, Tensor]:
    return rows.new_empty(rows.shape if needs[0] else 0), weights.new_empty(weights.shape if needs[1] else 0)


# ---------------------------------------------------------------- torch's own functions


def _composite(rows: Tensor, weights: Tensor, places: Tensor) -> Tensor:
    """What a user of torch writes, in float32."""
    (output,) = reference(rows.float(), weights.float(), places)
    return output.to(rows.dtype)


def _torch(*args: Any, out: Any = None) -> Any:
    return into(_composite(*args), out)


def _torch_backward(
    grad: Tensor, rows: Tensor, weights: Tensor, places: Tensor, needs: list[bool], out: Any = None,
    compute: torch.dtype = torch.float32,
) -> Any:  # fmt: skip
    """Of functions that are differentiable again."""
    flow, nothing = grad.to(compute), grad.new_empty(0)
    named, inside = named_rows(rows.to(compute), places)
    of_rows, of_weights = nothing, nothing.to(weights.dtype)
    if needs[0]:
        terms = torch.where(inside, weights.to(compute), 0.0).unsqueeze(-1) * flow.unsqueeze(1)
        at = torch.where(inside, places, rows.shape[0]).reshape(-1).long()
        sums = flow.new_zeros(rows.shape[0] + 1, rows.shape[1]).index_add(0, at, terms.flatten(0, 1))
        of_rows = sums[:-1].to(rows.dtype)
    if needs[1]:
        of_weights = (named * flow.unsqueeze(1)).sum(-1).to(weights.dtype)
    return into((of_rows, of_weights), out)


PACKAGE = Path(__file__).parent
OP = Op(
    CONTRACT,
    [
        triton_kernel(PACKAGE),
        *cpp_kernels(PACKAGE, forward=_forward, backward=_backward),
        python_kernel("torch", _torch, _torch_backward),
        python_kernel(
            "reference", in_float64(reference, CONTRACT.results_in_order),
            functools.partial(_torch_backward, compute=torch.float64),
        ),
    ],
    op_package=__file__,
    forward=Pass(
        f"combine({schema_of(ARGUMENTS)}, str? op_kernel=None) -> Tensor",
        lambda rows, weights, places: rows.new_empty((places.shape[0], rows.shape[1])),
    ),
    backward=Pass(
        "combine_backward(Tensor grad_output, Tensor rows, Tensor weights, Tensor places, bool[] needs, "
        "str? op_kernel=None) -> (Tensor, Tensor)",
        lambda grad, rows, weights, places, needs: _empty_gradients(rows, weights, needs),
        returns=("rows", "weights"),
        reads={"rows": ("weights", "places"), "weights": ("rows", "places")},
    ),
    composite=_composite,
    mutants=MUTANTS,
)  # fmt: skip
