"""Outermost modules that differ in their values alone, as a function calls the layers of a list one after another: they
are compiled as one, by one graph for all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from torch import nn

from kernelworks.diagnose.optimization import Candidate, Impossible, Scene
from kernelworks.diagnose.sites.functions import Function
from kernelworks.diagnose.sites.modules import Roots, kind_of

__all__ = ["ALIKE", "changed_roots", "layers_at", "layers_of"]

ALIKE = "alike"  # the option of a candidate; its value is how many there are
LEAST_NUMBER = 3  # two of a kind may be a network and its target, which are called in modes of their own


def layers_of(modules: Iterable[nn.Module]) -> list[tuple[nn.Module, ...]]:
    """Those of a kind, if there are enough of it, in the order in which they are called."""
    kinds: dict[object, list[nn.Module]] = {}
    for module in modules:
        if not isinstance(module, Function) and any(True for _ in module.parameters()):
            kinds.setdefault(kind_of(module), []).append(module)
    return [tuple(found) for found in kinds.values() if len(found) >= LEAST_NUMBER]


def layers_at(scene: Scene, candidate: Candidate) -> tuple[nn.Module, ...]:
    """The layers of a candidate, whose site is that of the last. Raises Impossible if the program has another number of
    them."""
    last, number = scene.at(candidate.site), int(candidate.option(ALIKE))
    found = tuple(each for each in scene.roots.modules if each is last or kind_of(each) == kind_of(last))[:number]
    if len(found) < number:
        raise Impossible(f"there are {len(found)} modules of that kind, not {number}")
    return found


def changed_roots(scene: Scene, candidate: Candidate) -> Roots:
    """The outermost modules that a candidate of one site changes, with their calls."""
    if not candidate.option(ALIKE):
        return scene.scene_of(scene.at(candidate.site)).roots
    layers = layers_at(scene, candidate)
    samples = tuple(s for s in scene.roots.samples if any(s.module is layer for layer in layers))
    return dataclasses.replace(scene.roots, modules=layers, samples=samples)
