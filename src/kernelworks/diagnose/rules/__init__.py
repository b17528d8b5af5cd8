"""The problems that a diagnosis knows by name: one file each, tried in this order on every hotspot."""

from __future__ import annotations

from kernelworks.diagnose.rules import (
    channels_first,
    decode_attention,
    decomposed_gate,
    decomposed_norm,
    decomposed_rope,
    device_allocation,
    float32_products,
    fresh_pages,
    gemv,
    growing_cat,
    half_without_hardware,
    host_waits,
    launch_bound,
    python_between_ops,
    released_memory,
    slow_kernel,
    stored_logits,
    strided_copies,
    sync_in_loop,
    tiny_kernels,
    tiny_ops,
    unfolded_batch_norm,
    unfused_optimizer,
    upcast,
)
from kernelworks.diagnose.rules.rule import Advice, Rule, View

__all__ = ["RULES", "Advice", "Rule", "View"]

RULES: tuple[Rule, ...] = (
    half_without_hardware.RULE,
    stored_logits.RULE,
    unfused_optimizer.RULE,
    decode_attention.RULE,
    gemv.RULE,
    growing_cat.RULE,
    decomposed_norm.RULE,
    decomposed_rope.RULE,
    decomposed_gate.RULE,
    sync_in_loop.RULE,
    unfolded_batch_norm.RULE,
    fresh_pages.RULE,
    channels_first.RULE,
    slow_kernel.RULE,
    upcast.RULE,
    strided_copies.RULE,
    released_memory.RULE,
    python_between_ops.RULE,
    tiny_ops.RULE,
    host_waits.RULE,
    launch_bound.RULE,
    device_allocation.RULE,
    float32_products.RULE,
    tiny_kernels.RULE,
)
