"""The optimizations that a fix may apply: one file each."""

from __future__ import annotations

from kernelworks.diagnose.optimization import Optimization
from kernelworks.diagnose.optimizations import (
    allocator,
    cast_weights,
    channels_last,
    cuda_graph,
    fewer_bits,
    folded_norms,
    fused_optimizer,
    gradient_clipping,
    host_waits,
    loaded_input,
    merged_projections,
    padded_sizes,
    static_cache,
    swap,
    swapped_functions,
    threads,
    torch_compile,
    unread_maps,
    unused_gradients,
    zeroed_gradients,
)

__all__ = ["OPTIMIZATIONS"]

# In the order in which they are asked: those predicted in seconds come before those that compile.
OPTIMIZATIONS: tuple[Optimization, ...] = (
    swap.OPTIMIZATION, swapped_functions.OPTIMIZATION, allocator.OPTIMIZATION, channels_last.OPTIMIZATION,
    folded_norms.OPTIMIZATION, unread_maps.OPTIMIZATION, cast_weights.OPTIMIZATION, merged_projections.OPTIMIZATION,
    fused_optimizer.OPTIMIZATION, gradient_clipping.OPTIMIZATION, zeroed_gradients.OPTIMIZATION, threads.OPTIMIZATION,
    fewer_bits.OPTIMIZATION, static_cache.OPTIMIZATION, cuda_graph.OPTIMIZATION, torch_compile.OPTIMIZATION,
    unused_gradients.OPTIMIZATION, host_waits.OPTIMIZATION, padded_sizes.OPTIMIZATION, loaded_input.OPTIMIZATION,
)  # fmt: skip
