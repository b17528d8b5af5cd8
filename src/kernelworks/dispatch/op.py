"""An op: its contract, its kernels, how it is called, and how torch sees it.

``Op`` puts the choice among kernels (``choose.py``) behind a cache of plans, so that a small call costs about a
microsecond, and behind ``torch.library``, so that the same call is differentiable and clean under ``torch.compile``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build import BuildError
from kernelworks.contract import Contract, Kernel, Mutant, Request, describe, shape_only_spec, spec
from kernelworks.contract.tensors import (
    MEMORY,
    OTHER,
    PLAIN_TYPES,
    RESOLVABLE,
    TENSOR_KINDS,
    TRACED,
    TRANSFORM,
    hide_from_modes,
    is_observed,
    is_transform_active,
    leaves,
    resolve_bits,
    skip_dynamo,
    suspend_tracing,
    tensor_kind,
)
from kernelworks.dispatch.arrays import as_tensors, has_foreign_array, restore_arrays
from kernelworks.dispatch.autograd import derivative, readers, recorded_forward, training_forward
from kernelworks.dispatch.choose import OR_TORCH, Choice, LoadFailure, choose, clear_load_failures, record_load_failure
from kernelworks.dispatch.entry import Entry
from kernelworks.dispatch.flop_counter import register_with_counters
from kernelworks.dispatch.hooks import notify_watchers, stop_at
from kernelworks.dispatch.meta_arguments import on_meta, without_data
from kernelworks.dispatch.mutation import (
    announce,
    announce_arguments,
    as_tuple,
    check_out,
    copy_into,
    overlap,
    refuse_crossed,
    same_place,
    written_arguments,
)  # fmt: skip
from kernelworks.dispatch.passthrough import Passthrough
from kernelworks.dispatch.plan_calls import call_named, hand_out, in_own_dtype, with_own_dtype
from kernelworks.dispatch.plans import AUTOGRAD, KERNEL, NATIVE, Plan, Plans, generation
from kernelworks.dispatch.torch_library import OPS, in_cpp, register
from kernelworks.dispatch.tuning_records import has_known_sizes
from kernelworks.dispatch.user_warning import warn_user
from kernelworks.machine import environment

__all__ = ["OPS", "Op", "Pass"]

FREE = "*"  # in a key, for a number that no choice depends on; native/key.hpp knows it

_get_threads, _grad_enabled = torch.get_num_threads, torch.is_grad_enabled

_said: set[str] = set()  # the faults that a warning has named


@dataclass(frozen=True)
class Pass:
    """One direction of an op as torch knows it.

    ``schema`` is torch.library's, its argument names those of the contract; ``fake(*args)`` gives outputs of the right
    shape without data. A backward's arguments are named ``grad_<output>``, or as an input or output of the forward;
    ``bool[] needs`` receives which of ``returns`` (input names) autograd wants; the others may be empty tensors.
    ``free`` names numbers that no choice of a kernel depends on, with a test that holds where they are valid: they then
    are no part of a plan's key, so that another value (the next step) needs no other plan.
    ``reads`` says for an input's gradient which of the backward's tensors its value depends on, where that is not all:
    what no gradient that is wanted depends on may be written between the passes, as with torch's own functions.
    ``unread`` names for a tensor a flag with which no gradient depends on its value (running statistics in training).
    """

    schema: str
    fake: Callable[..., Any]
    returns: tuple[str, ...] = ()
    free: Mapping[str, Callable[[Any], bool]] = field(default_factory=dict)
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        parsed = torch._C.parse_schema(self.schema)
        object.__setattr__(self, "names", tuple(a.name for a in parsed.arguments if a.name != "op_kernel"))


class Op:
    """An op: its contract, its kernels (best first, ``torch`` and ``reference`` last), and how torch sees it.

    A call ``op(*args, out=, kernel=)`` takes positional arguments in the order of the forward's schema.
    """

    def __init__(
        self, contract: Contract, kernels: Sequence[Kernel], *, op_package: str, forward: Pass,
        backward: Pass | None = None, mutants: Sequence[Mutant] = (), composite: Callable[..., Any] | None = None,
        pointwise: bool = False, native: Callable[..., Any] | None = None, aten: Callable[..., Any] | None = None,
        to_torch: Callable[..., Any] | None = None, from_torch: Callable[..., Any] | None = None,
        passthrough: Passthrough | None = None, to_record: Callable[..., tuple[Any, ...]] | None = None,
        result_type: Callable[[Any], Any] | None = None,
    ) -> None:  # fmt: skip
        """``composite(*args)`` is the forward in torch's own functions, as a user would write it: what autograd,
        torch.func and jit.trace can look into. Arguments by position or name; by default the ``torch`` kernel's
        forward. ``native(*args)`` is what runs where no kernel of ours is taken (``as_written``, without what
        ``Op.native`` adds); by default ``composite``, from which it differs where torch's own function has no second
        derivative. ``aten(*args)`` says the operators that ``native`` calls (``aten.py``), or None. ``passthrough``
        says how that is called at once, where there is one function of torch's for it. ``pointwise`` says that no
        element of the output needs one of the inputs elsewhere, so that ``out`` may be an input. ``to_torch(result,
        *args)`` and ``from_torch(result, *args)`` turn what kernels return into what the schema says and back, where
        the two differ (an optional second output, say). ``to_record(*args)`` gives the arguments of a forward that
        autograd records, where the backward reads an output that the call did not ask for. ``result_type`` makes what
        a call returns of a tuple of results, where torch's function gives them names (``torch.return_types.topk``)."""
        if [r.name for r in kernels][-2:] != ["torch", "reference"]:
            raise ValueError(f"the last two kernels of {contract.name} must be torch and reference")
        self.name = contract.name
        self.contract = contract
        self.kernels = tuple(map(contract.permitted_kernel, kernels))
        self.op_package = Path(op_package).resolve().parent
        self.mutants = tuple(mutants)
        self.passes = {"forward": forward} | ({"backward": backward} if backward else {})
        self.differentiable = bool(backward or contract.mutates)  # else there is nothing that autograd could record
        self._composite = composite or self.kernel("torch").load("forward")
        self.as_written, self._aten = native or self._composite, aten
        self.passthrough = passthrough
        self.pointwise = pointwise
        self.template: Any = None  # the op template that made most of this, if one did (templates/)
        if result_type is not None and from_torch is None:
            from_torch = lambda result, *args: result_type(result)  # noqa: E731
        self._to_torch, self._from_torch, self._to_record = to_torch, from_torch, to_record
        self._result_type = result_type
        self.plans = Plans()
        schema = torch._C.parse_schema(forward.schema)
        self._arrays = {a.name for a in schema.arguments if "Tensor" in str(a.type)}
        self.torch_signature: Any = None  # set by the op package's TorchSignature
        self.gate: Any = None  # set by the op package's Gate
        # The pattern of several torch ops that this op replaces; its op package sets it (diagnose/rules/patterns.py).
        self.pattern = ""
        self.ambiguous_signature: Any = None  # the same where its calls may be told by no more than what stands where
        self._overload: Any = None  # set by register()
        self._backward_overload: Any = None
        self._record: Any = None
        self.call: Any = None  # call(*args, out, kernel); set by what is entered through
        # call_planned(*args): the same if C++ has a plan, else NotImplemented; not for compilers
        self.call_planned: Any = None
        self.entry = Entry(self, in_cpp)
        self.plans.disable_passthrough = self.entry.disable_passthrough
        register(self)
        OPS.add(self.name, self)

    def kernel(self, name: str) -> Kernel:
        """The kernel of this name. Raises ValueError that lists the kernels there are."""
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        raise ValueError(
            f"kernel must be one of {', '.join(r.name for r in self.kernels)} for {self.name}, got {name!r}"
        )

    # ------------------------------------------------------------ calling

    def __call__(self, *args: Any, out: Any = None, kernel: str | None = None) -> Any:
        return self.call(*args, out, kernel)

    def composite(self, *args: Any, **named: Any) -> Any:
        """The forward in torch's own functions, whatever autocast says: the op's dtype is its inputs'."""
        return in_own_dtype(self._composite, *args, **named)

    def native(self, *args: Any) -> Any:
        """What a user would have called in torch, whatever autocast says; its own autograd records it."""
        with next((t.fake_mode for t in leaves(args) if hasattr(t, "fake_mode")), contextlib.nullcontext()):
            return in_own_dtype(self.as_written, *args)  # what it makes (a mask) stands for a tensor as they do

    @skip_dynamo
    def _miss(self, args: tuple[Any, ...], out: Any, kernel: str | None) -> Any:
        """A call that C++ found no plan for: the first of its kind, one that is not plain, or any without C++."""
        self.entry.ensure_native()
        if kernel is None:
            self.entry.enable_passthrough()
        if self.ambiguous_signature is not None and self.ambiguous_signature.is_torch_call(args):
            return self.ambiguous_signature.reread(args, out, kernel)
        if not is_transform_active() and not is_observed():
            wanted = self._recorded_for(args, out)
            if wanted is not None:
                plan = self._find("training" if wanted else "forward", args, out, kernel, wanted)
                if plan is None and self._plain(args, out):
                    plan = (
                        self._training(args, kernel, wanted) if wanted else self.make_plan("forward", args, out, kernel)
                    )
                if plan is not None:
                    if plan.kind == NATIVE and out is kernel is None:
                        self.entry.add_passthrough(args)
                    return self._run_plan(plan, args, out)
        if has_foreign_array((*args, out)):
            return self._through_tensors(args, out, kernel)
        kinds = {tensor_kind(t) for t in leaves((*args, out))}
        if is_transform_active() or OTHER in kinds:
            return self._through_composite(args, out, kernel)
        if RESOLVABLE in kinds and TRACED not in kinds and not is_observed():
            if any(tensor_kind(t) == RESOLVABLE for t in leaves((out, *written_arguments(self, args)))):
                return self._through_composite(args, out, kernel)
            return self.call(*(resolve_bits(a) for a in args), out, kernel)
        return self._through_torch(args, out, kernel)

    @staticmethod
    def _plain(args: tuple[Any, ...], out: Any) -> bool:
        """Whether a plan may be made for a call: all that it is given is tensors of plain memory, or no tensor."""
        return not has_foreign_array((*args, out)) and all(tensor_kind(t) == MEMORY for t in leaves((*args, out)))

    def _recorded_for(self, args: tuple[Any, ...], out: Any) -> tuple[str, ...] | None:
        """The inputs whose gradients autograd wants; None where it wants some that no plan records."""
        if not _grad_enabled() or not any(t.requires_grad for t in leaves((*args, out))):
            return ()
        wanted = self.inputs_requiring_grad(args)
        able = (out is None and "backward" in self.passes) or not self.differentiable
        return wanted if able and set(wanted) <= set(self.contract.differentiable) else None

    def inputs_requiring_grad(self, args: Sequence[Any]) -> tuple[str, ...]:
        """The inputs whose gradients autograd is to record: those that require them, of an op that has any to give."""
        named = zip(self.passes["forward"].names, args, strict=True) if self.differentiable else ()
        return tuple(name for name, value in named if any(t.requires_grad for t in leaves((value,))))

    def _run_plan(self, plan: Plan, args: tuple[Any, ...], out: Any) -> Any:
        """Runs a plan for plain tensors, and says what it writes."""
        announce_arguments(self, args)
        if out is None:
            return plan.run(*args)
        refuse_crossed(out)
        if overlap(out, args) and not (self.pointwise and all(same_place(out, t) for t in leaves(args))):
            return self._named(copy_into(plan.run(*args), out))  # what was not read yet must not be overwritten
        announce(leaves((out,)))
        return plan.run(*args, out=out)

    def _free(self, pass_: str, args: Sequence[Any]) -> frozenset[str]:
        """The names of numbers among the arguments that no choice depends on."""
        free = self.passes[pass_].free
        named = dict(zip(self.passes[pass_].names, args, strict=True)) if free else {}
        return frozenset(name for name, test in free.items() if test(named[name]))

    def _described(self, what: str, args: tuple[Any, ...], wanted: Sequence[str]) -> tuple[int, tuple[Any, ...]]:
        """The arguments that a choice depends on, behind a bit for each whose gradient is asked for."""
        pass_ = "backward" if what == "backward" else "forward"
        names, free = self.passes[pass_].names, self._free(pass_, args)
        bits = sum(1 << i for i, name in enumerate(names) if name in wanted) if wanted else 0
        return bits, tuple(FREE if n in free else a for n, a in zip(names, args, strict=True)) if free else args

    def _find(self, what: str, args: tuple[Any, ...], out: Any, kernel: str | None, wanted: Sequence[str] = ()) -> Any:
        return self.plans.find(what, *self._described(what, args, wanted), out, kernel)

    def _keep(
        self, what: str, args: tuple[Any, ...], out: Any, kernel: str | None, plan: Any, made_in_generation: int,
        wanted: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.plans.keep(what, *self._described(what, args, wanted), out, kernel, plan, made_in_generation)

    def forget(self) -> None:
        """Drops all plans: the next call of each kind chooses anew."""
        self.plans.forget()
        clear_load_failures(self)

    def run(self, pass_: str, args: tuple[Any, ...], out: Any = None, kernel: str | None = None) -> Any:
        """Runs one pass on tensors that hold data, below autograd."""
        plan = self._find(pass_, args, out, kernel)
        if plan is None:
            kinds = {tensor_kind(t) for t in leaves((*args, out))}
            if OTHER in kinds or TRACED in kinds:
                if pass_ == "backward":
                    return derivative(self, args)
                return self._through_composite(args, out, kernel)
            if RESOLVABLE in kinds:
                return self.run(pass_, tuple(resolve_bits(a) for a in args), out, kernel)
            plan = self.make_plan(pass_, args, out, kernel)
        return self._run_plan(plan, args, out) if pass_ == "forward" else plan.run(*args, out=out)

    def training_passes(
        self, args: tuple[Any, ...], kernel: str | None, wanted: tuple[str, ...] = ()
    ) -> tuple[Callable[..., Any], Callable[..., Any]] | None:
        """How the kernel that takes a forward makes gradients with it, or None where the kernel taken has no such
        passes.

        ``training(*args, needs=)`` returns the forward's result and what ``resumed(kept, grad)`` makes gradients of.
        ``inputs_requiring_grad`` are the inputs whose gradients are asked for, by default those that require them, or
        all.
        """
        wanted = wanted or self.inputs_requiring_grad(args) or self.contract.differentiable
        plan: Plan = self._find("training", args, None, kernel, wanted) or self._training(args, kernel, wanted)
        return plan.makes

    # ------------------------------------------------------------ choosing

    def request(self, pass_: str, args: Sequence[Any], wanted: tuple[str, ...] = ()) -> Request:
        """What a call asks for. Of a ``training`` call ``args`` are the forward's."""
        of = "backward" if pass_ == "backward" else "forward"
        named = dict(zip(self.passes[of].names, (spec(a) for a in args), strict=True))
        return Request(self.name, pass_, named, _get_threads(), wanted, self._free(of, args), self.contract.switches)

    def backward_of(self, training: Request) -> Request:
        """The backward that follows a training call, should its gradients flow in as its outputs lie."""
        forward, backward = self.passes["forward"], self.passes["backward"]
        args = tuple(training.args[name] for name in forward.names)
        args = self._to_record(*args) if self._to_record else args
        with hide_from_modes():
            made = forward.fake(*(without_data(a) for a in args))
            given = as_tuple(self._from_torch(made, *args) if self._from_torch else made)
        have = dict(zip(forward.names, args, strict=True))
        for place, (name, value) in enumerate(zip(self.contract.returned_outputs, as_tuple(made), strict=False)):
            have[name] = dataclasses.replace(spec(value), device=training.device)
            have[f"grad_{name}"] = have[name] if place < len(given) else None
        have["needs"] = tuple(name in training.wanted for name in backward.returns)
        named = {
            n: have[n] if n not in forward.names or readers(self, n, have) else shape_only_spec(have[n])
            for n in backward.names
        }
        return Request(self.name, "backward", named, training.threads, switches=training.switches)

    def tuned_choice(self, args: tuple[Any, ...], wanted: tuple[str, ...]) -> Choice | None:
        """``choice`` where tuning records choose; None where the list's order does, which each pass decides for
        itself."""
        return self.choice(args, None, wanted) if environment.selection_policy() == "timed" else None

    def choice(self, args: tuple[Any, ...], kernel: str | None, wanted: tuple[str, ...] = ()) -> Choice:
        """What runs a call whose tensors may have no data; nothing is loaded for the question."""
        pass_ = "training" if wanted else "forward"
        request = self.request(pass_, args, wanted)
        if not has_known_sizes(request):  # the same question of another size may be answered otherwise
            return choose(self, request, kernel)
        found: Choice | None = self._find("choice", args, None, kernel, wanted)
        if found is None:
            notify_watchers(self, pass_, args, kernel)
            now = generation()
            found = choose(self, request, kernel)
            self._keep("choice", args, None, kernel, found, now, wanted)
        return found

    def make_plan(self, pass_: str, args: tuple[Any, ...], out: Any = None, kernel: str | None = None) -> Plan:
        """Checks the arguments once for all calls that look like this one, and chooses the kernel."""
        if pass_ == "forward":
            self.contract.check(**dict(zip(self.passes[pass_].names, args, strict=True)))
            if out is not None:
                check_out(self.name, self.forward_shapes(args), out, args)
            notify_watchers(self, pass_, args, kernel)
        now = generation()
        choice, loaded = self._loaded(self.request(pass_, args), kernel, out is None)
        if choice.native:
            plan = self._torchs(args)
        else:
            call = loaded[0]
            if choice.kernel.prepare is not None:
                call = choice.kernel.prepare(pass_, args) or call
            if pass_ == "forward":
                call = self._with_names(call)
            plan = Plan(KERNEL, call, call)
        self._keep(pass_, args, out, kernel, plan, now)
        return plan

    def _training(self, args: tuple[Any, ...], kernel: str | None, wanted: tuple[str, ...]) -> Plan:
        """The same for a call that autograd records: forward and backward are chosen here, together."""
        self.contract.check(**dict(zip(self.passes["forward"].names, args, strict=True)))
        notify_watchers(self, "training", args, kernel)
        now = generation()
        choice, loaded = self._loaded(self.request("training", args, wanted), kernel)
        way = choice.requested_kernel if kernel is None else kernel
        if choice.native:
            plan = self._torchs(args)
        elif choice.together:
            training, resumed = loaded
            together = functools.partial(training_forward, self, training, resumed, way)
            plan = Plan(AUTOGRAD, together, functools.partial(hand_out, together), (training, resumed))
        else:
            call = self.entry.recorder(way) or functools.partial(recorded_forward, self, way)
            plan = Plan(AUTOGRAD, call, self._with_names(functools.partial(hand_out, call)))
        self._keep("training", args, None, kernel, plan, now, wanted)
        return plan

    def _torchs(self, args: tuple[Any, ...]) -> Plan:
        """Torch's own function for calls like this one."""
        call = self.entry.program(self._aten, args) if self._aten else None
        return Plan(NATIVE, call or self.as_written, self._with_names(with_own_dtype(self.as_written)))

    def _loaded(
        self, request: Request, kernel: str | None, at_once: bool = True
    ) -> tuple[Choice, tuple[Callable[..., Any], ...]]:
        """The choice for a request and what it runs, loaded. What cannot be loaded is left out of the next choice.
        ``at_once``: torch's function could take the call before it is looked at."""
        while True:
            choice = choose(self, request, kernel)
            if at_once and kernel is None and self.entry.prefers_torch(choice, request.pass_):
                return dataclasses.replace(choice, kernel=self.kernel("torch"), native=True, backward=None), ()
            if choice.native:
                self._warn_of_build_failure(choice)
                return choice, ()
            parts = [(choice.kernel, "forward" if request.pass_ == "training" else request.pass_)]
            if choice.together:
                parts = [(choice.kernel, "training"), (choice.kernel, "resumed")]
            elif choice.backward is not None:
                parts.append((choice.backward, "backward"))
            loaded = []
            for part, pass_ in parts:
                try:
                    loaded.append(part.load(pass_))
                except BuildError as error:
                    if kernel is not None and not kernel.endswith(OR_TORCH):
                        raise RuntimeError(f"kernel {kernel!r} of {self.name} cannot run: {error}") from error
                    record_load_failure(self, part, error)
                    break
            else:
                self._warn_of_build_failure(choice)
                return choice, tuple(loaded)

    def _warn_of_build_failure(self, choice: Choice) -> None:
        """Once for each thing at fault, whichever ops and kernels it takes."""
        for name, reason in choice.declined:
            if isinstance(reason, LoadFailure) and reason.about not in _said:
                _said.add(reason.about)
                warn_user(
                    f"kernelworks.{self.name} runs its {choice.kernel.name!r} kernel "
                    f"({name!r} is not there): {reason[:800]}",
                    RuntimeWarning,
                )

    def forward_shapes(self, args: tuple[Any, ...]) -> Any:
        """What the forward returns for these arguments, as meta tensors; None for an op that returns nothing."""
        if not self.contract.returned_outputs:
            return None
        shapes = self.passes["forward"].fake(*[on_meta(a) for a in args])
        return self._from_torch(shapes, *args) if self._from_torch else shapes

    # ------------------------------------------------------------ calls that no kernel serves at once

    def _through_tensors(self, args: tuple[Any, ...], out: Any, kernel: str | None) -> Any:
        """The same call with a tensor in the place of each array of NumPy's or of DLPack's."""
        named = zip(self.passes["forward"].names, args, strict=True)
        tensors = [as_tensors(n, a, written=n in self.contract.mutates) if n in self._arrays else a for n, a in named]
        to = as_tensors("out", out, written=True)
        for name, value in zip(self.passes["forward"].names, tensors, strict=True):
            if has_foreign_array((value,)):
                raise TypeError(f"{name} of {self.name} takes no array, got {describe(value)}")
        return restore_arrays(lambda: self.call(*tensors, to, kernel), args, out)

    def _through_torch(self, args: tuple[Any, ...], out: Any, kernel: str | None) -> Any:
        """The same call as a torch operator: seen by autograd, torch.compile, modes and profilers."""
        if self.ambiguous_signature is not None and self.ambiguous_signature.is_torch_call(args):
            return self.ambiguous_signature.reread(args, out, kernel)
        if has_foreign_array((*args, out)):
            return self._through_tensors(args, out, kernel)
        self.contract.check(**dict(zip(self.passes["forward"].names, args, strict=True)))
        if not torch.compiler.is_dynamo_compiling():
            stop_at(self, args, kernel)
            register_with_counters(self)
            if kernel is None and self._leaves_to_torch(args, out):
                return self._handed_out(self.native(*args), args, out)
        strange = torch.compiler.is_compiling() and any(
            isinstance(a, Tensor) and type(a) not in PLAIN_TYPES for a in args
        )
        if strange and kernel is None:  # a subclass (DTensor, say) knows torch's operators, not ours
            return self._handed_out(self.composite(*args), args, out)
        result = self._overload(*args, kernel)
        return self._handed_out(self._from_torch(result, *args) if self._from_torch else result, args, out)

    def _leaves_to_torch(self, args: tuple[Any, ...], out: Any) -> bool:
        """Whether a call that somebody watches, or that stands for others, is torch's: they see torch's function."""
        wanted = self._recorded_for(args, out)
        choice = None if wanted is None else self.tuned_choice(args, wanted)
        return choice is not None and choice.native

    def _named(self, result: Any) -> Any:
        """A result with the names that torch's function gives it."""
        return result if self._result_type is None else self._result_type(result)

    def _with_names(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return call if self._result_type is None else functools.partial(call_named, self._result_type, call)

    def _through_composite(self, args: tuple[Any, ...], out: Any, kernel: str | None) -> Any:
        """The same call in torch's own functions: for tensors and transforms that no kernel of ours may serve."""
        if kernel not in (None, "torch"):
            self.kernel(kernel)
            why = TRANSFORM if is_transform_active() else f"a tensor is {TENSOR_KINDS[OTHER]}"
            raise RuntimeError(f"kernel {kernel!r} of {self.name} cannot run: {why}; ask for no kernel")
        if all(t.layout is torch.strided and not t.is_nested for t in leaves(args)):
            with suspend_tracing():
                self.contract.check(**dict(zip(self.passes["forward"].names, args, strict=True)))
        return self._handed_out(self.composite(*args), args, out)

    def _handed_out(self, result: Any, args: tuple[Any, ...], out: Any) -> Any:
        if out is None:
            return result
        check_out(self.name, result, out, args)
        return self._named(copy_into(result, out))
