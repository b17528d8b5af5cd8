"""A judgement in words for whoever writes the next candidate: why it was refused, how quick it is, what it is bound
by."""

from __future__ import annotations

from kernelworks.records.judgement import Judgement
from kernelworks.report import quantity

__all__ = ["feedback", "outcome", "shorten_text"]

MOST_SAID = 6000  # characters of one reason: a compiler's errors are long, and the first and the last say most
MOST_REASONS = 8

VERDICTS = {
    "right": "It is right: every answer that was looked at is within the bound.",
    "refused": "It is refused.",
    "unsound": "No verdict: the problem cannot tell right from wrong.",
    "undecided": "No verdict.",
}


def shorten_text(said: str, most: int) -> str:
    """A text whose middle is left out where it is too long."""
    if len(said) <= most:
        return said
    head = most // 3
    tail = most - head
    return f"{said[:head]}\n[... {len(said) - most} characters left out ...]\n{said[-tail:]}"


def outcome(found: Judgement) -> str:
    """A judgement in half a line."""
    if found.verdict != "right":
        return f"{found.verdict}: {found.reasons[0].kind}" if found.reasons else found.verdict
    return ", ".join(f"{quantity.ratio(s.ratio)} over {s.over}" for s in found.speeds) or "right, not timed"


def feedback(found: Judgement) -> str:
    """All that its author can learn from."""
    lines = [VERDICTS.get(found.verdict, found.verdict)]
    lines += [f"- {charge.kind}: {shorten_text(charge.said, MOST_SAID)}" for charge in found.reasons[:MOST_REASONS]]
    if found.worst is not None:
        made = f" The bound is made of: {'; '.join(found.bound[:4])}." if found.bound else ""
        lines.append(f"Its worst error is {found.worst:.3g} of the bound (over 1 is wrong).{made}")
    lines += _times(found)
    if found.kernels:
        lines.append(f"Its own kernels that ran: {', '.join(found.kernels)}.")
    lines += [f"To know: {c.kind}: {shorten_text(c.said, MOST_SAID // 4)}" for c in found.remarks[:MOST_REASONS]]
    return "\n".join(lines)


def _times(found: Judgement) -> list[str]:
    lines = [
        f"{pace.variant}: {quantity.seconds(pace.median_s)} a call ({quantity.seconds(pace.low_s)} to "
        f"{quantity.seconds(pace.high_s)})"
        for pace in found.paces
    ]
    lines += [
        f"It is {quantity.ratio(speed.ratio)} as quick as {speed.over} ({speed.low:.3g} to {speed.high:.3g}"
        f"{'; ambiguous' if speed.ambiguous else ''})."
        for speed in found.speeds
    ]
    own = next((pace.median_s for pace in found.paces if pace.variant == "candidate"), 0.0)
    if found.limit_s and own > 0:
        lines.append(
            f"This machine needs at least {quantity.seconds(found.limit_s)} for the bytes and the arithmetic of a call "
            f"({found.peak}), so it runs at {quantity.percent(found.limit_s / own)} of the limit on {found.threads} "
            f"threads. It is bound by: {quantity.bottleneck(found.bound_by)}."
        )
    return lines
