"""Copies of arguments: they lie in memory as the arguments do, or compiled code is compiled again for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from kernelworks.diagnose.snapshot import ALIGNMENT, State, duplicate, to_float64

IDS = torch.arange(4 * 129).reshape(4, 129)
LAID: dict[str, Callable[[], Tensor]] = {
    "contiguous": lambda: IDS.clone(),
    "all but the last token": lambda: IDS[:, :-1],
    "all but the first": lambda: IDS[:, 1:],
    "queries of a joint product": lambda: torch.randn(2, 8, 96).chunk(3, -1)[1],
    "expanded": lambda: torch.randn(1, 8).expand(5, 8),
    "windows": lambda: torch.randn(40).unfold(0, 8, 2),
    "transposed": lambda: torch.randn(6, 5).t(),
    "channels_last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "misaligned": lambda: torch.randn(65)[1:],
    "empty": lambda: torch.randn(4, 9)[:, :0],
    "scalar": lambda: torch.tensor(3.0),
    "one column": lambda: torch.randn(7, 4)[:, 2],
    "conjugate": lambda: torch.randn(3, 4, dtype=torch.complex64).t().conj(),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", list(LAID))
def test_a_copy_lies_as_its_original_does(name: str, inference: bool) -> None:
    with torch.inference_mode(inference):
        tensor = LAID[name]()
    (copy,) = duplicate((tensor,))
    assert torch.equal(copy, tensor) and copy.stride() == tensor.stride() and copy.dtype is tensor.dtype
    assert copy.is_inference() == tensor.is_inference() and not copy._is_view()
    assert copy.data_ptr() % ALIGNMENT == tensor.data_ptr() % ALIGNMENT
    assert copy.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr() or not tensor.numel()


def test_a_copy_is_a_leaf_of_its_own() -> None:
    whole = torch.randn(4, 9, requires_grad=True)
    (copy,) = duplicate((whole[:, :-1],))
    assert copy.is_leaf and copy.requires_grad and copy.stride() == (9, 1)
    copy.square().sum().backward()
    torch.testing.assert_close(copy.grad, 2 * whole[:, :-1])
    assert whole.grad is None
    with torch.no_grad():
        copy.zero_()
    assert whole.ne(0).all()


def test_of_little_in_large_memory_only_that_is_copied() -> None:
    last = torch.randn(3, 2048, 4)[:, -1]
    (copy,) = duplicate((last,))
    assert torch.equal(copy, last) and copy.untyped_storage().nbytes() == last.nbytes


def test_what_is_expanded_takes_no_more_memory_in_a_copy() -> None:
    (copy,) = duplicate((torch.ones(1, 8).expand(1 << 40, 8),))
    assert copy.shape == (1 << 40, 8) and copy.stride() == (0, 1) and copy.untyped_storage().nbytes() == 32


def test_a_wide_copy_has_the_same_values() -> None:
    given = torch.randn(4, 9)[:, :-1]
    (wide,) = to_float64((given,))
    assert wide.dtype is torch.float64 and torch.equal(wide, given.double())


def test_what_is_compiled_is_not_compiled_again_for_a_copy() -> None:
    graphs = list[int]()

    def counted(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        graphs.append(len(inputs))
        return graph.forward

    compiled = torch.compile(lambda x, y: x.float().sum() + y.float().sum(), backend=counted)
    compiled(IDS[:, :-1], IDS[:, 1:])
    compiled(*duplicate((IDS[:, :-1], IDS[:, 1:])))
    assert len(graphs) == 1


@pytest.mark.parametrize("inference", [False, True])
def test_what_a_module_keeps_expanded_is_put_back(inference: bool) -> None:
    """Torch writes into no expanded tensor, and one made in inference mode counts no versions: it is always written."""
    module = nn.Module()
    with torch.inference_mode(inference):
        module.kept = torch.arange(8.0).cos().expand(3, 2, 8)  # type: ignore[assignment]
        state = State(module)
        module.kept[0, 0].zero_()  # type: ignore[operator,index]
    state.restore()
    state.restore()
    assert torch.equal(module.kept, torch.arange(8.0).cos().expand(3, 2, 8))  # type: ignore[arg-type]
    assert module.kept.stride() == (0, 0, 1)  # type: ignore[operator,union-attr]


def test_what_is_in_a_transform_is_copied_there() -> None:
    torch.testing.assert_close(
        torch.func.vmap(lambda x: duplicate((x[:-1],))[0] * 2)(torch.ones(3, 4)), torch.full((3, 3), 2.0)
    )
