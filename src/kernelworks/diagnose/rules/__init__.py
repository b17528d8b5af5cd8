"""The problems that a diagnosis knows by name: one file each, tried in this order on every region."""

from __future__ import annotations

from kernelworks.diagnose.rules import (
    decode_attention,
    decomposed_gate,
    decomposed_norm,
    decomposed_rope,
    fresh_pages,
    gemv,
    growing_cat,
    half_without_hardware,
    python_between_ops,
    released_memory,
    slow_row,
    strided_copies,
    sync_in_loop,
    tiny_ops,
    upcast,
)
from kernelworks.diagnose.rules.rule import Advice, Rule, View

__all__ = ["RULES", "Advice", "Rule", "View"]

RULES: tuple[Rule, ...] = (
    half_without_hardware.RULE,
    decode_attention.RULE,
    gemv.RULE,
    growing_cat.RULE,
    decomposed_norm.RULE,
    decomposed_rope.RULE,
    decomposed_gate.RULE,
    sync_in_loop.RULE,
    fresh_pages.RULE,
    slow_row.RULE,
    upcast.RULE,
    strided_copies.RULE,
    released_memory.RULE,
    python_between_ops.RULE,
    tiny_ops.RULE,
)
