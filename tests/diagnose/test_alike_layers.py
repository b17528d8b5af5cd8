"""Layers of a kind that a function calls one after another are compiled as one."""

from __future__ import annotations

import pytest
import torch
from optimization_stands import Case, scene_of
from torch import Tensor, nn
from torch._dynamo.utils import counters

import kernelworks as kw
from kernelworks.diagnose.fix.order import TRIALS, trial_of
from kernelworks.diagnose.fix.plan import as_plan
from kernelworks.diagnose.optimization import Candidate, Change, Impossible, Scene
from kernelworks.diagnose.optimizations.alike_layers import ALIKE, changed_roots, layers_at
from kernelworks.diagnose.optimizations.compiler_settings import IMPL
from kernelworks.diagnose.optimizations.torch_compile import OPTIMIZATION as COMPILE

LAYERS, WIDTH = 5, 8
X = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(0))


class Layer(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x).tanh()


def program(layers: list[nn.Module]) -> Case:
    def run() -> Tensor:
        x = X
        with torch.no_grad():
            for layer in layers:
                x = layer(x)
        return x

    return Case(nn.Sequential(*layers), run)


def compiled_of(layers: list[nn.Module]) -> tuple[Scene, list[Candidate]]:
    scene = scene_of(program(layers))
    scene.walls = (1e-6,)  # each layer is worth it
    return scene, list(COMPILE.candidates(scene))


def eager(candidate: Candidate) -> Candidate:
    """Traced by dynamo, without a code generator."""
    options = (("backend", "eager"), (ALIKE, candidate.option(ALIKE)))
    return Candidate(candidate.optimization, candidate.site, candidate.says, options=options)


def test_five_layers_are_one_candidate_of_each_mode_and_one_graph() -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = [Layer().eval() for _ in range(LAYERS)]
    scene, found = compiled_of(layers)
    assert {one.option(ALIKE) for one in found} == {LAYERS} and len({one.options for one in found}) == len(found)
    assert trial_of(found[0]) is TRIALS["torch.compile alike"] and "5 Layer" in found[0].says
    assert changed_roots(scene, found[0]).modules == tuple(layers)
    assert len(changed_roots(scene, found[0]).samples) == LAYERS
    torch._dynamo.reset()
    counters.clear()
    change: Change = COMPILE.apply(scene, eager(found[0]))
    expected = program(layers).run()
    with change:
        assert all(layer.__dict__.get(IMPL) is not None for layer in layers)
        assert torch.equal(program(layers).run(), expected)
    assert counters["stats"]["unique_graphs"] == 1 and not any(layer.__dict__.get(IMPL) for layer in layers)


def test_two_of_a_kind_and_layers_of_other_sizes_are_compiled_by_themselves() -> None:
    mixed: list[nn.Module] = [Layer(), Layer(), nn.Linear(WIDTH, WIDTH)]
    _, found = compiled_of(mixed)
    assert found and not any(one.option(ALIKE) for one in found)
    broad: list[nn.Module] = [Layer(1), Layer(1), Layer(1), Layer(), Layer()]
    _, found = compiled_of(broad)
    assert {one.option(ALIKE) for one in found} == {3, None}
    layers = [Layer() for _ in range(3)]
    layers[1].compile(backend="eager")
    _, found = compiled_of(list(layers))
    assert not any(one.option(ALIKE) for one in found)


def test_a_plan_waits_for_the_last_layer_and_undoes_all_of_it() -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = [Layer().eval() for _ in range(LAYERS)]
    scene, found = compiled_of(layers)
    plan = as_plan([eager(found[0])], scene.roots, program="theirs", kind="here", saves=0.5)
    case = program(layers)
    expected = case.run()
    with kw.apply(plan) as placed:
        assert placed.waiting and torch.equal(case.run(), expected)
        assert not placed.waiting and not placed.failed
        assert all(layer.__dict__.get(IMPL) is not None for layer in layers) and torch.equal(case.run(), expected)
    assert not any(layer.__dict__.get(IMPL) for layer in layers)
    fewer = scene_of(program(layers[:3]))
    with pytest.raises(Impossible):
        layers_at(fewer, found[0])
