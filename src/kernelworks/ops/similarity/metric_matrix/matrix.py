"""The op of a kernel function's matrix: contract, passes and kernels, of what ``contract.py`` says of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, table_triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract import UNIT_ROUNDOFF, Contract, Cost, Request, rounding
from kernelworks.contract.arguments import Argument, check_of, errors_of, schema_of
from kernelworks.contract.results import Result
from kernelworks.contract.tensor_argument import T
from kernelworks.dispatch.op import Op, Pass
from kernelworks.ops.similarity.metric_matrix.cases import bench_cases, cases, device_bench_cases, device_cases
from kernelworks.ops.similarity.metric_matrix.contract import FUNCTIONS, U32, KernelFunction
from kernelworks.ops.similarity.metric_matrix.mutants import mutants
from kernelworks.templates.op_package import OpPackage, OpTable
from kernelworks.templates.torch_kernels import python_kernels

__all__ = ["TABLE"]

POINTS = ("x", "y")
TARGETS = dict.fromkeys(("avx512", "avx2", "scalar"), "pairwise.cpp")


def _wide(*points: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.to(torch.float32) if t.dtype.itemsize < 4 else t for t in points)


def _plain(t: Tensor) -> Tensor:
    """What C++ takes of points: contiguous float32."""
    return t.to(torch.float32).contiguous()


def _nanoseconds(a: Tensor, b: Tensor) -> float:
    """About what one thread needs for all pairs."""
    return a.shape[0] * b.shape[0] * (0.5 + 0.1 * a.shape[1])


def _dims(request: Request) -> dict[str, int]:
    x, y = request.args["x"], request.args["y"]
    return {"N": x.shape[0], "M": y.shape[0], "D": x.shape[1]}


@dataclass(frozen=True, kw_only=True)
class KernelFunctionMatrix(OpPackage):
    """An entry of the table."""

    op_name: str

    @property
    def name(self) -> str:
        return self.op_name

    @functools.cached_property
    def function(self) -> KernelFunction:
        return FUNCTIONS[self.op_name]

    @functools.cached_property
    def arguments(self) -> dict[str, Argument]:
        return {"x": T("N D", where=("D >= 1",)), "y": T("M D", like="x"), **self.function.numbers}

    @functools.cached_property
    def contract(self) -> Contract:
        return Contract(
            name=self.name, family=self.folder.parent.name, formula=self.function.formula, source=self.function.source,
            outputs=("output",), differentiable=POINTS,
            results={"output": Result("x", shape=lambda args: (args["x"].shape[0], args["y"].shape[0]))},
            check=check_of(self.arguments), reference=self._reference, bound=self._bound,
            gradient_bound=self._gradient_bound, cost=self._cost, dims=_dims, cases=cases(self.function),
            device_cases=device_cases(self.function), bench_cases=bench_cases(self.function),
            device_bench_cases=device_bench_cases(self.function), errors=errors_of(self.arguments),
        )  # fmt: skip

    def _named(self, numbers: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        return named | dict(zip(self.function.numbers, numbers, strict=False))

    def _reference(self, x: Tensor, y: Tensor, *numbers: Any, **named: Any) -> tuple[Tensor, ...]:
        return (self.function.value(x, y, **self._named(numbers, named)),)

    # ------------------------------------------------------------ bounds and cost

    def _bound(self, args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        return (rounding(outputs[0], dtype) + (1 + UNIT_ROUNDOFF[dtype]) * self.function.errors(**args).k_off,)

    def _gradient_bound(
        self, args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype,
        given: dict[str, Any],
    ) -> dict[str, Tensor]:  # fmt: skip
        """A pair's u = flow slope is rounded once; a point's gradient sums u times what q changes by over the other
        points, in any order, and has its factor multiplied with it."""
        x, y, flow, e = args["x"], args["y"], grads[0].abs(), self.function.errors(**args)
        numbers = {name: args[name] for name in self.function.numbers}
        u = flow * e.slope
        bounds = {}
        for name, own, other in (("x", x, y), ("y", y, x)):
            if name not in gradients:
                continue
            terms, own_dtype = other.shape[0], given[name].dtype
            off = flow * e.slope_off + (terms + 5) * U32 * u + 2.0**-149
            off = off if name == "x" else off.T
            way, lost = self.function.direction(own, other, **numbers)
            inside = (off[:, :, None] * way).sum(1) if way.ndim == 3 else off @ way
            bounds[name] = rounding(gradients[name], own_dtype) + (1 + UNIT_ROUNDOFF[own_dtype]) * (
                inside + terms * lost
            )
        return bounds

    def _cost(self, request: Request) -> Cost:
        d, f = _dims(request), self.function
        pairs = d["N"] * d["M"]
        points = request.args["x"].nbytes + request.args["y"].nbytes
        matrix = pairs * request.args["x"].dtype.itemsize
        if request.pass_ == "backward":
            return Cost(
                pairs * ((f.flop + 4.0) * d["D"] + f.own_flop + 1.0), pairs * f.transcendental, points + matrix, points
            )
        return Cost(pairs * (f.flop * d["D"] + f.own_flop), pairs * f.transcendental, points, matrix)

    # ------------------------------------------------------------ torch

    def composite(self, x: Tensor, y: Tensor, *numbers: Any, **named: Any) -> Tensor:
        """In torch's functions, all of which have derivatives of any order."""
        return self.function.value(*_wide(x, y), **self._named(numbers, named)).to(x.dtype)

    def native(self, x: Tensor, y: Tensor, *numbers: Any, **named: Any) -> Tensor:
        """As torch's users write it."""
        return self.function.in_torch(*_wide(x, y), **self._named(numbers, named)).to(x.dtype)

    # ------------------------------------------------------------ the op

    def op(self) -> Op:
        arguments = schema_of(self.arguments)
        forward = Pass(
            f"{self.name}({arguments}, str? op_kernel=None) -> Tensor",
            lambda x, y, *numbers: x.new_empty((x.shape[0], y.shape[0])),
        )
        backward = Pass(
            f"{self.name}_backward(Tensor grad_output, {arguments}, bool[] needs, str? op_kernel=None) "
            "-> (Tensor, Tensor)",
            lambda grad, x, y, *numbers: tuple(
                t.new_empty(t.shape if want else 0) for t, want in zip((x, y), numbers[-1], strict=True)
            ),
            returns=POINTS,
        )
        kernels = [
            table_triton_kernel(self.folder, self.name),
            *cpp_kernels(self.folder, forward=self._forward, backward=self._backward, targets=TARGETS, bound=True),
            *python_kernels(self.contract, forward, backward, self.native, lambda: op),
        ]
        op = Op(
            self.contract, kernels, op_package=self.op_package, forward=forward, backward=backward,
            composite=self.composite, native=self.native, mutants=mutants(self.name, self.function),
        )  # fmt: skip
        return op

    def _forward(self, library: Any) -> Callable[..., Tensor]:
        kernel = getattr(library, self.name)

        def forward(x: Tensor, y: Tensor, *numbers: Any, out: Any = None) -> Tensor:
            made = x.new_empty(x.shape[0], y.shape[0]) if out is None else out
            if made.numel():
                run, threads = choose_threads(kernel, _nanoseconds(x, y))
                run(made, _plain(x), _plain(y), threads, *self.function.native_numbers(x.shape[1], *numbers))
            return made

        return forward

    def _backward(self, library: Any) -> Callable[..., tuple[Tensor, ...]]:
        kernel = getattr(library, f"{self.name}_gradient")

        def slopes(made: Tensor, a: Tensor, b: Tensor, flows: Tensor, numbers: tuple[int, float, float]) -> None:
            if not flows.numel():
                made.zero_()
                return
            to = made if made.dtype == torch.float32 and made.is_contiguous() else torch.empty(made.shape)
            run, threads = choose_threads(kernel, 2 * _nanoseconds(a, b))
            run(to, flows.contiguous(), _plain(a), _plain(b), threads, *numbers)
            if to is not made:
                made.copy_(to)

        def backward(grad: Tensor, x: Tensor, y: Tensor, *given: Any, out: Any = None) -> tuple[Tensor, ...]:
            *rest, needs = given
            numbers = self.function.native_numbers(x.shape[1], *rest)
            made = tuple(out or (t.new_empty(t.shape if w else 0) for t, w in zip((x, y), needs, strict=True)))
            if needs[0]:
                slopes(made[0], x, y, grad, numbers)
            if needs[1]:  # K of (y, x) is K of (x, y) transposed
                slopes(made[1], y, x, grad.t(), numbers)
            return made

        return backward


TABLE = OpTable.of([KernelFunctionMatrix(op_package=__file__, op_name=name) for name in FUNCTIONS])
