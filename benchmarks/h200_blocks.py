"""Attention of named blocks on a GPU, beside FlexAttention with the same blocks and beside our own rate for all blocks.

    python benchmarks/h200_blocks.py [--out FILE]

What ``h200_ops.py`` cannot say of `block_sparse_attention`: how the rate of the blocks that are computed compares with
``attention``'s, which computes all of them at the same lengths. FlexAttention is compiled, and its mask is made ahead;
our lists are made in each call. Medians of Triton's ``do_bench`` (L2 is filled ahead of each call), arms in turns. How
far our output and gradients lie from FlexAttention's, normwise, stands beside the times.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from triton.testing import do_bench

import kernelworks as kw
from kernelworks.bench.results import head
from kernelworks.layout import in_lines
from kernelworks.op import OPS
from kernelworks.ops.attention.block_sparse_attention.cases import pattern
from kernelworks.ops.attention.block_sparse_attention.contract import BLOCK, blocks_of, pairs_of
from kernelworks.ops.attention.block_sparse_attention.peers import by_flex
from kernelworks.ops.attention.block_sparse_attention.triton_lists import lists_of

OUT = Path(__file__).resolve().parent / "results" / "h200-blocks.json"
ROWS = {"block_sparse_attention": ("sm90", "sm90_backward"), "attention": ("sm90", "sm90_backward")}
ROUNDS = {"forward": 3, "backward": 2}
FLOP = {"forward": 4, "backward": 10}  # a pair and head_dim

# B, H, Hkv, length, D, which blocks (a density, or a pattern's name), causal
SHAPES: tuple[tuple[int, int, int, int, int, float | str, bool], ...] = (
    *((1, 16, 16, 16384, 128, density, False) for density in (0.1, 0.25, 0.5, 1.0)),
    *((1, 16, 16, 16384, 128, seen, True) for seen in ("window", "documents", "all")),
    (4, 16, 16, 4096, 128, 0.25, False),
    (4, 16, 16, 4096, 64, 0.25, False),
    (1, 16, 16, 16384, 64, "window", True),
    (2, 32, 8, 8192, 128, 0.25, True),
)

Arm = Callable[[Tensor, Tensor, Tensor], Tensor]


def arms_of(args: dict[str, Any]) -> dict[str, Arm]:
    """Our rows by name, so that no choice is timed; the gradients' row where gradients flow."""
    mask, causal, shared = args["block_mask"], args["is_causal"], args["enable_gqa"]

    def row(q: Tensor) -> str:
        return "sm90_backward" if q.requires_grad else "sm90"

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return kw.block_sparse_attention(q, k, v, mask, is_causal=causal, enable_gqa=shared, row=row(q))

    def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return kw.attention(q, k, v, causal="top_left" if causal else None, row=row(q))

    flex = by_flex(args)
    assert flex is not None
    return {"ours": ours, "flex": flex, "dense": dense}


def calls_of(arm: Arm, inputs: list[Tensor], grad: Tensor) -> dict[str, Callable[[], Any]]:
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    output = arm(*leaves)
    return {
        "forward": lambda: arm(*inputs),
        "backward": lambda: torch.autograd.grad(output, leaves, grad, retain_graph=True),
    }


def median_ms(call: Callable[[], Any]) -> float:
    return float(do_bench(call, warmup=4, rep=25, return_mode="median"))


def off(found: list[Tensor], want: list[Tensor]) -> list[float]:
    return [round(float((x - y).norm() / y.norm()), 5) for x, y in zip(found, want, strict=True)]


def measured() -> Iterator[dict[str, Any]]:
    draw = torch.Generator("cuda").manual_seed(0)
    for batch, heads, shared, length, dim, seen, causal in SHAPES:
        inputs = [
            torch.randn(batch, h, length, dim, device="cuda", dtype=torch.bfloat16, generator=draw)
            for h in (heads, shared, shared)
        ]
        tiles = blocks_of(length)
        mask = pattern(seen, tiles, tiles, draw, 1, 1)
        args = dict(zip(("query", "key", "value"), inputs, strict=True)) | {
            "block_mask": mask, "is_causal": causal, "scale": None, "enable_gqa": heads != shared, "with_lse": False,
        }  # fmt: skip
        grad = torch.randn_like(inputs[0])
        calls = {name: calls_of(arm, inputs, grad) for name, arm in arms_of(args).items()}
        results = {n: [t.float() for t in (c["forward"](), *c["backward"]())] for n, c in calls.items() if n != "dense"}
        pairs = pairs_of(mask, batch, heads, length, length, causal)
        whole = batch * heads * length**2 / (2 if causal else 1)
        blocks = {
            "ours": int((mask.tril() if causal else mask).sum()) * batch * heads,
            "dense": batch * heads * tiles * ((tiles + 1) / 2 if causal else tiles),
        }
        line: dict[str, Any] = {
            "shape": [batch, heads, shared, length, dim, seen, causal],
            "off_flex": off(results["ours"], results["flex"]), "pairs": pairs, "share": pairs / whole,
            "blocks": blocks["ours"], "lists_ms": median_ms(lambda mask=mask, causal=causal: lists_of(mask, causal)),
        }  # fmt: skip
        for pass_ in FLOP:
            took: dict[str, list[float]] = {name: [] for name in calls}
            order = list(calls)
            for _ in range(ROUNDS[pass_]):
                for name in order:
                    took[name].append(median_ms(calls[name][pass_]))
                order.reverse()
            ms = {name: statistics.median(values) for name, values in took.items()}
            a_pair = FLOP[pass_] * dim / 1e9
            line[pass_] = {
                "ms": ms,
                "tflops": {n: a_pair * (whole if n == "dense" else pairs) / t for n, t in ms.items()},
                "tflops_of_blocks": {
                    n: a_pair * BLOCK**2 * blocks["dense" if n == "dense" else "ours"] / t for n, t in ms.items()
                },
            }
        yield line
        print(line["shape"], *(f"{p} {line[p]['ms']}" for p in FLOP), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    out = parser.parse_args().out
    torch._dynamo.config.recompile_limit = (
        1000  # every shape is a build of FlexAttention; beyond the limit it runs unfused
    )
    sources = {f"{op}.{row}": OPS[op].row(row).hash() for op, rows in ROWS.items() for row in rows}
    found = {**head("cuda", ("triton",)), "sources": sources, "rows": list(measured())}
    out.write_text(in_lines(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
