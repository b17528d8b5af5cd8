"""What is written through ``.data`` or NumPy, which bump no version: into masks, parameters that a search puts back,
and weights that were laid out anew."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import masking_utils

from kernelworks.diagnose.optimizations.channels_last import relaid
from kernelworks.diagnose.snapshot import State
from kernelworks.nn import attention_masks, eager_attention

WRITES: dict[str, Callable[[Tensor], object]] = {
    "data": lambda t: t.data[..., 0].logical_not_() if t.dtype is torch.bool else t.data[..., 0].neg_(),
    "NumPy": lambda t: t.detach().numpy().__setitem__((..., 0), 0),
    "other data": lambda t: setattr(t, "data", torch.zeros_like(t)),
    "transposed where it lies": lambda t: setattr(t, "data", t.data.mT),
    "in place": lambda t: t.detach().zero_(),
}


def mask() -> Tensor:
    made = attention_masks.mask_function(1, 8, 8, 0, 0, masking_utils.causal_mask_function, allow_is_causal_skip=False)
    assert made is not None
    return made


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("inference", [False, True])
def test_a_mask_that_was_written_has_no_pattern(write: str, inference: bool) -> None:
    with torch.inference_mode(inference):
        made = mask()
        assert attention_masks.pattern_of(made) is not None
        WRITES[write](made)
        assert attention_masks.pattern_of(made) is None


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("inference", [False, True])
def test_what_is_added_for_a_mask_is_of_the_mask_as_it_is(write: str, inference: bool) -> None:
    with torch.inference_mode(inference):
        made = mask()
        eager_attention._added(made, torch.float32)
        WRITES[write](made)
        want = torch.where(made, 0.0, torch.finfo(torch.float32).min)
        assert torch.equal(eager_attention._added(made, torch.float32), want)
        assert torch.equal(eager_attention._added(made, torch.float32), want)


@pytest.mark.parametrize("write", WRITES)
def test_what_a_run_wrote_into_parameters_is_put_back(write: str) -> None:
    model = nn.Linear(4, 4)
    before = {n: (t.clone(), t.data_ptr(), t.stride()) for n, t in model.state_dict(keep_vars=True).items()}
    state = State(model)
    with torch.no_grad():
        WRITES[write](model.weight)
    state.restore()
    for name, tensor in model.state_dict(keep_vars=True).items():
        value, at, strides = before[name]
        assert torch.equal(tensor, value) and (tensor.data_ptr(), tensor.stride()) == (at, strides)


def test_weights_of_another_dtype_by_then_stay_so() -> None:
    """A model that was made double while its channels lay last."""
    model, x = nn.Conv2d(4, 4, 3), torch.randn(1, 4, 5, 5, dtype=torch.float64)
    back = relaid([model.weight], [], {})
    model.double()
    with torch.no_grad():
        model.weight.add_(1e-12)
    want = model.weight.detach().clone()
    back()
    assert model.weight.dtype is torch.float64 and torch.equal(model.weight, want) and model.weight.is_contiguous()
    model(x)
