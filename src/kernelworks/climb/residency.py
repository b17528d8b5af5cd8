"""How many blocks of a kernel a multiprocessor holds."""

from __future__ import annotations

__all__ = ["resident_blocks"]


def resident_blocks(threads: int, registers: int, shared: int) -> int:
    """Blocks that a Hopper multiprocessor holds at once: by threads, registers (65536, given to a warp in steps of
    256) and shared memory (227 KiB, of which each block takes one for the system)."""
    warps = -(-threads // 32)
    by_registers = 65536 // (warps * (-(-registers * 32 // 256) * 256)) if registers else 32
    return min(32, 64 // warps, by_registers, 233472 // (shared + 1024))
