"""How long a kernel of ours should take on a GPU; ``bound`` says how long it must take.

    T = start + between kernels + scratch + joins + max(memory, products + weights + power + pipe)
        + first and last tile + seams + ends

Each term is physics with figures of this machine (``kernelworks machine``); what a kernel does beside what its
contract counts stands in its op package's ``times.toml`` (a ``Manner``), with where it was read or measured. Nothing is
fitted to a shape.

- **start**: between two events an empty kernel takes ``isolated_us``, in a full queue ``launch_us``. Of one launched
  ``ahead``, while the one before still runs, neither that nor its first wait shows.
- **between kernels** of one call: a launch, and two waits for memory: what the one made is put away, and the next asks
  for it. Of one that is launched ``early`` nothing but its wait shows.
- **scratch**: what goes through memory between them. **joins**: shares of one result are told and read.
- **memory**: compulsory bytes, at the rate that kernels reached in one launch of that size, L2 holding nothing of it.
- **latency** and **instructions**, of rows of which a program keeps one until its sum is known: what the programs of a
  multiprocessor wait and compute, one after the other, and all their instructions. Each hides the others, but for what
  lies near the greatest: their third powers add.
- **products**: what is computed, with tiles padded to their size and blocks on the edge of a mask whole, by the
  multiprocessor that ends last, over the rate of a burst. Units that wait for weights in between make 4096 flop a clock
  and multiprocessor (of 8 bits twice as many) instead.
- **weights**, a softmax's: what of them no other group's products hide. Exponentials, 16 a clock and multiprocessor;
  if it is the whole, for each also two float32 instructions (scale, sum) and one and a half at half their rate
  (maximum, packing two into one): the loops of the ladder ``cuda-attention-hopper`` hold these. In 8 bits straight
  lines may stand for exponentials: all instructions of that loop are counted.
- **power**: of such calls, one after the other, the limit of power lowers the clock within a second, as the rate of
  products falls from a burst to a race of some tenths (of records without one halfway to a long run). Units that wait,
  multiprocessors without a tile, and what is done in between, leave power to them.
- **pipe**: if a tile's next step is asked for only so many steps ahead, memory's answer, a step.
- **seams**: if what a multiprocessor holds waits for the rest of its row, each turn waits once; a tile that must
  look up where its rows lie waits for each answer.
- **first and last tile**: a kernel of tiles waits once for memory before anything is computed, and puts the last away
  when nothing else is left to do; tiles of unlike lengths do not end together. With a seam between its tiles it waits
  in each round. **ends**: instructions ahead of and behind a tile's loop, which no other tile hides.

A wait is what the smallest read took; memory's answer to what runs already is that less what the smallest write took.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelworks.measure.roofline import gpu_terms
from kernelworks.measure.roofline.waves import (
    ALL_KEYS_SHARE,
    Pipe,
    Share,
    TileSplit,
    Turn,
    cut_along,
    lengths_seen,
    makespan,
    product_of,
    turns,
)
from kernelworks.records import GpuPeaks, GpuRate

__all__ = ["Manner", "Piece", "TimeEstimate", "estimate_time"]

FLOP_A_CLOCK = 4096  # a multiprocessor's matrix units, 16-bit operands: NVIDIA H100 white paper, 2022, table 3
FUNCTIONS_A_CLOCK = 16  # CUDA C++ programming guide, throughput of native arithmetic instructions, 9.0
FULL, HALF = 2.0, 1.5  # instructions a score at 128 and at 64 lanes a clock beside its exponential
# Of a weight in 8 bits by a straight line: the compiled loop has 403 instructions of a warp for 64 scores of a thread.
LINES = 403 / 64
FROM_L2 = 0.5  # of memory's answer, if L2 has it
HALFWAY = 0.5  # A record without races lies this far from a burst to a long run.
# What our products lose to the limit of power in a race, of what torch's own lose: 4 to 9% if those lost 8 to 14 (an
# H200, 8192x8192x8192, 4096x28672x4096 and 16384x4096x4096 in one run).
OURS = 0.5
BLOCK = 128  # A block that a mask names has so many queries and keys.
SCHEDULERS = 4  # A multiprocessor issues so many warp instructions a clock.
# Clocks that a warp's instruction takes while nothing else waits: its issue, and fixed latencies of what it needs
# (counters of attention_fp8's loop: 4.6 with others beside it, of which one and a half are those latencies).
INSTRUCTION_CLOCKS = 2.5
KNEE = 3  # powers that add: what memory, waits and instructions take each hides the others, less if they are alike
PRODUCTS = ("bfloat16", "float16", "float8_e4m3fn")  # what matrix units multiply here; float32 is outside of them
CORE = ("products", "arithmetic", "weights", "power", "pipe")
SERIAL_TERMS = ("start", "between kernels", "scratch", "joins", "first and last tile", "seams", "ends")


@dataclass(frozen=True)
class Piece:
    """What one call cannot do without, as its contract counts it, and its dimensions by the contract's names; of packed
    sequences, if somebody looked, how long each is in a dimension, and how many ``pairs`` it has in a band."""

    flop: float
    transcendental: float
    read: float
    written: float
    dtype: str  # of the unit that does the arithmetic
    dims: Mapping[str, int] = field(default_factory=dict)
    function: str = "exp"
    lengths: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Manner:
    """How a kernel goes about a pass, beside what the contract counts.

    - ``kernels``, whether the first is launched ``ahead`` of its turn and the later ones ``early``, and ``scratch``:
      bytes that go through memory between them, as products of numbers and dimensions. ``joins``: how often memory
      answers while shares are put together.
    - ``tiles`` name two dimensions and what they are cut into, rows first; of several the kernel takes the quickest. So
      many multiprocessors take one ``together``, and what is left over after whole rounds is ``cut``
      (``shares.TileSplit``). ``paces``: the rate of each, as a share of the best one's. ``whole``: across, if all
      keys are seen.
    - ``each`` is the flop of one pair of those, if the second is passed over block by block; ``bands`` how many such
      there are (heads), ``packed`` how many lie one behind the other in the two dimensions, taken to be of one length;
      ``lists``: blocks are named, and each tile has as many as the mean. ``seam``: a tile begins when the one before is
      done. ``ends``: instructions of a thread for a tile outside its loop. ``pipe``: how far ahead steps are asked for
      (``shares.Pipe``).
    - ``asks``: how often a tile asks memory ahead of its loop, each time for what the answer before named.
    - ``turn``: the programs of a kernel of rows (``shares.Turn``).
    - ``held``: bytes that a multiprocessor has in registers until all of a row is there; memory waits meanwhile.
    - ``weights`` are what of a softmax products wait for: "exponentials", "whole", "lines" in place of exponentials, or
      nothing.
    - ``rate`` of the products: "clock" if they wait for weights, "burst" if nothing holds them up but power.
    - ``products`` and ``weighed``: how often what the contract counts once is computed. ``torchs``: the products are
      torch's own.
    """

    kernels: int = 1
    scratch: tuple[str, ...] = ()
    tiles: tuple[Mapping[str, int], ...] = ()
    each: str = ""
    bands: str = ""
    whole: int = 0
    paces: tuple[float, ...] = ()
    packed: str = ""
    weights: str = ""
    products: float = 1.0
    torchs: bool = False
    weighed: float = 1.0
    rate: str = "burst"
    held: int = 0
    together: int = 1
    cut: Mapping[str, Any] | None = None
    ends: int = 0
    joins: float = 0.0
    early: bool = False
    ahead: bool = False
    pipe: Mapping[str, Any] | None = None
    turn: Mapping[str, Any] | None = None
    seam: bool = False
    asks: float = 0.0
    lists: bool = False
    source: str = ""


@dataclass(frozen=True)
class TimeEstimate:
    """``seconds`` with its parts, by name, in seconds; memory and core do not add if they go on side by side."""

    seconds: float
    terms: dict[str, float]

    @property
    def bound_by(self) -> str:
        return max(self.terms, key=lambda name: self.terms[name])


def estimate_time(
    piece: Piece, manner: Manner, peaks: GpuPeaks, *, alone: bool = True, warm: bool | None = None
) -> TimeEstimate:
    """Seconds of a call on an otherwise idle GPU, between two events (``alone``), or as one of many in a queue.

    ``warm``: for some tenths of a second such calls ran already, as in a queue; a race between events may begin so too.
    Cost: some 20 us, a millisecond if tiles differ, ten if sequences do.
    """
    warm = not alone if warm is None else warm
    found = (_estimate_for_tile(piece, manner, tile, peaks, alone, warm) for tile in manner.tiles or ({},))
    return min(found, key=lambda one: one.seconds)


def _estimate_for_tile(
    piece: Piece, manner: Manner, tile: Mapping[str, int], peaks: GpuPeaks, alone: bool, warm: bool
) -> TimeEstimate:
    memory = functools.partial(_memory if alone else _steady, peaks=peaks)
    dims = {**piece.dims, "multiprocessors": peaks.multiprocessors}
    scratch = sum(product_of(words, dims) for words in manner.scratch)
    ahead = manner.ahead and not alone
    start = peaks.isolated_us if alone else 0.0 if ahead else peaks.launch_us
    wait = _latency(peaks)
    share = _shared_out(piece, manner, tile, peaks.multiprocessors)
    terms = {
        "start": start * 1e-6,
        "between kernels": (manner.kernels - 1) * (wait if manner.early else peaks.launch_us * 1e-6 + 2 * wait),
        "scratch": memory(scratch / 2, scratch / 2),
        "joins": manner.joins * _answer(peaks),
        "weights": share.last * manner.weighed * _weights(piece, manner, peaks),
    }
    if piece.dtype in PRODUCTS:
        terms["products"] = share.last * manner.products * _products(piece, manner, peaks)
        if warm:
            busy = share.busy * (_between(terms["products"] + terms["weights"], peaks) if alone else 1.0)
            terms["power"] = _power(terms["products"], terms["weights"], busy, _rates(piece, peaks, manner.torchs))
    else:
        terms["arithmetic"] = _arithmetic(piece, peaks)
    if manner.pipe is not None:
        held = not alone and piece.read + piece.written < peaks.l2_bytes
        terms["pipe"] = _pipe(Pipe(**manner.pipe), share.rounds, piece, peaks) * (FROM_L2 if held else 1.0)
    core = sum(terms.get(name, 0.0) for name in CORE)
    terms["memory"] = memory(piece.read, piece.written)
    beside = max(terms["memory"], core)
    if manner.turn is not None:
        terms["latency"], terms["instructions"] = _turns(Turn(**manner.turn), piece, peaks)
        parts = (terms[name] for name in ("memory", "latency", "instructions"))
        beside = max(core, sum(part**KNEE for part in parts) ** (1 / KNEE))
    if tile:
        terms["first and last tile"] = (0.0 if ahead else wait) + _memory(0.0, piece.written * share.at_end, peaks)
        terms["seams"] = (math.ceil(share.rounds) - 1) * wait if manner.seam else 0.0
        terms["seams"] += share.rounds * manner.asks * _answer(peaks)
        terms["ends"] = math.ceil(share.rounds) * manner.ends * _one_by_one(peaks)
    if manner.held:
        terms["seams"] = piece.read / (manner.held * peaks.multiprocessors) * wait
    return TimeEstimate(sum(terms.get(name, 0.0) for name in SERIAL_TERMS) + beside, terms)


def _memory(read: float, written: float, peaks: GpuPeaks) -> float:
    """At the rates of kernels: the driver's own copies are quicker at some sizes, and not what a kernel is made of."""
    if not read + written:
        return 0.0
    kernels = tuple(b for b in peaks.bandwidth if b.kind != "memcpy")
    found = gpu_terms.terms(
        dataclasses.replace(peaks, bandwidth=kernels), flop=0.0, transcendental=0.0, read=read, written=written,
        footprint_bytes=math.inf, dtype="float32", function="exp", launches=0,
    )  # fmt: skip
    return found[0]["memory"]


def _steady(read: float, written: float, peaks: GpuPeaks) -> float:
    """As one of many launches: at the rate of the largest that was measured, and a wait for the first bytes."""
    if not read + written:
        return 0.0
    most = float(max((b.bytes for b in peaks.bandwidth), default=1))
    share = (read + written) / most
    return share * _memory(read / share, written / share, peaks) + _latency(peaks)


def _latency(peaks: GpuPeaks) -> float:
    """Seconds of the smallest read that was measured, less its launch: blocks begin, ask memory, and are done."""
    return _least("read", peaks)


def _answer(peaks: GpuPeaks) -> float:
    """Seconds until memory answers a program that runs already: what the smallest read takes beyond the smallest write,
    which waits for no answer."""
    return max(0.0, _least("read", peaks) - _least("write", peaks))


def _least(kind: str, peaks: GpuPeaks) -> float:
    found = [b for b in peaks.bandwidth if (b.kind, b.cache) == (kind, "cold")]
    least = min(found, key=lambda b: b.bytes, default=None)
    return least.bytes / (least.gbs * 1e9) if least is not None else 0.0


def _pipe(pipe: Pipe, rounds: float, piece: Piece, peaks: GpuPeaks) -> float:
    """Seconds of tiles whose steps wait for what was asked for some steps ago."""
    steps = math.ceil(piece.dims[pipe.along] / pipe.step)
    return math.ceil(rounds / pipe.resident) * steps * _answer(peaks) / pipe.under_way


def _shared_out(piece: Piece, manner: Manner, tile: Mapping[str, int], multiprocessors: int) -> Share:
    if not tile:
        return Share()
    (rows, high), (columns, wide) = tile.items()
    pace = manner.paces[manner.tiles.index(tile)] if manner.paces else 1.0
    dims = {name: float(value) for name, value in piece.dims.items()}
    several = product_of(manner.packed, dims) if manner.packed else 1.0
    long, keys = dims[rows] / several, dims[columns] / several
    bands = round(product_of(manner.bands, dims)) if manner.bands else 1
    lines = bands * long
    down, across = math.ceil(long / high), math.ceil(keys / wide)
    if not manner.each:  # a product of two matrices: every tile is as long
        units = multiprocessors // manner.together
        tiles = down * across
        rounds = cut_along(tiles, units, TileSplit(**manner.cut) if manner.cut is not None else None, dims)
        even = rounds * units * high * wide / (lines * keys)
        return Share(even, tiles / units, tiles / units / rounds, min(1.0, units / tiles))
    seen = piece.flop / product_of(manner.each, dims)
    if manner.whole and seen > ALL_KEYS_SHARE * lines * keys:
        wide = manner.whole
    mean = seen / lines
    if manner.lists:  # of whole blocks, as long as their mean
        lengths = [max(wide, dims["blocks"] * BLOCK**2 / lines if "blocks" in dims else mean)] * down
    elif piece.lengths:
        bands = round(bands / several)
        each = zip(*(piece.lengths[name] for name in (rows, columns, "pairs")), strict=True)
        lengths = [
            length for n, of, pairs in each if n
            for length in lengths_seen(pairs / n, math.ceil(n / high), high, wide, of)
        ]  # fmt: skip
    else:
        lengths = lengths_seen(mean, down, high, wide, keys)
    last = makespan(tuple(lengths), bands, multiprocessors)
    busy = bands * sum(lengths) / (last * multiprocessors)
    together = multiprocessors if min(lengths) == max(lengths) else 1  # tiles that end at once
    return Share(
        last * high * multiprocessors / seen / pace, bands * len(lengths) / multiprocessors, min(1.0, busy),
        min(1.0, together / (bands * len(lengths))),
    )  # fmt: skip


def _turns(turn: Turn, piece: Piece, peaks: GpuPeaks) -> tuple[float, float]:
    """Programs one after the other, each waiting for memory and then for its own instructions; and all instructions,
    one a clock and scheduler. Seconds of both."""
    found, of_thread, of_all = turns(turn, piece.dims, peaks.multiprocessors)
    one = turn.waits * _answer(peaks) + of_thread * _one_by_one(peaks)
    return found * one, of_all / SCHEDULERS / _clock(peaks)


def _one_by_one(peaks: GpuPeaks) -> float:
    """Seconds of an instruction that waits for the one before it."""
    return INSTRUCTION_CLOCKS * peaks.multiprocessors / _clock(peaks)


def _weights(piece: Piece, manner: Manner, peaks: GpuPeaks) -> float:
    if not manner.weights or not peaks.functions:
        return 0.0
    a_second = 1 / (FUNCTIONS_A_CLOCK * _clock(peaks))
    fused, _ = _fused(peaks)
    if manner.weights == "lines" and fused:
        return piece.transcendental * LINES / (fused / 2)
    if manner.weights == "whole" and fused:
        a_second += (FULL + 2 * HALF) / (fused / 2)
    return piece.transcendental * a_second


def _fused(peaks: GpuPeaks) -> tuple[float, float]:
    """flop/s of float32 multiply-adds, in a burst and in a long run."""
    found = [(r.burst_tflops * 1e12, r.sustained_tflops * 1e12) for r in peaks.rates if r.unit == "multiply-add"]
    return max(found, default=(0.0, 0.0))


def _clock(peaks: GpuPeaks) -> float:
    """Clocks a second of all multiprocessors together while none is short of power: the quickest elementary function's,
    of which each multiprocessor finishes so many in one."""
    return max(peaks.functions.values(), default=math.inf) * 1e9 / FUNCTIONS_A_CLOCK


def _rates(piece: Piece, peaks: GpuPeaks, torchs: bool = False) -> tuple[float, float]:
    """flop/s of products of matrices, in a burst and in a race."""
    found = [(r.burst_tflops * 1e12, race_rate(r, torchs) * 1e12) for r in peaks.rates if r.dtype == piece.dtype]
    return max(found, default=(math.inf, math.inf))


def race_rate(rate: GpuRate, torchs: bool = False) -> float:
    """TFLOP/s of a race of some tenths of a second, of our products or of torch's own; of a record that does not hold
    it halfway from a burst's to a long run's."""
    lost, share = rate.burst_tflops - rate.benchmarked_tflops, 1.0 if torchs else OURS
    if not rate.benchmarked_tflops:
        lost, share = rate.burst_tflops - rate.sustained_tflops, HALFWAY
    return rate.burst_tflops - share * max(0.0, lost)


def _products(piece: Piece, manner: Manner, peaks: GpuPeaks) -> float:
    if manner.rate == "clock":
        return piece.flop / (FLOP_A_CLOCK * (2 if piece.dtype.startswith("float8") else 1) * _clock(peaks))
    return piece.flop / _rates(piece, peaks)[0]


def _power(products: float, weights: float, busy: float, rates: tuple[float, float]) -> float:
    """Seconds that such calls, one after the other, lose to the limit of power: as the matrix units' own rate falls
    from a burst to a race, so far as they are at work."""
    burst, later = rates
    if not products or burst == math.inf:
        return 0.0
    lost = busy * products / (products + weights) * (1 - later / burst)
    return (products + weights) * lost / (1 - lost)


def _between(seconds: float, peaks: GpuPeaks) -> float:
    """The share of a race that is such a call's: between two of them L2 is filled with other bytes."""
    return seconds / (seconds + _memory(2.0 * peaks.l2_bytes, 0.0, peaks))


def _arithmetic(piece: Piece, peaks: GpuPeaks) -> float:
    """Outside the matrix units: an instruction each, and elementary functions, on pipes of their own."""
    fused, _ = _fused(peaks)
    rate = peaks.functions.get(piece.function) or peaks.functions.get("exp", 0.0)
    return max(piece.flop / (fused / 2) if fused else 0.0, piece.transcendental / (rate * 1e9) if rate else 0.0)
