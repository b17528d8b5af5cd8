"""The pairwise template: sums over all pairs of points, ``output[i] = sum_j k(|x_i - y_j| / l) v[j]``, K never stored.

An op package says in ``contract.py`` what only it knows (``Pairwise``): k, its slope, and how torch's users form K. Its
``pairwise.cpp`` and ``triton.py`` say k and the slope again, of the squared distance. What follows is made here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kernelworks.build.kernels import cpp_kernels, table_triton_kernel, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract import UNIT_ROUNDOFF, Contract, Cost, Kernel, Mutant, Request, rounding
from kernelworks.contract.arguments import check_of, errors_of, schema_of
from kernelworks.contract.tensors import is_transform_active
from kernelworks.dispatch.op import Op, Pass
from kernelworks.machine.memory import available_bytes
from kernelworks.templates.op_package import OpPackage
from kernelworks.templates.pairwise_arguments import ARGUMENTS, BENCH_CASES, CASES, DEVICE_BENCH_CASES, DEVICE_CASES
from kernelworks.templates.pairwise_mutants import mutants_of, squared_distances
from kernelworks.templates.torch_kernels import python_kernels

__all__ = ["Pairwise", "PairwiseEntry", "length_scale_of", "rows_in_parts"]

U32 = UNIT_ROUNDOFF[torch.float32]
SMALLEST = 2.0**-149  # of float32's subnormals
PART = 256  # columns whose sum is float32 (simd/pairwise.hpp)
PARTS = 2048  # columns after which a GPU's sum meets those before it
TARGETS = {"avx512": "pairwise.cpp", "avx2": "pairwise.cpp", "scalar": "pairwise.cpp"}
RETURNS = ("x", "y", "v", "length_scale")

Function = Callable[[Tensor], Tensor]

# ---------------------------------------------------------------- arguments


def length_scale_of(length_scale: Any, x: Any) -> Any:
    """A length scale as the op takes it: a tensor of one element. A number, or a tensor of integers, as float32."""
    if isinstance(length_scale, Tensor):
        whole = not (length_scale.is_floating_point() or length_scale.is_complex() or length_scale.dtype == torch.bool)
        return length_scale.float() if whole else length_scale
    if isinstance(length_scale, np.generic) and length_scale.dtype.kind in "fiu":
        length_scale = length_scale.item()
    if isinstance(length_scale, np.ndarray) and length_scale.dtype.kind in "iu":
        return length_scale.astype(np.float32)
    if isinstance(length_scale, bool) or not isinstance(length_scale, (int, float)):
        return length_scale
    if not 0.0 < length_scale < float("inf"):
        raise ValueError(f"length_scale must be positive and finite, got {length_scale}")
    if isinstance(x, np.ndarray):  # an array among arrays, so that an array comes back
        return np.asarray(length_scale, dtype=np.float32)
    return torch.full((), length_scale, dtype=torch.float32, device=x.device if isinstance(x, Tensor) else "cpu")


def _plain(t: Tensor) -> Tensor:
    """What C++ takes: contiguous float32."""
    return t if t.dtype == torch.float32 and t.is_contiguous() else t.to(torch.float32).contiguous()


# ---------------------------------------------------------------- memory


FORWARD_COPIES, BACKWARD_COPIES = 3, 6  # of K, that torch's functions hold at once
ALWAYS = 2**26  # bytes, for which nobody is asked


def _free_bytes(device: str) -> int:
    if device != "cuda" or not torch.cuda.is_available():
        return available_bytes()
    cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return int(torch.cuda.mem_get_info()[0]) + cached


def _decline_large(request: Request) -> str | None:
    """Why torch's functions should not form K of a request; None if it fits the memory that is free."""
    rows, columns = request.args["x"].shape[0], request.args["y"].shape[0]
    if not (isinstance(rows, int) and isinstance(columns, int)):
        return None
    copies = FORWARD_COPIES if request.pass_ == "forward" else BACKWARD_COPIES
    needed = copies * 4 * rows * columns
    free = 0 if needed <= ALWAYS else _free_bytes(request.device)
    if needed <= max(ALWAYS, free):
        return None
    return (
        f"K of {rows} x {columns} would be stored: {needed / 1e9:.3g} GB with what its functions make of it, and "
        f"{free / 1e9:.3g} GB are free"
    )


def _rows_that_fit(x: Tensor, y: Tensor) -> int:
    """How many rows of K torch's functions may hold."""
    rows, columns = x.shape[0], y.shape[0]
    each = BACKWARD_COPIES * 4 * max(columns, 1)
    if torch.compiler.is_compiling() or is_transform_active() or rows * each <= ALWAYS:
        return rows
    return max(1, min(rows, _free_bytes(x.device.type) // (2 * each)))


def rows_in_parts(of_rows: Callable[..., Tensor], x: Tensor, *rest: Tensor) -> Tensor:
    """``of_rows(x, *rest)``, by parts of the rows where K (of x and the first of the rest) would not fit the memory
    that is free."""
    rows = _rows_that_fit(x, rest[0])
    if rows >= x.shape[0]:
        return of_rows(x, *rest)
    parts = (x[first : first + rows] for first in range(0, x.shape[0], rows))
    if not torch.is_grad_enabled() or not any(t.requires_grad for t in (x, *rest)):
        return torch.cat([of_rows(part, *rest) for part in parts])
    again = functools.partial(checkpoint, of_rows, use_reentrant=False)  # K is made again, not kept
    return torch.cat([again(part, *rest) for part in parts])


# ---------------------------------------------------------------- the template


@dataclass(frozen=True, kw_only=True)
class Pairwise(OpPackage):
    """What only the op package knows of its kernel function.

    All functions but one take s, the squared distance over the squared length scale: ``value`` gives k, ``slope``
    ``-2 dk/ds``, which is not negative, ``slope_change`` the size of ``s d slope / ds``, and ``roundings`` how many k
    and the slope meet beside those of s. ``matrix(x, y, length_scale)`` is K as torch's users write it, in float32.
    """

    formula: str
    source: str
    value: Function
    slope: Function
    slope_change: Function
    matrix: Callable[[Tensor, Tensor, Tensor], Tensor]
    roundings: Function = lambda s: torch.full_like(s, 4.0)

    arguments = ARGUMENTS

    @functools.cached_property
    def contract(self) -> Contract:
        """The contract; an op package that says a part itself takes ``dataclasses.replace`` of it."""
        return Contract(
            name=self.name, family=self.folder.parent.name, formula=self.formula, source=self.source,
            outputs=("output",), differentiable=RETURNS, check=check_of(ARGUMENTS), reference=self._reference,
            bound=self._bound, gradient_bound=self._gradient_bound, cost=_cost, dims=_dims,
            bucket=lambda request: {name: size for name, size in _dims(request).items() if name in "DE" and size < 8},
            cases=CASES, device_cases=DEVICE_CASES, bench_cases=BENCH_CASES, device_bench_cases=DEVICE_BENCH_CASES,
            errors=errors_of(ARGUMENTS),
            pieces={
                "output": ("x",), "gradient of x": ("x", "grad_output"), "gradient of y": ("y", "v"),
                "gradient of v": ("y", "v"),
            },
        )  # fmt: skip

    def _reference(self, x: Tensor, y: Tensor, v: Tensor, length_scale: Tensor) -> tuple[Tensor, ...]:
        return (self.value(squared_distances(x, y, length_scale)) @ v,)

    # ------------------------------------------------------------ bounds

    def _errors(self, x: Tensor, y: Tensor, length_scale: Tensor) -> tuple[Tensor, ...]:
        """s; k and how far it may be off; the slope and how far that may be off.

        A squared distance meets D + 3 roundings (differences twice, for they are squared; squares; sums), its factor
        and the product 3, and a root that is taken of it on the way 2. The rest is the function's own.
        """
        s = squared_distances(x, y, length_scale)
        k, slope = self.value(s), self.slope(s)
        turns = (x.shape[1] + 8) * U32
        own = U32 * self.roundings(s)
        off = torch.nan_to_num(turns * 0.5 * slope * s + own * k, 0.0) + SMALLEST
        return s, k, off, slope, torch.nan_to_num(turns * self.slope_change(s) + own * slope, 0.0) + SMALLEST

    def _bound(self, args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        _, k, off, _, _ = self._errors(args["x"], args["y"], args["length_scale"])
        inside = _summed(off, k, args["v"])
        return (rounding(outputs[0], dtype) + (1 + UNIT_ROUNDOFF[dtype]) * inside,)

    def _gradient_bound(
        self, args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype,
        given: dict[str, Any],
    ) -> dict[str, Tensor]:  # fmt: skip
        x, y, v = (args[name] for name in "xyv")
        grad, unit = grads[0], args["length_scale"].abs().reshape(())
        inverse = 1.0 / unit.square()
        s, k, off, slope, slope_off = self._errors(x, y, unit)
        flow, most = (grad @ v.T).abs(), grad.abs() @ v.abs().T
        # u = (grad . v) slope, and how far it is off with the products that follow it.
        u = flow * slope
        u_off = (v.shape[1] + 1) * U32 * most * slope + flow * slope_off + 2 * U32 * u + SMALLEST * (1 + most)
        inside = {"v": _summed(off.T, k.T, grad)}
        for name, dim, terms in (("x", 1, y.shape[0]), ("y", 0, x.shape[0])):
            columns = []
            for d in range(x.shape[1]):
                apart = (x[:, d, None] - y[None, :, d]).abs() * inverse
                columns.append((((u_off + _chain(terms) * U32 * u) * apart).sum(dim)) + terms * SMALLEST / unit)
            inside[name] = torch.stack(columns, 1)
        stretch = (u_off + (_chain(y.shape[0]) + x.shape[1] + 4) * U32 * u) * s
        inside["length_scale"] = (torch.nan_to_num(stretch, 0.0).sum() / unit).reshape(args["length_scale"].shape)
        bounds = {}
        for name, found in gradients.items():  # each is rounded to its argument's dtype
            own = given[name].dtype
            bounds[name] = rounding(found, own) + (1 + UNIT_ROUNDOFF[own]) * inside[name]
        return bounds

    # ------------------------------------------------------------ torch

    def composite(self, x: Tensor, y: Tensor, v: Tensor, length_scale: Tensor) -> Tensor:
        """The op in torch's functions, all of which have derivatives of any order."""
        wide = (t.to(torch.float32) if t.dtype.itemsize < 4 else t for t in (x, y, v, length_scale))
        return self._reference(*wide)[0].to(v.dtype)

    def native(self, x: Tensor, y: Tensor, v: Tensor, length_scale: Tensor) -> Tensor:
        """As torch's users write it; by parts of the rows where K would not fit the memory that is free."""
        return rows_in_parts(self._rows_of_output, x, y, v, length_scale)

    def _rows_of_output(self, x: Tensor, y: Tensor, v: Tensor, length_scale: Tensor) -> Tensor:
        wide = [t.to(torch.float32) if t.dtype.itemsize < 4 else t for t in (x, y, v, length_scale)]
        return (self.matrix(wide[0], wide[1], wide[3].reshape(())) @ wide[2]).to(v.dtype)

    # ------------------------------------------------------------ the op

    def op(self, contract: Contract, *, mutants: Sequence[Mutant] = ()) -> Op:
        """The op; ``mutants`` are the op package's own."""
        forward, backward = self.passes()
        kernels = [
            *self._kernels(),
            *python_kernels(contract, forward, backward, self.native, lambda: op, guard=_decline_large),
        ]
        op = Op(
            contract, kernels, op_package=self.op_package, forward=forward, backward=backward,
            composite=self.composite, native=self.native, mutants=(*mutants_of(self), *mutants),
        )  # fmt: skip
        op.template = self
        return op

    def passes(self) -> tuple[Pass, Pass]:
        """Both directions as torch knows them."""
        arguments = schema_of(ARGUMENTS)
        return (
            Pass(
                f"{self.name}({arguments}, str? op_kernel=None) -> Tensor",
                lambda x, y, v, length_scale: v.new_empty((x.shape[0], v.shape[1])),
            ),
            Pass(
                f"{self.name}_backward(Tensor grad_output, {arguments}, bool[] needs, str? op_kernel=None) "
                "-> (Tensor, Tensor, Tensor, Tensor)",
                lambda grad, x, y, v, length_scale, needs: _gradients_like((x, y, v, length_scale), needs),
                returns=RETURNS,
                reads={"v": ("x", "y", "length_scale")},
            ),
        )

    def _kernels(self) -> list[Kernel]:
        found = [triton_kernel(self.folder)] if (self.folder / "triton.py").exists() else []
        return found + cpp_kernels(
            self.folder, forward=self._forward, backward=self._backward, targets=TARGETS, bound=True
        )

    def _forward(self, library: Any) -> Callable[..., Tensor]:
        kernel = getattr(library, self.name)

        def forward(x: Tensor, y: Tensor, v: Tensor, length_scale: Tensor, out: Tensor | None = None) -> Tensor:
            output = v.new_empty(x.shape[0], v.shape[1]) if out is None else out
            return _sums(kernel, output, x, y, v, length_scale)

        return forward

    def _backward(self, library: Any) -> Callable[..., tuple[Tensor, ...]]:
        kernel, gradient = getattr(library, self.name), getattr(library, f"{self.name}_gradient")

        def backward(
            grad: Tensor, x: Tensor, y: Tensor, v: Tensor, length_scale: Tensor, needs: list[bool], out: Any = None
        ) -> tuple[Tensor, ...]:
            made = _gradients_like((x, y, v, length_scale), needs) if out is None else tuple(out)
            # K of (y, x) is K of (x, y) transposed: columns take their gradients as rows do, by other names.
            if needs[0] or needs[3]:
                stretch = torch.zeros(x.shape[0], dtype=torch.float64) if needs[3] else None
                _slopes(gradient, made[0] if needs[0] else None, stretch, x, y, grad, v, length_scale)
                if stretch is not None:
                    made[3].copy_(stretch.sum().reshape(length_scale.shape))
            if needs[1]:
                _slopes(gradient, made[1], None, y, x, v, grad, length_scale)
            if needs[2]:
                _sums(kernel, made[2], y, x, grad, length_scale)
            return made

        return backward


@dataclass(frozen=True, kw_only=True)
class PairwiseEntry(Pairwise):
    """An op that is an entry of a table: its ``pairwise.cpp`` and ``triton.py`` say all entries' k, each by the name of
    its op."""

    op_name: str
    own_mutants: Sequence[Mutant] = ()

    @property
    def name(self) -> str:
        return self.op_name

    def op(self, contract: Contract | None = None, *, mutants: Sequence[Mutant] = ()) -> Op:
        """The op of the entry's own contract, with its own mutants."""
        return super().op(contract or self.contract, mutants=(*mutants, *self.own_mutants))

    def _kernels(self) -> list[Kernel]:
        cpp = cpp_kernels(self.folder, forward=self._forward, backward=self._backward, targets=TARGETS, bound=True)
        return [table_triton_kernel(self.folder, self.name), *cpp]


def _gradients_like(inputs: tuple[Tensor, ...], needs: Sequence[bool]) -> tuple[Tensor, ...]:
    return tuple(t.new_empty(t.shape if want else 0) for t, want in zip(inputs, needs, strict=True))


def _nanoseconds(a: Tensor, b: Tensor) -> float:
    """About what one thread needs for all pairs."""
    return a.shape[0] * b.shape[0] * (0.5 + 0.1 * a.shape[1])


def _sums(kernel: Any, output: Tensor, a: Tensor, b: Tensor, weights: Tensor, length_scale: Tensor) -> Tensor:
    """The sums of weights over the columns b, for each row of a, into ``output``."""
    if not output.numel() or not weights.numel():
        return output.zero_()
    to = output if output.dtype == torch.float32 and output.is_contiguous() else torch.empty(output.shape)
    run, threads = choose_threads(kernel, _nanoseconds(a, b))
    run(to, _plain(a), _plain(b), _plain(weights), _plain(length_scale), threads)
    return to if to is output else output.copy_(to)


def _slopes(
    kernel: Any, output: Tensor | None, stretch: Tensor | None, a: Tensor, b: Tensor, flows: Tensor, weights: Tensor,
    length_scale: Tensor,
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
    run(to, stretch, _plain(a), _plain(b), _plain(flows), _plain(weights), _plain(length_scale), threads)
    if output is not None and to is not None and to is not output:
        output.copy_(to)


# ---------------------------------------------------------------- bounds and cost


def _chain(terms: int) -> float:
    """The most roundings that one term of a sum of so many meets, whichever kernel adds them up."""
    return min(terms, PART) + terms / PARTS + 1


def _summed(off: Tensor, k: Tensor, weights: Tensor) -> Tensor:
    """How far off sums of weights are, with k off by ``off``."""
    terms = k.shape[1]
    n = _chain(terms)
    magnitude = weights.abs()
    return off @ magnitude + n * U32 / (1 - n * U32) * (k @ magnitude) + terms * SMALLEST


def _dims(request: Request) -> dict[str, int]:
    x, y, v = (request.args[name] for name in ("x", "y", "v"))
    return {"N": x.shape[0], "M": y.shape[0], "D": x.shape[1], "E": v.shape[1]}


def _cost(request: Request) -> Cost:
    d = _dims(request)
    pairs = d["N"] * d["M"]
    x, y, v = (request.args[name] for name in ("x", "y", "v"))
    read = x.nbytes + y.nbytes + v.nbytes
    output = d["N"] * d["E"] * v.dtype.itemsize
    if request.pass_ == "backward":  # both sums of differences, the flow of a pair, what v is given
        return Cost(pairs * (7.0 * d["D"] + 4.0 * d["E"] + 6.0), float(pairs), read + output, read)
    return Cost(pairs * (3.0 * d["D"] + 2.0 * d["E"] + 1.0), float(pairs), read, output)
