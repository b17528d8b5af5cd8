"""The kernels that measure a GPU: walks over memory, chains of elementary functions, and one that does nothing."""

import triton
import triton.language as tl

from kernelworks.build.triton import Kernel

__all__ = ["COPY", "FUNCTION", "MULTIPLY_ADD", "NOTHING", "READ", "WRITE"]

# A program walks tiles a grid's width apart. Every pass begins a few programs further, and loads go past L1 (.cg), so
# that a second pass finds a tile in L2 and never in the L1 of the multiprocessor that walked it before.


@triton.jit
def _read(source, target, tiles, passes, TILE: tl.constexpr):
    program, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, TILE)
    total = tl.zeros([TILE], tl.float32)
    for turn in range(passes):
        for tile in range((program + 17 * turn) % programs, tiles, programs):
            total += tl.load(source + tl.cast(tile, tl.int64) * TILE + column, cache_modifier=".cg")
    tl.store(target + program, tl.sum(total))


@triton.jit
def _write(target, value, tiles, passes, TILE: tl.constexpr):
    program, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, TILE)
    values = tl.zeros([TILE], tl.float32) + value
    for turn in range(passes):
        for tile in range((program + 17 * turn) % programs, tiles, programs):
            tl.store(target + tl.cast(tile, tl.int64) * TILE + column, values)


@triton.jit
def _copy(source, target, tiles, passes, TILE: tl.constexpr):
    program, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, TILE)
    for turn in range(passes):
        for tile in range((program + 17 * turn) % programs, tiles, programs):
            at = tl.cast(tile, tl.int64) * TILE + column
            tl.store(target + at, tl.load(source + at, cache_modifier=".cg"))


@triton.jit
def _function(target, rounds, NAME: tl.constexpr, LANES: tl.constexpr):
    """Each result feeds the next and stays finite: one multiply or add beside every call."""
    lane = tl.arange(0, LANES)
    x = lane.to(tl.float32) * 1e-3
    for _ in range(rounds):
        for _ in tl.static_range(8):  # the loop's own instructions would count otherwise
            if NAME == "exp":
                x = tl.exp(-x)
            elif NAME == "log":
                x = tl.log(x + 2.0)
            elif NAME == "erf":
                x = tl.erf(x + 0.5)
            else:
                x = tl.rsqrt(x + 1.0)
    tl.store(target + tl.program_id(0) * LANES + lane, x)


@triton.jit
def _multiply_add(target, factor, offset, rounds, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)
    x = lane.to(tl.float32)
    for _ in range(rounds):
        for _ in tl.static_range(16):
            x = x * factor + offset
    tl.store(target + tl.program_id(0) * LANES + lane, x)


@triton.jit
def _nothing(target):
    pass


TILE, LANES = 8192, 1024  # floats
READ, WRITE, COPY = (Kernel(f).at(TILE=TILE, num_warps=8) for f in (_read, _write, _copy))
FUNCTION = {name: Kernel(_function).at(NAME=name, LANES=LANES, num_warps=4) for name in ("exp", "log", "erf", "rsqrt")}
MULTIPLY_ADD = Kernel(_multiply_add).at(LANES=LANES, num_warps=4)
NOTHING = Kernel(_nothing).at(num_warps=1)
