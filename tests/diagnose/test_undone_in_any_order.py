"""Several plans on one model are undone in any order: each leaves nothing behind, and takes nothing of the others."""

from __future__ import annotations

import io
import itertools
import warnings
from typing import Any

import pytest
import torch
from planned import KINDS, Kind, X, close, models, plan_of
from torch import nn

import kernelworks as kw

COMPILED = {"backend": "eager"}
PLANS = {"folded": ["folded", "folded"], "cast": ["cast", "cast"], "int8 and cast": ["int8", "cast"]}


def plans_of(name: str, model: nn.Module) -> list[dict[str, Any]]:
    kinds = [KINDS[each] for each in PLANS[name]]
    of = kinds[0]._replace(make=type(model))
    compiled = Kind(type(model), "torch.compile", COMPILED, "", 0.0, (object, ""))
    return [plan_of(each._replace(make=of.make), model) for each in (*kinds, compiled, compiled)]


@pytest.mark.filterwarnings("ignore:kernelworks. not applied")
@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::3])
@pytest.mark.parametrize("name", PLANS)
def test_nothing_is_left_behind(name: str, order: tuple[int, ...]) -> None:
    kind = KINDS[PLANS[name][0]]
    model, plain = models(kind)
    before = [dict(part.__dict__) for part in model.modules()]
    applied = [kw.apply(plan, model) for plan in plans_of(name, model)]
    with torch.no_grad():
        for number in order:
            close(kind, model(X), plain(X))
            applied[number].undo()
        close(kind, model(X), plain(X))
    assert [dict(part.__dict__) for part in model.modules()] == before
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    with torch.no_grad():
        close(kind, torch.load(file, weights_only=False)(X), plain(X))


def test_a_swap_beneath_a_plan_is_undone_first() -> None:
    kind = KINDS["cast"]
    model, plain = models(kind)
    before = [dict(part.__dict__) for part in model.modules()]
    swapped = kw.swap(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        applied = kw.apply(plan_of(kind, model), model)
    again = kw.apply(plan_of(Kind(type(model), "torch.compile", COMPILED, "", 0.0, (object, "")), model), model)
    swapped.undo()
    with torch.no_grad():
        close(kind, model(X), plain(X))
    torch.save(model, io.BytesIO())
    applied.undo()
    again.undo()
    assert [dict(part.__dict__) for part in model.modules()] == before
