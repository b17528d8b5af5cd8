"""The product template: the last dimension of one tensor multiplied with the rows of a matrix, ``x weight^T + bias``.

An op package says in ``contract.py`` what only it knows (``Product``): how long its chains of additions are, which
sizes its kernels turn at. Its C++ exports NAME and, for each gradient that is asked for, NAME_grad_x, NAME_grad_weight
and NAME_grad_bias; on a GPU it has kernels of its own. What follows from that is made here. What another op that
multiplies matrices needs of it (``gamma``, ``gradients_like``, ``draw_arguments``) it takes from here, too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.build.kernels import cpp_kernels, in_float64, into, python_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract import UNIT_ROUNDOFF, Case, Contract, Cost, Kernel, Mutant, Request, rounding
from kernelworks.contract.arguments import Arguments, check_of, errors_of, schema_of
from kernelworks.contract.cases import VALUES, draw, normal
from kernelworks.contract.memory_layout import as_rows
from kernelworks.contract.tensor_argument import T
from kernelworks.dispatch.aten import aten
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.passthrough import Passthrough
from kernelworks.dispatch.signature import TorchSignature
from kernelworks.templates.mutants import VECTOR
from kernelworks.templates.op_package import OpPackage

__all__ = ["Product", "X", "bucket", "draw_arguments", "gamma", "gradients_like"]

U32 = UNIT_ROUNDOFF[torch.float32]
SMALLEST_NORMAL = 2.0**-126  # of float32 and of bfloat16
SMALLEST = 2.0**-149  # of float32's subnormals

X, WEIGHT, BIAS = T("... K"), T("N K", like="x"), T("N", like="x", optional=True)
ARGUMENTS: Arguments = {"x": X, "weight": WEIGHT, "bias": BIAS}
RETURNS = ("x", "weight", "bias")
BIAS_CONDITION = "(bias is None or bias.numel() > 1)"  # torch's function spreads one of one element

Sizes = tuple[int, int, int]  # M, N, K
Gradients = tuple[Tensor, Tensor, Tensor]

# Values of x by kind; the weight is normal. Derivatives are compared where they do not leave float32's normal range.
KINDS = {kind: kind in ("large_mean", "tiny", "constant", "zeros") for kind in VALUES if kind != "normal"}


def gamma(n: float) -> float:
    """The relative error n u / (1 - n u) of a sum of exact products, each of which meets at most n roundings."""
    return n * U32 / (1 - n * U32)


def draw_arguments(
    generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], n: int, kind: str = "normal", scale: float = 1.0
) -> dict[str, Tensor]:
    """x of one kind of values, and a weight with which products keep its size."""
    k = shape[-1]
    x = draw(kind, generator, dtype, *shape)
    return {"x": x, "weight": normal(generator, dtype, n, k, scale=scale * max(k, 1) ** -0.5)}


def gradients_like(x: Tensor, weight: Tensor, needs: Sequence[bool]) -> Gradients:
    """Tensors for the gradients of x, weight and bias; those that nobody asks for are empty."""
    return (
        x.new_empty(x.shape if needs[0] else 0),
        weight.new_empty(weight.shape if needs[1] else 0),
        weight.new_empty(weight.shape[:1] if needs[2] else 0),
    )


def bucket(few: int, weight: str = "weight") -> Callable[[Request], dict[str, Any]]:
    """Rows up to ``few`` one by one, for there the number itself says which kernel is quickest; and how N and K are
    aligned, which tiles and vector loads depend on. ``weight`` is the argument that they are read from."""

    def more(request: Request) -> dict[str, Any]:
        d = _dims(request, weight)
        aligned = next((step for step in (64, 8) if d["N"] % step == 0 and d["K"] % step == 0), 1)
        return {"aligned": aligned} | ({"M": d["M"]} if d["M"] <= few else {})

    return more


@dataclass(frozen=True, kw_only=True)
class Product(OpPackage):
    """What only the op package knows of its product.

    ``op_package`` is the op package's ``__file__``: folder and family name the op. ``function(x, weight, bias)`` is
    torch's and ``aten`` its operator. ``chain(terms)`` is the most roundings that one term of a sum of so many products
    meets, whichever kernel and shape make of it. ``block`` is how many products are summed up before the sum meets
    those before it. ``few``: rows up to which each number of them is timed by itself. ``shapes``, ``device_shapes`` and
    the ``bench``es are M, N and K: where tiles, blocks and kernels change. ``offset(m, n, k)`` says which cases have a
    bias, ``layouts`` of which M and N strides are tried. ``targets``: the sources in C++.
    """

    formula: str
    source: str
    function: Callable[..., Tensor]
    aten: str
    chain: Callable[[int], float]
    block: int
    few: int
    shapes: tuple[Sizes, ...]
    device_shapes: tuple[Sizes, ...]
    bench: tuple[tuple[Sizes, tuple[torch.dtype, ...]], ...]
    device_bench: tuple[Sizes, ...]
    layouts: tuple[tuple[int, int], ...]
    kind_shapes: tuple[tuple[int, int, int], ...]
    device_kind_shapes: tuple[tuple[int, int, int], ...]
    targets: Mapping[str, str]
    cases: tuple[Case, ...] = ()
    device_cases: tuple[Case, ...] = field(default=())

    @property
    def arguments(self) -> Arguments:
        return ARGUMENTS

    def case_of(self, sizes: tuple[int, ...], dtype: torch.dtype, word: str = "") -> Case | None:
        """A case of any sizes: M, N and K; None of others."""
        return None if word or len(sizes) != 3 else next(_benched(((sizes, (dtype,)),)))

    # ------------------------------------------------------------ the contract

    @functools.cached_property
    def contract(self) -> Contract:
        """The contract; an op package that says a part itself takes ``dataclasses.replace`` of it."""
        return Contract(
            name=self.name, family=self.folder.parent.name, arithmetic="products", formula=self.formula,
            source=self.source, outputs=("output",), differentiable=RETURNS, check=check_of(ARGUMENTS),
            reference=reference, bound=self._bound, gradient_bound=self._gradient_bound, cost=_cost, dims=_dims,
            bucket=bucket(self.few), cases=tuple(self._cases()), device_cases=tuple(self._device_cases()),
            bench_cases=tuple(_benched(self.bench)), errors=errors_of(ARGUMENTS),
            device_bench_cases=tuple(_benched((sizes, (torch.bfloat16,)) for sizes in self.device_bench)),
        )  # fmt: skip

    def _bound(self, args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        x, weight, bias = args["x"], args["weight"], args["bias"]
        magnitude = x.abs() @ weight.abs().T
        if bias is not None:
            magnitude = magnitude + bias.abs()
        inside = gamma(self.chain(x.shape[-1])) * magnitude + (x.shape[-1] + 1) * SMALLEST
        if dtype == torch.bfloat16:
            inside = inside + _flushed(x, weight)
        # What is rounded to the dtype is the sum as it came out of float32, so its error is rounded with it.
        return (rounding(outputs[0], dtype) + (1 + UNIT_ROUNDOFF[dtype]) * inside,)

    def _gradient_bound(
        self, args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
    ) -> dict[str, Tensor]:
        x, weight, grad = args["x"], args["weight"], grads[0]
        k, n = x.shape[-1], weight.shape[0]
        m = x.numel() // k if k else grad.numel() // max(n, 1)
        g, rows = grad.abs().reshape(m, n), x.abs().reshape(m, k)
        inside = {
            "x": gamma(self.chain(n)) * (g @ weight.abs()).reshape(x.shape) + n * SMALLEST,
            "weight": gamma(self.chain(m)) * (g.T @ rows) + m * SMALLEST,
            "bias": gamma(m + 1) * g.sum(0),
        }
        u = UNIT_ROUNDOFF[dtype]
        return {name: rounding(found, dtype) + (1 + u) * inside[name] for name, found in gradients.items()}

    # ------------------------------------------------------------ cases

    def _cases(self) -> Iterator[Case]:
        for m, n, k in self.shapes:
            yield _case(f"M={m} N={n} K={k}", (m, k), n, bias=k % 2 == 1, layouts=(m, n) in self.layouts)
        yield from _kinds(self.kind_shapes)
        yield Case("weight subnormal", _subnormal_weight, gradients=False)
        yield _case("shape [K]", (65,), 19)
        yield _case("shape [2, 3, 4, K]", (2, 3, 4, 40), 21, layouts=True)
        yield _case("shape [3, 20, K], no bias", (3, 20, 40), 21, bias=False, layouts=True)
        yield from self.cases

    def _device_cases(self) -> Iterator[Case]:
        for m, n, k in self.device_shapes:
            yield _case(f"M={m} N={n} K={k}", (m, k), n, bias=k % VECTOR == VECTOR // 2)
        yield _case("strided M=5 N=264 K=1032", (5, 1032), 264, layouts=True)
        yield _case("strided M=200 N=264 K=136", (200, 136), 264, layouts=True)
        yield _case("shape [3, 50, K]", (3, 50, 136), 264, layouts=True)
        yield from _kinds(self.device_kind_shapes)

    # ------------------------------------------------------------ the op

    def op(self, contract: Contract, *, ahead: Sequence[Kernel] = (), mutants: Sequence[Mutant] = ()) -> Op:
        """The op: ``ahead`` are its kernels on other devices, best first; ``mutants`` are the op package's own."""
        composite = self.function
        exact = functools.partial(_torch_backward, compute=torch.float64)
        op = Op(
            contract,
            [
                *ahead,
                *cpp_kernels(
                    self.folder, forward=self._forward, backward=self._backward, targets=self.targets, bound=True
                ),
                python_kernel("torch", lambda *args, out=None: into(composite(*args), out), _torch_backward),
                python_kernel("reference", in_float64(reference), exact),
            ],
            op_package=self.op_package,
            forward=Pass(
                f"{self.name}({schema_of(ARGUMENTS)}, str? op_kernel=None) -> Tensor",
                lambda x, weight, bias: x.new_empty((*x.shape[:-1], weight.shape[0])),
            ),
            backward=Pass(
                f"{self.name}_backward(Tensor grad_output, Tensor x, Tensor weight, bool[] needs, str? op_kernel=None) "
                "-> (Tensor, Tensor, Tensor)",
                lambda grad, x, weight, needs: gradients_like(x, weight, needs),
                returns=RETURNS,
                reads={"x": ("weight",), "weight": ("x",), "bias": ()},
            ),
            composite=lambda x, weight, bias: composite(x, weight, bias),
            aten=lambda x, weight, bias: aten(self.aten, x, weight, bias),
            passthrough=Passthrough(
                "function(x, weight, bias)",
                ("x", "weight"),
                (BIAS_CONDITION,),
                {"function": self.function},
                ("bias",),
            ),
            mutants=(*self._mutants(), *mutants),
        )
        op.template = self
        return op

    def template_parts(self, op: Op) -> dict[str, str]:
        """What this op template alone makes (``description.py`` tells the rest)."""
        kernels = ", ".join(f"{target}: {source}" for target, source in self.targets.items())
        return {"torch's operators": f"{self.aten}(x, weight, bias)", "kernels": kernels}

    def torch_signature(self, op: Op) -> TorchSignature:
        """torch's signature, of a function with the arguments that ``F.linear`` has."""
        return TorchSignature(op, self.function, lambda input, weight, bias=None: (input, weight, bias), {"input": "x"})

    def _forward(self, library: Any) -> Callable[..., Tensor]:
        kernel, empty = getattr(library, self.name), torch.empty

        def forward(x: Tensor, weight: Tensor, bias: Tensor | None, out: Any = None) -> Tensor:
            output: Tensor = empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype) if out is None else out
            if bias is not None and not bias.is_contiguous():
                bias = bias.contiguous()
            run, threads = choose_threads(kernel, _nanoseconds(x, weight))
            run(output, as_rows(x), _turned(weight), bias, threads)
            return output

        return forward

    def _backward(self, library: Any) -> Callable[..., Gradients]:
        of_x, of_weight, of_bias = (getattr(library, f"{self.name}_grad_{name}") for name in RETURNS)

        def backward(grad: Tensor, x: Tensor, weight: Tensor, needs: list[bool], out: Any = None) -> Gradients:
            took, rows = _nanoseconds(x, weight), as_rows(grad)
            grad_x, grad_weight, grad_bias = gradients_like(x, weight, needs) if out is None else out
            if needs[0]:
                run, threads = choose_threads(of_x, took)
                run(grad_x, rows, _turned(weight), threads)
            if needs[1]:
                run, threads = choose_threads(of_weight, took)
                run(grad_weight, rows, as_rows(x), threads)
            if needs[2]:
                run, threads = choose_threads(of_bias, grad.numel())
                run(grad_bias, rows, threads)
            return grad_x, grad_weight, grad_bias

        return backward

    def _mutants(self) -> Iterator[Mutant]:
        """What any product gets wrong."""
        block = self.block

        def last_block(x: Tensor, weight: Tensor) -> Tensor:
            first = max(x.shape[-1] - 1, 0) // block * block
            return _product(x[..., first:], weight[:, first:])

        def twice(x: Tensor, weight: Tensor) -> Tensor:
            again = _product(x[..., block : block + 1], weight[:, block : block + 1])
            return _product(x, weight) + (again if x.shape[-1] > block else 0.0)

        yield Mutant("missing bias", _variant(bias=0.0), "the bias is not added")
        yield Mutant("bias twice", _variant(bias=2.0), "the bias is added by two blocks of K")
        yield Mutant("short K", _variant(_short_k), "the tail of K that fills no vector is left out")
        yield Mutant("only the last block", _variant(last_block), "a block of K overwrites the ones before it")
        yield Mutant("overlapping blocks", _variant(twice), "blocks of K overlap by one")
        yield Mutant("bfloat16 accumulation", _variant(_bfloat16_sums), "the sum is kept in bfloat16")
        yield Mutant("bfloat16 products", _variant(_rounded), "products are rounded to bfloat16 before they are added")
        yield Mutant("stale column", _variant(after=_stale_column), "the last column of a partial tile is not written")
        yield Mutant("shifted rows", _variant(after=_shifted_rows), "rows are written one too low")
        yield Mutant("zeros", _variant(after=torch.zeros_like), "nothing is written")


# ---------------------------------------------------------------- definition, cost, gradients


def reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, ...]:
    output = x @ weight.T
    return (output if bias is None else output + bias,)


def _flushed(x: Tensor, weight: Tensor) -> Tensor:
    """What a bfloat16 dot-product instruction loses: it reads subnormals as zero and writes them as zero."""
    small_x, small_weight = (t.abs() * (t.abs() < SMALLEST_NORMAL) for t in (x, weight))
    lost = small_x @ weight.nan_to_num(0.0, 0.0, 0.0).abs().T + x.nan_to_num(0.0, 0.0, 0.0).abs() @ small_weight.T
    return lost + 2 * x.shape[-1] * SMALLEST_NORMAL


def _dims(request: Request, weight: str = "weight") -> dict[str, int]:
    x, matrix = request.args["x"], request.args[weight]
    return {"M": math.prod(x.shape[:-1]), "N": matrix.shape[0], "K": matrix.shape[1]}


def _cost(request: Request) -> Cost:
    x, weight = request.args["x"], request.args["weight"]
    m, n, k = _dims(request).values()
    size = x.dtype.itemsize
    if request.pass_ == "backward":
        flop = (4.0 * k + 1.0) * m * n
        return Cost(flop, 0.0, (m * n + m * k + n * k) * size, (m * k + n * k + n) * size)
    bias = n if request.args.get("bias") is not None else 0
    return Cost(2.0 * m * n * k + m * bias, 0.0, x.nbytes + weight.nbytes + bias * size, m * n * size)


def _nanoseconds(x: Tensor, weight: Tensor) -> float:
    """Of one thread: for few rows the weight's elements come from memory, for many a core does 16 products in one."""
    return weight.numel() * max(1.0, x.numel() / (16 * max(1, weight.shape[1])))


def _turned(weight: Tensor) -> Tensor:
    """A matrix as kernels read it: row-major or transposed."""
    return weight if 1 in weight.stride() else weight.contiguous()


def _torch_backward(
    grad: Tensor, x: Tensor, weight: Tensor, needs: list[bool], out: Any = None, compute: torch.dtype | None = None
) -> Any:
    """Of functions that are differentiable again, for the bias is not among what it is given."""
    rows = math.prod(x.shape[:-1])
    g = grad.reshape(rows, weight.shape[0]).to(compute or grad.dtype)
    grad_x = g @ weight.to(g.dtype) if needs[0] else g.new_empty(0)
    grad_weight = g.T @ x.reshape(rows, x.shape[-1]).to(g.dtype) if needs[1] else g.new_empty(0)
    grad_bias = g.sum(0) if needs[2] else g.new_empty(0)
    grad_x = grad_x.reshape(x.shape if needs[0] else 0)
    return into(tuple(t.to(x.dtype) for t in (grad_x, grad_weight, grad_bias)), out)


# ---------------------------------------------------------------- cases of all products


def _made(
    generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], n: int, kind: str = "normal", bias: bool = True
) -> dict[str, Any]:
    made = draw_arguments(generator, dtype, shape, n, kind)
    return {**made, "bias": normal(generator, dtype, n) if bias else None}


def _case(name: str, shape: tuple[int, ...], n: int, kind: str = "normal", *, bias: bool = True, **more: Any) -> Case:
    return Case(name, lambda g, d: _made(g, d, shape, n, kind, bias), **more)


def _kinds(shapes: Iterable[Sizes]) -> Iterator[Case]:
    for kind, gradients in KINDS.items():
        for m, n, k in shapes:
            yield _case(f"{kind} M={m} K={k}", (m, k), n, kind, gradients=gradients)


def _benched(sizes: Iterable[tuple[Sizes, tuple[torch.dtype, ...]]]) -> Iterator[Case]:
    for (m, n, k), dtypes in sizes:
        yield _case(f"{m}x{n}x{k}", (m, k), n, bias=False, dtypes=dtypes)


def _subnormal_weight(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
    return _made(generator, dtype, (3, 77), 9) | {"weight": draw("subnormal", generator, dtype, 9, 77)}


# ---------------------------------------------------------------- mutants


def _product(x: Tensor, weight: Tensor) -> Tensor:
    return x.double() @ weight.double().T


def _variant(
    product: Callable[[Tensor, Tensor], Tensor] = _product, *, bias: float = 1.0,
    after: Callable[[Tensor], Tensor] = lambda y: y,
) -> Callable[..., Tensor]:  # fmt: skip
    times = bias

    def run(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        y = product(x, weight)
        return after(y if bias is None else y + bias.double() * times).to(x.dtype)

    return run


def _short_k(x: Tensor, weight: Tensor) -> Tensor:
    k = x.shape[-1]
    kept = k // VECTOR * VECTOR if k > VECTOR else k
    return _product(x[..., :kept], weight[:, :kept])


def _bfloat16_sums(x: Tensor, weight: Tensor) -> Tensor:
    total = torch.zeros(*x.shape[:-1], weight.shape[0], dtype=torch.bfloat16)
    for k in range(x.shape[-1]):
        total = (total.float() + x[..., k, None].float() * weight[:, k].float()).bfloat16()
    return total.double()


def _rounded(x: Tensor, weight: Tensor) -> Tensor:
    return (x[..., None, :].bfloat16() * weight.bfloat16()).double().sum(-1)


def _stale_column(y: Tensor) -> Tensor:
    y = y.clone()
    if y.shape[-1] % VECTOR:
        y[..., -1] = 0.0
    return y


def _shifted_rows(y: Tensor) -> Tensor:
    return y.roll(1, 0) if y.dim() > 1 else y
