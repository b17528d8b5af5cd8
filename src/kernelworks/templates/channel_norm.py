"""Norms of [N, C, *] whose parameters run along the channels: group_norm, instance_norm, batch_norm.

``forward(x, ..., weight, bias, ..., eps) -> output`` in the order of the op package's arguments. An op package says
what a row is (``contract/channel_layout.py``), and which argument says where the statistics come from: from the row,
towards which a call moves ``running_mean`` and ``running_var``, or from these. The op template derives the contract,
both passes and the launches of C++ (functions NAME and NAME_backward, as ``simd/channel_norm.hpp`` makes them).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.build.kernels import cpp_kernels
from kernelworks.contract import UNIT_ROUNDOFF, Case, Contract, Cost, Kernel, Mutant, Request, rounding
from kernelworks.contract.arguments import Arguments, check_of, errors_of
from kernelworks.contract.cases import VALUES, draw, normal
from kernelworks.contract.channel_layout import BATCH, CHANNELS, empty_like_input, memory_format
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.passthrough import Passthrough
from kernelworks.templates.channel_rows import (
    ChannelVector,
    along_channels,
    forward_launch,
    from_rows,
    gradient_launch,
    over_channels,
    to_rows,
)
from kernelworks.templates.mutants import generic
from kernelworks.templates.op_package import OpPackage
from kernelworks.templates.rowwise import TARGETS, Total, sum_mutants, total
from kernelworks.templates.torch_kernels import python_kernels

__all__ = ["ChannelNorm"]

U32 = UNIT_ROUNDOFF[torch.float32]
PIECE = 4096  # elements: how far a float32 sum along a row may run before it moves on to float64
DOWN = 128  # rows: the same down a column
SMOOTH = ("normal", "large_mean", "tiny", "constant")
SIXTEEN = (torch.bfloat16, torch.float16)
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def chain(n: int) -> float:
    """The longest chain of float32 roundings into a sum of n deviations, and the few of the root, the scale and the
    products."""
    return chain_of_sum(n) + 4


def chain_of_sum(n: int) -> float:
    """The same of a sum of products: four accumulators of eight lanes along a row, or four down a column, and the tree
    that joins them."""
    return max(min(n, PIECE) / 32, min(n, DOWN) / 4) + 8


BenchSize = tuple[tuple[int, ...], int, bool]  # sizes, groups, channels last
BENCH: Sequence[BenchSize] = (
    ((8, 64, 56, 56), 32, False), ((2, 320, 64, 64), 32, False), ((32, 256, 14, 14), 32, True),
    ((1, 64, 8, 8), 8, False),
)  # fmt: skip
# What fills a GPU, and one for its host's time.
DEVICE_BENCH: Sequence[BenchSize] = (
    ((64, 64, 56, 56), 32, False), ((16, 320, 64, 64), 32, False), ((256, 256, 14, 14), 32, True),
    ((1, 64, 8, 8), 8, False),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ChannelNorm(OpPackage):
    """What an op package says of its op.

    - ``op_package`` is the op package's ``__file__``: folder and family name the op. ``arguments`` in the order of the
      call; ``rows`` is one of ``channel_layout.GROUPS``, ``CHANNELS`` and ``BATCH``.
    - ``flag`` names the argument that says where the statistics come from, if there is a choice; "" if a row's own are
      all there is.
    - ``function(*args)`` is the op in torch's functions, ``aten(*args)`` the operators behind it; ``reference(*args)``
      is ``definition`` with the arguments' names.
    - ``groups``: of the cases, for so many channels.
    """

    formula: str
    source: str
    arguments: Arguments
    rows: str
    function: Callable[..., Any]
    aten: Callable[..., Any] | None = None
    reference: Callable[..., tuple[Any, ...]]
    flag: str = ""
    flop: tuple[float, float] = (8.0, 17.0)
    cases: tuple[Case, ...] = ()
    preset: Mapping[str, Any] = field(default_factory=lambda: {"eps": 1e-5})

    @property
    def returns(self) -> tuple[str, ...]:
        return ("x", "weight", "bias")

    @property
    def weight_dims(self) -> tuple[str, ...]:
        """The dimensions of a call that its weight's shape says."""
        return ("C",)

    @property
    def running(self) -> tuple[str, ...]:
        return tuple(name for name in ("running_mean", "running_var") if name in self.arguments)

    def takes_running_statistics(self, args: Mapping[str, Any]) -> bool:
        """Whether the running statistics stand in the place of a row's own."""
        return bool(self.flag) and not args[self.flag]

    # ------------------------------------------------------------ the contract

    @functools.cached_property
    def contract(self) -> Contract:
        """The contract; an op package that says a part itself takes ``dataclasses.replace`` of it."""
        return Contract(
            name=self.name, family=self.folder.parent.name, formula=self.formula, source=self.source,
            outputs=("output", *self.running), mutates=self.running, differentiable=self.returns,
            check=check_of(self.arguments), reference=self.reference, bound=self._bound,
            gradient_bound=self._gradient_bound, cost=self._cost, dims=self._dims, bucket=self._bucket,
            cases=(*self._cases(), *self.cases), bench_cases=self._bench_cases(BENCH, torch.float32, torch.bfloat16),
            device_cases=self._device_cases(), device_bench_cases=self._bench_cases(DEVICE_BENCH, torch.bfloat16),
            errors=errors_of(self.arguments),
        )  # fmt: skip

    def statistics(self, args: Mapping[str, Any], total: Total = total) -> tuple[Tensor, Tensor, Tensor]:
        """Of the rows: what is normalised, with a row in the last dimension, its mean and its variance."""
        x = to_rows(self.rows, args["x"], args.get("num_groups", 1))
        if self.takes_running_statistics(args):
            shape = (-1, 1) if self.rows == BATCH else (1, -1, 1)
            return x, args["running_mean"].reshape(shape), args["running_var"].reshape(shape)
        n = max(x.shape[-1], 1)
        mean = total(x, -1) / n
        return x, mean, total((x - mean).square(), -1) / n

    def definition(self, args: Mapping[str, Any], total: Total = total) -> tuple[Any, ...]:
        """The definition, its sums taken by ``total``: the output, and the running statistics after the call."""
        rows, mean, variance = self.statistics(args, total)
        x, weight, bias = args["x"], args["weight"], args["bias"]
        output = from_rows(self.rows, (rows - mean) * torch.rsqrt(variance + args["eps"]), x)
        output = output if weight is None else output * along_channels(weight, x)
        output = output if bias is None else output + along_channels(bias, x)
        return (output, *self._moved(args, rows.shape[-1], mean.detach(), variance.detach()))

    def _moved(self, args: Mapping[str, Any], n: int, mean: Tensor, variance: Tensor) -> tuple[Any, ...]:
        """The running statistics after a call; the variance as n - 1 elements have it."""
        before = tuple(args[name] for name in self.running)
        if not before or before[0] is None or self.takes_running_statistics(args) or not args["x"].numel():
            return before
        m = args["momentum"]
        new = (mean, variance * (n / max(n - 1, 1)))
        own = tuple(t.reshape(-1) if self.rows == BATCH else t.mean(0).reshape(-1) for t in new)
        return tuple((1 - m) * old + m * t for old, t in zip(before, own, strict=True))

    def normalize(self, args: Mapping[str, Any]) -> tuple[Tensor, Tensor, int, float]:
        """In float64 and x's shape: the normalised rows and 1 / spread; the length of a row, and how many roundings the
        statistics cost."""
        x, mean, variance = self.statistics(args)
        rstd = torch.rsqrt(variance + args["eps"])
        back = functools.partial(from_rows, self.rows, x=args["x"])
        n = x.shape[-1]
        return (
            back((x - mean) * rstd),
            back(rstd.expand_as(x)),
            n,
            4.0 if self.takes_running_statistics(args) else chain(n),
        )

    def _bound(
        self, args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype, *, given: dict[str, Any]
    ) -> tuple[Tensor, ...]:
        """The mean is off by c u of the spread, which moves z by c u; 1/spread by less than c u, so z by c u |z|."""
        z, _, n, c = self.normalize(args)
        output, weight = outputs[0], args["weight"]
        scale = torch.ones(()) if weight is None else along_channels(weight.abs(), args["x"])
        off = c * (z.abs() + 1.0) * scale + 2.0**-149 / U32 * scale + output.abs()
        return (rounding(output, dtype) + U32 * off, *self._moved_bounds(args, outputs[1:], n, c, given))

    def _moved_bounds(
        self, args: dict[str, Any], moved: tuple[Tensor, ...], n: int, c: float, given: dict[str, Any]
    ) -> tuple[Tensor, ...]:
        if not moved or self.takes_running_statistics(args) or not args["x"].numel():
            return tuple(torch.zeros_like(t) for t in moved)  # not written
        _, mean, variance = self.statistics(args)
        own = mean.reshape(-1, args["x"].shape[1]).abs().mean(0) if self.rows != BATCH else mean.reshape(-1).abs()
        spread = variance.reshape(-1, args["x"].shape[1]) if self.rows != BATCH else variance.reshape(1, -1)
        m, wide = abs(args["momentum"]), n / max(n - 1, 1)
        error = (m * c * spread.sqrt().mean(0), 2 * m * c * spread.mean(0) * wide + 2.0**-149 / U32)
        double = 2.0**-48 / U32  # the sums in float64 may cancel
        bounds = []
        for name, t, off, size in zip(self.running, moved, error, (own, spread.mean(0) * wide), strict=True):
            cancelled = double * ((1 + m) * args[name].abs() + m * size)
            bounds.append(rounding(t, given[name].dtype) + U32 * (off + cancelled))
        return tuple(bounds)

    def _gradient_bound(
        self, args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype, *,
        given: dict[str, Any],
    ) -> dict[str, Tensor]:  # fmt: skip
        """Of grad_x = rstd (gw - mean(gw) - z mean(gw z)), each term with its magnitude, for they may cancel."""
        x, weight, g = args["x"], args["weight"], grads[0].abs()
        z, rstd, n, c = self.normalize(args)
        gw = g if weight is None else g * along_channels(weight.abs(), x)
        wide, down = z.abs() + 1.0, chain_of_sum(x.numel() // max(x.shape[1], 1))

        def mean(terms: Tensor) -> Tensor:
            rows = to_rows(self.rows, terms, args.get("num_groups", 1))
            return from_rows(self.rows, rows.mean(-1, keepdim=True).expand_as(rows), x)

        of_x = rstd * (
            4.0 * gw if self.takes_running_statistics(args) else c * gw + 6.0 * chain(n) * wide * mean(gw * wide)
        )
        found = {
            "x": of_x,
            "weight": over_channels(g * (c + down) * wide),
            "bias": down * over_channels(g),
        }
        return {
            name: rounding(gradient, given[name].dtype) + U32 * found[name] for name, gradient in gradients.items()
        }  # fmt: skip

    def _dims(self, request: Request) -> dict[str, int]:
        shape = request.args["x"].shape
        return {"N": shape[0], "C": shape[1], "S": math.prod(shape[2:])}

    def _bucket(self, request: Request) -> dict[str, Any]:
        """Whether the channels lie side by side, and where the statistics come from."""
        x = request.args["x"]
        found: dict[str, Any] = {"last": x.stride[1] == 1 and math.prod(x.shape[2:]) > 1}
        if self.flag:
            found["own"] = bool(request.args[self.flag])
        return found

    def _cost(self, request: Request) -> Cost:
        x = request.args["x"]
        has = [request.args[n] for n in ("weight", "bias", *self.running) if request.args.get(n) is not None]
        vectors = sum(v.nbytes for v in has)
        if request.pass_ == "backward":
            return Cost(self.flop[1] * x.numel, 0, 2 * x.nbytes + vectors, x.nbytes + vectors)
        written = sum(request.args[n].nbytes for n in self.running if request.args.get(n) is not None)
        return Cost(self.flop[0] * x.numel, 0, x.nbytes + vectors, x.nbytes + written)

    # ------------------------------------------------------------ cases

    def make(
        self, generator: Generator, dtype: torch.dtype, shape: tuple[int, ...], kind: str = "normal", *,
        groups: int = 1, last: bool = False, wide: bool = False, ends: bool = False, **changed: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Arguments for a shape and a kind of values of x. ``last``: the channels lie side by side; ``wide``:
        parameters in float32; ``ends``: running variances at the ends of their dtype."""
        x, c = draw(kind, generator, dtype, *shape), shape[1]
        if last:
            x = x.contiguous(memory_format=CHANNELS_LAST[len(shape)])
        own = torch.float32 if wide else dtype
        made: dict[str, Any] = {"x": x}
        for name, argument in self.arguments.items():
            if isinstance(argument, ChannelVector):
                made[name] = normal(generator, own, c)
        if self.running:
            made["running_var"] = made["running_var"].abs() + 0.5
        if ends:
            info = torch.finfo(own)
            made["running_var"][:3] = torch.tensor([info.smallest_normal, info.max, 0.0]).to(own)
        counted = {"num_groups": groups} if "num_groups" in self.arguments else {}
        return {**made, **counted, **self.preset, **changed}

    def case(self, name: str, shape: tuple[int, ...], kind: str = "normal", /, **more: Any) -> Case:
        """A case of ``make``'s arguments; a Case's own fields as it has them."""
        own = {key: more.pop(key) for key in ("gradients", "layouts", "dtypes") if key in more}
        mean = more.pop("mean", None)

        def make(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
            made = self.make(generator, dtype, shape, kind, **more)
            if mean is not None:
                made["x"] = normal(generator, dtype, *shape, mean=mean[0], scale=mean[1]).contiguous(
                    memory_format=memory_format(made["x"])
                )
            return made

        return Case(name, make, **own)

    def _cases(self) -> tuple[Case, ...]:
        case = self.case
        alone = self.rows == CHANNELS  # then a row is a channel of a sample, which must have more than one element
        sizes = [
            *(((3, 4, 4), 2),) * alone,
            ((6, 8), 2), ((2, 4, 5), 2), ((2, 6, 3, 3), 3), ((2, 8, 7, 9), 1), ((4, 16, 1, 1), 4), ((5, 64, 1), 4),
            ((2, 12, 33), 3), ((2, 6, 17, 61), 2), ((1, 2, 70, 73), 1), ((3, 32, 2, 2), 8), ((2, 4, 2, 3, 4), 2),
            ((33, 3, 4), 1),
        ]  # fmt: skip
        beside = [((2, 8, 5, 7), 2), ((2, 20, 9, 9), 5), ((2, 64, 12, 13), 16), ((1, 130, 3, 3), 2),
                  ((1, 2, 2, 3, 4), 1),                   ((3, 3, 15, 15), 3)]  # fmt: skip
        return (
            *(case(_sized(s), s, groups=g, layouts=s in ((2, 6, 3, 3), (2, 4, 5)))
              for s, g in sizes if not alone or math.prod(s[2:]) > 1),
            *self._running_cases(),
            *(case(f"{_sized(s)}, channels last", s, groups=g, last=True) for s, g in beside),
            *(case(f"{kind}, {_sized(s)}", s, kind, groups=2, last=last, gradients=kind in SMOOTH)
              for kind in VALUES for s, last in (((3, 6, 11), False), ((2, 4, 5, 33), True), ((3, 4, 21, 17), False))),
            *(case(f"no {' nor '.join(gone)}", (3, 6, 11), groups=2, **dict.fromkeys(gone))
              for gone in (("weight",), ("bias",), ("weight", "bias"))),
            *(case(f"parameters in float32, {_sized((3, 6, 5, 7))}{', channels last' * last}", (3, 6, 5, 7), groups=2,
                   last=last, wide=True, dtypes=SIXTEEN) for last in (False, True)),
            case("parameters in float32, no weight", (3, 6, 5), groups=2, wide=True, weight=None, dtypes=SIXTEEN),
            case("large eps", (3, 6, 11), groups=2, eps=1.0),
            case("no samples", (0, 4, 3), groups=2),
            *(case(f"mean {mean:.0e}, spread {spread:g}{', channels last' * last}", (2, 4, 9, 37), groups=2, last=last,
                   mean=(mean, spread), dtypes=(torch.float32, torch.bfloat16))
              for mean, spread in ((1e6, 1e-3), (1e4, 1.0), (1e7, 1.0)) for last in (False, True)),
            case("past the caches", (9, 4, 256, 257), groups=2, gradients=False, dtypes=(torch.float32,)),
        )  # fmt: skip

    def _running_cases(self) -> tuple[Case, ...]:
        if not self.running:
            return ()
        case, still, without = self.case, {self.flag: False}, dict.fromkeys(self.running)
        shapes = (((3, 6, 5, 7), False), ((3, 6, 5, 7), True), ((2, 4, 17, 61), False), ((2, 5, 15, 13), True))
        return (
            *(case(f"running statistics, {_sized(s)}{', channels last' * last}", s, last=last, layouts=not last,
                   **still) for s, last in shapes),
            case("running statistics of one sample", (1, 6, 2), **still),
            case("running statistics, no samples", (0, 4, 3), **still),
            case("running statistics in float32", (3, 6, 5), wide=True, dtypes=SIXTEEN, **still),
            case("running variances tiny, huge, 0", (3, 6, 5), eps=0.0, gradients=False, ends=True, **still),
            *(case(f"no running statistics, {_sized(s)}{', channels last' * last}", s, last=last, **without)
              for s, last in shapes[:2]),
            *(case(f"momentum {m:g}", (3, 6, 11), momentum=m) for m in (0.0, 1.0, 0.75, 1.5)),
            case("two values per channel", (1, 6, 2)),
            case("running statistics alone", (3, 6, 11), weight=None, bias=None),
        )  # fmt: skip

    def _bench_cases(self, sizes: Sequence[BenchSize], *dtypes: torch.dtype) -> tuple[Case, ...]:
        return tuple(
            self.case(_sized(s) + ", channels last" * last, s, groups=g, last=last, dtypes=dtypes)
            for s, g, last in sizes
        )

    def _device_cases(self) -> tuple[Case, ...]:
        sizes = (
            ((4, 64, 56, 56), 8, False), ((2, 320, 64, 64), 32, True), ((64, 256, 7, 7), 32, False),
            ((2, 8, 200, 200), 1, False), ((4099, 32, 2), 4, False), ((3, 24, 257, 129), 3, True),
        )  # fmt: skip
        return tuple(self.case(_sized(s) + ", channels last" * last, s, groups=g, last=last) for s, g, last in sizes)

    # ------------------------------------------------------------ the op

    def mutants(self) -> tuple[Mutant, ...]:
        """What any norm of channels gets wrong."""
        names = tuple(self.arguments)

        def plain(*args: Any, total: Total = total, **changed: Any) -> Any:
            given = dict(zip(names, args, strict=False))
            kinds = {n: v.dtype for n, v in given.items() if isinstance(v, Tensor)}
            given |= {n: v.float() for n, v in given.items() if isinstance(v, Tensor)} | changed
            made = [t for t in self.definition(given, total) if t is not None]
            return tuple(t.to(kinds[n]) for t, n in zip(made, ("x", *self.running), strict=False))

        def with_(**changed: Any) -> Callable[..., Any]:
            return lambda *args: plain(*args, **changed)

        def shifted(*args: Any) -> Any:
            """The parameters of the channel beside."""
            given = dict(zip(names, args, strict=False))
            return plain(*args, **{n: given[n].float().roll(1) for n in ("weight", "bias") if given[n] is not None})

        return (
            *generic(self.contract.reference, ("x",), names, self.contract.results_in_order),
            *sum_mutants(plain),
            Mutant("missing eps", with_(eps=0.0), "eps left out of the root"),
            *(Mutant(f"missing {n}", with_(**{n: None}), f"the {n} is not applied") for n in ("weight", "bias")),
            Mutant("channel aside", shifted, "the parameters of another channel are applied"),
        )

    def passes(self) -> tuple[Pass, Pass]:
        """Both directions as torch knows them."""
        kinds = {n: a.schema for n, a in self.arguments.items()}
        written = {n: f"Tensor({letter}!)?" for n, letter in zip(self.running, "ab", strict=False)}
        free = {"momentum": lambda value: isinstance(value, (int, float))} if self.running else {}
        read = ", ".join(f"{kind} {n}" for n, kind in kinds.items())
        return (
            Pass(
                f"{self.name}({', '.join(f'{kind} {n}' for n, kind in (kinds | written).items())}, "
                "str? op_kernel=None) -> Tensor",
                lambda x, *others: empty_like_input(x),
                free=free,
            ),
            Pass(
                f"{self.name}_backward(Tensor grad_output, {read}, bool[] needs, str? op_kernel=None) "
                "-> (Tensor, Tensor, Tensor)",
                self._fake_backward,
                returns=self.returns,
                unread=dict.fromkeys(self.running, self.flag),
                free=free,
            ),
        )

    def _fake_backward(self, *args: Any) -> tuple[Tensor, ...]:
        have = dict(zip(self.passes()[1].names, args, strict=True))
        x, needs = have["x"], have["needs"]
        made = (
            have[n] if have[n] is not None and need else None
            for n, need in zip(("weight", "bias"), needs[1:], strict=True)
        )
        return (empty_like_input(x), *(x.new_empty(0) if p is None else p.new_empty(p.shape) for p in made))

    def cpp_op_kernels(self, folder: Path, targets: Mapping[str, str] = TARGETS) -> list[Kernel]:
        """The C++ kernels of a folder's sources."""
        return cpp_kernels(folder, forward=self._forward, backward=self._backward, targets=targets, bound=True)

    def launch_arguments(self, have: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What both passes' launches are given: x, weight, bias, groups, eps; the statistics."""
        statistics = tuple(have[name] for name in self.running)
        which = "given" if self.takes_running_statistics(have) else "moved"
        more = {which: statistics} if statistics else {}
        return (have["x"], have["weight"], have["bias"], have.get("num_groups", 1), have["eps"]), more

    def _forward(self, library: Any) -> Callable[..., Tensor]:
        launch, names = forward_launch(getattr(library, self.name), self.rows), tuple(self.arguments)

        def forward(*args: Any, out: Any = None) -> Tensor:
            have = dict(zip(names, args, strict=True))
            given, more = self.launch_arguments(have)
            return launch(*given, out, **more, momentum=have.get("momentum", 0.0))

        return forward

    def _backward(self, library: Any) -> Callable[..., tuple[Tensor, ...]]:
        launch = gradient_launch(getattr(library, f"{self.name}_backward"), self.rows)
        names = self.passes()[1].names

        def backward(*args: Any, out: Any = None) -> tuple[Tensor, ...]:
            have = dict(zip(names, args, strict=True))
            given, more = self.launch_arguments(have)
            more.pop("moved", None)
            return launch(have["grad_output"], *given, tuple(have["needs"][1:]), out, **more)

        return backward

    def op(
        self, contract: Contract, *, ahead: Sequence[Kernel] = (), mutants: Sequence[Mutant] = (),
        at_once: Passthrough | None = None,
    ) -> Op:  # fmt: skip
        """The op: ``ahead`` are its kernels on other devices, best first; ``mutants`` are the op package's own;
        ``at_once`` is torch's own call of it."""
        forward, backward = self.passes()
        op: Op = Op(
            contract,
            [
                *ahead,
                *self.cpp_op_kernels(self.folder),
                *python_kernels(contract, forward, backward, self.function, lambda: op),
            ],
            op_package=self.op_package, forward=forward, backward=backward, composite=self.function, aten=self.aten,
            passthrough=at_once, mutants=(*self.mutants(), *mutants),
        )  # fmt: skip
        op.template = self
        return op

    def template_parts(self, op: Op) -> dict[str, str]:
        """What this op template alone makes (``description.py`` tells the rest)."""
        return {"kernels": ", ".join(f"{target}: {source}" for target, source in TARGETS.items()), "rows": self.rows}


def _sized(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
