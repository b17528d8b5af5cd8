"""What to do after a diagnosis: at most three steps, each a command that can be pasted or an edit at a line.

A step is offered only if the record says that it may gain something: what the budget left out, what must be allowed,
what a fix has applied and is to be kept.
"""

from __future__ import annotations

import math
import os.path
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from rich.text import Text

from kernelworks.records import Diagnosis, Fix, Hotspot
from kernelworks.records.fix import MODULES_MADE_ANEW, NOT_TRIED, REJECTED, TriedOptimization
from kernelworks.records.wall_clocks import CONTENTION
from kernelworks.report import quantity
from kernelworks.report.text_lines import command_lines, paragraph

__all__ = ["MOST_STEPS", "Files", "Step", "apply_words", "command_text", "needs_allowing", "next_steps", "step_lines"]

MOST_STEPS = 3
WITH_VALUE = ("--budget", "--allow", "--plan", "--patch", "--out", "--perfetto")  # options of the command
DEFAULT_BUDGET_S = 240  # of a fix
LONGER = 4  # times the budget, to measure what was not significant
LEAST_GAIN_SHARE = 0.005  # of the wall clock: of less the sentence says that nothing is predicted to gain
LEAST_EDIT_SHARE = 0.02  # of the wall clock: an edit that recovers less is no next step
LEAST_UNSEEN_SHARE = 0.2  # of the program's own time, from which on an unmodelled hotspot is a next step
SEEN_SHARE = 0.25  # of the wall clock: if less was modelled, optimizations of torch's work gain little


@dataclass(frozen=True)
class Files:
    """Where a diagnosis was written; "" for what is in no file."""

    page: str = ""
    record: str = ""
    plan: str = ""
    patch: str = ""


@dataclass(frozen=True)
class Step:
    """One step. ``command`` are the words of a shell command, or one line of Python or of IPython if ``python``; none
    for an edit."""

    command: tuple[str, ...]
    why: str
    python: bool = False


def next_steps(record: Diagnosis, files: Files | None = None) -> list[Step]:
    """The steps that are worth taking, the best first."""
    files = files or Files()
    if record.interrupted:
        rough = ("--rough",) if "--rough" in record.options else ()
        return [_diagnose(record, (*_again(record), *rough), "the same to its end: it was interrupted")]
    if record.ambiguous:
        return [
            _diagnose(record, ("--rough", *_again(record)), "rough figures now, while others use the machine"),
            _diagnose(record, _again(record), "again, when the machine is quiet"),
        ]
    steps = _after_fix(record, record.fix, files) if record.fix is not None else _before_fix(record)
    steps += _edits(record)
    if record.rough:
        steps.append(_diagnose(record, _again(record), "the same on a quiet machine: these figures are rough"))
    if not steps and files.record:
        steps.append(
            Step(("kernelworks", "show", files.record, "--verbose"), "every hotspot, what was called with what")
        )
    return steps[:MOST_STEPS]


def _before_fix(record: Diagnosis) -> list[Step]:
    if _unseen(record) > 1 - SEEN_SHARE:
        return []
    rough = ("--rough",) if record.rough else ()
    minutes = _minutes(DEFAULT_BUDGET_S)
    predicted = sum(r.high_s for r in record.hotspots) >= LEAST_GAIN_SHARE * record.wall_s
    what = "optimizations" if predicted else "what only a trial can tell, such as torch.compile"
    return [_diagnose(record, ("--fix", *rough), f"tries {what}: each verified and measured; up to {minutes}")]


def _after_fix(record: Diagnosis, fix: Fix, files: Files) -> list[Step]:
    steps = []
    if fix.rounds and not fix.refused:
        steps += _kept(record, fix, files)
    steps += _lasting_modules(record, fix)
    if fix.needs_s:
        names = _names(one for one in fix.optimizations if one.needs_s) or "what the budget left out"
        options = _options(record, budget=fix.needs_s)
        steps.append(_diagnose(record, options, f"tries {names}; up to {_minutes(fix.needs_s)}"))
    unclear = [one for one in fix.optimizations if _is_unclear(one)]
    if unclear and not fix.needs_s:
        longer = LONGER * (fix.budget_s or DEFAULT_BUDGET_S)
        why = f"measures longer: {_names(unclear)} gained, but not significantly; up to {_minutes(longer)}"
        steps.append(_diagnose(record, _options(record, budget=longer), why))
    words = needs_allowing(fix)
    if words:
        options = _options(record, budget=max(fix.needs_s, fix.budget_s), allow=(*fix.allowed, *words))
        steps.append(_diagnose(record, options, f"tries {', '.join(words)} too: they change numbers"))
    return steps


def _kept(record: Diagnosis, fix: Fix, files: Files) -> list[Step]:
    """How to keep what was applied."""
    if files.patch:
        return [Step(apply_words(fix, files.patch), "keeps the fix: puts it into the program's source")]
    if fix.patch and files.record:
        written = ("kernelworks", "show", files.record, "--patch", "fix.diff")
        applied = shlex.join(apply_words(fix, written[-1]))
        return [Step(written, f"keeps the fix: writes it as a diff of your source, for `{applied}`")]
    if not files.plan:
        return []
    return [Step((f'kernelworks.apply("{files.plan}")',), "keeps the fix: this line at the start of the program", True)]


def _lasting_modules(record: Diagnosis, fix: Fix) -> list[Step]:
    """What to change if the program makes its modules anew at each run, so that most optimizations cannot be tried."""
    left = [one for one in fix.optimizations if one.why == MODULES_MADE_ANEW]
    if not left:
        return []
    then = f": {_names(left)} can be tried then"
    file = record.program.partition(" ")[0]
    if not record.command or ":" in file:
        return [Step((), f"make the model once, outside the function that is diagnosed{then}")]
    where = f"at the top level of {file}, let a function do the work"
    return [Step((), f"make the model {where}, and diagnose {file}:FUNCTION{then}")]


def apply_words(fix: Fix, patch: str) -> tuple[str, ...]:
    """The command that puts a fix's patch, written to that file, into the program's source."""
    if not fix.patch_folder:
        return ("git", "apply", patch)
    return ("git", "-C", fix.patch_folder, "apply", os.path.relpath(patch, fix.patch_folder))


def needs_allowing(fix: Fix) -> tuple[str, ...]:
    """The words that ``--allow`` takes for what was not tried because it changes numbers."""
    found = (one.changes for one in fix.optimizations if one.outcome == NOT_TRIED and not one.advice)
    return tuple(word for word in dict.fromkeys(found) if word and word not in fix.allowed)


def _is_unclear(one: TriedOptimization) -> bool:
    """Whether it was measured to gain, but within the noise."""
    return one.outcome == REJECTED and one.noise_s is not None and 0 < (one.gain_s or 0.0) <= one.noise_s


def _edits(record: Diagnosis) -> list[Step]:
    """What only the program's author can change, by what it recovers."""
    worth = [r for r in record.hotspots if r.high_s >= LEAST_EDIT_SHARE * record.wall_s and _is_edit(r, record.fix)]
    steps = [
        Step((), f"{r.source or r.op}: {r.action} ({quantity.seconds_range(r.low_s, r.high_s)} recoverable)")
        for r in sorted(worth, key=lambda r: -r.high_s)[:1]
    ]
    own = record.wall_s - record.time_breakdown.get(CONTENTION, 0.0)
    unseen = [r for r in record.hotspots if not r.modelled and r.op != CONTENTION and r.source and r.action]
    largest = max(unseen, key=lambda r: r.seconds, default=None)
    if largest is not None and largest.seconds > LEAST_UNSEEN_SHARE * own:
        share = quantity.percent(largest.seconds / own)
        steps.insert(
            0, Step((), f"{largest.source}: {quantity.seconds(largest.seconds)} ({share}) here: {largest.action}")
        )
    return steps


def _unseen(record: Diagnosis) -> float:
    """The share of the program's own time that was not modelled."""
    own = record.wall_s - record.time_breakdown.get(CONTENTION, 0.0)
    unseen = sum(r.seconds for r in record.hotspots if not r.modelled and r.op != CONTENTION)
    return unseen / own if own > 0 else 1.0


def _is_edit(hotspot: Hotspot, fix: Fix | None) -> bool:
    """Whether no optimization does it."""
    return bool(hotspot.action) and not hotspot.optimization and (fix is None or not hotspot.applied)


def _names(tried: Iterable[TriedOptimization]) -> str:
    counted: dict[str, int] = {}
    for one in tried:
        counted[one.optimization] = counted.get(one.optimization, 0) + 1
    return ", ".join(name if count == 1 else f"{name} ({count} ways)" for name, count in counted.items())


def _options(record: Diagnosis, budget: float, allow: tuple[str, ...] = ()) -> tuple[str, ...]:
    words = ["--fix", "--budget", f"{math.ceil(budget)}"] if budget else ["--fix"]
    allowed = allow or (record.fix.allowed if record.fix is not None else ())
    if allowed:
        words += ["--allow", ",".join(allowed)]
    return (*words, *(("--rough",) if record.rough else ()))


def _again(record: Diagnosis) -> tuple[str, ...]:
    """The options of this diagnosis, without --rough."""
    if record.fix is None:
        return ("--fix",) if record.unfixed else ()
    return tuple(word for word in _options(record, record.fix.budget_s) if word != "--rough")


def _with_user_options(record: Diagnosis, options: tuple[str, ...]) -> tuple[str, ...]:
    """These, and the options that the user gave and these do not name. Whether figures may be rough, each step says
    itself."""
    words, kept = iter(record.options), list[str]()
    for word in words:
        value = (next(words),) if word in WITH_VALUE else ()
        if word not in (*options, "--rough"):
            kept += [word, *value]
    return (*options, *kept)


def _diagnose(record: Diagnosis, options: tuple[str, ...], why: str) -> Step:
    """The diagnosis once more; of a function in Python, the call that does so."""
    if record.command:
        options = _with_user_options(record, options)
        at = record.command.index("--") if "--" in record.command else len(record.command)
        return Step(("kernelworks", "diagnose", *record.command[:at], *options, *record.command[at:]), why)
    if record.magic:
        verb, statement = record.magic
        return Step(
            (" ".join(filter(None, (verb, *_with_user_options(record, options), statement))),), why, python=True
        )
    given = dict(zip(options, (*options, "")[1:], strict=True))
    words = ["fn"]
    words += ["fix=True"] if "--fix" in given else []
    words += [f"fix_s={given['--budget']}"] if "--budget" in given else []
    words += [f"allow={tuple(given['--allow'].split(','))!r}"] if "--allow" in given else []
    words += ["rough=True"] if "--rough" in given else []
    return Step((f"kernelworks.diagnose({', '.join(words)})",), why, python=True)


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{math.ceil(seconds / 60)} min"


def step_lines(step: Step, width: int, indent: int, first: Text | str = "") -> list[Text]:
    """A step's command, and below it what it does, if it says so."""
    if not step.command:
        return paragraph(step.why, width, indent, first)
    if step.python:
        said = paragraph(Text(step.command[0], style="bold"), width, indent, first)
    else:
        said = command_lines(step.command, width, indent, first)
    return [*said, *(paragraph(step.why, width, indent, style="dim") if step.why else [])]


def command_text(step: Step) -> str:
    """What is pasted: a shell command, or a line of Python."""
    return step.command[0] if step.python else shlex.join(step.command)
