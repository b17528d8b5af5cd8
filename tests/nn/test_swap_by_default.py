"""As users have it: kernels are chosen by tuning records, and a swap leaves what none of them says to be faster.
Whatever a module's weight is, the swap is made and taken back, and the model does what it did."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from kernelworks.dispatch import plans
from kernelworks.nn.swap import swap


class Mine(Tensor):
    """A subclass that is asked for nothing but to be there."""


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(8), nn.GELU(), nn.LazyLinear(4))


def with_weight(made: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    def module() -> nn.Module:
        layer = nn.Linear(8, 8, bias=False)
        layer.weight = nn.Parameter(made(layer.weight.detach()), requires_grad=False)
        return nn.Sequential(layer, nn.LayerNorm(8), nn.GELU())

    return module


def without(name: str) -> nn.Module:
    norm = nn.LayerNorm(8)
    setattr(norm, name, None)
    return norm


MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Softmax(-1), nn.RMSNorm(8)),
    "not made yet": lazy,
    "sparse": with_weight(lambda w: w.to_sparse_csr()),
    "transposed": with_weight(lambda w: w.t()),
    "negated": with_weight(lambda w: torch._neg_view(w)),
    "a subclass": with_weight(lambda w: w.as_subclass(Mine)),
    "of one dimension": with_weight(lambda w: w[0]),
    "none": lambda: without("weight"),
    "no bias": lambda: without("bias"),
    "computed": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)),
    "on no device": lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)).to("meta"),
    "of float64": lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)).double(),
    "quantized": lambda: torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 8), nn.GELU())),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_any_weight_is_swapped_by_the_tuning_records(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWORKS_CHOOSE", "timed")
    plans.forget_all()
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    results = []
    for swaps in (False, True):
        torch.manual_seed(1)
        model = MODELS[name]()
        some = next((p for p in model.parameters() if not nn.parameter.is_lazy(p)), x)
        given = x.to(some.device, some.dtype)
        done = swap(model, verbose=False) if swaps else None
        torch.manual_seed(2)
        found = [_result(model, given), _result(model, given)]
        if done is not None:
            done.undo()
        results.append([*found, _result(model, given)])
    plans.forget_all()
    for want, got in zip(*results, strict=True):
        if isinstance(want, Tensor):
            torch.testing.assert_close(got, want)
        else:
            assert got == want


def _result(model: nn.Module, x: Tensor) -> Tensor | str:
    try:
        return model(x)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
