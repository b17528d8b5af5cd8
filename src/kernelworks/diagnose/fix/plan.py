"""The best program that a search found, as a plan that another process puts in place without a search.

A plan names places by the path and the type of modules, so it fits any process that makes the same modules. A module is
met when the program first calls it, an optimizer when it first steps: what the plan holds for it is put in place then.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from kernelworks.diagnose.fix.outcome import in_a_line
from kernelworks.diagnose.fix.plan_fields import VERSION, check, check_candidates
from kernelworks.diagnose.optimization import (
    Candidate,
    Change,
    CombinedChange,
    Impossible,
    Optimization,
    Scene,
    Site,
    kind_name,
    same_kind,
)
from kernelworks.diagnose.optimizations import OPTIMIZATIONS
from kernelworks.diagnose.optimizations.accepted_options import short_repr
from kernelworks.diagnose.sites.modules import Roots, outermost
from kernelworks.dispatch.user_warning import warn_user
from kernelworks.records.json_text import parse_json

__all__ = ["AppliedPlan", "apply", "as_plan", "candidates_of"]

MOST_FRESH = 64  # modules in which the plan stays in place, if the program makes them anew
Plan = Mapping[str, Any] | str | PathLike[str]


def as_plan(
    candidates: Sequence[Candidate], roots: Roots, *, program: str, kind: str, saves: float | None
) -> dict[str, Any]:
    """What ``apply`` reads, in JSON types. ``saves`` is the share of the wall clock that all of it saved."""
    return {
        "kernelworks_plan": VERSION,
        "program": program,
        "kind": kind,
        "torch": str(torch.__version__),
        "saves": saves,
        "roots": [] if roots.fresh else [kind_name(m) for m in roots.models],  # no other module is waited for
        "candidates": [
            {
                "optimization": candidate.optimization, "site": dataclasses.asdict(candidate.site),
                "says": candidate.says, "code": candidate.code, "changes": candidate.changes,
                "options": dict(candidate.options),
            }
            for candidate in candidates
        ],
    }  # fmt: skip


def load_plan(plan: Plan) -> Mapping[str, Any]:
    """A plan; also from the path of a file, or from the record of a fix or of a diagnosis. Raises OSError, and
    ValueError if it is no plan of this version."""
    found: Any = plan
    if not isinstance(plan, Mapping):
        try:
            found = parse_json(Path(plan).read_text(encoding="utf-8"))
        except ValueError as error:  # a broken encoding is one too
            raise ValueError(f"{plan} is no plan: {error}") from error
    for holder in ("fix", "plan"):
        if isinstance(found, Mapping) and "kernelworks_plan" not in found and isinstance(found.get(holder), Mapping):
            found = found[holder]
    version = found.get("kernelworks_plan") if type(found) is dict else None
    if type(version) is int and 1 <= version < VERSION:
        raise ValueError(
            f"plan is of version {version}, from an older kernelworks; this one reads version {VERSION}: run fix again"
        )
    if version != VERSION or "candidates" not in found:
        raise ValueError(f"plan must be one of version {VERSION}, as a fix writes it, got {short_repr(found)}")
    check(found)
    loaded: Mapping[str, Any] = found
    return loaded


def candidates_of(
    plan: Plan, optimizations: Sequence[Optimization] = OPTIMIZATIONS
) -> list[tuple[Optimization, Candidate]]:
    """What a plan puts in place. Raises ValueError if it names an unknown optimization."""
    loaded, known = load_plan(plan), {optimization.name: optimization for optimization in optimizations}
    check_candidates(loaded, optimizations)
    found = []
    for item in loaded["candidates"]:
        site, options = Site(**item["site"]), tuple(item["options"].items())
        candidate = Candidate(item["optimization"], site, item["says"], item["code"], item["changes"], options=options)
        found.append((known[candidate.optimization], candidate))
    return found


class AppliedPlan:
    """A plan that is being applied. ``undo()`` takes all of it out again, and so does leaving it as a context.

    ``done`` holds lines on what is applied by now, ``waiting`` on what waits for its module or optimizer, ``failed`` on
    what cannot be applied here, and why; a warning says so too.
    """

    def __init__(
        self, plan: Plan, modules: Sequence[nn.Module] = (), *, optimizations: Sequence[Optimization] = OPTIMIZATIONS
    ) -> None:
        self.plan = load_plan(plan)
        _check_fit(self.plan, modules)
        self._awaited = [str(kind) for kind in self.plan.get("roots", ())]  # of modules that were not called yet
        self._anew = (
            not self._awaited and not modules
        )  # the program makes its modules at each run: any module may be one
        self._candidates = candidates_of(self.plan, optimizations)
        self._placed: set[int] = set()  # of them, by number
        self._scene = Scene(Roots((), (), fresh=False))
        self._inside: list[Change] = []
        self._theirs: list[tuple[nn.Module, list[Change]]] = []  # of what applies to every module, by module
        self.done: list[str] = []
        self.failed: list[str] = []
        self._watch = contextlib.ExitStack()
        self._lock = threading.RLock()  # for a program that calls its modules in several threads
        self._active = True
        self._aside = False
        try:
            self._place(None)
            for module in modules:
                self._expected(module)  # nobody waits for it any more
                self._take(module)
            if not self._complete():
                self._look_out()
        except BaseException:
            self.undo()
            raise

    @property
    def active(self) -> bool:
        """Whether it is in place: until ``undo()``."""
        return self._active

    @property
    def waiting(self) -> list[str]:
        return [
            f"{candidate.optimization}: {candidate.says} ({candidate.site})"
            for number, (_, candidate) in enumerate(self._candidates)
            if number not in self._placed and (candidate.site.kind != "everywhere" or not self._scene.roots.modules)
        ]

    def undo(self) -> None:
        """Restores everything as it was. A second call does nothing."""
        with self._lock:
            self._active = False
            self._watch.close()
            inside, self._inside = self._inside, []
            CombinedChange(inside, entered=True).__exit__(None, None, None)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """A context in which the program is as it was, so that both can be measured. On leaving it, what was in place
        comes back, and nothing is compiled anew. Modules and optimizers that are first met meanwhile stay as they
        are."""
        with self._lock:
            inside = [] if self._aside else list(self._inside)
            outer, self._aside = self._aside, True
            CombinedChange(inside, entered=True).__exit__(None, None, None)
        try:
            yield
        finally:
            with self._lock:
                self._aside = outer
                if self._active:
                    CombinedChange(inside).__enter__()

    def _look_out(self) -> None:
        self._watch.enter_context(outermost(lambda module, args, kwargs: self._met(module)))
        if any(candidate.site.kind == "optimizer" for _, candidate in self._candidates):
            hook = register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: self._met(optimizer))
            self._watch.callback(hook.remove)

    def _complete(self) -> bool:
        kinds = {candidate.site.kind for n, (_, candidate) in enumerate(self._candidates) if n not in self._placed}
        return not kinds or (kinds == {"everywhere"} and not self._awaited and not self._anew)

    def _met(self, thing: Any) -> None:
        """Takes a module that nothing else calls, or an optimizer that steps: once each."""
        with self._lock:
            if self._aside:
                return
            scene = self._scene
            if isinstance(thing, Optimizer):
                if not any(thing is one for one in scene.optimizers):
                    scene.optimizers = (*scene.optimizers, thing)
                    self._place(None)
            elif not any(thing is one for one in scene.roots.modules) and self._expected(thing):
                self._take(thing)
            if self._complete():
                self._watch.close()

    def _expected(self, module: nn.Module) -> bool:
        """Whether the plan's program called such a module. Any other is foreign, or a part that is called by itself
        before the model that holds it, as ``generate`` calls an encoder."""
        if self._anew:
            return not any(module is part for root in self._scene.roots.modules for part in root.modules())
        found = next((kind for kind in self._awaited if same_kind(kind, kind_name(module))), None)
        if found is not None:
            self._awaited.remove(found)
        return found is not None

    def _take(self, module: nn.Module) -> None:
        scene = self._scene
        parts = {id(part) for part in module.modules()} if self._anew else set()
        for root, changes in [held for held in self._theirs if id(held[0]) in parts]:
            self._theirs = [held for held in self._theirs if held[0] is not root]
            self._let_go(root, changes)
        scene.roots = dataclasses.replace(scene.roots, modules=(*scene.roots.modules, module))
        self._place(module)
        if self._anew and len(self._theirs) > MOST_FRESH:
            self._let_go(*self._theirs.pop(0))

    def _let_go(self, module: nn.Module, changes: Sequence[Change]) -> None:
        """Takes out what is in the oldest of the modules that a program makes anew: nobody else may hold that module by
        now."""
        for change in reversed(changes):
            self._inside.remove(change)
            change.__exit__(None, None, None)
        rest = tuple(one for one in self._scene.roots.modules if one is not module)
        self._scene.roots = dataclasses.replace(self._scene.roots, modules=rest)

    def _place(self, module: nn.Module | None) -> None:
        """Applies what has its place by now, and in this module what applies to every one."""
        theirs: list[Change] = []
        for number, (optimization, candidate) in enumerate(self._candidates):
            everywhere = candidate.site.kind == "everywhere"
            if number in self._placed or (everywhere and module is None):
                continue
            scene = self._scene.scene_of(module) if everywhere and module is not None else self._scene
            if candidate.site.kind in ("module", "function", "optimizer"):
                try:
                    scene.at(candidate.site)
                except Impossible as why:
                    if self._is_met(candidate.site):
                        self._placed.add(number)
                        self._fail(f"{candidate.optimization}: {candidate.says} ({candidate.site}): {why}")
                    continue
            if not everywhere:
                self._placed.add(number)
            done = f"{candidate.optimization}: {candidate.says} ({candidate.site})"
            try:
                change = optimization.apply(scene, candidate)
                change.__enter__()
            except Impossible as why:  # this runs within a call of the program, which goes on without it
                self._fail(f"{done}: {why}")
                continue
            except Exception as error:  # so it does whatever goes wrong
                self._fail(f"{done}: {in_a_line(error)}")
                continue
            self._inside.append(change)
            if everywhere:
                theirs.append(change)
            if not everywhere or done not in self.done:
                self.done.append(done)
        if module is not None:
            self._theirs.append((module, theirs))

    def _is_met(self, site: Site) -> bool:
        """Whether the outermost module of a part was met: what it lacks then comes no more. Of a program that makes its
        modules anew another one may have it."""
        alike = (module for module in self._scene.roots.modules if same_kind(kind_name(module), site.root))
        return site.kind == "module" and not self._anew and len(list(alike)) > site.number

    def _fail(self, line: str) -> None:
        if line not in self.failed:
            self.failed.append(line)
            warn_user(f"kernelworks: not applied: {line}", RuntimeWarning)

    def __enter__(self) -> AppliedPlan:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.undo()

    def __str__(self) -> str:
        lines = [*self.done, *(f"not applied: {line}" for line in self.failed)]
        lines += [f"waiting: {line}" for line in self.waiting]
        return "\n".join(lines) or "the plan holds no optimization"


def _check_fit(plan: Mapping[str, Any], modules: Sequence[nn.Module]) -> None:
    """Raises ValueError if a module is none of those that the plan's program calls: what the plan says was found and
    verified in others."""
    roots = [str(kind) for kind in plan.get("roots", ())]
    strange = [kind_name(module) for module in modules if not any(same_kind(kind_name(module), kind) for kind in roots)]
    if roots and strange:
        raise ValueError(
            f"modules must be those that the plan's program calls ({', '.join(dict.fromkeys(roots))}), got {strange[0]}"
        )


def apply(plan: Plan, *modules: nn.Module) -> AppliedPlan:
    """Applies the plan of a fix, without searching or measuring anything.

    Args:
        plan: what ``kernelworks.fix(...).plan`` holds, or the path of a file that holds it, the fix or the diagnosis.
        *modules: the modules that the program calls, in the order in which it first calls them. They are changed at
            once; others, and without any all, are changed when they are first called, an optimizer when it first steps.

    Returns:
        AppliedPlan: ``done``, ``waiting``, ``failed`` (what cannot be applied here, and why; also a warning) and
        ``undo()``. Also a context manager.

    Raises:
        OSError, ValueError: ``plan`` cannot be read, is of another version, or has an invalid field: the error names
            the field, its value, and what is accepted. Or a module is of a type that the plan's program does not call.
            Nothing is in place then.
        TypeError: an argument is no module.
    """
    for module in modules:
        if not isinstance(module, nn.Module):
            raise TypeError(f"modules must be torch.nn.Module, got {type(module).__name__}")
    return AppliedPlan(plan, modules)
