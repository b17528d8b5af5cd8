"""What the lines of a random program with a plan call. Its text runs anew in the space of each run, beside the
program's own class, and a reproduction prints of it what it needs."""

from __future__ import annotations

import contextlib
import copy
import sys
import threading
from typing import Any

import torch
from torch import nn

import kernelworks as kw

PLAN: Any = {}
PLANNED = True
WAY = "planned"  # or "twin", "float64", "rounded"
BACKEND: Any = None  # of the compiler that the plan names: whoever has no plan compiles it himself
SEEN: list[Any] = []
APPLIED: list[Any] = []
handles: list[Any] = []
model: Any = None
optimizer: Any = None


def note(what: str, *values: Any) -> None:
    SEEN.append((what, copy.deepcopy([leaf.detach() for leaf in leaves(values)] or values)))


def apply() -> None:
    if PLANNED:
        APPLIED.append(kw.apply(PLAN, model))
    elif BACKEND:
        model.compile(backend=BACKEND)


def undo() -> None:
    while APPLIED:
        APPLIED.pop().undo()
    if BACKEND and not PLANNED:
        model.__dict__.pop("_compiled_call_impl", None)


def build(cls: Any) -> Any:
    torch.manual_seed(1)
    made = cls()
    with torch.no_grad():
        for name, tensor in made.state_dict().items():
            if tensor.dim() == 1:
                tensor.add_(torch.rand(tensor.shape) * (1 if name.endswith("var") else 0.4))
    return made.eval()


def tensor(shape: Any, seed: int) -> Any:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return like(drawn, model)


def like(value: Any, other: Any) -> Any:
    """A tensor in the dtype of another, or of a module."""
    held = other if isinstance(other, torch.Tensor) else next(other.parameters(), torch.zeros(()))
    return value.to(held.dtype)


def leaves(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    value = tuple(value.values()) if isinstance(value, dict) else value
    return [leaf for each in value for leaf in leaves(each)] if isinstance(value, (tuple, list)) else []


def total(value: Any) -> Any:
    return sum((leaf.float() if leaf.dtype.itemsize < 4 else leaf).square().sum() for leaf in leaves(value))


def call(function: Any, *args: Any, **named: Any) -> None:
    given = [*leaves(args), *named.values()]
    for each in [*model.parameters(), *given]:
        if isinstance(each, torch.Tensor) and each.is_leaf and each.grad is not None:
            each.grad = None
    made = leaves(function(*args, **named))
    note("output", *made)
    wanted = [m for m in made if m.requires_grad]
    note(f"wants gradients: {len(wanted)} of {len(made)}")
    if wanted:
        seeds = [torch.linspace(-1, 1, m.numel(), dtype=m.dtype).view(m.shape) for m in wanted]
        torch.autograd.backward(wanted, seeds)
        found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        note(f"gradients of {sorted(found)}", *found.values())
        note("gradients of inputs", *[g.grad for g in given if isinstance(g, torch.Tensor) and g.grad is not None])


def threads(function: Any, x: Any, *, autocast: bool = False) -> None:
    """Four threads call at once, where nothing of the program's own depends on their order."""
    made: list[list[Any]] = [[] for _ in range(4)]
    raised: list[Exception] = []

    def run(number: int) -> None:
        try:
            if not alone:
                begin.wait()
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                for _ in range(6):
                    made[number] += leaves(function(x * (1 + number / 2)))
        except Exception as error:
            raised.append(error)

    begin = threading.Barrier(4)
    interval = sys.getswitchinterval()
    alone = handles or BACKEND or WAY in ("float64", "rounded") or any(m.training for m in model.modules())
    try:
        sys.setswitchinterval(1e-6)
        each = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in each:
            if alone:
                thread.run()
            else:
                thread.start()
        for thread in each if not alone else ():
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    alone = True
    run(0)  # so that what the program keeps is what the last call left
    if raised:
        raise raised[0]
    note("threads", *[t for each in made for t in each])


def train(module: Any, x: Any, steps: int, training: bool = True) -> None:
    module.train(training)
    descent = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], 0.05)
    for _ in range(steps):
        descent.zero_grad()
        total(module(x)).mul(0.01).backward()
        descent.step()
    module.train(training)


def closure(x: Any) -> Any:
    optimizer.zero_grad(set_to_none=False)
    loss = total(model(x)).mul(0.01)
    loss.backward()
    return loss


def step(x: Any, clip: float | None = None) -> None:
    note("loss", closure(x))
    if clip is not None:
        note("norm", nn.utils.clip_grad_norm_(model.parameters(), clip))
    note("gradients", *[p.grad for p in model.parameters() if p.grad is not None])
    optimizer.step()


def flattened(module: Any) -> Any:
    """Gradients as views of one tensor, as whoever wants their norm in one call has them."""
    held = list(module.parameters())
    flat = torch.zeros(sum(p.numel() for p in held), dtype=held[0].dtype)
    at = 0
    for p in held:
        p.grad = flat[at : at + p.numel()].view(p.shape)
        at += p.numel()
    return flat


def doubled(state: Any) -> Any:
    return {name: value * 2 if value.is_floating_point() else value.clone() for name, value in state.items()}


def renewed(module: Any) -> None:
    """Another weight where the first one lay, if the allocator gives that memory again."""
    at, values = module.weight.data_ptr(), (module.weight.detach() * 1.25).tolist()
    module.weight = None
    tried = [like(torch.tensor(values), model)]
    while tried[-1].data_ptr() != at and len(tried) < 64:
        tried.append(like(torch.tensor(values), model))
    module.weight = nn.Parameter(tried[-1])


def stacked(module: Any, x: Any) -> Any:
    """What two of it give, one of twice the weights, by vmap."""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    held = {name: torch.stack((value.detach(), value.detach() * 2)) for name, value in state.items()}
    return torch.func.vmap(lambda s: torch.func.functional_call(module, s, (x,)))(held)


def traced_of(module: Any, x: Any) -> Any:
    if WAY in ("float64", "rounded"):  # the tracer knows nothing of modes, and reads memory that is none: a crash
        return module  # whose parameters a trace has
    with torch.no_grad():
        return torch.jit.trace(module, (x,), check_trace=False)


@contextlib.contextmanager
def patched(owner: Any, name: str, value: Any) -> Any:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class Names(torch.overrides.TorchFunctionMode):
    """The functions of torch that are called, by name."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "").startswith(("conv", "linear", "batch_norm")):
            note(func.__name__)
        return func(*args, **(kwargs or {}))
