"""Which forms of a program a search has compiled beside it, and which of its tries wait for them.

What a try needs are the forms that it puts in place for the first time: its own, if it is a compiler, and those of
compilers that are made anew on top of it. A program that draws random numbers needs each of them twice, once with the
original's numbers, for the verification.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from kernelworks.diagnose.fix.attempt import Try
from kernelworks.diagnose.fix.compile_forms import FORM_ASKED, FORM_READY, CompileForm, Compilers
from kernelworks.diagnose.fix.order import (
    COMPILERS,
    INDEPENDENT,
    SETTINGS,
    SWITCH,
    TUNED,
    prediction_s,
    stage,
    tries_above,
    turn_of,
)
from kernelworks.diagnose.fix.worker_limit import resident_bytes
from kernelworks.diagnose.optimization import CompiledBeside
from kernelworks.diagnose.optimizations.compiled_step import STEP
from kernelworks.diagnose.optimizations.compiler_settings import keeps_compiled
from kernelworks.diagnose.optimizations.trial import draws
from kernelworks.measure.clock.work_beside import untimed_section

if TYPE_CHECKING:
    from kernelworks.diagnose.fix.search import Search

__all__ = ["FormsOfTries"]

CONTEXT_BYTES = 1 << 30  # of a CUDA context with its libraries
COPIES = 2  # of what the program has at its peak: a graph keeps memory of its own
OWN_SHARE = 0.5  # of what is left of the budget, for what is compiled here while others are compiled beside
LAST_S = 2.0  # of a compiler whose form is ready: what is left of the budget when nothing is waited for any more
THREADS = "threads"  # how many there are stands in the code that inductor writes for a CPU


@dataclass
class FormsOfTries:
    search: Search
    begun: bool = False
    batch: int = 0
    own: set[str] = field(default_factory=set)  # keys of what was compiled in this process

    @property
    def compilers(self) -> Compilers:
        return self.search.journal.compilers

    # ------------------------------------------------------------ which

    def of(self, one: Try, beside: Sequence[Try]) -> list[CompileForm]:
        """What has to be compiled before it is measured with those beside it, and was not compiled in this process."""
        if not self.compilers.number or one.found is not None:
            return []
        if stage(one) == COMPILERS:
            needed = list(self._forms(one, beside))
        else:
            needed = [form for other in tries_above(one, beside) for form in self._forms(other, [*beside, one])]
        return [form for form in needed if form.key not in self.own]

    def note_compiled(self, tries: Iterable[Try], others: Sequence[Try], *, verified: bool = True) -> None:
        """These were compiled in this process, with those in place; also to verify them, if they were ``verified``."""
        for one in tries if self.compilers.number else ():
            self.own.update(form.key for form in list(self._forms(one, others))[: None if verified else 1])

    def _forms(self, one: Try, others: Sequence[Try]) -> Iterator[CompileForm]:
        if not _compiles(one):
            return
        mine = one.candidate
        beneath = [other.candidate for other in _beneath(one, others)]
        yield CompileForm.of(mine, beneath, random=False)
        if self._draws():
            yield CompileForm.of(mine, beneath, random=True)

    def _draws(self) -> bool:
        """Whether the program draws random numbers; what raises as that is looked at, its verification tells."""
        with contextlib.suppress(Exception):
            return draws(self.search.scene)
        return False

    # ------------------------------------------------------------ when

    def refresh(self, tries: Iterable[Try]) -> None:
        """Notes of each what its compiler takes by now."""
        for one in tries if self.compilers.number else ():
            compiled = self.compiled_form(one, self.search.tries_beside(one)) if self.is_ready(one) else None
            one.loads_s = compiled.loads_s if compiled is not None else None

    def following(self, groups: Sequence[list[Try]]) -> list[Try]:
        """The first group that is to be predicted now; nothing if all is being compiled. What is ready does not wait
        for what would have to be compiled, and while that is compiled here, the others are beside. Torch's switch is
        compiled here at once, if it fits at all: beside, its process builds the program first, and stands still
        whenever something is timed, so that a small budget was over before it was ready."""
        scene = self.search.scene
        assert scene.budget is not None
        if not self.compilers.number or not groups:
            return groups[0] if groups else []
        every = [one for group in groups for one in group]
        others = any(self.is_ready(one) or self.is_pending(one) for one in every)
        for group in groups:
            first = group[0]
            if stage(first) != COMPILERS or self.is_ready(first):
                return group
            is_switch = turn_of(scene, first, self.search.tried) == SWITCH
            if self.is_pending(first) and not is_switch:
                continue
            if not is_switch and prediction_s(scene, first) > OWN_SHARE * scene.budget.seconds_left:
                self.ask(group)
                if others or self.is_pending(first):
                    continue  # what is compiled beside is nearer, and leaves time for what needs no compiler
            self.ask(one for one in every if one is not first)
            self.batch += 1  # its verification waits for these: they come before all others
            for form in self.of(first, self.search.tries_beside(first))[1:]:
                self._ask(form)
            return group
        return [] if any(self.is_pending(one) for one in every) else groups[0]

    def ask(self, tries: Iterable[Try]) -> None:
        """Has compiled what these need."""
        self.batch += 1
        for one in tries:
            for form in self.of(one, self.search.tries_beside(one)):
                self._ask(form)

    def _ask(self, form: CompileForm) -> None:
        scene = self.search.scene
        if not self.begun:
            self.begun = True
            needs = {
                "backward": scene.backward, "bytes_each": resident_bytes(os.getpid()), "gpu_bytes_each": 0,
                "gpu_bytes_free": 0, "keeps": keeps_compiled(),
                "wall_s": scene.wall,
            }  # fmt: skip
            if torch.cuda.is_initialized():
                needs["gpu_bytes_each"] = COPIES * torch.cuda.max_memory_reserved() + CONTEXT_BYTES
                needs["gpu_bytes_free"] = torch.cuda.mem_get_info()[0]
            self.compilers.begin(needs, min(1.0, 2 * scene.wall) if scene.on_gpu else 0.0)
        self.compilers.ask(form, self.batch)

    def is_pending(self, one: Try) -> bool:
        """Whether something that it needs is being compiled, and may be ready in time."""
        forms = self.of(one, self.search.tries_beside(one))
        return bool(self._asked(forms)) and self._seconds_to_wait(one) > 0

    def is_ready(self, one: Try) -> bool:
        """Whether all that it needs has been compiled."""
        forms = self.of(one, self.search.tries_beside(one))
        states = [self.compilers.form_state(form) for form in forms]
        return bool(states) and all(state is not None and state.state == FORM_READY for state in states)

    def _asked(self, forms: Iterable[CompileForm]) -> list[CompileForm]:
        known = ((form, self.compilers.form_state(form)) for form in forms)
        return [form for form, state in known if state is not None and state.state == FORM_ASKED]

    def _seconds_to_wait(self, one: Try) -> float:
        budget = self.search.scene.budget
        assert budget is not None
        return budget.seconds_left - LAST_S - self.search.trial_s(one)

    def wait(self, tries: Sequence[Try]) -> None:
        """Until something of what these need has been compiled, or cannot be in time."""
        for one in tries:
            forms = self._asked(self.of(one, self.search.tries_beside(one)))
            seconds = self._seconds_to_wait(one)
            if forms and seconds > 0:
                says = f"waiting for a compiler beside: {forms[0].says}"
                every = [f for other in tries for f in self._asked(self.of(other, self.search.tries_beside(other)))]
                with untimed_section():
                    self.compilers.wait(every, seconds, functools.partial(self.search.step, says))
                return

    # ------------------------------------------------------------ what it takes by then

    def compiled_form(self, one: Try, others: Sequence[Try]) -> CompiledBeside | None:
        """What is known of a compiler's form with those in place, if it is ready."""
        form = next(self._forms(one, others), None) if self.compilers.number else None
        state = self.compilers.form_state(form) if form is not None else None
        return CompiledBeside(state.loads_s, state.cold_s) if state is not None and state.state == FORM_READY else None

    def remake_s(self, one: Try, rest: Sequence[Try]) -> float:
        """Seconds to make anew what stands on top of one."""
        seconds = 0.0
        for other in tries_above(one, rest):
            ready = self.compiled_form(other, [*rest, one])
            seconds += (
                ready.loads_s if ready is not None else other.promise.cost_s if other.promise is not None else 0.0
            )
        return seconds


def _compiles(one: Try) -> bool:
    """Whether a compiler in another process can make what is found on disk here: not what is chosen by times, and not
    our own backend, which benchmarks kernels as it compiles."""
    mode = str(one.candidate.option("mode") or "")
    return stage(one) == COMPILERS and not one.candidate.option("backend") and not mode.startswith(TUNED)


def _beneath(one: Try, others: Sequence[Try]) -> list[Try]:
    """What a compiler's result depends on: what it traces or holds, and with a step the optimizers in it."""
    mine, others = stage(one), [other for other in others if other is not one]
    found = [other for other in others if SETTINGS < stage(other) < mine or other.candidate.optimization == THREADS]
    if one.candidate.option(STEP):
        found += [other for other in others if stage(other) == INDEPENDENT]
    return sorted(found, key=stage)
