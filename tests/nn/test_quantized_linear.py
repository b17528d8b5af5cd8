"""QuantizedLinear: the bytes are the parameter."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import kernelworks as kw
from kernelworks.contract.packed_formats import FORMATS


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("bias", [True, False])
def test_it_maps_as_its_dequantized_weight(format: str, bias: bool) -> None:
    linear = nn.Linear(256, 12, bias=bias)
    module = kw.nn.QuantizedLinear.from_linear(linear, format=format)
    x = torch.randn(5, 256, requires_grad=True)
    torch.testing.assert_close(module(x), nn.functional.linear(x, module.dequantized_weight(), linear.bias))
    module(x).sum().backward()
    assert x.grad is not None and module.weight.grad is None
    error = (module.dequantized_weight() - linear.weight).abs().max() / linear.weight.abs().max()
    # Of few bits the largest of the other sign is off by an eighth.
    assert error < {"Q8_0": 0.005, "Q5_1": 0.06, "Q5_K": 0.06, "Q6_K": 0.06}.get(format, 0.127)


def test_state_dict_copies_and_pickles() -> None:
    module = kw.nn.QuantizedLinear.from_linear(nn.Linear(96, 7), format="Q4_0")
    x = torch.randn(2, 96)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(other(x), module(x), rtol=0, atol=0)
    fresh = kw.nn.QuantizedLinear(96, 7, format="Q4_0")
    assert not fresh(x).any()
    fresh.load_state_dict(module.state_dict())
    torch.testing.assert_close(fresh(x), module(x), rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        kw.nn.QuantizedLinear(96, 7, format="Q8_0").load_state_dict(module.state_dict())


def test_nothing_outlives_a_change_of_the_bytes() -> None:
    module, other = (kw.nn.QuantizedLinear.from_linear(nn.Linear(64, 8), format="Q8_0") for _ in range(2))
    x = torch.randn(3, 64)
    module(x), other(x)
    module.weight.data.copy_(other.weight.data)
    module.bias.data.copy_(other.bias.data)
    torch.testing.assert_close(module(x), other(x), rtol=0, atol=0)
    module.weight.data[:] = 0
    torch.testing.assert_close(module(x), module.bias.expand(3, -1), rtol=0, atol=0)


def test_other_dtypes_and_optimizers() -> None:
    module = kw.nn.QuantizedLinear.from_linear(nn.Linear(64, 8)).bfloat16()
    assert module.weight.dtype == torch.uint8
    assert module(torch.randn(2, 64).bfloat16()).dtype == torch.bfloat16
    assert module(torch.randn(2, 64)).dtype == torch.float32  # as under autocast
    before = module.weight.clone()
    module(torch.randn(2, 64).bfloat16()).sum().backward()
    torch.optim.AdamW(module.parameters(), lr=1.0).step()
    assert torch.equal(module.weight, before)


def test_what_it_refuses() -> None:
    with pytest.raises(ValueError, match="in_features must be a multiple of 32, the block of Q8_0; got 33"):
        kw.nn.QuantizedLinear(33, 4)
    with pytest.raises(ValueError, match="format must be 'Q8_0'"):
        kw.nn.QuantizedLinear(32, 4, format="Q9")
    with pytest.raises(ValueError, match="activations must be 'float32' or 'int8', got 'fp8'"):
        kw.nn.QuantizedLinear(32, 4, activations="fp8")
