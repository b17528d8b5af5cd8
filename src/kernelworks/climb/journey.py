"""One tile's journey through the memory hierarchy, counted from the loops of a blocked matrix product.

for each block of B, block_k x block_n:                   from memory to L2, once
    for each panel of A, tile_m x block_k:                from memory to L1, once a block
        for each panel of B, block_k x tile_n:            from L2 to L1, once a panel of A
            for each k: tile_n of B and tile_m of A       from L1 to registers, once
            then the tile of C, tile_m x tile_n           to and from memory, once a block
"""

from __future__ import annotations

from kernelworks.records.climb import Journey, Move

__all__ = ["journey"]

FLOAT = 4  # bytes


def journey(
    size: tuple[int, int, int] = (64, 64, 64), tile: tuple[int, int] = (4, 8), block: tuple[int, int] = (32, 32)
) -> Journey:
    """Counts every trip of a product of M x N x K. Raises ValueError if a size is no multiple of its part."""
    (m, n, k), (tile_m, tile_n), (block_k, block_n) = size, tile, block
    if m % tile_m or n % block_n or block_n % tile_n or k % block_k:
        raise ValueError(f"M, N, K = {size} must be multiples of the tile {tile} and of the block {block}")
    blocks, panels, tiles = (n // block_n) * (k // block_k), m // tile_m, block_n // tile_n
    moves = (
        _move("a block of B", "memory", "L2", (block_k, block_n), blocks, m),
        _move("a panel of A", "memory", "L1", (tile_m, block_k), blocks * panels, block_n),
        _move("a tile of C, and back", "memory", "registers", (tile_m, tile_n), 2 * blocks * panels * tiles, block_k),
        _move("a panel of B", "L2", "L1", (block_k, tile_n), blocks * panels * tiles, tile_m),
        _move("a step of B", "L1", "registers", (1, tile_n), blocks * panels * tiles * block_k, tile_m),
        _move("a step of A", "L1", "registers", (tile_m, 1), blocks * panels * tiles * block_k, tile_n),
    )
    flop = 2 * m * n * k
    crossing = {
        source: sum(x.bytes * x.trips for x in moves if x.source == source) for source in ("memory", "L2", "L1")
    }
    return Journey(
        size={"M": m, "N": n, "K": k}, tile=tile, block=block, flop=flop, moves=moves,
        intensity={f"out of {source}": flop / moved for source, moved in crossing.items()},
    )  # fmt: skip


def _move(what: str, source: str, to: str, shape: tuple[int, int], trips: int, uses: int) -> Move:
    return Move(what, source, to, shape, shape[0] * shape[1] * FLOAT, trips, uses)
