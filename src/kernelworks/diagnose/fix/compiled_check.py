"""Holds the compiled regions that a fix is about to keep against float64 on other values and sizes than the program's.

It takes one part of the budget at most: first what runs as it was compiled, then what is compiled anew for it, which
other sizes are and may be other values too (a list of an expert's tokens has another length), if that fits what is left
of the part. A region that is wrong is rejected, and a file that shows it is made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import nn

from kernelworks.diagnose.fix.attempt import Try
from kernelworks.diagnose.fix.order import COMPILERS, stage
from kernelworks.diagnose.fix.output_check import fits_whole
from kernelworks.diagnose.fix.time_limits import part_s, seconds_to_end
from kernelworks.diagnose.optimization import CombinedChange, Scene
from kernelworks.diagnose.optimizations.torch_compile import compile_options, root_of
from kernelworks.diagnose.optimizations.trial import draws
from kernelworks.diagnose.sites.functions import Function
from kernelworks.diagnose.sites.modules import Sample
from kernelworks.diagnose.snapshot import State, duplicate
from kernelworks.diagnose.verify.agreement import compare
from kernelworks.diagnose.verify.answers import answers, in_place_of
from kernelworks.diagnose.verify.drawn_inputs import ZEROS, drawn_samples, shorter_samples
from kernelworks.diagnose.verify.wrong_region import report_of
from kernelworks.profile.budget import BudgetExceeded
from kernelworks.records.fix import CompilerReport

__all__ = ["check_compiled", "compilers_at_work"]

RECOMPILES = "RecompileError"  # torch's
SIZES = 0.15  # of what is left of the budget: another size is compiled anew, which may take no more


def compilers_at_work(one: Try, beside: Sequence[Try]) -> list[Try]:
    """The compilers at work with it in place, itself among them."""
    found = [other for other in (one, *beside) if stage(other) == COMPILERS and other.change is not None]
    return [other for other in found if other.candidate.site.kind in ("module", "function")]


def check_compiled(
    scene: Scene, one: Try, together: CombinedChange, beside: Sequence[Try]
) -> tuple[str, CompilerReport | None]:
    """Compares what is compiled ``together`` on drawn arguments. Returns where it is wrong, "" if nowhere, and the file
    that shows it, if the compiler alone does."""
    compiled = compilers_at_work(one, beside)
    if not compiled:
        return "", None
    if together.random is not None and draws(scene):
        together = together.random
    ends, checked, left = time.perf_counter() + part_s(scene), 0, 0
    cost_s = max((other.promise.cost_s for other in compiled if other.promise is not None), default=0.0)
    assert scene.budget is not None
    anew: list[_Drawn] = []  # what is found to be compiled anew, which is done last
    for drawn in itertools.chain(_drawn(scene, compiled, cost_s), anew):
        name, sample = drawn.name, drawn.sample
        most_s = min(ends - time.perf_counter(), seconds_to_end(scene))
        if most_s <= 0 or drawn.needs_s > min(most_s, SIZES * scene.budget.seconds_left):
            left += 1
            continue
        if not _says(sample, ties=name == ZEROS):
            continue
        scene.say(f"comparing compiled regions on other arguments: {name}")
        with contextlib.nullcontext() if drawn.compiles else _compiling_nothing():
            raised = _raises(sample, together)
            if raised == RECOMPILES and not drawn.compiles:
                anew.append(_Drawn(name, sample, cost_s, compiles=True))
                continue
            if raised:
                return f"what is compiled raises {raised} on {name}", None
            found = compare(
                [sample], most_s, most_s, changed=lambda module: together, untouched=together.is_untouched,
                whole=fits_whole(scene, most_s),
            )  # fmt: skip
        checked += bool(found.against)
        if found.against and not found.agrees:
            why = f"what is compiled is wrong on {name} ({found.note or f'relative error {found.after:.1e}'})"
            return why, _report(scene, sample, compiled, name, min(part_s(scene), seconds_to_end(scene)))
    if one.agreement is not None and (checked or left):
        more = f"; {left} more were not compared, as the budget allows" if left else ""
        said = f"what is compiled agrees on {checked} calls with other arguments{more}"
        one.agreement = dataclasses.replace(
            one.agreement, note="; ".join(note for note in (one.agreement.note, said) if note)
        )
    return "", None


class _Drawn(NamedTuple):
    """A call with other arguments. ``compiles``: it may be compiled anew, which is expected to take ``needs_s``."""

    name: str
    sample: Sample
    needs_s: float
    compiles: bool


def _compiling_nothing() -> contextlib.AbstractContextManager[None]:
    """Within, what would be compiled once more raises ``RECOMPILES``."""
    from torch._dynamo import config  # takes seconds: only if something is compiled

    patched: contextlib.AbstractContextManager[None] = config.patch(error_on_recompile=True)
    return patched


def _drawn(scene: Scene, compiled: Sequence[Try], cost_s: float) -> Iterator[_Drawn]:
    """Of each module that is compiled its first call, with other values; then with other sizes, which the original must
    take, and for which it is compiled once more."""
    places = [_module_of(scene, one) for one in compiled]
    firsts: dict[int, Sample] = {}
    for sample in scene.answer_samples:
        if any(sample.module is place for place in places):
            firsts.setdefault(id(sample.module), sample)
    for sample in firsts.values():
        for name, drawn in drawn_samples(sample):
            yield _Drawn(name, drawn, 0.0, compiles=False)
    for sample in firsts.values():
        for name, drawn in shorter_samples(sample):
            yield _Drawn(name, drawn, cost_s, compiles=True)


def _module_of(scene: Scene, one: Try) -> nn.Module:
    """The outermost one in which it is."""
    module: nn.Module = scene.at(one.candidate.site)
    return root_of(scene, module) if isinstance(module, Function) else module


def _raises(sample: Sample, changed: CombinedChange) -> str:
    """What the changed module raises for these arguments; "" if it takes them."""
    state, (args, kwargs) = State(sample.module), duplicate((sample.args, sample.kwargs))
    try:
        with changed, in_place_of(sample):
            sample.module(*args, **kwargs)
    except Exception as error:  # whatever a program raises
        return type(error).__name__
    finally:
        state.restore()
    return ""


def _says(sample: Sample, *, ties: bool = False) -> bool:
    """Whether the original takes these arguments, and its answers say something: if it overflows, what computes in more
    bits need not; with ``ties`` nothing has to give the same integers."""
    try:
        found = answers(sample, State(sample.module)).named.values()
    except Exception:  # whatever a program raises
        return False
    floats = [t for t in found if t.is_floating_point()]
    return all(bool(t.isfinite().all()) for t in floats) and (not ties or len(floats) == len(found))


def _report(scene: Scene, sample: Sample, compiled: Sequence[Try], name: str, most_s: float) -> CompilerReport | None:
    """The file that shows it. What goes wrong in making it is no news: the region is left out all the same."""
    own = next(one for one in compiled if _module_of(scene, one) is sample.module)
    scene.say("shrinking the region that is wrong to a few lines")
    try:
        return report_of(sample, compile_options(own.candidate), name, most_s)
    except BudgetExceeded:
        raise
    except Exception:
        return None
