"""What a program's own modes make of torch's functions and operators, they make of a swapped model's too; and whoever
asks what a forward looks like is told the module's own."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from eligible import KERNELS, only
from made_tuning_records import no_tuning_records
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

import kernelworks as kw
from kernelworks.nn.swap import swap
from kernelworks.profile.call_sites import Survey
from kernelworks.profile.recording import record


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 16))

    def forward(self, x):
        """x over its root mean square."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.up, self.down = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 16)
        self.norm, self.act, self.after, self.softmax = Norm(), nn.GELU(), nn.LayerNorm(16), nn.Softmax(-1)

    def forward(self, x):
        x = self.norm(x)
        x = self.down(F.silu(self.gate(x)) * self.up(x))
        x = F.scaled_dot_product_attention(x[:, None], x[:, None], self.act(x)[:, None])[:, 0]
        return self.softmax(self.after(x) + F.gelu(x, approximate="tanh"))


class Replacing(TorchFunctionMode):
    """Other functions in place of some of torch's."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.gelu:
            return 3 * args[0]
        result = func(*args, **(kwargs or {}))
        named = {F.linear: 1.0, F.layer_norm: 2.0, F.softmax: 3.0, F.scaled_dot_product_attention: 4.0, F.silu: 5.0}
        return result + named.get(func, 0.0)


class Logging(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Larger(TorchDispatchMode):
    """Adds a little to every result of an activation."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result + 0.5 if "gelu" in str(func) or "softmax" in str(func) else result


@contextlib.contextmanager
def ours() -> Iterator[set[tuple[str, str]]]:
    with only(KERNELS[-1]) as taken:
        yield taken


def both(use: Callable[[nn.Module], Any]) -> tuple[Any, Any, set[tuple[str, str]]]:
    """What a use of the model gives before a swap and after it, and which kernels of ours it took."""
    want, model = use(Model()), Model()
    swapped = swap(model, verbose=False)
    assert len(swapped.replaced) >= 7
    with ours() as taken:
        return want, use(model), taken


def x() -> Tensor:
    return torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1))


def counted(model: nn.Module) -> dict[str, Any]:
    with FlopCounterMode(display=False) as counter:
        model(x()).square().sum().backward()
    return {module: {str(op): n for op, n in counts.items()} for module, counts in counter.get_flop_counts().items()}


def counted_behind(model: nn.Module) -> int:
    """Of a backward whose forward no mode has seen."""
    loss = model(x()).square().sum()
    with FlopCounterMode(display=False) as counter:
        loss.backward()
    return counter.get_total_flops()


def logged(model: nn.Module) -> list[str]:
    with torch.no_grad(), Logging() as log:
        model(x())
    return sorted(log.seen)  # of a gate, the activation may come after its other factor


def kept_for_the_backward(model: nn.Module) -> list[str]:
    asked: list[str] = []

    def policy(context: Any, op: Any, *args: Any, **named: Any) -> Any:
        asked.append(str(op))
        return torch.utils.checkpoint.CheckpointPolicy.PREFER_RECOMPUTE

    def contexts() -> Any:
        return create_selective_checkpoint_contexts(policy)

    checkpoint(model, x().requires_grad_(), use_reentrant=False, context_fn=contexts).sum().backward()
    return sorted(asked)


@pytest.mark.parametrize("use", [counted, logged, kept_for_the_backward])
def test_a_mode_sees_what_it_saw_before(use: Callable[[nn.Module], Any]) -> None:
    want, got, _ = both(use)
    assert want == got and want


def test_the_work_of_a_backward_is_counted() -> None:
    """Of a forward that no mode saw, what was kept may be less than torch keeps, and be made again."""
    want, got, _ = both(counted_behind)
    assert 1.2 * want > got >= want


@pytest.mark.parametrize("mode", [Replacing, Larger])
def test_a_mode_changes_what_it_changed_before(mode: type) -> None:
    def use(model: nn.Module) -> Tensor:
        with torch.no_grad(), mode():
            return model(x())

    want, got, taken = both(use)
    torch.testing.assert_close(got, want)
    assert not torch.allclose(want, Model()(x()), atol=1e-2) and not taken


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_default_device_keeps_our_rows(device: str) -> None:
    """It is a mode of torch's that changes where tensors are made, nothing that a model is made of."""

    def use(model: nn.Module) -> Tensor:
        with torch.device(device):
            return model(given)

    given = x()
    want, got, taken = both(use)
    torch.testing.assert_close(got, want)
    assert {op for op, _ in taken} >= {"linear", "gelu", "rms_norm"}


def test_a_forward_tells_of_the_module_s_own() -> None:
    model, plain = Model(), Model()
    with swap(model, verbose=False):
        for module, other in zip(model.modules(), plain.modules(), strict=True):
            mine, theirs = module.forward, other.forward
            assert inspect.signature(mine) == inspect.signature(theirs)
            assert inspect.getsource(mine) == inspect.getsource(theirs)
            names = ("__name__", "__qualname__", "__module__", "__doc__")
            assert [getattr(mine, n) for n in names] == [getattr(theirs, n) for n in names]


def test_a_compiler_meets_no_question_about_modes() -> None:
    """An export by tracing bytecode refuses what asks torch's C functions for numbers."""
    want, got, _ = both(lambda model: torch.export.export(model, (x(),), strict=True).module()(x()))
    torch.testing.assert_close(got, want)


@pytest.mark.filterwarnings("ignore")
def test_a_compiler_does_not_take_what_is_asked_of_ops_for_the_program(tmp_path: Path) -> None:
    """Torch's compiler looks at each frame that is entered while a compiled program runs, and a survey has it leave
    the program to Python: what a choice asks then is no part of it."""
    given = x().requires_grad_()
    with no_tuning_records(tmp_path):
        compiled = torch.compile(lambda t: kw.softmax(kw.gelu(t)), backend="aot_eager")
        output = record(lambda: compiled(given), survey=Survey()).output
    torch.testing.assert_close(output, F.softmax(F.gelu(given), -1))
