"""What is benchmarked against what: torch's variant is what a user of torch would have called."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import kernelworks as kw
from kernelworks.dispatch.op import OPS
from kernelworks.measure.autotune import live


class Seen(TorchFunctionMode):
    """The functions of torch's that are called, and the mask that each is given."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((func, (kwargs or {}).get("attn_mask")))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("words", "kept"),
    [((None, None, True), True), (("bottom_right", 4, None), False), (("top_left", None, None), True)],
    ids=["a mask of padding", "a window", "causal"],
)
def test_the_variant_of_torch_is_what_a_user_would_have_called(words: tuple[Any, ...], kept: bool) -> None:
    """One function of torch's, with the mask as it is or as a model makes it once for all layers; the same answer."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 4, 8, 16), torch.randn(2, 4, 8, 16)
    causal, window, mask = words
    given = torch.rand(2, 1, 8, 8) > 0.5 if mask else None
    if given is not None:
        given[..., 0] = True
    args = (q, k, k, causal, window, None, given, False, None, None)
    with torch.inference_mode():
        live.torch_call(OPS["attention"], args)  # what is kept of this must do for a backward
    for recorded in (False, True):
        q.requires_grad_(recorded)
        call, seen = live.torch_call(OPS["attention"], args), Seen()
        with seen:
            result = call()
        assert [func for func, _ in seen.calls] == [torch.nn.functional.scaled_dot_product_attention]
        assert not kept or seen.calls[0][1] is given
        torch.testing.assert_close(result, kw.attention(*args[:3], causal=causal, window=window, mask=given))
        if recorded:
            result.sum().backward()
