"""How the GPU kernels stand against a device copy of the same bytes and the strongest baselines, in one run.

    python benchmarks/h200_ops.py [--only rms_norm,softmax] [--out FILE] [--again] [--workers 14]

``h200_cases.py`` beside this says what is timed. Workers make ready a share of the lines each, all at once: they
compile every variant and call it. Then the lines are measured one by one, by the worker that has them ready, while the
others stand still: a call without a tuning record is benchmarked first, as a user would have it; ours is held against
float32 torch on the timed inputs (its verification holds it to its bound); and all variants are timed by turns between
events, each with L2 full of other bytes. Of a backward the caller's wall clock is taken too, since autograd's own time
counts there.

Each line goes on record at once, with the hash of the source that it ran, so that a figure of changed source is not
shown. Whoever is cut off calls again: what is on record of the sources and the timing as they are is not measured
again, but for ``--again``.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import inspect
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from h200_cases import BOTH, Call, Case, Group, gradient_request, groups, small_calls
from h200_crew import Line, lines, made_ready, serve, started
from program_variant import halted_s
from side_by_side import wait_for_turn
from torch import Tensor

import kernelworks as kw
from kernelworks.build import native
from kernelworks.contract import Request
from kernelworks.dispatch import tuning_records
from kernelworks.dispatch.choose import choose, eligible_ways
from kernelworks.dispatch.op import OPS
from kernelworks.measure.autotune.live import Training
from kernelworks.measure.bench.kernel_map import source_hashes
from kernelworks.measure.bench.results import head as provenance
from kernelworks.measure.clock.race_on_gpu import copy_of, race_on_gpu
from kernelworks.measure.roofline.kernel_time import count_values, piece_of
from kernelworks.records.json_text import format_lines

GIB = 2**30
SAME = 3e-3  # how much further from float32 torch than eager a variant may be, normwise: half an ulp of bfloat16
# What an op's error may be beside others': attention's truth is bfloat16 itself; weights of 8 bits, beside those of 16.
ROUNDED = {"attention": 1.5e-2, "attention_fp8": 4e-2}
BUDGET_S = 0.04  # of timing, a variant
WARM_S = 0.25  # of turns that are not counted, where power sets the clock: a card from rest would slow down meanwhile
WALL_S, WALLS = 0.01, 3  # of a queue of calls, and how often, a variant
RACES_S = 4.0  # for the calls of one group that no timing speaks for
UNBUILT = ("eager", "fused")  # variants that nothing is compiled for
WORKERS = max(2, (os.cpu_count() or 4) - 2)
HERE = Path(__file__).resolve().parent

TRAINING = ("backward", BOTH)


# ---------------------------------------------------------------- one line


def flat(result: Any) -> Tensor:
    return (result if isinstance(result, Tensor) else result[0]).double().flatten()


def off(call: Call, want: Tensor) -> float:
    return float((flat(call())[: want.numel()] - want).norm() / want.norm())


def request_of(case: Case) -> Request:
    """What is asked for by the pass that was timed; a backward's forward is asked for all of its gradients."""
    op, asked = OPS[case.op], case.asked
    if case.pass_ not in TRAINING:
        return op.request("forward", asked)
    named = zip(op.passes["forward"].names, asked, strict=True)
    wanted = case.wanted or tuple(n for n, v in named if n in op.contract.differentiable and isinstance(v, Tensor))
    return op.request("training", asked, wanted)


def row_of(case: Case) -> str:
    """The kernel that the dispatcher takes for the pass that was timed; gradients are chosen with their forward."""
    op, request = OPS[case.op], request_of(case)
    choice = choose(op, request)
    if case.pass_ not in TRAINING:
        return choice.kernel.name
    if choice.backward is None and not choice.together and not choice.native:
        return choose(op, op.backward_of(request)).kernel.name
    return (choice.backward or choice.kernel).name


def work_of(case: Case) -> dict[str, Any]:
    """What the call cannot do without, as its contract counts it, and its dimensions: what a time is predicted from."""
    op, request = OPS[case.op], request_of(case)
    if case.pass_ in TRAINING:  # of both, what a kernel that makes them at once cannot do without
        request = gradient_request(op, request)
    piece = piece_of(op, count_values(op, request, case.asked))
    work = dataclasses.asdict(piece) | {"flop": case.flop or piece.flop}
    return {name: value for name, value in work.items() if name != "function" and value != {}}


def wrong(case: Case, errors: dict[str, float]) -> bool:
    if len(errors) < 2 or errors["ours"] <= 2 * min(errors.values()) + SAME:
        return False
    return case.pass_ == "decode" or errors["ours"] > ROUNDED.get(case.op, 0.0)


def wall_ms(arms: dict[str, Call], about_ms: dict[str, float]) -> dict[str, float]:
    """What a caller waits for a call, in a queue of them: device and host, whichever is slower."""
    found: dict[str, list[float]] = {name: [] for name in arms}
    order = list(arms)
    for _ in range(WALLS):
        for name in order:
            count = max(3, min(400, int(WALL_S * 1e3 / about_ms[name])))
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(count):
                arms[name]()
            torch.cuda.synchronize()
            found[name].append((time.perf_counter() - begin) * 1e3 / count)
        order.reverse()
    return {name: statistics.median(values) for name, values in found.items()}


def able(arms: dict[str, Call]) -> tuple[dict[str, Call], dict[str, str]]:
    """The variants that run, and why a baseline does not: torch's backends decline some shapes. Ours must run, and one
    other."""
    found, unable = dict[str, Call](), dict[str, str]()
    for name, call in arms.items():
        try:
            call()
        except Exception as error:
            if name == "ours":
                raise
            unable[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        else:
            found[name] = call
    if len(found) < 2:
        raise RuntimeError(f"no baseline runs: {unable}")
    return found, unable


def timed(case: Case, peak: float) -> Line:
    """One line of the record: milliseconds by variant, what was reached, and the error of ours beside a baseline's."""
    arms, unable = able(case.arms)
    want, errors = case.truth(), dict[str, float]()
    if want is not None:
        want = flat(want)
        errors = {name: off(arms[name], want) for name in ("ours", next(n for n in arms if n != "ours"))}
        del want
    if case.bytes:
        arms = {"copy": copy_of(min(case.bytes, 2 * GIB)), **arms}
    calls: dict[str, Callable[[int], object]] = {name: (lambda index, call=call: call()) for name, call in arms.items()}
    if case.flop:
        race_on_gpu(calls, budget_s=WARM_S / len(calls))
    race = race_on_gpu(calls, budget_s=BUDGET_S)
    ms = {name: 1e3 * race.stats(name).median for name in arms}
    spread = {name: round((t.high - t.low) / t.median, 4) for name in arms for t in (race.stats(name),)}
    rate = case.bytes / ms["ours"] / 1e6 if case.bytes else case.flop / ms["ours"] / 1e9
    copied = peak if case.of_peak else case.bytes / ms["copy"] / 1e6 if case.bytes else 0.0
    best = min((v, n) for n, v in ms.items() if n not in ("ours", "copy"))
    row = row_of(case)
    line = {
        "op": case.op, "pass": case.pass_, "shape": case.shape, "kernel": row,
        "source_hash": OPS[case.op].kernel(row).hash(), "ms": ms, "spread": spread, "bytes": case.bytes,
        "flop": case.flop, "share_of_copy": rate / copied if copied else None, "of_1_gib_copy": case.of_peak,
        "tflops": None if case.bytes else rate, "best": best[1], "over_best": best[0] / ms["ours"], "errors": errors,
        "wrong": wrong(case, errors), "work": work_of(case), "unable": unable,
    }  # fmt: skip
    if case.pass_ in TRAINING:
        line["wall_ms"] = wall_ms(arms, ms)
    return line


def shown(line: Line) -> str:
    if "failed" in line:
        return f"{line['op']} {line['pass']} {line['shape']}: {line['failed']}"[:300]
    reached = (
        f"{100 * line['share_of_copy']:5.1f}% of copy" if line["share_of_copy"] else f"{line['tflops']:6.0f} TFLOP/s"
    )
    wall = line.get("wall_ms", {})
    waited = f", {1e3 * wall['ours']:.1f} by the wall" if wall else ""
    return (
        f"{line['op']:14s} {line['pass']:9s} {line['shape']:26s} {reached} {1e3 * line['ms']['ours']:9.1f} us{waited}  "
        f"{line['over_best']:.2f}x {line['best']} [{line['kernel']}]{'  WRONG' if line['wrong'] else ''}"
        + (f"  not autotuned: {line['unsettled']}" if "unsettled" in line else "")
    )


def host_us(call: Call, calls: int) -> float:
    """Wall clock of an eager call while the GPU keeps up: what the host spends on it."""
    for _ in range(50):
        call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    spent = time.perf_counter() - begin
    torch.cuda.synchronize()
    return spent / calls * 1e6


def small_line(group: Group) -> Line:
    """Eager wall clock of a small call, forward and backward, ours beside torch's: the second of two looks at each."""
    line: Line = {"op": group.op, "shape": group.name}
    for case in group.make():
        for name, call in (*case.arms.items(), *case.arms.items()):
            line[f"{case.pass_}_{name}_us"] = host_us(call, 1000 if case.pass_ == "forward" else 300)
    return line


# ---------------------------------------------------------------- a worker


def known(case: Case) -> bool:
    """Whether a timing speaks for this very call: ours was quicker, or torch than all ways that there are today."""
    op, request = OPS[case.op], request_of(case)
    there = eligible_ways(op, request)[0]
    exact, _ = tuning_records.valid_records(op.name, op.contract, request, there)
    return any(timing.beats_torch or tuning_records.is_decisive(timing, there) for timing in exact)


def ways(case: Case) -> Iterator[Call]:
    """The call by each way that a race would try, with the gradients that it would ask for."""
    op, request = OPS[case.op], request_of(case)
    named = zip(op.passes["forward"].names, case.asked, strict=True)
    graded = tuple(a.detach().requires_grad_() if name in request.wanted else a for name, a in named)
    for way in eligible_ways(op, request)[0]:
        if case.pass_ in TRAINING:
            yield lambda way=way: Training(op, graded).forward_backward(way)()
        else:
            yield lambda way=way: op(*case.asked, kernel=way)


def settled(group: Group) -> dict[tuple[str, str, str], str]:
    """Races the group's calls as they are made and called, where no timing speaks for them yet. Of those that none
    speaks for then, by op, pass and shape: why."""
    why: dict[tuple[str, str, str], str] = {}
    for case in group.make():
        if known(case):
            continue
        wanted = "training" if case.pass_ in TRAINING else "forward"
        try:
            lines = [line for line in kw.autotune(case.arms["ours"], budget_s=RACES_S).calls if line.op == case.op]
            found = [line.why for line in lines if (line.what == "forward") == (wanted == "forward")]
        except Exception as error:  # the line itself still may run
            found = [f"{type(error).__name__}: {error}"]
        if not known(case):
            why[case.op, case.pass_, case.shape] = "; ".join(dict.fromkeys(found))[:300] or "no such call was met"
    return why


def prepare(group: Group) -> None:
    """Compiles and calls once whatever is compiled, and what will be benchmarked. What fails says so when it is
    timed."""
    for case in group.make():
        built = [call for name, call in case.arms.items() if name not in UNBUILT]
        for call in (*built, *(() if group.small or known(case) else ways(case))):
            with contextlib.suppress(Exception):
                call()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def measured(group: Group, peak: float) -> Iterator[Line]:
    if group.small:
        yield small_line(group)
        return
    why = settled(group)  # then all is made anew: what was found serves a backward's forward too
    for case in group.make():
        begin, untold = time.perf_counter(), why.get((case.op, case.pass_, case.shape), "")
        try:
            line = timed(case, peak)
            yield {
                **line,
                **({"unsettled": untold} if untold else {}),
                "seconds": round(time.perf_counter() - begin, 2),
            }
        except Exception as error:  # one case that cannot run must not hide the others
            said = f"{type(error).__name__}: {error}"[:500]
            yield {"op": case.op, "pass": case.pass_, "shape": case.shape, "failed": said}
    torch.cuda.empty_cache()


def work(pipe: Connection) -> None:
    """A worker's whole life. The way into ops in C++ is there before the first call, as for those who autotune."""
    native.provide()
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 1000  # torch.compile of all ops' baselines goes by one code object
    torch._inductor.config.compile_threads = 1
    todo = table()
    serve(
        pipe, lambda number: prepare(todo[number]), lambda number, peak: measured(todo[number], peak),
        lambda number: {"op": todo[number].op, "pass": "", "shape": todo[number].name},
    )  # fmt: skip


def table() -> list[Group]:
    return [*groups(), *small_calls()]


BY = "".join(
    map(inspect.getsource, (race_on_gpu, copy_of, able, off, wrong, wall_ms, timed, host_us, small_line, work))
)
HOW = hashlib.sha256(f"{BY} {BUDGET_S} {WARM_S} {WALL_S} {WALLS}".encode()).hexdigest()[:12]  # what a line was timed by


# ---------------------------------------------------------------- the record


def key_of(line: Line) -> tuple[str, str, str]:
    return line["op"], line.get("pass", ""), line["shape"]


class Record:
    """The file: read at first, written anew after every line."""

    def __init__(self, file: Path, head: dict[str, Any], order: Sequence[Group]) -> None:
        self.file, self.head = file, head
        self.order = {str(group): place for place, group in enumerate(order)}
        before = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if before and any(before[what] != head[what] for what in ("machine", "versions")):
            before = {}  # figures of another machine stand in no table with these
        commit, date = before.get("commit", "").split(" ")[0], before.get("date", "")
        origin = {"date": date, "commit": commit}
        self.rows, self.small = (
            {key_of(row): {**origin, **row} for row in before.get(name, ()) if row.get("group") in self.order}
            for name in ("rows", "small_calls")
        )  # what no group holds any more leaves
        self.copy_gbs = before.get("copy_gbs", 0.0)

    def has(self, group: Group, hashes: dict[str, str]) -> bool:
        """Whether all that a group holds stands there, of these sources and timed like this."""
        return any(row.get("group") == str(group) for row in self._all()) and all(
            row.get("how") == HOW
            and "failed" not in row
            and (not row.get("source_hash") or hashes.get(f"{row['op']}.{row['kernel']}") == row["source_hash"])
            for row in self._all()
            if row.get("group") == str(group)
        )

    def _all(self) -> Iterator[Line]:
        return itertools.chain(self.rows.values(), self.small.values())

    def add(self, group: Group, line: Line) -> None:
        origin = {"date": self.head["date"], "commit": self.head["commit"], "how": HOW, "group": str(group)}
        (self.small if group.small else self.rows)[key_of(line)] = {**line, **origin}
        self.write()

    def write(self) -> None:
        def place(row: Line) -> int:
            return self.order.get(row.get("group", ""), len(self.order))

        rows, small = (sorted(held.values(), key=place) for held in (self.rows, self.small))
        others = sorted({row["commit"] for row in rows} - {self.head["commit"], ""})
        commit = " ".join([self.head["commit"], *(f"and {other}" for other in others)])
        found = {**self.head, "commit": commit, "copy_gbs": self.copy_gbs, "rows": rows, "small_calls": small}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        scratch = self.file.with_suffix(f".{os.getpid()}")
        scratch.write_text(format_lines(found) + "\n", encoding="utf-8")
        scratch.replace(self.file)


# ---------------------------------------------------------------- all of it


def head() -> dict[str, Any]:
    found = provenance("cuda", ("triton",))
    found["versions"]["cuda"] = str(torch.version.cuda)
    return {**found, "sources": source_hashes()}


def copy_rate() -> float:
    """GB/s of a copy of 1 GiB, by the timer of the lines."""
    copy = copy_of(2 * GIB)
    return 2 * GIB / race_on_gpu({"copy": lambda index: copy()}, budget_s=0.2).stats("copy").median / 1e9


def measure(
    file: Path, only: set[str], *, again: bool = False, workers: int = WORKERS, within: float = 110.0,
    turn: Callable[[], None] = lambda: None,
) -> dict[str, Any]:  # fmt: skip
    """Measures these ops (all, where none is named; ``small``: the host's time of small calls) and puts each line on
    record, once all is ready and ``turn`` is over: lines that are not on record first. What failed or is wrong."""
    begin = time.perf_counter()
    order = table()
    record = Record(file, head(), order)
    asked = [
        n for n, g in enumerate(order) if not only or (g.small and "small" in only) or (not g.small and g.op in only)
    ]
    there = {n for n in asked if record.has(order[n], record.head["sources"])}
    todo = sorted((n for n in asked if again or n not in there), key=lambda n: n in there)
    if not todo:
        print(f"nothing to measure: {file.name} holds all of it, of these sources")
        turn()
        return {"groups": 0, "bad": []}
    crew = started(min(workers, len(todo)), work)
    made_ready(crew, todo, within)
    ready_s = time.perf_counter() - begin - halted_s()
    turn()
    began = time.perf_counter()
    record.copy_gbs = copy_rate()
    torch.cuda.empty_cache()
    print(f"ready in {ready_s:.0f} s; 1 GiB copy {record.copy_gbs:.0f} GB/s", flush=True)
    bad: list[str] = []
    for number in todo:
        group = order[number]
        try:
            for line in lines(crew, number, record.copy_gbs):
                record.add(group, line)
                said = small_words(line) if group.small else shown(line)
                bad += [said] if line.get("wrong") or line.get("failed") else []
                print(said, flush=True)
        except LookupError as error:
            print(error, file=sys.stderr)
            bad.append(f"{group}: {error}")
            break
        except (EOFError, OSError) as error:
            bad.append(f"{group}: its worker ended: {error}")
            print(bad[-1], flush=True)
    for worker in crew:
        worker.end()
    timed_s = time.perf_counter() - began
    print(f"{time.perf_counter() - begin:.0f} s in all, {timed_s:.0f} of them timing", flush=True)
    return {"groups": len(todo), "bad": bad, "ready_s": round(ready_s, 1), "timed_s": round(timed_s, 1)}


def missing(file: Path, head: dict[str, Any], only: set[str]) -> list[str]:
    """The groups whose lines the record lacks, or has of other sources."""
    order = table()
    record = Record(file, head, order)
    return [str(g) for g in order if not record.has(g, head["sources"]) and (not only or g.op in only)]


def small_words(line: Line) -> str:
    return "  ".join(f"{k} {v:.1f}" if isinstance(v, float) else str(v) for k, v in line.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="these ops alone; `small` for the host times of small calls")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "h200-ops.json")
    parser.add_argument("--again", action="store_true", help="measures what is on record once more")
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--within", type=float, default=110.0, help="seconds to make lines ready in")
    parser.add_argument("--result", type=Path, help="says `ready`, waits for a line, and leaves word there")
    given = parser.parse_args()
    found = measure(
        given.out.resolve(), set(filter(None, given.only.split(","))), again=given.again, workers=given.workers,
        within=given.within, turn=wait_for_turn if given.result else lambda: None,
    )  # fmt: skip
    if given.result:
        given.result.write_text(json.dumps(found), encoding="utf-8")
    return min(1, len(found["bad"]))


if __name__ == "__main__":
    sys.exit(main())
