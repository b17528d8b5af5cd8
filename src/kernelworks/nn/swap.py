"""``swap(model)``: kernelworks' ops in place of torch's, in a model that exists, explicitly and reversibly.

A swap puts an op in place if a tuning record says that it may be faster here, in the model's dtype, on its device, for
the sizes that a module is known to have. It leaves every other module as it is, without a stand-in to pass through.
``autotune`` measures first: then every op is put in place, the calls that a run makes are benchmarked, and what won
nothing is taken out again.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import threading
from collections.abc import Callable, Collection, Iterable, Set
from dataclasses import dataclass
from types import FunctionType, MethodType, TracebackType
from typing import Any

import torch
from torch import nn

from kernelworks.contract.tensors import PLAIN_TYPES
from kernelworks.dispatch.op import OPS
from kernelworks.dispatch.signature import gates, ops_of, torch_signatures
from kernelworks.machine import environment
from kernelworks.measure.autotune import autotune as run_autotune
from kernelworks.nn import attention, decoder, language
from kernelworks.nn.decoder import decoder_layer, parts_of
from kernelworks.nn.expected_kernels import Outlook, Outlooks
from kernelworks.nn.forwards import activations, known_forward, reason_left, writes_into_its_input
from kernelworks.nn.install import InstalledAttributes, copies_itself, installed_on, take_off_strangers
from kernelworks.nn.rebind import Rebinder, guarded_method
from kernelworks.nn.recurrent import known_network
from kernelworks.nn.rotary import known_rotary
from kernelworks.nn.transformers_recurrence import known_recurrence
from kernelworks.records import AutotuneResult, SwapRecord
from kernelworks.records.base import Record

__all__ = ["LeftModule", "ReplacedModule", "Swap", "swap", "swap_beside"]


@dataclass(frozen=True)
class ReplacedModule:
    """One module (or configuration, or loss) whose work goes to kernelworks now."""

    path: str
    type: str
    kind: str
    ops: tuple[str, ...]


@dataclass(frozen=True)
class LeftModule:
    """One module that stays as it was, and why."""

    path: str
    type: str
    reason: str


class Swap(Record):
    """What a swap did to one model; ``undo()`` takes all of it back. Also a context manager that undoes on leaving.

    ``replaced`` and ``left`` list every module that computes something itself, in the model's order.
    ``autotune_result`` is what was measured for it, if anything was; ``waiting`` says that the model's next call is to
    be measured.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.replaced: tuple[ReplacedModule, ...] = ()
        self.left: tuple[LeftModule, ...] = ()
        self.autotune_result: AutotuneResult | None = None
        self.waiting = False
        self._undo: list[Callable[[], None]] = []

    @property
    def active(self) -> bool:
        """Whether the model runs on kernelworks' ops, that is until ``undo()``."""
        return bool(self._undo)

    def undo(self) -> None:
        """Gives the model back as it was: the same functions on the same parameters, so the same bits. Once is enough;
        a second call does nothing."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Swap:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()

    def installed_ops(self) -> set[str]:
        """The ops that were put in place, of a model on the CPU."""
        on_cpu = all(p.device.type == "cpu" for p in self.model.parameters())
        return {op for r in self.replaced for op in r.ops} if on_cpu else set()

    def outlooks(self) -> tuple[tuple[Outlook, ...], ...]:
        """For each of ``replaced`` the kernels that its ops will take, in the dtype and on the device that the model
        has now; asked of the dispatcher, for the sizes that the ops' benches time."""
        outlooks = Outlooks(self.model)
        return tuple(tuple(outlooks.of(op, r.path) for op in r.ops) for r in self.replaced)

    def lines(self) -> list[str]:
        """What was replaced, and by which kernel of ours; where torch's own kernels run all the same, and why; what was
        left, and why. One line for each group of like modules."""
        if self.waiting:
            every = f"every op is in place in {len(self.replaced)} of {len(self.replaced) + len(self.left)}"
            return [f"{every}: the model's next call measures which of them stay"]
        pairs = [
            (r, of, f"{r.kind} -> {', '.join(map(str, of))}")
            for r, of in zip(self.replaced, self.outlooks(), strict=True)
        ]
        done = _grouped((r.path, r.type, text) for r, of, text in pairs if any(o.has_our_kernel for o in of))
        same = _grouped((r.path, r.type, text) for r, of, text in pairs if not any(o.has_our_kernel for o in of))
        kept = _grouped((item.path, item.type, item.reason) for item in self.left)
        ours = sum(any(o.has_our_kernel for o in of) for _, of, _ in pairs)
        nothing = "" if ours else " the model runs as before"
        return [
            f"replaced {ours} of {len(self.replaced) + len(self.left)}:{nothing}",
            *(f"  {line}" for line in done),
            *(["an op is in place, and torch's own kernel runs:", *(f"  {line}" for line in same)] if same else []),
            *(["left as they are:", *(f"  {line}" for line in kept)] if kept else []),
            *([str(self.autotune_result).splitlines()[-1]] if self.autotune_result is not None else []),
        ]

    def record(self) -> SwapRecord:
        """What was done, as it stands now: what a notebook shows and ``save`` writes."""
        replaced, left = (tuple(dataclasses.asdict(item) for item in some) for some in (self.replaced, self.left))
        return SwapRecord(tuple(self.lines()), replaced, left)

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _grouped(items: Iterable[tuple[str, str, str]]) -> list[str]:
    """One line for all modules of one type with one text: how many, and the patterns of their paths."""
    groups: dict[tuple[str, str], dict[str, list[str]]] = {}
    for path, kind, text in items:
        pattern = re.sub(r"(?<![^.])\d+(?![^.])", "*", path) or "(the model itself)"
        groups.setdefault((kind, text), {}).setdefault(pattern, []).append(path)
    lines = []
    for (kind, text), patterns in groups.items():
        count = sum(len(paths) for paths in patterns.values())
        shown = [paths[0] if len(paths) == 1 and paths[0] else pattern for pattern, paths in patterns.items()]
        more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
        lines.append(f"{count:4d} x {kind}: {text}  [{', '.join(shown[:3])}{more}]")
    return lines


def swap(
    model: nn.Module,
    *,
    autotune: Callable[[], Any] | bool = False,
    verbose: bool = True,
    ops: Collection[str] | None = None,
) -> Swap:
    """Puts kernelworks' ops into ``model``, in place, and says what was replaced and what was left and why.

    Replaced are, on each instance and never on a class: ``nn.Linear``, ``nn.LayerNorm``, ``nn.RMSNorm``, ``nn.GELU``,
    ``nn.Softmax``, ``nn.InstanceNorm1d`` to ``3d``, ``nn.CrossEntropyLoss`` and, where no gradient is wanted,
    ``nn.LSTM`` and ``nn.GRU``; transformers' RMSNorm, gated MLP with SiLU or GELU, GELU classes, rotary embedding,
    loss, experts of a mixture, the gated delta rule, Mamba-2's scan and causal convolutions of recurrent layers, and
    attention through transformers' registry; and, in any other module, the calls of ``torch.nn.functional`` that
    kernelworks has an op for. Parameters, buffers, hooks, the modules themselves and ``state_dict`` stay the same
    objects, with no copy of a weight.

    A module is left as it is if no tuning record says that a kernel of ours may be faster on this kind of machine, in
    its dtype and for its sizes. In one that is replaced each call takes the kernel that its tuning record names, which
    may be torch's own function. Calls outside what an op can say (float64, another device, autocast) are torch's too.

    Works in inference and training, and under ``torch.compile`` if the model does; swap before compiling, since a
    compiled graph keeps what it was traced from. While swapped, a plain ``DynamicCache`` grows in place instead of
    being copied at every token, and on a GPU a causal language model in training mode that is given labels computes
    its loss without storing logits: ``output.logits`` is None then.

    Args:
        model: any module. Its configuration, if transformers made it, is changed until ``undo()``.
        autotune: how to measure first what is not known of this machine yet. A function that runs the model as it will
            be run (``lambda: model(x)``, or a training step): it is called once, before ``swap`` returns. True: the
            model's next call is measured, which then takes seconds more; a model that is called in several ways (a
            prompt, then tokens) wants a function that does them all. What was measured is kept for later processes.
        verbose: whether to print the lines that ``str()`` of the result gives.
        ops: the names of those that may be put in place (``["attention"]``), by default all. What calls others too is
            left.

    Returns:
        Swap: ``replaced``, ``left``, ``autotune_result`` and ``undo()``.

    Raises:
        TypeError: ``model`` is not a module; ``autotune`` is neither a function nor a bool.
        ValueError: one of ``ops`` is no op.
        RuntimeError: it, or a part of it, is swapped already.
        Whatever ``autotune`` raises; the model is as it was then.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if not (isinstance(autotune, bool) or callable(autotune)):
        raise TypeError(f"autotune must be True, False or a function to run, got {type(autotune).__name__}")
    unknown = sorted(set(ops or ()) - OPS.keys())
    if unknown:
        raise ValueError(f"ops must be names of ops, got {unknown[0]!r}")
    for path, module in model.named_modules():
        if installed_on(module) is not None:
            raise RuntimeError(f"model is swapped already ({path or 'its root'}): undo() that swap first")
    if autotune is True:
        result = _autotune_on_next_call(model, verbose=verbose, ops=ops)
    elif autotune:
        with swap_beside(model, frozenset(), every=True, ops=ops) as every:
            found = run_autotune(autotune, expected=every.installed_ops())
        result = swap_beside(model, frozenset(), ops=ops)
        result.autotune_result = found
    else:
        result = swap_beside(model, frozenset(), ops=ops)
    if verbose:
        print(result)
    return result


def swap_beside(model: nn.Module, others: Set[int], *, every: bool = False, ops: Collection[str] | None = None) -> Swap:
    """``swap`` of what is not swapped yet in a model some modules of which (by ``id``) belong to another swap too.
    Undo such swaps in the reverse of their order. With ``every`` whatever an op can say is put in place, also if no
    tuning record says that it is faster: so that it may be measured."""
    for module in model.modules():
        take_off_strangers(module)
    result = Swap(model)
    _fill(result, others, every=every, ops=ops)
    return result


def _fill(result: Swap, others: Set[int], *, every: bool, ops: Collection[str] | None) -> None:
    try:
        _Walk(result, others, every=every, ops=ops).run()
        for op in ops_of(name for replaced in result.replaced for name in replaced.ops):
            op.entry.ensure_native()  # ahead of a compiler, which reads how calls go
    except BaseException:
        result.undo()
        raise


def _autotune_on_next_call(model: nn.Module, *, verbose: bool, ops: Collection[str] | None) -> Swap:
    """Everything in place, and a forward that measures its first call and then takes out what won nothing."""
    result = swap_beside(model, frozenset(), every=True, ops=ops)
    found, waiting = model.forward, threading.Lock()
    result.waiting = True

    @functools.wraps(getattr(found, "__func__", found))
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        run = functools.partial(found, *args, **kwargs)
        if torch.compiler.is_compiling() or not waiting.acquire(blocking=False):
            return run()
        outputs: list[Any] = []
        try:
            autotune_result = run_autotune(lambda: outputs.append(run()), expected=result.installed_ops())
        except BaseException:
            waiting.release()
            raise
        result.waiting = False
        if result.active:  # the program may have undone it meanwhile
            result.undo()
            _fill(result, frozenset(), every=False, ops=ops)
            result.autotune_result = autotune_result
            if verbose:
                print(result)
        return outputs[0]

    installed = installed_on(model)
    if installed is not None:
        installed.set("forward", MethodType(forward, model))
    return result


# ---------------------------------------------------------------- one model


_KINDS: dict[tuple[str, ...], str] = {(gate.op.name,): "gated MLP" for gate in gates().values()}


def _sizes(op: str, module: nn.Module | None) -> dict[str, int]:
    """The dimensions of an op's calls, by their names in its contract, that a module's weight fixes: one that has its
    sizes by now, and is no tensor of a kind that may not be asked for them."""
    if module is not None and known_network(module) is not None:
        return {"I": int(module.input_size), "H": int(module.hidden_size)}  # type: ignore[arg-type]
    weight = None if module is None else module._parameters.get("weight")
    if weight is None or type(weight) not in PLAIN_TYPES or weight.is_nested:
        return {}
    found = OPS[op] if op in OPS else torch_signatures()[op].op
    names = getattr(found.template, "weight_dims", ("N", "K"))
    return dict(zip(names, weight.shape, strict=False)) if "weight" in found.passes["forward"].names else {}


class _Walk:
    """One pass over the modules of a model."""

    def __init__(self, result: Swap, others: Set[int], *, every: bool, ops: Collection[str] | None) -> None:
        self.result = result
        self.others = others
        self.ops = None if ops is None else frozenset(ops)
        self.every = every or environment.selection_policy() == "listed"
        self.outlooks = Outlooks(result.model)
        self.rebinder = Rebinder(known=lambda function: known_rotary(function) or known_recurrence(function))
        self.installed: dict[int, InstalledAttributes] = {}
        self.replaced: list[ReplacedModule] = []
        self.left: list[LeftModule] = []
        self.absorbed: set[int] = set()  # activations that a gated MLP computes in its fused op
        self.attention: dict[int, str] = {}  # id of a configuration -> why its attention stays, or ""
        self.growing: dict[Any, Any] = {}

    def run(self) -> None:
        for path, module in self.result.model.named_modules():
            if copies_itself(type(module)):
                why = "its class has a __copy__ of its own, whose copies would run this module's parameters"
                self.left.append(LeftModule(path, type(module).__name__, why))
        for _, module in self._modules():
            self.installed[id(module)] = InstalledAttributes(module)
            self.result._undo.append(self.installed[id(module)].remove)
        self._registry()
        for path, module in self._modules():
            if id(module) in self.absorbed:
                continue
            found = self._module(path, module)
            if isinstance(found, str):
                if found:
                    self.left.append(LeftModule(path, type(module).__name__, found))
            else:
                self.replaced.append(ReplacedModule(path, type(module).__name__, *found))
        self._layers()
        fused = [(p, m) for p, m in self._modules() if language.is_known_causal_lm(m)]
        self._losses()
        for path, module in fused:
            self._fused_loss(path, module)
        self.result.replaced, self.result.left = tuple(self.replaced), tuple(self.left)

    def _modules(self) -> list[tuple[str, nn.Module]]:
        found = self.result.model.named_modules()
        return [(path, m) for path, m in found if id(m) not in self.others and not copies_itself(type(m))]

    def _registry(self) -> None:
        configurations = attention.configurations(self.result.model)
        why = self._no_gain(attention.USES, "") if configurations else ""
        if why and any(not self._no_gain(decoder.USES, path) and parts_of(m) for path, m in self._modules()):
            why = ""  # a layer in one piece calls its attention itself, torch's too
        for config, reason in configurations:
            reason = self.attention[id(config)] = reason or why
            if not reason:
                self.result._undo.append(attention.install_name(config))

    def _no_gain(self, ops: tuple[str, ...], path: str, module: nn.Module | None = None) -> str:
        """Why none of these ops may make a part of the model faster, or "" if one may."""
        if self.ops is not None and not self.ops.issuperset(ops):
            return "its ops are not among those that were asked for"
        if self.every:
            return ""
        found = [self.outlooks.of(op, path, _sizes(op, module)) for op in ops]
        return "" if any(o.has_our_kernel for o in found) else found[0].why

    def _module(self, path: str, module: nn.Module) -> tuple[str, tuple[str, ...]] | str:
        """(kind, ops) of what was replaced in a module, or why it was left, or "" if it only holds others."""
        worth_a_line = not any(True for _ in module.children()) or bool(module._parameters)
        if isinstance(module, torch.jit.ScriptModule):
            return "torch.jit.script compiled it"
        if "forward" in module.__dict__:
            return "its forward was already replaced on the instance by somebody else"
        if writes_into_its_input(module):
            return reason_left(module)
        entry = known_forward(module)
        if entry is not None:
            why = self._no_gain(entry.ops, path, module)
            if not why:
                self._install(module, entry.forward)
            return why or (entry.kind, entry.ops)
        forward = type(module).forward
        ops, why = self._rebound(path, module)
        if attention.uses_attention_registry(forward):
            why = self.attention.get(id(getattr(module, "config", None)), "it has no configuration of its own")
            ops = ops if why else (*attention.USES, *ops)
            if ops and attention.appends_to_cache(forward):
                current = module.__dict__.get("forward")
                self._install(module, attention.wrap_growing_cache(current.__func__ if current else forward))
        if ops:
            attends = set(attention.USES) <= set(ops)
            return (attention.KIND if attends else _KINDS.get(ops, "functional calls")), ops
        return why or (reason_left(module) if worth_a_line else "")

    def _install(self, module: nn.Module, function: Callable[..., Any]) -> None:
        self._set(module, "forward", MethodType(function, module))

    def _set(self, module: nn.Module, name: str, value: Any) -> None:
        self.installed[id(module)].set(name, value)

    def _rebound(self, path: str, module: nn.Module) -> tuple[tuple[str, ...], str]:
        """Rebinds the functional calls of a module's forward and of the methods that it calls; returns their names, or
        why those that there are were left."""
        ops: set[str] = set()
        why = ""
        own = activations(module)
        queue, seen = ["forward"], {"forward"}
        while queue:
            name = queue.pop()
            if name in module.__dict__:  # set on the instance: it is what runs, and the user's
                continue
            function = inspect.getattr_static(type(module), name)
            static = isinstance(function, staticmethod)
            function = function.__func__ if static else function
            if not isinstance(function, FunctionType):
                continue
            rebound = self.rebinder.rebind(function, own)
            lost = self._no_gain(rebound.calls, path) if rebound is not None else ""
            why = why or lost
            if rebound is not None and not lost:
                ops.update(rebound.calls)
                method = guarded_method(module, name, function, rebound)
                self._set(module, name, method if static else MethodType(method, module))
            for other in set(function.__code__.co_names) - seen:
                if _own_method(type(module), other):
                    seen.add(other)
                    queue.append(other)
        self.absorbed.update(id(module._modules[name]) for name, op in own.items() if op in ops)
        return tuple(sorted(ops)), "" if ops else why

    def _layers(self) -> None:
        """Decoder layers whose parts are all replaced run in one piece if nothing watches the parts."""
        for path, module in self._modules():
            parts = None if self._no_gain(decoder.USES, path) else parts_of(module)
            if parts is not None and self.attention.get(id(parts.attention.config)) == "":
                self._set(module, "_kernelworks_parts", parts)
                self._install(module, decoder_layer)
                self.replaced.append(
                    ReplacedModule(path, type(module).__name__, "decoder layer in one piece", decoder.SHOWN_OPS)
                )

    def _losses(self) -> None:
        """The losses of transformers' models, which are plain functions that call ``F.cross_entropy``."""
        for path, module in self._modules():
            if getattr(module, "loss_type", None) and "_loss_function" not in module.__dict__:
                function = getattr(module, "loss_function", None)
                rebound = self.rebinder.rebind(function)
                if isinstance(function, FunctionType) and rebound is not None:
                    name = f"{path}.loss_function".lstrip(".")
                    why = self._no_gain(rebound.calls, path)
                    if why:
                        self.left.append(LeftModule(name, function.__name__, why))
                        continue
                    self._set(module, "_loss_function", rebound.function)
                    self.replaced.append(ReplacedModule(name, function.__name__, "loss", rebound.calls))

    def _fused_loss(self, path: str, module: Any) -> None:
        """A causal language model whose loss comes from the hidden states: in training its logits are never stored."""
        if self._no_gain(language.USES, path):
            return
        self._set(module, "_kernelworks_loss", language.fused_loss_site(module))
        self._install(module, language.with_fused_loss())
        self.replaced.append(ReplacedModule(path, type(module).__name__, "language model's loss", language.USES))


def _own_method(cls: type, name: str) -> bool:
    """Whether a name is a method that a user's class (not torch's or transformers' base classes) defines; or one that a
    module of torch's defines beside its forward, as ``nn.Conv2d`` does, whose forward only calls another method."""
    for base in cls.__mro__:
        if name in base.__dict__:
            if base is not nn.Module and base.__module__.startswith("torch.nn.modules.") and "forward" in base.__dict__:
                return True
            return str(base.__module__).partition(".")[0] not in ("torch", "builtins") and not base.__name__.startswith(
                "PreTrained"
            )
    return False
