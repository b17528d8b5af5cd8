"""Ops of one tensor along any of its dimensions, whose backward starts from the output: softmax and its like.

``forward(x, dim) -> output``, ``backward(grad_output, output, dim) -> x``. The op package says what is its own; the op
template derives the contract, both passes, the launches of C++ (exported functions NAME and NAME_backward, as
``simd/exp_lines.hpp`` and ``simd/lines.hpp`` make them), the kernels and torch's signature ``F.NAME(input, dim,
_stacklevel, dtype)``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.build.kernels import cpp_kernels, in_float64, into, python_kernel, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract import Case, Contract, Cost, Mutant, Request
from kernelworks.contract.arguments import Arguments, Dim, check_of, errors_of, schema_of
from kernelworks.contract.cases import draw, normal, row_cases
from kernelworks.contract.memory_layout import as_rows
from kernelworks.contract.tensor_argument import T
from kernelworks.dispatch.aten import aten
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.passthrough import Passthrough
from kernelworks.dispatch.signature import TorchSignature
from kernelworks.templates.mutants import generic
from kernelworks.templates.op_package import OpPackage
from kernelworks.templates.rowwise import BENCH, DEVICE_BENCH, TARGETS, case, sized_cases, sum_mutants

__all__ = ["Along", "chain", "distances"]

ARGUMENTS: Arguments = {"x": T("... N"), "dim": Dim("x")}
BLOCK = 128  # the longest chain of float32 additions, whatever the length: then sums move on to float64
LOWEST = -105.0  # e^-105 rounds to 0 in float32


# ---------------------------------------------------------------- for bounds


def distances(x: Tensor, dim: int) -> Tensor:
    """|x - max(x)|, as far as its exponential is not 0."""
    return (x - x.amax(dim, keepdim=True)).clamp_min(LOWEST).abs() if x.numel() else torch.zeros_like(x)


def chain(x: Tensor, dim: int) -> float:
    """The longest chain of float32 additions in a sum along a dimension."""
    return float(min(x.shape[dim], BLOCK))


# ---------------------------------------------------------------- cases


def _make(generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], kind: str, dim: int = -1) -> dict[str, Any]:
    return {"x": draw(kind, generator, dtype, *shape), "dim": dim}


def _down(shape: tuple[int, ...], dim: int, kind: str = "normal", **more: Any) -> Case:
    name = f"dim {dim} of {list(shape)}" if kind == "normal" else f"{kind}, dim {dim}"
    return case(name, _make, shape, kind, change=lambda g, d: {"dim": dim}, **more)


def _wide(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
    """Elements far apart: most exponentials are subnormal or 0."""
    return {"x": normal(generator, dtype, 5, 515, scale=60.0), "dim": -1}


def _climbing(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
    """The maximum rises from piece to piece of a long row."""
    return {"x": torch.linspace(-20, 20, 20000).to(dtype).repeat(2, 1), "dim": -1}


def _late_start(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
    """A long row that is -inf for more than a piece, and one that is nothing else."""
    x = normal(generator, dtype, 2, 9001)
    x[0, :5000] = float("-inf")
    x[1] = float("-inf")
    return {"x": x, "dim": -1}


def _large(generator: Generator, dtype: torch.dtype, n: int) -> dict[str, Any]:
    return _make(generator, dtype, ((9 << 20) // (n * dtype.itemsize), n), "normal")


CASES = (
    *row_cases(_make),
    _down((5, 7), 0),
    _down((3, 17, 5), 1, layouts=True),
    _down((2, 1, 33), 1),
    _down((300, 70), 0, layouts=True),
    _down((7, 130, 2, 3), -3),
    _down((0, 5), 0),
    _down((4, 0, 3), 1),
    _down((2, 9001), 1),
    _down((2, 4500, 3), 1),
    # Outputs of 9 MiB: rows at cache lines, and rows that start anywhere.
    Case("large N=1088", lambda g, d: _large(g, d, 1088), gradients=False),
    Case("large N=1031", lambda g, d: _large(g, d, 1031), gradients=False),
    *(_down((40, 19), 0, kind, gradients=False) for kind in ("huge", "nan", "inf")),
    Case("far apart", _wide),
    Case("long and climbing", _climbing),
    Case("long, from -inf", _late_start, gradients=False),
)

# Rows of every way to hold them, shorter and longer than what stays in registers; columns.
DEVICE_CASES = (
    *sized_cases(
        _make,
        (
            (4099, 128), (3001, 1024), (700, 2048), (701, 4096), (300, 8192), (301, 9999), (200, 16384), (100, 32768),
            (50, 32769), (20, 100003), (9, 131072), (3, 1000003),
        ),
    ),
    Case("wide apart, 200x16384", lambda g, d: {"x": normal(g, d, 200, 16384, scale=20.0), "dim": -1}),
    _down((64, 300, 129), 1),
    _down((5000, 130), 0),
)  # fmt: skip


# ---------------------------------------------------------------- the op template


def _laid_out(x: Tensor, dim: int) -> Tensor:
    return as_rows(x) if dim == -1 else x.contiguous()


def _counted(dim: int, dims: int) -> int:
    """A dimension as kernels take it: -1 for the last, else from the front."""
    return -1 if dim + 1 in (0, dims) else dim % dims


@dataclass(frozen=True, kw_only=True)
class Along(OpPackage):
    """What an op package says of its op.

    - ``op_package`` is the op package's ``__file__``: folder and family name the op.
    - ``function(x, dim)`` is torch's function, which is also the definition; ``aten`` the operator behind it.
    - ``gradient(g, y, dim)`` is the backward in torch's functions, differentiable again.
    - ``plain(x, dim, total=)`` is the op with its sums taken by ``total``: for mutants.
    - ``forward``, ``backward``: flop and exponentials an element.
    """

    formula: str
    source: str
    function: Callable[[Tensor, int], Tensor]
    aten: str
    gradient: Callable[[Tensor, Tensor, int], Tensor]
    plain: Callable[..., Tensor]
    bound: Callable[..., tuple[Tensor, ...]]
    gradient_bound: Callable[..., dict[str, Tensor]]
    forward: tuple[float, float]
    backward: tuple[float, float]

    @property
    def arguments(self) -> Arguments:
        return ARGUMENTS

    def case_of(self, sizes: tuple[int, ...], dtype: torch.dtype, word: str = "") -> Case | None:
        """A case of any sizes: rows and their elements, or what lies outside, along and inside lines; None of
        others."""
        if word or len(sizes) not in (2, 3):
            return None
        return _down(sizes, 1, dtypes=(dtype,)) if len(sizes) == 3 else next(sized_cases(_make, (sizes,), (dtype,)))

    # ------------------------------------------------------------ the contract

    @functools.cached_property
    def contract(self) -> Contract:
        return Contract(
            name=self.name, family=self.folder.parent.name, formula=self.formula, source=self.source,
            outputs=("output",), differentiable=("x",), check=check_of(ARGUMENTS), reference=self.reference,
            bound=self.bound, gradient_bound=self.gradient_bound, cost=self.cost, dims=_dims, cases=CASES,
            bench_cases=tuple(sized_cases(_make, (*BENCH, (384, 128, (torch.float32,))))), device_cases=DEVICE_CASES,
            device_bench_cases=tuple(sized_cases(_make, DEVICE_BENCH, (torch.bfloat16,))), errors=errors_of(ARGUMENTS),
        )  # fmt: skip

    def reference(self, x: Tensor, dim: int) -> tuple[Tensor, ...]:
        return (self.function(x, dim),)

    def cost(self, request: Request) -> Cost:
        backward = request.pass_ == "backward"
        flop, exponentials = self.backward if backward else self.forward
        x = request.args["output" if backward else "x"]
        return Cost(flop * x.numel, exponentials * x.numel, (1 + backward) * x.nbytes, x.nbytes)

    def _mutants(self) -> tuple[Mutant, ...]:
        """What any op of this op template gets wrong."""

        def plain(x: Tensor, dim: int, **changed: Any) -> Tensor:
            return self.plain(x.float(), dim, **changed).to(x.dtype) if x.numel() else torch.empty_like(x)

        return (
            *generic(self.reference, ("x",), ("x", "dim")),
            *sum_mutants(plain),
            Mutant("first dimension", lambda x, dim: plain(x, 0), "always along the first dimension"),
            Mutant("last dimension", lambda x, dim: plain(x, -1), "always along the last dimension"),
        )

    # ------------------------------------------------------------ the op

    def op(self, contract: Contract, *, mutants: Sequence[Mutant] = ()) -> Op:
        """The op; ``mutants`` are the op package's own."""
        folder, name = self.folder, self.name
        exact = functools.partial(self._torch_backward, compute=torch.float64)
        op = Op(
            contract,
            [
                triton_kernel(folder),
                *cpp_kernels(folder, forward=self._forward, backward=self._backward, targets=TARGETS, bound=True),
                python_kernel("torch", self._torch, self._torch_backward),
                python_kernel("reference", in_float64(self.reference), exact),
            ],
            op_package=self.op_package,
            forward=Pass(
                f"{name}({schema_of(ARGUMENTS)}, str? op_kernel=None) -> Tensor", lambda x, dim: x.new_empty(x.shape)
            ),
            backward=Pass(
                f"{name}_backward(Tensor grad_output, Tensor output, int dim, str? op_kernel=None) -> Tensor",
                lambda grad, output, dim: output.new_empty(output.shape),
                returns=("x",),
            ),
            composite=lambda x, dim: self.function(x, dim),
            aten=lambda x, dim: aten(self.aten, x, dim),
            passthrough=Passthrough("function(x, dim)", ("x",), ("dim.__class__ is int",), {"function": self.function}),
            mutants=(*self._mutants(), *mutants),
        )
        op.template = self
        return op

    def template_parts(self, op: Op) -> dict[str, str]:
        """What this op template alone makes (``description.py`` tells the rest)."""
        kernels = ", ".join(f"{target}: {source}" for target, source in TARGETS.items())
        return {"torch's operators": f"{self.aten}(x, dim)", "kernels": f"{kernels}, triton: tile/lines.py"}

    def torch_signature(self, op: Op, function: Callable[..., Any]) -> TorchSignature:
        """torch's signature, of a function with the arguments that ``F.softmax`` has."""
        return TorchSignature(op, function, _ours, {"input": "x"})

    def _forward(self, library: Any) -> Callable[..., Tensor]:
        kernel = getattr(library, self.name)

        def forward(x: Tensor, dim: int, out: Tensor | None = None) -> Tensor:
            output = torch.empty(x.shape, dtype=x.dtype) if out is None else out
            dim = _counted(dim, x.dim())
            run, threads = choose_threads(kernel, x.numel())
            run(output, _laid_out(x, dim), dim, threads)
            return output

        return forward

    def _backward(self, library: Any) -> Callable[..., Tensor]:
        kernel = getattr(library, f"{self.name}_backward")

        def backward(grad: Tensor, output: Tensor, dim: int, out: Any = None) -> Tensor:
            grad_x = torch.empty(output.shape, dtype=output.dtype) if out is None else out
            dim = _counted(dim, output.dim())
            run, threads = choose_threads(kernel, output.numel())
            run(grad_x, _laid_out(grad, dim), _laid_out(output, dim), dim, threads)
            return grad_x

        return backward

    def _torch(self, x: Tensor, dim: int, out: Tensor | None = None) -> Any:
        return into(self.function(x, dim), out)

    def _torch_backward(
        self, grad: Tensor, output: Tensor, dim: int, out: Any = None, compute: torch.dtype = torch.float32
    ) -> Tensor:
        return self.gradient(grad.to(compute), output.to(compute), dim).to(output.dtype)


def _dims(request: Request) -> dict[str, int]:
    x = request.args["output" if request.pass_ == "backward" else "x"]
    n = x.shape[request.args["dim"]]
    return {"M": x.numel // max(n, 1), "N": n}


def _ours(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> tuple[Any, ...] | str:
    if dim is None:
        return "dim is for torch to guess"
    if dtype is not None and dtype != input.dtype:
        return "dtype asks for another result than the input's"
    return input, dim
