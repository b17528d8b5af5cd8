"""A module that a program reaches in two ways is swapped once, and compared under the outermost that holds it."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration

from kernelworks.diagnose.sites.modules import SwappedModules, find_roots

X = torch.randn(3, 8)


class Tower(nn.Module):
    def __init__(self, shared: nn.Module | None = None) -> None:
        super().__init__()
        self.shared = shared if shared is not None else nn.Linear(8, 8)
        self.own = nn.Linear(8, 8)

    def forward(self, x):
        return self.own(self.shared(x))


def part_then_whole(fresh: bool):
    made = Tower()

    def program():
        tower = Tower() if fresh else made
        tower.shared(X)
        return tower(X)

    return program


def whole_then_part(fresh: bool):
    made = Tower()

    def program():
        tower = Tower() if fresh else made
        tower(X)
        return tower.shared(X)

    return program


def two_towers(fresh: bool):
    kept = nn.Linear(8, 8)
    made = Tower(kept), Tower(kept)

    def program():
        shared = nn.Linear(8, 8)
        for tower in (Tower(shared), Tower(shared)) if fresh else made:
            tower(X)

    return program


def a_part_of_two(fresh: bool):
    made = Tower()

    def program():
        first = Tower() if fresh else made
        first.shared(X)
        Tower(first.shared)(X)
        first(X)

    return program


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("make", [part_then_whole, whole_then_part, two_towers, a_part_of_two])
@torch.no_grad()
def test_modules_reached_in_two_ways(make, fresh) -> None:
    program = make(fresh)
    roots = find_roots(program)
    for root in roots.modules:
        assert not any(root is m for other in roots.modules if other is not root for m in other.modules())
    assert all(any(s.module is m for m in roots.modules) for s in roots.samples) and roots.samples
    with SwappedModules(roots) as swapped:
        program()
        linears = [r for s in swapped.swaps for r in s.replaced]
        assert len(linears) >= 2
        modules = [m for s in swapped.swaps for m in s.model.modules() if "forward" in vars(m)]
    assert not any("forward" in vars(m) for m in modules)
    program()


@torch.no_grad()
def test_an_encoder_that_generate_calls_by_itself() -> None:
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "vocab_size": 50}
    model = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)).eval()

    def program():
        return model.generate(torch.arange(1, 6)[None], max_new_tokens=4, do_sample=False)

    want = program()
    roots = find_roots(program)
    assert roots.modules == (model,)
    with SwappedModules(roots):
        assert torch.equal(program(), want)
