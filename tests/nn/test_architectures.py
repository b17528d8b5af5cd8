"""Architectures of transformers after a swap: as near to float64 as before it, and after undo the same bits."""

from __future__ import annotations

import copy
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import transformers
from architectures import ARCHITECTURES, Architecture, floats
from eligible import KERNELS, only
from torch import Tensor, nn

from kernelworks.nn.swap import swap

ROUNDINGS = 64 * 2.0**-24  # of the largest value of a tensor: what an error may be where the original's happens to be 0
FACTOR = 4.0
DROPPED = 2048 * 2.0**-24  # between two float32 runs of a model with the same dropout; another mask is far beyond it


# Tried with the widest kernels that run here: between them the ops of most programs. What is asked of all others, for
# which there is `make test-all`, is what a swap puts in the places of their modules.
WIDEST = ("LlamaForCausalLM", "BertForSequenceClassification")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("kernel", KERNELS if metafunc.config.getoption("--all") else KERNELS[-1:])


def double(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}


def step(model: nn.Module, inputs: dict[str, Tensor], trains: bool) -> dict[str, Tensor]:
    """What a call gives, by name: the outputs in inference, and of a training step the loss and every gradient."""
    model.eval()
    found: dict[str, Tensor] = {}
    with torch.no_grad():
        given = {k: v for k, v in inputs.items() if k != "labels"}
        found |= {f"output {i}": t for i, t in enumerate(floats(model(**given)))}
    if trains:
        model.zero_grad()
        with torch.enable_grad():
            loss = model(**inputs).loss
            loss.backward()
        found["loss"] = loss.detach()
        found |= {f"gradient of {n}": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return found


def generated(model: nn.Module, inputs: dict[str, Tensor]) -> list[list[int]]:
    """Tokens said greedily and by beams."""
    given = {k: v for k, v in inputs.items() if k in ("input_ids", "attention_mask")}
    ways: tuple[dict[str, int], ...] = ({}, {"num_beams": 3})
    said = [model.generate(**given, **way, max_new_tokens=5, do_sample=False) for way in ways]
    return [row for tokens in said for row in tokens.tolist()]


def with_dropout(model: nn.Module, inputs: dict[str, Tensor]) -> list[Tensor]:
    """The outputs in training mode, with the same random numbers each time."""
    model.train()
    transformers.set_seed(3)
    with torch.no_grad():
        return floats(model(**{k: v for k, v in inputs.items() if k != "labels"}))


def judge(true: dict[str, Tensor], before: dict[str, Tensor], after: dict[str, Tensor]) -> list[str]:
    """What is worse than it was: by name, and by how much."""
    assert true.keys() == before.keys() == after.keys()
    wrong = []
    for name, want in true.items():
        allowed = FACTOR * error(before[name], want) + ROUNDINGS * size_of(name, true)
        if not error(after[name], want) <= allowed:
            wrong.append(f"{name}: error {error(after[name], want):.1e}, before {error(before[name], want):.1e}")
    return wrong


def size_of(name: str, true: dict[str, Tensor]) -> float:
    """The largest value of a tensor. A bias's gradient is the sum of what, times inputs, makes its weight's: that of an
    attention's keys is 0 and all of it rounding, which those terms are the measure of."""
    beside = f"{name.removesuffix('.bias')}.weight"
    return max(float(true[n].abs().nan_to_num().max()) for n in (name, beside) if n in true)


def error(got: Tensor, want: Tensor) -> float:
    if got.shape != want.shape or not torch.equal(got.isfinite(), want.isfinite()):
        return float("inf")
    return float((got.double() - want).abs().nan_to_num(0.0, 0.0, 0.0).max()) if got.numel() else 0.0


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
def test_as_near_to_the_reference_as_before(
    architecture: Architecture, kernel: str, request: pytest.FixtureRequest
) -> None:
    generator = torch.Generator().manual_seed(1)
    inputs = architecture.inputs(generator)
    trains = architecture.labels is not None
    if architecture.labels is not None:
        inputs |= architecture.labels(generator)
    model = architecture.make()
    exact = copy.deepcopy(model).double()
    exact.set_experts_implementation("eager")  # torch's grouped products take no float64
    true = step(exact, double(inputs), trains)
    before = step(model, inputs, trains)
    said = generated(model, inputs) if architecture.generates else []
    dropped = with_dropout(model, inputs)
    plainly = architecture.name not in WIDEST and not request.config.getoption("--all")
    with only(kernel, plainly=plainly) as taken:
        swapped = swap(model, verbose=False)
        after = step(model, inputs, trains)
        says = generated(model, inputs) if architecture.generates else []
        now_dropped = with_dropout(model, inputs)
        swapped.undo()
    assert judge(true, before, after) == []
    assert says == said
    for was, now in zip(dropped, now_dropped, strict=True):
        assert error(now, was.double()) <= DROPPED * float(was.abs().nan_to_num().max())
    assert ("linear", "forward") in taken
    again = step(model, inputs, trains)
    assert [name for name in before if not torch.equal(again[name], before[name])] == []
