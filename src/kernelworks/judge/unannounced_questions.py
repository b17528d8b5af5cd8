"""What a candidate's process is asked without a word to it before: to keep its word the moment that it gives it, to do
without processes of its own at moments that are drawn, and at last to answer without its own code. What it does where
it is watched it then does where it is timed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from kernelworks.judge.harness import Bench
from kernelworks.judge.inputs.cases import Case
from kernelworks.judge.process.own_code import RETURNS
from kernelworks.judge.process.pool import ProcessEnded
from kernelworks.judge.roles.candidate import WEIGHT
from kernelworks.judge.roles.handle import Answer, VariantProcess
from kernelworks.judge.trial_result import TrialResult
from kernelworks.records.judgement import Charge

__all__ = [
    "OwnWork", "charge_decoy", "charge_end", "charge_weights", "is_decoy", "look_for_helpers", "needs_own_code",
    "runs_own_code", "sample_own_code", "take_at_its_word",
]  # fmt: skip

# Of a call, from which on it is stopped on its way; how often, and between which shares of it; and how often others are
# seen, from which on they work for it. On a busy machine it may not have begun by then, or be done: that is no glance.
LEAST_WORK_S, GLANCES, MOST_GLANCES, FROM, TO, SEEN_OFTEN = 5e-4, 16, 80, 0.05, 0.95, 2
AT_ONCE, AT_ONCE_S = 12, 5e-3  # calls that are stopped with their word; above so long a moment is nothing to them
# A stop that comes later is none: others had the supervisor's core. And how many calls are asked for those that count.
OVERSLEPT_S, MOST_AT_ONCE = 3e-5, 120

# Of two processes of one candidate: below such a share of what the one takes of its own code the other is not at the
# same work, where chance is as unlikely as this.
LESS_WORK, CHANCE = 0.25, 1e-6
USUAL_CALLS = 5  # of which the quickest says how long one takes that nobody stops

FAULTS = ("SIGSEGV", "SIGBUS")  # by which a process ends that writes where it may not


def look_for_helpers(bench: Bench, variant: VariantProcess, case: Case, work_s: float, tried: TrialResult) -> None:
    """What processes of its own take of the cores that are gone before it answers is counted nowhere: it is stopped on
    its way, and they are looked for. Raises ProcessEnded."""
    if bench.device.apart or work_s < LEAST_WORK_S:
        return
    seen = helped = 0
    for _ in range(MOST_GLANCES):
        answer = variant.call([case], pause_s=bench.draw.uniform(FROM, TO) * work_s)
        tried.take(answer, f"call {variant.number}")
        seen, helped = seen + answer.on_its_way, helped + (answer.helpers > 0)
        if seen == GLANCES:
            break
    if helped >= SEEN_OFTEN:
        tried.charge("more cores", "processes of its own are at work for it, and end before its answer is there")


def take_at_its_word(
    bench: Bench, variant: VariantProcess, cases: list[Case], usual_s: float, tried: TrialResult
) -> None:
    """The supervisor needs a moment to hear that there is an answer, an empty one's too, and that moment is taken off.
    Who says it before it is so has it for work: some are stopped with their word, and hold an answer by then. Raises
    ProcessEnded."""
    if bench.device.apart or usual_s > AT_ONCE_S:
        return
    count = 0
    for _ in range(MOST_AT_ONCE):
        answer = variant.call([bench.draw.choice(cases)], at_once=True)
        tried.take(answer, f"call {variant.number}, stopped with its word")
        count += answer.overslept_s < OVERSLEPT_S
        if answer.raised or answer.wrong or count == AT_ONCE:
            return


def charge_weights(bench: Bench, lines: list[str], baseline: str, tried: TrialResult) -> list[str]:
    """Weights that its calls have changed and the reference's calls have not. Returns the lines of what else a process
    says that is otherwise. Raises NoVerdict."""
    weights = [line for line in lines if line.startswith(WEIGHT)]
    if weights:
        usual = bench.baseline(baseline).ask("state", "changed")
        if others := [line for line in weights if line not in usual]:
            tried.charge("other buffers", f"{others[0]}, by its own calls")
    return [line for line in lines if line not in weights]


@dataclass
class OwnWork:
    """Where a process's threads were at moments that are drawn: ``own`` of those at work were at its own code; what a
    call takes of the cores; and of how many calls that were asked it is made."""

    own: int = 0
    all: int = 0
    cpu_s: float = 0.0
    calls: int = 0
    asked: int = 0

    @property
    def share(self) -> float:
        return self.own / self.all if self.all else 0.0


def is_decoy(timed: OwnWork, watched: OwnWork) -> bool:
    """Whether a call takes far less of its own code where it is timed than where its kernels are watched: the second is
    taken for three standard deviations less than it was seen to be."""
    if not (timed.all and timed.cpu_s and watched.all):
        return False
    least = max(0.0, watched.own - 3 * math.sqrt(watched.own)) / watched.all
    expected = LESS_WORK * timed.all * min(1.0, least * watched.cpu_s / timed.cpu_s)
    chance = (
        sum(math.exp(-expected + k * math.log(expected) - math.lgamma(k + 1)) for k in range(timed.own + 1))
        if (expected > 0)
        else 1.0
    )
    return chance < CHANCE


def sample_own_code(bench: Bench, variant: VariantProcess, cases: list[Case], tried: TrialResult | None) -> OwnWork:
    """Calls that are stopped somewhere on their way and looked at from outside. Each answer is held against the
    reference as any other is. Without a ``tried`` the candidate's kernels are garbled, and calls count whose answers
    are another one. Raises ProcessEnded."""
    found, cpu_s, until, count = OwnWork(), 0.0, time.monotonic() + bench.budget.sampled_s, 0
    variant.own_code = variant.process.own_code() if bench.budget.samples else []
    if not variant.own_code:
        return found
    usual_s = min(variant.call([bench.draw.choice(cases)]).seconds for _ in range(USUAL_CALLS))
    while count < bench.budget.samples and time.monotonic() < until:
        answer = variant.call([bench.draw.choice(cases)], pause_s=bench.draw.uniform(0.0, usual_s) + 1e-6)
        if tried is not None:
            tried.take(answer, f"call {variant.number}, stopped on its way")
        count += 1
        if answer.raised if tried is not None else not (answer.wrong or answer.raised):
            continue
        found.calls, cpu_s = found.calls + 1, cpu_s + answer.cpu_s
        found.own, found.all = found.own + answer.at_own_code, found.all + answer.at_work
    found.asked, found.cpu_s = count, cpu_s / max(1, found.calls)
    if tried is not None and found.all:
        said = f"has {found.share:.0%} of what a call takes of the cores, at {found.all} moments that were drawn"
        tried.remarks.append(Charge("own code", said))
    variant.own_code = []
    return found


def charge_decoy(timed: OwnWork, watched: OwnWork, tried: TrialResult) -> None:
    """What a candidate does with its own code where its kernels are garbled it does where it is timed."""
    if watched.calls * 2 < watched.asked:
        said = f"{watched.asked - watched.calls} of {watched.asked} answers are right whatever its own kernels compute"
        tried.charge("falls back", said)
    elif is_decoy(timed, watched):
        its, theirs = (f"{one.share * one.cpu_s:.2g} s of {one.cpu_s:.2g} s" for one in (timed, watched))
        said = f"a call has its own code for {its} of the cores where it is timed, and for {theirs} where it is watched"
        tried.charge("falls back", said)


def charge_end(
    bench: Bench, error: ProcessEnded, what: str, again: Callable[[bool], Answer | None], tried: TrialResult
) -> None:
    """The end of a candidate's process. One that ends by a fault where its inputs cannot be written to, once more too,
    and does not where they can, changes them, though it may put all back. ``again(writable)``: what it then answers,
    None where it ends."""
    kind, said = "no answer", f"its process {error} ({what})"
    if not bench.device.apart and any(name in str(error) for name in FAULTS):
        found = again(True)
        if found is not None and again(False) is None:
            where = (
                f"where its inputs cannot be written to, and not where they can{found.touched and ': '}{found.touched}"
            )
            kind, said = "writes elsewhere", f"its process {error} {where} ({what})"
    tried.charge(kind, said)


def needs_own_code(bench: Bench, variant: VariantProcess) -> bool:
    """Whether its answer is another one, or none, once its own compiled code returns at once: of inputs that it has not
    seen, so that no memory of its own holds their answers. True too where the system does not let that be tried."""
    if not variant.process.own_code():
        return False
    for number, instead in enumerate(RETURNS):
        case = bench.reserved_case(f"without its code {number}")
        variant.process.stop()
        if not variant.process.take_own_code(instead):
            return True
        try:
            answer = variant.call([case])
        except ProcessEnded:
            return True
        if answer.raised or answer.wrong:
            return True
    return False


def runs_own_code(variant: VariantProcess, case: Case) -> bool:
    """The last that is asked of a process: an answer once its own compiled code traps, which ends it where it runs any.
    True too where the system does not let it be taken away."""
    if not variant.process.own_code():
        return False
    variant.process.stop()
    if not variant.process.take_own_code():
        return True
    try:
        variant.call([case])
    except ProcessEnded:
        return True
    return False
