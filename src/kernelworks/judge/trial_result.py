"""What a trial of one candidate found: reasons, remarks, times."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelworks.judge.least_time import CallTime
from kernelworks.judge.roles.handle import Answer
from kernelworks.records.judgement import Charge

__all__ = ["TrialResult"]


@dataclass
class TrialResult:
    """What a trial of one candidate found."""

    reasons: list[Charge] = field(default_factory=list)
    remarks: list[Charge] = field(default_factory=list)
    worst: float = 0.0
    calls: int = 0
    elements: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)  # variant -> of each hand-over, paired by place
    nothing_s: float = 0.0
    least_nothing_s: float = 0.0
    events_s: float = 0.0  # a call, by the device's own clock
    took: CallTime | None = None
    weights: str = ""
    kernels: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    build_s: float = 0.0
    shapes: list[str] = field(default_factory=list)  # other sizes at which it was tried

    def charge(self, kind: str, said: str) -> None:
        """Once for each kind: the first says what the others would."""
        if all(c.kind != kind for c in self.reasons):
            self.reasons.append(Charge(kind, said))

    def count(self, answer: Answer) -> None:
        self.worst = max([self.worst, *(f.worst for f in answer.found)])
        self.calls += len(answer.found)
        self.elements += sum(f.elements for f in answer.found)

    def take(self, answer: Answer, when: str, wrong: str = "wrong answer") -> None:
        """What an answer counts for."""
        self.count(answer)
        for kind, said in (
            ("raised", answer.raised), ("late answer", answer.late), (wrong, answer.wrong),
            (wrong, answer.doubled), ("writes elsewhere", answer.touched), ("goes on working", answer.working),
        ):  # fmt: skip
            if said:
                self.charge(kind, f"{said} ({when})")
        if answer.within and all(c.kind != "shared memory" for c in self.remarks):
            self.remarks.append(Charge("shared memory", f"{answer.within} ({when})"))
