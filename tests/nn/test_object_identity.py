"""What a forward compares or hands on is the object that its author means; what it is given lies as torch's would."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from eligible import KERNELS, only
from torch import Tensor, nn
from torch.nn.functional import gelu

import kernelworks as kw
from kernelworks.nn import functional

TABLE = {F.gelu: 2.0}


class ByIdentity(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = F.gelu

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x) if self.act is F.gelu else -x


class ByTwoNames(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return gelu(x) if gelu is torch.nn.functional.gelu else -x


class InATable(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x) * TABLE.get(F.gelu, -1.0)


class AmongOthers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = F.gelu

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x) if self.act in (F.relu, F.gelu) else -x


class ByAnotherName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = F.gelu

    def forward(self, x: Tensor) -> Tensor:
        act = F.gelu
        return act(x) if act == self.act else -x


class TheModule(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        where = F
        return F.gelu(x) if where is torch.nn.functional else -x


class WithoutSource(nn.Module):
    act = staticmethod(F.gelu)
    exec("def forward(self, x):\n    return F.gelu(x) if self.act is F.gelu else -x\n")


KEEPING = [ByIdentity, ByTwoNames, InATable, AmongOthers, ByAnotherName, TheModule, WithoutSource]


@pytest.mark.parametrize("kind", KEEPING)
def test_the_object_is_the_one_that_is_meant(kind: type[nn.Module]) -> None:
    model, x = kind(), torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    want = model(x)
    with only(KERNELS[-1]), kw.swap(model, verbose=False):
        torch.testing.assert_close(model(x), want)


class Calling(nn.Module):
    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        y = x if y is None else y
        kind = torch.float32 if x.dtype is torch.float32 else x.dtype
        return F.gelu(x).to(kind) + torch.nn.functional.softmax(y, dim=-1) * (1 if x.dim() == 2 else 2)


def test_a_forward_that_compares_other_things_is_still_swapped() -> None:
    with only(KERNELS[-1]) as taken, kw.swap(model := Calling(), verbose=False):
        model(torch.randn(3, 8))
    assert taken == {("gelu", "forward"), ("softmax", "forward")}


def laid_out(kind: str, B: int, H: int, L: int, D: int) -> Tensor:
    if kind == "rows of heads":
        return torch.randn(B, L, H, D).transpose(1, 2)
    if kind == "one of three":
        return torch.randn(B, L, H, 3, D)[:, :, :, 1].transpose(1, 2)
    if kind == "every other":
        return torch.randn(B, H, L, 2 * D + 1)[..., 1::2]
    if kind == "every other of rows of heads":
        return torch.randn(B, L, 2 * H * D)[..., ::2].unflatten(-1, (H, D)).transpose(1, 2)
    return torch.randn(B, H, L, D)


@pytest.mark.parametrize("kind", ["", "rows of heads", "one of three", "every other", "every other of rows of heads"])
def test_what_torchs_attention_lets_be_viewed_may_be_viewed(kind: str) -> None:
    with only(KERNELS[-1]):
        for B, H, L, S, D in itertools.product((1, 2), (1, 4), (1, 5), (1, 5), (1, 3, 8)):
            q, k, v = laid_out(kind, B, H, L, D), laid_out(kind, B, H, S, D), laid_out(kind, B, H, S, D)
            for more in ({}, {"is_causal": True}, {"attn_mask": torch.ones(L, S, dtype=torch.bool)}):
                if F.scaled_dot_product_attention(q, k, v, **more).is_contiguous():
                    assert functional.scaled_dot_product_attention(q, k, v, **more).is_contiguous()


def test_what_torch_jit_script_made_is_left() -> None:
    import transformers.models.llama.modeling_llama  # noqa: F401  then decoder layers are looked for

    model = nn.Sequential(torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.SiLU())), nn.Linear(4, 4))
    x = torch.randn(2, 4)
    want = model(x)
    with kw.swap(model, verbose=False) as swapped:
        torch.testing.assert_close(model(x), want)
    assert [r.path for r in swapped.replaced] == ["1"]
    assert {item.reason for item in swapped.left} == {"torch.jit.script compiled it"}


def test_a_linear_layer_without_a_weight_is_refused_as_torch_refuses_it() -> None:
    model = nn.Linear(4, 4)
    model.weight = None
    with kw.swap(model, verbose=False), pytest.raises(TypeError, match="must be Tensor, not NoneType"):
        model(torch.randn(2, 4))


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("keys", [1, 6])
def test_masked_attention_lies_as_torchs_does(keys: int, graded: bool) -> None:
    class Attends(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(x, x, x, mask)

    plain, mask = torch.randn(2, 3, 6, 8), torch.ones(2, 1, keys, 6, dtype=torch.bool)
    for x in (plain, plain.transpose(1, 2).contiguous().transpose(1, 2), torch.cat((plain, plain), -1)[..., ::2]):
        x = x.detach().requires_grad_(graded)
        model = Attends()
        want = model(x, mask)
        with only(KERNELS[-1]), kw.swap(model, verbose=False):
            got = model(x, mask)
        torch.testing.assert_close(got, want)
        assert got.is_contiguous() or not want.is_contiguous()


@pytest.mark.parametrize("copied", [False, True])
def test_a_model_with_a_script_in_it_is_swapped(copied: bool) -> None:
    """Beside transformers, whose models are looked for among all modules; the modules of a script are in no
    dictionary."""
    import transformers  # noqa: F401

    model = nn.Sequential(torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.GELU())), nn.GELU())
    model = copy.deepcopy(model) if copied else model
    x = torch.ones(2, 4)
    want = model(x)
    with only(KERNELS[-1]), kw.swap(model, verbose=False):
        torch.testing.assert_close(model(x), want)


def test_a_copy_of_a_module_that_was_parametrized_after_the_swap_is_called() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.GELU()), torch.ones(2, 4)
    with only(KERNELS[-1]), kw.swap(model, verbose=False):
        nn.utils.parametrizations.weight_norm(model[0])
        want, copied = model(x), copy.deepcopy(model)
        torch.testing.assert_close(copied(x), want)
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(copied(x), model(x))
