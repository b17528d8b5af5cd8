"""Attention that fell to torch's math path, which stores the whole map: its fused kernels do not take such a call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kernelworks.diagnose.slow_paths.slow_path import SlowPath, Watcher, line_of_program, seconds_of

MATH = 0  # what torch's chooser calls it
LEAST_LENGTH = 64  # of a shorter map nothing is lost
NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


class Attention(Watcher):
    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.typical: dict[str, dict[str, Any]] = {}

    def functions(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if function is not functional.scaled_dot_product_attention:
            return
        given = dict(zip(NAMES, args, strict=False)) | dict(kwargs)
        query = given["query"]
        if query.is_cuda or query.dim() != 4 or min(query.shape[-2], given["key"].shape[-2]) < LEAST_LENGTH:
            return
        if torch._fused_sdp_choice(**given) != MATH:
            return
        line = line_of_program()
        self.calls[line] += 1
        self.typical.setdefault(line, {n: v.detach() if isinstance(v, Tensor) else v for n, v in given.items()})

    def slow_paths(self, wall_s: float, threads: int) -> Iterator[SlowPath]:
        for line, given in self.typical.items():
            without, why = _taken(given)
            if not why:
                continue
            sdpa = functional.scaled_dot_product_attention
            slow, fast = seconds_of(sdpa, **given), seconds_of(sdpa, **without)
            lost = (slow - fast) * self.calls[line]
            yield SlowPath(
                f"{line}: scaled_dot_product_attention falls to its math path, {slow / fast:.1f}x as long as its fused "
                f"kernel here: {why}", lost,
            )  # fmt: skip


def _taken(given: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The call as a fused kernel takes it, and what has to change for that; "" if it is not one thing alone."""
    query: Tensor = given["query"]
    key: Tensor = given["key"]
    value: Tensor = given["value"]
    mask = given.get("attn_mask")
    tries: dict[str, dict[str, Any]] = {
        "it has dropout": {"dropout_p": 0.0},
        "its arguments do not lie with head_dim last": {
            name: given[name].contiguous() for name in ("query", "key", "value")
        },
    }
    if isinstance(mask, Tensor) and mask.dtype is not torch.bool:
        tries["its mask is of another dtype"] = {"attn_mask": mask.to(query.dtype)}
    if isinstance(mask, Tensor):
        wide = (*query.shape[:-1], key.shape[-2])
        tries["its mask has not four dimensions"] = {"attn_mask": mask.broadcast_to(wide)}
    if value.shape[-1] != query.shape[-1]:
        tries["value has another head_dim than query"] = {"value": torch.zeros_like(key)}
    if given.get("enable_gqa"):
        groups = query.shape[1] // key.shape[1]
        wide_kv = {n: given[n].repeat_interleave(groups, 1) for n in ("key", "value")}
        tries["enable_gqa is not taken: repeat key and value"] = {**wide_kv, "enable_gqa": False}
    for why, change in tries.items():
        other = {**given, **change}
        if torch._fused_sdp_choice(**other) != MATH:
            return other, why
    return dict(given), ""
