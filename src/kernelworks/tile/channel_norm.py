"""Norms of [N, C, S] whose parameters run along C, for any op package of the channel norm template.

A program takes a tile of channels and positions of one sample, however x lies. The first kernel leaves mean and squares
of each channel of a sample, in float64 and in splits of the positions; torch's own functions join these few numbers
to rows; the second kernel writes. The backward has a kernel for the sums of both gradients' terms beside. float64 is
what a row of any mean, spread and length needs; the kernels wait on memory, not on it.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, configs
from kernelworks.contract.channel_layout import empty_like_input, memory_format, problem_of

SPLIT = 4096  # positions that a program goes over


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
def _vector(p, C, BC: tl.constexpr):
    """A tile's part of a vector of the channels, or of a sample's."""
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    return tl.load(p + c, mask=c < C, other=0.0).to(tl.float64)[:, None]


@triton.jit
def _write(
    x, weight, bias, output, mean, rstd, C, S, sn, sc, ss, BC: tl.constexpr, BS: tl.constexpr
):  # fmt: skip
    at, inside = _tile(C, S, sn, sc, ss, tl.program_id(2).to(tl.int64) * BS, S, BC, BS)
    own = tl.program_id(0).to(tl.int64) * C
    v = tl.load(x + at, mask=inside, other=0.0).to(tl.float64)
    z = (v - _vector(mean + own, C, BC)) * _vector(rstd + own, C, BC)
    if weight is not None:
        z *= _vector(weight, C, BC)
    if bias is not None:
        z += _vector(bias, C, BC)
    tl.store(output + at, z.to(tl.float32).to(output.dtype.element_ty), mask=inside)


@triton.jit
def _sums(
    x, grad, mean, rstd, of_weight, of_bias, C, S, sn, sc, ss, length, splits, BC: tl.constexpr, BS: tl.constexpr
):  # fmt: skip
    """The sums of grad z and of grad over a tile's channels."""
    begin = tl.program_id(2).to(tl.int64) * length
    end = tl.minimum(begin + length, S)
    own = tl.program_id(0).to(tl.int64) * C
    middle = _vector(mean + own, C, BC)
    scale = _vector(rstd + own, C, BC)
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
    x, grad, weight, grad_x, mean, rstd, mean_gw, mean_gwz, C, S, sn, sc, ss, OWN: tl.constexpr, BC: tl.constexpr,
    BS: tl.constexpr,
):  # fmt: skip
    """grad_x = rstd (gw - mean(gw) - z mean(gw z)); without the means where the statistics are given."""
    at, inside = _tile(C, S, sn, sc, ss, tl.program_id(2).to(tl.int64) * BS, S, BC, BS)
    own = tl.program_id(0).to(tl.int64) * C
    scale = _vector(rstd + own, C, BC)
    d = tl.load(grad + at, mask=inside, other=0.0).to(tl.float64)
    if weight is not None:
        d *= _vector(weight, C, BC)
    if OWN:
        z = (tl.load(x + at, mask=inside, other=0.0).to(tl.float64) - _vector(mean + own, C, BC)) * scale
        d -= _vector(mean_gw + own, C, BC) + z * _vector(mean_gwz + own, C, BC)
    tl.store(grad_x + at, (d * scale).to(tl.float32).to(grad_x.dtype.element_ty), mask=inside)


MEASURE, WRITE, SUMS, TURN = Kernel(_measure), Kernel(_write), Kernel(_sums), Kernel(_turn)


class _Problem:
    """One call: x as the kernels read it, and the grids of its tiles."""

    def __init__(self, passes: "ChannelPasses", x: Tensor, groups: int) -> None:
        self.x, self.configs = x, passes.configs
        self.n, self.c, self.s, self.groups, self.batch = problem_of(passes.rows, x, groups)
        self.last = memory_format(x) is not torch.contiguous_format
        steps = (self.s * self.c, 1, self.c) if self.last else (self.c * self.s, self.s, 1)
        self.sizes = (self.c, self.s, *steps)
        self.splits = -(-self.s // SPLIT)

    def _at(self, kernel: Kernel, name: str, **more: Any) -> Any:
        chosen = self.configs.pick(name, N=self.s, dtype=self.x.dtype)
        wide = chosen.pop("ELEMENTS")
        channels = min(32 if self.last else max(1, wide // 4 // max(self.s, 1)), 32, triton.next_power_of_2(self.c))
        channels = triton.next_power_of_2(channels)
        chosen |= {"BC": channels, "BS": min(wide // channels, triton.next_power_of_2(self.s))}
        return kernel.at(**chosen, **more), -(-self.c // channels), -(-self.s // chosen["BS"])

    def over_splits(self, kernel: Kernel, name: str, *tensors: Any) -> None:
        launch, blocks, _ = self._at(kernel, name)
        launch((self.n, blocks, self.splits), *tensors, *self.sizes, SPLIT, self.splits)

    def over_tiles(self, kernel: Kernel, name: str, *tensors: Any, **more: Any) -> None:
        launch, blocks, tiles = self._at(kernel, name, **more)
        launch((self.n, blocks, tiles), *tensors, *self.sizes)

    def parts(self) -> Tensor:
        return torch.empty((self.n, self.splits, self.c), dtype=torch.float64, device=self.x.device)

    def in_rows(self, parts: Tensor) -> Tensor:
        """Parts [N, splits, C] with those of a row in the last dimension."""
        if self.batch:
            return parts.permute(2, 0, 1).reshape(self.c, self.n * self.splits)
        channels = self.c // self.groups
        cut = parts.reshape(self.n, self.splits, self.groups, channels).transpose(1, 2)
        return cut.reshape(self.n, self.groups, self.splits * channels)

    def to_channels(self, row: Tensor) -> Tensor:
        """A number for each row as [N, C]."""
        if self.batch:
            return row.expand(self.n, self.c).contiguous()
        return row.repeat_interleave(self.c // self.groups, 1)

    def statistics(self, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Mean and 1 / spread as [N, C]; of rows mean and variance."""
        mean, squares = self.parts(), self.parts()
        self.over_splits(MEASURE, "measure", self.x, mean, squares)
        full = torch.full((self.splits,), float(SPLIT), dtype=torch.float64, device=self.x.device)
        full[-1:] = self.s - SPLIT * (self.splits - 1)
        counts = self.in_rows(full[None, :, None].expand(self.n, self.splits, self.c))
        means, around = self.in_rows(mean), self.in_rows(squares)
        total = (self.n if self.batch else self.c // self.groups) * self.s
        middle = (means * counts).sum(-1) / total
        variance = (around + counts * (means - middle[..., None]).square()).sum(-1) / total
        return self.to_channels(middle), self.to_channels(torch.rsqrt(variance + eps)), middle, variance

    def given(self, mean: Tensor, variance: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        spread = (mean.double(), torch.rsqrt(variance.double() + eps))
        return tuple(t.expand(self.n, self.c).contiguous() for t in spread)  # type: ignore[return-value]


class ChannelPasses:
    """The passes of one op in its op package's configurations; ``names`` are its arguments in order. ``flag`` is that
    which says whether a row's own statistics are taken, "" where there is no choice."""

    def __init__(self, op_package: str, names: tuple[str, ...], rows: str, flag: str) -> None:
        self.configs, self.names, self.rows, self.flag = configs(op_package), names, rows, flag

    def _given(self, have: dict[str, Any]) -> bool:
        return bool(self.flag) and not have[self.flag]

    def forward(self, *args: Any, out: Any = None) -> Tensor:
        have = dict(zip(self.names, args, strict=True))
        x = have["x"]
        output: Tensor = empty_like_input(x) if out is None else out
        x = x.contiguous(memory_format=memory_format(output))
        if not x.numel():
            return output
        problem = _Problem(self, x, have.get("num_groups", 1))
        if self._given(have):
            mean, rstd = problem.given(have["running_mean"], have["running_var"], have["eps"])
        else:
            mean, rstd, *rows = problem.statistics(have["eps"])
            self._move(have, problem, *rows)
        problem.over_tiles(WRITE, "write", x, _plain(have["weight"]), _plain(have["bias"]), output, mean, rstd)
        return output

    def _move(self, have: dict[str, Any], problem: _Problem, mean: Tensor, variance: Tensor) -> None:
        n = problem.s * (problem.n if problem.batch else 1)
        own = (mean, variance * (n / max(n - 1, 1)))
        for name, new in zip(("running_mean", "running_var"), own, strict=True):
            if have.get(name) is not None:
                moved = new if problem.batch else new.mean(0)
                have[name].copy_((1.0 - have["momentum"]) * have[name].double() + have["momentum"] * moved)

    def backward(self, grad: Tensor, *args: Any, out: Any = None) -> tuple[Tensor, ...]:
        have = dict(zip((*self.names, "needs"), args, strict=True))
        x, layout = have["x"], memory_format(have["x"])
        grad_x = empty_like_input(x) if out is None else out[0]
        x, grad = x.contiguous(memory_format=layout), grad.contiguous(memory_format=layout)
        weight, needs = have["weight"], dict(zip(("x", "weight", "bias"), have["needs"], strict=True))
        made = [
            have[n].new_zeros(have[n].shape) if have[n] is not None and needs[n] else None for n in ("weight", "bias")
        ]
        if x.numel():
            problem, own = _Problem(self, x, have.get("num_groups", 1)), not self._given(have)
            if own:
                mean, rstd, *_ = problem.statistics(have["eps"])
            else:
                mean, rstd = problem.given(have["running_mean"], have["running_var"], have["eps"])
            of_weight, of_bias = problem.parts(), problem.parts()
            problem.over_splits(SUMS, "sums", x, grad, mean, rstd, of_weight, of_bias)
            total = problem.s * (problem.n if problem.batch else problem.c // problem.groups)
            scale = 1.0 if weight is None else weight.double()
            means = [problem.to_channels(problem.in_rows(t * scale).sum(-1) / total) for t in (of_bias, of_weight)]
            problem.over_tiles(TURN, "turn", x, grad, _plain(weight), grad_x, mean, rstd, *means, OWN=own)
            for target, parts in zip(made, (of_weight, of_bias), strict=True):
                if target is not None:
                    target.copy_(parts.sum((0, 1)))
        return (grad_x, *(x.new_empty(0) if t is None else t for t in made))


def _plain(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.contiguous()
