"""torch's way to write a call, beside ours: ``layer_norm(x, (64,), w, b)``, ``attention(q, k, v, is_causal=True)``.

An op's public function takes its own arguments. What is none of them (``input=``, ``normalized_shape``, a position that
only torch's function has) is bound to the signature of torch's function, said once in the op package as ``ours``: a
function with exactly that signature which returns the op's arguments, or the reason why only torch's function serves
them.

- What is said in torch's way is torch's to take or to refuse: where the op has no answer to it (``dropout_p``, a dtype
  that the contract leaves out, autocast), torch's function runs with the same arguments.
- A call that reads the same in both is the op's, with the errors of its contract.
- Arguments of the op's own (``residual=``, ``window=``, ``kernel=``) may join torch's; where torch's function would
  have to take them, the error names them.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from kernelworks.contract import ABSENT
from kernelworks.dispatch.arrays import as_tensors, has_foreign_array, restore_arrays
from kernelworks.dispatch.hooks import stop_for
from kernelworks.dispatch.mutation import check_out, copy_into
from kernelworks.dispatch.op import OPS, Op
from kernelworks.dispatch.registry import OP_PACKAGES, OPERATORS

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "ABSENT", "SIZES", "Array", "Gate", "TorchSignature", "by_operator", "composite_by_operator", "composites", "gates",
    "is_last_dimension", "operator_of", "own_result", "publish_function", "torch_signatures", "two_names",
]  # fmt: skip

Array = TypeVar("Array", Tensor, "np.ndarray[Any, Any]")
"""What an op takes, it gives back."""
Function = TypeVar("Function", bound=Callable[..., Any])


SIZES = frozenset({tuple, list, torch.Size, int})  # what torch's functions take for a shape, where ours take a tensor
REJECTION_ERRORS = (TypeError, ValueError)  # how a contract refuses arguments

# Under autocast torch's function would take another dtype than its arguments have.
_autocast = torch._C._is_any_autocast_enabled


class TorchSignature:
    """How torch writes one op.

    ``function`` is torch's, None where the installed torch has it not yet; ``ours`` has its signature. ``same`` gives
    the op's name of an argument that torch calls otherwise, ``joined`` the op's arguments that say in another way what
    one of torch's says, so that a call may hold one of the two. ``own`` is the op's signature where the two put
    different things in one place; it returns the op's arguments. ``call`` is ``op.call`` where the op needs no other.

    ``name`` is the function's in ``torch.nn.functional``, or else in ``torch``: by default the op's. ``operator`` is
    that of the aten operator that it calls, or what that would be called where it calls several (``composite``);
    ``unrecorded_arguments`` is what the profiler does not record of such a call, as it may have been.
    ``other_operators`` are further aten operators that the function calls, each with the arguments that make it do so.
    ``no_swap_reason`` says why a swap leaves torch's function where it stands; "" where it does not.
    """

    def __init__(
        self,
        op: Any,
        function: Callable[..., Any] | None,
        ours: Callable[..., tuple[Any, ...] | str],
        same: Mapping[str, str],
        *,
        joined: Mapping[str, str] | None = None,
        own: Callable[..., tuple[Any, ...]] | None = None,
        call: Callable[..., Any] | None = None,
        name: str = "",
        operator: str = "",
        unrecorded_arguments: tuple[Mapping[str, Any], ...] = ({},),
        other_operators: Mapping[str, Mapping[str, Any]] = types.MappingProxyType({}),
        no_swap_reason: str = "",
    ) -> None:
        self.name = name or op.name
        self.operator, self.unrecorded_arguments, self.no_swap_reason = (
            operator or self.name,
            unrecorded_arguments,
            no_swap_reason,
        )
        self.other_operators = other_operators
        self.composite = function is not None and not hasattr(torch.ops.aten, self.operator)
        self.op, self.function, self.ours, self.call = op, function, ours, call or op.call
        self.same, self.joined = dict(same), dict(joined or {})
        self.theirs = {name: torchs for torchs, name in same.items()}
        code = ours.__code__
        self.positional = code.co_varnames[: code.co_argcount]
        self.names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        defaults = ours.__defaults__ or ()
        self.defaults = dict(zip(self.positional[len(self.positional) - len(defaults) :], defaults, strict=True))
        self.defaults |= ours.__kwdefaults__ or {}
        self.name_set = frozenset(self.names)
        self.bools = [(n, i) for i, n in enumerate(self.names) if self.defaults.get(n).__class__ is bool]
        self.own: Any = own
        must = (n for n in self.names if n not in self.defaults and n not in same and n not in self.op_names)
        self.telling = next(must, "")
        self.place = self.positional.index(self.telling) if self.telling else 0
        if own is not None:
            own.__qualname__ = op.name  # as Python's errors call it
            if self.telling:
                op.ambiguous_signature = self
        op.torch_signature = self

    def __call__(
        self, positional: tuple[Any, ...], torchs: dict[str, Any], own: Mapping[str, Any], out: Any, kernel: str | None
    ) -> Any:
        """A call in torch's signature: what was given by position, in torch's order; by a name that the op's function
        has not; and by one that it has, or is that argument's default. ``torchs`` is changed."""
        for name, value in own.items():
            if value is not None and value is not False and not _is_default(value, self.defaults.get(name)):
                torchs[name] = value
        placed = positional
        if placed[0] is ABSENT:
            placed = ()
            torchs.update((n, v) for n, v in zip(self.positional, positional, strict=False) if v is not ABSENT)
        if out is None and kernel is None and (not torchs or torchs.keys() <= self.name_set):
            first = placed[0] if placed else torchs.get(self.names[0])
            if isinstance(first, Tensor) and not (self.bools and self.non_bool_argument(placed, torchs)):
                try:
                    asked = self.ours(*placed, **torchs)
                except TypeError:
                    asked = None  # it is bound again below, for an error that names the argument
                if asked is not None:
                    return self._served(asked, placed, torchs, None)
        return self._in_full(placed, torchs, out, kernel)

    def non_bool_argument(self, positional: tuple[Any, ...], named: Mapping[str, Any]) -> str:
        """An argument that torch takes as a truth value and nothing else, and that is none."""
        for name, place in self.bools:
            value = named.get(name, positional[place] if place < len(positional) else False)
            if value is not True and value is not False:
                return name
        return ""

    def _in_full(self, positional: tuple[Any, ...], named: Mapping[str, Any], out: Any, kernel: str | None) -> Any:
        if has_foreign_array((*positional, *named.values(), out)):
            return self._through_tensors(positional, named, out, kernel)
        given, more = self._bound(positional, named)
        odd = self.non_bool_argument((), given)
        asked = f"{odd} is no bool" if odd else self.ours(**given)
        if more:
            asked = self._join(asked, given, more)
        if isinstance(asked, str):
            if kernel not in (None, "torch"):
                self.op.kernel(kernel)
                raise RuntimeError(f"kernel {kernel!r} of {self.op.name} cannot run: {asked}")
        elif more or kernel is not None:
            return self.call(*asked, out, kernel)
        return self._served(asked, (), given, out)

    def as_torch(self, *args: Any) -> Any:
        """torch's function, all arguments by position: the op where it says the same, else that function."""
        return self._served(self.ours(*args), args, {}, None)

    def _served(
        self, asked: tuple[Any, ...] | str, positional: tuple[Any, ...], named: Mapping[str, Any], out: Any
    ) -> Any:
        """By the op, or by torch's function with the arguments as they came."""
        if asked.__class__ is tuple:
            if _autocast():
                asked = "autocast is on, and takes another dtype"
            else:
                try:
                    return self.call(*asked, out, None)
                except REJECTION_ERRORS as error:  # torch's function takes it, or refuses it in its own words
                    asked = str(error)
        if not torch.compiler.is_dynamo_compiling():
            stop_for(self.op, asked)
        if self.function is None:
            raise RuntimeError(f"{self.op.name} in torch's signature needs a later torch: {asked}")
        result = self.function(*positional, **named)
        if out is None:
            return result
        check_out(self.op.name, result, out, (*positional, *named.values()))
        return copy_into(result, out)

    def call_ambiguous(self, positional: tuple[Any, ...], named: dict[str, Any], out: Any, kernel: str | None) -> Any:
        """A call that holds one thing in either signature and means another: torch's where the argument is there that
        only torch's must have, by name or as a shape in its place; where there is none such, where it does not fit
        ours."""
        values = positional
        if values[-1] is ABSENT:
            values = tuple(value for value in positional if value is not ABSENT)
        if self.telling:
            torchs = self.telling in named or (len(values) > self.place and values[self.place].__class__ in SIZES)
        else:
            torchs = not self._fits_own(values, named)
        if torchs:
            return self(values or (ABSENT,), named, {}, out, kernel)
        try:
            asked = self.own(*values, **named)
        except TypeError as error:
            raise TypeError(f"{error}; torch's signature is {self.signature_text()}") from None
        return self.call(*asked, out, kernel)

    def is_torch_call(self, args: tuple[Any, ...]) -> bool:
        """Whether the op's arguments are a call in torch's signature, or an unfinished one, taken for one in ours. So a
        function whose first arguments stand in other places in torch's needs no look at them before it calls the op."""
        return args[self.place].__class__ in SIZES or any(a is ABSENT for a in args)

    def reread(self, args: tuple[Any, ...], out: Any, kernel: str | None) -> Any:
        """The same call, read as what it is."""
        count: int = self.own.__code__.co_argcount
        named = zip(self.op_names[count:], args[count:], strict=True)
        given = {n: v for n, v in named if v is not ABSENT and (v is not None or n in self.name_set)}
        return self.call_ambiguous(args[:count], given, out, kernel)

    def _fits_own(self, values: tuple[Any, ...], given: Mapping[str, Any]) -> bool:
        """Whether each argument has a place of its own in ours; asked without an exception, for compilers."""
        code: types.CodeType = self.own.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        placed = names[: len(values)]
        return len(values) <= code.co_argcount and all(n in names and n not in placed for n in given)

    def _through_tensors(
        self, positional: tuple[Any, ...], named: Mapping[str, Any], out: Any, kernel: str | None
    ) -> Any:
        """The same call with a tensor in the place of each array of NumPy's or of DLPack's."""
        placed = tuple(as_tensors(n, v) for n, v in zip(self.positional, positional, strict=False))
        placed += positional[len(placed) :]
        said = {n: as_tensors(n, v) for n, v in named.items()}
        to = as_tensors("out", out, written=True)
        return restore_arrays(lambda: self._in_full(placed, said, to, kernel), (*positional, *named.values()), out)

    @property
    def op_names(self) -> tuple[str, ...]:
        names: tuple[str, ...] = self.op.passes["forward"].names
        return names

    def signature_text(self) -> str:
        """The signature that torch's signature has, as text."""
        parts = []
        for i, name in enumerate(self.names):
            if i == len(self.positional):
                parts.append("*")
            parts.append(f"{name}={self.defaults[name]!r}" if name in self.defaults else name)
        return f"{self.op.name}({', '.join(parts)})"

    def _bound(self, positional: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arguments by torch's names, and those that only the op has, where they are not at their defaults."""
        op = self.op.name
        if len(positional) > len(self.positional):
            raise TypeError(
                f"{op}() takes at most {len(self.positional)} arguments by position, got {len(positional)}: "
                f"torch's signature is {self.signature_text()}"
            )
        given = {n: v for n, v in zip(self.positional, positional, strict=False) if v is not ABSENT}
        more: dict[str, Any] = {}
        for name, value in named.items():
            theirs = name if name in self.names else self.theirs.get(name, name)
            if value is ABSENT:
                continue
            if theirs not in self.names:
                if name not in self.op_names:
                    raise TypeError(f"{op}() has no argument {name!r}; torch's signature is {self.signature_text()}")
                if value is not None and value is not False:
                    more[name] = value
            elif _is_default(value, self.defaults.get(theirs, ABSENT)) and theirs in given:
                continue
            elif theirs in given:
                raise TypeError(f"{op}() got {theirs} twice" + ("" if theirs == name else f": {name} is the same"))
            else:
                given[theirs] = value
        for name in self.names:
            if name not in given and name not in self.defaults:
                raise TypeError(f"{op}() is missing {name}; torch's signature is {self.signature_text()}")
        return given, more

    def _join(self, asked: tuple[Any, ...] | str, given: dict[str, Any], more: dict[str, Any]) -> tuple[Any, ...]:
        """The op's arguments, those of its own among them."""
        op = self.op.name
        for name in more:
            theirs = self.joined.get(name, "")
            if theirs in given and not _is_default(given[theirs], self.defaults[theirs]):
                raise TypeError(f"{op}() got both {theirs} and {name}, which say the same: give one of them")
        if isinstance(asked, str):
            raise ValueError(f"{op}() cannot join {', '.join(more)}, which torch's function has not, to this: {asked}")
        values = dict(zip(self.op_names, asked, strict=True)) | more
        return tuple(values.values())


class Gate:
    """How torch writes an op that is one of its functions of the first argument times the second: ``F.silu(a) * b``.

    ``words`` are what function and op take beside, by name: the accepted values, torch's default first.
    """

    def __init__(self, op: Any, function: Callable[..., Any], **words: tuple[str, ...]) -> None:
        self.op, self.name, self.words = op, function.__name__, words
        op.gate = self

    def op_words(self, named: Mapping[str, Any]) -> tuple[str, ...] | None:
        """The op's words of a call of the function with these; None where it has other ones."""
        if not all(name in self.words and value in self.words[name] for name, value in named.items()):
            return None
        return tuple(named.get(name, values[0]) for name, values in self.words.items())


def gates() -> dict[str, Gate]:
    """The gates of all ops, by the name of torch's function."""
    return {gate.name: gate for op in OPS.values() if (gate := op.gate) is not None}


def two_names(function: Any) -> Any:
    """Marks the code behind overloads that call the first argument by our name and by torch's: mypy holds such code
    against each of them, and no signature has both names."""
    return function


def own_result(function: Function) -> Function:
    """Marks a public function that returns something else than its op does, or refuses more: its own code serves every
    call."""
    vars(function)["own_result"] = True
    return function


def publish_function(function: Any, op: Any) -> None:
    """Shows an op's public function as it is called in its own way, and says how it is in torch's: its code takes both.
    Calls that are the op's own go straight to it. A second time changes nothing."""
    own = typing.get_overloads(function)
    if own:
        function.__signature__ = inspect.signature(own[0])
    doc = function.__doc__
    if op.torch_signature is not None and doc and op.torch_signature.signature_text() not in doc:
        function.__doc__ = f"{doc.rstrip()}\n\n    As torch's: ``{op.torch_signature.signature_text()}``.\n"
    op.entry.attach_function(function, ABSENT)


def torch_signatures() -> dict[str, TorchSignature]:
    """The signatures of all ops that torch has a function for, by the function's name."""
    return {s.name: s for op in OPS.values() if (s := op.torch_signature) is not None and s.function is not None}


def ops_of(names: Iterable[str]) -> tuple[Op, ...]:
    """The ops of these names, ours or torch's functions', each once; of others there is none."""
    known = torch_signatures()
    found = (OPS[name] if name in OPS else known[name].op for name in names if name in OPS or name in known)
    return tuple(dict.fromkeys(found))


def by_operator(name: str) -> TorchSignature | None:
    """The signature of the op that says what an aten operator of this name does; None where none does."""
    return _by_operator(len(OPS)).get(name.removeprefix("aten::"))


def operator_of(op: str) -> str:
    """The aten operator that does what an op of this name does, where torch has one; else the name itself."""
    torch_signature = OPS[op].torch_signature if op in OPS else None
    return op if torch_signature is None else str(torch_signature.operator)


@functools.lru_cache(1)
def _by_operator(count: int) -> dict[str, TorchSignature]:
    found = {torch_signature.operator: torch_signature for torch_signature in torch_signatures().values()}
    others = {name: signature for signature in torch_signatures().values() for name in signature.other_operators}
    return others | found


def composites() -> dict[int, TorchSignature]:
    """The signatures whose function torch makes of several operators, so that nothing records a call of it as one; by
    the function's ``id``, for what a mode is told of need not be hashable."""
    return {id(torch_signature.function): torch_signature for torch_signature in _composites(len(OPS)).values()}


def composite_by_operator(name: str) -> TorchSignature | None:
    """As ``by_operator``, of ``composites`` alone."""
    return _composites(len(OPS)).get(name.removeprefix("aten::"))


@functools.lru_cache(1)
def _composites(count: int) -> dict[str, TorchSignature]:
    """By operator. An op package is loaded only if torch has no operator of that name: to load all takes a second."""
    lacking = (name for name in OPS if name not in OP_PACKAGES or not _has_operator(name))
    signatures = (OPS[name].torch_signature for name in lacking)
    return {found.operator: found for found in signatures if found is not None and found.composite}


def _has_operator(name: str) -> bool:
    """Whether torch has an operator that does what this op does, or no function for it."""
    return name not in OPERATORS or hasattr(torch.ops.aten, OPERATORS[name])


def is_last_dimension(normalized_shape: Any, input: Tensor) -> bool:
    """Whether a shape, in a notation that torch takes, is the last dimension and no other."""
    kind = type(normalized_shape)
    if kind is int or kind not in SIZES or len(normalized_shape) != 1:
        return False
    size = normalized_shape[0]
    return type(size) is int and input.dim() > 0 and size == input.shape[-1]


def _is_default(value: Any, default: Any) -> bool:
    if value is default:
        return True
    kind = value.__class__
    return kind is default.__class__ and kind in (int, float, str, bool) and bool(value == default)
