"""The gather template: elements picked along a dimension by an index, and elements added where an index says.

``gather(x, dim, index)`` and ``scatter_add(x, dim, index, src)`` are each other's gradients, and so are the same of
whole rows, ``index_select`` and ``index_add``. An entry of the op package's table says which of the two it is, and
whether the index is one of rows (``AlongIndex``). the op package's ``along_index.hpp`` and ``triton.py`` know the
two functions; what follows from that is made here, mutants are the op package's.

On a CPU each index is looked at before anything is written. On a GPU nothing waits for it: an index that is none
becomes NaN, or adds nothing, and the next call raises.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.build.kernels import cpp_kernels, in_float64, into, python_kernel, table_triton_kernel
from kernelworks.build.sharing import choose_threads, torch_on_one_thread_if_forked
from kernelworks.contract import UNIT_ROUNDOFF, Case, Contract, Cost, Kernel, Mutant, Request, rounding
from kernelworks.contract.arguments import Arguments, Dim, Error, Number, check_of, errors_of, schema_of
from kernelworks.contract.cases import SMOOTH, VALUES, draw
from kernelworks.contract.index_argument import IndexAlong, SourceAlong, picked_shape
from kernelworks.contract.limits import IndicesOf
from kernelworks.contract.results import Result
from kernelworks.contract.tensor_argument import T
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import TorchSignature
from kernelworks.templates.op_package import OpPackage

__all__ = ["AlongIndex", "check_index"]

U32 = UNIT_ROUNDOFF[torch.float32]
TARGETS = dict.fromkeys(("avx512", "avx2", "scalar"), "simd.cpp")


def check_index(index: Tensor, size: int, dim: int, position: int) -> None:
    """Raises IndexError for the index at a position of those in order; -1 for none."""
    if position >= 0:
        found = index.reshape(-1)[position].item()
        raise IndexError(f"index must be in [0, {size}), x's dimension {dim}; got {found} at position {position}")


def _first_outside(index: Tensor, size: int) -> int:
    flat = index.reshape(-1)
    outside = (flat < 0) | (flat >= size)
    return int(outside.nonzero()[0]) if bool(outside.any()) else -1


@dataclass(frozen=True, kw_only=True)
class AlongIndex(OpPackage):
    """What only an entry knows: the op's name, whether elements are added (``adds``), whether the index is one of whole
    ``rows``, how torch calls what is added (``source``), and what makes its
    ``mutants``. ``op_package`` is the op package's ``__file__``;
    ``name`` is
    that of torch's function."""

    op_name: str
    adds: bool
    rows: bool
    mutants: Callable[[AlongIndex], tuple[Mutant, ...]]
    source: str = ""

    @functools.cached_property
    def name(self) -> str:
        return self.op_name

    @property
    def function(self) -> Callable[..., Any]:
        """torch's."""
        found: Callable[..., Any] = getattr(torch, self.name)
        return found

    @functools.cached_property
    def arguments(self) -> Arguments:
        arguments: dict[str, Any] = {"x": T("..."), "dim": Dim("x", scalar=True)}
        arguments["index"] = IndexAlong("x", "dim", self.rows)
        if self.adds:
            arguments[self.source] = SourceAlong("x", "dim", "index", self.rows)
        if self.adds and self.rows:
            arguments["alpha"] = Number(least=None, finite=True)
        return arguments

    def _named(self, *args: Any) -> dict[str, Any]:
        return dict(zip(self.arguments, args, strict=True))

    # ------------------------------------------------------------ the contract

    @functools.cached_property
    def contract(self) -> Contract:
        """The contract; an op package that says a part itself takes ``dataclasses.replace`` of it."""
        place = "index[i]" if self.rows else "index[..., i, ...]"
        said = f"[..., {place}, ...]"
        formula = f"output[..., i, ...] = x{said}"
        if self.adds:
            formula = f"output = x; output{said} += {'alpha ' * self.rows}{self.source}[..., i, ...] for each i in turn"
        return Contract(
            name=self.name, family=self.folder.parent.name, formula=formula, source=f"torch.{self.name}",
            outputs=("output",), results={"output": Result(shape=self._shape)},
            differentiable=("x", self.source) if self.adds else ("x",), check=check_of(self.arguments),
            reference=self.reference, bound=self._bound, gradient_bound=self._gradient_bound, cost=self._cost,
            dims=self._dims, bucket=lambda request: {"last": self._is_last(request)},
            cases=tuple(cases_of(self)), bench_cases=tuple(timed_cases(self, torch.float32)),
            device_cases=tuple(device_cases(self)), device_bench_cases=tuple(timed_cases(self, torch.bfloat16, 16)),
            errors=(*errors_of(self.arguments), *index_errors(self)), limits={"index": IndicesOf("x", "dim")},
        )  # fmt: skip

    def _shape(self, args: Mapping[str, Any]) -> tuple[int, ...]:
        if self.adds:
            return tuple(args["x"].shape)
        return picked_shape(args["x"], args["dim"], args["index"], self.rows)

    def _run(self, args: Mapping[str, Any]) -> Tensor:
        """torch's function. On a GPU its deterministic forms refuse tensors of no dimension, which are lines of one."""
        if not self.rows and args["x"].dim() == 0:
            flat = {name: v.reshape(-1) for name, v in args.items() if isinstance(v, Tensor)}
            return self._run({**args, **flat}).reshape(args["x"].shape if self.adds else args["index"].shape)
        given = [args["x"], args["dim"], args["index"].long()]
        if self.adds:
            given.append(args[self.source])
        made: Tensor = self.function(*given, **({"alpha": args["alpha"]} if "alpha" in args else {}))
        return made

    def reference(self, *args: Any, **named: Any) -> tuple[Tensor, ...]:
        return (self._run(dict(zip(self.arguments, args, strict=False)) | named),)

    def _bound(self, args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        if not self.adds:  # an element itself
            return (torch.zeros(outputs[0].shape, dtype=torch.float64, device=outputs[0].device),)
        source, ones = args[self.source], torch.ones_like(args[self.source])
        alpha = args.get("alpha", 1.0)
        scaled = {"alpha": abs(alpha)} if self.rows else {}
        terms = self._run(args | {"x": args["x"].abs(), self.source: source.abs()} | scaled)
        counted = {"x": torch.zeros_like(args["x"]), self.source: ones} | ({"alpha": 1.0} if self.rows else {})
        count = self._run(args | counted)
        return (_added(outputs[0], count + 2.0 * (alpha != 1.0), count, terms, dtype),)

    def _gradient_bound(
        self, args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
    ) -> dict[str, Tensor]:
        if self.adds:
            none = {name: torch.zeros_like(g) for name, g in gradients.items()}
            if args.get("alpha", 1.0) != 1.0 and self.source in gradients:
                g = gradients[self.source]
                none[self.source] = rounding(g, dtype) + 2.1 * U32 * g.abs()
            return none
        flow, x, index = grads[0], torch.zeros_like(args["x"]), args["index"].long()
        if not self.rows and x.dim() == 0:
            flow, x, index = flow.reshape(-1), x.reshape(-1), index.reshape(-1)
        add = torch.index_add if self.rows else torch.scatter_add
        terms = add(x, args["dim"], index, flow.abs()).reshape(args["x"].shape)
        count = add(x, args["dim"], index, torch.ones_like(flow)).reshape(args["x"].shape)
        return {"x": _added(gradients["x"], count - 1.0, count, terms, dtype)}

    def _cost(self, request: Request) -> Cost:
        x, index = request.args["x"], request.args["index"]
        size = x.dtype.itemsize
        picked = math.prod(picked_shape(x, request.args["dim"], index, self.rows))
        if not self.adds and request.pass_ == "backward":
            return Cost(float(picked), 0.0, picked * size + index.nbytes, x.nbytes)
        if not self.adds:
            return Cost(0.0, 0.0, picked * size + index.nbytes, picked * size)
        if request.pass_ == "backward":
            return Cost(0.0, 0.0, x.nbytes + index.nbytes, x.nbytes + picked * size)
        return Cost(float(picked), 0.0, x.nbytes + picked * size + index.nbytes, x.nbytes)

    def _dims(self, request: Request) -> dict[str, int]:
        """How long the dimension is, how many indices along it there are, and what else there is."""
        x, index, dim = (request.args[name] for name in ("x", "index", "dim"))
        shape = tuple(x.shape) or (1,)
        picked = picked_shape(x, dim, index, self.rows) or (1,)
        n, m = shape[dim], picked[dim]
        return {"N": n, "M": m, "D": math.prod(picked) // max(1, m)}

    def _is_last(self, request: Request) -> bool:
        return bool(
            request.args["dim"] % max(1, len(request.args["x"].shape)) == max(1, len(request.args["x"].shape)) - 1
        )

    # ------------------------------------------------------------ the op

    def op(self) -> Op:
        made = schema_of(self.arguments)
        forward = Pass(
            f"{self.name}({made}, str? op_kernel=None) -> Tensor",
            lambda *args: args[0].new_empty(self._shape(self._named(*args))),
        )
        op: Op = Op(
            self.contract, self._kernels(), op_package=self.op_package, forward=forward, backward=self._backward_pass(),
            composite=lambda *args, **named: self._run(dict(zip(self.arguments, args, strict=False)) | named),
            mutants=self.mutants(self),
        )  # fmt: skip
        op.template = self
        reason = "" if self.adds else "torch already reads what an index names at the rate of memory"
        TorchSignature(op, self.function, self._ours(), {"input": "x"}, no_swap_reason=reason)
        return op

    def _backward_pass(self) -> Pass:
        if not self.adds:
            return Pass(
                f"{self.name}_backward(Tensor grad_output, Tensor x, int dim, Tensor index, str? op_kernel=None) "
                "-> Tensor",
                lambda grad, x, dim, index: x.new_empty(x.shape),
                returns=("x",),
                reads={"x": ("grad_output", "index")},
            )
        alpha = ", float alpha" * self.rows

        def fake(grad: Tensor, dim: int, index: Tensor, source: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
            needs = rest[-1]
            return grad.new_empty(grad.shape if needs[0] else 0), grad.new_empty(source.shape if needs[1] else 0)

        return Pass(
            f"{self.name}_backward(Tensor grad_output, int dim, Tensor index, Tensor {self.source}{alpha}, "
            "bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
            fake,
            returns=("x", self.source),
            reads={"x": ("grad_output",), self.source: ("grad_output", "index")},
        )

    def template_parts(self, op: Op) -> dict[str, str]:
        """What this op template alone makes (``description.py`` tells the rest)."""
        gradient = "what flows in where the index says" if self.adds else "what flows in, added where the index says"
        return {
            "gradient": gradient,
            "kernels": "scalar, avx2, avx512: along_index.hpp, triton: its triton.py",
        }

    def _ours(self) -> Callable[..., tuple[Any, ...] | str]:
        """A function with the signature of torch's."""

        def gather(input: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> tuple[Any, ...] | str:
            return "sparse_grad asks for another gradient" if sparse_grad else (input, dim, index)

        def index_select(input: Any, dim: int, index: Any) -> tuple[Any, ...] | str:
            return input, dim, index

        def scatter_add(input: Any, dim: int, index: Any, src: Any) -> tuple[Any, ...] | str:
            return input, dim, index, src

        def index_add(input: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> tuple[Any, ...] | str:
            return input, dim, index, source, alpha

        known = {f.__name__: f for f in (gather, index_select, scatter_add, index_add)}
        return known[self.name]

    # ------------------------------------------------------------ launches

    def _kernels(self) -> list[Kernel]:
        def torchs(*args: Any, out: Any = None) -> Any:
            check_index(args[2], _size(args[0], args[1]), args[1], _first_outside(args[2], _size(args[0], args[1])))
            return into(self._run(self._named(*args)), out)

        exact = in_float64(self.reference)

        def reference(*args: Any, out: Any = None) -> Any:
            check_index(args[2], _size(args[0], args[1]), args[1], _first_outside(args[2], _size(args[0], args[1])))
            return exact(*args, out=out)

        back = self._torch_backward
        return [
            table_triton_kernel(self.folder, self.name),
            *cpp_kernels(self.folder, forward=self._forward, backward=self._backward, targets=TARGETS),
            python_kernel("torch", torchs, functools.partial(back, None)),
            python_kernel("reference", reference, functools.partial(back, torch.float64)),
        ]

    def _torch_backward(self, compute: torch.dtype | None, grad: Tensor, *args: Any, out: Any = None) -> Any:
        """In torch's own functions, which are differentiable again; sums of 16 bits in float32."""
        if not self.adds:
            x, dim, index = args
            wide = compute or (torch.float32 if grad.dtype.itemsize == 2 else grad.dtype)
            add = torch.index_add if self.rows else torch.scatter_add
            made = add(torch.zeros(x.shape, dtype=wide, device=grad.device), dim, index.long(), grad.to(wide))
            return into(made.to(grad.dtype), out)
        dim, index, _, *alpha, needs = args
        picked = grad.new_empty(0)
        if needs[1]:
            picked = (torch.index_select if self.rows else torch.gather)(grad, dim, index.long())
            if alpha and alpha[0] != 1.0:
                picked = (picked.to(compute or torch.float32) * alpha[0]).to(grad.dtype)
        return into((grad.clone() if needs[0] else grad.new_empty(0), picked), out)

    def _forward(self, lib: Any, *args: Any, out: Any = None) -> Tensor:
        call = self._named(*args)
        x, dim, index = call["x"], call["dim"], call["index"]
        size = _size(x, dim)
        check_index(index, size, dim, lib.first_outside(index.contiguous(), size))
        if not self.adds:
            output: Tensor = x.new_empty(self._shape(call)) if out is None else out
            _pick(lib, output, x, dim, index, self.rows)
            return output
        with torch_on_one_thread_if_forked():
            total = x.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
            _add(lib, total, call[self.source], dim, index, self.rows, call.get("alpha", 1.0))
            made: Tensor = into(total if out is not None else total.to(x.dtype), out)
        return made

    def _backward(self, lib: Any, grad: Tensor, *args: Any, out: Any = None) -> Any:
        if not self.adds:
            x, dim, index = args
            with torch_on_one_thread_if_forked():
                total = torch.zeros(x.shape, dtype=torch.float32)
                _add(lib, total, grad, dim, index, self.rows, 1.0)
                return into(total if out is not None else total.to(grad.dtype), out)
        dim, index, source, *alpha, needs = args
        of_source = grad.new_empty(source.shape if needs[1] else 0)
        if needs[1]:
            _pick(lib, of_source, grad, dim, index, self.rows)
            if alpha and alpha[0] != 1.0:
                of_source = (of_source.float() * alpha[0]).to(grad.dtype)
        return into((grad.clone() if needs[0] else grad.new_empty(0), of_source), out)


def _size(x: Any, dim: int) -> int:
    size: int = x.shape[dim] if x.dim() else 1
    return size


def _added(exact: Tensor, roundings: Tensor, count: Tensor, terms: Tensor, dtype: torch.dtype) -> Tensor:
    """How far sums in float32 may be off that are rounded once; what nothing is added to is exact."""
    inside = 1.01 * U32 * roundings.clamp(min=0.0) * terms
    return torch.where(count > 0, rounding(exact, dtype) + inside, torch.zeros_like(inside))


def _expanded(index: Tensor, dim: int, shape: torch.Size) -> Tensor:
    """An index of rows as one of all elements of the rows."""
    dim %= len(shape)
    return index.reshape((1,) * dim + (-1,) + (1,) * (len(shape) - dim - 1)).expand(shape)


def _pick(lib: Any, output: Tensor, x: Tensor, dim: int, index: Tensor, rows: bool) -> None:
    if not output.numel():
        return
    if not x.dim():
        x, index, output = x.reshape(1), index.reshape(1), output.reshape(1)
    whole = _expanded(index, dim, output.shape) if rows else index
    run, threads = choose_threads(lib.gather, float(output.numel()))
    run(output, x, whole, dim % x.dim(), threads)


def _add(lib: Any, total: Tensor, source: Tensor, dim: int, index: Tensor, rows: bool, alpha: float) -> None:
    if not source.numel():
        return
    if not total.dim():
        total, source, index = total.reshape(1), source.reshape(1), index.reshape(1)
    whole = _expanded(index, dim, source.shape) if rows else index
    run, threads = choose_threads(lib.scatter_add, float(source.numel()))
    run(total, source, whole, dim % total.dim(), float(alpha), threads)


# ---------------------------------------------------------------- cases

ONE, FEW = "one index", "few indices"  # all the same; many times the same ones


def _given(
    entry: AlongIndex, shape: tuple[int, ...], dim: int, count: int, kind: str, generator: Generator, dtype:
    torch.dtype,
    spread: str = "", kept: torch.dtype = torch.int64, shorter: bool = False, alpha: float = 1.0,
) -> dict[str, Any]:  # fmt: skip
    """A call's arguments: ``count`` indices along the dimension, of which ``shorter`` leaves out some lines."""
    x = draw(kind, generator, dtype, *shape)
    size = shape[dim] if shape else 1
    if entry.rows:
        own: tuple[int, ...] = (count,)
    else:
        own = tuple(max(0, n - shorter) for n in shape)
        own = (*own[: dim % len(own)], count, *own[dim % len(own) + 1 :]) if own else ()
    most = {ONE: min(1, size), FEW: min(3, size)}.get(spread, size)
    index = torch.randint(0, max(1, most), own, generator=generator, dtype=kept)
    if index.numel() > 2 and not spread:  # both ends
        index.view(-1)[0], index.view(-1)[-1] = size - 1, 0
    given: dict[str, Any] = {"x": x, "dim": dim, "index": index}
    if entry.adds:
        given[entry.source] = draw(kind, generator, dtype, *picked_shape(x, dim, index, entry.rows))
    if "alpha" in entry.arguments:
        given["alpha"] = alpha
    return given


def _case(
    entry: AlongIndex, shape: tuple[int, ...], dim: int, count: int, kind: str = "normal", text: str = "", **more: Any
) -> Case:
    own = {key: more.pop(key) for key in ("spread", "kept", "shorter", "alpha") if key in more}
    name = f"{kind}, " * (kind != "normal") + f"{count} along dim {dim} of {list(shape)}{text}"
    name += "".join(f", {str(value).removeprefix('torch.')}" for value in own.values())
    return Case(name, lambda g, d: _given(entry, shape, dim, count, kind, g, d, **own), **more)


# Shape, dimension, how many indices, whether layouts are tried.
_SHAPES: tuple[tuple[tuple[int, ...], int, int, bool], ...] = (
    ((5, 7), 0, 3, True), ((5, 7), 1, 9, True), ((5, 7), -2, 6, False), ((3, 17, 6), 1, 20, True), ((9,), 0, 4, True),
    ((4, 1), 0, 7, False), ((1, 33), 0, 2, False), ((2, 3, 4, 65), 2, 5, False), ((2, 3, 4, 65), -1, 130, False),
    ((6, 5, 1), 1, 3, False), ((70, 16), 0, 70, False), ((3, 300), 1, 17, False), ((11, 131), 0, 64, False),
    ((0, 5), 1, 2, False), ((4, 0), 0, 2, False), ((4, 6), 0, 0, False), ((4, 6), 1, 0, False), ((2, 257), 0, 5, False),
)  # fmt: skip


def cases_of(entry: AlongIndex) -> Iterator[Case]:
    for shape, dim, count, layouts in _SHAPES:
        yield _case(entry, shape, dim, count, layouts=layouts)
    if not entry.rows:
        yield _case(entry, (), 0, 1)
        yield _case(entry, (7, 9), 0, 5, shorter=True)
        yield _case(entry, (7, 4, 9), -1, 12, shorter=True)
    for kind in VALUES:
        yield _case(entry, (6, 33), 0, 9, kind, gradients=kind in SMOOTH)
        yield _case(entry, (5, 21), 1, 30, kind, gradients=kind in SMOOTH)
    for shape, dim in (((40, 24), 0), ((3, 50), 1)):
        for spread in (ONE, FEW):
            yield _case(entry, shape, dim, 200, spread=spread)
        yield _case(entry, shape, dim, 19, kept=torch.int32, layouts=True)
    if "alpha" in entry.arguments:
        for alpha in (0.0, -2.0, 0.3):
            yield _case(entry, (8, 19), 0, 21, alpha=alpha)
    yield _case(entry, (1031, 48), 0, 300)
    yield _case(entry, (64, 600), 1, 70, spread=FEW)


_TIMED = (((4096, 1024), 0, 2048), ((256, 8192), 1, 8192))


def timed_cases(entry: AlongIndex, dtype: torch.dtype, times: int = 1) -> Iterator[Case]:
    """What is timed, of a first dimension so many times as long."""
    for (rows, columns), dim, count in _TIMED:
        yield _case(entry, (rows * times, columns), dim, count * (times if dim == 0 else 1), dtypes=(dtype,))


def device_cases(entry: AlongIndex) -> Iterator[Case]:
    yield _case(entry, (5003, 300), 0, 4099)
    yield _case(entry, (203, 4001), 1, 5000, spread=FEW)


# ---------------------------------------------------------------- refused indices


def index_errors(entry: AlongIndex) -> Iterator[Error]:
    for number, (what, value, text) in enumerate((
        ("an index past the end", 4, "index must be in [0, 4), x's dimension 0; got 4 at position 1"),
        ("a negative index", -1, "index must be in [0, 4), x's dimension 0; got -1 at position 1"),
    )):  # fmt: skip
        kept = (torch.int64, torch.int32)[number]

        def call(value: int = value, kept: torch.dtype = kept) -> dict[str, Any]:
            generator = torch.Generator().manual_seed(0)
            given = _given(entry, (4, 3), 0, 5, "normal", generator, torch.float32, kept=kept)
            given["index"].view(-1)[0], given["index"].view(-1)[1] = 0, value
            return given

        yield what, call, IndexError, text
