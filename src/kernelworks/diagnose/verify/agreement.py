"""Whether a changed module gives the same answers: the same inputs through the original, the changed module and the
reference.

Each answer (an output, a gradient, a buffer that was written) is judged by itself. The reference is the module as it
was, run in float64. If it cannot be run so, or if its answer is so small beside what was summed up to it that an error
relative to it says nothing, the scale is the original's own rounding: how far its answers move when each op's result is
moved by a rounding or two (``precision.PerturbedRounding``). If that fails too, nothing was compared: the note says so,
and it never counts as agreement.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from kernelworks.contract import UNIT_ROUNDOFF
from kernelworks.contract.error_model import SUM_STDDEVS
from kernelworks.diagnose.sites.modules import Sample, kind_of
from kernelworks.diagnose.snapshot import State, moved_parameters
from kernelworks.diagnose.verify.answers import Answers, answers
from kernelworks.diagnose.verify.answers_alike import difference_in_kind, equal_values, same_but_rounded
from kernelworks.diagnose.verify.choices import Choice, RecordedChoices
from kernelworks.diagnose.verify.device_memory import SHARE_OF_MEMORY, available_bytes
from kernelworks.diagnose.verify.drawn_inputs import MOST_IDS, shortened_sample
from kernelworks.diagnose.verify.error_spread import largest_by_chance, root_mean_square
from kernelworks.diagnose.verify.precision import ROUNDINGS, THREEFOLD, InFloat64, PerturbedRounding
from kernelworks.diagnose.verify.turned_choices import LEAST_ROWS, TurnedRows, indices_chosen, number_of_rows
from kernelworks.nn.swap import swap

__all__ = ["FLOAT64", "GRADIENT", "ROUNDING", "SAYS_NOTHING", "Agreement", "compare"]

FLOAT64, ROUNDING = "float64", "the original's own rounding"
NARROW_DTYPES = frozenset({torch.bfloat16, torch.float16})
GRADIENT = "gradient of "  # how the name of a gradient begins
DRAWS = 3  # so many runs have their results perturbed
MORE_DRAWS = 8  # before 16 bits are rejected: where few roundings make the error, the most of few draws is often small
TIES = 8  # so many if integers are compared


@dataclass(frozen=True)
class Agreement:
    """Relative errors against the reference in the 2-norm, of the worst answer of the worst sample.

    ``against`` is FLOAT64 or ROUNDING (then ``before`` is how far rounding carries the original, and ``after`` how far
    the changed module is from it), or empty if nothing was compared: ``agrees`` is False then, ``note`` says why.
    """

    before: float
    after: float
    agrees: bool
    note: str = ""
    against: str = ""
    ended: bool = False  # the time was over before there was a verdict


class _Ended(Exception):
    """The time for a comparison is over."""


class _Nothing(Exception):
    """Nothing can be compared; the text says why."""


class ModuleChange(Protocol):
    """What is done to a module: a context in which it is changed."""

    def __call__(self, module: nn.Module) -> contextlib.AbstractContextManager[Any]: ...


def _swapped(module: nn.Module) -> contextlib.AbstractContextManager[Any]:
    return swap(module, verbose=False)


def compare(
    samples: Sequence[Sample],
    budget_s: float = math.inf,
    most_s: float = math.inf,
    *,
    changed: ModuleChange = _swapped,
    untouched: Callable[[nn.Module], bool] | None = None,
    before: contextlib.AbstractContextManager[Any] | None = None,
    whole: bool = False,
) -> Agreement:
    """Runs each sample through its module as it is, ``changed`` (by default swapped), and in float64. ``untouched``
    tells modules in which nothing is changed: if they cannot be compared, that says nothing. ``before`` is what is
    in place already when a module runs as it is, a context that may be entered again and again: errors that it was
    allowed to make are no news. With ``whole`` no sample is shortened.

    It agrees if no error grows by more than a tenth for bfloat16 and float16, whose roundings between ops dominate,
    and threefold for float32, where it measures the order of summation, plus one rounding of the dtype (more of 16 bits
    where few roundings make the error: ``error_spread.py``); if integers and booleans are equal, but for those that the
    original's own rounding turns (ties of an argmax) and indices that name an equal element in place of another
    (``choices.py``); and if NaN and infinities stand in the same places.
    Once ``budget_s`` is over, a module is judged by its first sample alone, and one that is like others but for its
    values by theirs, and the note says so; after ``most_s`` nothing is judged any more, and that is no agreement.
    Raises nothing: what goes wrong is in the note.
    """
    if not samples:
        return Agreement(0.0, 0.0, False, "not compared: no module was called")
    notes: list[str] = []
    shorter = list(samples) if whole else [shortened_sample(s) for s in samples]
    if any(a is not b for a, b in zip(shorter, samples, strict=True)):
        notes.append(f"compared on the first {MOST_IDS} tokens of the first sequence")
    found: list[Agreement] = []
    begin = time.perf_counter()
    modules = {id(s.module): s.module for s in shorter}
    kinds: set[Any] = set()
    unseen = 0
    for at, module in enumerate(modules.values()):
        its, spent = kind_of(module), time.perf_counter() - begin
        if spent > budget_s and its in kinds:
            unseen += 1
            continue
        if spent > most_s:
            left = f"{len(modules) - at} of {len(modules)} modules"
            return Agreement(0.0, 0.0, False, f"not compared: the budget was over, and {left} were left", ended=True)
        kinds.add(its)
        try:
            state = State(module)
        except Exception as error:
            found.append(_unable(module, error))
            continue
        for number, sample in enumerate(s for s in shorter if s.module is module):
            if number and time.perf_counter() - begin > budget_s:
                notes.append(f"{type(module).__name__} was compared on its first call alone, as the budget allows")
                break
            try:
                verdict = _Trial(sample, state, changed, before, begin + most_s).verdict()
            except _Ended:
                said = f"not compared: the budget was over in {type(module).__name__}"
                return Agreement(0.0, 0.0, False, said, ended=True)
            except _Nothing as reason:
                verdict = Agreement(0.0, 0.0, False, f"not compared: {type(module).__name__} {reason}")
            except Exception as error:  # a user's module, run alone, with our kernels or in other dtypes
                verdict = _unable(module, error)
            finally:
                state.restore()
            if verdict.against or len(modules) == 1 or not (untouched or _untouched)(module):
                found.append(verdict)
    if not found:
        return Agreement(0.0, 0.0, False, "not compared: nothing was replaced in the modules that can be compared")
    if unseen:
        notes.append(f"{unseen} modules were not compared, as the budget allows: others like them were")
    notes += [a.note for a in found if a.note]
    worst = max(found, key=lambda a: (bool(a.against) and not a.agrees, not a.against, a.after))
    return dataclasses.replace(worst, note="; ".join(dict.fromkeys(notes)))


def _untouched(module: nn.Module) -> bool:
    """Whether a swap replaces nothing in it, so that there is nothing to verify."""
    with contextlib.suppress(Exception), swap(module, verbose=False) as swapped:
        return not swapped.replaced
    return False


def _unable(module: nn.Module, error: Exception) -> Agreement:
    text = str(error).strip().splitlines()
    said = f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__
    return Agreement(0.0, 0.0, False, f"not compared: {type(module).__name__}, run by itself again, raised {said}")


class _Trial:
    """The comparison of one sample."""

    def __init__(
        self, sample: Sample, state: State, changed: ModuleChange,
        before: contextlib.AbstractContextManager[Any] | None, ends: float,
    ) -> None:  # fmt: skip
        self.sample, self.state, self.changed, self.before, self.ends = sample, state, changed, before, ends
        self.notes: list[str] = []
        self._otherwise: list[str] = []  # answers that float64 gives otherwise than the original, beyond its rounding
        self._moved: dict[tuple[int, bool, float], Answers] = {}
        self._choices: list[Choice] | None = None
        self._turned: bool | None = None
        self._unwritten: set[str] = set()  # buffers, which say nothing if they stay as they are

    def _as_it_is(self, mode: PerturbedRounding | None = None, *, inside: bool = False) -> Answers:
        """Under ``mode`` its results are moved, and its arguments."""
        self._check_time()
        with self.before or contextlib.nullcontext():
            state = State(self.sample.module) if self.before else self.state
            if mode is None:
                return answers(self.sample, state, inside=inside)
            moved = dataclasses.replace(
                self.sample, args=mode.arguments(self.sample.args), kwargs=mode.arguments(self.sample.kwargs)
            )
            with mode:
                return answers(moved, state, inside=inside)

    def _when_changed(self, *, inside: bool = False) -> Answers:
        """The module is put back as it is when it is changed: what changed it takes that out."""
        self._check_time()
        with self.changed(self.sample.module):
            return answers(self.sample, State(self.sample.module), inside=inside)

    def _check_time(self) -> None:
        if time.perf_counter() > self.ends:
            raise _Ended

    def verdict(self) -> Agreement:
        before, after = self._as_it_is(), self._when_changed()
        self._unwritten = before.unwritten
        if not any(t.numel() for name, t in before.named.items() if name not in before.unwritten):
            raise _Nothing("returns nothing with a tensor or a number in it")
        wrong = difference_in_kind(before, after)
        worst: Agreement | None = Agreement(0.0, 1.0, False, wrong, ROUNDING)
        if not wrong:
            reference = self._reference(before)
            worst = self._judged(before.named, after.named, reference.named if reference else {})
        if worst is None:  # no answer says anything: all of them are rounding, NaN or empty
            worst = self._inside() or self._very_same(before, after) or self._of_other_parameters()
        if worst is None:
            raise _Nothing("returns nothing but rounding errors, NaN or empty tensors, which say nothing")
        if not worst.agrees and not same_but_rounded(before, self._as_it_is()):
            raise _Nothing("does not repeat itself: two runs of the original differ by more")
        self._note_otherwise()
        note = "; ".join(n for n in (worst.note, *self.notes) if n)
        return dataclasses.replace(worst, note=note)

    def _reference(self, before: Answers, *, inside: bool = False) -> Answers | None:
        """The answers in float64; None if it cannot be run so, with a note."""
        self._check_time()
        module = self.sample.module
        held = (*module.parameters(), *module.buffers())
        need = sum(8 * t.numel() for t in held)
        free_bytes = min((available_bytes(t.device) for t in held), default=available_bytes(torch.device("cpu")))
        if need > SHARE_OF_MEMORY * free_bytes:
            self._note(f"float64 needs {need / 1e9:.1f} GB of {free_bytes / 1e9:.1f} GB free")
            return None
        try:
            self.state.widen()
            with InFloat64():
                reference = answers(self.sample, self.state, wide=True, inside=inside)
        except Exception as error:
            text = str(error).strip().splitlines()
            self._note(f"it does not run in float64 ({type(error).__name__}: {text[0][:120] if text else ''})")
            return None
        finally:
            self.state.restore()
        have = reference.inside if inside else reference.named
        if not inside and {n: t.shape for n, t in have.items()} != {n: t.shape for n, t in before.named.items()}:
            self._note("in float64 it returns other shapes")
            return None
        return reference

    def _note(self, reason: str) -> None:
        text = f"compared with {ROUNDING}: {reason}"
        if text not in self.notes:
            self.notes.append(text)

    def _note_otherwise(self) -> None:
        """One line, whatever the number of answers: a model's gradients are hundreds."""
        first, *more = dict.fromkeys(self._otherwise) or ("",)
        if first:
            others = f", and {len(more)} others of its answers" if more else ""
            self._note(f"float64 gives another {first} than its rounding explains{others}")

    def _draw(self, seed: int, *, inside: bool, roundings: float = ROUNDINGS) -> Answers:
        key = seed, inside, roundings
        if key not in self._moved:
            self._moved[key] = self._as_it_is(PerturbedRounding(seed, roundings), inside=inside)
        return self._moved[key]

    def _moved_answers(self, name: str, value: Tensor, draws: int, roundings: float, *, inside: bool) -> list[Tensor]:
        """One of the original's answers, in so many draws."""
        found = []
        for seed in range(draws):
            draw = self._draw(seed, inside=inside, roundings=roundings)
            moved = (draw.inside if inside else draw.named).get(name)
            if moved is None or moved.shape != value.shape:
                raise _Nothing(f"returns other shapes when its ops are moved by a rounding ({name})")
            found.append(moved)
        return found

    def _own(self, name: str, value: Tensor, *, inside: bool) -> float:
        """How far rounding carries one of the original's answers: the most of some draws."""
        draws = self._moved_answers(name, value, DRAWS, ROUNDINGS, inside=inside)
        return max(_distance(moved, value) for moved in draws)

    def _far_moved(self, name: str, before: Tensor, roundings: float, *, inside: bool) -> list[float]:
        """How far one rounding of each result carries an answer of 16 bits, in some draws. With one of the
        ``roundings`` nothing is halved: half a rounding turns a choice less often, and carries the answer as far."""
        draws = self._moved_answers(name, before, MORE_DRAWS, roundings, inside=inside)
        return [_distance(one, before) / roundings for one in draws]

    def _usual_error(self, before: dict[str, Tensor], reference: dict[str, Tensor], *, inside: bool) -> float:
        """How many times as far as one rounding of each result carries them answers of 16 bits are off: the median."""
        found: list[float] = []
        for name, value in before.items():
            if name in reference and self._rounded_dtype(name, value) in NARROW_DTYPES:
                moved = root_mean_square(self._far_moved(name, value, ROUNDINGS, inside=inside))
                off = _distance(value, reference[name])
                if moved and off <= MAX_OWN_ROUNDINGS * ROUNDINGS * moved:  # else float64 is no reference for it
                    found.append(off / moved)
        return max(1.0, statistics.median(found)) if found else 1.0

    def _turns_choices(self) -> bool:
        """Whether the original's own rounding turns what it chooses by values: a token's experts, say."""
        if self._turned is None:
            plain = indices_chosen(self._as_it_is)
            runs = (functools.partial(self._as_it_is, PerturbedRounding(seed)) for seed in range(MORE_DRAWS))
            self._turned = bool(plain.found) and any(indices_chosen(run).differ_from(plain) for run in runs)
        return self._turned

    def _judged(
        self, before: dict[str, Tensor], after: dict[str, Tensor], reference: dict[str, Tensor], *, inside: bool = False
    ) -> Agreement | None:
        """The worst of all answers that say something, None if none does."""
        found = []
        usual = functools.cache(functools.partial(self._usual_error, before, reference, inside=inside))
        for name, value in before.items():
            if not value.is_floating_point():
                each = self._exact(name, value, after[name], inside=inside)
            else:
                each = self._close(name, value, after[name], reference.get(name), usual, inside=inside)
            if each is not None and not (each.agrees and name in self._unwritten):
                found.append(each)
        return max(found, key=lambda a: (not a.agrees, a.after), default=None)

    def _exact(self, name: str, before: Tensor, after: Tensor, *, inside: bool) -> Agreement | None:
        """Integers and booleans. Those that differ must be ones that the original's own rounding turns."""
        if not before.numel():
            return None
        differ = before != after
        count = int(differ.sum())
        if not count:
            return Agreement(0.0, 0.0, True, "", FLOAT64)
        turned = torch.zeros_like(differ)
        for seed in range(TIES):
            moved = self._draw(seed, inside=inside).named.get(name)
            if moved is not None and moved.shape == before.shape:
                turned |= moved != before
        equal, twice = self._judged_choices(before, after)
        turned = (turned | equal) & ~twice
        share = count / before.numel()
        if bool((differ & ~turned).any()):
            rest = int((differ & ~turned).sum())
            return Agreement(0.0, share, False, f"{rest} of {before.numel()} values of {name} are others", ROUNDING)
        note = f"{count} of {before.numel()} values of {name} are ties, which the original's own rounding turns too"
        return Agreement(share, share, True, note, ROUNDING)

    def _judged_choices(self, before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        """Where ``after`` names other elements of the same values, of which a choice of torch's may take any; and where
        it names one twice."""
        equal = torch.zeros(before.shape, dtype=torch.bool, device=before.device)
        twice = equal.clone()
        if before.dtype is not torch.int64:
            return equal, twice
        if self._choices is None:
            with RecordedChoices() as recorded:
                self._as_it_is()
            self._choices = recorded.found
        for choice in self._choices:
            if choice.indices.numel() == before.numel() and torch.equal(choice.indices.reshape(-1), before.reshape(-1)):
                places = after.reshape(choice.indices.shape)
                equal |= choice.names_equals(places).reshape(before.shape)
                twice |= choice.names_twice(places).reshape(before.shape)
        return equal, twice

    def _close(
        self, name: str, before: Tensor, after: Tensor, reference: Tensor | None, usual: Callable[[], float], *,
        inside: bool,
    ) -> Agreement | None:  # fmt: skip
        where = before.isfinite() & after.isfinite()
        if not bool(where.any()):
            return None  # empty, or NaN and infinities in the same places
        rounded_to = self._rounded_dtype(name, before)
        unit = UNIT_ROUNDOFF.get(rounded_to, 0.0)
        factor = 1.1 if rounded_to in NARROW_DTYPES else THREEFOLD
        if reference is not None and before.dtype is not torch.float64:
            where &= reference.isfinite()
            size = _norm(reference.double(), where)
            was, now = (_norm(t.double() - reference.double(), where) for t in (before, after))
            if was <= math.sqrt(unit) * size and now <= factor * was + unit * size and size:
                return Agreement(was / size, now / size, True, "", FLOAT64)
            own = self._own(name, before, inside=inside)
            # Else float64 went another way than the original, and is no reference for it.
            if was <= MAX_OWN_ROUNDINGS * own + unit * size:
                bound = factor * max(was, own / ROUNDINGS) + unit * size  # as one rounding carries it
                if now > bound and rounded_to in NARROW_DTYPES:
                    moved = self._far_moved(name, before, ROUNDINGS, inside=inside)
                    chance = largest_by_chance(moved, before.numel(), was, usual())
                    bound = factor * max(was, chance) + unit * size
                found = self._scaled(name, was, now, bound, own, size, unit, FLOAT64)
                return self._unless_turned(name, before, after, reference, found, factor, unit, inside=inside)
            self._otherwise.append(name)
        else:
            own = self._own(name, before, inside=inside)
        size = _norm(before.double(), where)
        now = _norm(after.double() - before.double(), where)
        bound = (1 + factor) * own + unit * size
        found = self._scaled(name, own, now, bound, own, size, unit, ROUNDING)
        return self._unless_turned(name, before, after, None, found, 1 + factor, unit, inside=inside)

    def _unless_turned(
        self, name: str, before: Tensor, after: Tensor, reference: Tensor | None, found: Agreement | None,
        factor: float, unit: float, *, inside: bool,
    ) -> Agreement | None:  # fmt: skip
        """The verdict that was found; if it is no agreement, and the original's own rounding turns choices of 16 bits,
        that on rows (tokens), against the original's if there is no ``reference``."""
        narrow = self._rounded_dtype(name, before) in NARROW_DTYPES
        if not narrow or (found is not None and found.agrees) or not self._turns_choices():
            return found
        against, base = (ROUNDING, before) if reference is None else (FLOAT64, reference)
        if number_of_rows(before) < LEAST_ROWS:
            size, own = _norm(base.double(), base.isfinite()), self._own(name, before, inside=inside)
            was, now = _distance(before, base), _distance(after, base)
            moved = self._far_moved(name, before, 1.0, inside=inside)
            bound = factor * max(was, largest_by_chance(moved, before.numel())) + unit * size
            return self._scaled(name, was, now, bound, own, size, unit, against)
        rows = TurnedRows.of(before, base, self._moved_answers(name, before, MORE_DRAWS, 1.0, inside=inside))
        if not rows.says(factor, SAYS_NOTHING):
            return None
        agrees = rows.agrees(after, factor, unit)
        note = f"of {name}, rows that the original's own rounding turns too" if agrees else f"worst in {name}"
        return Agreement(rows.error_of(before), rows.error_of(after), agrees, note, against)

    def _rounded_dtype(self, name: str, value: Tensor) -> torch.dtype:
        """The dtype that it was rounded to last. Autocast's products hand on gradients in 16 bits, which are float32
        by their dtype alone: every element of such a one is a number of the 16 bits."""
        if value.dtype is torch.float32 and name.startswith(GRADIENT):
            for dtype in NARROW_DTYPES & set(self.sample.autocast.values()):
                if torch.equal(value.to(dtype).float(), value):
                    return dtype
        return value.dtype

    def _scaled(
        self, name: str, was: float, now: float, bound: float, own: float, size: float, unit: float, against: str
    ) -> Agreement | None:
        """The verdict on one answer; None if the bound would let anything through. Errors are relative to the
        answer, or if rounding has eaten it, to the magnitudes that the rounding came from."""
        agrees = now <= bound
        if agrees and not max(was, now, own):
            return Agreement(0.0, 0.0, True, "", against)  # the very same values, and no rounding moves them
        if (agrees and bound > SAYS_NOTHING * size) or (size <= own and now <= MAX_OWN_ROUNDINGS * own):
            return None  # or rounding has eaten it (of a bias before a batch norm), whatever the order of its sums
        eaten = own / (ROUNDINGS * SUM_STDDEVS * unit) if unit and own > SAYS_NOTHING * size else 0.0
        scale = max(size, eaten, 1e-300)
        return Agreement(was / scale, now / scale, agrees, "" if agrees else f"worst in {name}", against)

    def _very_same(self, before: Answers, after: Answers) -> Agreement | None:
        """Where rounding would hide what is wrong in an answer (a number less its own mean), equal bits are equal."""
        if not any(bool(t.isfinite().any()) for t in before.named.values()):
            return None
        if not all(equal_values(value, after.named[name]) for name, value in before.named.items()):
            return None
        return Agreement(0.0, 0.0, True, "its outputs are rounding alone, and the same to the bit", ROUNDING)

    def _inside(self) -> Agreement | None:
        """If the module's own answers say nothing, those of the modules in it may."""
        before, after = self._as_it_is(inside=True), self._when_changed(inside=True)
        reference = self._reference(before, inside=True)
        both = {n: t for n, t in before.inside.items() if n in after.inside and after.inside[n].shape == t.shape}
        found = self._judged(both, after.inside, reference.inside if reference else {}, inside=True)
        if found is None:
            return None
        note = "its outputs are rounding errors, NaN or empty: compared by the outputs of the modules in it"
        return dataclasses.replace(found, note="; ".join(n for n in (note, found.note) if n))

    def _of_other_parameters(self) -> Agreement | None:
        """What is compiled shows nothing of the modules in it. The mean of what a norm made is its bias, 0 in a model
        that was never trained: with other parameters it says something."""
        with moved_parameters(self.sample.module) as moved:
            if not moved:
                return None
            trial = _Trial(self.sample, State(self.sample.module), self.changed, self.before, self.ends)
            before, after = trial._as_it_is(), trial._when_changed()
            trial._unwritten = before.unwritten
            wrong = difference_in_kind(before, after)
            if wrong:
                return Agreement(0.0, 1.0, False, wrong, ROUNDING)
            reference = trial._reference(before)
            found = trial._judged(before.named, after.named, reference.named if reference else {})
        if found is None:
            return None
        note = "its outputs are rounding errors, NaN or empty: compared with other values in its parameters"
        return dataclasses.replace(found, note="; ".join(n for n in (note, found.note) if n))


MAX_OWN_ROUNDINGS = 16.0  # times the original's own rounding: a larger error against float64 is no rounding error
SAYS_NOTHING = 0.1  # a bound wider than this share of the answer lets wrong answers through


def _norm(value: Tensor, where: Tensor) -> float:
    return float(torch.where(where, value, 0.0).norm())


def _distance(one: Tensor, other: Tensor) -> float:
    """The 2-norm of their difference, where both are finite."""
    return _norm(one.double() - other.double(), one.isfinite() & other.isfinite())
