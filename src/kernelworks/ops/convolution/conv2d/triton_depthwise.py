"""Depthwise conv2d on the GPU: a filter sees one channel, so that nothing is left of a matrix product, and memory sets
the time.

A program takes ROWS rows of the output times LANES neighbours of STRIPS strips. Neighbours are columns of a plane, or
channels where those lie side by side (channels_last). It asks for the rows of the picture that its rows need, once for
each column of the window: the shifted columns and the rows that the strip above shares come out of L1 and L2. A filter
stays in registers. Strides, dilation and the window's size are compiled in, so that all loads stand before the first
product.
"""

import functools
import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs, kernel
from kernelworks.ops.convolution.conv2d.contract import windows_of
from kernelworks.templates.window import Windows, like_picture
from kernelworks.tile.row_chunks import appended

CONFIGS = configs(__file__)
HELD = 100  # elements of the picture that a thread keeps; filter, sums and addresses have the rest of its registers
NARROWEST = 32  # neighbours that a warp reads at once
LEAST_TURNS = 4  # of a share of the filters' gradient: fewer are more sums to add up than they are work
# One build serves all sizes and strides: a thread's loads are of one element each, so nothing is gained by what divides
# them.
NUMBERS = (
    "lanes", "strips", "H", "W", "OH", "OW", "filters", "bands", "tiles", "top", "left", "out_b", "out_o",
    "out_h", "out_w", "g_b", "g_o", "g_h", "g_w", "x_b", "x_c", "x_h", "x_w", "weight_o", "weight_h", "weight_w",
    "bias_o",
)  # fmt: skip


@kernel
def _places(lanes, strips, OW, filters, bands, LAST: tl.constexpr, STRIPS: tl.constexpr, LANES: tl.constexpr):
    """Batch, filter, band of rows and column of a program's elements, and which of them there are."""
    across = tl.cdiv(lanes, LANES)
    lane = tl.program_id(0) % across * LANES + tl.arange(0, LANES)[None, :]
    strip = tl.program_id(0) // across * STRIPS + tl.arange(0, STRIPS)[:, None]
    there = (lane < lanes) & (strip < strips)
    if LAST:
        line = strip // OW
        return line // bands, lane, line % bands, strip % OW, there
    else:
        plane = strip // bands
        return plane // filters, plane % filters, strip % bands, lane, there


@kernel
def _held(
    at, there, first_h, first_w, H, W, x_h, x_w,
    KH: tl.constexpr, KW: tl.constexpr, DOWN: tl.constexpr, APART_H: tl.constexpr, APART_W: tl.constexpr,
    SIDE_BY_SIDE: tl.constexpr, EDGES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """What ROWS rows of windows need of the picture, row by row, from ``at`` on; 0 outside. Distances within a row are
    known to the compiler where columns are SIDE_BY_SIDE; without EDGES no window of the output reaches over one of a
    row's ends."""
    down, right = tl.cast(x_h, tl.int64), 1 if SIDE_BY_SIDE else tl.cast(x_w, tl.int64)
    held = ()
    for t in tl.static_range((ROWS - 1) * DOWN + (KH - 1) * APART_H + 1):
        line = at + t * down
        mask = there & (tl.cast(first_h + t, tl.uint32) < tl.cast(H, tl.uint32))
        for j in tl.static_range(KW):
            if EDGES:
                inside = mask & (tl.cast(first_w + j * APART_W, tl.uint32) < tl.cast(W, tl.uint32))
                held = appended(held, tl.load(line + j * APART_W * right, mask=inside, other=0.0))
            else:
                held = appended(held, tl.load(line + j * APART_W * right, mask=mask, other=0.0))
    return held


@triton.jit(do_not_specialize=NUMBERS)
def _forward(
    output, x, weight, bias, lanes, strips, H, W, OH, OW, filters, bands, top, left,
    out_b, out_o, out_h, out_w, x_b, x_c, x_h, x_w, weight_o, weight_h, weight_w, bias_o,
    KH: tl.constexpr, KW: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr, APART_H: tl.constexpr,
    APART_W: tl.constexpr, LAST: tl.constexpr, SIDE_BY_SIDE: tl.constexpr, EDGES: tl.constexpr, MANY: tl.constexpr,
    ROWS: tl.constexpr, STRIPS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """MANY: filters of a channel."""
    b, o, band, ow, there = _places(lanes, strips, OW, filters, bands, LAST, STRIPS, LANES)
    oh = band * ROWS
    first_h, first_w = oh * DOWN - top, ow * RIGHT - left
    at = x + b.to(tl.int64) * x_b + (o // MANY).to(tl.int64) * x_c
    at += first_h.to(tl.int64) * x_h
    at += first_w.to(tl.int64) * x_w
    held = _held(
        at, there, first_h, first_w, H, W, x_h, x_w, KH, KW, DOWN, APART_H, APART_W, SIDE_BY_SIDE, EDGES, ROWS
    )  # fmt: skip
    from_weight = weight + o.to(tl.int64) * weight_o
    taps = ()
    for i in tl.static_range(KH):
        for j in tl.static_range(KW):
            tap = tl.load(from_weight + i * weight_h + j * weight_w, mask=o < filters, other=0.0)
            taps = appended(taps, tap.to(tl.float32))
    start = tl.zeros([STRIPS, LANES], tl.float32)
    if bias is not None:
        start += tl.load(bias + o.to(tl.int64) * bias_o, mask=o < filters, other=0.0).to(tl.float32)
    to = output + b.to(tl.int64) * out_b + o.to(tl.int64) * out_o
    to += oh.to(tl.int64) * out_h
    to += ow.to(tl.int64) * out_w
    down = tl.cast(out_h, tl.int64)
    for r in tl.static_range(ROWS):
        total = start
        for i in tl.static_range(KH):
            for j in tl.static_range(KW):
                total += taps[i * KW + j] * tl.cast(held[(r * DOWN + i * APART_H) * KW + j], tl.float32)
        tl.store(to + r * down, total.to(output.dtype.element_ty), mask=there & (oh + r < OH))


@triton.jit(do_not_specialize=NUMBERS)
def _of_filters(
    share_sums, grad, x, lanes, strips, H, W, OH, OW, filters, bands, tiles, top, left,
    g_b, g_o, g_h, g_w, x_b, x_c, x_h, x_w,
    KH: tl.constexpr, KW: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr, APART_H: tl.constexpr,
    APART_W: tl.constexpr, LAST: tl.constexpr, SIDE_BY_SIDE: tl.constexpr, EDGES: tl.constexpr, ROWS: tl.constexpr,
    STRIPS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """share_sums [shares, KH KW, filters]: a program adds up what a share of the positions adds to the gradients of one
    filter, or of LANES of them where channels lie side by side. ``strips`` are those of one filter, ``tiles`` the turns
    of a share."""
    blocks = tl.cdiv(lanes, LANES) if LAST else filters
    block, share = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    sums = ()
    for _ in tl.static_range(KH * KW):
        sums = appended(sums, tl.zeros([STRIPS, LANES], tl.float32))
    across = 1 if LAST else tl.cdiv(lanes, LANES)
    for turn in tl.range(share * tiles, (share + 1) * tiles):
        lane = (block if LAST else turn % across) * LANES + tl.arange(0, LANES)[None, :]
        strip = turn // across * STRIPS + tl.arange(0, STRIPS)[:, None]
        there = (lane < lanes) & (strip < strips)
        if LAST:
            o, ow, line = lane, strip % OW, strip // OW
        else:
            o, ow, line = block, lane, strip
        b, oh = line // bands, line % bands * ROWS
        first_h, first_w = oh * DOWN - top, ow * RIGHT - left
        at = x + b.to(tl.int64) * x_b + o.to(tl.int64) * x_c
        at += first_h.to(tl.int64) * x_h
        at += first_w.to(tl.int64) * x_w
        held = _held(
            at, there, first_h, first_w, H, W, x_h, x_w, KH, KW, DOWN, APART_H, APART_W, SIDE_BY_SIDE, EDGES, ROWS
        )  # fmt: skip
        from_grad = grad + b.to(tl.int64) * g_b + o.to(tl.int64) * g_o + ow.to(tl.int64) * g_w
        flows = ()
        for r in tl.static_range(ROWS):
            flow = tl.load(from_grad + (oh + r).to(tl.int64) * g_h, mask=there & (oh + r < OH), other=0.0)
            flows = appended(flows, flow.to(tl.float32))
        more = ()
        for i in tl.static_range(KH):
            for j in tl.static_range(KW):
                total = tl.cast(sums[i * KW + j], tl.float32)
                for r in tl.static_range(ROWS):
                    total += flows[r] * tl.cast(held[(r * DOWN + i * APART_H) * KW + j], tl.float32)
                more = appended(more, total)
        sums = more
    to = share_sums + share.to(tl.int64) * (KH * KW) * filters
    for k in tl.static_range(KH * KW):
        if LAST:
            o = block * LANES + tl.arange(0, LANES)
            tl.store(to + k * filters + o, tl.sum(sums[k], 0), mask=o < lanes)
        else:
            tl.store(to + k * filters + block, tl.sum(tl.sum(sums[k], 1), 0))


FORWARD, OF_FILTERS = Kernel(_forward), Kernel(_of_filters)


def _rows(windows: Windows, most: int, high: int) -> int:
    """The rows of a strip: a power of two, so many that a thread holds what they need of the picture, and no more than
    the output is high."""
    rows = min(most, triton.next_power_of_2(high))
    while rows > 1 and ((rows - 1) * windows.stride[0] + windows.reach(0)) * windows.size[1] > HELD:
        rows //= 2
    return rows


def _lanes(n: int, most: int) -> int:
    """The neighbours of a program, a power of two: of those that leave the fewest over the end, the most."""
    found = triton.next_power_of_2(n)
    if found <= NARROWEST:
        return found
    tried = [lanes for lanes in (NARROWEST << k for k in range(8)) if lanes <= min(most, found)]
    return min(tried, key=lambda lanes: (-(-n // lanes) * lanes, -lanes))


@functools.cache
def _at(
    pass_: str, windows: Windows, high: int, lanes: int, last: bool, dtype: torch.dtype, **more: int
) -> tuple[Launch, int, int, int]:
    """The launch, and the rows, strips and lanes of a program."""
    chosen = CONFIGS.pick(pass_, op_kernel="triton_depthwise", dtype=dtype)
    elements, rows = chosen.pop("ELEMENTS"), _rows(windows, chosen.pop("ROWS"), high)
    chosen.pop("PROGRAMS", None)
    wide = _lanes(lanes, elements)
    (down, right), (apart_h, apart_w) = windows.stride, windows.dilation
    launch = (FORWARD if pass_ == "forward" else OF_FILTERS).at(
        KH=windows.size[0], KW=windows.size[1], DOWN=down, RIGHT=right, APART_H=apart_h, APART_W=apart_w, LAST=last,
        EDGES=windows.padding[1] != 0, **more, ROWS=rows, STRIPS=elements // wide, LANES=wide, **chosen,
    )  # fmt: skip
    return launch, rows, elements // wide, wide


def _is_last(t: Tensor) -> bool:
    """Whether channels lie side by side."""
    return t.stride(1) == 1 and t.stride(3) != 1


def _convolve(output: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, windows: Windows) -> None:
    (B, C, H, W), (filters, OH, OW) = x.shape, output.shape[1:]
    last = _is_last(output)
    lanes = filters if last else OW
    launch, rows, many, wide = _at(
        "forward", windows, triton.next_power_of_2(OH), lanes, last, x.dtype, MANY=filters // C,
        SIDE_BY_SIDE=x.stride(3) == 1,
    )  # fmt: skip
    bands = -(-OH // rows)
    strips = B * bands * (OW if last else filters)
    launch(
        (-(-strips // many) * -(-lanes // wide), 1, 1), output, x, weight, bias, lanes, strips, H, W, OH, OW, filters,
        bands, *windows.padding, *output.stride(), *x.stride(), weight.stride(0), weight.stride(2),
        weight.stride(3), 0 if bias is None else bias.stride(0),
    )  # fmt: skip


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int,
    out: Any = None,
) -> Tensor:  # fmt: skip
    windows = windows_of(weight, stride, padding, dilation)
    shape = (x.shape[0], weight.shape[0], *windows.counts((x.shape[2], x.shape[3])))
    output: Tensor = like_picture(x, shape, weight) if out is None else out
    if output.numel():
        _convolve(output, x, weight, bias, windows)
    return output


def _filters(made: Tensor, grad: Tensor, x: Tensor, windows: Windows) -> None:
    """The gradient of the filters, one a channel: shares of the positions, then their sum."""
    (B, filters, OH, OW), (H, W) = grad.shape, x.shape[2:]
    last = _is_last(x)
    lanes = filters if last else OW
    programs = CONFIGS.pick("filters", op_kernel="triton_depthwise", dtype=x.dtype)["PROGRAMS"]
    launch, rows, many, wide = _at(
        "filters", windows, triton.next_power_of_2(OH), lanes, last, x.dtype, SIDE_BY_SIDE=x.stride(3) == 1
    )  # fmt: skip
    bands = -(-OH // rows)
    strips = B * bands * (OW if last else 1)
    blocks = -(-lanes // wide) if last else filters
    turns = -(-strips // many) * (1 if last else -(-lanes // wide))
    tiles = max(LEAST_TURNS, -(-turns // max(1, programs // blocks)))
    shares = -(-turns // tiles)
    sums = torch.empty((shares, math.prod(windows.size), filters), dtype=torch.float32, device=x.device)
    launch(
        (blocks * shares, 1, 1), sums, grad, x, lanes, strips, H, W, OH, OW, filters, bands, tiles, *windows.padding,
        *grad.stride(), *x.stride(),
    )  # fmt: skip
    made.copy_(sums.sum(0).T.reshape(made.shape))


def backward(
    grad: Tensor, x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int, needs: list[bool],
    out: Any = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradient of x is a convolution of what flows in with the turned filter, padded by what the window reaches
    over the padding: the stride is 1, and a channel has one filter."""
    windows = windows_of(weight, stride, padding, dilation)
    made: tuple[Tensor, Tensor, Tensor] = out if out is not None else (
        torch.empty_like(x) if needs[0] else x.new_empty(0),
        torch.empty_like(weight) if needs[1] else x.new_empty(0),
        x.new_empty(weight.shape[0] if needs[2] else 0),
    )  # fmt: skip
    if not grad.numel():
        for gradient in made:
            gradient.zero_()
        return made
    if needs[0]:
        around = windows.reach(0) - 1 - windows.padding[0], windows.reach(1) - 1 - windows.padding[1]
        turned = Windows(windows.size, (1, 1), around, windows.dilation)
        _convolve(made[0], grad, weight.flip(2, 3), None, turned)
    if needs[1]:
        _filters(made[1], grad, x, windows)
    if needs[2]:
        made[2].copy_(grad.sum((0, 2, 3), dtype=torch.float32))
    return made
