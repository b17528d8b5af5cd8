"""What is not supported is declined as docs/reference/limits.md says."""

from __future__ import annotations

import pytest
import torch
from eligible import KERNELS, only
from limit import Limit
from torch import Tensor

from limits import PAGE, SECTIONS, page

LIMITS = [limit for limits in SECTIONS.values() for limit in limits]


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.sentence)
@pytest.mark.filterwarnings("ignore")
def test_it_is_declined_as_the_page_says(limit: Limit) -> None:
    with only(KERNELS[-1]):
        if limit.error is not None:
            with pytest.raises(limit.error) as caught:
                limit.call()
            assert limit.says in str(caught.value)
            return
        found = limit.call()
    if limit.says:
        assert limit.says in found
        return
    happens, torchs = found
    assert isinstance(happens, (str, Tensor))
    if isinstance(happens, str):
        assert happens == torchs
    else:
        torch.testing.assert_close(happens, torchs)


def test_the_page_is_made_from_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"
