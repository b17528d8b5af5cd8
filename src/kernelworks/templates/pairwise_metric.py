"""The pairwise template for kernels that are no function of the Euclidean distance: of L1 distances, of dot products.

An entry says its metric (``Metric``): q, k and the slope in float64, and how far float32 may be off in each. Its
``pairwise.cpp`` and ``triton.py`` say the same of tiles. Numbers that k takes besides (a degree, an offset) are
arguments behind the length scale.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, table_triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract import UNIT_ROUNDOFF, Case, Contract, Cost, Kernel, Mutant, Request, rounding
from kernelworks.contract.arguments import Argument, check_of, errors_of, schema_of
from kernelworks.dispatch.op import Op, Pass
from kernelworks.templates.op_package import OpPackage
from kernelworks.templates.pairwise import (
    RETURNS,
    SMALLEST,
    U32,
    _chain,
    _decline_large,
    _dims,
    _plain,
    _summed,
    rows_in_parts,
)
from kernelworks.templates.pairwise_arguments import ARGUMENTS, BENCH_CASES, DEVICE_BENCH_CASES
from kernelworks.templates.torch_kernels import python_kernels

__all__ = ["Metric", "MetricPairwise"]

TARGETS = dict.fromkeys(("avx512", "avx2", "scalar"), "pairwise.cpp")


@dataclass(frozen=True)
class PairErrors:
    """Of every pair, in float64: k and what moves with it, and how far a float32 kernel may be off."""

    k: Tensor
    k_off: Tensor
    slope: Tensor  # of k by q, its size
    slope_off: Tensor
    q: Tensor  # its size
    q_off: Tensor


class Metric(abc.ABC):
    """A kernel function by q, a sum over coordinates in units of the length scale."""

    power: float  # k is a function of q / l^power
    flop: float  # of a coordinate of a pair, and of k
    own_flop: float
    transcendental: float

    @abc.abstractmethod
    def value(self, x: Tensor, y: Tensor, length_scale: Tensor, **numbers: Any) -> Tensor:
        """K [N, M] by sums over coordinates, as exact as its dtype says it."""

    @abc.abstractmethod
    def errors(self, x: Tensor, y: Tensor, length_scale: Tensor, **numbers: Any) -> PairErrors:
        """What float32 makes of it."""

    @abc.abstractmethod
    def direction(self, own: Tensor, other: Tensor) -> Tensor:
        """The size of dq by ``own``, a coordinate of one of the points, in units where the length scale is 1."""

    @abc.abstractmethod
    def matrix(self, x: Tensor, y: Tensor, length_scale: Tensor, **numbers: Any) -> Tensor:
        """K as torch's users write it, in float32."""


@dataclass(frozen=True, kw_only=True)
class MetricPairwise(OpPackage):
    """An entry of a table: what only it knows. ``mutants`` are all that the op has."""

    op_name: str
    formula: str
    source: str
    metric: Metric
    cases: Sequence[Case]
    device_cases: Sequence[Case]
    mutants: Sequence[Mutant]
    numbers: Mapping[str, Argument] = field(default_factory=dict)
    shown: Mapping[str, Any] = field(default_factory=dict)  # the numbers of bench cases

    @property
    def name(self) -> str:
        return self.op_name

    @functools.cached_property
    def arguments(self) -> dict[str, Argument]:
        return {**ARGUMENTS, **self.numbers}

    @functools.cached_property
    def contract(self) -> Contract:
        return Contract(
            name=self.name, family=self.folder.parent.name, formula=self.formula, source=self.source,
            outputs=("output",), differentiable=RETURNS, check=check_of(self.arguments), reference=self._reference,
            bound=self._bound, gradient_bound=self._gradient_bound, cost=self._cost, dims=_dims,
            bucket=lambda request: {name: size for name, size in _dims(request).items() if name in "DE" and size < 8},
            cases=tuple(self.cases), device_cases=tuple(self.device_cases),
            bench_cases=self._with_numbers(BENCH_CASES), device_bench_cases=self._with_numbers(DEVICE_BENCH_CASES),
            errors=errors_of(self.arguments),
            pieces={
                "output": ("x",), "gradient of x": ("x", "grad_output"), "gradient of y": ("y", "v"),
                "gradient of v": ("y", "v"),
            },
        )  # fmt: skip

    def _with_numbers(self, cases: Sequence[Case]) -> tuple[Case, ...]:
        def made(case: Case) -> Case:
            return dataclasses.replace(case, make=lambda g, d: case.make(g, d) | dict(self.shown))

        return tuple(made(case) if self.shown else case for case in cases)

    def _reference(
        self, x: Tensor, y: Tensor, v: Tensor, length_scale: Tensor, *numbers: Any, **named: Any
    ) -> tuple[Tensor, ...]:
        named |= dict(zip(self.numbers, numbers, strict=False))
        return (self.metric.value(x, y, length_scale.reshape(()), **named) @ v,)

    # ------------------------------------------------------------ bounds

    def _bound(self, args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        e = self._errors(args)
        return (rounding(outputs[0], dtype) + (1 + UNIT_ROUNDOFF[dtype]) * _summed(e.k_off, e.k.abs(), args["v"]),)

    def _errors(self, args: Mapping[str, Any]) -> PairErrors:
        numbers = {name: args[name] for name in self.numbers}
        return self.metric.errors(args["x"], args["y"], args["length_scale"].abs().reshape(()), **numbers)

    def _gradient_bound(
        self, args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype,
        given: dict[str, Any],
    ) -> dict[str, Tensor]:  # fmt: skip
        x, y, v = (args[name] for name in "xyv")
        grad, unit, e = grads[0], args["length_scale"].abs().reshape(()), self._errors(args)
        flow, most = (grad @ v.T).abs(), grad.abs() @ v.abs().T
        # u = (grad . v) slope, and how far it is off with the products that follow it.
        u = flow * e.slope
        u_off = (v.shape[1] + 1) * U32 * most * e.slope + most * e.slope_off + 3 * U32 * u + SMALLEST * (1 + most)
        inside = {"v": _summed(e.k_off.T, e.k.abs().T, grad)}
        for name, own, other, dim, terms in (("x", x, y, 1, y.shape[0]), ("y", y, x, 0, x.shape[0])):
            columns = []
            for d in range(x.shape[1]):
                way = self.metric.direction(own[:, None, d], other[None, :, d]) / unit**self.metric.power
                way = way if dim else way.T
                columns.append(((u_off + (_chain(terms) + 2) * U32 * u) * way).sum(dim) + terms * SMALLEST / unit)
            inside[name] = torch.stack(columns, 1)
        stretch = (u_off + (_chain(y.shape[0]) + 4) * U32 * u) * e.q + (u + u_off) * e.q_off
        total = torch.nan_to_num(stretch, 0.0).sum() * self.metric.power / unit
        inside["length_scale"] = total.reshape(args["length_scale"].shape)
        bounds = {}
        for name, found in gradients.items():  # each is rounded to its argument's dtype
            own_dtype = given[name].dtype
            bounds[name] = rounding(found, own_dtype) + (1 + UNIT_ROUNDOFF[own_dtype]) * inside[name]
        return bounds

    def _cost(self, request: Request) -> Cost:
        d, m = _dims(request), self.metric
        pairs = d["N"] * d["M"]
        v = request.args["v"]
        read = sum(request.args[name].nbytes for name in "xyv")
        output = d["N"] * d["E"] * v.dtype.itemsize
        calls = pairs * m.transcendental
        if request.pass_ == "backward":
            return Cost(pairs * ((m.flop + 4.0) * d["D"] + 4.0 * d["E"] + m.own_flop + 4.0), calls, read + output, read)
        return Cost(pairs * (m.flop * d["D"] + 2.0 * d["E"] + m.own_flop), calls, read, output)

    # ------------------------------------------------------------ torch

    def composite(self, x: Tensor, y: Tensor, v: Tensor, length_scale: Tensor, *numbers: Any, **named: Any) -> Tensor:
        """The op in torch's functions, all of which have derivatives of any order."""
        return self._in_torch(self.metric.value, (x, y, v, length_scale), numbers, named)

    def native(self, x: Tensor, y: Tensor, v: Tensor, length_scale: Tensor, *numbers: Any, **named: Any) -> Tensor:
        """As torch's users write it; by parts of the rows where K would not fit the memory that is free."""

        def of_rows(*tensors: Tensor) -> Tensor:
            return self._in_torch(self.metric.matrix, tensors, numbers, dict(named))

        return rows_in_parts(of_rows, x, y, v, length_scale)

    def _in_torch(
        self, matrix: Callable[..., Tensor], tensors: Sequence[Tensor], numbers: Any, named: dict[str, Any]
    ) -> Tensor:
        x, y, v, length_scale = (t.to(torch.float32) if t.dtype.itemsize < 4 else t for t in tensors)
        named |= dict(zip(self.numbers, numbers, strict=False))
        return (matrix(x, y, length_scale.reshape(()), **named) @ v).to(tensors[2].dtype)

    # ------------------------------------------------------------ the op

    def op(self) -> Op:
        forward, backward = self.passes()
        kernels = [
            *self._kernels(),
            *python_kernels(self.contract, forward, backward, self.native, lambda: op, guard=_decline_large),
        ]
        op = Op(
            self.contract, kernels, op_package=self.op_package, forward=forward, backward=backward,
            composite=self.composite, native=self.native, mutants=tuple(self.mutants),
        )  # fmt: skip
        op.template = self
        return op

    def passes(self) -> tuple[Pass, Pass]:
        """Both directions as torch knows them."""
        arguments = schema_of(self.arguments)
        return (
            Pass(
                f"{self.name}({arguments}, str? op_kernel=None) -> Tensor",
                lambda x, y, v, length_scale, *numbers: v.new_empty((x.shape[0], v.shape[1])),
            ),
            Pass(
                f"{self.name}_backward(Tensor grad_output, {arguments}, bool[] needs, str? op_kernel=None) "
                "-> (Tensor, Tensor, Tensor, Tensor)",
                lambda grad, x, y, v, length_scale, *numbers: tuple(
                    t.new_empty(t.shape if want else 0)
                    for t, want in zip((x, y, v, length_scale), numbers[-1], strict=True)
                ),
                returns=RETURNS,
                reads={"v": ("x", "y", "length_scale", *self.numbers)},
            ),
        )

    def _kernels(self) -> list[Kernel]:
        cpp = cpp_kernels(self.folder, forward=self._forward, backward=self._backward, targets=TARGETS, bound=True)
        return [table_triton_kernel(self.folder, self.name), *cpp]

    def _forward(self, library: Any) -> Callable[..., Tensor]:
        kernel = getattr(library, self.name)

        def forward(x: Tensor, y: Tensor, v: Tensor, length_scale: Tensor, *numbers: Any, out: Any = None) -> Tensor:
            output = v.new_empty(x.shape[0], v.shape[1]) if out is None else out
            return _sums(kernel, output, x, y, v, length_scale, numbers)

        return forward

    def _backward(self, library: Any) -> Callable[..., tuple[Tensor, ...]]:
        kernel, gradient = getattr(library, self.name), getattr(library, f"{self.name}_gradient")

        def backward(grad: Tensor, *given: Any, out: Any = None) -> tuple[Tensor, ...]:
            x, y, v, length_scale, *numbers, needs = given
            made = tuple(out or (t.new_empty(t.shape if w else 0) for t, w in zip(given[:4], needs, strict=True)))
            # K of (y, x) is K of (x, y) transposed: columns take their gradients as rows do, by other names.
            if needs[0] or needs[3]:
                stretch = torch.zeros(x.shape[0], dtype=torch.float64) if needs[3] else None
                _slopes(gradient, made[0] if needs[0] else None, stretch, x, y, grad, v, length_scale, numbers)
                if stretch is not None:
                    made[3].copy_(stretch.sum().reshape(length_scale.shape))
            if needs[1]:
                _slopes(gradient, made[1], None, y, x, v, grad, length_scale, numbers)
            if needs[2]:
                _sums(kernel, made[2], y, x, grad, length_scale, numbers)
            return made

        return backward


def _native_numbers(numbers: Sequence[Any]) -> tuple[int, float]:
    """The degree and the offset that the C++ takes, whether its function reads them or not."""
    degree, offset = numbers or (1, 0.0)
    return int(degree), float(offset)


def _nanoseconds(a: Tensor, b: Tensor) -> float:
    """About what one thread needs for all pairs."""
    return a.shape[0] * b.shape[0] * (0.5 + 0.1 * a.shape[1])


def _sums(
    kernel: Any, output: Tensor, a: Tensor, b: Tensor, weights: Tensor, length_scale: Tensor, numbers: Any
) -> Tensor:
    """The sums of weights over the columns b, for each row of a, into ``output``."""
    if not output.numel() or not weights.numel():
        return output.zero_()
    to = output if output.dtype == torch.float32 and output.is_contiguous() else torch.empty(output.shape)
    run, threads = choose_threads(kernel, _nanoseconds(a, b))
    run(to, _plain(a), _plain(b), _plain(weights), _plain(length_scale), threads, *_native_numbers(numbers))
    return to if to is output else output.copy_(to)


def _slopes(
    kernel: Any, output: Tensor | None, stretch: Tensor | None, a: Tensor, b: Tensor, flows: Tensor, weights: Tensor,
    length_scale: Tensor, numbers: Any,
) -> None:  # fmt: skip
    """The gradient of a's rows into ``output``, and each row's part of the length scale's into ``stretch``."""
    if not a.numel() or not weights.numel():
        if output is not None:
            output.zero_()
        return
    to = output
    if output is not None and (output.dtype != torch.float32 or not output.is_contiguous()):
        to = torch.empty(output.shape)
    run, threads = choose_threads(kernel, 2 * _nanoseconds(a, b))
    given = [_plain(t) for t in (a, b, flows, weights, length_scale)]
    run(to, stretch, *given, threads, *_native_numbers(numbers))
    if output is not None and to is not None and to is not output:
        output.copy_(to)
