"""Hooks that are registered after a plan compiled a module are called, as without a plan."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from planned import Kind, plan_of
from torch import Tensor, nn

import kernelworks as kw
from kernelworks.diagnose.optimization import Scene
from kernelworks.diagnose.optimizations import torch_compile
from kernelworks.diagnose.optimizations.compiled_module import CompiledModule
from kernelworks.diagnose.optimizations.compiler_settings import SKIPPED_HOOKS, SUPPRESSED_ERRORS, install_impls
from kernelworks.diagnose.sites.functions import Function
from kernelworks.diagnose.sites.modules import Roots

X = torch.randn(3, 8, generator=torch.Generator().manual_seed(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x)).relu()  # type: ignore[no-any-return]


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


MODEL: Any = None


def by_function(x: Tensor) -> Tensor:
    return MODEL(x) * 2  # type: ignore[no-any-return]


def plan(model: nn.Module, whole: bool) -> dict[str, Any]:
    options = {"backend": "eager"} if whole else {"backend": "eager", "blocks": f"{__name__}.Block"}
    return plan_of(Kind(type(model), "torch.compile", options, "", 0.0, (object, "")), model)


HOOKS = {
    "forward": lambda m: m.blocks[1].linear.register_forward_hook(lambda module, given, made: made * 2 + 1),
    "before": lambda m: m.blocks[0].linear.register_forward_pre_hook(lambda module, given: (given[0] * 2 + 1,)),
    "of a block": lambda m: m.blocks[0].register_forward_hook(lambda module, given, made: made * 2 + 1),
    "of all modules": lambda m: nn.modules.module.register_module_forward_hook(
        lambda module, given, made: made + 1 if isinstance(module, nn.Linear) else None
    ),
}


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_that_comes_later_is_called(name: str, whole: bool) -> None:
    torch.manual_seed(0)
    model = Stack().eval()
    plain, hook = copy.deepcopy(model), HOOKS[name]
    with kw.apply(plan(model, whole), model) as applied, torch.no_grad():
        assert applied.done and not applied.failed
        torch.testing.assert_close(model(X), plain(X))
        for _ in range(2):
            handles = [hook(each) for each in ((model,) if name == "of all modules" else (model, plain))]
            for _ in range(2):
                torch.testing.assert_close(model(X), plain(X))
            for handle in handles:
                handle.remove()
            torch.testing.assert_close(model(X), plain(X))


def test_gradients_pass_a_backward_hook_that_comes_later() -> None:
    torch.manual_seed(0)
    model = Stack()
    plain = copy.deepcopy(model)
    with kw.apply(plan(model, whole=True), model):
        model(X).sum().backward()
        for each in (model, plain):
            each.blocks[0].linear.register_full_backward_hook(lambda module, given, made: (given[0] * 3,))
            each.zero_grad()
            x = X.clone().requires_grad_()
            each(x).square().sum().backward()
            each.seen = x.grad
    torch.testing.assert_close(model.seen, plain.seen)


def test_what_is_compiled_runs_while_hooks_are_as_they_were() -> None:
    """Also if hooks are registered elsewhere, or the module has had some from the beginning."""
    ran: list[None] = []
    model = Stack().eval()
    model.blocks[0].register_forward_hook(lambda module, given, made: None)
    compiled = CompiledModule(model, lambda x: ran.append(None))
    compiled.call(X)
    nn.Linear(2, 2).register_forward_hook(lambda module, given, made: None)
    compiled.call(X)
    assert len(ran) == 2
    handle = model.blocks[1].register_forward_hook(lambda module, given, made: None)
    assert compiled.call(X) is not None and len(ran) == 2
    handle.remove()
    assert compiled.call(X) is None
    model.blocks[0]._forward_hooks.clear()
    assert compiled.call(X) is not None, "what was compiled calls the hook that has gone"


def test_modules_that_a_compiled_function_calls_heed_their_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Stack().eval()
    monkeypatch.setattr(__import__(__name__), "MODEL", model)
    function = Function(by_function)
    scene = Scene(Roots((function,), (), fresh=False))
    torch._dynamo.reset()
    impls = [(function, torch.compile(function.fn, backend="eager"))]
    before = SKIPPED_HOOKS.get()
    back = install_impls(impls)
    with torch.no_grad():
        impls[0][1](X)
        model.blocks[0].linear.register_forward_hook(lambda module, given, made: made * 2 + 1)
        torch.testing.assert_close(impls[0][1](X), model(X) * 2)
    back()
    assert SKIPPED_HOOKS.get() == before
    assert torch_compile.OPTIMIZATION and scene.roots.modules == (function,)


def test_threads_hook_and_call_at_once() -> None:
    torch.manual_seed(0)
    model = Stack().eval()
    wrong: list[str] = []
    with kw.apply(plan(model, whole=True), model):
        with torch.no_grad():
            want = model(X)

        def call() -> None:
            with torch.no_grad():
                for _ in range(50):
                    if not torch.allclose(model(X), want, atol=1e-6):
                        wrong.append("other values")

        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(50):
            model.blocks[0].register_forward_hook(lambda module, given, made: None).remove()
        for thread in threads:
            thread.join()
    assert not wrong


def fails_for_bent(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
    if any("tanh" in str(node.target) for node in graph.graph.nodes):
        raise ValueError("no loop for it")
    return graph.forward


def test_what_the_compiler_fails_on_later_runs_as_it_is_written() -> None:
    torch._dynamo.reset()
    model = Stack().eval()
    plain = copy.deepcopy(model)
    torch._dynamo.register_backend(fails_for_bent, name="fails_for_bent")
    options = {"backend": "fails_for_bent"}
    before = SUPPRESSED_ERRORS.get()
    with kw.apply(plan_of(Kind(Stack, "torch.compile", options, "", 0.0, (object, "")), model), model) as applied:
        assert applied.done and not applied.failed
        with torch.no_grad():
            torch.testing.assert_close(model(X), plain(X))
            for each in (model, plain):
                each.blocks[1] = nn.Sequential(each.blocks[1], nn.Tanh())
            torch.testing.assert_close(model(X), plain(X))
    assert SUPPRESSED_ERRORS.get() == before
