"""One run of ``autotune``: meets each call signature of a program, and decides which are benchmarked."""

from __future__ import annotations

import contextlib
import datetime
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from kernelworks.build import BuildError
from kernelworks.contract import Kernel, Request
from kernelworks.contract.tensors import is_observed, is_plain, is_transform_active, leaves
from kernelworks.dispatch import certificates, tuning_records
from kernelworks.dispatch.choose import Ways, eligible_ways
from kernelworks.dispatch.op import OPS, Op
from kernelworks.dispatch.tuning_records import RaceResult, TuningRecord
from kernelworks.machine import place_of
from kernelworks.measure.autotune.candidates import CallRace, failure_reason, race_forward, race_training
from kernelworks.measure.autotune.live import without_saved_tensor_hooks
from kernelworks.measure.clock.duel import Duel, OverTime, clock
from kernelworks.measure.clock.work_beside import untimed_section
from kernelworks.records import AutotunedCall, AutotuneResult
from kernelworks.verify import unsupported_reason, verify_missing
from kernelworks.verify.confirmation import confirm

__all__ = ["Session"]

AGREEING_RACES = 4  # Once so many calls of a bucket agree, the next ones follow them (a decode loop's lengths).
MAX_RACES = 12  # At most so many calls of a bucket are benchmarked.

PASS_LABELS = {"forward": "forward", "training": "forward + backward"}
BACKWARD = "backward"
STRIDES = re.compile(r" by \[[^\]]*\]")  # in a call's text: nothing for a line of progress


class Session:
    """What was met and found so far."""

    def __init__(self, *, again: bool, progress: Callable[[str], None], budget_s: float = math.inf) -> None:
        self.again, self.progress = again, progress
        self.left_s = budget_s  # to try kernels and to race them; the calls themselves take what they take
        self.skipped_calls = 0
        self.lines: list[AutotunedCall] = []
        self.kept: dict[str, str] = {}  # place -> the folder of its tuning records
        self.notes: dict[str, None] = {}
        self._begin = time.perf_counter()
        self._met: set[tuple[str, str, str]] = set()
        self._race_counts: dict[tuple[str, str, str], int] = {}  # calls by op, pass and bucket
        self._asked: set[tuple[str, str]] = set()  # (op, kernel) that were tried for a certificate or a race
        self._tried: set[tuple[str, str]] = (
            set()
        )  # those that may be benchmarked: right on some cases, not verified yet
        self._unverified: dict[tuple[str, str], None] = {}  # those that won and are not verified yet

    def record(self) -> AutotuneResult:
        seconds = time.perf_counter() - self._begin
        if self.skipped_calls:
            calls = f"{self.skipped_calls} call signature{'' if self.skipped_calls == 1 else 's'}"
            self.notes[f"out of time: {calls} not benchmarked; torch runs them"] = None
        return AutotuneResult(
            kinds=tuple(self.kept), threads=torch.get_num_threads(), calls=tuple(self.lines), seconds=seconds,
            kept=", ".join(filter(None, self.kept.values())), notes=tuple(self.notes),
        )  # fmt: skip

    # ------------------------------------------------------------ meeting a call

    def meet(self, op: Op, pass_: str, args: tuple[Any, ...], kernel: str | None) -> None:
        """A call that is about to be made. Never raises: what cannot be benchmarked is torch's."""
        if kernel is not None or not _can_race(args):
            return
        with without_saved_tensor_hooks():
            with torch.no_grad():
                self._autotune_call(op, "forward", args, ())
            if pass_ == "training":
                self._autotune_call(op, "training", args, op.inputs_requiring_grad(args))

    def prepare(self, ops: Sequence[Op]) -> None:
        """Compiles and tries kernels of all these ops before the first is met, several at a time."""
        untried: list[tuple[str, str]] = []
        for op in ops:
            kernels = {r.name: r for r in op.kernels if r.device == "cpu" and r.source and r.target != "scalar"}
            untried += self._to_try(
                op, {name: kernel for name, kernel in kernels.items() if unsupported_reason(op, kernel) is None}
            )
        self._try(untried)

    def _admit(self, op: Op, ways: Ways) -> None:
        """Tries the kernels of these ways, if any of them must be tried before a race."""
        self._try(
            self._to_try(op, {kernel.name: kernel for way in ways.values() for kernel in way if kernel.device == "cpu"})
        )

    def _to_try(self, op: Op, kernels: Mapping[str, Kernel]) -> list[tuple[str, str]]:
        """Which of an op's kernels are to be tried before one of them may be benchmarked.

        Those that were verified on another kind of CPU: to confirm them takes a second each. If no kernel was verified
        anywhere, the first listed is tried on as few cases: then it may be benchmarked, and is verified if it wins
        (``verify_winners``). The others would each be compiled for it, and are seldom quicker.
        """
        unverified = [
            name for name, kernel in kernels.items() if certificates.invalid_reason(op.name, kernel) is not None
        ]
        wanted = [
            name for name in unverified if certificates.transferable_certificate(op.name, kernels[name]) is not None
        ]
        raceable = kernels.keys() - unverified or any((op.name, name) in self._tried for name in kernels)
        if not wanted and not raceable:
            wanted = unverified[:1]
        return [(op.name, name) for name in wanted if (op.name, name) not in self._asked]

    def _try(self, named: Sequence[tuple[str, str]]) -> None:
        """Tries kernels in processes of their own."""
        if not named:
            return
        self._asked.update(named)
        try:
            self.progress(f"trying {', '.join(f'{op}.{kernel}' for op, kernel in named)} on this kind of CPU")
            begun, most_s = time.perf_counter(), max(0.0, self.left_s)
            found = confirm(named, progress=self.progress, most_s=most_s)
            self.left_s -= time.perf_counter() - begun
            for verification in found:
                if not verification.failures and verification.cases and not verification.certified:
                    self._tried.add((verification.op, verification.kernel))
        except (BuildError, OSError) as error:
            self.notes[f"not tried: {', '.join(f'{op}.{kernel}' for op, kernel in named)}: {failure_reason(error)}"] = (
                None
            )

    def verify_winners(self) -> None:
        """Verifies the kernels that won without a certificate, once, several at a time. A kernel that fails is not
        taken."""
        unverified = [
            (op, kernel)
            for op, kernel in self._unverified
            if certificates.invalid_reason(op, OPS[op].kernel(kernel)) is not None
        ]
        if not unverified:
            return
        self.progress(f"verifying the winners: {', '.join(f'{op}.{kernel}' for op, kernel in unverified)}")
        refused = dict.fromkeys(unverified, "its verification did not finish")
        try:
            for verification in verify_missing(unverified, progress=self.progress):
                refused[verification.op, verification.kernel] = (
                    "" if verification.certified else "it failed verification"
                )
        except (BuildError, OSError) as error:
            self.notes[f"not verified: {failure_reason(error)}"] = None
        for number, line in enumerate(self.lines):
            why = [refused.get((line.op, part)) for part in line.taken.split("+")]
            if any(why):
                self.lines[number] = replace(line, taken="torch", why=f"{line.taken}: {next(filter(None, why))}")

    def _autotune_call(self, op: Op, pass_: str, args: tuple[Any, ...], wanted: tuple[str, ...]) -> None:
        request = op.request(pass_, args, wanted)
        call = tuning_records.call_of(request)
        if (op.name, pass_, call) in self._met:
            return
        self._met.add((op.name, pass_, call))
        try:
            place = place_of(request.device)
            self.kept.setdefault(place, "")
            ways, declined = eligible_ways(
                op, request, trying={(op.name, kernel.name) for kernel in op.kernels if kernel.device == "cpu"}
            )
            known = tuning_records.ways_digest(ways)
            if ways and self._decided(op, request, ways, call):
                self._note_unverified(op, request, ways)
                return
            self._admit(op, ways)
            ways, declined = eligible_ways(op, request, trying=self._tried)
            if not ways:
                self._line(op, pass_, call, _none(declined))
                return
            if self.left_s <= 0:
                self.skipped_calls += 1
                self._line(op, pass_, call, "not benchmarked: out of time")
                return
            self.progress(f"benchmarking {op.name} {PASS_LABELS[pass_]} {STRIDES.sub('', call)}")
            with untimed_section():
                for kernel in {kernel.name: kernel for kernels in ways.values() for kernel in kernels}.values():
                    with contextlib.suppress(BuildError):  # which the race will say
                        kernel.load(kernel.passes[0])
            begin = clock()  # a build is waited for once, and is no race's time
            self._race(op, request, args, ways, place, known)
            self.left_s -= clock() - begin
            self._note_unverified(op, request, ways)
        except OverTime as error:
            self.left_s = 0.0
            self.skipped_calls += 1
            self._line(op, pass_, call, f"not benchmarked: {error}")
        except Exception as error:  # the program goes on, whatever a race met
            self._line(op, pass_, call, f"could not be benchmarked: {failure_reason(error)}")

    def _note_unverified(self, op: Op, request: Request, ways: Ways) -> None:
        """Notes the kernels that a call takes by its tuning records but may not take before they are verified."""
        way = tuning_records.verdict(op.name, op.contract, request, ways).way
        for kernel in ways.get(way, ()):
            if kernel.device == "cpu" and certificates.invalid_reason(op.name, kernel) is not None:
                self._unverified[op.name, kernel.name] = None

    def _decided(self, op: Op, request: Request, ways: Ways, call: str) -> bool:
        """Whether tuning records already say what this call takes; then there is a line."""
        exact, near = tuning_records.valid_records(op.name, op.contract, request, ways)
        key = (op.name, request.pass_, tuning_records.bucket_of(op.contract, request))
        race_count = self._race_counts.get(key, 0)
        found = tuning_records.verdict(op.name, op.contract, request, ways)
        if not self.again and any(
            tuning_records.is_decisive(t, ways) and not tuning_records.is_shipped(t) for t in exact
        ):
            self._line_of_verdict(op, request, call, found, "tuned before: ")
            return True
        clear = [t for t in near if not t.is_noisy]
        agree = bool(clear) and (bool(found.way) or all(t.ratio < tuning_records.MARGIN for t in clear))
        if race_count >= MAX_RACES or (race_count >= AGREEING_RACES and agree):
            self._line_of_verdict(op, request, call, found, "not benchmarked, similar calls were: ")
            return True
        self._race_counts[key] = race_count + 1
        return False

    # ------------------------------------------------------------ racing it

    def _race(
        self, op: Op, request: Request, args: tuple[Any, ...], ways: Ways, place: str, known: str
    ) -> None:  # fmt: skip
        call = tuning_records.call_of(request)
        until = clock() + self.left_s
        if request.pass_ == "forward":
            found = race_forward(op, args, list(ways), until)
        else:
            found = race_training(op, args, self._pairs(op, args, ways), until)
        if found.whole is None:
            self._line(op, request.pass_, call, "; ".join(f"{way}: {why}" for way, why in found.lost.items()))
            return
        source_hash, toolchain = tuning_records.sources_of(ways[found.way])
        tuning_record = TuningRecord(
            op=op.name, pass_=request.pass_, way=found.way, bucket=tuning_records.bucket_of(op.contract, request),
            call=call, place=place, threads=tuning_records.threads_of(request), source_hash=source_hash,
            toolchain=toolchain, torch=tuning_records.torch_version(), whole=found.whole.result,
            backward=found.backward.result if found.backward else None,
            date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"), among=known,
        )  # fmt: skip
        self._keep(tuning_record)
        decided = tuning_records.verdict(op.name, op.contract, request, ways)
        lost = "".join(f"; {way} was not benchmarked: {why}" for way, why in found.lost.items())
        for what, duel in _parts(request.pass_, found):
            self._line(op, request.pass_, call, _because(decided) + lost, found.way, decided.way, what, duel)

    def _pairs(self, op: Op, args: tuple[Any, ...], ways: Ways) -> list[str]:
        """The ways of a training call that are worth a look: those with this call's fastest forward,
        if that was found, and all that make the gradients with the forward."""
        forward = op.request("forward", args)
        exact, _ = tuning_records.valid_records(
            op.name, op.contract, forward, {r.name: (r,) for r in op.kernels if r.source is not None}
        )
        ahead = max(exact, key=lambda t: t.ratio).way if exact else next(kernels[0].name for kernels in ways.values())
        kept = [way for way, kernels in ways.items() if len(kernels) == 1 or kernels[0].name == ahead]
        return kept or list(ways)

    def _keep(self, tuning_record: TuningRecord) -> None:
        try:
            self.kept[tuning_record.place] = str(tuning_records.write(tuning_record).parent)
        except OSError as error:
            tuning_records.remember(tuning_record)
            self.notes[f"tuning records hold for this process alone: {error.strerror or error} ({error.filename})"] = (
                None
            )

    # ------------------------------------------------------------ lines

    def _line_of_verdict(self, op: Op, request: Request, call: str, found: tuning_records.Verdict, prefix: str) -> None:
        t = found.tuning_record
        parts = [(PASS_LABELS[request.pass_], t.whole)] if t else []
        if t and t.backward is not None and "+" in t.way:
            parts.append((BACKWARD, t.backward))
        if not t or t.call != call:
            self._line(op, request.pass_, call, prefix + found.because, taken=found.way)
            return
        for what, result in parts:
            why = prefix + _because(found)
            self._line(op, request.pass_, call, why, t.way, found.way, what, Duel(result, rounds=0, runs=0))

    def _line(
        self, op: Op, pass_: str, call: str, why: str, way: str = "", taken: str = "", what: str = "",
        duel: Duel | None = None,
    ) -> None:  # fmt: skip
        result = duel.result if duel else RaceResult(0.0, 0.0, (0.0, 0.0), 0.0)
        self.lines.append(
            AutotunedCall(
                op=op.name, what=what or PASS_LABELS[pass_], call=call, kernel=way, taken=taken or "torch", why=why,
                torch_us=result.torch_us, ours_us=result.ours_us, ratio=result.ratio, spread=result.spread,
                rounds=duel.rounds if duel else 0,
            )
        )  # fmt: skip


def _can_race(args: Sequence[Any]) -> bool:
    """Whether these are tensors with data that may be timed now: no profiler or mode watches operators, nothing is
    being recorded or transformed."""
    if is_transform_active() or is_observed() or torch.compiler.is_compiling() or not is_plain(*leaves(args)):
        return False
    return not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def _because(found: tuning_records.Verdict) -> str:
    """What the figures of a race decide, in words."""
    t = found.tuning_record
    if t is None or t.is_noisy:
        return found.because
    if found.way:
        return f"{t.ratio:.2f}x torch"
    return f"{t.ratio:.2f}x torch: under the margin of {tuning_records.MARGIN:.2f}x"


def _parts(pass_: str, found: CallRace) -> list[tuple[str, Duel]]:
    parts = [(PASS_LABELS[pass_], found.whole), (BACKWARD, found.backward if "+" in found.way else None)]
    return [(what, duel) for what, duel in parts if duel is not None]


def _none(declined: Mapping[str, str]) -> str:
    """Why no kernel of ours may be chosen: the reasons, each once."""
    reasons: dict[str, list[str]] = {}
    for name, reason in declined.items():
        reasons.setdefault(reason, []).append(name)
    said = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
    return f"no kernel of ours may be chosen ({said})" if said else "no kernel of ours serves it"
