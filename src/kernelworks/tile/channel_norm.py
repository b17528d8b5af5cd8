"""Norms of [N, C, S] whose parameters run along C, for any op package of the channel norm template.

A program takes a tile of channels and positions of one sample, however x lies. The first kernel leaves mean and squares
of each channel of a sample, in float64 and in splits of the positions; the second joins these few numbers to rows, a
program each; the third writes. The backward has kernels for the sums of both gradients' terms, for their averages over
rows and for the sums over all samples beside. float64 is what a row of any mean, spread and length needs; the kernels
wait on memory, not on it.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, configs
from kernelworks.contract.channel_layout import empty_like_input, memory_format, problem_of

SPLIT = 4096  # positions that a program goes over
MOST_PLANS = 256  # shapes whose launches are kept


@triton.jit
def _tile(C, S, sn, sc, ss, begin, end, BC: tl.constexpr, BS: tl.constexpr):
    """Where a tile's elements lie, and which there are."""
    c = tl.program_id(1).to(tl.int64) * BC + tl.arange(0, BC)[:, None]
    s = begin + tl.arange(0, BS)[None, :]
    return tl.program_id(0).to(tl.int64) * sn + c * sc + s * ss, (c < C) & (s < end)


@triton.jit
def _measure(x, mean, squares, C, S, sn, sc, ss, length, splits, BC: tl.constexpr, BS: tl.constexpr):
    """Mean and squares of the deviations of a tile's channels."""
    begin = tl.program_id(2).to(tl.int64) * length
    end = tl.minimum(begin + length, S)
    count = tl.zeros([BC], tl.float64)
    middle = tl.zeros([BC], tl.float64)
    around = tl.zeros([BC], tl.float64)
    for s0 in tl.range(begin, end, BS):
        at, inside = _tile(C, S, sn, sc, ss, s0, end, BC, BS)
        v = tl.load(x + at, mask=inside, other=0.0).to(tl.float64)
        its = count * 0.0 + tl.minimum(end - s0, BS).to(tl.float64)
        its_mean = tl.sum(v, 1) / its
        d = tl.where(inside, v - its_mean[:, None], 0.0)
        moved = its_mean - middle
        share = its / (count + its)
        middle += moved * share
        around += tl.sum(d * d, 1) + moved * moved * (count * share)
        count += its
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    to = (tl.program_id(0).to(tl.int64) * splits + tl.program_id(2)) * C + c
    tl.store(mean + to, middle, mask=c < C)
    tl.store(squares + to, around, mask=c < C)


@triton.jit
def _entries(e, C, groups, splits, BATCH: tl.constexpr):
    """Where the numbers ``e`` of a program's row lie among parts [N, splits, C], and which channel each belongs to."""
    row = tl.program_id(0).to(tl.int64)
    if BATCH:  # a row is a channel in all samples
        return e * C + row, e * 0 + row
    channels = C // groups
    c = row % groups * channels + e % channels
    return (row // groups * splits + e // channels) * C + c, c


@triton.jit
def _join(
    mean, squares, row_mean, row_rstd, row_variance, running_mean, running_var, C, S, groups, splits, length, entries,
    eps, eps_rest, momentum, momentum_rest, BATCH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row's mean and 1 / spread; where it is a channel in all samples its running statistics move too. ``eps`` and
    ``momentum`` come as a float32 number and the rest of theirs."""
    row = tl.program_id(0).to(tl.int64)
    sums = tl.zeros([BLOCK], tl.float64)
    counts = tl.zeros([BLOCK], tl.float64)
    for e0 in tl.range(0, entries, BLOCK):
        e = e0 + tl.arange(0, BLOCK).to(tl.int64)
        at, _ = _entries(e, C, groups, splits, BATCH)
        split = e % splits if BATCH else e // (C // groups)
        count = tl.where(e < entries, tl.minimum(length, S - split * length), 0).to(tl.float64)
        sums += tl.load(mean + at, mask=e < entries, other=0.0) * count
        counts += count
    total = tl.sum(counts, 0)
    middle = tl.sum(sums, 0) / total
    around = tl.zeros([BLOCK], tl.float64)
    for e0 in tl.range(0, entries, BLOCK):
        e = e0 + tl.arange(0, BLOCK).to(tl.int64)
        at, _ = _entries(e, C, groups, splits, BATCH)
        split = e % splits if BATCH else e // (C // groups)
        count = tl.where(e < entries, tl.minimum(length, S - split * length), 0).to(tl.float64)
        apart = tl.load(mean + at, mask=e < entries, other=0.0) - middle
        within = tl.load(squares + at, mask=e < entries, other=0.0)
        around += tl.where(e < entries, within + count * apart * apart, 0.0)
    variance = tl.sum(around, 0) / total
    tl.store(row_mean + row, middle)
    tl.store(row_rstd + row, 1.0 / tl.sqrt(variance + eps + eps_rest))
    if row_variance is not None:
        tl.store(row_variance + row, variance)
    if running_mean is not None:
        share = tl.sum(tl.zeros([1], tl.float64), 0) + momentum + momentum_rest
        old = tl.load(running_mean + row).to(tl.float64)
        moved = (1.0 - share) * old + share * middle
        tl.store(running_mean + row, moved.to(tl.float32).to(running_mean.dtype.element_ty))
        own = variance * (total / tl.where(total > 1.0, total - 1.0, 1.0))
        old = tl.load(running_var + row).to(tl.float64)
        moved = (1.0 - share) * old + share * own
        tl.store(running_var + row, moved.to(tl.float32).to(running_var.dtype.element_ty))


@triton.jit
def _average(
    of_weight, of_bias, weight, mean_gwz, mean_gw, C, S, groups, splits, entries, lines,
    BATCH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row's averages of grad weight z and of grad weight, over ``lines`` times S elements."""
    row = tl.program_id(0).to(tl.int64)
    gwz = tl.zeros([BLOCK], tl.float64)
    gw = tl.zeros([BLOCK], tl.float64)
    for e0 in tl.range(0, entries, BLOCK):
        e = e0 + tl.arange(0, BLOCK).to(tl.int64)
        at, c = _entries(e, C, groups, splits, BATCH)
        scale = tl.full([BLOCK], 1.0, tl.float64)
        if weight is not None:
            scale = tl.load(weight + c, mask=e < entries, other=0.0).to(tl.float64)
        gwz += tl.load(of_weight + at, mask=e < entries, other=0.0) * scale
        gw += tl.load(of_bias + at, mask=e < entries, other=0.0) * scale
    total = tl.sum(tl.zeros([1], tl.float64) + S, 0) * lines
    tl.store(mean_gwz + row, tl.sum(gwz, 0) / total)
    tl.store(mean_gw + row, tl.sum(gw, 0) / total)


@triton.jit
def _columns(of_weight, of_bias, grad_weight, grad_bias, C, entries, BC: tl.constexpr, BE: tl.constexpr):
    """The parameters' gradients: the sums of all samples and splits."""
    c = tl.program_id(0).to(tl.int64) * BC + tl.arange(0, BC)[None, :]
    gz = tl.zeros([BE, BC], tl.float64)
    flow = tl.zeros([BE, BC], tl.float64)
    for e0 in tl.range(0, entries, BE):
        e = e0 + tl.arange(0, BE).to(tl.int64)[:, None]
        inside = (e < entries) & (c < C)
        if grad_weight is not None:
            gz += tl.load(of_weight + e * C + c, mask=inside, other=0.0)
        if grad_bias is not None:
            flow += tl.load(of_bias + e * C + c, mask=inside, other=0.0)
    own = tl.program_id(0) * BC + tl.arange(0, BC)
    if grad_weight is not None:
        made = tl.sum(gz, 0).to(tl.float32).to(grad_weight.dtype.element_ty)
        tl.store(grad_weight + own, made, mask=own < C)
    if grad_bias is not None:
        made = tl.sum(flow, 0).to(tl.float32).to(grad_bias.dtype.element_ty)
        tl.store(grad_bias + own, made, mask=own < C)


@triton.jit
def _vector(p, C, BC: tl.constexpr):
    """A tile's part of a vector of the channels."""
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    return tl.load(p + c, mask=c < C, other=0.0).to(tl.float64)[:, None]


@triton.jit
def _rows(p, C, groups, BATCH: tl.constexpr, BC: tl.constexpr):
    """What a tile's channels have of a vector of the rows."""
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    row = c if BATCH else tl.program_id(0) * groups + c // (C // groups)
    return tl.load(p + row, mask=c < C, other=0.0).to(tl.float64)[:, None]


@triton.jit
def _spread(p, eps, eps_rest, C, groups, BATCH: tl.constexpr, GIVEN: tl.constexpr, BC: tl.constexpr):
    """1 / spread of a tile's channels: of rows, or of variances that were given."""
    found = _rows(p, C, groups, BATCH, BC)
    if GIVEN:
        found = 1.0 / tl.sqrt(found + eps + eps_rest)
    return found


@triton.jit
def _write(
    x, weight, bias, output, mean, spread, eps, eps_rest, C, S, sn, sc, ss, groups,
    BATCH: tl.constexpr, GIVEN: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    at, inside = _tile(C, S, sn, sc, ss, tl.program_id(2).to(tl.int64) * BS, S, BC, BS)
    v = tl.load(x + at, mask=inside, other=0.0).to(tl.float64)
    z = (v - _rows(mean, C, groups, BATCH, BC)) * _spread(spread, eps, eps_rest, C, groups, BATCH, GIVEN, BC)
    if weight is not None:
        z *= _vector(weight, C, BC)
    if bias is not None:
        z += _vector(bias, C, BC)
    tl.store(output + at, z.to(tl.float32).to(output.dtype.element_ty), mask=inside)


@triton.jit
def _sums(
    x, grad, mean, spread, of_weight, of_bias, eps, eps_rest, C, S, sn, sc, ss, groups, length, splits,
    BATCH: tl.constexpr, GIVEN: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """The sums of grad z and of grad over a tile's channels."""
    begin = tl.program_id(2).to(tl.int64) * length
    end = tl.minimum(begin + length, S)
    middle = _rows(mean, C, groups, BATCH, BC)
    scale = _spread(spread, eps, eps_rest, C, groups, BATCH, GIVEN, BC)
    gz = tl.zeros([BC], tl.float64)
    flow = tl.zeros([BC], tl.float64)
    for s0 in tl.range(begin, end, BS):
        at, inside = _tile(C, S, sn, sc, ss, s0, end, BC, BS)
        z = (tl.load(x + at, mask=inside, other=0.0).to(tl.float64) - middle) * scale
        g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float64)
        gz += tl.sum(tl.where(inside, g * z, 0.0), 1)
        flow += tl.sum(g, 1)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    to = (tl.program_id(0).to(tl.int64) * splits + tl.program_id(2)) * C + c
    tl.store(of_weight + to, gz, mask=c < C)
    tl.store(of_bias + to, flow, mask=c < C)


@triton.jit
def _turn(
    x, grad, weight, grad_x, mean, spread, mean_gw, mean_gwz, eps, eps_rest, C, S, sn, sc, ss, groups,
    BATCH: tl.constexpr, GIVEN: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """grad_x = rstd (gw - mean(gw) - z mean(gw z)); without the means where the statistics are given."""
    at, inside = _tile(C, S, sn, sc, ss, tl.program_id(2).to(tl.int64) * BS, S, BC, BS)
    scale = _spread(spread, eps, eps_rest, C, groups, BATCH, GIVEN, BC)
    d = tl.load(grad + at, mask=inside, other=0.0).to(tl.float64)
    if weight is not None:
        d *= _vector(weight, C, BC)
    if not GIVEN:
        middle = _rows(mean, C, groups, BATCH, BC)
        z = (tl.load(x + at, mask=inside, other=0.0).to(tl.float64) - middle) * scale
        d -= _rows(mean_gw, C, groups, BATCH, BC) + z * _rows(mean_gwz, C, groups, BATCH, BC)
    tl.store(grad_x + at, (d * scale).to(tl.float32).to(grad_x.dtype.element_ty), mask=inside)


MEASURE, JOIN, WRITE = Kernel(_measure), Kernel(_join), Kernel(_write)
SUMS, AVERAGE, COLUMNS, TURN = Kernel(_sums), Kernel(_average), Kernel(_columns), Kernel(_turn)


@functools.lru_cache(maxsize=64)
def _in_two(number: float) -> tuple[float, float]:
    """A number as a float32 and the rest of it: what a launch hands on is float32."""
    first = torch.tensor(float(number), dtype=torch.float32).item()
    return first, float(number) - first


class _Plan:
    """How x of a shape is read, and the launches for it; made once for each."""

    def __init__(self, passes: "ChannelPasses", x: Tensor, groups: int) -> None:
        self.configs, self.dtype = passes.configs, x.dtype
        self.n, self.c, self.s, self.groups, self.batch = problem_of(passes.rows, x, groups)
        self.last = memory_format(x) is not torch.contiguous_format
        steps = (self.s * self.c, 1, self.c) if self.last else (self.c * self.s, self.s, 1)
        self.sizes = (self.c, self.s, *steps)
        self.splits = -(-self.s // SPLIT)
        self.rows = self.c if self.batch else self.n * self.groups
        self.entries = self.splits * (self.n if self.batch else self.c // self.groups)
        self.total = self.s * (self.n if self.batch else self.c // self.groups)
        self.parts = (2, self.n, self.splits, self.c)
        self.at = functools.cache(self._at)

    def _at(self, kernel: Kernel, name: str, **more: Any) -> tuple[Any, int, int]:
        """A kernel over tiles: its launch, and how many blocks of channels and tiles of positions there are."""
        chosen = self.configs.pick(name, N=self.s, dtype=self.dtype)
        wide = chosen.pop("ELEMENTS")
        channels = min(32 if self.last else max(1, wide // 4 // max(self.s, 1)), 32, triton.next_power_of_2(self.c))
        channels = triton.next_power_of_2(channels)
        chosen |= {"BC": channels, "BS": min(wide // channels, triton.next_power_of_2(self.s))}
        return kernel.at(**chosen, **more), -(-self.c // channels), -(-self.s // chosen["BS"])

    @functools.cached_property
    def of_rows(self) -> dict[str, Any]:
        """How a program goes over the parts of its row."""
        block = min(512, triton.next_power_of_2(self.entries))
        return {"BATCH": self.batch, "BLOCK": block, "num_warps": 4 if block > 128 else 1}

    @functools.cached_property
    def join(self) -> Any:
        return JOIN.at(**self.of_rows)

    @functools.cached_property
    def average(self) -> Any:
        return AVERAGE.at(**self.of_rows)

    @functools.cached_property
    def columns(self) -> tuple[Any, int]:
        """The launch for parameters' gradients, and its programs."""
        wide = min(32, triton.next_power_of_2(self.c))
        high = min(64, triton.next_power_of_2(self.n * self.splits))
        return COLUMNS.at(BC=wide, BE=high, num_warps=4), -(-self.c // wide)


class _Problem:
    """One call: x as the kernels read it, with its plan."""

    def __init__(self, plan: _Plan, x: Tensor, eps: float) -> None:
        self.plan, self.x, self.eps = plan, x, _in_two(eps)

    def numbers(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float64, device=self.x.device)

    def over_tiles(self, kernel: Kernel, name: str, *tensors: Any, given: bool) -> None:
        """BATCH of a kernel over tiles: what it reads of rows is a number a channel. Statistics that are given are."""
        plan = self.plan
        launch, blocks, tiles = plan.at(kernel, name, BATCH=plan.batch or given, GIVEN=given)
        launch((plan.n, blocks, tiles), *tensors, *self.eps, *plan.sizes, plan.groups)

    def statistics(self, momentum: float, running: tuple[Any, Any], variance: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and 1 / spread of rows. ``running`` moves by ``momentum``; variances are written where they are asked
        for."""
        plan = self.plan
        mean, squares = self.numbers(*plan.parts)
        launch, blocks, _ = plan.at(MEASURE, "measure")
        launch((plan.n, blocks, plan.splits), self.x, mean, squares, *plan.sizes, SPLIT, plan.splits)
        middle, rstd = self.numbers(2, plan.rows)
        plan.join(
            (plan.rows, 1, 1), mean, squares, middle, rstd, variance, *running, plan.c, plan.s, plan.groups,
            plan.splits, SPLIT, plan.entries, *self.eps, *_in_two(momentum),
        )  # fmt: skip
        return middle, rstd


class ChannelPasses:
    """The passes of one op in its op package's configurations; ``names`` are its arguments in order. ``flag`` is that
    which says whether a row's own statistics are taken, "" where there is no choice."""

    def __init__(self, op_package: str, names: tuple[str, ...], rows: str, flag: str) -> None:
        self.configs, self.names, self.rows, self.flag = configs(op_package), names, rows, flag
        self.plans: dict[Any, _Plan] = {}

    def _given(self, have: dict[str, Any]) -> bool:
        return bool(self.flag) and not have[self.flag]

    def _problem(self, x: Tensor, have: dict[str, Any]) -> _Problem:
        groups = have.get("num_groups", 1)
        key = (x.shape, x.dtype, memory_format(x), groups)
        plan = self.plans.get(key)
        if plan is None:
            if len(self.plans) >= MOST_PLANS:
                self.plans.clear()
            plan = self.plans[key] = _Plan(self, x, groups)
        return _Problem(plan, x, have["eps"])

    def forward(self, *args: Any, out: Any = None) -> Tensor:
        have = dict(zip(self.names, args, strict=True))
        x = have["x"]
        output: Tensor = empty_like_input(x) if out is None else out
        x = x.contiguous(memory_format=memory_format(output))
        if not x.numel():
            return output
        problem, given = self._problem(x, have), self._given(have)
        if given:
            mean, spread = have["running_mean"].contiguous(), have["running_var"].contiguous()
        else:
            mean, spread = self._statistics(problem, have)
        tensors = (x, _plain(have["weight"]), _plain(have["bias"]), output, mean, spread)
        problem.over_tiles(WRITE, "write", *tensors, given=given)
        return output

    def _statistics(self, problem: _Problem, have: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Those of rows; the running ones move."""
        plan = problem.plan
        running = tuple(have.get(name) for name in ("running_mean", "running_var"))
        if all(t is None for t in running):
            return problem.statistics(0.0, (None, None), None)
        momentum = have["momentum"]
        if plan.batch and all(t is not None and t.is_contiguous() for t in running):
            return problem.statistics(momentum, running, None)  # type: ignore[arg-type]
        variance = problem.numbers(plan.rows)
        mean, rstd = problem.statistics(0.0, (None, None), variance)
        own = (mean, variance * (plan.total / max(plan.total - 1, 1)))
        for its, new in zip(running, own, strict=True):
            if its is not None:
                moved = new if plan.batch else new.reshape(plan.n, plan.c).mean(0)
                its.copy_((1.0 - momentum) * its.double() + momentum * moved)
        return mean, rstd

    def backward(self, grad: Tensor, *args: Any, out: Any = None) -> tuple[Tensor, ...]:
        have = dict(zip((*self.names, "needs"), args, strict=True))
        x, layout = have["x"], memory_format(have["x"])
        grad_x = empty_like_input(x) if out is None else out[0]
        x, grad = x.contiguous(memory_format=layout), grad.contiguous(memory_format=layout)
        weight, needs = _plain(have["weight"]), dict(zip(("x", "weight", "bias"), have["needs"], strict=True))
        fill = torch.empty_like if x.numel() else torch.zeros_like
        made = [
            fill(have[n], memory_format=torch.contiguous_format) if have[n] is not None and needs[n] else None
            for n in ("weight", "bias")
        ]
        if x.numel():
            problem, given = self._problem(x, have), self._given(have)
            plan = problem.plan
            if given:
                mean, spread = have["running_mean"].contiguous(), have["running_var"].contiguous()
            else:
                mean, spread = problem.statistics(0.0, (None, None), None)
            of_weight, of_bias = problem.numbers(*plan.parts)
            launch, blocks, _ = plan.at(SUMS, "sums", BATCH=plan.batch or given, GIVEN=given)
            tensors = (x, grad, mean, spread, of_weight, of_bias)
            launch((plan.n, blocks, plan.splits), *tensors, *problem.eps, *plan.sizes, plan.groups, SPLIT, plan.splits)
            means: Any = (None, None)
            if not given:
                means = problem.numbers(2, plan.rows)
                plan.average(
                    (plan.rows, 1, 1), of_weight, of_bias, weight, means[1], means[0], plan.c, plan.s, plan.groups,
                    plan.splits, plan.entries, plan.total // plan.s,
                )  # fmt: skip
            problem.over_tiles(TURN, "turn", x, grad, weight, grad_x, mean, spread, *means, given=given)
            if any(t is not None for t in made):
                columns, programs = plan.columns
                columns((programs, 1, 1), of_weight, of_bias, *made, plan.c, plan.n * plan.splits)
        return (grad_x, *(x.new_empty(0) if t is None else t for t in made))


def _plain(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.contiguous()
