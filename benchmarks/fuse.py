"""Fused chains of four operators beside torch eager and inductor: ``python benchmarks/fuse.py``.

All arms run in every round, in turn. Prints of each the time that a tenth of its calls stay below and the median, and
the speedup over inductor of the first. Forward, then forward and backward. The results are compared first.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import kernelworks as kw

SIZES = ((16, 768), (256, 1024), (4096, 4096))
BUDGET_S = 0.05  # of one round of one arm


def bias_gelu_scale_residual(x: Tensor, bias: Tensor, residual: Tensor, scale: float) -> Tensor:
    return F.gelu(x + bias) * scale + residual


def bias_silu_gate_residual(x: Tensor, bias: Tensor, residual: Tensor, scale: float) -> Tensor:
    return F.silu(x + bias) * residual + x * scale


def scaled_softmax_mask(x: Tensor, bias: Tensor, residual: Tensor, scale: float) -> Tensor:
    return F.softmax((x + bias) * scale, -1) * residual


def bias_relu_scale_residual(x: Tensor, bias: Tensor, residual: Tensor, scale: float) -> Tensor:
    return F.relu(x + bias) * scale + residual


CHAINS = (bias_gelu_scale_residual, bias_silu_gate_residual, scaled_softmax_mask, bias_relu_scale_residual)


class Arm:
    def __init__(self, name: str, call: Callable[[], Any]) -> None:
        self.name, self.call = name, call
        self.seconds: list[float] = []
        begin = time.perf_counter()
        for _ in range(3):
            call()
        begin = time.perf_counter()
        call()
        self.calls = max(1, min(2000, int(BUDGET_S / max(time.perf_counter() - begin, 1e-7))))

    def sample(self) -> None:
        begin = time.perf_counter()
        for _ in range(self.calls):
            self.call()
        self.seconds.append((time.perf_counter() - begin) / self.calls)

    @property
    def best(self) -> float:
        return sorted(self.seconds)[len(self.seconds) // 10]


def arms(chain: Callable[..., Tensor], size: tuple[int, int], dtype: torch.dtype, *, training: bool) -> list[Arm]:
    torch._dynamo.reset()
    given = [torch.randn(s, dtype=dtype, requires_grad=training) for s in (size, size[1:], size)]
    functions = {"kw.fuse": kw.fuse(chain), "inductor": torch.compile(chain, dynamic=False), "eager": chain}
    grad = torch.randn(size, dtype=dtype)
    exact = chain(*(t.detach().double() for t in given), 0.5)

    def calls(function: Callable[..., Tensor]) -> Callable[[], Any]:
        if training:
            return lambda: torch.autograd.grad(function(*given, 0.5), given, grad)
        return lambda: function(*given, 0.5)

    for name, function in functions.items():
        error = (function(*given, 0.5).double() - exact).abs().max()
        assert error < (1e-4 if dtype is torch.float32 else 0.2), f"{name} is off by {error:.2g}"
    return [Arm(name, calls(function)) for name, function in functions.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="chains whose name has this in it")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    args = parser.parse_args()
    for training in (False, True):
        for chain in CHAINS:
            if args.only not in chain.__name__:
                continue
            for size in SIZES:
                found = arms(chain, size, getattr(torch, args.dtype), training=training)
                for _ in range(args.rounds):
                    for arm in found:
                        arm.sample()
                ours, inductor, eager = (arm.best * 1e6 for arm in found)
                medians = " ".join(f"{statistics.median(arm.seconds) * 1e6:.0f}" for arm in found)
                print(
                    f"{chain.__name__:26} {size[0]}x{size[1]} {'training' if training else 'forward':8} kw.fuse "
                    f"{ours:9.1f} us, inductor {inductor:9.1f}, eager {eager:9.1f} (medians {medians}): "
                    f"{inductor / ours:.2f} over inductor, {eager / ours:.2f} over eager",
                    flush=True,
                )


if __name__ == "__main__":
    main()
