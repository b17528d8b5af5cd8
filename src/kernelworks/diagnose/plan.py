"""The best program that a search found, as a plan that another process puts in place without searching.

A plan names places by the path and the type of modules, so it fits any process that makes the same ones. Modules are
met as the program calls them, optimizers as they step: what the plan has for them is put in place ahead of that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from kernelworks.diagnose.remedies import REMEDIES
from kernelworks.diagnose.remedies.remedy import Change, Impossible, Offer, Remedy, Scene, Site
from kernelworks.diagnose.roots import Roots, outermost

__all__ = ["Applied", "apply", "as_plan", "offers_of"]

VERSION = 1
MOST_FRESH = 64  # modules of a program that makes them anew, in which its plan stays in place
Plan = Mapping[str, Any] | str | PathLike[str]


def as_plan(offers: Sequence[Offer], roots: Roots, *, program: str, kind: str, saves: float | None) -> dict[str, Any]:
    """What ``apply`` reads, of JSON's types. ``saves`` is the share of the wall clock that all of it saved."""
    return {
        "kernelworks_plan": VERSION,
        "program": program,
        "kind": kind,
        "torch": str(torch.__version__),
        "saves": saves,
        "modules": 0 if roots.fresh else len(roots.models),  # after so many nobody else is waited for
        "offers": [
            {
                "remedy": offer.remedy, "site": dataclasses.asdict(offer.site), "says": offer.says, "code": offer.code,
                "changes": offer.changes, "options": dict(offer.options),
            }
            for offer in offers
        ],
    }  # fmt: skip


def read(plan: Plan) -> Mapping[str, Any]:
    """A plan, from a file's path too. Raises OSError, and ValueError where it is none."""
    if isinstance(plan, Mapping):
        found = plan
    else:
        try:
            found = json.loads(Path(plan).read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{plan} is no plan: {error}") from error
        except json.JSONDecodeError as error:
            raise ValueError(f"{plan} is no plan: {error}") from error
    if type(found) is not dict or found.get("kernelworks_plan") != VERSION or "offers" not in found:
        raise ValueError(f"plan must be one of version {VERSION}, as a fix writes it, got {str(found)[:80]}")
    return found


def offers_of(plan: Plan, remedies: Sequence[Remedy] = REMEDIES) -> list[tuple[Remedy, Offer]]:
    """What a plan puts in place. Raises ValueError where it names a remedy that is not known here."""
    known = {remedy.name: remedy for remedy in remedies}
    found = []
    for item in read(plan)["offers"]:
        try:
            site, options = Site(**item["site"]), tuple(item["options"].items())
            offer = Offer(item["remedy"], site, item["says"], item["code"], item["changes"], options=options)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"plan has an offer that cannot be read: {str(item)[:120]}") from error
        if offer.remedy not in known:
            raise ValueError(f"plan names the remedy {offer.remedy!r}, which this version of kernelworks has not")
        found.append((known[offer.remedy], offer))
    return found


class Applied:
    """A plan that is being put in place; ``undo()`` takes all of it out again. Also a context that does so on leaving.

    ``done`` are lines on what is in place by now, ``waiting`` on what waits for its module or optimizer.
    """

    def __init__(self, plan: Plan, modules: Sequence[nn.Module] = (), *, remedies: Sequence[Remedy] = REMEDIES) -> None:
        self.plan = read(plan)
        self._most = int(self.plan.get("modules", 0))
        self._offers = offers_of(self.plan, remedies)
        self._placed: set[int] = set()  # of them, by number
        self._scene = Scene(Roots((), (), fresh=False))
        self._inside: list[Change] = []
        self._theirs: list[tuple[nn.Module, list[Change]]] = []  # of what is for every module, by module
        self.done: list[str] = []
        self._watch = contextlib.ExitStack()
        self._active = True
        try:
            self._place(None)
            for module in modules:
                self._met(module)
            if modules:
                self._most = len(modules)
            if not self._complete():
                self._look_out()
        except BaseException:
            self.undo()
            raise

    @property
    def active(self) -> bool:
        """Whether it is in place, that is until ``undo()``."""
        return self._active

    @property
    def waiting(self) -> list[str]:
        return [
            f"{offer.remedy}: {offer.says} ({offer.site})"
            for number, (_, offer) in enumerate(self._offers)
            if number not in self._placed and (offer.site.kind != "everywhere" or not self._scene.roots.modules)
        ]

    def undo(self) -> None:
        """Gives everything back as it was. A second call does nothing."""
        self._active = False
        self._watch.close()
        while self._inside:
            self._inside.pop().__exit__(None, None, None)

    def _look_out(self) -> None:
        self._watch.enter_context(outermost(lambda module, args, kwargs: self._met(module)))
        if any(offer.site.kind == "optimizer" for _, offer in self._offers):
            hook = register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: self._met(optimizer))
            self._watch.callback(hook.remove)

    def _complete(self) -> bool:
        kinds = {offer.site.kind for n, (_, offer) in enumerate(self._offers) if n not in self._placed}
        seen = bool(self._most) and len(self._scene.roots.modules) >= self._most
        return not kinds or (kinds == {"everywhere"} and seen)

    def _met(self, thing: Any) -> None:
        """A module that nothing else calls, or an optimizer that steps: once each."""
        scene = self._scene
        if isinstance(thing, Optimizer):
            if not any(thing is one for one in scene.optimizers):
                scene.optimizers = (*scene.optimizers, thing)
                self._place(None)
        elif not any(thing is one for one in scene.roots.modules):
            scene.roots = dataclasses.replace(scene.roots, modules=(*scene.roots.modules, thing))
            self._place(thing)
            if not self._most and len(self._theirs) > MOST_FRESH:
                self._let_go(*self._theirs.pop(0))
        if self._complete():
            self._watch.close()

    def _let_go(self, module: nn.Module, changes: Sequence[Change]) -> None:
        """Takes out what is in the oldest of the modules that a program makes anew again and again: nobody else may
        hold it by now."""
        for change in reversed(changes):
            self._inside.remove(change)
            change.__exit__(None, None, None)
        rest = tuple(one for one in self._scene.roots.modules if one is not module)
        self._scene.roots = dataclasses.replace(self._scene.roots, modules=rest)

    def _place(self, module: nn.Module | None) -> None:
        """Whatever has its place by now; what is for every module, in this one."""
        theirs: list[Change] = []
        for number, (remedy, offer) in enumerate(self._offers):
            everywhere = offer.site.kind == "everywhere"
            if number in self._placed or (everywhere and module is None):
                continue
            scene = self._scene.alone(module) if everywhere and module is not None else self._scene
            if offer.site.kind in ("module", "function", "optimizer"):
                try:
                    scene.at(offer.site)
                except Impossible:
                    continue
            change = remedy.apply(scene, offer)
            change.__enter__()
            self._inside.append(change)
            done = f"{offer.remedy}: {offer.says} ({offer.site})"
            if everywhere:
                theirs.append(change)
            else:
                self._placed.add(number)
            if not everywhere or done not in self.done:
                self.done.append(done)
        if module is not None:
            self._theirs.append((module, theirs))

    def __enter__(self) -> Applied:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.undo()

    def __str__(self) -> str:
        return "\n".join([*self.done, *(f"waiting: {line}" for line in self.waiting)]) or "the plan holds no remedy"


def apply(plan: Plan, *modules: nn.Module) -> Applied:
    """Puts the plan of a fix in place, without searching or measuring anything.

    Args:
        plan: what ``kernelworks.fix(...).plan`` holds, or the path of the file that it was written to.
        *modules: the modules that the program calls, in the order in which it first calls them; they are changed at
            once. By default they are met as they are called, optimizers as they step.

    Returns:
        Applied: ``done``, ``waiting`` and ``undo()``; a context manager too.

    Raises:
        OSError, ValueError: ``plan`` cannot be read, or is none of this version.
        TypeError: what is given is no module.
    """
    for module in modules:
        if not isinstance(module, nn.Module):
            raise TypeError(f"modules must be torch.nn.Module, got {type(module).__name__}")
    return Applied(plan, modules)
