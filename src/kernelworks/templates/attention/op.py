"""The attention template: ``softmax(scale q k^T) v`` over the keys that a query sees.

An op is a cache (how its keys lie: dense, sequences behind each other, pages), a mask (in words, of pairs, of blocks, a
window) and a precision. Its op package says which arguments that takes and how a call is made of calls of dense
attention (``calls``). The definition, both bounds, cost, dims, the kernels in torch and the passes follow from it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, in_float64, into, python_kernel, with_libraries
from kernelworks.contract import Contract, Cost, Kernel, Mutant, Request, Values
from kernelworks.contract.arguments import Arguments, Error, check_of, errors_of, schema_of
from kernelworks.contract.limits import Limit
from kernelworks.contract.memory_layout import new_output
from kernelworks.contract.results import Result, result_dtype
from kernelworks.dispatch.op import Op, Pass
from kernelworks.templates.attention import bound, reference, torch_kernels
from kernelworks.templates.attention.reference import DenseCall, heads_first, join_parts, tokens_first
from kernelworks.templates.op_package import OpPackage

__all__ = ["Attention", "split_cpp_kernels"]

LSE = "with_lse"  # the argument that asks for the logarithm of the softmax's denominator


@dataclass(frozen=True, kw_only=True)
class Attention(OpPackage):
    """What only the op package knows of an attention.

    ``arguments`` begin with queries, keys and values; ``defaults`` are those of others. ``calls(args)`` makes calls of
    dense attention of a call; of a ``packed`` op, whose queries are tokens [T, H, D], one of each sequence.
    ``torch_calls`` are the same in other words, if torch's own function wants them so. What is ``differentiable``
    belongs to an op that has ``with_lse``, which its backward reads.

    ``count_pairs(args)`` says how many pairs of a query and a key are seen in all heads, as shapes and numbers tell;
    ``values`` counts them where only contents do. ``beside`` names other tensors that a kernel reads; if
    ``skips_unseen``, it reads none where nothing is seen. ``dims(args)`` are the contract's.

    ``cases`` is the op package's module of them. ``check`` says more than ``arguments`` do. ``errors`` are calls beside
    those of single arguments; ``chosen`` makes the right ones right. ``check_values(args)`` raises of contents, on a
    CPU. ``output`` is what the contract promises of it, ``empty_output(*args)`` what it is written to.
    """

    formula: str
    source: str
    arguments: Arguments
    defaults: Mapping[str, Any]
    calls: Callable[[dict[str, Any]], Iterable[DenseCall]]
    torch_calls: Callable[[dict[str, Any]], Iterable[DenseCall]] | None = None
    count_pairs: Callable[[Mapping[str, Any]], int]
    dims: Callable[[Mapping[str, Any]], dict[str, int]]
    cases: ModuleType
    packed: bool = False
    differentiable: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    skips_unseen: bool = False
    check: Callable[..., None] | None = None
    check_values: Callable[..., None] | None = None
    errors: tuple[Error, ...] = ()
    chosen: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Limit] = field(default_factory=dict)
    values: Values | None = None
    switches: tuple[str, ...] = ()
    output: Result = Result()  # noqa: RUF009
    empty_output: Callable[..., Tensor] = lambda q, *rest: new_output(q)

    @functools.cached_property
    def contract(self) -> Contract:
        """The contract; an op package that says a part itself takes ``dataclasses.replace`` of it."""
        lse = LSE in self.arguments
        results = {} if self.output == Result() else {"output": self.output}
        return Contract(
            name=self.name, family=self.folder.parent.name, arithmetic="products", formula=self.formula,
            source=self.source, outputs=("output", "lse") if lse else ("output",),
            results=results | ({"lse": Result(torch.float32, when=LSE)} if lse else {}),
            differentiable=self.differentiable, check=self.check or check_of(self.arguments, self.defaults),
            reference=self.reference, bound=self.bound,
            gradient_bound=self.gradient_bound if self.differentiable else None, cost=self.cost,
            dims=lambda request: self.dims(request.args),
            bucket=lambda request: {"D": request.args[self.tensors[0]].shape[-1]},  # each has kernels of its own
            cases=self.cases.CASES, bench_cases=self.cases.BENCH_CASES, device_cases=self.cases.DEVICE_CASES,
            device_bench_cases=self.cases.DEVICE_BENCH_CASES,
            errors=(*errors_of(self.arguments, **self.chosen), *self.errors), limits=self.limits, values=self.values,
            switches=self.switches,
        )  # fmt: skip

    @functools.cached_property
    def tensors(self) -> tuple[str, str, str]:
        """The names of queries, keys and values."""
        q, k, v, *_ = self.arguments
        return q, k, v

    @functools.cached_property
    def dense_names(self) -> dict[str, str]:
        """Those of dense attention by those of the op, of what gradients flow into."""
        return dict(zip(self.tensors, ("q", "k", "v"), strict=True)) | {"sinks": "sinks"}

    def named_arguments(self, given: Sequence[Any] = (), more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """A call's arguments by name, in order, with defaults where it says nothing. Raises TypeError of too many, too
        few, or others."""
        said = {**self.defaults, **dict(zip(self.arguments, given, strict=False)), **(more or {})}
        if said.keys() != self.arguments.keys() or len(given) > len(self.arguments):
            amiss = ", ".join(sorted(said.keys() ^ self.arguments.keys())) or f"{len(given)} by position"
            raise TypeError(f"{self.name} takes {', '.join(self.arguments)}; missing or too many: {amiss}")
        return {name: said[name] for name in self.arguments}

    def join(self, parts: Sequence[tuple[Tensor, ...]], queries: Tensor, lse: torch.dtype | None) -> tuple[Tensor, ...]:
        """The op's outputs of those of its dense calls; ``lse`` is the dtype of the second, if there is one."""
        return join_parts(parts, queries, lse) if self.packed else parts[0]

    # ------------------------------------------------------------ the contract

    def reference(self, *given: Any, **more: Any) -> tuple[Tensor, ...]:
        args = self.named_arguments(given, more)
        lse, queries = bool(args.get(LSE)), args[self.tensors[0]]
        parts = [reference.reference(**call.args, with_lse=lse) for call in self.calls(args)]
        return self.join(parts, queries, queries.dtype if lse else None)

    def bound(
        self, args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype, inner: str = "float32"
    ) -> tuple[Tensor, ...]:
        """Each dense call's own."""
        calls = self.calls(self.named_arguments((), args))
        if not self.packed:
            return bound.bound(next(iter(calls)).args, outputs, dtype, inner)
        found = tuple(torch.zeros_like(output) for output in outputs)
        for call in calls:
            given = (heads_first(outputs[0][call.queries]), *(lse[None, :, call.queries] for lse in outputs[1:]))
            limits = bound.bound(call.args, given, dtype, inner)
            found[0][call.queries] = tokens_first(limits[0])
            for limit, of_one in zip(found[1:], limits[1:], strict=True):
                limit[:, call.queries] = of_one[0]
        return found

    def gradient_bound(
        self, args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype,
        inner: str = "float32",
    ) -> dict[str, Tensor]:  # fmt: skip
        """Each dense call's own: no sum goes beyond one."""
        calls = self.calls(self.named_arguments((), args))
        if not self.packed:
            given = {self.dense_names[name]: gradient for name, gradient in gradients.items()}
            limits = bound.gradient_bound(next(iter(calls)).args, grads, given, dtype, inner)
            return {name: limits[self.dense_names[name]] for name in gradients}
        found = {name: torch.zeros_like(gradient) for name, gradient in gradients.items()}
        for call in calls:
            places = dict(zip(self.tensors, (call.queries, call.keys, call.keys), strict=True))
            given = {self.dense_names[name]: heads_first(gradients[name][at]) for name, at in places.items()}
            limits = bound.gradient_bound(call.args, (heads_first(grads[0][call.queries]),), given, dtype, inner)
            for name, at in places.items():
                found[name][at] = tokens_first(limits[self.dense_names[name]])
        return found

    def cost(self, request: Request) -> Cost:
        """4 D flop and an exponential for each pair that is seen, and a tanh where scores are capped; a backward has
        five products of 2 D flop a pair, and reads the output and what flows into it besides."""
        q, k, v = (request.args[name] for name in self.tensors)
        pairs = request.values["pairs"] if "pairs" in request.values else self.count_pairs(request.args)
        calls = pairs if request.args.get("softcap") is None else 2 * pairs
        beside = sum(t.nbytes for name in self.beside if (t := request.args[name]) is not None)
        three = q.nbytes + k.nbytes + v.nbytes
        read = 0.0 if self.skips_unseen and not pairs else three
        dim = q.shape[-1]
        if request.pass_ == "backward":
            read += (2 * q.nbytes + 4.0 * (q.numel // dim)) if read else 0.0
            return Cost(10.0 * dim * pairs, calls, read + beside, three)
        written = q.numel * result_dtype(self.output, request.args).itemsize
        return Cost(4.0 * dim * pairs, calls, read + beside, written)

    # ------------------------------------------------------------ in torch

    def composite(self, *given: Any, **more: Any) -> Any:
        """What a transform can look into. It forms all scores."""
        return self._in_torch(torch_kernels.composite, self.named_arguments(given, more))

    def native(self, *given: Any) -> Any:
        """torch's attention, whichever kernel it takes; of sequences, of one after the other."""
        return self._in_torch(torch_kernels.native, self.named_arguments(given))

    def _in_torch(self, function: Callable[..., Any], args: dict[str, Any]) -> Any:
        lse, calls = bool(args.get(LSE)), (self.torch_calls or self.calls)(args)
        if not self.packed:
            return function(**next(iter(calls)).args, with_lse=lse)
        parts = []
        for call in calls:
            q, k = call.args["q"], call.args["k"]
            if k.shape[2]:
                result = function(**call.args, with_lse=lse)
                parts.append(result if lse else (result,))
            else:
                parts.append((torch.zeros_like(q), q.new_full(q.shape[:3], -torch.inf, dtype=torch.float32)))
        outputs = self.join(parts, args[self.tensors[0]], torch.float32 if lse else None)
        return outputs if lse else outputs[0]

    # ------------------------------------------------------------ the op

    def op(
        self, contract: Contract, kernels: Sequence[Kernel], *, mutants: Sequence[Mutant],
        composite: Callable[..., Any] | None = None, native: Callable[..., Any] | None = None,
        gradients: Callable[..., tuple[Tensor, ...] | None] | None = None,
        free: Mapping[str, Callable[[Any], bool]] | None = None, torch_inner: str = "float32", **more: Any,
    ) -> Op:  # fmt: skip
        """The op of these kernels and those in torch: ``native``, whose backward is autograd's where ``gradients``
        gives none and which rounds ``torch_inner`` inside, and the definition. ``free`` and ``more`` are those of
        ``Pass`` and ``Op``."""
        native = native or self.native
        exact = in_float64(contract.reference, contract.results_in_order)
        backwards = (self._backward(native, gradients), self._backward(None)) if self.differentiable else (None, None)
        results = "(Tensor, Tensor)" if LSE in self.arguments else "Tensor"
        op = Op(
            contract,
            [
                *kernels,
                replace(python_kernel("torch", self._forward(native), backwards[0]), inner=torch_inner),
                python_kernel("reference", self._forward(exact), backwards[1]),
            ],
            op_package=self.op_package,
            forward=Pass(
                f"{self.name}({schema_of(self.arguments)}, str? op_kernel=None) -> {results}", self._fake,
                free=free or {},
            ),
            backward=self._backward_pass(free or {}) if self.differentiable else None,
            composite=composite or self.composite, native=native, mutants=mutants, **self._second_output() | more,
        )  # fmt: skip
        op.template = self
        return op

    def _fake(self, *given: Any) -> Any:
        output, q = self.empty_output(*given), given[0]
        if LSE not in self.arguments:
            return output
        sizes = (q.shape[1], q.shape[0]) if self.packed else q.shape[:3]
        return output, q.new_empty(sizes if given[self._lse_place] else (0,), dtype=torch.float32)

    @functools.cached_property
    def _lse_place(self) -> int:
        return list(self.arguments).index(LSE)

    def _lay_out(self, result: Tensor, *given: Any) -> Tensor:
        """An output with the strides that every kernel's has."""
        output = self.empty_output(*given)
        return result if result.stride() == output.stride() and result.dtype == output.dtype else output.copy_(result)

    def _second_output(self) -> dict[str, Callable[..., Any]]:
        """How an op with or without the second output becomes one of two for torch, which wants a fixed number of
        them, laid out as without data: the second is empty if nobody asked for it. A backward wants it."""
        lay_out = (lambda result, *given: result) if self.packed else self._lay_out
        if LSE not in self.arguments:
            return {"to_torch": lay_out}
        at = self._lse_place

        def to_torch(result: Any, *given: Any) -> Any:
            if given[at]:
                return lay_out(result[0], *given), result[1]
            return lay_out(result, *given), given[0].new_empty(0, dtype=torch.float32)

        return {
            "to_torch": to_torch,
            "to_record": lambda *given: (*given[:at], True, *given[at + 1 :]),
            "from_torch": lambda result, *given: result if given[at] else result[0],
        }

    def _backward_pass(self, free: Mapping[str, Callable[[Any], bool]]) -> Pass:
        said = [f"{kind.schema} {name}" for name, kind in self.arguments.items()]
        rest = ["bool[] needs" if argument == f"bool {LSE}" else argument for argument in said[3:]]
        every = ", ".join(["Tensor grad_output", *said[:3], "Tensor output", "Tensor lse", *rest])
        names = self.differentiable

        def fake(grad: Tensor, *given: Any) -> tuple[Tensor, ...]:
            named = self._of_backward(given)
            return tuple(grad.new_empty(0) if (t := named[name]) is None else t.new_empty(t.shape) for name in names)

        returned = ", ".join(["Tensor"] * len(names))
        schema = f"{self.name}_backward({every}, str? op_kernel=None) -> ({returned})"
        return Pass(schema, fake, returns=names, free=free)

    def _of_backward(self, given: Sequence[Any]) -> dict[str, Any]:
        """The forward's arguments, by name, of a backward's that follow what flows in."""
        q, k, v, _output, _lse, *rest = given
        return dict(zip(self.arguments, (q, k, v, *rest), strict=True)) | {LSE: False}

    # ------------------------------------------------------------ the kernels in torch

    def _look(self, args: Mapping[str, Any]) -> None:
        if self.check_values is not None and args[self.tensors[0]].device.type == "cpu":
            self.check_values(args)

    def _forward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*given: Any, out: Any = None) -> Any:
            if self.check_values is not None:
                self._look(self.named_arguments(given))
            result = function(*given)
            if out is not None or self.packed:
                return into(result, out)
            if isinstance(result, tuple):
                return self._lay_out(result[0], *given), *result[1:]
            return self._lay_out(result, *given)

        return forward

    def _backward(
        self, native: Callable[..., Any] | None, gradients: Callable[..., tuple[Tensor, ...] | None] | None = None
    ) -> Callable[..., Any]:
        """The backward that autograd makes of ``native``; without one, of the definition in float64."""

        def leaf(t: Tensor) -> Tensor:
            return (t.detach().double() if native is None else t.detach()).requires_grad_()

        def backward(grad: Tensor, *given: Any, out: Any = None) -> tuple[Tensor, ...]:
            args = self._of_backward(given)
            self._look(args)
            inputs = {name: args[name] for name in self.differentiable if args[name] is not None}
            found = None if gradients is None else gradients(grad, *given)
            if found is None:
                with torch.enable_grad():
                    leaves = {name: leaf(t) for name, t in inputs.items()}
                    named = args | leaves
                    result = self.reference(**named)[0] if native is None else native(*named.values())
                    found = torch.autograd.grad(
                        result, tuple(leaves.values()), grad.to(result.dtype), allow_unused=True, materialize_grads=True
                    )
            pairs = zip(inputs.items(), found, strict=True)
            made = {name: gradient.to(t.dtype).contiguous() for (name, t), gradient in pairs}
            results = tuple(made.get(name, grad.new_empty(0)) for name in self.differentiable)
            return results if out is None else tuple(into(results, tuple(out)))

        return backward


def split_cpp_kernels(
    folder: Path, wide: tuple[str, ...], *, forward: Callable[..., Any], backward: Callable[..., Any] | None = None,
    first: int, guard: Callable[[Request], str | None] | None = None,
) -> list[Kernel]:  # fmt: skip
    """The C++ kernels. The ``wide`` ones, which ``guard`` is for, are several libraries, so that a first call does not
    compile what it does not need: the ``first`` are the forward's."""
    op_kernels = []
    for target in ("avx512", "avx2", "scalar"):
        names = ("scalar.cpp",) * len(wide) if target == "scalar" else wide
        main = {target: "scalar.cpp" if target == "scalar" else "simd.cpp"}
        declines = None if target == "scalar" else guard
        (op_kernel,) = cpp_kernels(folder, forward=forward, backward=backward, targets=main, guard=declines)
        sources = [folder / name for name in names]
        op_kernels.append(
            with_libraries(op_kernel, sources, forward=forward, backward=backward or forward, first=first)
        )
    return op_kernels
