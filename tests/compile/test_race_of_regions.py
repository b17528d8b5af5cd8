"""A race of a region runs while Dynamo compiles the program around it, and holds its lock on compilations."""

from __future__ import annotations

import threading

import torch

from kernelworks.compile.race import isolate_compilation


def test_no_other_thread_compiles_a_backward_meanwhile() -> None:
    """A GPU's backward runs in a thread of autograd's own, unless autograd is told not to: a first backward, which is
    compiled there, would wait for the lock that this thread holds."""
    alone: list[bool] = []
    with isolate_compilation(torch.device("cpu")):
        alone.append(not torch._C._is_multithreading_enabled())
    assert alone == [True] and torch._C._is_multithreading_enabled()


def test_a_compiled_region_and_its_backward_are_compiled_under_the_lock_of_this_thread() -> None:
    """As a backend is called: with the lock held, and the gradient asked for at once."""
    from torch._dynamo.convert_frame import compile_lock

    asked: list[int] = []

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        with isolate_compilation(torch.device("cpu")):
            x = torch.ones(3, requires_grad=True)
            x.register_hook(lambda gradient: asked.append(threading.get_ident()))
            assert compile_lock.acquire(blocking=False)
            compile_lock.release()
            torch.autograd.grad((x * 2).sum(), x)
        return module

    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(3))
    assert asked == [threading.get_ident()]
