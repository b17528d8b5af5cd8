"""CUDA graphs in place of modules' calls (``graphed_module``): of a module as a whole or, if the host decides something
within it, of its largest parts without such a decision.

Capturing a graph shows whether it can be captured. One part of each kind is tried, from the top down. All parts that
were captured are one candidate, and share the memory of their graphs.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from kernelworks.diagnose.graphs.graphed_module import MAX_GRAPHS, GraphedModule, Pools
from kernelworks.diagnose.graphs.recorder import Recorder
from kernelworks.diagnose.optimization import Candidate, Change, Impossible, Promise, Rejected, Scene, Site
from kernelworks.diagnose.optimizations.accepted_options import Takes, a_string
from kernelworks.diagnose.optimizations.compiler_settings import Impl, install_impls
from kernelworks.diagnose.optimizations.parts import called_within, largest
from kernelworks.diagnose.optimizations.torch_compile import (
    compile_group,
    is_compiled,
    roots_worth_compiling,
)
from kernelworks.diagnose.optimizations.trial import share_saved
from kernelworks.diagnose.sites.functions import Function
from kernelworks.diagnose.sites.modules import Sample
from kernelworks.diagnose.snapshot import State, duplicate
from kernelworks.diagnose.verify.answers import in_place_of
from kernelworks.measure.clock.work_beside import untimed_section
from kernelworks.records.fix import MODULES_MADE_ANEW

__all__ = ["OPTIMIZATION"]

LEAST_S = 1.0  # to begin with, and for each call signature; a benchmark takes about as long
RUNS = 24  # of the program besides: before a capture, to compare a graph with, and for the benchmark
PARTS_SHARE = 0.1  # of what is left of the budget, to look for parts: compilers capture what is between their breaks
TRIES = 8  # captures of parts, which must fit the budget beside runs of the program
PARTS = "parts"
CODE = """\
model = torch.cuda.make_graphed_callables(model, (example_input,))  # inputs of one size, no .item() in it"""
CODE_OF_PARTS = """\
parts = ({parts},)
torch.cuda.make_graphed_callables(parts, tuple(inputs_of[part] for part in parts))  # each with example inputs"""


class _Optimization:
    name = "CUDA graph"
    takes = Takes(("module", "function"), {PARTS: a_string})
    recorder: type[Recorder] = Recorder

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        if not scene.on_gpu:
            return
        if scene.roots.fresh:
            raise Impossible(MODULES_MADE_ANEW)
        for root in roots_worth_compiling(scene):
            if not is_compiled(root) and not (
                isinstance(root, Function) and root.held
            ):  # a graph holds the addresses of what that replaced
                yield self._candidate(scene.site(root), "captured, and launched as one", CODE)

    def _candidate(self, site: Site, says: str, code: str, *parts: str) -> Candidate:
        return Candidate(
            self.name, site, says, code=code, group=compile_group(site), touches=frozenset({"ops"}), risky=True,
            options=((PARTS, " ".join(parts)),) if parts else (),
        )  # fmt: skip

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        root, budget = scene.at(candidate.site), scene.budget
        assert budget is not None
        samples = [s for s in scene.roots.samples if s.module is root]
        budget.ask("capturing a CUDA graph", self.expected_s(scene, candidate))
        begin = time.perf_counter()
        if not candidate.option(PARTS):
            if len({_sizes(s) for s in samples}) > MAX_GRAPHS:
                raise Impossible("the sizes of its inputs change from call to call")
            scene.say("capturing a CUDA graph")
            graphed = self._graphed(scene, root, root)
            with scene.within(_most_s(scene)):
                _run(scene, samples[0], [(root, graphed)])
            if not any(graphed.graphs.values()):
                why = graphed.reason or "it is called with other than plain tensors"
                instead = Promise(None, less=lambda: self._parts(scene, candidate.site, samples[0]))
                raise Rejected(f"it cannot be captured: {why}", instead)
        captured_s = time.perf_counter() - begin
        scene.say("benchmarking what is captured")
        saves, first_s = share_saved(scene, self.apply(scene, candidate), scene.scene_of(root).roots)
        nbytes = self._kept(scene, root).pools.nbytes
        return Promise(saves, captured_s + first_s, nbytes, how="benchmarked on the inputs that it is called with")

    def expected_s(self, scene: Scene, candidate: Candidate) -> float:
        """Seconds to capture a module, or its parts, and to benchmark what was captured."""
        root = scene.at(candidate.site)
        return _expected_s(scene, sum(sample.module is root for sample in scene.roots.samples))

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        root = scene.at(candidate.site)
        impls: list[Impl] = [(part, self._graphed(scene, root, part)) for part in _parts_of(root, candidate)]
        return Change(lambda: install_impls(impls))

    # ------------------------------------------------------------ parts

    def _parts(self, scene: Scene, site: Site, sample: Sample) -> Iterable[Candidate]:
        """What can be captured of a module that cannot be captured as a whole, as one candidate."""
        root, budget = sample.module, scene.budget
        assert budget is not None
        budget.ask("capturing parts of it", _expected_s(scene, 0) + TRIES * LEAST_S / 2)
        scene.say(f"looking for the modules that {site} calls")
        most_s = _most_s(scene)
        ends_at = time.perf_counter() + most_s

        def attempt(parts: Sequence[nn.Module]) -> list[nn.Module]:
            found = list[nn.Module]()
            for part in parts:
                budget.ask("capturing parts of it")
                if time.perf_counter() > ends_at:  # what cannot be captured may take seconds a try
                    break
                scene.say(f"looking for the largest parts that can be captured: {type(part).__name__}")
                graphed = self._graphed(scene, root, part)
                _run(scene, sample, [(part, graphed)])
                found += [part] if any(graphed.graphs.values()) else []
            return found

        with scene.within(most_s), untimed_section():
            called = called_within(lambda: _run(scene, sample, []))
            found = largest(root, called, attempt)
        if found:
            names = {id(part): name for name, part in root.named_modules()}
            paths = [names[id(part)] for part in found]
            kinds = Counter(type(part).__name__ for part in found)
            what = ", ".join(f"{number} x {kind}" for kind, number in kinds.most_common())
            code = CODE_OF_PARTS.format(parts=", ".join(_part_expressions(root, paths)))
            yield self._candidate(site, f"{len(found)} parts captured ({what}), each launched as one", code, *paths)

    def _graphed(self, scene: Scene, root: nn.Module, part: nn.Module) -> GraphedModule:
        kept = self._kept(scene, root)
        return kept.graphs.setdefault(id(part), GraphedModule(part, self.recorder, kept.pools))

    def _kept(self, scene: Scene, root: nn.Module) -> _Kept:
        """What was captured of the program with what is in place by now: with anything else it is another program."""
        held: dict[tuple[int, ...], _Kept] = scene.keep(("CUDA graphs of", id(root)), dict)
        beside = tuple(id(change) for change in scene.taken)
        if beside not in held:
            held.clear()  # a change in place holds its own graphs
            held[beside] = _Kept(Pools(self.recorder), {}, tuple(scene.taken))
        return held[beside]


class _Kept(NamedTuple):
    """Graphs of one module or of its parts, by ``id``."""

    pools: Pools
    graphs: dict[int, GraphedModule]
    beside: tuple[Change, ...]


def _parts_of(root: nn.Module, candidate: Candidate) -> list[nn.Module]:
    paths, held = str(candidate.option(PARTS, "")).split(), dict(root.named_modules())
    lost = next((path for path in paths if path not in held), None)
    if lost is not None:
        raise Impossible(f"there is no part {lost} in it")
    return [held[path] for path in paths] or [root]


def _part_expressions(root: nn.Module, paths: Sequence[str]) -> list[str]:
    """As a user writes them: one pattern for parts whose paths differ in indices only."""
    shapes: dict[str, list[str]] = {}
    for name, _ in root.named_modules():
        shapes.setdefault(re.sub(r"\d+", "*", name), []).append(name)
    found: dict[str, None] = {}
    for path in paths:
        shape = re.sub(r"\d+", "*", path)
        above = shape.removesuffix("*").removesuffix(".")
        if len(shapes[shape]) == 1 or not set(shapes[shape]) <= set(paths):
            text = f'model.get_submodule("{path}")'
        elif shape != above and "*" not in above:
            text = f"*model.{above}".rstrip(".")
        else:
            sought = re.escape(shape).replace(r"\*", r"\d+")
            text = f'*(m for name, m in model.named_modules() if re.fullmatch(r"{sought}", name))'
        found.setdefault(text)
    return list(found)


def _expected_s(scene: Scene, call_signatures: int) -> float:
    return LEAST_S * (1 + min(call_signatures, MAX_GRAPHS)) + RUNS * scene.wall


def _most_s(scene: Scene) -> float:
    """Seconds in which something is captured, or never: a capture that failed may leave a device that does not
    answer."""
    assert scene.budget is not None
    return _expected_s(scene, 0) + PARTS_SHARE * max(0.0, scene.budget.seconds_left)


def _run(scene: Scene, sample: Sample, impls: list[Impl]) -> None:
    """One call of a sample's module, with these in place beside what is; its state is as it was afterwards."""
    state, (args, kwargs) = State(sample.module), duplicate((sample.args, sample.kwargs))
    with contextlib.ExitStack() as stack:
        stack.callback(state.restore)
        stack.enter_context(in_place_of(sample))
        stack.enter_context(scene.in_place())
        stack.enter_context(Change(lambda: install_impls(impls)))
        sample.module(*args, **kwargs)


def _sizes(sample: Sample) -> object:
    flat, _ = pytree.tree_flatten((sample.args, sample.kwargs))
    return tuple(tuple(value.shape) for value in flat if isinstance(value, torch.Tensor))


OPTIMIZATION = _Optimization()
