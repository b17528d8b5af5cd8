"""kernelworks' kernels in place of torch's functions, if a tuning record says that they are faster here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from torch import nn

from kernelworks.build import native
from kernelworks.diagnose.optimization import EVERYWHERE, Candidate, Change, Impossible, Promise, Scene
from kernelworks.diagnose.optimizations.accepted_options import Takes, a_list
from kernelworks.diagnose.optimizations.trial import share_saved
from kernelworks.diagnose.sites.modules import Roots, SwappedModules
from kernelworks.dispatch.op import OPS
from kernelworks.measure.autotune import autotune
from kernelworks.nn.attention import configurations
from kernelworks.profile.budget import Budget
from kernelworks.profile.call_sites import fold
from kernelworks.profile.program import Program

__all__ = ["NOTHING", "OPTIMIZATION", "ask_for_the_entry", "group_lines", "part_of"]

PART, ENOUGH_S, MOST = (
    0.0625,
    10.0,
    0.25,
)  # of the budget: for autotuning the calls, and the same again for the swap itself
MOST_OPS, ALONE = 4, 26  # ops benchmarked one at a time, and the most program runs that one such benchmark takes
RUNS = 10  # of the program, which a prediction takes besides
TURNS = 6  # how often the modules are swapped after the first time, at the least
NOTHING = "no kernel of kernelworks is faster for any of the program's calls"


def group_lines(items: Iterable[tuple[str, str, str]]) -> tuple[str, ...]:
    """One line for all modules of one type whose paths differ in indices only: how many, where, and the text."""
    found: dict[tuple[str, str, str], int] = {}
    for path, kind, text in items:
        key = (fold(path), kind, text)
        found[key] = found.get(key, 0) + 1
    return tuple(
        f"{count} x {kind} {path}: {text}" if count > 1 else f"{kind} {path}: {text}"
        for (path, kind, text), count in found.items()
    )


class _Swap(Change):
    """Modules that last are swapped once, and the attributes set by that are set and unset from then on: the functions
    stay the same, as a compiled program needs. Fresh modules are swapped when they come."""

    def __init__(self, roots: Roots, most_s: float, ops: Collection[str] | None) -> None:
        super().__init__(self._enter)
        self.roots, self.most_s, self.ops = roots, most_s, ops
        self.placed: tuple[str, ...] = ()  # ops, those in most places first
        self.taking = 0.0
        self._bare: set[int] = set()
        self._entries: list[_Entry] = []

    def _enter(self) -> Callable[[], None]:
        if self._entries:
            for entry in self._entries:
                entry.set()
            return self._unset
        spaces = [] if self.roots.fresh else _spaces(self.roots)
        before = [dict(space) for space in spaces]
        swapped = SwappedModules(self.roots, most_s=self.most_s, ops=self.ops).__enter__()
        self.taking = swapped.taking
        self._note(swapped)
        self._entries = [
            _Entry(space, name, was.get(name, ABSENT), space[name])
            for space, was in zip(spaces, before, strict=True)
            for name in space
            if was.get(name, ABSENT) is not space[name]
        ]

        def back() -> None:
            self._note(swapped)
            swapped.__exit__(None, None, None)
            self.seconds_spent += swapped.seconds_spent

        return self._unset if self._entries else back

    def _unset(self) -> None:
        for entry in self._entries:
            entry.unset()

    def _note(self, swapped: SwappedModules) -> None:
        if swapped.swaps:
            self.done = group_lines((r.path, r.type, ", ".join(r.ops)) for s in swapped.swaps for r in s.replaced)
            ops = Counter(op for s in swapped.swaps for r in s.replaced for op in r.ops if op in OPS)
            self.placed = tuple(op for op, _ in ops.most_common())
            self.left = group_lines((item.path, item.type, item.reason) for s in swapped.swaps for item in s.left)
            self._bare |= {id(s.model) for s in swapped.swaps if not s.replaced}

    def is_untouched(self, module: nn.Module) -> bool:
        return id(module) in self._bare


ABSENT = object()


class _Entry(NamedTuple):
    """One attribute that a swap sets on a module or on its configuration."""

    space: dict[str, Any]
    name: str
    before: Any
    after: Any

    def set(self) -> None:
        self.space[self.name] = self.after

    def unset(self) -> None:
        if self.space.get(self.name) is not self.after:
            return  # somebody has set another since, which stays
        if self.before is ABSENT:
            del self.space[self.name]
        else:
            self.space[self.name] = self.before


def _spaces(roots: Roots) -> list[dict[str, Any]]:
    """The namespaces in which a swap sets attributes: of every module, and of its transformers configuration."""
    found: dict[int, dict[str, Any]] = {}
    for root in roots.models:
        for module in root.modules():
            found[id(module)] = module.__dict__
        for config, _ in configurations(root):
            found[id(config)] = object.__getattribute__(config, "__dict__")
    return list(found.values())


def part_of(budget: Budget) -> float:
    """Seconds: a benchmark takes as long whatever the budget, so a small budget gives a larger share."""
    return max(PART * budget.seconds, min(ENOUGH_S, MOST * budget.seconds))


def ask_for_the_entry(budget: Budget) -> None:
    """Raises BudgetExceeded if our calls cannot be benchmarked in time: what is timed is their way in by C++, which is
    compiled once on a machine."""
    if seconds := native.build_seconds():
        budget.ask("compiling the C++ entry of the ops, once on this machine,", seconds)


class _Optimization:
    name = "swap"
    takes = Takes(("everywhere",), {"ops": a_list("names of ops", lambda name: isinstance(name, str) and name in OPS)})

    def candidates(self, scene: Scene) -> Iterable[Candidate]:
        if not scene.roots.models:
            raise Impossible("the program calls no torch.nn.Module: nothing to swap")
        yield Candidate(
            self.name, EVERYWHERE, "kernelworks' ops in place of torch's, if they are faster here",
            code="kernelworks.swap(model)", group=self.name, touches=frozenset({"ops"}),
        )  # fmt: skip

    def _less(self, scene: Scene, placed: Sequence[str]) -> Iterable[Candidate]:
        """The ops that save time by themselves, if some do and others do not: a softmax that loses does not discard an
        attention that wins."""
        assert scene.budget is not None
        won = []
        for op in placed[:MOST_OPS]:
            scene.budget.ask(f"benchmarking {op} alone", ALONE * scene.wall)
            scene.say(f"benchmarking the modules on their inputs, with {op} as the only op of kernelworks")
            saves, _ = share_saved(scene, self._change(scene, [op]))
            won += [op] if saves > 0 else []
        if won and len(won) < len(placed):
            yield Candidate(
                self.name, EVERYWHERE, f"kernelworks' {', '.join(won)} in place of torch's, and none of the others",
                code=f"kernelworks.swap(model, ops={won})", options=(("ops", won),), group=self.name,
                touches=frozenset({"ops"}),
            )  # fmt: skip

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        forecaster, program, budget = scene.forecaster, scene.program, scene.budget
        assert forecaster is not None and program is not None and budget is not None
        self._autotuned(scene, program, budget)
        if scene.taken or candidate.option("ops"):
            return self._race_modules(scene, candidate)
        forecaster.before(program)
        scene.say("building the kernels that the swapped program needs")
        change = self.apply(scene, candidate)
        with change:
            program.run()
            if not change.done:
                raise Impossible(NOTHING)
            budget.ask("predicting the gain of a swap", forecaster.needs() + TURNS * change.taking)
            scene.say("surveying the swapped program")
            surveyed = forecaster.survey(program)
        scene.say("measuring kernelworks' ops one by one, to predict the gain")
        forecast = forecaster.forecast(program, scene.roots, surveyed)
        scene.notes += forecaster.notes()
        if forecast.unknown:
            scene.notes.append(
                f"{forecast.unknown} calls of kernelworks' ops could not be measured: predicted from their shapes"
            )
        return Promise(1 - forecast.share, how="kernelworks' ops measured one by one", less=self._some(scene, change))

    def _some(self, scene: Scene, change: _Swap) -> Callable[[], Iterable[Candidate]] | None:
        """What finds smaller candidates than everything that was put in place."""
        return (lambda: self._less(scene, change.placed)) if len(change.placed) > 1 else None

    def _race_modules(self, scene: Scene, candidate: Candidate) -> Promise:
        """Benchmarks the modules with what is in place, which may be a compiler: no timeline describes that."""
        change = self.apply(scene, candidate)
        with change:
            if not change.done:
                raise Impossible(NOTHING)
        scene.say("benchmarking the modules on their inputs, with kernelworks' ops in them")
        saves, first_s = share_saved(scene, change)
        return Promise(
            saves, first_s, how="benchmarked on the inputs that the modules are called with",
            less=None if candidate.option("ops") else self._some(scene, change),
        )  # fmt: skip

    def expected_s(self, scene: Scene, candidate: Candidate) -> float:
        """Seconds to autotune the program's calls, to build what they need, and to benchmark it."""
        assert scene.budget is not None
        return native.build_seconds() + 2 * part_of(scene.budget) + RUNS * scene.wall

    def apply(self, scene: Scene, candidate: Candidate) -> _Swap:
        return self._change(scene, candidate.option("ops"))

    def _change(self, scene: Scene, ops: Collection[str] | None) -> _Swap:
        return _Swap(scene.roots, part_of(scene.budget) if scene.budget is not None else float("inf"), ops)

    def _autotuned(self, scene: Scene, program: Program, budget: Budget) -> None:
        """Autotunes once, whatever is in place by then: a race of modules finds the tuning records."""

        def tune() -> bool:
            ask_for_the_entry(budget)
            scene.notes.extend(self._autotune(scene, program, part_of(budget)))
            return True

        scene.keep("the program's calls are autotuned", tune)

    def _autotune(self, scene: Scene, program: Program, budget_s: float) -> tuple[str, ...]:
        """Autotunes what the program's modules call, with every op in place. Returns one line on what was found."""
        scene.say("autotuning the program's calls")
        with SwappedModules(scene.roots, every=True, most_s=budget_s) as swapped:
            placed = {op for s in swapped.swaps for r in s.replaced for op in r.ops} if scene.device == "cpu" else ()
            found = autotune(program.run, progress=scene.say, budget_s=budget_s, expected=placed)
        return (*found.notes, str(found).splitlines()[-1])


OPTIMIZATION = _Optimization()
