"""The bench: a problem with its reference, and the baselines of candidates, set up once for many candidates.

The supervisor's side of it has the seeds and runs nothing of anybody's. Beside it are the process of the reference
(``oracle``) and those of what candidates are timed against (``caller``), each born in a process that has loaded torch
and nothing else (``birth``) and apart from all others (``sandbox``).
"""

from __future__ import annotations

import contextlib
import functools
import random
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelworks.judge.builds import Site
from kernelworks.judge.formats import strip_reference
from kernelworks.judge.inputs.cases import Case, case_of
from kernelworks.judge.inputs.draws import BEYOND, DRAWS, FAR_BEYOND, FAR_HERE, FAR_THERE, OUTSIDE, SMALL
from kernelworks.judge.problem import Candidate, Problem, Shape
from kernelworks.judge.process.cleanup import remove_folder
from kernelworks.judge.process.pool import ChildProcess, Nursery, ProcessEnded
from kernelworks.judge.process.sanitise import parse_load_answer
from kernelworks.judge.roles.device import Host
from kernelworks.judge.roles.handle import VariantProcess
from kernelworks.records.judgement import Charge

__all__ = ["BUILDING", "WARMING", "Bench", "Budget", "NoVerdict"]

MOST_PLACES = 1 << 14  # of one answer at which the reference is kept, if it is larger
FULL_COMPARE_ELEMENTS = 1 << 20  # elements up to which the whole of an answer is compared with the reference
SEED_BITS = 62
ALL_DAY_S = 86_400.0  # of CPU, for what serves every candidate
Turn = Callable[[], AbstractContextManager[None]]
FIRST = (BEYOND, SMALL, FAR_HERE, FAR_THERE, FAR_BEYOND)
BUILDING, WARMING = "building", "warming"  # what cases that are in no race are for
MOST_ORACLES = 6  # processes of the reference at sizes of the problem, its own among them, kept for the next


class NoVerdict(Exception):
    """The problem does not allow one; ``kind`` is "unsound" or "undecided"."""

    def __init__(self, kind: str, said: str) -> None:
        super().__init__(said)
        self.kind = kind


@dataclass(frozen=True)
class Budget:
    """Seconds for the parts of a judgement, and how many calls at the most."""

    reference_s: float = 20.0  # for drawing cases and their reference
    build_s: float = 300.0  # for loading a candidate and its first call
    answer_s: float = 60.0  # for one answer
    cpu_s: float = 900.0  # of all cores, for one process of a candidate
    most_cases: int = 48
    least_cases: int = 6
    many: int = 1000  # calls after which it must still be right
    many_s: float = 3.0  # that they may take
    looks: int = 2  # at work that goes on after an answer, while it is timed
    samples: int = 200  # calls of a candidate in C++ that are stopped on their way, to see whether its own code is run
    sampled_s: float = 1.5  # that they may take in one process
    shapes: int = 2  # other sizes of the problem
    required: int | None = None  # of the sizes that a candidate must take so many, drawn; all without it
    sizes: int | None = None  # that candidates' sizes are drawn from, so many for all of a sitting; without it from all
    special: bool = True  # remarks on NaN, equal elements and other constants in the inputs
    gradients: int = 2  # cases of a backward; 0: the candidate is for a forward alone
    all_reasons: bool = True  # what is refused already is looked at further
    turns_s: float = 0.0  # further turns of the race, on inputs that were seen: of a candidate that is ``known``


class Bench:
    """A problem with its reference, and the baselines of candidates: set up once, for many candidates."""

    def __init__(self, nursery: Nursery, problem: Problem, budget: Budget, threads: int, device: Host) -> None:
        self.nursery, self.problem, self.budget, self.threads = nursery, problem, budget, threads
        self.device = device
        self.draw = random.Random(secrets.randbits(256))
        self.weights, self.places = secrets.randbits(SEED_BITS), secrets.randbits(SEED_BITS)
        self.oracles: dict[str, tuple[ChildProcess, bytes]] = {}
        self.cases: list[Case] = []
        self.baselines: dict[str, VariantProcess] = {}
        self.alone_calls = True  # calls on a device have it for themselves; those whose times do not count need not
        self.visiting: list[VariantProcess] = []  # of the candidate that is on trial
        self.kept: list[Candidate] = []  # whose builds it has kept for others
        self.site = Site(self)
        self.remarks: list[Charge] = []
        self.backward: list[Case] | None = None
        self.alone: Turn = contextlib.nullcontext  # while times are taken
        self.beside: Turn = contextlib.nullcontext  # while a device is used, and no times are taken there
        self._turn = False  # whether it is ours now
        self.provided: Sequence[Path] = ()  # compiled, for candidates that are kernels of ours on a GPU
        self.set_aside: dict[str, Case] = {}
        self.special: dict[str, Case | None] = {}  # draw -> its case
        self.elsewhere: dict[str, list[Case]] = {}  # shape -> cases, where all candidates have the same sizes
        self.weighted: dict[str, int] = {}  # shape -> elements of weights that have others in place of one number

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends what is its own: the nursery may serve others."""
        self.dismiss()
        self.site.clear()
        for process in (
            *(oracle for oracle, _ in self.oracles.values()),
            *(variant.process for variant in self.baselines.values()),
        ):
            process.end()
        elsewhere = (case for cases in self.elsewhere.values() for case in cases)
        special = (case for case in self.special.values() if case is not None)
        for case in (*self.cases, *self.set_aside.values(), *elsewhere, *special, *(self.backward or ())):
            case.close()

    @contextlib.contextmanager
    def turn(self, how: Turn) -> Iterator[None]:
        """``alone`` or ``beside``, for as long as this lasts; whoever has a turn already keeps that one."""
        if self._turn:
            yield
            return
        with how():
            self._turn = True
            try:
                yield
            finally:
                self._turn = False

    def on_device(self, how: Turn) -> AbstractContextManager[None]:
        """``turn`` where candidates work on a device that all processes of a machine share; nothing on a CPU, whose
        cores are each process's own."""
        return self.turn(how) if self.device.apart else contextlib.nullcontext()

    def _call_turn(self) -> AbstractContextManager[None]:
        return self.on_device(self.alone if self.alone_calls else self.beside)

    # ------------------------------------------------------------ the reference

    def oracle(self, shape: Shape) -> tuple[ChildProcess, bytes]:
        """The process of the reference at a shape, and what a candidate is made with. Raises NoVerdict."""
        if shape.name not in self.oracles:
            papers = {
                "problem": self.problem, "shape": shape, "weights": self.weights, "threads": self.threads,
                "device": self.device,
            }  # fmt: skip
            process = self.nursery.spawn("oracle", papers, cpu_s=ALL_DAY_S, device=self.device.name)
            said, descriptors = self.ask_oracle(process, {"do": "given"})
            with open(descriptors[0], "rb") as file:
                file.seek(0)
                self.oracles[shape.name] = process, file.read()
            if said["weighted"]:
                self.weighted[shape.name] = int(said["weighted"])
        return self.oracles[shape.name]

    def ask_oracle(self, process: ChildProcess, what: dict[str, Any]) -> tuple[Any, list[int]]:
        """Raises NoVerdict."""
        try:
            said, descriptors = process.ask(what, self.budget.build_s)
        except ProcessEnded as error:
            raise NoVerdict("undecided", f"the problem's own process {error}") from error
        if "raised" in said:
            raise NoVerdict("undecided", f"the problem raised {said['raised']}")
        if "unbounded" in said:
            raise NoVerdict("undecided", f"no bound can be derived: {said['unbounded']}")
        return said, descriptors

    def case(self, shape: Shape, draw: str = "given", *, backward: bool = False) -> Case:
        """A case from a seed that only this call knows; of a ``backward`` its answers are gradients. Raises
        NoVerdict."""
        process, _ = self.oracle(shape)
        seed = secrets.randbits(SEED_BITS)
        asked = {
            "do": "case", "backward": backward, "seed": seed, "draw": draw,
            "places": self.places if len(self.cases) < 2 else secrets.randbits(SEED_BITS),
            "most": FULL_COMPARE_ELEMENTS if len(self.cases) < 2 else MOST_PLACES,
            "twice": not self.cases and not backward,
        }  # fmt: skip
        with self.on_device(self.beside):
            said, descriptors = self.ask_oracle(process, asked)
            case = case_of(draw, said, descriptors)
            case.there, case.seed = self.device.tensors_on_device(case.given), seed
        if said["left"] and all(one.kind != "oracle" for one in self.remarks):
            self.remarks.append(Charge("oracle", f"made on the CPU, as it did not go on the device: {said['left']}"))
        return case

    def buffers_after(self, case: Case, times: int) -> list[Any]:
        """The buffers that so many calls of the reference with a case of the problem's own shape change, as its process
        says them: name, places, elements and by how much they may be missed. Raises NoVerdict."""
        process, _ = self.oracle(self.problem.shapes[0])
        places = secrets.randbits(SEED_BITS)
        asked = {"do": "buffers", "seed": case.seed, "draw": case.draw, "places": places, "times": times}
        return list(self.ask_oracle(process, asked)[0]["buffers"])

    def reserved_case(self, what: str) -> Case:
        """A case that is in no race, one for all candidates: what a process has seen that ends before the judged one
        begins, or what that one gets used to its work with. Raises NoVerdict."""
        if what not in self.set_aside:
            self.set_aside[what] = self.case(self.problem.shapes[0])
        return self.set_aside[what]

    def special_case(self, draw: str) -> Case | None:
        """One for all candidates, None where the reference does not hold there or no input takes such values."""
        if draw not in self.special:
            self.special[draw] = None
            with contextlib.suppress(NoVerdict):
                case = self.case(self.problem.shapes[0], draw)
                if case.own <= 1 and self._is_eagers(case):
                    self.special[draw] = case
                else:
                    case.close()
        return self.special[draw]

    def _is_eagers(self, case: Case) -> bool:
        """Whether the reference as its users run it, fused kernels and all, has the case's answer. Raises NoVerdict."""
        try:
            answer = self.baseline("eager").call([case])
        except ProcessEnded:
            self.baselines.pop("eager").process.end()
            return False
        return not answer.raised and not answer.wrong

    def prepare(self, over: Sequence[str]) -> None:
        """What the first candidate would wait for and all others find there. Raises NoVerdict."""
        for what in (BUILDING, WARMING):
            self.reserved_case(what)
        for name in over:
            self.baseline(name)

    @functools.cached_property
    def other_shapes(self) -> Sequence[Shape]:
        """The problem's other sizes, or those of them that all candidates' are drawn from: the required ones first."""
        shapes, most = self.problem.shapes[1:], self.budget.sizes
        if most is None or most >= len(shapes):
            return shapes
        drawn = self.draw.sample(shapes, len(shapes))
        return sorted(drawn, key=lambda shape: not shape.required)[:most]

    def cases_at(self, shape: Shape, count: int) -> list[Case]:
        """Cases of another size. Raises NoVerdict."""
        if self.budget.sizes is None:
            return [self.case(shape) for _ in range(count)]
        if shape.name not in self.elsewhere:
            self.elsewhere[shape.name] = [self.case(shape) for _ in range(count)]
        return self.elsewhere[shape.name]

    def collect(self) -> None:
        """Cases for all variants, as many as the budget allows. Raises NoVerdict."""
        shape, begin = self.problem.shapes[0], time.monotonic()
        others = self.draw.sample([*DRAWS][1:], len(DRAWS) - 1)
        # In turns: none is left to chance. First what tells most kernels that are right within the range alone.
        usable = sorted(others, key=lambda draw: FIRST.index(draw) if draw in FIRST else len(FIRST))
        while len(self.cases) < self.budget.most_cases:
            if len(self.cases) >= self.budget.least_cases and time.monotonic() - begin > self.budget.reference_s:
                break
            as_given = len(self.cases) < 2 or len(self.cases) % 2 == 0 or not usable
            draw = "given" if as_given else usable.pop(0)
            try:
                case = self.case(shape, draw)
            except NoVerdict:
                if draw not in OUTSIDE:
                    raise
                self.remarks.append(Charge("draw left out", f"{draw!r}: the reference takes no such inputs"))
                continue
            if draw == "given" and case.own > 1:
                raise NoVerdict(
                    "unsound",
                    f"the reference itself is {case.own:.3g} times the derived bound off its own float64 run",
                )
            if case.drawn:
                raise NoVerdict("unsound", "two runs on the same inputs differ: its answer is drawn anew in each")
            if draw != "given" and (case.own > 1 or not case.finite):
                self.remarks.append(Charge("draw left out", f"{draw!r}: the reference itself does not hold there"))
                continue
            if draw != "given":
                usable.append(draw)
            self.cases.append(case)
        self._sound()

    def _sound(self) -> None:
        """A problem whose answer does not depend on its input lets anything through. Raises NoVerdict."""
        first, second = self.cases[:2]  # whose answers are compared with the reference at the same places
        both = zip(first.reference, second.reference, second.bound, strict=True)
        if first.given and all(bool(((a.double() - b.double()).abs() <= most).all()) for a, b, most in both):
            raise NoVerdict("unsound", "the answer to other inputs passes for the right one: it hardly depends on them")

    def work(self) -> dict[str, Any]:
        """What the reference must do, as its process counts it. Raises NoVerdict."""
        process, _ = self.oracle(self.problem.shapes[0])
        with self.on_device(self.beside):
            found: dict[str, Any] = self.ask_oracle(process, {"do": "work", "seed": secrets.randbits(SEED_BITS)})[0]
        return found

    def gradients(self) -> tuple[list[Case], list[str]]:
        """Cases whose answers are gradients, and the names of the weights among them; none where the reference has no
        graph, or no bound on it can be derived."""
        if self.backward is None:
            self.backward = []
            try:
                found = [self.case(self.problem.shapes[0], backward=True) for _ in range(self.budget.gradients)]
                self.backward = found if all(c.own <= 1 for c in found) else []
                self.backward += self._gradients_beyond() if self.backward else []
                if found and not self.backward:
                    self.remarks.append(Charge("gradients", "not compared: the reference's own are beyond their bound"))
            except NoVerdict as error:
                self.remarks.append(Charge("gradients", f"not compared: {error}"))
        names = self.backward[0].names if self.backward else []
        return self.backward, [name for name in names if not name.startswith("input ")]

    def _gradients_beyond(self) -> list[Case]:
        """A backward on inputs beyond the range that is given, where the reference holds there: a mask is all ones
        within it, say."""
        if BEYOND not in {case.draw for case in self.cases}:
            return []
        try:
            case = self.case(self.problem.shapes[0], BEYOND, backward=True)
        except NoVerdict:
            return []
        return [case] if case.own <= 1 and case.finite else []

    # ------------------------------------------------------------ the variants

    def load_variant(
        self, name: str, candidate: Candidate | None, shape: Shape, folder: Path | None = None, *, silent: bool = False,
        writable: bool = False,
    ) -> tuple[VariantProcess, Any]:  # fmt: skip
        """A process that has made its callable, and what it said of that. Raises ProcessEnded."""
        variant = self.start_variant(name, candidate, shape, folder, silent=silent, writable=writable)
        if candidate is not None:
            self.visiting.append(variant)
        return variant, parse_load_answer(variant.process.hear(self.budget.build_s)[0])

    def start_variant(
        self, name: str, candidate: Candidate | None, shape: Shape, folder: Path | None = None, *, silent: bool = False,
        writable: bool = False,
    ) -> VariantProcess:  # fmt: skip
        """A process that makes its callable, and will say so. A candidate cannot write to its inputs, for a moment
        neither, where they are not ``writable``. Raises ProcessEnded."""
        _, given = self.oracle(shape)
        papers = {
            "problem": self.problem if candidate is None else strip_reference(self.problem),
            "shape": shape, "candidate": candidate, "given": given, "weights": self.weights,
            "threads": self.threads, "silent": silent, "variant": name, "device": self.device,
        }  # fmt: skip
        cpu_s = ALL_DAY_S if candidate is None else self.budget.cpu_s
        process = self.nursery.spawn("caller", papers, folder=folder, cpu_s=cpu_s, device=self.device.name)
        budget = self.budget
        return VariantProcess(
            name, process, self.draw, budget.answer_s, self.device, self._call_turn, first_s=budget.build_s,
            read_only=candidate is not None and not (writable or self.device.apart),
        )  # fmt: skip

    def dismiss(self, built: Candidate | None = None) -> None:
        """Ends what a candidate may have left running, with what it has compiled: that of ``built`` is kept."""
        folders = dict.fromkeys(variant.process.folder for variant in self.visiting)
        for variant in self.visiting:
            variant.process.end()
        for folder in folders:
            if built is not None and folder.is_dir():
                self.nursery.keep_build(built, folder)
                self.kept.append(built)
                built = None
            else:
                remove_folder(folder)
        self.visiting.clear()
        self.trim()

    def take_build(self, candidate: Candidate) -> Path | None:
        """The folder that another bench has kept of the same candidate. What lies in one of this bench's may hold the
        answers to its own inputs."""
        return None if candidate in self.kept else self.nursery.take_build(candidate)

    def trim(self) -> None:
        """Ends the reference at sizes other than the problem's own, but for the latest."""
        for name in [*self.oracles][1 : 1 - MOST_ORACLES]:
            self.oracles.pop(name)[0].end()

    def baseline(self, name: str) -> VariantProcess:
        """What candidates are timed against: "eager", "compiled" or "ours". Raises NoVerdict."""
        if name not in self.baselines:
            try:
                variant, said = self.load_variant(name, None, self.problem.shapes[0])
                if "raised" in said:
                    raise NoVerdict("undecided", f"the reference ({name}) raised {said['raised']}")
                answer = variant.call(self.cases[:1])
            except ProcessEnded as error:
                raise NoVerdict("undecided", f"the reference ({name}) {error}") from error
            if answer.raised or answer.late:
                raise NoVerdict("undecided", f"the reference ({name}) {answer.raised or answer.late}")
            self.baselines[name] = variant
        return self.baselines[name]
