"""What one call of a module gives back: every tensor and number in its output, its gradients, and what it wrote."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from kernelworks.contract.leaves import items_of, leaves, output_tensors
from kernelworks.contract.tensors import version_of
from kernelworks.diagnose.sites.functions import Function
from kernelworks.diagnose.sites.modules import Sample
from kernelworks.diagnose.snapshot import State, duplicate, fixed_seed, to_float64
from kernelworks.diagnose.verify.checkpoints import newer_checkpoints
from kernelworks.profile.printed_output import dropped_output

__all__ = ["Answers", "answers", "in_place_of", "plain_copy", "tensors"]

DEEPEST = 8  # an output is looked at to this depth
MOST_INSIDE = 1 << 28  # so many bytes of outputs of inner modules are kept


@dataclass
class Answers:
    """``named`` are tensors by what they are (``output``, ``gradient of weight``), floating or not."""

    named: dict[str, Tensor] = field(default_factory=dict)
    inside: dict[str, Tensor] = field(default_factory=dict)  # the first output of each inner module
    unwritten: set[str] = field(default_factory=set)  # of ``named``, buffers that are what they were, as torch counts
    kinds: dict[str, str] = field(default_factory=dict)  # of what the output is made of, by the same places


def answers(sample: Sample, state: State, *, wide: bool = False, inside: bool = False) -> Answers:
    """Runs a sample and puts the module back as it was. If the program trains the module, the gradients of its
    parameters and arguments belong to the answer; dropout draws the same numbers in each run.

    With ``inside`` the outputs of inner modules too. With ``wide`` everything is to be in float64 already, and the
    arguments are widened. Raises what the module raises.
    """
    module, found = sample.module, Answers()
    args, kwargs = (to_float64 if wide else duplicate)((sample.args, sample.kwargs))
    given = leaves((args, kwargs)) | _attributes(module, args)
    before = {name: version_of(t) for name, t in given.items()}
    buffers = {name: (t, version_of(t)) for name, t in module.named_buffers()}
    # Compiled code writes and counts no version: of a module's own buffers all are answers, unless they are large.
    small = sum(t.nbytes for t, _ in buffers.values()) <= MOST_INSIDE
    with contextlib.ExitStack() as stack:
        stack.callback(state.restore)
        stack.enter_context(in_place_of(sample, wide=wide))
        if inside:
            stack.enter_context(_watched(module, found.inside))
        output = module(*args, **kwargs)
        outputs, found.kinds = output_tensors(output), dict(_kinds(output))
        copies = {f"output{name}": plain_copy(t) for name, t in outputs.items()}  # a backward may lie over them
        if sample.training:
            loss = output.get("loss") if isinstance(output, Mapping) else None
            if isinstance(loss, Tensor) and loss.requires_grad and loss.numel() == 1:
                outputs = {"['loss']": loss}  # a swapped model that trains need not store its logits
                copies = {"output['loss']": plain_copy(loss)}
            found.named |= _gradients(module, given, outputs)
        found.named |= copies
        wrote = {name: t for name, t in given.items() if version_of(t) != before[name]}
        found.named |= {f"argument{name}": plain_copy(t) for name, t in wrote.items()}
        own = _attributes(module, args)  # a method may have set others
        few = sum(t.nbytes for t in own.values()) <= MOST_INSIDE
        kept = {name: t for name, t in own.items() if few or t is not given.get(name)}
        found.named |= {f"argument{name}": plain_copy(t) for name, t in kept.items()}
        for name, tensor in module.named_buffers():
            was, version = buffers.get(name, (None, 0))
            written = tensor is not was or version_of(tensor) != version
            if small or written:
                found.named[f"buffer {name}"] = plain_copy(tensor)
            if not written:
                found.unwritten.add(f"buffer {name}")
    return found


def _kinds(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """The types of what holds the tensors of an output, and of what stands there beside them; of a tensor whether it
    has a gradient. What a string or an object says is its own affair."""
    if isinstance(value, Tensor):
        yield path, "a tensor with a gradient" if value.requires_grad else "a tensor without a gradient"
        return
    yield path, type(value).__qualname__
    if depth > DEEPEST:
        return
    for key, item in items_of(value):
        yield from _kinds(item, f"{path}[{key!r}]", depth + 1)


def _attributes(module: nn.Module, args: tuple[Any, ...]) -> dict[str, Tensor]:
    """What a method's object holds."""
    return module.attributes(args) if isinstance(module, Function) else {}


def plain_copy(tensor: Tensor) -> Tensor:
    """A plain dense tensor of its own; of complex numbers their real and imaginary parts."""
    tensor = tensor.detach()
    if tensor.is_nested:
        tensor = torch.cat([t.reshape(-1) for t in tensor.unbind()])
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.clone()


def _gradients(module: nn.Module, given: dict[str, Tensor], outputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of a sum of all outputs, each element times a number of its own: the plain sum of a softmax or of a normalized
    row has no gradient at all."""
    terms = [
        _weighed(t)
        for t in outputs.values()
        if t.requires_grad and t.is_floating_point() and not t.is_nested and t.numel()
    ]
    wanted: dict[str, Tensor] = {f"gradient of {n}": p for n, p in module.named_parameters() if p.requires_grad}
    wanted |= {f"gradient of argument{n}": t for n, t in given.items() if t.requires_grad and t.is_leaf}
    if not terms or not wanted:
        return {}
    # A graph that earlier calls left in the module must last; one of torch.compile may not be asked to.
    compiled = any(m.__dict__.get("_compiled_call_impl") is not None for m in module.modules())
    found: tuple[Any, ...] = torch.autograd.grad(
        torch.stack(terms).sum(), list(wanted.values()), retain_graph=not compiled, allow_unused=True
    )
    return {
        name: torch.zeros_like(tensor) if gradient is None else plain_copy(gradient)
        for (name, tensor), gradient in zip(wanted.items(), found, strict=True)
    }


def _weighed(tensor: Tensor) -> Tensor:
    """Its sum, each element times the same number each time: drawn where it lies, as a CPU takes seconds for the logits
    of a long text."""
    device = tensor.device
    with torch.no_grad():
        source = torch.Generator(device).manual_seed(7)
        numbers = torch.rand(tensor.shape, generator=source, dtype=torch.float64, device=device).sub_(0.3)
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    return (dense.double() * numbers).sum()


def tensors(value: Any) -> list[Tensor]:
    """The floating-point tensors among them."""
    return [t for t in leaves(value).values() if t.is_floating_point()]


@contextlib.contextmanager
def in_place_of(sample: Sample, *, wide: bool = False) -> Iterator[None]:
    """Modes, gradients and autocast as the program had them at this call, and the same random numbers each time. What
    it prints was shown when the program ran."""
    with contextlib.ExitStack() as stack:
        for each in (
            dropped_output(), fixed_seed(), _modes(sample), _arithmetic(sample, wide=wide), newer_checkpoints(),
            _a_step_of_its_own(),
        ):  # fmt: skip
            stack.enter_context(each)
        yield


_steps = itertools.count(1)


@contextlib.contextmanager
def _a_step_of_its_own() -> Iterator[None]:
    """A forward without its backward leaves torch's CUDA graphs waiting for it: what they return next would lie over
    what the run after it still reads."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is None:
        yield
        return
    by_program = trees.MarkStepBox.mark_step_counter
    if not by_program:  # torch takes a number that it has had for the same step, and captures what runs in it anew
        trees.MarkStepBox.mark_step_counter = -2 * next(_steps)
    torch.compiler.cudagraph_mark_step_begin()
    try:
        yield
    finally:
        torch.compiler.cudagraph_mark_step_begin()
        if not by_program:
            _find_steps_again(trees)


def _find_steps_again(trees: Any) -> None:
    """Once a step was marked, torch waits for the next mark: each run of a program that marks none would belong to the
    same step, and have its graphs captured anew."""
    trees.MarkStepBox.mark_step_counter = 0
    for device in range(torch.cuda.device_count()):
        manager = trees.get_manager(device, create_if_none_exists=False)
        if manager is not None:
            manager.running_forwards_with_pending_backwards = False


@contextlib.contextmanager
def _modes(sample: Sample) -> Iterator[None]:
    """The modules' modes and the gradients as the program had them at this call."""
    modules = list(sample.module.modules())
    before = [m.training for m in modules]
    if len(sample.modes) == len(modules):
        for module, training in zip(modules, sample.modes, strict=True):
            module.training = training
    try:
        if sample.inference:
            with torch.inference_mode():
                yield
        else:
            with torch.inference_mode(False), torch.set_grad_enabled(sample.training or sample.recording):
                yield
    finally:
        for module, training in zip(modules, before, strict=True):
            module.training = training


@contextlib.contextmanager
def _arithmetic(sample: Sample, *, wide: bool) -> Iterator[None]:
    """The autocast that the program had, and none if all is in float64."""
    kinds = {"cpu", *sample.autocast, *(t.device.type for t in (*sample.module.parameters(), *sample.module.buffers()))}
    with contextlib.ExitStack() as stack:
        for kind in kinds & {"cpu", "cuda"}:
            dtype = None if wide else sample.autocast.get(kind)
            stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=dtype is not None))
        yield


@contextlib.contextmanager
def _watched(module: nn.Module, found: dict[str, Tensor]) -> Iterator[None]:
    """Keeps the first floating tensor of the first call of each inner module."""
    handles = []
    bytes_left = MOST_INSIDE

    def watch(name: str) -> Any:
        def hook(inner: nn.Module, args: Any, output: Any) -> None:
            nonlocal bytes_left
            first = next(iter(tensors(output)), None)
            if first is not None and name not in found and first.nbytes <= bytes_left:
                bytes_left -= first.nbytes
                found[name] = plain_copy(first)

        hook.sees_kernelworks = True  # type: ignore[attr-defined]
        return hook

    for name, inner in module.named_modules():
        if name:
            handles.append(inner.register_forward_hook(watch(name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
