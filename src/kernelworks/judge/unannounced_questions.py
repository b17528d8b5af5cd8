"""What a candidate's process is asked without a word to it before: to keep its word the moment that it gives it, to do
without processes of its own at moments that are drawn, and at last to answer without its own code. What it does where
it is watched it then does where it is timed."""

from __future__ import annotations

from kernelworks.judge.harness import Bench
from kernelworks.judge.inputs.cases import Case
from kernelworks.judge.process.pool import ProcessEnded
from kernelworks.judge.roles.candidate import WEIGHT
from kernelworks.judge.roles.handle import VariantProcess
from kernelworks.judge.trial_result import TrialResult

__all__ = ["charge_weights", "look_for_helpers", "runs_own_code", "take_at_its_word"]

# Of a call, from which on it is stopped on its way; how often, and between which shares of it; and how often others are
# seen, from which on they work for it.
LEAST_WORK_S, GLANCES, FROM, TO, SEEN_OFTEN = 5e-4, 10, 0.05, 0.95, 2
AT_ONCE, AT_ONCE_S = 12, 5e-3  # calls that are stopped with their word; above so long a moment is nothing to them


def look_for_helpers(bench: Bench, variant: VariantProcess, case: Case, work_s: float, tried: TrialResult) -> None:
    """What processes of its own take of the cores that are gone before it answers is counted nowhere: it is stopped on
    its way, and they are looked for. Raises ProcessEnded."""
    if bench.device.apart or work_s < LEAST_WORK_S:
        return
    helped = 0
    for _ in range(GLANCES):
        answer = variant.call([case], pause_s=bench.draw.uniform(FROM, TO) * work_s)
        tried.take(answer, f"call {variant.number}")
        helped += answer.helpers > 0
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
    for _ in range(AT_ONCE):
        answer = variant.call([bench.draw.choice(cases)], at_once=True)
        tried.take(answer, f"call {variant.number}, stopped with its word")
        if answer.raised or answer.wrong:
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


def runs_own_code(variant: VariantProcess, case: Case) -> bool:
    """The last that is asked of a process: an answer after its own compiled code was taken away, which ends it where it
    runs any. True too where the system does not let it be taken away."""
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
