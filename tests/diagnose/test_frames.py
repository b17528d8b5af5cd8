"""What a compiler is given of a module: no more to guard than torch's own ``model.compile()`` has, hooks heard, and a
class's code apart from others' of that class."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._guards import TracingContext

from kernelworks.diagnose.remedies.frames import Frames, compiled

guards: list[int] = []  # of each graph
sizes: list[tuple[Any, ...]] = []  # of what each graph is given


def counting(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    """A backend that compiles nothing."""
    context = TracingContext.get()
    guards.append(len(context.guards_context.dynamo_guards))
    sizes.extend(tuple(t.shape) for t in inputs if isinstance(t, Tensor) and all(type(n) is int for n in t.shape))
    return graph.forward


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    guards.clear(), sizes.clear()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Cart(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.push = nn.Sequential(nn.Linear(width, width), nn.Tanh())

    def forward(self, state: Tensor, *, by: float = 1.0) -> Tensor:
        return state + by * self.push(state)


def made(module: nn.Module, name: str = "call") -> Callable[..., Any]:
    return compiled(module, Frames(name), lambda call: torch.compile(call, backend=counting))


def test_it_guards_no_more_than_the_module_compiled_by_torch() -> None:
    x, cart = torch.ones(2, 4), Cart()
    expected = cart(x, by=2.0)
    torch.testing.assert_close(made(cart)(x, by=2.0), expected)
    cart.compile(backend=counting)
    torch.testing.assert_close(cart(x, by=2.0), expected)
    ours, torchs = guards
    assert ours <= torchs


def test_hooks_are_heard_whenever_they_come() -> None:
    x, cart, heard = torch.ones(2, 4), Cart(), []
    call = made(cart)
    call(x)
    with cart.register_forward_hook(lambda module, args, out: heard.append("own")):
        call(x)
    with nn.modules.module.register_module_forward_hook(lambda module, args, out: heard.append(type(module).__name__)):
        call(x)
    call(x)
    assert heard.count("own") == 1 and heard.count("Cart") == 1


def test_a_forward_that_was_put_in_its_place_is_called() -> None:
    x, cart = torch.ones(2, 4), Cart()
    call = made(cart)
    before = call(x)
    cart.forward = types.MethodType(lambda self, state: state - 1, cart)  # type: ignore[method-assign]
    torch.testing.assert_close(call(x), x - 1)
    del cart.forward
    torch.testing.assert_close(call(x), before)


def test_modules_of_torchs_own_and_classes_with_a_call_of_their_own_are_compiled_too() -> None:
    class Own(Cart):
        def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
            return 2 * super()._call_impl(*args, **kwargs)

    x = torch.ones(2, 4)
    for module in (nn.Sequential(nn.Linear(4, 4), nn.Tanh()), Own()):
        graphs = len(guards)
        torch.testing.assert_close(made(module, type(module).__name__)(x), module(x))
        assert len(guards) == graphs + 1


def test_sizes_of_one_module_say_nothing_of_another_of_its_class() -> None:
    """What differs between the two dynamo would take for what varies."""
    for width in (4, 8):
        made(Cart(width), f"call {width}".replace(" ", "_"))(torch.ones(2, width))
    assert (2, 4) in sizes and (2, 8) in sizes and len(guards) == 2
