"""The transform template: a linear map of each line along a dimension, computed in the logarithm of its length.

``NAME(input, ...)``: Fourier and Hadamard transforms. An op package says in ``contract.py`` what only it knows
(``Transform``): the definition, its transpose, which gradients take, and how large the terms of each sum are. What
follows from a map being linear is made here: bounds, gradients of any order, shapes, mutants, kernels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.build.kernels import as_float64, cpp_kernels, into, triton_kernel
from kernelworks.contract import UNIT_ROUNDOFF, Case, Contract, Cost, Mutant, Request, rounding
from kernelworks.contract.arguments import Arguments, Error, check_of, errors_of, schema_of
from kernelworks.contract.complex_numbers import as_parts, from_parts
from kernelworks.contract.results import Result, result_dtype
from kernelworks.dispatch.op import Op, Pass
from kernelworks.templates.mutants import generic
from kernelworks.templates.op_package import OpPackage
from kernelworks.templates.torch_kernels import python_kernels

__all__ = ["LINEAR_KINDS", "Transform", "TransformEntry", "line_cases"]

U32 = UNIT_ROUNDOFF[torch.float32]
SMALLEST = 2.0**-149  # of float32
# Values whose sums are numbers: what infinities and NaN make of a sum hangs on the order of its terms.
LINEAR_KINDS = ("normal", "large_mean", "tiny", "huge", "subnormal", "constant", "zeros")

Make = Callable[[Generator, torch.dtype, tuple[int, ...], str], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Transform(OpPackage):
    """What only the op package knows of a linear map. Its functions take the op's arguments by position.

    - ``definition(input, *rest)`` is the op in torch, in any precision.
    - ``transpose(grad, input, *rest)`` is the map's transpose, in torch's functions, differentiable; of complex numbers
      the conjugate transpose, as gradients go. Of ``input`` it reads nothing but the shape.
    - ``terms(input, *rest)`` is the sum of the terms' magnitudes for each number of the result, in float64, and for
      complex results of each part: 0 where it is exact. ``transposed_terms(grad, input, *rest)`` the same of the
      transpose.
    - ``length(args)`` is how many numbers meet in a transform, ``lines(args)`` how many transforms there are.
    - ``roundings(length)`` is how many times the unit roundoff of float32 a term may be off in the end,
      ``flop(length)`` what one transform does.
    - ``shape(args)`` and ``dtype`` are the result's; ``dtype`` None for the input's.
    - ``forward(kernel, out, input, *rest)`` and ``backward(kernel, out, grad, input, *rest)`` call the C++ functions
      ``NAME`` and ``NAME_backward``; ``out`` is contiguous.
    - ``decline(request)`` is the guard of kernels for CPUs, ``decline_on_gpu`` of Triton's.
    """

    formula: str
    source: str
    arguments: Arguments
    definition: Callable[..., Tensor]
    transpose: Callable[..., Tensor]
    terms: Callable[..., Tensor]
    transposed_terms: Callable[..., Tensor]
    length: Callable[[Mapping[str, Any]], int]
    lines: Callable[[Mapping[str, Any]], int]
    roundings: Callable[[int], float]
    flop: Callable[[int], float]
    shape: Callable[[Mapping[str, Any]], tuple[int, ...]]
    forward: Callable[..., Tensor]
    backward: Callable[..., Tensor]
    cases: tuple[Case, ...]
    bench_cases: tuple[Case, ...]
    device_cases: tuple[Case, ...] = ()
    device_bench_cases: tuple[Case, ...] = ()
    dtype: torch.dtype | None = None
    errors: tuple[Error, ...] = ()
    check: Callable[..., None] = lambda **given: None  # what no argument's kind can say
    decline: Callable[[Request], str | None] = lambda request: None
    decline_on_gpu: Callable[[Request], str | None] = lambda request: None

    # ------------------------------------------------------------ the contract

    @functools.cached_property
    def input(self) -> str:
        """The name of the argument that is transformed: the first."""
        return next(iter(self.arguments))

    @functools.cached_property
    def contract(self) -> Contract:
        kinds = check_of(self.arguments)

        def check(**given: Any) -> None:
            kinds(**given)
            self.check(**given)

        return Contract(
            name=self.name,
            family=self.folder.parent.name,
            formula=self.formula,
            source=self.source,
            outputs=("output",),
            results={"output": Result(self.dtype, shape=self.shape)},
            differentiable=(self.input,),
            check=check,
            reference=self.reference,
            bound=self._bound,
            gradient_bound=self._gradient_bound,
            cost=self._cost,
            dims=self._dims,
            cases=self.cases,
            bench_cases=self.bench_cases,
            device_cases=self.device_cases,
            device_bench_cases=self.device_bench_cases,
            dtypes=self.cases[0].dtypes,
            errors=(*errors_of(self.arguments), *self.errors),
        )

    def reference(self, *args: Any, **named: Any) -> tuple[Tensor, ...]:
        return (self.definition(*args, *(named[n] for n in list(self.arguments)[len(args) :])),)

    def _positional(self, args: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(args[name] for name in self.arguments)

    def _limit(self, result: Tensor, terms: Tensor, dtype: torch.dtype, N: int) -> Tensor:
        """A bound: the last rounding, those on the way, and what is lost where products are subnormal: at most two in
        each of 2 N butterflies on the way to a number."""
        parts = as_parts(terms)
        ways = as_parts(rounding(result, dtype)) + self.roundings(N) * U32 * parts + 4 * N * SMALLEST
        return from_parts(torch.where(parts == 0, 0.0, ways), result)

    def _bound(self, args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        return (self._limit(outputs[0], self.terms(*self._positional(args)), dtype, self.length(args)),)

    def _gradient_bound(
        self, args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
    ) -> dict[str, Tensor]:
        terms = self.transposed_terms(grads[0], *self._positional(args))
        return {self.input: self._limit(gradients[self.input], terms, dtype, self.length(args))}

    def _cost(self, request: Request) -> Cost:
        args, N = request.args, self.length(request.args)
        count = self.lines(args)
        given = args[self.input]
        other = math.prod(self.shape(args)) * result_dtype(self._result, args).itemsize
        sizes = (other, given.nbytes) if request.pass_ == "backward" else (given.nbytes, other)
        return Cost(count * self.flop(N), 0.0, *sizes)

    @property
    def _result(self) -> Result:
        return self.contract.results["output"]

    def _dims(self, request: Request) -> dict[str, int]:
        """How many lines there are, and the transform's length."""
        return {"M": self.lines(request.args), "N": self.length(request.args)}

    # ------------------------------------------------------------ the op

    def op(self, mutants: Sequence[Mutant] = (), **more: Any) -> Op:
        """The op; ``mutants`` are the op package's own."""
        made, back = schema_of(self.arguments), f"{self.name}_backward(Tensor grad_output, "
        forward = Pass(f"{self.name}({made}, str? op_kernel=None) -> Tensor", self._fake)
        backward = Pass(
            f"{back}{made}, str? op_kernel=None) -> Tensor",
            lambda grad, x, *rest: x.new_empty(x.shape),
            returns=(self.input,),
            reads={self.input: ("grad_output",)},
        )
        ops: list[Op] = []
        kernels = [
            *([triton_kernel(self.folder, guard=self.decline_on_gpu)] if (self.folder / "triton.py").exists() else ()),
            *cpp_kernels(self.folder, forward=self._forward, backward=self._backward, guard=self.decline),
            *python_kernels(
                self.contract, forward, backward, self.definition, lambda: ops[0], torch_backward=self._torch_backward
            ),
        ]
        op = Op(
            self.contract, kernels, op_package=self.op_package, forward=forward, backward=backward,
            mutants=(*self._mutants(), *mutants), composite=self.definition, **more,
        )  # fmt: skip
        op.template = self
        ops.append(op)
        return op

    def template_parts(self, op: Op) -> dict[str, str]:
        """What this op template alone makes (``description.py`` tells the rest)."""
        return {"gradient": "the transposed map of what flows in", "kernels": "the op package's own"}

    def _fake(self, *args: Any) -> Tensor:
        named = dict(zip(self.arguments, args, strict=True))
        made: Tensor = args[0].new_empty(self.shape(named), dtype=result_dtype(self._result, named))
        return made

    def _forward(self, library: Any, *args: Any, out: Any = None) -> Tensor:
        return self.forward(getattr(library, self.name), self._fake(*args) if out is None else out, *args)

    def _backward(self, library: Any, grad: Tensor, x: Tensor, *rest: Any, out: Any = None) -> Tensor:
        made = x.new_empty(x.shape) if out is None else out
        return self.backward(getattr(library, f"{self.name}_backward"), made, grad, x, *rest)

    def _torch_backward(self, grad: Tensor, x: Tensor, *rest: Any, out: Any = None) -> Any:
        return into(self.transpose(grad, x, *rest), out)

    def _mutants(self) -> tuple[Mutant, ...]:
        results = self.contract.results_in_order
        usual = generic(self.reference, (self.input,), tuple(self.arguments), results)
        return (
            *usual,
            Mutant("coefficients of 8 bits", self._coarse, "the map's coefficients are rounded to bfloat16"),
            Mutant("a term lost", self._without_last, "the last element of a line adds nothing"),
        )

    def _coarse(self, x: Tensor, *rest: Any) -> Tensor:
        """What a line's elements give one by one, with each of their shares rounded."""
        exact, total = as_float64(x), None
        for part in self._elements(exact, *rest):
            share = as_parts(self.definition(part, *rest))
            share = share.bfloat16().double()
            total = share if total is None else total + share
        like = self.definition(exact, *rest)
        made = as_parts(like) if total is None else total
        return from_parts(made, like).to(self._dtype(x))

    def _elements(self, x: Tensor, *rest: Any) -> Iterator[Tensor]:
        named = dict(zip(self.arguments, (x, *rest), strict=True))
        dim = named.get("dim", -1)
        for i in range(x.shape[dim]):
            part = torch.zeros_like(x)
            part.select(dim, i).copy_(x.select(dim, i))
            yield part

    def _without_last(self, x: Tensor, *rest: Any) -> Tensor:
        dim = dict(zip(self.arguments, (x, *rest), strict=True)).get("dim", -1)
        short = as_float64(x).clone()
        if short.shape[dim]:
            short.select(dim, -1).zero_()
        return self.definition(short, *rest).to(self._dtype(x))

    def _dtype(self, x: Tensor) -> torch.dtype:
        return self.dtype or x.dtype


@dataclass(frozen=True, kw_only=True)
class TransformEntry(Transform):
    """An op that is an entry of a table: the op package's sources say all entries, each by the name of its op."""

    op_name: str
    own_mutants: Sequence[Mutant] = ()

    @property
    def name(self) -> str:
        return self.op_name

    def op(self, mutants: Sequence[Mutant] = (), **more: Any) -> Op:
        return super().op((*mutants, *self.own_mutants), **more)


# ---------------------------------------------------------------- cases


def line_cases(
    make: Make, lengths: Iterable[int], dtypes: tuple[torch.dtype, ...], kinds: Iterable[str] = LINEAR_KINDS
) -> tuple[Case, ...]:
    """Cases of lines in the last dimension: every length on few rows, every kind of values, rows that fill vectors.
    ``make(generator, dtype, shape, kind)`` gives the arguments."""

    def case(name: str, shape: tuple[int, ...], kind: str = "normal", **more: Any) -> Case:
        return Case(name, lambda g, d: make(g, d, shape, kind), dtypes=dtypes, **more)

    return (
        *(case(f"N={n}", (3, n), layouts=n in (17, 128)) for n in lengths),
        *(case(f"{kind} N={n}", (5, n), kind) for kind in kinds if kind != "normal" for n in (30, 128)),
        case("one line", (64,)),
        case("shape [2, 3, 4, N]", (2, 3, 4, 40), layouts=True),
        case("no rows", (0, 64)),
        case("many lines", (67, 48)),
    )
