"""Ways to call a function of tensors, every odd one that torch has. Two functions that are one must agree in each."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

Function = Callable[..., Any]
Context = Callable[[Function, list[Tensor]], Any]
CONTEXTS: dict[str, Context] = {}


def context(function: Context) -> Context:
    CONTEXTS[function.__name__] = function
    return function


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for v in value for leaf in leaves(v)] if isinstance(value, (list, tuple)) else [value]


def first(value: Any) -> Tensor:
    found: Tensor = leaves(value)[0]
    return found


def total(value: Any) -> Any:
    return sum(leaf.square().sum() for leaf in leaves(value))


def wanting(args: list[Tensor]) -> list[Tensor]:
    """Copies that ask for their gradients."""
    return [a.detach().clone().requires_grad_() for a in args]


def grads(args: list[Tensor]) -> list[Tensor | None]:
    return [a.grad for a in args]


def pulled(output: Tensor, args: list[Tensor], seed: Tensor | None, **how: Any) -> Any:
    return torch.autograd.grad(output, args, seed, allow_unused=True, **how)


def trained(f: Function, args: list[Tensor]) -> Any:
    """Values and gradients of a call on these very tensors."""
    args = [a.detach().requires_grad_() for a in args]
    output = f(*args)
    return [output, pulled(total(output), args, None)]


# ---------------------------------------------------------------- how the values lie in memory


def _laid_out(name: str, change: Callable[[Tensor], Tensor]) -> None:
    def lies(f: Function, args: list[Tensor]) -> Any:
        return trained(f, [change(a) for a in args])

    def first_lies(f: Function, args: list[Tensor]) -> Any:
        return trained(f, [change(args[0]), *args[1:]])

    CONTEXTS[name], CONTEXTS[f"{name}_first"] = lies, first_lies


def _shifted(x: Tensor) -> Tensor:
    return torch.cat((torch.zeros(1), x.reshape(-1)))[1:].view(x.shape)


def _shifted_by_a_byte(x: Tensor) -> Tensor:
    op_package = np.zeros(4 * x.numel() + 1, dtype=np.uint8)[1:].view(np.float32).reshape(x.shape)
    op_package[...] = x.numpy()
    return torch.from_numpy(op_package)


_laid_out("neg_bit", lambda x: torch._neg_view(-x))
_laid_out("conj_imag", lambda x: torch.complex(torch.zeros_like(x), -x).conj().imag)
_laid_out("transposed", lambda x: x.mT.contiguous().mT if x.dim() > 1 else x)
_laid_out("permuted", lambda x: x.permute(*reversed(range(x.dim()))).contiguous().permute(*reversed(range(x.dim()))))
_laid_out("every_other", lambda x: torch.stack((x, x), -1)[..., 0])
_laid_out("one_row_for_all", lambda x: x[:1].expand(x.shape))
_laid_out("stride_of_zero", lambda x: x[..., :1].expand(x.shape))
_laid_out("shifted", _shifted)
_laid_out("shifted_by_a_byte", _shifted_by_a_byte)
_laid_out("lazily_cloned", torch._lazy_clone)
_laid_out("shared_memory", lambda x: x.clone().share_memory_())
_laid_out("overlapping", lambda x: torch.arange(500.0).cos().as_strided(x.shape, [2] * (x.dim() - 1) + [1]))
_laid_out("zero_tensor", lambda x: torch._efficientzerotensor(x.shape))
_laid_out("no_rows", lambda x: x[:0] if x.dim() > 1 else x)
_laid_out("denormal", lambda x: x * 1e-40)
_laid_out("zeros", lambda x: x * -0.0)


# ---------------------------------------------------------------- derivatives


@context
def gradient(f: Function, args: list[Tensor]) -> Any:
    args = wanting(args)
    output = f(*args)
    total(output).backward()
    return [output, grads(args), output.requires_grad if isinstance(output, Tensor) else None]


@context
def one_gradient_at_a_time(f: Function, args: list[Tensor]) -> Any:
    found = []
    for i in range(len(args)):
        alone = [b.detach().clone().requires_grad_(i == j) for j, b in enumerate(args)]
        total(f(*alone)).backward()
        found.append(alone[i].grad)
    return found


def _seeded(name: str, seed: Callable[[Tensor], Tensor]) -> None:
    def pulls(f: Function, args: list[Tensor]) -> Any:
        args = wanting(args)
        output = first(f(*args))
        return pulled(output, args, seed(output))

    CONTEXTS[f"cotangent_{name}"] = pulls


_seeded("neg_bit", lambda o: torch._neg_view(torch.ones_like(o)))
_seeded("zero_tensor", lambda o: torch._efficientzerotensor(o.shape))
_seeded("expanded", lambda o: torch.ones(()).expand(o.shape))
_seeded("transposed", lambda o: o.detach().mT.contiguous().mT if o.dim() > 1 else o.detach())
_seeded("nan", lambda o: torch.full(o.shape, torch.nan))
_seeded("float64", lambda o: torch.ones(o.shape, dtype=torch.float64))
_seeded("subclass", lambda o: torch.ones(o.shape).as_subclass(Plain))


@context
def batch_of_cotangents(f: Function, args: list[Tensor]) -> Any:
    args = wanting(args)
    output = first(f(*args))
    return pulled(output, args, torch.stack((torch.ones_like(output), output.detach())), is_grads_batched=True)


@context
def second_derivative(f: Function, args: list[Tensor]) -> Any:
    args = wanting(args)
    found = pulled(total(f(*args)), args, None, create_graph=True)
    return pulled(total([g for g in found if g is not None]), args, None)


@context
def graph_of_gradient(f: Function, args: list[Tensor]) -> Any:
    args = wanting(args)
    return pulled(total(f(*args)), args, None, create_graph=True)


@context
def backward_again(f: Function, args: list[Tensor]) -> Any:
    args = wanting(args)
    output = total(f(*args))
    output.backward(retain_graph=True)
    output.backward()
    return grads(args)


@context
def backward_of_a_freed_graph(f: Function, args: list[Tensor]) -> Any:
    output = total(f(*wanting(args)))
    output.backward()
    output.backward()


@context
def output_overwritten(f: Function, args: list[Tensor]) -> Any:
    args = wanting(args)
    output = first(f(*args))
    output.view(-1)[:1].mul_(2) if output.is_contiguous() else output.mul_(2)
    total(output).backward()
    return grads(args)


@context
def inputs_let_go(f: Function, args: list[Tensor]) -> Any:
    args = wanting(args)
    output = total(f(*[a * 1 for a in args]))
    output.backward()
    return grads(args)


@context
def hooks_on_tensors(f: Function, args: list[Tensor]) -> Any:
    args, seen = wanting(args), []
    output = first(f(*args))
    output.register_hook(lambda g: seen.append(g.clone()) or g * 2)  # type: ignore[func-returns-value]
    args[0].register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.clone()))
    output.retain_grad()
    total(output).backward()
    return [output.grad, seen, grads(args)]


def _with(name: str, manager: Callable[[], Any], run: Context = gradient) -> None:
    def within(f: Function, args: list[Tensor]) -> Any:
        with manager():
            return run(f, args)

    CONTEXTS[name] = within


@contextlib.contextmanager
def _set(change: Callable[[Any], Any], value: Any, back: Any) -> Iterator[None]:
    change(value)
    try:
        yield
    finally:
        change(back)


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class PassingFunctions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def plain(f: Function, args: list[Tensor]) -> Any:
    return f(*args)


graph = torch.autograd.graph
_with("anomaly_detection", torch.autograd.detect_anomaly)
_with("saved_on_cpu", graph.save_on_cpu)
_with("saved_as_numpy", lambda: graph.saved_tensors_hooks(lambda t: t.numpy(force=True).copy(), torch.from_numpy))
_with("saved_tensors_mutable", graph.allow_mutation_on_saved_tensors)
_with("no_hooks_on_saved", lambda: graph.disable_saved_tensors_hooks("none here"))
_with("one_thread_of_autograd", lambda: torch.autograd.set_multithreading_enabled(False))
_with("profiled", torch.profiler.profile)
_with("profiled_by_autograd", torch.autograd.profiler.profile)
_with("flop_counted", lambda: FlopCounterMode(display=False))
_with("dispatch_mode", Passing)
_with("function_mode", PassingFunctions)
_with("default_device", lambda: torch.device("cpu"))
_with("no_grad", torch.no_grad, plain)
_with("inference_mode", torch.inference_mode, plain)
_with("deterministic", lambda: _set(torch.use_deterministic_algorithms, True, False))
_with("float64_by_default", lambda: _set(torch.set_default_dtype, torch.float64, torch.float32))
_with("two_threads", lambda: _set(torch.set_num_threads, 2, torch.get_num_threads()))
_with("denormals_flushed", lambda: _set(torch.set_flush_denormal, True, False), lambda f, a: f(*[x * 1e-30 for x in a]))
_with("autocast_off", lambda: torch.autocast("cpu", enabled=False))


@context
def checkpointed(f: Function, args: list[Tensor]) -> Any:
    found = []
    for reentrant in (False, True):
        args = wanting(args)
        total(checkpoint.checkpoint(f, *args, use_reentrant=reentrant)).backward()
        found.append(grads(args))
    return found


# ---------------------------------------------------------------- transforms


@context
def jvp(f: Function, args: list[Tensor]) -> Any:
    return torch.func.jvp(f, tuple(args), tuple(torch.ones_like(a) for a in args))


@context
def dual_numbers(f: Function, args: list[Tensor]) -> Any:
    with forward_ad.dual_level():
        output = first(f(*[forward_ad.make_dual(a, a * 0.3) for a in args]))
        return list(forward_ad.unpack_dual(output))


_with("dual_numbers_without_grad", torch.no_grad, dual_numbers)


@context
def one_dual_number(f: Function, args: list[Tensor]) -> Any:
    with forward_ad.dual_level():
        output = first(f(forward_ad.make_dual(args[0], args[0] * 0.3), *args[1:]))
        return list(forward_ad.unpack_dual(output))


@context
def forward_over_reverse(f: Function, args: list[Tensor]) -> Any:
    with forward_ad.dual_level():
        args = [forward_ad.make_dual(a, a * 0.3) for a in wanting(args)]
        return [list(forward_ad.unpack_dual(g)) for g in pulled(total(f(*args)), args, None) if g is not None]


@context
def func_grad(f: Function, args: list[Tensor]) -> Any:
    return torch.func.grad(lambda x: total(f(x, *args[1:])))(args[0])


@context
def func_vjp(f: Function, args: list[Tensor]) -> Any:
    output, back = torch.func.vjp(lambda x: total(f(x, *args[1:])), args[0])
    return [output, back(torch.ones(()))]


@context
def jacrev(f: Function, args: list[Tensor]) -> Any:
    return torch.func.jacrev(lambda x: f(x, *args[1:]))(args[0])


@context
def jacfwd(f: Function, args: list[Tensor]) -> Any:
    return torch.func.jacfwd(lambda x: total(f(x, *args[1:])))(args[0])


@context
def hessian(f: Function, args: list[Tensor]) -> Any:
    return torch.func.hessian(lambda x: total(f(x, *args[1:])))(args[0])


@context
def linearize(f: Function, args: list[Tensor]) -> Any:
    output, push = torch.func.linearize(lambda x: total(f(x, *args[1:])), args[0])
    return [output, push(torch.ones_like(args[0]))]


@context
def vmap(f: Function, args: list[Tensor]) -> Any:
    return torch.func.vmap(f)(*[torch.stack((a, a * 0.5)) for a in args])


@context
def vmap_one(f: Function, args: list[Tensor]) -> Any:
    return torch.func.vmap(lambda x: f(x, *args[1:]), in_dims=-1)(torch.stack((args[0], args[0] * 0.5), -1))


@context
def vmap_of_grad(f: Function, args: list[Tensor]) -> Any:
    return torch.func.vmap(torch.func.grad(lambda *a: total(f(*a))))(*[torch.stack((a, a * 0.5)) for a in args])


@context
def vectorised_jacobian(f: Function, args: list[Tensor]) -> Any:
    return torch.autograd.functional.jacobian(lambda x: f(x, *args[1:]), args[0], vectorize=True)


@context
def functionalized(f: Function, args: list[Tensor]) -> Any:
    return torch.func.functionalize(f)(*args)


@context
def functional_wrappers(f: Function, args: list[Tensor]) -> Any:
    return [torch._from_functional_tensor(o) for o in leaves(f(*map(torch._to_functional_tensor, args)))]


# ---------------------------------------------------------------- tracers


@context
def traced(f: Function, args: list[Tensor]) -> Any:
    return torch.jit.trace(f, tuple(args), check_trace=False)(*[a * 2 for a in args])


@context
def traced_without_grad(f: Function, args: list[Tensor]) -> Any:
    with torch.no_grad():
        made = torch.jit.trace(f, tuple(args), check_trace=False)
    return [made(*[a * 2 for a in args]), gradient(made, args)]


@context
def traced_by_make_fx(f: Function, args: list[Tensor]) -> Any:
    wrapped = {1: lambda a: f(a), 2: lambda a, b: f(a, b), 3: lambda a, b, c: f(a, b, c)}
    return make_fx(wrapped[len(args)])(*args)(*[a * 2 for a in args])


@context
def exported(f: Function, args: list[Tensor]) -> Any:
    class Holder(nn.Module):
        def forward(self, *given: Tensor) -> Any:
            return f(*given)

    return torch.export.export(Holder(), tuple(args)).module()(*[a * 2 for a in args])


def _looks(value: Any) -> list[Any]:
    return [(tuple(o.shape), o.dtype, o.device.type) for o in leaves(value)]


@context
def fake(f: Function, args: list[Tensor]) -> Any:
    with FakeTensorMode() as mode:
        return _looks(f(*[mode.from_tensor(a) for a in args]))


@context
def fake_outside_its_mode(f: Function, args: list[Tensor]) -> Any:
    mode = FakeTensorMode()
    return _looks(f(*[mode.from_tensor(a) for a in args]))


@context
def meta(f: Function, args: list[Tensor]) -> Any:
    return _looks(f(*[a.to("meta") for a in args]))


# ---------------------------------------------------------------- kinds of tensors, threads


class Plain(torch.Tensor):
    """A subclass that changes nothing."""


class Watched(torch.Tensor):
    """A subclass that notes whether torch told it of the call."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Watched.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


@context
def subclass(f: Function, args: list[Tensor]) -> Any:
    output = f(*[a.as_subclass(Plain) for a in args])
    return [output, [type(o).__name__ for o in leaves(output)]]


@context
def watching_subclass(f: Function, args: list[Tensor]) -> Any:
    Watched.calls = 0
    output = f(*[a.as_subclass(Watched) for a in args])
    return [output, Watched.calls > 0, [type(o).__name__ for o in leaves(output)]]


@context
def two_tensors_in_one(f: Function, args: list[Tensor]) -> Any:
    output = first(f(*[TwoTensor(a, a * 0.5) for a in args]))
    return [output.a, output.b]


@context
def parameters(f: Function, args: list[Tensor]) -> Any:
    args = [nn.Parameter(a.clone()) for a in args]
    output = f(*args)
    total(output).backward()
    return [output, grads(args), [type(o).__name__ for o in leaves(output)]]


@context
def copied_output(f: Function, args: list[Tensor]) -> Any:
    return copy.deepcopy(f(*args))


@context
def eight_threads_outside(f: Function, args: list[Tensor]) -> Any:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda i: gradient(f, [a * i for a in args]), [1, 2] * 12))


@context
def backward_in_another_thread(f: Function, args: list[Tensor]) -> Any:
    args = wanting(args)
    output = total(f(*args))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(output.backward).result()
    return grads(args)
