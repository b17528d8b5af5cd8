"""A plan in place never serves an old answer: whatever becomes of a model's weights, statistics, attributes, parts and
hooks after it was applied, the model answers as one to which the same was done without a plan.

Every optimization that derives something from weights gets every edit.
"""

from __future__ import annotations

import pytest
import torch
from planned import EDITS, KINDS, OF_NORMS, Served, X, close, models, plan_of
from torch import nn

import kernelworks as kw

CASES = [(kind, edit) for kind in KINDS for edit in EDITS] + [("folded", edit) for edit in OF_NORMS]


@pytest.mark.parametrize(("name", "edit"), CASES)
@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_after_every_edit_the_answer_is_the_edited_models(
    name: str, edit: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = KINDS[name]
    (model, plain), served = models(kind), Served(kind, monkeypatch)
    change = (EDITS | OF_NORMS)[edit]
    with kw.apply(plan_of(kind, model), model) as applied:
        assert applied.done and not applied.failed
        with getattr(torch, mode)():
            close(kind, model(X), plain(X))
            assert served.times, "the optimization is not at work, and this test would say nothing"
        with torch.no_grad() if edit != "trained" else torch.enable_grad():
            for each in (model, plain):
                change(each, each.get_submodule(kind.first))
        with getattr(torch, mode)():
            for _ in range(2):
                close(kind, model(X), plain(X))
    with torch.no_grad():
        close(kind._replace(tolerance=1e-5), model(X), plain(X))


@pytest.mark.parametrize("name", KINDS)
def test_addresses_are_given_again_to_other_weights(name: str) -> None:
    kind = KINDS[name]
    model, plain = models(kind)
    part, other = model.get_submodule(kind.first), plain.get_submodule(kind.first)
    values = [torch.randn_like(part.weight) for _ in range(30)]
    with kw.apply(plan_of(kind, model), model), torch.no_grad():
        for value in values:
            part.weight = None
            part.weight = nn.Parameter(value.clone())
            got = model(X)
            other.weight = nn.Parameter(value)
            close(kind, got, plain(X))


@pytest.mark.parametrize("name", KINDS)
def test_each_part_called_alone_is_torchs_own(name: str) -> None:
    kind = KINDS[name]
    model, plain = models(kind)
    with kw.apply(plan_of(kind, model), model), torch.no_grad():
        model(X)
        for path, part in plain.named_children():
            if name != "int8":
                close(kind, model.get_submodule(path)(X), part(X))
        if name == "merged":  # values of an earlier call wait for nobody
            x = X.clone()
            model.q(x)
            model.k.weight.data.mul_(2)
            plain.k.weight.data.mul_(2)
            close(kind, model.k(x), plain.k(x))
            model.q(x)
            x.numpy()[...] = 1.0
            close(kind, model.v(x), plain.v(x))
        if name == "folded":
            close(kind, model.norm(model.conv(X).clone()), plain.norm(plain.conv(X)))


@pytest.mark.parametrize("name", ["folded", "merged", "cast"])
@pytest.mark.parametrize("frozen", ["all", "weights", "none"])
def test_gradients_are_as_without_a_plan(name: str, frozen: str) -> None:
    """Also where it was first used in inference mode, whose tensors autograd does not take."""
    kind = KINDS[name]
    model, plain = models(kind)
    with kw.apply(plan_of(kind, model), model):
        with torch.inference_mode():
            model(X)
        for each in (model, plain):
            for path, parameter in each.named_parameters():
                parameter.requires_grad_(frozen == "none" or (frozen == "weights" and path.endswith("bias")))
        for wanted in (True, False) if frozen != "all" else (True,):
            given = [X.clone().requires_grad_(wanted) for _ in range(2)]
            for each, x in zip((model, plain), given, strict=True):
                each.zero_grad()
                each(x).float().square().sum().backward()
            if wanted:
                torch.testing.assert_close(given[0].grad, given[1].grad, rtol=1e-3, atol=1e-3)
            for (path, p), (_, other) in zip(model.named_parameters(), plain.named_parameters(), strict=True):
                assert (p.grad is None) == (other.grad is None), path
                if p.grad is not None:
                    torch.testing.assert_close(p.grad, other.grad, rtol=1e-3, atol=1e-3)
