"""Norms of rows: the last dimension brought to a spread of 1, scaled and shifted by what every row shares.

``forward(x, weight, [bias,] eps, [residual]) -> output``, or ``(output, sum)`` where a residual is added to x first, in
the order of the op package's arguments. The op template derives the contract but for its bounds, both passes and the
launches of C++ (exported functions NAME and NAME_backward, as ``simd/norm.hpp`` makes them).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from kernelworks.build.kernels import cpp_kernels
from kernelworks.build.sharing import choose_threads
from kernelworks.contract import UNIT_ROUNDOFF, Case, Contract, Cost, Kernel, Mutant, Request, rounding
from kernelworks.contract.arguments import Argument, Arguments, check_of, errors_of, right_of, schema_of
from kernelworks.contract.cases import SMOOTH, VALUES, draw, normal, row_cases
from kernelworks.contract.memory_layout import as_rows
from kernelworks.contract.tensor_argument import T
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.passthrough import Passthrough
from kernelworks.templates.launches import norm_forward, norm_text
from kernelworks.templates.mutants import generic
from kernelworks.templates.op_package import OpPackage
from kernelworks.templates.rowwise import BENCH, DEVICE_BENCH, TARGETS, Total, case, sized_cases, sum_mutants, total
from kernelworks.templates.torch_kernels import python_kernels

__all__ = ["ROW", "Norm", "fits_registers", "fits_tile", "is_long", "over_rows", "root_mean_square"]

U32 = UNIT_ROUNDOFF[torch.float32]
ROW, PARAMETER = T("... N"), T("N", like="x", optional=True)

# For every configuration of the tuning tables: enough rows for more than one tile a program, whole and broken chunks.
DEVICE_SIZES = (
    (40000, 64), (4099, 128), (5003, 768), (3001, 1024), (1500, 2048), (1501, 3072), (701, 4096), (700, 5120),
    (600, 6144), (300, 8192), (301, 12000), (300, 16384), (40, 20000), (40, 32768), (20, 65536),
)  # fmt: skip
LONG_BENCH = (16, 1 << 20)  # rows that one program each would take long for
RESIDUAL_SIZES = ((4099, 65), (3001, 1024), (701, 4096), (300, 12000), (200, 16384), (40, 32768))


def root_mean_square(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """The last dimension brought to a mean square of 1, as users of torch write it.

    Written out where its size is a symbol: torch's function reads one as if it were a number, on a GPU to the end.
    """
    size: int | torch.SymInt = x.shape[-1]
    if not isinstance(size, torch.SymInt):
        return F.rms_norm(x, (size,), weight, eps)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normed if weight is None else normed * weight).to(x.dtype)


PIECE = 4096  # elements: how far a float32 sum along a row may run before it moves on to float64
BLOCK = 128  # rows: the same down a column


def chain(n: int) -> float:
    """The longest chain of float32 roundings into a sum over a row of deviations: N/32 additions (four accumulators of
    eight lanes, the narrowest vector kernel) within a piece, the tree that joins them, the deviation's own, and the few
    of the root, the scale and the products."""
    return min(n, PIECE) / 32 + 12


def chain_of_gradients(n: int) -> float:
    """The same of two accumulators, as a row's gradients may have: twice the additions, the rest as it was."""
    return min(n, PIECE) / 16 + 12


def centred_error(z: Tensor, scale: Tensor, n: int) -> Tensor:
    """The mean is off by c u of the spread, which moves z by c u; 1/spread by less than c u, which moves it c u |z|."""
    return chain(n) * (z.abs() + 1.0) * scale + 2.0**-149 / U32 * scale


def centred_gradient_bound(template: Norm, args: dict[str, Any], grads: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Of grad_x = rstd (gw - mean(gw) - z mean(gw z)), each term with its magnitude, for they may cancel."""
    x, weight = args["x"], args["weight"]
    s, z, rstd = template.normalize(args)
    c, rows, g = chain(x.shape[-1]), x.numel() // max(x.shape[-1], 1), grads[0].abs()
    gw = g if weight is None else g * weight.abs()
    wide, moved = (
        z.abs() + 1.0,
        template.rounding_shift(args, s, z, rstd),
    )  # what the error of z is relative to, and beside it

    def mean(terms: Tensor) -> Tensor:
        return terms.mean(-1, keepdim=True)

    terms = rstd * (c * gw + 6.0 * chain_of_gradients(x.shape[-1]) * wide * mean(gw * wide))
    terms = terms + rstd * (mean(z.abs() * moved) * (gw + mean(gw)) + wide * mean(gw * moved) + moved * mean(gw * wide))
    flows = terms if len(grads) < 2 else terms + grads[1].abs()
    down = min(rows, BLOCK) + 8
    return {
        "x": flows,
        "residual": flows,
        "weight": over_rows(g * ((c + down) * wide + moved)),
        "bias": down * over_rows(g),
    }


def up_to(longest: int) -> Callable[[Request], str | None]:
    """The guard of kernels that hold a row in registers."""

    def guard(request: Request) -> str | None:
        n = request.args["x"].shape[-1]
        return None if n <= longest else f"takes rows of up to {longest} elements, got {n}"

    return guard


fits_registers = up_to(65536)  # as it came; what a program keeps of longer rows mostly goes to memory
fits_tile = up_to(16384)  # in float32, with the sums of the backward (tile/norm.py)
LONG = 8192  # elements of a row from which on several programs may be quicker than one


def is_long(request: Request) -> str | None:
    """The guard of kernels that share a row among programs (tile/long_rows/norm.py). They could take short rows, as
    the interpreter does to try them: on a GPU others are quicker there."""
    n = request.args["x"].shape[-1]
    if request.args.get("residual") is not None:
        return "adds no residual"
    short = n < LONG and request.device == "cuda"
    return f"takes rows of at least {LONG} elements, got {n}" if short else None


SHAPE = "x.shape[-1:] if weight is None else weight.shape"  # the weight's is at hand
EPS_CONDITION = (
    "eps.__class__ is float and eps >= 0.0"  # what torch's norms of the last dimension do not ask themselves
)


def over_rows(terms: Tensor) -> Tensor:
    """The sum over all dimensions but the last."""
    return terms.sum(tuple(range(terms.dim() - 1))) if terms.dim() > 1 else terms


@dataclass(frozen=True, kw_only=True)
class Norm(OpPackage):
    """What an op package says of its op.

    - ``op_package`` is the op package's ``__file__``: folder and family name the op. ``arguments`` in the order of the
      call: x, weight and perhaps bias, eps, and perhaps a residual, which may be optional; ``centred``: whether the
      mean is taken off.
    - ``function(*args)`` is the op in torch's functions, ``aten(*args)`` the operators behind it.
    - ``error(z, scale, n)`` is how far a right kernel computing in float32 may be off before it rounds its result, of
      the normalised row ``z`` and the weight's magnitude; ``gradient_bound(template, args, grads)`` the same of
      gradients. Of a norm that takes the mean off, both follow from that.
    - ``flop``: of an element, forward and backward. ``reads`` as ``Pass`` has it. ``eps`` is that of the cases.
    """

    formula: str
    source: str
    arguments: Arguments
    centred: bool
    function: Callable[..., Any]
    aten: Callable[..., Any]
    error: Callable[[Tensor, Tensor, int], Tensor] = centred_error
    gradient_bound: Callable[..., dict[str, Tensor]] = centred_gradient_bound
    flop: tuple[float, float]
    eps: float
    cases: tuple[Case, ...] = ()
    device_cases: tuple[Case, ...] = ()
    small: tuple[int, int, tuple[torch.dtype, ...]] = (128, 1024, (torch.bfloat16,))  # a bench case between the others
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def residual(self) -> Argument | None:
        return self.arguments.get("residual")

    @property
    def always(self) -> bool:
        """Whether a residual is no choice."""
        return self.residual is not None and "?" not in self.residual.schema

    @property
    def optional(self) -> bool:
        return self.residual is not None and not self.always

    @property
    def returns(self) -> tuple[str, ...]:
        return tuple(name for name in self.arguments if name != "eps")

    def case_of(self, sizes: tuple[int, ...], dtype: torch.dtype, word: str = "") -> Case | None:
        """A case of any sizes: rows and their elements; None of others."""
        return None if word or len(sizes) != 2 else next(sized_cases(self.make, (sizes,), (dtype,)))

    # ------------------------------------------------------------ the contract

    @functools.cached_property
    def contract(self) -> Contract:
        """The contract; an op package that says a part itself takes ``dataclasses.replace`` of it."""
        return Contract(
            name=self.name, family=self.folder.parent.name, formula=self.formula, source=self.source,
            outputs=("output", "sum") if self.residual else ("output",), differentiable=self.returns,
            check=check_of(self.arguments), reference=self.definition, bound=self._bound,
            gradient_bound=self._gradient_bound, cost=self._cost, dims=_dims, cases=(*self._cases(), *self.cases),
            bench_cases=tuple(sized_cases(self.make, (*BENCH[:2], self.small, *BENCH[2:]))),
            device_cases=(*self._device_cases(), *self.device_cases),
            device_bench_cases=tuple(
                sized_cases(self.make, DEVICE_BENCH if self.always else (*DEVICE_BENCH, LONG_BENCH), (torch.bfloat16,))
            ),
            errors=self._errors(),
        )  # fmt: skip

    def _errors(self) -> tuple[Any, ...]:
        missing = {name: value for name, value in right_of(self.arguments).items() if name != "eps"}
        return (*errors_of(self.arguments), ("eps missing", lambda: dict(missing), TypeError, "eps"))

    def definition(self, *args: Any, total: Total = total, **named: Any) -> tuple[Tensor, ...]:
        """The definition, its sums taken by ``total``."""
        given = dict(zip(self.arguments, args, strict=False)) | named
        residual, weight, bias = (given.get(name) for name in ("residual", "weight", "bias"))
        s: Tensor = given["x"] if residual is None else given["x"] + residual
        n = max(s.shape[-1], 1)
        deviations = s - total(s, -1) / n if self.centred else s
        output = deviations * torch.rsqrt(total(deviations.square(), -1) / n + given["eps"])
        output = output if weight is None else output * weight
        output = output if bias is None else output + bias
        return (output,) if residual is None else (output, s)

    def normalize(self, args: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """What is normalised, the normalised rows, and 1 / spread; float64."""
        x = args["x"] if args.get("residual") is None else args["x"] + args["residual"]
        deviations = x - x.mean(-1, keepdim=True) if self.centred else x
        rstd = torch.rsqrt(deviations.square().mean(-1, keepdim=True) + args["eps"])
        return x, deviations * rstd, rstd

    def rounding_shift(self, args: Mapping[str, Any], s: Tensor, z: Tensor, rstd: Tensor) -> Tensor:
        """How far the rounding of x + residual, relative to that sum, moves z where a mean is taken off, in 2^-24."""
        if args.get("residual") is None or not self.centred:
            return torch.zeros_like(z)
        off = s.abs() * rstd
        return off + off.mean(-1, keepdim=True) + z.abs() * (z.abs() * off).mean(-1, keepdim=True)

    def _bound(self, args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        output, n, weight = outputs[0], args["x"].shape[-1], args["weight"]
        s, z, rstd = self.normalize(args)
        scale = torch.ones(n, dtype=torch.float64) if weight is None else weight.abs()
        off = self.error(z, scale, n) + self.rounding_shift(args, s, z, rstd) * scale + output.abs()
        bounds = [rounding(output, dtype) + U32 * off]
        # x + residual rounds once in float32, relative to the sum.
        return (*bounds, *(rounding(s, dtype) + U32 * s.abs() for s in outputs[1:]))

    def _gradient_bound(
        self, args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
    ) -> dict[str, Tensor]:
        found = self.gradient_bound(self, args, grads)
        return {name: rounding(gradient, dtype) + U32 * found[name] for name, gradient in gradients.items()}

    def _cost(self, request: Request) -> Cost:
        x, has = request.args["x"], [n for n in self.arguments if request.args.get(n) is not None]
        n, rows = x.shape[-1], x.numel // max(x.shape[-1], 1)
        parameters = sum(n * x.dtype.itemsize for name in ("weight", "bias") if name in has)
        more = int("residual" in has)
        if request.pass_ == "backward":
            read = (2 + 2 * more) * x.nbytes + parameters
            return Cost(self.flop[1] * x.numel, rows, read, x.nbytes + parameters)
        moved = (1 + more) * x.nbytes
        return Cost((self.flop[0] + more) * x.numel, rows, moved + parameters, moved)

    # ------------------------------------------------------------ cases

    def make(self, generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], kind: str) -> dict[str, Any]:
        """Arguments for a shape and a kind of values of x; a residual where it is no choice."""
        n, made = shape[-1], {"x": draw(kind, generator, dtype, *shape)}
        made |= {name: normal(generator, dtype, n) for name in ("weight", "bias") if name in self.arguments}
        given: dict[str, Any] = {**made, "eps": self.eps}
        if self.residual is not None:
            given["residual"] = normal(generator, dtype, *shape) if self.always else None
        return given

    def case_with(self, name: str, shape: tuple[int, ...], kind: str = "normal", /, **more: Any) -> Case:
        """A case with arguments replaced; a Case's own fields as it has them."""
        own = {key: more.pop(key) for key in ("gradients", "layouts", "dtypes") if key in more}
        return case(name, self.make, shape, kind, change=lambda g, d: more, **own)

    def residual_case(self, name: str, shape: tuple[int, ...], **own: Any) -> Case:
        """A case with a residual."""
        return case(name, self.make, shape, change=lambda g, d: {"residual": normal(g, d, *shape)}, **own)

    def _cases(self) -> tuple[Case, ...]:
        without = [{"weight": None}]
        if "bias" in self.arguments:
            without += [{"bias": None}, {"weight": None, "bias": None}]
        return (
            *row_cases(self.make),
            *(
                self.case_with(", ".join(f"no {n}" for n in gone), (5, 77), layouts=len(gone) == 2, **gone)
                for gone in without
            ),
            self.case_with("large eps", (5, 77), eps=1.0),
            self.case_with("eps 0, tiny", (4, 100), "tiny", eps=0.0, gradients=False),
            self.case_with("eps 0, huge", (4, 100), "huge", eps=0.0, gradients=False),
            *(
                self.residual_case(f"residual N={n}", (5, n), layouts=n == 33)
                for n in ((1, 16, 33, 1031) if self.residual else ())
            ),
        )

    def _device_cases(self) -> tuple[Case, ...]:
        beside = RESIDUAL_SIZES if self.residual and not self.always else ()
        return (
            *sized_cases(self.make, DEVICE_SIZES),
            *(self.residual_case(f"residual {m}x{n}", (m, n)) for m, n in beside),
            *(() if self.always else self._long_cases()),
        )

    def _long_cases(self) -> Iterator[Case]:
        """Rows that several programs share, more than a kernel holds in registers."""
        yield from sized_cases(self.make, ((3, 300_001), (1, 1_100_000), (40, 131_072)))
        shape = (2, 70_001)
        for kind in VALUES:
            yield case(f"{kind} 2x70001", self.make, shape, kind, gradients=kind in SMOOTH)
        parameters = {n: None for n in ("weight", "bias") if n in self.arguments}
        yield self.case_with("no parameters 2x70001", shape, **parameters)
        yield self.case_with("strided 2x70001", shape, layouts=True)

    # ------------------------------------------------------------ the op

    def mutants(self) -> tuple[Mutant, ...]:
        """What any norm gets wrong."""
        names = tuple(self.arguments)

        def plain(*args: Any, **changed: Any) -> Any:
            given = dict(zip(names, args, strict=False))
            given |= {n: v.float() for n, v in given.items() if isinstance(v, Tensor)}
            return self._handed(tuple(t.to(args[0].dtype) for t in self.definition(**given, **changed)))

        def with_(**changed: Any) -> Callable[..., Any]:
            return lambda *args: plain(*(changed.get(n, a) for n, a in zip(names, args, strict=False)))

        def rounded_sum(*args: Any) -> Any:
            made = plain(*args)
            return (made[0], torch.zeros_like(made[1])) if isinstance(made, tuple) else made

        return (
            *generic(self.contract.reference, ("x",), names),
            *sum_mutants(plain),
            Mutant("missing eps", with_(eps=0.0), "eps left out of the root"),
            *(
                Mutant(f"missing {n}", with_(**{n: None}), f"the {n} is not applied")
                for n in ("weight", "bias")
                if n in names
            ),
            *((Mutant("sum not returned", rounded_sum, "the second output is not written"),) if self.residual else ()),
        )

    def _handed(self, outputs: tuple[Tensor, ...]) -> Any:
        return outputs if len(outputs) > 1 else outputs[0]

    def passes(self) -> tuple[Pass, Pass]:
        """Both directions as torch knows them."""
        gradients = ", ".join("Tensor" for _ in self.returns)
        flows = "Tensor grad_output, Tensor? grad_sum" if self.residual else "Tensor grad_output"
        made = "(Tensor, Tensor)" if self.residual else "Tensor"
        return (
            Pass(f"{self.name}({schema_of(self.arguments)}, str? op_kernel=None) -> {made}", self._fake),
            Pass(
                f"{self.name}_backward({flows}, {schema_of(self.arguments)}, bool[] needs, str? op_kernel=None) "
                f"-> ({gradients})",
                self._fake_backward,
                returns=self.returns,
                reads=self.reads,
            ),
        )

    def cpp_op_kernels(self, folder: Path, targets: Mapping[str, str] = TARGETS) -> list[Kernel]:
        """The C++ kernels of a folder's sources."""
        forward = norm_forward(self.name, tuple(self.arguments), optional=self.optional)
        return cpp_kernels(
            folder, forward=forward,
            backward=self._backward, targets=targets, bound=True,
        )  # fmt: skip

    def op(
        self, contract: Contract, *, ahead: Sequence[Kernel] = (), mutants: Sequence[Mutant] = (), at_once: Passthrough,
    ) -> Op:  # fmt: skip
        """The op: ``ahead`` are its kernels on other devices, best first; ``mutants`` are the op package's own;
        ``at_once`` is torch's own call of it."""
        forward, backward = self.passes()
        names = tuple(self.arguments)
        op = Op(
            contract,
            [
                *ahead,
                *self.cpp_op_kernels(self.folder),
                *python_kernels(contract, forward, backward, self.function, lambda: op),
            ],
            op_package=self.op_package,
            forward=forward,
            backward=backward,
            composite=self.function,
            aten=self.aten,
            passthrough=at_once,
            mutants=(*self.mutants(), *mutants),
            # torch wants a fixed number of outputs: without a residual the second one is empty.
            to_torch=(lambda result, x, *args: result if isinstance(result, tuple) else (result, x.new_empty(0)))
            if self.optional
            else None,
            from_torch=(lambda result, *args: result[0] if args[names.index("residual")] is None else result)
            if self.optional
            else None,
        )  # fmt: skip
        op.template = self
        return op

    def template_parts(self, op: Op) -> dict[str, str]:
        """What this op template alone makes (``description.py`` tells the rest)."""
        return {
            "kernels": ", ".join(f"{target}: {source}" for target, source in TARGETS.items()),
            "launch": norm_text(self.name, tuple(self.arguments), optional=self.optional).strip(),
        }

    def _fake(self, *args: Any) -> Any:
        given = dict(zip(self.arguments, args, strict=True))
        x = given["x"]
        if self.residual is None:
            return x.new_empty(x.shape)
        return x.new_empty(x.shape), x.new_empty(x.shape if given["residual"] is not None else (0,))

    def _shapes(self, have: Mapping[str, Any]) -> list[tuple[int, ...]]:
        """Of the gradients, in order; those that nobody wants are empty."""
        x, wanted = have["x"], dict(zip(self.returns, have["needs"], strict=True))
        needed = [n == "x" or (have[n] is not None and wanted[n]) for n in self.returns]
        full = {"weight": x.shape[-1:], "bias": x.shape[-1:]}
        return [tuple(full.get(n, x.shape)) if need else (0,) for n, need in zip(self.returns, needed, strict=True)]

    def _fake_backward(self, *args: Any) -> tuple[Tensor, ...]:
        have = dict(zip(self.passes()[1].names, args, strict=True))
        return tuple(have["x"].new_empty(shape) for shape in self._shapes(have))

    def _backward(self, library: Any) -> Callable[..., tuple[Tensor, ...]]:
        """The backward's launch, with all but its tensors fixed: small calls are made by the thousand."""
        kernel = getattr(library, f"{self.name}_backward")
        at = {name: place for place, name in enumerate(self.passes()[1].names)}
        need = {name: place for place, name in enumerate(self.returns)}
        x_at, weight_at, eps_at, needs_at = (at[name] for name in ("x", "weight", "eps", "needs"))
        bias_at, residual_at, later_at = (at.get(name, -1) for name in ("bias", "residual", "grad_sum"))
        order, sums, empty = self.returns, 1 + self.centred, torch.empty

        def backward(*args: Any, out: Any = None) -> tuple[Tensor, ...]:
            x, weight, needs = args[x_at], args[weight_at], args[needs_at]
            residual = args[residual_at] if residual_at >= 0 else None
            later = args[later_at] if residual is not None else None
            n, dtype = x.shape[-1], x.dtype
            of_weight = weight is not None and needs[need["weight"]]
            of_bias = bias_at >= 0 and args[bias_at] is not None and needs[need["bias"]]
            grad_x = empty(x.shape, dtype=dtype) if out is None else out[0]
            grad_weight, grad_bias = empty(n if of_weight else 0, dtype=dtype), empty(n if of_bias else 0, dtype=dtype)
            if weight is not None and not weight.is_contiguous():
                weight = weight.contiguous()
            run, threads = choose_threads(kernel, x.numel())
            run(
                grad_x, grad_weight if of_weight else None, grad_bias if of_bias else None,
                empty(threads, sums, n, dtype=torch.float64), as_rows(args[0]),
                None if later is None else as_rows(later), as_rows(x), None if residual is None else as_rows(residual),
                weight, args[eps_at], threads,
            )  # fmt: skip
            made = {"x": grad_x, "weight": grad_weight, "bias": grad_bias}
            if residual_at >= 0:  # what flows into the sum flows into both alike
                both = residual is not None and needs[need["residual"]]
                made["residual"] = grad_x.clone() if both else empty(0, dtype=dtype)
            return tuple(made[name] for name in order)

        return backward


def _dims(request: Request) -> dict[str, int]:
    x = request.args["x"]
    return {"M": x.numel // max(x.shape[-1], 1), "N": x.shape[-1]}
