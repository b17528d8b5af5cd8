"""The call of a fused function: which kernel serves it, gradients, and when the function itself runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

from kernelworks.build.cache import BuildError
from kernelworks.contract.tensors import PLAIN_TYPES
from kernelworks.dispatch.user_warning import warn_user
from kernelworks.fuse import race
from kernelworks.fuse.making import FusedKernel, make_kernel, trace_settled
from kernelworks.fuse.operators import call_operator, register_function
from kernelworks.fuse.own_thread import run_in_own_thread
from kernelworks.fuse.trace import FuseError, recorded_results, trace_backward, trace_forward

__all__ = ["FusedFunction", "fuse"]

_autocasting, _functorch = torch._C._is_any_autocast_enabled, torch._C._are_functorch_transforms_active
_threads = torch.get_num_threads
_tracing, _modes = torch._C._is_tracing, torch._C._len_torch_dispatch_stack
_function_modes, _grad_enabled = torch._C._len_torch_function_stack, torch.is_grad_enabled
NUMBERS = frozenset((int, float))
MOST_PLANS = 1024


def fuse(function: Callable[..., Any]) -> FusedFunction:
    """One kernel of a function of tensors and numbers that is written in torch.

    ``fused = kw.fuse(fn)`` is called as ``fn`` is. At the first call with tensors of some dtypes and shapes ``fn`` is
    traced; its operators become one kernel, which passes over memory once: C++ for the CPU's instruction set, Triton
    for a GPU.
    Other values of numbers take the same kernel. So do other sizes. Kernels are kept in the build cache.

    Numerics: float32 inside, one rounding at each result. Casts in ``fn`` round where torch rounds.

    A kernel that was just made is held against ``fn`` in float64, within a bound that a running error analysis of the
    expression gives. One that breaks it does not serve: a warning says so, and ``fn`` runs. ``fused.explain()`` tells
    what serves which call.

    Gradients are a kernel of their own. ``torch.compile`` sees one operator, which calls the kernels. Under
    ``torch.func``'s transforms, autocast, other modes and tracers, and of tensor subclasses, ``fn`` runs.

    Raises:
        FuseError: an operator that cannot be fused, at the first call, with its name and the line of ``fn``.
    """
    return FusedFunction(function)


@dataclass
class Plan:
    """What serves calls of one signature. ``kernel`` is None where ``fn`` runs; ``reason`` says why, or what a race
    found. ``recorded``: of each result whether it has a gradient."""

    kernel: FusedKernel | None
    static: frozenset[int]
    structure: Any
    reason: str = ""
    recorded: tuple[bool, ...] = ()
    backwards: dict[Any, FusedKernel | str] = field(default_factory=dict)


class FusedFunction:
    """A function with its kernels: see ``fuse``. Without ``races`` a kernel serves wherever there is one."""

    def __init__(self, function: Callable[..., Any], *, races: bool = True) -> None:
        if not callable(function):
            raise TypeError(f"fuse takes a function, got {type(function).__name__}")
        functools.update_wrapper(self, function, updated=())
        self.function, self.races = function, races
        self._plans: dict[Any, Plan] = {}
        self._static: dict[Any, frozenset[int]] = {}
        self.number = register_function(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            if _functorch() or _autocasting():
                return self.function(*args, **kwargs)
            return call_operator(self, args, kwargs)
        return self.run(*args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The call, of tensors with contents."""
        flat = self._flat(args, kwargs)
        if flat is None:
            return self.function(*args, **kwargs)
        plan = self._plan(flat, args, kwargs)
        if plan.kernel is None:
            return self.function(*args, **kwargs)
        return self._results(plan, plan.kernel, flat[0], flat[1])

    def _results(self, plan: Plan, kernel: FusedKernel, leaves: Sequence[Any], tree: Any) -> Any:
        """Those of the kernel."""
        if any(plan.recorded):
            made = _Recorded.apply(self, plan, tree, *leaves)  # type: ignore[no-untyped-call]
        else:
            made = kernel.launch(*leaves)
        if plan.structure is None:
            return made[0]
        return pytree.tree_unflatten(list(made), plan.structure)

    def takes(self, *args: Any) -> bool:
        """Whether a kernel may serve these arguments: no mode, transform or subclass is in the way."""
        return self._flat(args, {}) is not None

    def explain(self) -> str:
        """What serves the calls that were made so far, a line for each signature."""
        lines = list[str]()
        for key, plan in self._plans.items():
            lines.append(f"{_signature(key)}: {_served(plan)}")
            for needs, backward in plan.backwards.items():
                said = backward if isinstance(backward, str) else _checked(backward)
                lines.append(f"  gradients of {needs}: {said}")
        return "\n".join(lines) or f"{self.__name__}: no call yet"  # type: ignore[attr-defined]

    def gradients(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], grads: Sequence[Tensor | None]
    ) -> list[tuple[Tensor, Tensor | None]]:
        """Each tensor that requires a gradient, with it."""
        with torch.enable_grad():
            flat = self._flat(args, kwargs)
            plan = None if flat is None else self._plan(flat, args, kwargs)
        leaves, tree = pytree.tree_flatten((args, kwargs))
        with torch.no_grad():
            if plan is None:
                found = iter(self._by_autograd(tree, leaves, grads))
                made = [next(found) if isinstance(v, Tensor) and v.requires_grad else None for v in leaves]
            else:
                plain = [_leaf(v).requires_grad_(v.requires_grad) if isinstance(v, Tensor) else v for v in leaves]
                made = list(run_in_own_thread(lambda: self._gradients(plan, tree, plain, grads)))
        return [(v, g) for v, g in zip(leaves, made, strict=True) if isinstance(v, Tensor) and v.requires_grad]

    # ------------------------------------------------------------ signatures

    def _flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Sequence[Any], Any, Any] | None:
        """The leaves of a call, their tree where they are nested, and the signature. None where ``fn`` has to run."""
        if (
            _functorch() or _modes() or _function_modes() or _autocasting() or _tracing()
            or forward_ad._current_level >= 0
        ):  # fmt: skip
            return None
        leaves: Sequence[Any] = args
        tree = None
        if kwargs or not all(type(a) in PLAIN_TYPES or type(a) in NUMBERS for a in args):
            leaves, tree = pytree.tree_flatten((args, kwargs))
        key: list[Any] = [tree, _grad_enabled()]
        device = None
        for leaf in leaves:
            kind = type(leaf)
            if kind in PLAIN_TYPES:
                if device is None:
                    device = leaf.device
                if leaf.device != device or leaf.layout is not torch.strided or not leaf.numel():
                    return None
                key.append((leaf.shape, leaf.dtype, leaf.requires_grad))
            elif isinstance(leaf, Tensor):
                return None
            else:
                key.append(kind if kind in NUMBERS else leaf)
        if device is None:
            return None
        key.append((device, _threads()))  # of which a race speaks
        try:
            hash(tuple(key))
        except TypeError:  # an argument that is no value, an array say
            return None
        return leaves, tree, tuple(key)

    def _settled(self, key: Any, leaves: Sequence[Any]) -> Any:
        """The signature with the values of numbers that decide what is computed."""
        static = self._static.get(key)
        return (key, tuple((i, leaves[i]) for i in sorted(static))) if static else key

    # ------------------------------------------------------------ kernels

    def _plan(self, flat: tuple[Sequence[Any], Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        leaves, tree, key = flat
        found = self._plans.get(self._settled(key, leaves))
        if found is None:
            whole = tree if tree is not None else pytree.tree_flatten((args, kwargs))[1]
            found = run_in_own_thread(lambda: self._make(key, leaves, whole))
            if found.kernel is not None and not any(found.recorded):
                self._race_forward(found, found.kernel, leaves, whole)
        return found

    def _make(self, key: Any, leaves: Sequence[Any], tree: Any) -> Plan:
        def tracer(given: Sequence[Any], static: frozenset[int]) -> Any:
            return trace_forward(self.function, [_leaf(v) for v in given], tree, static)

        def definition(given: Sequence[Any]) -> Any:
            args, kwargs = pytree.tree_unflatten(given, tree)
            return pytree.tree_leaves(self.function(*args, **kwargs))

        trace, _, static = trace_settled(tracer, leaves, self._static.get(key, frozenset()))
        self._static[key] = static
        structure = trace.structure if not trace.structure.is_leaf() else None
        plan = Plan(None, static, structure)
        if _grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in leaves):
            plan.recorded = recorded_results(self.function, leaves, tree)
        try:
            kernel = make_kernel(tracer, definition, leaves, static)
            if kernel.checked.fault:
                plan.reason = f"the kernel misses float64: {kernel.checked.fault}"
                warn_user(f"kernelworks.fuse: {self.__name__} runs unfused: {plan.reason}")  # type: ignore[attr-defined]
            else:
                plan.kernel = kernel
        except BuildError as error:
            plan.reason = f"no kernel could be built: {str(error).splitlines()[0]}"
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
        self._plans[self._settled(key, leaves)] = plan
        return plan

    def _race_forward(self, plan: Plan, kernel: FusedKernel, leaves: Sequence[Any], tree: Any) -> None:
        """Puts the function itself in the kernel's place where that is as quick."""
        self._race(plan, [kernel], "forward", leaves, tree, lambda call: call)

    def _race_training(
        self, plan: Plan, kernels: Sequence[FusedKernel], tree: Any, leaves: Sequence[Any],
        grads: Sequence[Tensor | None],
    ) -> None:  # fmt: skip
        """The same for calls whose gradients are asked for: forward and backward together."""
        given = [v.detach().requires_grad_(v.requires_grad) if isinstance(v, Tensor) else v for v in leaves]
        wanted = [v for v in given if isinstance(v, Tensor) and v.requires_grad]

        def with_gradients(call: Callable[[], Any]) -> Callable[[], Any]:
            def both() -> tuple[Tensor | None, ...]:
                with torch.enable_grad():
                    found = pytree.tree_leaves(call())
                pairs = [(o, g) for o, g in zip(found, grads, strict=True) if g is not None and o.requires_grad]
                return torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True)

            return both

        self._race(plan, kernels, "training", given, tree, with_gradients)

    def _race(
        self, plan: Plan, kernels: Sequence[FusedKernel], pass_: str, leaves: Sequence[Any], tree: Any,
        whole: Callable[[Callable[[], Any]], Callable[[], Any]],
    ) -> None:  # fmt: skip
        """Both as they are called: of a short call, the signature and autograd's nodes are the larger part."""
        if not self.races or not all(kernel.text for kernel in kernels):
            return
        args, kwargs = pytree.tree_unflatten(leaves, tree)

        def ours() -> Any:
            self._flat(args, kwargs)
            return self._results(plan, kernels[0], leaves, tree)

        found = race.decide(kernels, leaves, pass_, whole(ours), whole(lambda: self.function(*args, **kwargs)))
        plan.reason = found.because
        if not found.way:
            plan.kernel = None

    def _gradients(
        self, plan: Plan, tree: Any, leaves: Sequence[Any], grads: Sequence[Tensor | None]
    ) -> Sequence[Tensor | None]:
        """The gradients of all leaves, None for those that need none."""
        if tree is None:
            tree = pytree.tree_flatten((tuple(leaves), {}))[1]
        key = tuple(None if g is None else (g.shape, g.dtype) for g in grads)
        found = plan.backwards.get(key)
        if found is None:
            found = run_in_own_thread(lambda: self._make_backward(plan, tree, leaves, grads))
            plan.backwards[key] = found
            if isinstance(found, FusedKernel) and plan.kernel is not None:
                self._race_training(plan, [plan.kernel, found], tree, leaves, grads)
        wanted = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]
        if isinstance(found, str) or torch.is_grad_enabled():
            made = self._by_autograd(tree, leaves, grads)
        else:
            made = list(found.launch(*(_leaf(v) for v in leaves), *grads))
        result: list[Tensor | None] = [None] * len(leaves)
        for i, gradient in zip(wanted, made, strict=True):
            result[i] = gradient
        return result

    def _by_autograd(self, tree: Any, leaves: Sequence[Any], grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Through ``fn`` itself."""
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            given = leaves if again else [
                v.detach().requires_grad_(v.requires_grad) if isinstance(v, Tensor) else v for v in leaves
            ]  # fmt: skip
            args, kwargs = pytree.tree_unflatten(given, tree)
            found = pytree.tree_leaves(self.function(*args, **kwargs))
            wanted = [v for v in given if isinstance(v, Tensor) and v.requires_grad]
            pairs = [(o, g) for o, g in zip(found, grads, strict=True) if g is not None and o.requires_grad]
            return list(
                torch.autograd.grad(
                    [o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True, create_graph=again
                )
            )

    def _make_backward(
        self, plan: Plan, tree: Any, leaves: Sequence[Any], grads: Sequence[Tensor | None]
    ) -> FusedKernel | str:
        """The kernel of the gradients, or why ``fn``'s own are taken."""
        count = len(leaves)

        def tracer(given: Sequence[Any], static: frozenset[int]) -> Any:
            return trace_backward(self.function, given[:count], tree, given[count:], static)

        def definition(given: Sequence[Any]) -> Any:
            wide = [
                v.requires_grad_(w.requires_grad) if isinstance(v, Tensor) else v
                for v, w in zip(given, leaves, strict=False)
            ]
            return self._by_autograd(tree, wide, given[count:])

        try:
            with torch.no_grad():
                kernel = make_kernel(tracer, definition, [*leaves, *grads], plan.static)
        except (FuseError, BuildError) as error:
            return f"by {self.__name__} itself: {str(error).splitlines()[0]}"  # type: ignore[attr-defined]
        if kernel.checked.fault:
            said = f"the kernel of its gradients misses float64: {kernel.checked.fault}"
            warn_user(f"kernelworks.fuse: {self.__name__}: {said}")  # type: ignore[attr-defined]
            return said
        return kernel


def _leaf(value: Any) -> Any:
    """Without its gradient."""
    return value.detach() if isinstance(value, Tensor) and value.requires_grad else value


class _Recorded(torch.autograd.Function):
    """A call whose gradients are recorded."""

    @staticmethod
    def forward(ctx: Any, fused: FusedFunction, plan: Plan, tree: Any, *leaves: Any) -> Any:
        assert plan.kernel is not None
        made = plan.kernel.launch(*leaves)
        ctx.fused, ctx.plan, ctx.tree = fused, plan, tree
        ctx.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        ctx.leaves = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        ctx.save_for_backward(*(leaves[i] for i in ctx.places))
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(t for t, held in zip(made, plan.recorded, strict=True) if not held))
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        leaves = list(ctx.leaves)
        for i, tensor in zip(ctx.places, ctx.saved_tensors, strict=True):
            leaves[i] = tensor
        if all(g is None for g in grads):
            return (None, None, None, *(None for _ in leaves))
        return (None, None, None, *ctx.fused._gradients(ctx.plan, ctx.tree, leaves, grads))


def _signature(key: Any) -> str:
    parts = key[0] if len(key) == 2 and isinstance(key[0], tuple) and isinstance(key[1], tuple) else key
    said = []
    for part in parts[2:-1]:
        if isinstance(part, tuple) and len(part) == 3:
            shape, dtype, _ = part
            said.append(f"{str(dtype).removeprefix('torch.')}{list(shape)}")
        else:
            said.append(part.__name__ if isinstance(part, type) else repr(part))
    return ", ".join(said)


def _served(plan: Plan) -> str:
    if plan.kernel is None:
        return f"unfused: {plan.reason}"
    return _checked(plan.kernel) + (f"; {plan.reason}" if plan.reason else "")


def _checked(kernel: FusedKernel) -> str:
    checked = kernel.checked
    return f"{kernel.target}, verified on {checked.cases} inputs, at most {checked.worst:.2f} of the bound"
