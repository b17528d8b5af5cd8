"""What is asked behind the verdict: inputs that no problem draws and users have. An answer that is another one there
than the reference's is a remark, as are an error and an end."""

from __future__ import annotations

from kernelworks.judge.harness import Bench
from kernelworks.judge.inputs.special_values import SPECIAL_DRAWS
from kernelworks.judge.process.pool import ProcessEnded
from kernelworks.judge.roles.handle import VariantProcess
from kernelworks.judge.trial_result import TrialResult
from kernelworks.records.judgement import Charge

__all__ = ["ask_special_values"]


def ask_special_values(bench: Bench, variant: VariantProcess, tried: TrialResult) -> None:
    """Remarks on each draw that the reference itself holds for. After an end nothing more is asked."""
    for draw, said in SPECIAL_DRAWS.items():
        case = bench.special_case(draw)
        if case is None:
            continue
        try:
            answer = variant.call([case])
        except ProcessEnded as error:
            tried.remarks.append(Charge("special values", f"{said}: its process {error}"))
            return
        if answer.raised or answer.wrong:
            found = answer.raised or answer.wrong.removesuffix(" +- inf")
            tried.remarks.append(Charge("special values", f"{said}: {found}"))
