"""The epilogue template: products of matrices, and what is done to each of their sums before it is rounded, once.

An op package says in ``contract.py`` what only it knows (``Epilogue``): the definition by a ``product``, how far off a
right kernel may be before it rounds, values of the arguments beside x and the weights. On a GPU it has kernels of its
own; on a CPU torch's kernel runs, which is the op as a user writes it. What follows from that is made here.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import UNIT_ROUNDOFF, Case, Contract, Cost, Kernel, Mutant, Request, rounding
from kernelworks.contract.arguments import Arguments, check_of, errors_of, schema_of, tensors, words
from kernelworks.contract.cases import VALUES, normal
from kernelworks.contract.tensor_argument import T
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.passthrough import Passthrough
from kernelworks.templates.aten_trace import aten_of
from kernelworks.templates.mutants import VECTOR
from kernelworks.templates.op_package import OpPackage
from kernelworks.templates.product import bucket, draw_arguments, gamma
from kernelworks.templates.torch_kernels import python_kernels

__all__ = ["FLUSH_THRESHOLD", "SMALLEST", "Epilogue", "product", "propagated_error"]

Product = Callable[[Tensor, Tensor], Tensor]
ArgumentValues = Mapping[str, Any]

SMALLEST = 2.0**-149  # of float32's subnormals
FLUSH_THRESHOLD = 2.0**-126  # what a product of 16-bit subnormals, or a power on the way, may be taken for 0 below
FEW = 64  # rows up to which each number of them is timed by itself

# M, N, K: one of each, around vectors and blocks, primes, no rows, no columns.
SHAPES = (
    (1, 1, 1),
    (1, 31, 129),
    (3, 13, 64),
    (7, 64, 509),
    (17, 12, 385),
    (33, 33, 33),
    (40, 64, 383),
    (0, 3, 4),
    (3, 0, 4),
)
KIND_SHAPES = ((3, 14, 67), (37, 35, 257))
# On a GPU: tiles that stick out on either side, fewer and more tiles than multiprocessors, last turns that are cut
# along K, K that is shorter than a step, and not a multiple of one.
DEVICE_SHAPES = (
    (1, 16, 8), (17, 72, 200), (129, 144, 64), (300, 528, 264), (255, 1008, 1032), (2049, 8208, 520),
    (2300, 2832, 2056), (4096, 4352, 1032), (2560, 2560, 2048), (300, 520, 8200), (2300, 1416, 2056),
)  # fmt: skip
DEVICE_KIND_SHAPES = ((1, 24, 520), (140, 264, 520))
BENCH = ((64, 1024, 1024), (512, 4096, 1024))
DEVICE_BENCH = ((8192, 8192, 8192), (4096, 14336, 4096), (16384, 4096, 11008), (512, 4096, 4096))
SIZES = (1.0, 6.0, 0.01)  # of the sums: where activations bend, where they saturate, around 0


def product(x: Tensor, weight: Tensor) -> Tensor:
    """The definition's."""
    return x @ weight.T


def propagated_error(function: Callable[[Tensor], Tensor], sums: Tensor, off: Tensor) -> Tensor:
    """How far a function moves where its argument is off by so much, for one that falls to a minimum and rises from it:
    then an end of the interval is as far as any place in it."""
    here = function(sums)
    return torch.maximum((function(sums + off) - here).abs(), (function(sums - off) - here).abs())


RESULT = "... N"  # the shape of what is added to the result


@dataclass(frozen=True, kw_only=True)
class Epilogue(OpPackage):
    """What only the op package knows.

    ``arguments`` begin with x and the ``weights``, matrices that it is multiplied with. ``reference(product, *args)``
    is the definition, differentiable, where ``product(x, weight)`` multiplies. ``inside(template, args, dtype)`` says
    how far a right kernel may be off before it rounds its result (``sum_and_error`` gives a sum and how far it is off).
    ``others(generator, dtype, shape of the result)`` gives the arguments that are neither x nor weights nor words.
    ``flop`` and ``functions`` count an element of the result beyond the products, ``elementary`` names the function.
    ``chain(terms)``: the most roundings that one term of a sum of so many meets.
    """

    formula: str
    source: str
    arguments: Arguments
    reference: Callable[..., Tensor]
    inside: Callable[[Epilogue, dict[str, Any], torch.dtype], Tensor]
    others: Callable[[Generator, torch.dtype, tuple[int, ...]], dict[str, Any]]
    chain: Callable[[int], float]
    flop: float
    functions: float = 0.0
    elementary: str = "exp"
    weights: tuple[str, ...] = ("weight",)
    without: tuple[str, ...] = ("bias",)  # arguments that may be None, each of which a case leaves out

    @property
    def spoken(self) -> tuple[Mapping[str, str], ...]:
        """Every choice of the word, by its argument; one empty choice for an op without."""
        return tuple({name: word} for name, choices in words(self.arguments).items() for word in choices) or ({},)

    # ------------------------------------------------------------ the contract

    @functools.cached_property
    def contract(self) -> Contract:
        """The contract; an op package that says a part itself takes ``dataclasses.replace`` of it."""
        return Contract(
            name=self.name, family=self.folder.parent.name, arithmetic="products", formula=self.formula,
            source=self.source, elementary=self.elementary, outputs=("output",),
            differentiable=tensors(self.arguments), check=check_of(self.arguments), reference=self._reference,
            bound=self._bound, cost=self._cost, dims=self._dims, bucket=bucket(FEW, self.weights[0]),
            cases=tuple(self._cases()),
            bench_cases=tuple(self._benched(BENCH, (torch.float32, torch.bfloat16))),
            device_cases=tuple(self._device_cases()),
            device_bench_cases=tuple(self._benched(DEVICE_BENCH, (torch.bfloat16,))), errors=errors_of(self.arguments),
        )  # fmt: skip

    def _reference(self, *args: Any, **named: Any) -> tuple[Tensor, ...]:
        rest = (named.get(name) for name in tuple(self.arguments)[len(args) :])
        return (self.reference(product, *args, *rest),)

    def sum_and_error(self, args: ArgumentValues, weight: str, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The sums with a weight, in float64, and how far off they may be in float32."""
        x, matrix = args["x"], args[weight]
        k = x.shape[-1]
        sums, size = product(x, matrix), product(x.abs(), matrix.abs())
        if bias is not None:
            sums, size = sums + bias, size + bias.abs()
        return sums, gamma(self.chain(k)) * size + (k + 1) * SMALLEST + 2 * k * FLUSH_THRESHOLD

    def _bound(self, args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        inside = self.inside(self, args, dtype)
        return (rounding(outputs[0], dtype) + (1 + UNIT_ROUNDOFF[dtype]) * inside,)

    def _dims(self, request: Request) -> dict[str, int]:
        x, weight = request.args["x"], request.args[self.weights[0]]
        rows = 1
        for size in x.shape[:-1]:
            rows *= size
        return {"M": rows, "N": weight.shape[0], "K": weight.shape[1]}

    def _cost(self, request: Request) -> Cost:
        m, n, k = self._dims(request).values()
        given = [request.args.get(name) for name in tensors(self.arguments)]
        read, size = sum(t.nbytes for t in given if t is not None), request.args["x"].dtype.itemsize
        multiplied = 2.0 * m * n * k * len(self.weights)
        if request.pass_ == "backward":  # both factors' gradients: what a forward's sums are needed for, it can keep
            return Cost(2 * multiplied + 2 * self.flop * m * n, self.functions * m * n, read + m * n * size, read)
        return Cost(multiplied + self.flop * m * n, self.functions * m * n, read, m * n * size)

    # ------------------------------------------------------------ cases

    def make_arguments(
        self, generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], n: int, choice: Mapping[str, str],
        kind: str = "normal", size: float = 1.0,
    ) -> dict[str, Any]:  # fmt: skip
        """Arguments: x of one kind of values, weights with which products have a ``size``."""
        first = draw_arguments(generator, dtype, shape, n, kind, size)
        found = {"x": first["x"], self.weights[0]: first["weight"]}
        for name in self.weights[1:]:
            found[name] = normal(generator, dtype, n, shape[-1], scale=max(shape[-1], 1) ** -0.5)
        return {**found, **self.others(generator, dtype, (*shape[:-1], n)), **choice}

    def _case(
        self, name: str, shape: tuple[int, ...], n: int, choice: Mapping[str, str], kind: str = "normal",
        size: float = 1.0, gone: Sequence[str] = (), **more: Any,
    ) -> Case:  # fmt: skip
        label = "".join(f"{word}, " for word in choice.values())
        left_out = dict.fromkeys(gone)

        def make(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
            return self.make_arguments(generator, dtype, shape, n, choice, kind, size) | left_out

        return Case(f"{label}{name}", make, **more)

    def _optional(self) -> tuple[str, ...]:
        return tuple(name for name in self.without if name in self.arguments)

    def _sized(self, shapes: Sequence[tuple[int, int, int]], choice: Mapping[str, str]) -> Iterator[Case]:
        sizes = itertools.cycle(SIZES)
        for m, n, k in shapes:
            gone = self._optional() if k % 3 == 0 else ()
            yield self._case(f"M={m} N={n} K={k}", (m, k), n, choice, size=next(sizes), gone=gone, layouts=m in (3, 40))

    def _cases(self) -> Iterator[Case]:
        for choice in self.spoken:
            yield from self._sized(SHAPES, choice)
            for kind in VALUES:
                if kind != "normal":
                    for m, n, k in KIND_SHAPES:
                        yield self._case(f"{kind} M={m} K={k}", (m, k), n, choice, kind, gradients=False)
            yield self._case("shape [K]", (65,), 19, choice)
            yield self._case("shape [2, 3, 4, K]", (2, 3, 4, 40), 21, choice, layouts=True)

    def _device_cases(self) -> Iterator[Case]:
        for choice in self.spoken:
            yield from self._sized(DEVICE_SHAPES, choice)
            yield self._case("strided M=200 N=264 K=136", (200, 136), 264, choice, layouts=True)
            yield self._case("shape [3, 50, K]", (3, 50, 136), 264, choice, layouts=True)
            for kind in VALUES:
                if kind != "normal":
                    for m, n, k in DEVICE_KIND_SHAPES:
                        yield self._case(f"{kind} M={m} K={k}", (m, k), n, choice, kind, gradients=False)

    def _benched(
        self, shapes: Sequence[tuple[int, int, int]], dtypes: tuple[torch.dtype, ...]
    ) -> Iterator[Case]:  # fmt: skip
        for choice in self.spoken:
            for m, n, k in shapes:
                yield self._case(f"{m}x{n}x{k}", (m, k), n, choice, dtypes=dtypes)

    # ------------------------------------------------------------ the op

    def op(
        self, contract: Contract, composite: Callable[..., Any], *, ahead: Sequence[Kernel] = (),
        mutants: Sequence[Mutant] = (), aten: Callable[..., Any] | None = None, passthrough: Passthrough | None = None,
    ) -> Op:  # fmt: skip
        """The op: ``composite(*args)`` is how a user writes it in torch, ``ahead`` are its kernels on other devices,
        best first; ``mutants`` are the op package's own, ``aten`` its operators where calling it does not tell."""
        forward, backward = self.passes()

        def composed(*args: Any, **named: Any) -> Any:
            return composite(*args, *(named.get(name) for name in forward.names[len(args) :]))

        op = Op(
            contract, [*ahead, *python_kernels(contract, forward, backward, composed, lambda: op)],
            op_package=self.op_package, forward=forward, backward=backward, composite=composed, native=composite,
            aten=aten or aten_of(composite), mutants=(*self._mutants(), *mutants), passthrough=passthrough,
        )  # fmt: skip
        op.template = self
        return op

    def passes(self) -> tuple[Pass, Pass]:
        """Both directions as torch knows them."""
        names, arguments = tensors(self.arguments), schema_of(self.arguments)
        place = tuple(self.arguments).index(self.weights[0])

        def fake(*args: Any) -> Tensor:
            made: Tensor = args[0].new_empty((*args[0].shape[:-1], args[place].shape[0]))
            return made

        def fake_backward(grad: Tensor, *args: Any) -> tuple[Tensor, ...]:
            have = dict(zip(self.arguments, args, strict=False))
            # What is added to the result has the result's gradient, which no operator may hand on as it is.
            added = [n for n, kind in self.arguments.items() if isinstance(kind, T) and kind.shape == RESULT]
            have |= {n: grad.new_empty(grad.shape) for n in added}
            return tuple(grad.new_empty(0) if have[n] is None else torch.empty_like(have[n]) for n in names)

        return (
            Pass(f"{self.name}({arguments}, str? op_kernel=None) -> Tensor", fake),
            Pass(
                f"{self.name}_backward(Tensor grad_output, {arguments}, bool[] needs, str? op_kernel=None) "
                f"-> ({', '.join('Tensor' for _ in names)})",
                fake_backward,
                returns=names,
            ),
        )

    def template_parts(self, op: Op) -> dict[str, str]:
        """What this op template alone makes (``description.py`` tells the rest)."""
        return {"kernels": ", ".join(kernel.name for kernel in op.kernels)}

    def altered_definition(
        self, multiply: Product = product, after: Callable[[Tensor], Tensor] = lambda y: y
    ) -> Callable[..., Any]:
        """The definition with another product, or something done to the result."""

        def run(*args: Any) -> Tensor:
            wide = [a.double() if isinstance(a, Tensor) else a for a in args]
            return after(self.reference(multiply, *wide)).to(args[0].dtype)

        return run

    def _mutants(self) -> Iterator[Mutant]:
        """What any of them gets wrong."""
        yield Mutant("rounded first", self._rounded_first, "sums are rounded to the dtype before the epilogue")
        yield Mutant("short K", self.altered_definition(_short), "the tail of K that fills no vector is left out")
        yield Mutant(
            "bfloat16 products", self.altered_definition(_in_bfloat16), "products are rounded to bfloat16 first"
        )
        yield Mutant(
            "stale column", self.altered_definition(after=_stale_column), "the last column of a tile is not written"
        )
        yield Mutant("shifted rows", self.altered_definition(after=_shifted), "rows are written one too low")
        yield Mutant("zeros", self.altered_definition(after=torch.zeros_like), "nothing is written")
        for name in self._optional():
            yield Mutant(f"missing {name}", self.replace_arguments(**{name: None}), f"the {name} is not added")

    def _rounded_first(self, *args: Any) -> Any:
        kind = args[0].dtype
        return self.altered_definition(lambda x, weight: product(x, weight).to(kind).double())(*args)

    def replace_arguments(self, **changed: Any) -> Callable[..., Any]:
        """The definition with arguments replaced; a function of what came makes what is taken instead."""
        right = self.altered_definition()

        def run(*args: Any) -> Any:
            have = dict(zip(self.arguments, args, strict=False))
            have |= {name: value(have) if callable(value) else value for name, value in changed.items()}
            return right(*have.values())

        return run


def _short(x: Tensor, weight: Tensor) -> Tensor:
    k = x.shape[-1]
    kept = k // VECTOR * VECTOR if k > VECTOR else k
    return product(x[..., :kept], weight[:, :kept])


def _in_bfloat16(x: Tensor, weight: Tensor) -> Tensor:
    return (x[..., None, :].float().bfloat16() * weight.float().bfloat16()).double().sum(-1)


def _stale_column(y: Tensor) -> Tensor:
    y = y.clone()
    if y.shape[-1] % VECTOR:
        y[..., -1] = 0.0
    return y


def _shifted(y: Tensor) -> Tensor:
    return y.roll(1, 0) if y.dim() > 1 else y
