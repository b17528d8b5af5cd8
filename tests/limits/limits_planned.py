"""What a plan leaves as it is: what must see torch's own operators, and what cannot be kept."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from limit import Limit
from planned import KINDS, Kind, X, models, plan_of
from torch import Tensor, nn

import kernelworks as kw


class Elsewhere(nn.Module):
    """A norm that another function calls than the method that calls its convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        made = self.conv(x)
        made = made + 0.0
        return self.norm(made)  # type: ignore[no-any-return]


class Writing(nn.Module):
    """Code of which nobody knows what it writes, between two projections."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x)
        print(end="")
        return q + self.k(x)  # type: ignore[no-any-return]


def after(name: str, change: Any) -> tuple[Any, Any]:
    """What a model under a plan gives after a change, and what one without a plan does."""
    model, plain = models(KINDS[name])
    with torch.no_grad(), kw.apply(plan_of(KINDS[name], model), model):
        model(X)
        for each in (model, plain):
            change(each.get_submodule(KINDS[name].first))
        return model(X), plain(X)


def left(cls: type[nn.Module], optimization: str, options: dict[str, Any]) -> str:
    kind = Kind(cls, optimization, options, "", 0.0, (object, ""))
    model, _ = models(kind)
    return str(kw.apply(plan_of(kind, model), model))


def traced() -> tuple[Any, Any]:
    model, plain = models(KINDS["folded"])
    with torch.no_grad(), kw.apply(plan_of(KINDS["folded"], model), model):
        made = torch.jit.trace(model, (X,), check_trace=False)
        state = {n: t + 0.5 if t.is_floating_point() else t for n, t in plain.state_dict().items()}
        for each in (made, plain):
            each.load_state_dict(state)
        return made(X), plain(X)


def not_on_a_gpu() -> str:
    from kernelworks.diagnose.optimization import Scene
    from kernelworks.diagnose.optimizations import cast_weights
    from kernelworks.diagnose.sites.modules import Roots, Sample

    class OnGpu(Scene):
        on_gpu = True  # type: ignore[assignment]

    model, _ = models(KINDS["cast"])
    sample = Sample(model, (X,), {}, inference=False, autocast={"cpu": torch.bfloat16})
    here, there = (
        list(cast_weights.OPTIMIZATION.candidates(s(Roots((model,), (sample,), fresh=False)))) for s in (Scene, OnGpu)
    )
    return "no candidate" if here and not there else ""


def on_a_gpu() -> str:
    """As if the host could not read the bytes."""
    from transformers import masking_utils

    from kernelworks.build import digest
    from kernelworks.nn import attention_masks

    with mock.patch.object(digest, "readable", lambda tensors: False):
        mask: Any = attention_masks.mask_function(
            1, 8, 8, 0, 0, masking_utils.causal_mask_function, allow_is_causal_skip=False
        )  # fmt: skip
        mask.data.zero_()
        return "taken for causal" if attention_masks.pattern_of(mask) is not None else ""


PLANS = [
    Limit(
        "What a plan derives from weights (a folded norm, a weight cast once or in int8) is valid for the same "
        "tensors, bytes and attributes only. Each call checks them; if one changed, in whatever way, the value is "
        "derived anew, or the module's own code runs.",
        lambda: after("folded", lambda part: part.weight.data.mul_(2)),
    ),
    Limit(
        "The bytes of a GPU's tensors are not read, because the host would wait: norms are folded in each call there, "
        "and weights are not cast once.",
        not_on_a_gpu, says="no candidate",
    ),
    Limit(
        "Compilers, traces, exports, transforms of torch.func and modes see the modules' own operators: their results "
        "hold none of a plan's weights.",
        traced,
    ),
    Limit(
        "A norm is folded if a method, in the source that runs, calls it on the product's result and on nothing else, "
        "or an nn.Sequential has one after the other. A part that is called by itself, has a hook or was exchanged is "
        "torch's own.",
        lambda: left(Elsewhere, "folded norms", {"pairs": [["conv", "norm"]]}),
        says="no method of Elsewhere calls the one",
    ),
    Limit(
        "Projections are merged if one method passes one variable to all of them, and nothing between them may write.",
        lambda: left(Writing, "merged projections", {"groups": [["q", "k"]]}),
        says="no method of Writing passes one variable to all of q, k",
    ),
    Limit(
        "On a GPU a mask of transformers that is written through `.data` before it reaches a swapped layer is taken "
        "for what it was: only its version counter is read, and `.data` does not move it.",
        on_a_gpu, says="taken for causal",
    ),
]  # fmt: skip
