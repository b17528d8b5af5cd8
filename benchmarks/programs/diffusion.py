"""Steps of a diffusion model: a U-Net with guidance, and the sampler's arithmetic (DDIM, Song et al. 2020)."""

from __future__ import annotations

import functools
import itertools
import math

import torch
import torch.nn.functional as F
from place import DEVICE, sized
from torch import Tensor, nn

PAIRS = {"diffusion": "unet"}

STEPS, GUIDANCE = 2, 5.0


class ResBlock(nn.Module):
    def __init__(self, inside: int, outside: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, inside), nn.GroupNorm(32, outside)
        self.conv1 = nn.Conv2d(inside, outside, 3, padding=1)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1)
        self.time = nn.Linear(time, outside)
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(t))[:, :, None, None]
        h = self.conv2(F.silu(self.norm2(h)))
        return self.skip(x) + h


class Attention(nn.Module):
    """Over the pixels, then over the words of the prompt."""

    def __init__(self, width: int, words: int, heads: int = 8) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(words, width, bias=False)
        self.value = nn.Linear(words, width, bias=False)
        self.out2 = nn.Linear(width, width)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        b, c, h, w = x.shape
        y = self.norm(x).view(b, c, h * w).permute(0, 2, 1)
        y = y + self.out(self._attend(*self.qkv(y).chunk(3, dim=-1)))
        q = self.query(self.norm2(y))
        y = y + self.out2(self._attend(q, self.key(context), self.value(context)))
        return x + y.permute(0, 2, 1).reshape(b, c, h, w)


class UNet(nn.Module):
    def __init__(self, channels: int, widths: tuple[int, ...], words: int) -> None:
        super().__init__()
        self.base = widths[0]
        time = 4 * self.base
        self.time = nn.Sequential(nn.Linear(self.base, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(channels, self.base, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        inside = self.base
        for width in widths:
            self.down.append(
                nn.ModuleList([
                    ResBlock(inside, width, time), Attention(width, words), nn.Conv2d(width, width, 3, 2, 1)
                ])
            )  # fmt: skip
            inside = width
        self.middle = ResBlock(inside, inside, time)
        for width in reversed(widths):
            self.up.append(
                nn.ModuleList([
                    nn.Conv2d(inside, width, 3, padding=1), ResBlock(2 * width, width, time), Attention(width, words)
                ])
            )  # fmt: skip
            inside = width
        self.norm = nn.GroupNorm(32, inside)
        self.last = nn.Conv2d(inside, channels, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor, context: Tensor) -> Tensor:
        half = self.base // 2
        rates = torch.exp(-math.log(10000) * torch.arange(half, device=x.device) / half)
        angles = t[:, None].float() * rates[None]
        t = self.time(torch.cat([angles.cos(), angles.sin()], dim=-1).to(x.dtype))
        x, kept = self.first(x), []
        for block, attention, shrink in self.down:
            x = attention(block(x, t), context)
            kept.append(x)
            x = shrink(x)
        x = self.middle(x, t)
        for conv, block, attention in self.up:
            x = conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
            x = attention(block(torch.cat([x, kept.pop()], dim=1), t), context)
        return self.last(F.silu(self.norm(x)))


@functools.cache
def unet() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """The net, noise, the words of prompts and of none, and the noise schedule."""
    torch.manual_seed(0)
    widths, words = sized(cpu=((32, 64, 128), 64), gpu=((320, 640, 1280), 768))
    with torch.device(DEVICE):
        model = UNet(4, widths, words).eval()
    rows, side = sized(cpu=(1, 32), gpu=(4, 64))
    noise = torch.randn(rows, 4, side, side, device=DEVICE)
    prompts = torch.randn(2 * rows, 77, words, device=DEVICE)
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, device=DEVICE), 0)
    return model, noise, prompts, kept


@torch.no_grad()
def diffusion() -> Tensor:
    """Two steps of sampling, each guided by the difference that the prompt makes."""
    model, x, prompts, kept = unet()
    times = torch.linspace(999, 0, STEPS + 1).long().tolist()
    for now, after in itertools.pairwise(times):
        with torch.autocast(DEVICE, dtype=torch.float16, enabled=DEVICE == "cuda"):
            t = torch.full((2 * x.shape[0],), now, device=x.device)
            without, with_prompt = model(torch.cat([x, x]), t, prompts).float().chunk(2)
        noise = without + GUIDANCE * (with_prompt - without)
        clean = (x - (1 - kept[now]).sqrt() * noise) / kept[now].sqrt()
        x = kept[after].sqrt() * clean.clamp(-1, 1) + (1 - kept[after]).sqrt() * noise
    return x
