"""The pointwise template: each element of the output is a function of the inputs' elements in its place.

An op package says in ``contract.py`` what only it knows (``Pointwise``), and has one line a function in
``pointwise.cpp`` and one small function each in ``triton.py``. What follows from that is made here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.build.kernels import cpp_kernels, triton_kernel
from kernelworks.contract import Case, Contract, Cost, Kernel, Mutant, Request, rounding
from kernelworks.contract.arguments import Arguments, check_of, errors_of, schema_of, tensors, words
from kernelworks.contract.cases import LENGTHS, SMOOTH, VALUES, draw, normal, row_cases
from kernelworks.contract.numbers import reals
from kernelworks.contract.tensor_argument import GivenArguments
from kernelworks.dispatch.aten import InputOperand
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.passthrough import ExactShapes, Passthrough
from kernelworks.templates.aten_trace import aten_of, text
from kernelworks.templates.launches import backward_of, forward_of, written_backward, written_forward
from kernelworks.templates.mutants import generic
from kernelworks.templates.op_package import OpPackage
from kernelworks.templates.torch_kernels import python_kernels

__all__ = ["BF16", "F32", "Bench", "Pointwise", "Work"]

Error = Tensor | float
TARGETS = ("avx512_bf16", "avx512", "avx2", "scalar")

F32, BF16 = torch.float32, torch.bfloat16


@dataclass(frozen=True)
class Work:
    """What one element cannot do without: operations of each pass, and calls of elementary functions in either."""

    forward: float
    backward: float
    functions: float = 0.0


@dataclass(frozen=True)
class Bench:
    """One size that ``bench`` times."""

    rows: int
    columns: int
    dtype: torch.dtype
    word: str = ""  # of an op that has words


# On a CPU beyond its caches in either type, and one that only its host time limits; on a GPU the same.
BENCH = (Bench(1024, 4096, F32), Bench(2048, 4096, BF16), Bench(1, 3072, BF16))
DEVICE_BENCH = (Bench(4096, 16384, BF16), Bench(8192, 4096, BF16), Bench(16, 1024, BF16))


@dataclass(frozen=True, kw_only=True)
class Pointwise(OpPackage):
    """What only the op package knows of a pointwise op.

    ``op_package`` is the op package's ``__file__``: folder and family name the op. ``arguments`` are up to three
    tensors, the first ``Floats`` and the others ``Like`` it, then numbers (``Real``), which kernels take in float32, or
    one ``Word``, which says which function is meant: the kernels' names end with it. ``reference(*args)`` is the
    definition, differentiable. ``error(output, *args)`` is how far a right kernel in float32 may be off before it
    rounds its result, ``slopes_error(grad, *args)`` the same of each gradient by name; without them the op is exact,
    and must be. All of these see float64.
    ``work`` counts one element, by word where they differ, and ``elementary`` names the function that it counts.
    ``sweeps`` are where the op is interesting: a name, and how far to both sides of 0 the first tensor reaches.
    ``reads`` says of an input's gradient which inputs its value depends on, where that is not all. ``gradient_kinds``:
    the kinds of values (``cases.VALUES``) on which gradients are compared too.
    """

    formula: str
    source: str
    arguments: Arguments
    reference: Callable[..., Tensor]
    work: Work | Mapping[str, Work]
    sweeps: Mapping[str, float]
    elementary: str = "exp"
    error: Callable[..., Error] | None = None
    slopes_error: Callable[..., Mapping[str, Error]] | None = None
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gradient_kinds: tuple[str, ...] = SMOOTH
    cases: tuple[Case, ...] = ()
    bench: tuple[Bench, ...] = BENCH
    device_bench: tuple[Bench, ...] = DEVICE_BENCH

    @property
    def tensors(self) -> tuple[str, ...]:
        return tensors(self.arguments)

    @functools.cached_property
    def numbers(self) -> dict[str, float]:
        """The numbers of a case that says no others."""
        return {name: number.right(GivenArguments()) for name, number in reals(self.arguments).items()}

    @property
    def spoken(self) -> tuple[Mapping[str, str], ...]:
        """Every choice of the word, by its argument; one empty choice for an op without."""
        return tuple({name: word} for name, choices in words(self.arguments).items() for word in choices) or ({},)

    # ------------------------------------------------------------ the contract

    @functools.cached_property
    def contract(self) -> Contract:
        """The contract; an op package that says a part itself takes ``dataclasses.replace`` of it."""
        return Contract(
            name=self.name,
            family=self.folder.parent.name,
            formula=self.formula,
            source=self.source,
            elementary=self.elementary,
            outputs=("output",),
            differentiable=self.tensors,
            check=check_of(self.arguments),
            reference=self._reference,
            bound=self._bound,
            gradient_bound=self._gradient_bound,
            cost=self._cost,
            dims=self._dims,
            cases=(*(case for choice in self.spoken for case in self._cases(choice)), *self.cases),
            bench_cases=self._bench_cases(self.bench),
            device_cases=tuple(case for choice in self.spoken for case in self._device_cases(choice)),
            device_bench_cases=self._bench_cases(self.device_bench),
            errors=errors_of(self.arguments),
        )

    def _reference(self, *args: Any, **named: Any) -> tuple[Tensor, ...]:
        tensors = (named.pop(name) for name in self.tensors[len(args) :] if name in named)  # of any names in torch's
        return (self.reference(*args, *tensors, **named),)

    def _bound(self, args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        (output,) = outputs
        if self.error is None:
            return (torch.zeros_like(output),)
        return (rounding(output, dtype) + self.error(output, **args),)

    def _gradient_bound(
        self, args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
    ) -> dict[str, Tensor]:
        if self.slopes_error is None:
            return {name: torch.zeros_like(gradient) for name, gradient in gradients.items()}
        errors = self.slopes_error(grads[0], **args)
        return {name: rounding(gradient, dtype) + errors[name] for name, gradient in gradients.items()}

    def _cost(self, request: Request) -> Cost:
        given = [request.args[name] for name in self.tensors]
        each = self.work
        if isinstance(each, Mapping):
            each = each[next(request.args[name] for name in words(self.arguments))]
        first, read = given[0], sum(t.nbytes for t in given)
        functions = each.functions * first.numel
        if request.pass_ == "backward":
            return Cost(each.backward * first.numel, functions, read + first.nbytes, read)
        return Cost(each.forward * first.numel, functions, read, first.nbytes)

    def _dims(self, request: Request) -> dict[str, int]:
        first = request.args[self.tensors[0]]
        columns = first.shape[-1] if first.shape else 1
        return {"M": first.numel // max(columns, 1), "N": columns}

    # ------------------------------------------------------------ cases

    def _with(self, first: Tensor, generator: Generator, choice: Mapping[str, str]) -> dict[str, Any]:
        """The first tensor as it was made, normal values in the others, the words."""
        others = {name: normal(generator, first.dtype, *first.shape) for name in self.tensors[1:]}
        return {self.tensors[0]: first, **others, **self.numbers, **choice}

    def _drawn(self, choice: Mapping[str, str], shape: tuple[int, ...], kind: str = "normal") -> Any:
        return lambda g, d: self._with(draw(kind, g, d, *shape), g, choice)

    def _swept(self, choice: Mapping[str, str], reach: float) -> Any:
        def make(g: Generator, d: torch.dtype) -> dict[str, Any]:
            most = min(reach, torch.finfo(d).max)  # infinities are another case's
            return self._with(torch.linspace(-most, most, 40_009).to(d), g, choice)

        return make

    def _cases(self, choice: Mapping[str, str]) -> Iterator[Case]:
        label = "".join(f"{word}, " for word in choice.values())

        def make(g: Generator, d: torch.dtype, shape: tuple[int, ...], kind: str) -> dict[str, Any]:
            return self._with(draw(kind, g, d, *shape), g, choice)

        for case in row_cases(make, lengths=LENGTHS, kinds=tuple(VALUES), gradient_kinds=self.gradient_kinds):
            yield replace(case, name=f"{label}{case.name}")
        for name, reach in self.sweeps.items():
            yield Case(f"{label}{name}", self._swept(choice, reach))
        scalars = dict.fromkeys(self.tensors, 3.0) | {self.tensors[0]: -0.75}
        yield Case(
            f"{label}scalar",
            lambda g, d: {n: torch.tensor(v, dtype=d) for n, v in scalars.items()} | self.numbers | dict(choice),
        )
        yield Case(  # large enough for non-temporal stores, at an odd length
            f"{label}past the caches",
            lambda g, d: self._drawn(choice, (1031, 2039 * 4 // d.itemsize))(g, d),
            dtypes=(F32, BF16),
            gradients=False,
        )

    def _device_cases(self, choice: Mapping[str, str]) -> Iterator[Case]:
        label = "".join(f"{word}, " for word in choice.values())
        yield Case(f"{label}2053x8192", self._drawn(choice, (2053, 8192)), dtypes=(BF16, F32))
        yield Case(f"{label}several tiles of rows", self._drawn(choice, (2, 75, 5000)), layouts=True)
        yield Case(
            f"{label}every value", lambda g, d: self._with(_every_value(d), g, choice), dtypes=(BF16, torch.float16)
        )

    def case_of(self, sizes: tuple[int, ...], dtype: torch.dtype, word: str = "") -> Case | None:
        """A case of any sizes: rows, their elements, and the word where the op has one; None of others."""
        if len(sizes) != 2 or not any(word in ("", *choice.values()) for choice in self.spoken):
            return None
        return self._bench_cases((Bench(*sizes, dtype, word),))[0]

    def _bench_cases(self, sizes: Sequence[Bench]) -> tuple[Case, ...]:
        spoken = {", ".join(choice.values()): choice for choice in self.spoken}
        return tuple(
            Case(
                f"{word} {size.rows}x{size.columns}".strip(),
                self._drawn(choice, (size.rows, size.columns)),
                dtypes=(size.dtype,),
            )
            for size in sizes
            for word, choice in spoken.items()
            if size.word in ("", word)
        )

    # ------------------------------------------------------------ the op

    def op(
        self,
        contract: Contract,
        composite: Callable[..., Any],
        *,
        mutants: Sequence[Mutant] = (),
        aten: Callable[..., Any] | None = None,
        passthrough: Passthrough | None = None,
    ) -> Op:
        """The op: ``composite(*args)`` is how a user writes it in torch, ``mutants`` are the op package's own. What
        there is to ask before a ``passthrough`` follows from the arguments."""
        forward, backward = self.passes()

        def composed(*args: Any, **named: Any) -> Any:  # by name too, whatever torch calls its arguments
            return composite(*args, *(named[name] for name in forward.names[len(args) :]))

        kernels = [*self._kernels(), *python_kernels(contract, forward, backward, composite, lambda: op)]
        every = (*generic(contract.reference, self.tensors, forward.names), *mutants)
        op = Op(
            contract, kernels, op_package=self.op_package, forward=forward, backward=backward, composite=composed,
            native=composite, aten=aten or aten_of(composite), pointwise=True, mutants=every,
            passthrough=passthrough and replace(passthrough, tensors=self.tensors, exact=self._exact(passthrough.call)),
        )  # fmt: skip
        op.template = self
        return op

    def _exact(self, call: str) -> ExactShapes | None:
        """What torch's functions would take and the contract does not: they spread tensors."""
        first, *others = self.tensors
        same = tuple(f"{first}.shape == {name}.shape" for name in others)
        return ExactShapes(same, call, lambda *_: None) if others else None

    def template_parts(self, op: Op) -> dict[str, str]:
        """What this op template alone makes (``description.py`` tells the rest)."""
        names, called = tuple(self.arguments), aten_of(op.as_written)
        operators = [
            called(*(choice[n] if n in choice else InputOperand(i, torch.empty(0)) for i, n in enumerate(names)))
            for choice in ({**self.numbers, **spoken} for spoken in self.spoken)
        ]
        return {
            "torch's operators": "; ".join(text(found, names) for found in operators),
            "kernels": ", ".join(f"{target}: {self._source(target)}" for target in TARGETS),
            "launch": written_forward(self.name, self.arguments).strip(),
            "launch of gradients": written_backward(self.name, self.arguments).strip(),
        }

    def passes(self) -> tuple[Pass, Pass]:
        """Both directions as torch knows them."""
        gradients = f"({', '.join('Tensor' for _ in self.tensors)})" if len(self.tensors) > 1 else "Tensor"
        return (
            Pass(f"{self.name}({schema_of(self.arguments)}, str? op_kernel=None) -> Tensor", self._fake),
            Pass(
                f"{self.name}_backward(Tensor grad_output, {schema_of(self.arguments)}, bool[] needs, "
                f"str? op_kernel=None) -> {gradients}",
                self._fake_backward,
                returns=self.tensors,
                reads=self.reads,
            ),
        )

    def _fake(self, *args: Any) -> Tensor:
        return torch.empty_like(args[0])

    def _fake_backward(self, grad: Tensor, *args: Any) -> Any:
        made = tuple(torch.empty_like(t) for t in args[: len(self.tensors)])
        return made if len(made) > 1 else made[0]

    def _kernels(self) -> list[Kernel]:
        found = [triton_kernel(self.folder)] if (self.folder / "triton.py").exists() else []
        return found + cpp_kernels(
            self.folder,
            forward=forward_of(self.name, self.arguments),
            backward=backward_of(self.name, self.arguments),
            targets={target: self._source(target) for target in TARGETS},
            bound=True,
        )

    def _source(self, target: str) -> str:
        """The file of a target: the op package's own for it, or for all vectors, where it has one."""
        own = (f"{target}.cpp", *(("simd.cpp",) if target != "scalar" else ()))
        return next((name for name in own if (self.folder / name).exists()), "pointwise.cpp")


def _every_value(dtype: torch.dtype) -> Tensor:
    """All finite numbers of a 16-bit type."""
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    return torch.where(x.isfinite(), x, 1.0)
