"""The remedies that compete for a program's time: one file each."""

from __future__ import annotations

from kernelworks.diagnose.optimization import Remedy
from kernelworks.diagnose.optimizations import (
    allocator,
    cast_weights,
    channels_last,
    cuda_graph,
    fewer_bits,
    folded_norms,
    fused_optimizer,
    gradient_clipping,
    loaded_input,
    merged_projections,
    padded_sizes,
    static_cache,
    swap,
    swapped_functions,
    threads,
    torch_compile,
    unused_gradients,
    waits,
    zeroed_gradients,
)

__all__ = ["REMEDIES"]

# In the order in which they are asked: what is predicted in seconds before what compiles.
REMEDIES: tuple[Remedy, ...] = (
    swap.REMEDY, swapped_functions.REMEDY, allocator.REMEDY, channels_last.REMEDY, folded_norms.REMEDY,
    cast_weights.REMEDY, merged_projections.REMEDY, fused_optimizer.REMEDY, gradient_clipping.REMEDY,
    zeroed_gradients.REMEDY, threads.REMEDY, fewer_bits.REMEDY, static_cache.REMEDY, cuda_graph.REMEDY,
    torch_compile.REMEDY, unused_gradients.REMEDY, waits.REMEDY, padded_sizes.REMEDY, loaded_input.REMEDY,
)  # fmt: skip
