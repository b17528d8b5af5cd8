"""The lines that have an optimization's effect in the source do what they say, as they stand: they are run here."""

from __future__ import annotations

import ast
import copy
import math
from typing import Any

import pytest
import torch
from optimization_stands import X, asked, attending, candidates, net, scene_of, trained
from torch import Tensor, nn

from kernelworks.diagnose.fix.patch import _clipping
from kernelworks.diagnose.fix.source_edit import Source
from kernelworks.diagnose.optimizations import (
    channels_last,
    fewer_bits,
    folded_norms,
    gradient_clipping,
    merged_projections,
)


def test_every_norm_is_folded_whatever_comes_before_it() -> None:
    model = net()
    (candidate,) = candidates(folded_norms.OPTIMIZATION, scene_of(asked(model)))
    with torch.no_grad():
        want = model(X)
        exec(candidate.code, {"model": model, "torch": torch})
        torch.testing.assert_close(model(X), want, rtol=1e-4, atol=1e-5)
    norms = [part for part in model.modules() if isinstance(part, (nn.BatchNorm1d, nn.BatchNorm2d))]
    assert norms == [model.after], "the one whose input is read twice is left"


@pytest.mark.parametrize("bias", [True, False])
def test_merged_products_have_their_biases(bias: bool) -> None:
    model: Any = attending(bias=bias)
    (candidate,) = candidates(merged_projections.OPTIMIZATION, scene_of(asked(model)))
    x = X.reshape(-1, 8)
    space = {"self": model, "torch": torch, "x": x}
    exec(candidate.code, space)
    for name in ("query", "key", "value"):
        torch.testing.assert_close(space[name], getattr(model, name)(x))


class Volumes(nn.Module):
    def __init__(self, *, flat: bool) -> None:
        super().__init__()
        self.conv3 = nn.Conv3d(3, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1) if flat else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv3(x)
        return self.conv2(y[:, :, 0]) if isinstance(self.conv2, nn.Conv2d) else y


@pytest.mark.parametrize("flat", [True, False])
def test_convolutions_of_volumes_are_laid_out_in_their_own_format(flat: bool) -> None:
    model = Volumes(flat=flat).eval()
    (candidate,) = candidates(channels_last.OPTIMIZATION, scene_of(asked(nn.Sequential(Deep(), model))))
    exec(candidate.code, {"model": model, "torch": torch})
    assert model.conv3.weight.is_contiguous(memory_format=torch.channels_last_3d)
    assert not flat or model.conv2.weight.is_contiguous(memory_format=torch.channels_last)


class Deep(nn.Module):
    """Pictures, as ones of one plane more."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, None].expand(-1, -1, 4, -1, -1)


@pytest.mark.parametrize("value", [1e-2, 10.0, math.nan, math.inf])
@pytest.mark.parametrize("norm_type", [2.0, 1.0, math.inf])
def test_gradients_are_clipped_as_torch_does(value: float, norm_type: float) -> None:
    layers = [nn.Linear(3, 3) for _ in range(2)]
    for layer in layers:
        layer.weight.grad, layer.bias.grad = torch.ones(3, 3), torch.ones(3)
        layer.weight.grad[0, 0] = value
    torch.nn.utils.clip_grad_norm_(layers[0].parameters(), 5.0, norm_type)
    seen = gradient_clipping.Clipping((), norm_type, False, None, False)
    candidate = gradient_clipping.OPTIMIZATION._candidate(gradient_clipping.SCALED, [seen])
    exec(candidate.code, {"model": layers[1], "torch": torch, "max_norm": 5.0})
    for one, other in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, equal_nan=True)


@pytest.mark.parametrize("given", ["model.parameters()", "held", "model.weight", "[model.weight]"])
@pytest.mark.parametrize("value", [10.0, math.nan])
def test_a_patch_clips_what_can_be_read_once(given: str, value: float, tmp_path: Any) -> None:
    """Parameters by a name may be a generator's: one that the norm has read is empty for the scaling."""
    layers = [nn.Linear(3, 3) for _ in range(2)]
    for layer in layers:
        layer.weight.grad, layer.bias.grad = torch.full((3, 3), value), torch.ones(3)
    file = tmp_path / "theirs.py"
    file.write_text(f"clip({given}, 5.0)\n")
    source = Source(file)
    lines, norm = _clipping(next(n for n in ast.walk(source.tree) if isinstance(n, ast.Call)), source)
    spaces = [{"model": each, "held": each.parameters(), "torch": torch} for each in layers]
    exec("\n".join(lines(norm)), spaces[0])
    torch.nn.utils.clip_grad_norm_(eval(given, spaces[1]), 5.0)
    for one, other in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, equal_nan=True)


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        logits = self.out(x.reshape(-1, 8))
        return {"logits": logits, "best": logits.argmax(-1), "wide": x.double()}


def test_bfloat16_by_autocast_leaves_other_dtypes() -> None:
    model = Several().eval()
    want = model(X)
    found = [c for c in fewer_bits.OPTIMIZATION.candidates(scene_of(asked(copy.deepcopy(model)))) if "bf" in c.changes]
    exec(found[0].code, {"model": model, "torch": torch})
    got = model(X)
    assert {n: t.dtype for n, t in got.items()} == {n: t.dtype for n, t in want.items()}
    assert not torch.equal(got["logits"], want["logits"])
    torch.testing.assert_close(got["logits"], want["logits"], rtol=0.05, atol=0.05)


def test_candidates_of_a_program_say_the_norm_that_it_clips_by() -> None:
    case = trained(net())

    def run() -> Any:
        loss = case.model(X).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(case.model.parameters(), 1e3, norm_type=math.inf)
        return loss.detach()

    (candidate,) = gradient_clipping.OPTIMIZATION.candidates(scene_of(case._replace(run=run)))
    assert 'get_total_norm(grads, norm_type=float("inf"))' in candidate.code
