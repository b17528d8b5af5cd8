"""One candidate before the bench: every step asks it for answers in another way, and each answer is compared with the
reference. What is found is charged once for each kind."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kernelworks.judge.buffers import compare_first, compare_last
from kernelworks.judge.builds import Building
from kernelworks.judge.cores_taken import count_off_clock, remark_cores
from kernelworks.judge.gradients import ask_gradients
from kernelworks.judge.harness import BUILDING, WARMING, Bench, NoVerdict
from kernelworks.judge.inputs.cases import Case
from kernelworks.judge.inputs.draws import BEYOND
from kernelworks.judge.least_time import CallTime
from kernelworks.judge.problem import Candidate, Shape
from kernelworks.judge.process.pool import ProcessEnded
from kernelworks.judge.process.sandbox import CACHES
from kernelworks.judge.process.sanitise import one_line
from kernelworks.judge.roles.handle import Answer, VariantProcess, is_identical
from kernelworks.judge.roles.layout import LAYOUTS
from kernelworks.judge.special_questions import ask_special_values
from kernelworks.judge.trial_result import TrialResult
from kernelworks.judge.unannounced_questions import (
    OwnWork,
    charge_decoy,
    charge_end,
    charge_weights,
    look_for_helpers,
    needs_own_code,
    runs_own_code,
    sample_own_code,
    take_at_its_word,
)
from kernelworks.records.judgement import Charge

__all__ = ["Trial", "TrialResult"]

LEAST_GROUPS = 6  # of a race
MOST_ALIKE = 4  # of a group in which cases may come again: each has a place of its own on a device
GROUP_S, MOST_GROUP = 0.002, 8  # short calls are handed over together, until they take so long
WARM_CALLS = 10  # before the race: by then it has the memory that it needs for the answers that it keeps
MANY_BYTES = 64 << 20  # that are handed over together where nothing is timed
# Of what may have more turns than there are cases: how many it has at the least; and from there on every how many
# turns an empty answer comes.
KNOWN_TURNS, RARELY = 16, 4
SEEN_SHARE = 0.5  # of the least CPU time of inputs that were not seen before
SEEN_CALLS, SEEN_PAIRS = 6, 3
COMPILED_LANGUAGE = "c++"  # the language of candidates whose kernels are instructions of the CPU
MOST_AGAIN = 40  # calls that are asked once more of a process that ended by a fault
ENDING = ("raised", "no answer", "does not load")  # reasons behind which nothing more is asked
HELD_AGES = 8  # answers that are asked for again, drawn from those that are held, beside the oldest


def _theirs(variant: VariantProcess, cases: list[Case], how: str = "call") -> Answer:
    """An answer of what a candidate is held against, whose end is no fault of the candidate's. Raises NoVerdict."""
    try:
        return variant.call(cases, how)
    except ProcessEnded as error:
        raise NoVerdict("undecided", f"the reference ({variant.name}) {error}") from error


class Trial:
    """One candidate before the bench."""

    def __init__(
        self, bench: Bench, candidate: Candidate, over: Sequence[str], say: Callable[[str], None],
        coming: Sequence[Candidate] = (),
    ) -> None:  # fmt: skip
        self.bench, self.candidate, self.over, self.say, self.coming = bench, candidate, over, say, coming
        self.shape = bench.problem.shapes[0]
        self.built = bench.site.take_built(candidate)
        # What one of its processes compiles the next one finds.
        folder = bench.take_build(candidate) if self.built is None else self.built.folder
        self.folder = folder or bench.nursery.folder("candidate")
        self.fresh: list[Answer] = []  # of the race: to inputs that it had not seen, where it could remember
        self.tried = TrialResult()
        self.elements = 0  # of all tensors that the latest process' candidate holds
        self.changing: list[Any] = []  # its buffers that a call changes, as the reference's process says them
        self.needs_own_code = True  # compiled, in the process that is timed
        self.own_work = OwnWork()  # there
        self.constants = 0  # elements of weights of the latest process that would be one number everywhere
        self.ours = candidate.known and bench.device.apart  # a kernel of ours as a GPU has it
        if self.ours:
            self._provided()

    def _provided(self) -> None:
        """What is compiled of a kernel of ours whatever its constants are is found by its process."""
        place = self.folder / CACHES["KERNELWORKS_CACHE"] / "build"
        place.mkdir(parents=True, exist_ok=True)
        for path in self.bench.provided:
            shutil.copyfile(path, place / path.name)

    def run(self) -> TrialResult:
        """All of it. Raises NoVerdict if the problem's own processes fail."""
        steps = (
            (self._build, "building"), (self._calls, "calling and timing"), (self._gradients, "gradients"),
            (self._otherwise_laid, "other strides"), (self._left, "what it leaves"), (self._silenced, "decoys"),
            (self._shapes, "other sizes"), (self._otherwise_weighted, "other weights"),
            (self._special, "special values"),
        )  # fmt: skip
        for step, what in steps:
            if step == self._gradients and self.candidate.known:  # what it takes of the cores is not looked at any more
                self.bench.site.begin_behind(self.coming)
            if self.ours and step not in (self._build, self._calls, self._left):
                continue  # its constants are for this size and these layouts, and it has no words for anything else
            self.say(what)
            self.bench.alone_calls = step in (self._calls, self._gradients)
            try:
                step()
            except ProcessEnded as error:
                charge_end(self.bench, error, what, self._called_again, self.tried)
            enough = not self.bench.budget.all_reasons and self.tried.reasons
            if enough or any(c.kind in ENDING for c in self.tried.reasons):
                break
        return self.tried

    def _build(self) -> None:
        """In a process that ends after the first answer: what is compiled there is found by the one that is judged."""
        site, building = self.bench.site, self.built
        if building is None:
            building = site.start_build(self.candidate, self.folder)
            self.bench.visiting.append(building.variant)
            site.begin_beside(self.coming)
        else:
            self.bench.visiting.append(building.variant)
        try:
            self._first(building)
        finally:
            site.rest()

    def _first(self, building: Building) -> None:
        """Its first answer."""
        variant, said = building.variant, building.wait_loaded(self.bench.budget.build_s)
        begin = time.monotonic() - building.seconds
        if "raised" in said:
            self.tried.charge("does not load", said["raised"])
            return
        case = self._another(BUILDING)
        answer = variant.call([case])
        if self.bench.device.apart:
            answer.working = ""  # that may have been others, who build too: in later calls nobody is beside it
        self.tried.take(answer, "its first call")
        self.tried.build_s = time.monotonic() - begin
        if not answer.raised and said["weights"] == "the reference's":
            self.changing = compare_first(self.bench, variant, case, self.tried)
        variant.process.end()

    def _another(self, what: str) -> Case:
        """A case that no other call is timed with; of what remembers nothing any."""
        return self.bench.cases[-1] if self.ours else self.bench.reserved_case(what)

    def _calls(self) -> None:
        bench, tried = self.bench, self.tried
        baselines = [bench.baseline(name) for name in self.over]
        variant, said = bench.load_variant("candidate", self.candidate, self.shape, self.folder)
        if "raised" in said:
            tried.charge("does not load", said["raised"])
            return
        tried.weights, tried.kept, tried.open = (
            said["weights"],
            tuple(variant.process.kept),
            tuple(variant.process.open),
        )
        self.charge_changes([*variant.process.code_changes(), *said["changed"]], "when it was loaded")
        self.variant = variant
        with bench.on_device(bench.alone):
            self._called(baselines, variant)

    def _called(self, baselines: list[VariantProcess], variant: VariantProcess) -> None:
        """All calls of the process whose times count."""
        bench, tried, cases = self.bench, self.tried, self.bench.cases
        tried.take(variant.call(cases[:1], look=True), "call 1")
        if any(c.kind == "raised" for c in tried.reasons):
            return
        warm = []
        for _ in range(WARM_CALLS):
            warm.append(variant.call([self._another(WARMING)]))
            tried.take(warm[-1], f"call {variant.number}")
        usual = min(answer.seconds for answer in warm)
        # Nobody else's candidate is given an input before it has answered the one before it.
        many = min(MOST_GROUP, len(cases) // LEAST_GROUPS) if self.candidate.known else 1
        most = MOST_ALIKE if self.ours else many
        group = max(1, min(most, round(GROUP_S / max(usual, 1e-6))))
        with bench.turn(bench.alone):
            self._race([*baselines, variant], cases[1:], group)
        if any(c.kind == "raised" for c in tried.reasons):
            return
        if not bench.device.apart:
            remark_cores(self.fresh, group, bench.threads, tried)
        if not self.ours:
            self._seen(variant, cases, group)
            self._unannounced(variant, cases)
        self._many(variant, cases)
        self._once_more(variant, cases)
        compare_last(variant, cases, self.changing, self.tried)

    def _once_more(self, variant: VariantProcess, cases: list[Case]) -> None:
        """Answers are still what they were after others were given, whatever their age; the same inputs have the same
        answer."""
        if any(c.kind == "raised" for c in self.tried.reasons):
            return
        for case in cases[:3]:
            self.tried.take(variant.call([case], keep=True), f"call {variant.number}")
        before = variant.number - 3
        kept = variant.numbers[before]
        oldest, *others = [number for number in variant.numbers if number != before]
        drawn = self.bench.draw.sample(others, min(HELD_AGES, len(others)))
        for number in (before, oldest, *drawn):
            answer = variant.call(cases[:1], "again", again=number)
            self.tried.take(answer, f"asked for again after {variant.number - number - 1} others")
            if answer.late or answer.raised:
                break
        self.tried.take(variant.call(cases[:1], keep=True), f"call {variant.number}")
        if not all(is_identical(a, b) for a, b in zip(kept, variant.numbers[variant.number - 1], strict=True)):
            self.tried.remarks.append(Charge("not deterministic", "the same inputs, elsewhere, have other answers"))

    def _gradients(self) -> None:
        ask_gradients(self.bench, self.variant, self.tried)

    def _otherwise_laid(self) -> None:
        """Inputs of other strides, which the problem does not promise: an error is an answer, a wrong answer is not."""
        for layout in () if self.tried.reasons else LAYOUTS:  # what is refused already is no righter there
            answer = self.variant.call(self.bench.cases[:1], layout=layout)
            if answer.wrong or answer.late or answer.touched:
                said = f"inputs with {layout}: {answer.wrong or answer.late or answer.touched}"
                self.tried.remarks.append(Charge("other strides", said))

    def _left(self) -> None:
        said = charge_weights(self.bench, self.variant.ask("state", "changed"), self.over[0], self.tried)
        self.charge_changes([*self.variant.process.code_changes(), *said], "after its calls")
        with contextlib.suppress(ProcessEnded):  # which is charged
            if self.is_compiled:
                self.needs_own_code = needs_own_code(self.bench, self.variant)
        self.variant.process.end()

    def _called_again(self, writable: bool) -> Answer | None:
        """What another process of it answers in as many calls; None where it ends, too."""
        timed = vars(self).get("variant")  # none before that one is made
        calls = 1 if timed is None else min(MOST_AGAIN, timed.number + 1)
        touched = ""
        try:
            variant, said = self.bench.load_variant(
                "candidate", self.candidate, self.shape, self.folder, writable=writable
            )
            if "raised" in said:
                return None
            for _ in range(calls):
                answer = variant.call([self._another(BUILDING)])
                touched = touched or answer.touched
        except ProcessEnded:
            return None
        variant.process.end()
        return dataclasses.replace(answer, touched=touched)

    @property
    def is_compiled(self) -> bool:
        return self.candidate.language == COMPILED_LANGUAGE and not self.bench.device.apart

    def _shapes(self) -> None:
        """Other sizes of the problem, drawn from those that it has: a process of its own for each."""
        others = () if self.tried.reasons else self.bench.other_shapes
        budget, draw = self.bench.budget, self.bench.draw
        must = [s for s in others if s.required]
        if budget.required is not None and budget.required < len(must):
            must = draw.sample(must, budget.required)
        for shape in (*must, *draw.sample(others, min(budget.shapes, len(others)))):
            if shape.name in self.tried.shapes:
                continue
            self.tried.shapes.append(shape.name)
            said = self._at(shape)
            if said:
                wanted = self.tried.charge if shape.required else self.remark
                wanted("other sizes", f"at {shape.name}: {said}")

    def _otherwise_weighted(self) -> None:
        """Norms begin with ones and zeros, biases with zeros, and have others in use. A candidate whose weights have
        other names has as many such as the reference, or fewer elements in all, or it has them in another layout: then
        nobody can say which."""
        if self.tried.reasons:
            return
        shape = dataclasses.replace(self.shape, name="other weights", weighted=True)
        self.bench.oracle(shape)
        wanted = self.bench.weighted.get(shape.name, 0)
        if wanted and (said := self._at(shape)):
            named = self.tried.weights != "drawn from the same seed"
            none = self.elements < wanted
            ignored = named or none or self.constants == wanted or self._ignores_weights(shape)
            found = self.tried.charge if ignored else self.remark
            found("other weights", f"where norms and biases have other weights than ones and zeros: {said}")

    def _special(self) -> None:
        """In a process of its own: whatever comes of it is a remark."""
        if self.tried.reasons or self.bench.device.apart or not self.bench.budget.special:
            return
        variant = None
        try:
            variant, said = self.bench.load_variant("candidate", self.candidate, self.shape, self.folder)
            if "raised" not in said:
                ask_special_values(self.bench, variant, self.tried)
        except ProcessEnded as error:
            self.remark("special values", f"its process {error}")
        if variant is not None:
            variant.process.end()

    def _ignores_weights(self, shape: Shape) -> bool:
        """Whether its answers are right for ones and zeros where it was made with others: it has no use for them."""
        variant, said = self.bench.load_variant("candidate", self.candidate, shape, self.folder)
        try:
            answers = [] if "raised" in said else [variant.call([case]) for case in self.bench.cases[:2]]
            return bool(answers) and not any(one.raised or one.wrong for one in answers)
        finally:
            variant.process.end()

    def _at(self, shape: Shape) -> str:
        """What is wrong at a shape. A candidate may refuse one that is not required."""
        try:
            cases = self.bench.cases_at(shape, 2)
        except NoVerdict as error:
            self.remark("other sizes", f"at {shape.name}: {error}")
            return ""
        variant, said = self.bench.load_variant("candidate", self.candidate, shape, self.folder)
        try:
            if "raised" in said:
                return str(said["raised"]) if shape.required else ""
            self.constants, self.elements = int(said["constants"]), int(said["elements"])
            for case in cases:
                answer = variant.call([case])
                if answer.raised:
                    return answer.raised if shape.required else ""
                self.tried.count(answer)
                if answer.wrong or answer.late or answer.touched:
                    return answer.wrong or answer.late or answer.touched
        finally:
            variant.process.end()
            self.bench.trim()
        return ""

    def remark(self, kind: str, said: str) -> None:
        self.tried.remarks.append(Charge(kind, said))

    def charge_changes(self, lines: list[str], when: str) -> None:
        if lines:
            more = f", and {len(lines) - 3} more" if len(lines) > 3 else ""
            self.tried.charge("changes the process", f"{'; '.join(lines[:3])}{more} ({when})")

    def _race(self, variants: list[VariantProcess], cases: list[Case], group: int) -> None:
        """Each case once in each variant, in turns; an empty answer between. Nothing that is timed was seen before;
        what remembers nothing has more turns of the same cases, since drawing one and its reference takes longer than
        many."""
        tried, nothing, others = self.tried, list[Answer](), list[Answer]()
        tried.seconds = {variant.name: [] for variant in variants}
        if self.ours:
            cases = cases * -(-LEAST_GROUPS * group // len(cases))
        looked = min(self.bench.budget.looks, len(cases) // group)
        looks = set(self.bench.draw.sample(range(len(cases) // group), looked))
        least = min(len(cases) // group, KNOWN_TURNS) if self.candidate.known else len(cases) // group
        begin = time.monotonic()
        for number, some in enumerate(self._groups(cases, group)):
            if number >= least and time.monotonic() - begin > self.bench.budget.turns_s:
                break
            for variant in variants if number % 2 else variants[::-1]:
                if variant is not variants[-1]:
                    others.append(_theirs(variant, some))
                    tried.seconds[variant.name].append(others[-1].seconds)
                    continue
                answer = variant.call(some, look=number in looks)
                tried.take(answer, f"call {variant.number}")
                if answer.raised:
                    return
                self.fresh.append(answer)
                tried.seconds[variant.name].append(answer.seconds)
            if number < KNOWN_TURNS or number % RARELY == 0:
                nothing.append(_theirs(variants[0], some, "nothing"))
        if not self.bench.device.apart:
            count_off_clock(self.fresh, others, self.bench.threads, tried)
        empty, empty_cpu = [a.seconds for a in nothing], [a.cpu_s for a in nothing]
        tried.nothing_s, tried.least_nothing_s = statistics.median(empty), min(empty)
        tried.took = CallTime.of(tried.seconds[variants[-1].name], [a.cpu_s for a in self.fresh], empty, empty_cpu)
        tried.events_s = statistics.median(a.events_s for a in self.fresh)

    def _unannounced(self, variant: VariantProcess, cases: list[Case]) -> None:
        """What is asked of it at moments that it does not know of."""
        usual_s = min(answer.seconds for answer in self.fresh)
        look_for_helpers(self.bench, variant, cases[0], usual_s - self.tried.least_nothing_s, self.tried)
        busy_s = min(answer.cpu_s for answer in self.fresh)  # whoever has its core makes a call no longer
        take_at_its_word(self.bench, variant, cases, min(usual_s, busy_s), self.tried)
        if self.is_compiled and not self.candidate.known:
            self.own_work = sample_own_code(self.bench, variant, cases, self.tried)

    def _groups(self, cases: list[Case], group: int) -> Iterator[list[Case]]:
        """All cases in an order that is drawn: once, or again and again."""
        shuffled = cases[:]
        while True:
            self.bench.draw.shuffle(shuffled)
            for number in range(len(shuffled) // group):
                yield shuffled[number * group : (number + 1) * group]
            if not self.candidate.known:
                return

    def _seen(self, variant: VariantProcess, cases: list[Case], group: int) -> None:
        """The same contents once more, elsewhere: they take as much of the cores as when they were seen for the first
        time."""
        again = []
        for number in range(min(SEEN_CALLS, len(cases) // group)):
            answer = variant.call(cases[number * group : (number + 1) * group])
            self.tried.take(answer, f"call {variant.number}")
            again.append(self._costs(answer))
        of = "" if self.bench.device.apart else " of a core"
        fresh = [self._costs(answer) for answer in self.fresh]
        for which, (seen, others) in enumerate(zip(zip(*again, strict=True), zip(*fresh, strict=True), strict=True)):
            least, usual = min(others), statistics.median(seen)
            if not (
                least > self.bench.device.seen_least_s
                and usual < SEEN_SHARE * least
                and self._remembers(variant, which)
            ):
                continue
            said = f"inputs that it has seen take {usual:.3g} s{of}, others {least:.3g} s at least"
            self.tried.charge("answers from memory", said)

    def _costs(self, answer: Answer) -> tuple[float, ...]:
        """Of the cores what it took them; of a device that works by itself what the supervisor's clock says, and what
        its events do: a process may lie about those, but only to say that it took more."""
        if not self.bench.device.apart:
            return (answer.cpu_s,)
        return max(0.0, answer.seconds - self.tried.nothing_s), answer.events_s

    def _remembers(self, variant: VariantProcess, which: int) -> bool:
        """Whether it is so once more, in pairs of calls that follow each other: the machine's mood is the same for
        both."""
        for _ in range(SEEN_PAIRS):
            case = self.bench.case(self.shape)
            fresh, again = variant.call([case]), variant.call([case])
            case.close()
            self.tried.take(again, f"call {variant.number}")
            if self._costs(again)[which] >= SEEN_SHARE * self._costs(fresh)[which]:
                return False
        return True

    def _many(self, variant: VariantProcess, cases: list[Case]) -> None:
        """Many calls, in no order: still right."""
        budget, begin = self.bench.budget, time.monotonic()
        most = max(1, min(MOST_GROUP, len(cases), MANY_BYTES // max(1, cases[0].nbytes)))
        while variant.number < budget.many and time.monotonic() - begin < budget.many_s:
            some = [self.bench.draw.choice(cases) for _ in range(most)]
            answer = variant.call(some)
            self.tried.take(answer, f"call {variant.number}")
            if answer.raised or answer.wrong:
                return

    def _silenced(self) -> None:
        """Its own kernels run under watch, and its answer is right as ever; then what they write is garbled, and the
        answer must change."""
        if self.candidate.language == "torch":
            return
        variant, said = self.bench.load_variant("candidate", self.candidate, self.shape, self.folder, silent=True)
        if "raised" in said:
            self.tried.charge("falls back", f"it does not load where its kernels are watched: {said['raised']}")
            return
        # What is drawn beyond the range that is given shows a kernel that changes nothing within it at work.
        some = next((c for c in self.bench.cases if c.draw == BEYOND), self.bench.cases[0])
        watched = variant.call([some])
        working = variant.ask("muted", "working")
        variant.ask("garble", "garbling")
        answer = variant.call(self.bench.cases[1:2])
        muted = variant.ask("muted", "muted")
        watched_work = OwnWork()
        if self.own_work.all and not self.tried.reasons and (answer.wrong or answer.raised):
            watched_work = sample_own_code(self.bench, variant, self.bench.cases, None)
        elsewhere = not self.needs_own_code and runs_own_code(variant, self.bench.cases[1])
        variant.process.end()
        self.tried.kernels = tuple(one_line(name) for name in muted[:20])
        if not self.tried.reasons and (watched.raised or watched.wrong):
            said = f"its answer is another one where its kernels are watched: {watched.raised or watched.wrong}"
            self.tried.charge("falls back", said)
        if elsewhere:
            said = "its own code is run where it is watched, and its answer is right without it where it is timed"
            self.tried.charge("falls back", said)
        if not muted:
            self.tried.charge("falls back", f"none of its own kernels ({self.candidate.language}) ran")
        elif not working and not watched.raised:
            said = f"{', '.join(self.tried.kernels)} hands on what it is given: the work is done by something else"
            self.tried.charge("falls back", said)
        elif not answer.wrong and not answer.raised:
            self.tried.charge("falls back", f"its answer is the same whatever {', '.join(self.tried.kernels)} computes")
        charge_decoy(self.own_work, watched_work, self.tried)
