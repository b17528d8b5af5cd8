"""The process that times one problem of KernelBench: started by ``scoreboard_times.py``, in a folder of its own.

    python benchmarks/scoreboard_race.py PROBLEM.py DEVICE PEAKS THREADS SIZES

Makes the problem's module and inputs on the device, at these sizes (in JSON) or at its own as far as memory goes, has
torch.compile and a swap make theirs of it, holds the answer of each against the run in float64 and its derived bound,
says ``ready`` (``side_by_side.py``), and races all of them once the others stand still. What it found is
``result.json``; an error stands there as ``failed``.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import gc
import json
import math
import os
import re
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # a problem has a kernel or two; others compile beside it
os.environ["KERNELWORKS_CHOOSE"] = "listed"  # those that are verified on this kind of GPU, with or without a record

import torch
from side_by_side import RESULT, wait_for_turn
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernelworks.contract.bounds import Bound, NoBoundError, bound_of
from kernelworks.judge.formats import kernelbench
from kernelworks.judge.inputs.sizes import fit_shape, size_of
from kernelworks.judge.problem import Shape
from kernelworks.judge.speed import speed
from kernelworks.machine import machine
from kernelworks.measure.clock.noise import WINDOW_S, Ambiguous, cpu_times, noise_between
from kernelworks.measure.roofline.bound import bottleneck_of, bound
from kernelworks.nn.swap import swap
from kernelworks.records import GpuPeaks, Peaks, from_json

SEED = 20  # of weights and inputs; the next one is of the other inputs that soundness is told by
EAGER, OURS = "eager", "ours"
MODES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "cuda": {"default": {}, "reduce-overhead": {"mode": "reduce-overhead"}},
    "cpu": {"default": {}},
}
# A run in float64 with its bound needs so many times the bytes of inputs, weights and answers: halved until it fits.
BOUND_TIMES = 16.0
HALVINGS = 3
# Bytes, from which on a problem is big: few of those are made ready at once, and reduce-overhead is not tried, whose
# graph has its inputs copied into its own memory at each call and saves microseconds of a millisecond.
BIG_BYTES, BIG_AT_ONCE = 2e9, 3
NO_GRAPH = "reduce-overhead"
CHUNK = 1 << 26  # elements that are compared at once
KEPT = 1 << 12  # elements of an answer that are compared again after the race
LEAST_ROUNDS, MOST_ROUNDS = 9, 60
FEW_ROUNDS, MOST_S = 3, 1.2  # of calls that take so long that the least would take more than that
MOST_EVICTED = 128 << 20  # bytes that the caches are filled with
LOUD_WINDOWS = 12  # in which others used the cores, after which there is no time of the problem
TIGHT = 0.02  # of a ratio: the width of its interval from which on more rounds say nothing more
WARM_UP = 3  # the second call of reduce-overhead records the graph, the third replays it
PATIENCE_S, MOMENT_S = 20.0, 0.5  # for memory that others have for a moment
DEVICE_SHARE = 0.9  # of a device's memory, from which on nobody else has much of it
TURNS = Path(os.environ.get("KERNELWORKS_SCOREBOARD_TURNS", "."))  # a folder of locks that all processes share
POLL_S = 0.05

Call = Callable[[], Any]


def tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def worst_share(answers: Sequence[Tensor], reference: Sequence[Tensor], most: Sequence[Tensor]) -> float:
    """The worst error of any element as a share of its bound; infinity where an answer has another shape, or a NaN."""
    if [a.shape for a in answers] != [r.shape for r in reference]:
        return math.inf
    worst = 0.0
    for three in zip(answers, reference, most, strict=True):
        for a, r, b in zip(*(t.detach().reshape(-1).split(CHUNK) for t in three), strict=True):
            if not a.numel():
                continue
            a, r = a.double(), r.double()
            share = (a - r).abs_().div_(b.double().clamp(min=torch.finfo(torch.float64).tiny))
            share = torch.where((a == r) | (a.isnan() & r.isnan()), 0.0, share).nan_to_num_(nan=math.inf)
            worst = max(worst, float(share.max()))
    return worst


def bound_in_memory(module: Any, given: Sequence[Any]) -> Bound:
    """The bound. Raises torch.OutOfMemoryError where memory alone is short: smaller sizes have one."""
    try:
        return bound_of(module, given)
    except NoBoundError as error:
        if isinstance(error.__cause__, torch.OutOfMemoryError):
            raise error.__cause__ from None
        raise


class Gpu:
    """Where the problem runs, and its clock: CUDA's events, after L2 was filled with other bytes."""

    name, window_s, most_s = "cuda", 0.0, MOST_S

    def __init__(self) -> None:
        from kernelworks.machine import gpu
        from kernelworks.measure.clock.cuda_events import Evictor

        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        self.title, self.bytes = torch.cuda.get_device_name(), torch.cuda.mem_get_info()[1]
        self._evict = Evictor(gpu())
        self._evict()  # compiled before anything is timed

    def seconds(self, call: Call) -> float:
        """Of a call as whoever waits for its answer has it: the host's time to launch is in it where it is the longer
        one."""
        from kernelworks.measure.clock.cuda_events import cuda_event

        begin, end = cuda_event(), cuda_event()
        self._evict()
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def noise(self) -> None:
        """Nobody else is there."""

    def is_loud(self, before: Any) -> bool:
        return False

    def is_crowded(self) -> bool:
        """Whether others have memory that this process did not get."""
        return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() < DEVICE_SHARE * self.bytes

    def release(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()


class Cpu:
    """The same on the cores that this process may use, after their caches were filled with other bytes. A window in
    which others used those cores is thrown away; what goes on on other cores is not looked at."""

    name, title, bytes, window_s, most_s = "cpu", "the CPU", 1 << 33, WINDOW_S, 4 * MOST_S

    def __init__(self, threads: int = 1) -> None:
        torch.set_num_threads(threads)
        shared = dict(machine().cache_bytes).get("L3", 0)
        self._other = torch.zeros(min(2 * max(shared, 1 << 24), MOST_EVICTED) // 4)

    def seconds(self, call: Call) -> float:
        self._other.sum()
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    def synchronize(self) -> None: ...

    def noise(self) -> Any:
        return cpu_times()

    def is_loud(self, before: Any) -> bool:
        return noise_between(before, cpu_times()).loud

    def is_crowded(self) -> bool:
        return False

    def release(self) -> None:
        gc.collect()


@dataclass
class Truth:
    """Some elements of the answer and of its bound, kept for after the race."""

    places: list[Tensor]
    reference: list[Tensor]
    most: list[Tensor]

    @classmethod
    def of(cls, found: Bound) -> Truth:
        places = [torch.randint(max(r.numel(), 1), (min(KEPT, r.numel()),), device=r.device) for r in found.reference]
        return cls(places, *([t.reshape(-1)[at] for t, at in zip(of, places, strict=True)]
                             for of in (found.reference, found.outputs)))  # fmt: skip

    def worst(self, answer: Any) -> float:
        some = [t.detach().reshape(-1)[at] for t, at in zip(tensors(answer), self.places, strict=True)]
        return worst_share(some, self.reference, self.most)


class Contestants:
    """One problem at one size: its module as it is, compiled, and swapped."""

    def __init__(
        self, path: Path, device: Any, most_bytes: float, compilers: Mapping[str, Mapping[str, Any]],
        sizes: Mapping[str, int] | None,
    ) -> None:  # fmt: skip
        source = re.sub(r""",\s*device=["']cuda["']""", "", path.read_text(encoding="utf-8"))
        self.problem = kernelbench.problem_in(path, source)
        self.device, here = device, Path.cwd()
        if sizes is None:
            self.shape, _ = fit_shape(self.problem, kernelbench.load, here, most_bytes, math.inf)
        else:
            self.shape = Shape("asked for", dict(sizes))
        self.loaded = kernelbench.load(self.problem, self.shape, here)
        size = size_of(self.loaded)
        self.flop = size.flop if size is not None else 0.0
        self.is_big = size is None or size.bytes > BIG_BYTES
        with torch.device(device.name):
            torch.manual_seed(SEED)
            init = self.loaded.init()
            torch.manual_seed(SEED)
            self.module: nn.Module = self.loaded.reference(*init).to(device.name)
        self.variants: dict[str, Callable[..., Any]] = {EAGER: self.module}
        for name, how in compilers.items():
            if self.is_big and name == NO_GRAPH:
                continue
            self.variants[name] = torch.compile(copy.deepcopy(self.module), **how)
        ours = copy.deepcopy(self.module)
        self.ops = sorted({op for replaced in swap(ours, verbose=False).replaced for op in replaced.ops})
        self.variants[OURS] = ours
        self.failed: dict[str, str] = {}

    def inputs(self, seed: int = SEED) -> list[Any]:
        """Drawn where they are used."""
        with torch.device(self.device.name):
            torch.manual_seed(seed)
            given = list(self.loaded.inputs())
        return pytree.tree_map(lambda v: v.to(self.device.name) if isinstance(v, Tensor) else v, given)  # type: ignore[no-any-return]

    def answer(self, name: str, given: list[Any], seed: int = SEED) -> Any:
        torch.manual_seed(seed)
        torch.compiler.cudagraph_mark_step_begin()
        return self.variants[name](*given)

    def compile(self) -> None:
        """The first call of each, which has its kernels made."""
        given = self.inputs()
        for name in list(self.variants):
            try:
                self.answer(name, given)
                self.device.synchronize()
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                if name == EAGER:
                    raise
                self.failed[name] = f"{type(error).__name__}: {str(error).strip()[:200]}"
                del self.variants[name]

    def examined(self) -> tuple[dict[str, float], list[str], Truth, dict[str, float]]:
        """The worst of each as a share of the bound; why the problem is not sound, if so; the truth; its bytes."""
        given = self.inputs()
        torch.manual_seed(SEED)
        found = bound_in_memory(copy.deepcopy(self.module), given)
        shares, reference, most = {}, found.reference, found.outputs
        for name in self.variants:
            shares[name] = worst_share(tensors(self.answer(name, given)), reference, most)
        truth, reasons = Truth.of(found), list[str]()
        if not all(bool(r.isfinite().all()) for r in reference if r.is_floating_point()):
            reasons.append("its answer is not finite")
        if shares[EAGER] > 1:
            reasons.append(f"eager itself is {shares[EAGER]:.3g} times the bound off its float64 run")
        if worst_share(tensors(self.answer(EAGER, given, SEED + 1)), reference, most) > max(1.0, shares[EAGER]):
            reasons.append("two runs on the same inputs differ: its answer is drawn anew in each")
        for at, value in enumerate(tensors(given)):
            if [value.shape] == [r.shape for r in reference] and worst_share([value], reference, most) <= 1:
                reasons.append(f"input {at} itself is a right answer")
        if worst_share([torch.zeros_like(r) for r in reference], reference, most) <= 1:
            reasons.append("zeros are a right answer")
        if worst_share(tensors(self.answer(EAGER, self.inputs(SEED + 1))), reference, most) <= 1:
            reasons.append("the answer to other inputs is right")
        written = sum(n.nbytes for n in found.native)
        read = sum(t.nbytes for t in (*tensors(given), *self.module.parameters()))
        return shares, reasons, truth, {"read": float(read), "written": float(written)}

    def raced(self, truth: Truth) -> dict[str, list[float]]:
        """Seconds of each, in turns whose order is turned round every time, until the intervals of the ratios are
        narrow."""
        given = self.inputs()
        calls: dict[str, Call] = {}
        for name, run in self.variants.items():
            for _ in range(WARM_UP):
                self.answer(name, given)
            calls[name] = lambda run=run: run(*given)
        self.device.synchronize()
        gc.disable()
        try:
            found = self._rounds(calls)
        finally:
            gc.enable()
        for name in calls:  # what was timed is still right
            worst = truth.worst(self.answer(name, given))
            if worst > 1 and name != EAGER:
                self.failed[name] = f"after the race {worst:.3g} times the bound off"
        return found

    def _rounds(self, calls: Mapping[str, Call]) -> dict[str, list[float]]:
        """Raises Ambiguous where no window was quiet."""
        device, order, loud = self.device, list(calls), 0
        found: dict[str, list[float]] = {name: [] for name in calls}
        begin = time.monotonic()
        while len(found[EAGER]) < MOST_ROUNDS:
            window, before, since = {name: list[float]() for name in calls}, device.noise(), time.monotonic()
            while not window[EAGER] or time.monotonic() - since < device.window_s:
                for name in order:
                    torch.compiler.cudagraph_mark_step_begin()
                    window[name].append(device.seconds(calls[name]))
                order.reverse()
            if device.is_loud(before):
                loud += 1
                if loud == LOUD_WINDOWS and len(found[EAGER]) < FEW_ROUNDS:
                    raise Ambiguous(1.0)
            else:
                for name, times in window.items():
                    found[name] += times
            rounds = len(found[EAGER])
            late = rounds >= FEW_ROUNDS and time.monotonic() - begin > device.most_s
            if late or (rounds >= LEAST_ROUNDS and _narrow(found)):
                break
        return found


def _narrow(found: Mapping[str, list[float]]) -> bool:
    ratios = [speed(name, times, found[OURS] if OURS in found else found[EAGER], 0.0) for name, times in found.items()]
    return all(one.high - one.low <= TIGHT * one.ratio for one in ratios)


@contextlib.contextmanager
def by_turns(what: str, count: int = 1) -> Iterator[None]:
    """So many at a time of those that prepare. Whoever is timed has let go of it."""
    with contextlib.ExitStack() as files:
        places = [files.enter_context((TURNS / f"{what}-{number}.lock").open("a")) for number in range(count)]
        while not any(_locked(place) for place in places):
            time.sleep(POLL_S)
        yield


def _locked(file: Any) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def patiently(device: Any, work: Callable[[], Any]) -> Any:
    """What it gives, once others let go of the memory that it needs. Raises torch.OutOfMemoryError."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return work()
        except torch.OutOfMemoryError:
            if not device.is_crowded() or time.monotonic() > until:
                raise
        device.release()
        time.sleep(MOMENT_S)


def limit_of(
    flop: float, moved: Mapping[str, float], peaks: GpuPeaks | Peaks | None, seconds: float, threads: int
) -> dict[str, Any]:  # fmt: skip
    """The least time of the products and of the bytes that go in and come out, where the machine's peaks are known."""
    if peaks is None:
        return {"limit_s": None, "bound_by": ""}
    every = moved["read"] + moved["written"]
    least = bound(flop, 0.0, every, math.inf, "float32", threads, peaks, written_bytes=moved["written"])
    return {"limit_s": least.seconds, "bound_by": bottleneck_of(least, seconds)}


def found_of(
    path: Path, device: Any, peaks: GpuPeaks | Peaks | None, compilers: Mapping[str, Mapping[str, Any]],
    turn: Callable[[], None] = wait_for_turn, threads: int = 1, sizes: Mapping[str, int] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The row of a problem."""
    most_bytes, begin = device.bytes / BOUND_TIMES, time.monotonic()
    for left in reversed(range(HALVINGS)):
        try:
            one = Contestants(path, device, most_bytes, compilers, sizes)
            with by_turns("big", BIG_AT_ONCE) if one.is_big else contextlib.nullcontext():
                patiently(device, one.compile)
                device.release()
            with by_turns("float64"):
                shares, reasons, truth, moved = patiently(device, one.examined)
                device.release()
            break
        except torch.OutOfMemoryError:
            if device.is_crowded() or not left:
                raise
        most_bytes /= 2
        torch.compiler.reset()
        device.release()
    prepared_s = time.monotonic() - begin
    turn()
    begin = time.monotonic()
    for name in [name for name, share in shares.items() if share > 1 and name != EAGER]:
        one.failed[name] = f"{shares[name]:.3g} times the bound off"
        del one.variants[name]
    times = one.raced(truth)
    times = {name: of for name, of in times.items() if name not in one.failed}
    medians = {name: statistics.median(of) for name, of in times.items()}
    over = {
        name: [(s := speed(name, of, times[OURS], 0.0)).ratio, s.low, s.high]
        for name, of in times.items() if OURS in times and name != OURS
    }  # fmt: skip
    return {
        "sizes": {k: int(v) for k, v in one.shape.sizes.items()}, "verdict": "unsound" if reasons else "sound",
        "findings": reasons, "worst": {name: round(share, 4) for name, share in shares.items()},
        "seconds": medians, "over": over, "rounds": len(times[EAGER]), "failed_variants": one.failed, "ops": one.ops,
        "device": device.title, "prepared_s": round(prepared_s, 1), "raced_s": round(time.monotonic() - begin, 1),
        **limit_of(one.flop, moved, peaks, medians.get(OURS, medians[EAGER]), threads),
    }  # fmt: skip


def peaks_in(text: str, device: Any) -> GpuPeaks | Peaks | None:
    """Measured peaks of this GPU, or of this CPU, if the file is of one."""
    if not text or not Path(text).is_file():
        return None
    said = json.loads(Path(text).read_text(encoding="utf-8"))
    said = json.dumps(said.get("peaks", said))
    if device.name == "cpu":
        return from_json(Peaks, said)
    known = from_json(GpuPeaks, said)
    return known if known.name == device.title else None


def main() -> None:
    path, name, peaks, threads, sizes = sys.argv[1:]
    try:
        with torch.no_grad():
            device = Gpu() if name == "cuda" else Cpu(int(threads))
            known, asked = peaks_in(peaks, device), json.loads(sizes) if sizes else None
            found = found_of(Path(path), device, known, MODES[name], threads=int(threads), sizes=asked)
    except Exception as error:
        traceback.print_exc()
        found = {"failed": f"{type(error).__name__}: {str(error).strip()[:300]}"}
    Path(RESULT).write_text(json.dumps(found) + "\n", encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # nothing of torch's or a driver's is waited for


if __name__ == "__main__":
    main()
