"""Attention of named blocks on a GPU, beside FlexAttention with the same blocks and beside our own rate for all blocks.

    python benchmarks/h200_blocks.py [--out FILE]

What ``h200_ops.py`` cannot say of `block_sparse_attention`: how the rate of the blocks that are computed compares with
``attention``'s, which computes all of them at the same lengths. FlexAttention is compiled, and its mask is made ahead;
our lists are made in each call. Medians of Triton's ``do_bench`` (L2 is filled ahead of each call), variants in turns.
How far our output and gradients lie from FlexAttention's, normwise, stands beside the times. Workers compile a share of
the shapes each, all at once; then one shape is timed after the other. Each goes on record at once, and what stands
there of the sources as they are is not measured again, but for ``--again``.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from h200_crew import Line, lines, made_ready, serve, started
from side_by_side import wait_for_turn
from torch import Tensor
from triton.testing import do_bench

import kernelworks as kw
from kernelworks.dispatch.op import OPS
from kernelworks.measure.bench.results import head
from kernelworks.ops.attention.block_sparse_attention.baselines import by_flex
from kernelworks.ops.attention.block_sparse_attention.cases import pattern
from kernelworks.ops.attention.block_sparse_attention.contract import BLOCK, blocks_of, pairs_of
from kernelworks.ops.attention.block_sparse_attention.triton_lists import lists_of
from kernelworks.records.json_text import format_lines

OUT = Path(__file__).resolve().parent / "results" / "h200-blocks.json"
ROWS = {"block_sparse_attention": ("sm90", "sm90_backward"), "attention": ("sm90", "sm90_backward")}
ROUNDS = {"forward": 3, "backward": 2}
FLOP = {"forward": 4, "backward": 10}  # a pair and head_dim
COMPARED = ("ours", "flex")
WORKERS = 6
SAME = ("machine", "versions", "sources")  # what a line on record must have been made with

# B, H, Hkv, length, D, which blocks (a density, or a pattern's name), causal
Shape = tuple[int, int, int, int, int, float | str, bool]
SHAPES: tuple[Shape, ...] = (
    *((1, 16, 16, 16384, 128, density, False) for density in (0.1, 0.25, 0.5, 1.0)),
    *((1, 16, 16, 16384, 128, seen, True) for seen in ("window", "documents", "all")),
    (4, 16, 16, 4096, 128, 0.25, False),
    (4, 16, 16, 4096, 64, 0.25, False),
    (1, 16, 16, 16384, 64, "window", True),
    (2, 32, 8, 8192, 128, 0.25, True),
)

Arm = Callable[[Tensor, Tensor, Tensor], Tensor]


def arms_of(args: dict[str, Any]) -> dict[str, Arm]:
    """Our kernels by name, so that no choice is timed; the gradients' kernel if gradients flow."""
    mask, causal, shared = args["block_mask"], args["is_causal"], args["enable_gqa"]

    def row(q: Tensor) -> str:
        return "sm90_backward" if q.requires_grad else "sm90"

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return kw.block_sparse_attention(q, k, v, mask, is_causal=causal, enable_gqa=shared, kernel=row(q))

    def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return kw.attention(q, k, v, causal="top_left" if causal else None, kernel=row(q))

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


def made(shape: Shape, draw: torch.Generator) -> tuple[dict[str, Any], list[Tensor], Tensor]:
    """The arguments of a shape, its tensors, and a gradient of the output."""
    batch, heads, shared, length, dim, seen, causal = shape
    inputs = [
        torch.randn(batch, h, length, dim, device="cuda", dtype=torch.bfloat16, generator=draw)
        for h in (heads, shared, shared)
    ]
    tiles = blocks_of(length)
    args = dict(zip(("query", "key", "value"), inputs, strict=True)) | {
        "block_mask": pattern(seen, tiles, tiles, draw, 1, 1), "is_causal": causal, "scale": None,
        "enable_gqa": heads != shared, "with_lse": False,
    }  # fmt: skip
    return args, inputs, torch.randn_like(inputs[0])


class Blocks:
    """A shape's calls, compiled and called: kept until they are timed."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.args, inputs, grad = made(shape, torch.Generator("cuda").manual_seed(0))
        self.calls = {name: calls_of(arm, inputs, grad) for name, arm in arms_of(self.args).items()}
        for call in self.calls.values():
            for pass_ in FLOP:
                call[pass_]()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def line(self) -> Line:
        batch, heads, _, length, dim, _, causal = self.shape
        mask, tiles = self.args["block_mask"], blocks_of(length)
        ours, flex = (
            [t.float() for t in (self.calls[name]["forward"](), *self.calls[name]["backward"]())] for name in COMPARED
        )
        pairs = pairs_of(mask, batch, heads, length, length, causal)
        whole = batch * heads * length**2 / (2 if causal else 1)
        blocks = {
            "ours": int((mask.tril() if causal else mask).sum()) * batch * heads,
            "dense": batch * heads * tiles * ((tiles + 1) / 2 if causal else tiles),
        }
        line: Line = {
            "shape": list(self.shape), "off_flex": off(ours, flex), "pairs": pairs, "share": pairs / whole,
            "blocks": blocks["ours"], "lists_ms": median_ms(lambda: lists_of(mask, causal)),
        }  # fmt: skip
        del ours, flex
        for pass_ in FLOP:
            took: dict[str, list[float]] = {name: [] for name in self.calls}
            order = list(self.calls)
            for _ in range(ROUNDS[pass_]):
                for name in order:
                    took[name].append(median_ms(self.calls[name][pass_]))
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
        return line


HOW = hashlib.sha256("".join(map(inspect.getsource, (arms_of, calls_of, median_ms, Blocks))).encode()).hexdigest()[:12]


# ---------------------------------------------------------------- workers, and the record


def work(pipe: Connection) -> None:
    """A worker's whole life."""
    torch._dynamo.config.recompile_limit = 1000  # every shape is a build of FlexAttention; past that it runs unfused
    torch._inductor.config.compile_threads = 1
    ready: dict[int, Blocks] = {}

    def prepare(number: int) -> None:
        ready[number] = Blocks(SHAPES[number])

    def measured(number: int) -> Iterator[Line]:
        blocks = ready.pop(number, None) or Blocks(SHAPES[number])
        yield blocks.line()
        del blocks
        torch.cuda.empty_cache()

    serve(pipe, prepare, measured, lambda number: {"shape": list(SHAPES[number])})


class Record:
    """The file: what stands there of the same sources, machine and versions, and what is added."""

    def __init__(self, file: Path) -> None:
        sources = {f"{op}.{row}": OPS[op].kernel(row).hash() for op, rows in ROWS.items() for row in rows}
        self.file, self.head = file, {**head("cuda", ("triton",)), "sources": sources}
        self.head["versions"]["cuda"] = str(torch.version.cuda)
        before = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        origin = {name: before.get(name, "") for name in ("date", "commit")}
        rows = before.get("rows", ()) if all(before.get(n) == self.head[n] for n in SAME) else ()
        self.rows = {str(row["shape"]): {**origin, **row} for row in rows}

    def has(self, number: int) -> bool:
        row = self.rows.get(str(list(SHAPES[number])))
        return row is not None and row.get("how") == HOW and "failed" not in row

    def add(self, line: Line) -> None:
        origin = {name: self.head[name] for name in ("date", "commit")}
        self.rows[str(line["shape"])] = {**line, **origin, "how": HOW}
        rows = [row for shape in SHAPES if (row := self.rows.get(str(list(shape))))]
        scratch = self.file.with_suffix(f".{os.getpid()}")
        scratch.write_text(format_lines({**self.head, "rows": rows}) + "\n", encoding="utf-8")
        scratch.replace(self.file)


def missing(file: Path) -> list[str]:
    """The shapes that the record lacks."""
    record = Record(file)
    return [str(list(shape)) for number, shape in enumerate(SHAPES) if not record.has(number)]


def measure(
    file: Path, *, again: bool = False, within: float = 110.0, turn: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Measures the shapes that are not on record, once all are ready and ``turn`` is over. What failed."""
    record, bad = Record(file), list[str]()
    todo = [number for number in range(len(SHAPES)) if again or not record.has(number)]
    crew = started(min(WORKERS, len(todo)), work)
    made_ready(crew, todo, within)
    turn()
    for number in todo:
        try:
            for line in lines(crew, number):
                record.add(line)
                bad += [f"{line['shape']}: {line['failed']}"] if "failed" in line else []
                print(line["shape"], *(f"{p} {line.get(p, line)['ms']}" for p in FLOP if p in line), flush=True)
        except (EOFError, OSError, LookupError) as error:
            bad.append(f"{SHAPES[number]}: its worker ended: {error}")
    for worker in crew:
        worker.end()
    return {"shapes": len(todo), "bad": bad}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--again", action="store_true", help="measures what is on record once more")
    parser.add_argument("--within", type=float, default=110.0, help="seconds to make shapes ready in")
    parser.add_argument("--result", type=Path, help="says `ready`, waits for a line, and leaves word there")
    given = parser.parse_args()
    turn = wait_for_turn if given.result else lambda: None
    found = measure(given.out.resolve(), again=given.again, within=given.within, turn=turn)
    for said in found["bad"]:
        print(said, file=sys.stderr)
    if given.result:
        given.result.write_text(json.dumps(found), encoding="utf-8")
    return min(1, len(found["bad"]))


if __name__ == "__main__":
    sys.exit(main())
