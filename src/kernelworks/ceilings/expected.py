"""How long a kernel of ours should take on a GPU, where ``bound`` says how long it must.

    T = start + between kernels + scratch + max(memory, products + weights) + first and last tile + seams

Each term is physics with figures of this machine (``kernelworks machine``); what a row's kernels do beside what its
contract counts stands in its room's ``times.toml`` (a ``Manner``), with where it was read or measured. Nothing is
fitted to a shape.

- **start**: between two events an empty kernel takes ``isolated_us``, in a full queue ``launch_us``.
- **between kernels** of one call: a launch, and two waits for memory: what the one made is put away, and the next asks
  for it.
- **scratch**: what goes through memory between them.
- **memory**: compulsory bytes, at the rate of one launch of that size, L2 holding nothing of it. Kernels that only
  stream come within a tenth of that: many warps stand by.
- **products**: what is computed, with tiles padded to their size and blocks on the edge of a mask whole, by the
  multiprocessor that ends last, over the matrix units' rate. *Which rate* is a matter of power. Units that never wait
  run at the clock that the power limit leaves, which falls within a second: a race of some tenths, or a program that
  does other things too, is halfway between a burst and a long run. Units that wait for weights leave power to the
  clock, and make 4096 flop a clock and multiprocessor (of 8 bits twice as many) at the clock that exponentials were
  measured at.
- **weights**, a softmax's: what of them no other group's products hide. Exponentials, 16 a clock and multiprocessor,
  at the rate measured; where it is the whole, for each also two float32 instructions (scale, sum) and one and a half
  at half their rate (maximum, packing two into one): the loops of the ladder ``cuda-attention-hopper`` hold these. In
  8 bits straight lines may stand for exponentials.
- **seams**: where what a multiprocessor holds waits for the rest of its row, each turn waits once.
- **first and last tile**: a kernel of tiles waits once for memory before anything is computed, and puts the last away
  when nothing else is left to do. With a seam between its tiles it waits in each round. A wait is what the smallest
  read took.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelworks.ceilings import gpu_terms
from kernelworks.records import GpuCeilings

__all__ = ["Expected", "Manner", "Piece", "expected"]

FLOP_A_CLOCK = 4096  # a multiprocessor's matrix units, 16-bit operands: NVIDIA H100 white paper, 2022, table 3
FUNCTIONS_A_CLOCK = 16  # CUDA C++ programming guide, throughput of native arithmetic instructions, 9.0
FULL, HALF = 2.0, 1.5  # instructions a score at 128 and at 64 lanes a clock beside its exponential
# Of a weight in 8 bits by a straight line: its multiply-add, half an addition, a quarter of a packing, and the block's
# sums added (68 for 64 scores); half a conversion and half a maximum of three.
LINES = 2.8 + 2 * 1.0
MANY = 32  # rounds of tiles, of which it matters no more which multiprocessor ends last
HALFWAY = 0.5  # from a burst to a long run
BETWEEN_S = 30e-6  # calls that are timed alone lie so far apart, while L2 is filled: the card rests meanwhile
PRODUCTS = (
    "bfloat16",
    "float16",
    "float8_e4m3fn",
)  # what matrix units multiply here; float32 is multiplied outside of them


@dataclass(frozen=True)
class Piece:
    """What one call cannot do without, as its contract counts it, and its dimensions by the contract's names."""

    flop: float
    transcendental: float
    read: float
    written: float
    dtype: str  # of the unit that does the arithmetic
    dims: Mapping[str, int] = field(default_factory=dict)
    function: str = "exp"


@dataclass(frozen=True)
class Manner:
    """How a row's kernels go about a pass, beside what the contract counts.

    - ``kernels``, and ``scratch``: bytes that go through memory between them, as products of numbers and dimensions.
    - ``tiles`` name two dimensions and what they are cut into, rows first; of several the row takes the quickest.
      ``each`` is the flop of one pair of those, where the second is passed over block by block; ``bands`` how many such
      there are (heads), ``packed`` how many lie one behind the other in the two dimensions, taken to be of one length.
      ``shared``: the last turn of tiles is shared out. ``seam``: a tile begins when the one before is done.
    - ``held``: bytes that a multiprocessor has in registers until all of a row is there; memory waits meanwhile.
    - ``weights`` are what of a softmax products wait for: "exponentials", "whole", "lines" in place of exponentials, or
      nothing.
    - ``rate`` of the products: "clock" where they wait for weights, "burst" where something else of a step holds them
      up too, "power" where nothing does.
    - ``products`` and ``weighed``: how often what the contract counts once is computed.
    """

    kernels: int = 1
    scratch: tuple[str, ...] = ()
    tiles: tuple[Mapping[str, int], ...] = ()
    each: str = ""
    bands: str = ""
    packed: str = ""
    weights: str = ""
    products: float = 1.0
    weighed: float = 1.0
    rate: str = "power"
    held: int = 0
    shared: bool = False
    seam: bool = False
    source: str = ""


@dataclass(frozen=True)
class Expected:
    """``seconds`` with its parts, by name, in seconds; memory and core do not add where they go on side by side."""

    seconds: float
    terms: dict[str, float]

    @property
    def waits_on(self) -> str:
        return max(self.terms, key=lambda name: self.terms[name])


def product_of(words: str, dims: Mapping[str, float]) -> float:
    """The value of factors between ``*``: numbers, and names of dimensions. KeyError for a name that is none."""
    value = 1.0
    for word in words.split("*"):
        name = word.strip()
        value *= float(name) if name.replace(".", "", 1).isdigit() else dims[name]
    return value


def expected(piece: Piece, manner: Manner, ceilings: GpuCeilings, *, alone: bool = True) -> Expected:
    """Seconds of a call on an otherwise idle GPU, between two events (``alone``), or as one of many in a queue.

    ``busy`` is the share of the time that the card has been working like this: 1 in the middle of a long run; by
    default what a benchmark makes of it that fills L2 ahead of every call. Cost: some 20 us, a millisecond where tiles
    differ.
    """
    found = (_expected(piece, manner, tile, ceilings, alone) for tile in manner.tiles or ({},))
    return min(found, key=lambda one: one.seconds)


def _expected(piece: Piece, manner: Manner, tile: Mapping[str, int], ceilings: GpuCeilings, alone: bool) -> Expected:
    memory = functools.partial(_memory if alone else _steady, ceilings=ceilings)
    dims = {**piece.dims, "multiprocessors": ceilings.multiprocessors}
    scratch = sum(product_of(words, dims) for words in manner.scratch)
    start = ceilings.isolated_us if alone else ceilings.launch_us
    wait = _latency(ceilings)
    last, rounds = _tiles(piece, manner, tile, ceilings)
    weights = last * manner.weighed * _weights(piece, manner, ceilings)
    between = (manner.kernels - 1) * (ceilings.launch_us * 1e-6 + 2 * wait)
    terms = {
        "start": start * 1e-6,
        "between kernels": between,
        "scratch": memory(scratch / 2, scratch / 2),
        "weights": weights,
    }
    if piece.dtype in PRODUCTS:
        terms["products"] = last * manner.products * _products(piece, manner, ceilings, alone)
    else:
        terms["arithmetic"] = _arithmetic(piece, ceilings)
    core = sum(terms.get(name, 0.0) for name in ("products", "arithmetic", "weights"))
    terms["memory"] = memory(piece.read, piece.written)
    beside = max(terms["memory"], core)
    if tile:
        terms["first and last tile"] = wait + _memory(0.0, piece.written / max(rounds, 1.0), ceilings)
        terms["seams"] = (math.ceil(rounds) - 1) * wait if manner.seam else 0.0
    if manner.held:
        turns = piece.read / (manner.held * ceilings.multiprocessors)
        terms["seams"] = turns * wait
    apart = sum(
        terms.get(name, 0.0) for name in ("start", "between kernels", "scratch", "first and last tile", "seams")
    )
    return Expected(apart + beside, terms)


def _memory(read: float, written: float, ceilings: GpuCeilings) -> float:
    if not read + written:
        return 0.0
    found = gpu_terms.terms(
        ceilings, flop=0.0, transcendental=0.0, read=read, written=written, footprint_bytes=math.inf,
        dtype="float32", function="exp", launches=0,
    )  # fmt: skip
    return found[0]["memory"]


def _steady(read: float, written: float, ceilings: GpuCeilings) -> float:
    """As one of many launches: at the rate of the largest that was measured, and a wait for the first bytes."""
    if not read + written:
        return 0.0
    most = float(max((b.bytes for b in ceilings.bandwidth), default=1))
    share = (read + written) / most
    return share * _memory(read / share, written / share, ceilings) + _latency(ceilings)


def _latency(ceilings: GpuCeilings) -> float:
    """Seconds of the smallest read that was measured, less its launch."""
    reads = [b for b in ceilings.bandwidth if (b.kind, b.cache) == ("read", "cold")]
    least = min(reads, key=lambda b: b.bytes, default=None)
    return least.bytes / (least.gbs * 1e9) if least is not None else 0.0


def _tiles(piece: Piece, manner: Manner, tile: Mapping[str, int], ceilings: GpuCeilings) -> tuple[float, float]:
    """What the multiprocessor that ends last has to do, as a share of what each would have of the counted work were it
    shared out evenly; and over how many rounds of tiles."""
    if not tile:
        return 1.0, 1.0
    (rows, high), (columns, wide) = tile.items()
    dims = {name: float(value) for name, value in piece.dims.items()}
    several = product_of(manner.packed, dims) if manner.packed else 1.0
    long, keys = dims[rows] / several, dims[columns] / several
    bands = round(product_of(manner.bands, dims)) if manner.bands else 1
    lines = bands * long
    down, across = math.ceil(long / high), math.ceil(keys / wide)
    if not manner.each:  # a product of two matrices: every tile is as long
        tiles = down * across
        rounds = tiles / ceilings.multiprocessors
        even = max(1.0, rounds if manner.shared else math.ceil(rounds))
        return even * high * wide * ceilings.multiprocessors / (lines * keys), rounds
    seen = piece.flop / product_of(manner.each, dims)
    lengths = _lengths(seen / lines, down, high, wide, keys)
    last = _last(tuple(lengths), bands, ceilings.multiprocessors)
    return last * high * ceilings.multiprocessors / seen, bands * down / ceilings.multiprocessors


def _lengths(each: float, down: int, high: int, wide: int, keys: float) -> list[float]:
    """Keys that each tile of queries passes over, where a query sees ``each`` on average: all, those up to its own
    place, or a window behind that. Blocks that an edge crosses are computed whole."""
    whole = math.ceil(keys / wide) * wide
    if each > 0.95 * keys:
        return [whole] * down
    if each > 0.45 * keys:  # up to its own place
        return [min(whole, math.ceil((at + 1) * high * keys / (down * high) / wide) * wide) for at in range(down)]
    return [min(whole, math.ceil((each + high) / wide) * wide + wide / 2, (at + 1) * high + wide) for at in range(down)]


@functools.lru_cache(maxsize=1024)
def _last(lengths: tuple[float, ...], bands: int, multiprocessors: int) -> float:
    """When the last multiprocessor ends, of tiles of these lengths in each of ``bands``, dealt out longest first to
    whichever is free. Of many tiles the mean says it."""
    total = bands * sum(lengths)
    if bands * len(lengths) > MANY * multiprocessors:
        return total / multiprocessors + max(lengths) / 2 * (min(lengths) == max(lengths))
    free = [0.0] * multiprocessors
    for length in sorted(lengths, reverse=True):
        for _ in range(bands):
            heapq.heapreplace(free, free[0] + length)
    return max(free)


def _weights(piece: Piece, manner: Manner, ceilings: GpuCeilings) -> float:
    rate = ceilings.functions.get(piece.function) or ceilings.functions.get("exp", 0.0)
    if not manner.weights or not rate:
        return 0.0
    a_second = 1 / (rate * 1e9)
    fused, _ = _fused(ceilings)
    if manner.weights == "lines" and fused:
        return piece.transcendental * LINES / (fused / 2)
    if manner.weights == "whole" and fused:
        a_second += (FULL + 2 * HALF) / (fused / 2)
    return piece.transcendental * a_second


def _fused(ceilings: GpuCeilings) -> tuple[float, float]:
    """flop/s of float32 multiply-adds, in a burst and in a long run."""
    found = [(r.burst_tflops * 1e12, r.sustained_tflops * 1e12) for r in ceilings.rates if r.unit == "multiply-add"]
    return max(found, default=(0.0, 0.0))


def _products(piece: Piece, manner: Manner, ceilings: GpuCeilings, alone: bool) -> float:
    if manner.rate == "clock":
        clock = ceilings.functions["exp"] * 1e9 / FUNCTIONS_A_CLOCK  # of all multiprocessors together
        return piece.flop / (FLOP_A_CLOCK * (2 if piece.dtype.startswith("float8") else 1) * clock)
    rates = [(r.burst_tflops * 1e12, r.sustained_tflops * 1e12) for r in ceilings.rates if r.dtype == piece.dtype]
    burst, sustained = max(rates, default=(math.inf, math.inf))
    least = piece.flop / burst
    busy = least / (least + BETWEEN_S) if alone else 1.0
    return least if manner.rate == "burst" else piece.flop / (burst - HALFWAY * busy * (burst - sustained))


def _arithmetic(piece: Piece, ceilings: GpuCeilings) -> float:
    """Outside the matrix units: an instruction each, and elementary functions, on pipes of their own."""
    fused, _ = _fused(ceilings)
    rate = ceilings.functions.get(piece.function) or ceilings.functions.get("exp", 0.0)
    return max(piece.flop / (fused / 2) if fused else 0.0, piece.transcendental / (rate * 1e9) if rate else 0.0)
