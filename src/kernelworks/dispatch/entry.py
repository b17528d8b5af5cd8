"""The entry of an op: in C++ if that was built (``native/``), else in Python. ``torch.compile`` sees neither."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from kernelworks.build import BuildError, native
from kernelworks.contract.tensors import PLAIN_TYPES
from kernelworks.dispatch import adoption, plans, tuning_records
from kernelworks.dispatch.aten import program
from kernelworks.dispatch.autograd import recipe
from kernelworks.dispatch.generated_code import run_generated_code
from kernelworks.dispatch.passthrough import (
    KIND_GUARDS,
    Kind,
    Passthrough,
    kind_of,
    never_matches,
    preface,
    prefix_names,
)
from kernelworks.dispatch.plans import Dictionary
from kernelworks.machine import environment, place_of

__all__ = ["Entry"]

# Written out for the op's arguments. Dynamo is told apart here; other compilers are modes, which are asked for behind.
# Whoever keeps this function goes where calls go now.
_CALL = """
def call({arguments}, out=None, kernel=None):
    if is_compiling():
        return through_torch(({arguments},), out, kernel)
    {at_once}
    return enter({arguments}, out, kernel)
"""

MOST_KINDS = 8  # of an op's calls that are told apart while torch's function takes them at once

# How long the way to a plan in Python takes, forward and where gradients are recorded. A kernel that is taken that way
# has to run so long that this is a hundredth.
PYTHON_US = {"forward": 10.0, "training": 20.0}
WORTH = 100.0

_grad_enabled, _autocasting = torch.is_grad_enabled, torch._C._is_any_autocast_enabled
_functorch, _tracing = torch._C._are_functorch_transforms_active, torch._C._is_tracing


@functools.cache
def _direct(module: Any) -> Any:
    class Direct(module.Entry):
        """What takes calls in C++. The method is there for Dynamo to read, which is all that ever calls it."""

        def __call__(self, *given: Any, out: Any = None, kernel: str | None = None) -> Any:
            count = len(self.names)
            if len(given) > count:
                out, kernel = (*given[count:], kernel)[:2]
            return self.through_torch(given[:count], out, kernel)

    module.direct(Direct)
    return Direct


def _unknown(*args: Any) -> Any:
    return NotImplemented


class Entry:
    """An op's ``call``, its plans and torch's operators of it: all in C++ or all in Python.

    ``op._miss(args, out, kernel)`` serves what C++ finds no plan for, and every call in Python. ``operators(op, module,
    table)`` makes torch's operators in C++.
    """

    def __init__(self, op: Any, operators: Callable[[Any, Any, Any], list[Any]]) -> None:
        names, free = op.passes["forward"].names, op.passes["forward"].free
        self._scope: dict[str, Any] = {
            "is_compiling": torch.compiler.is_dynamo_compiling,
            "through_torch": op._through_torch,
        }
        self._direct: Passthrough | None = op.passthrough
        # of what calls torch's function at once, and how it names things
        self._scopes: list[tuple[dict[str, Any], Callable[[dict[str, Any]], dict[str, Any]]]] = [(self._scope, dict)]
        at_once = ""
        if self._direct is not None:
            self._direct.names_beside(names)
            self._scope |= {**self._direct.names, **self._direct.guards}
            at_once = self._direct.statement("out is kernel is None")
        call = _CALL.format(arguments=", ".join(names), at_once=at_once)
        run_generated_code(call, self._scope, f"call of {op.name}")
        self._op, self._miss, self._names = op, op._miss, names
        self._left: dict[Any, bool] = {}  # calls that are torch's function's while calls go through Python
        self._kinds: dict[bool, list[Kind]] = {False: [], True: []}  # of their tensors; of those without optional ones
        self._shapes: tuple[Any, ...] | None = None  # of the last call whose shapes were looked at
        self._hurried = False
        self._free = tuple(free.get(name) for name in names)
        self._written = tuple(names.index(name) for name in op.contract.mutates)
        self._module: Any = None
        self._operators, self._made = operators, list[Any]()
        self._recipe: Any = None
        self._function: Any = None
        self._absent: object = None
        self._codes: tuple[types.CodeType, ...] = ()
        self._attached_module: Any = None  # the extension that the function's calls go through
        self._through(None)
        self._asked = False  # an import asks for nothing
        self._entered = False  # a call was made through Python
        adoption.watch(self)

    def ensure_native(self) -> None:
        """At an op's first call: C++, where it was built. Where it was not, that is looked at again later."""
        if self._asked:
            return
        self._asked = True
        module = native.find_extension()
        if module is None:
            self._entered = True
            adoption.entered_in_python()
        elif not self._entered or adoption.may_adopt():
            self.use_module(module)

    def look_again(self) -> bool:
        """Has the next call ask for the extension. False if calls go through it, or none was made since the last
        time."""
        with plans.passthrough_allowed():
            if self._module is not None or not (self._asked or self._hurried):
                return False
            self.disable_passthrough()
            self._asked = False
        return True

    def use_module(self, module: Any) -> None:
        """Calls go through the extension, or with None through Python, from now on; all plans are forgotten. Not while
        something is compiled, which may have read how calls go: the next one after that asks for the extension."""
        if torch._guards.CompileContext.try_get() is not None:
            self._asked = False
        else:
            self._through(module)

    def _through(self, module: Any) -> None:
        self._made = []  # before there are others
        self.disable_passthrough()
        if module is None:
            self._op.plans.use_table(Dictionary())
            self._op.call, self._op.call_planned = self._scope["call"], _unknown
            self._scope["enter"] = self._in_python
        else:
            table = module.Table()
            self._op.plans.use_table(table)
            self._op.call = self._scope["enter"] = _direct(module)(
                table, self._miss, self._free, self._written, self._op.differentiable
            )
            self._op.call.through_torch, self._op.call.names = self._op._through_torch, self._names
            self._op.call_planned = self._op.call.known
            self._made = self._operators(self._op, module, table)
        self._module, self._recipe = module, None
        self._asked = True
        self._show()

    # ------------------------------------------------------------ until C++ is there

    def enable_passthrough(self) -> None:
        """From now on torch's own function takes calls at once, until C++ is there: without it a call finds its plan
        some microseconds after torch would have ended a small one. Not where the list's order chooses, nor while
        somebody is told of calls."""
        if (
            self._hurried
            or self._module is not None
            or self._op.contract.mutates
            or environment.selection_policy() != "timed"
        ):
            return
        large, least = _large(self._op.name, self._direct.tensors) if self._direct is not None else (None, 0)
        with plans.passthrough_allowed() as allowed:
            if allowed:
                self._set({"large": large, "least": least})
                self._hurried = True

    def disable_passthrough(self) -> None:
        """Undoes ``enable_passthrough``."""
        self._hurried = False
        self._left, self._kinds, self._shapes = {}, {False: [], True: []}, None
        if self._direct is not None:
            self._set(self._direct.guards)

    def _set(self, values: dict[str, Any]) -> None:
        for scope, named in self._scopes:
            scope.update(named(values))

    def prefers_torch(self, choice: Any, pass_: str) -> bool:
        """Whether a call is torch's function's though a kernel was chosen: the way to it would take too long."""
        return self._hurried and _is_too_small(choice, pass_)

    def yields_to_torch(self, choice: Any, pass_: str) -> bool:
        """The same of a call that was not made: what ``prefers_torch`` will say of it."""
        through_python = self._module is None and native.find_extension() is None
        hurried = not self._op.contract.mutates and environment.selection_policy() == "timed"
        return through_python and hurried and _is_too_small(choice, pass_)

    def add_passthrough(self, args: tuple[Any, ...]) -> None:
        """Notes that calls like this one are torch's function's."""
        key = _key(args) if self._hurried and not _autocasting() else None
        if key is None:
            return
        with plans.passthrough_allowed() as allowed:
            if allowed and self._hurried and len(self._left) < plans.MOST_PLANS:
                self._left[key] = self._meet(args, True)

    def _meet(self, args: tuple[Any, ...], make: bool = False) -> bool:
        """The kind of these arguments is the first that is asked for from now on; whether it was not."""
        given = (
            self._direct.guarded_tensors(dict(zip(self._names, args, strict=True)))
            if self._direct is not None
            else None
        )
        if given is None:
            return False
        tensors, bare = given
        kinds = self._kinds[bare]
        kind = next((k for k in kinds if k(*tensors)), None) or (kind_of(tensors) if make else never_matches)
        if kind is never_matches or (kinds and kind is kinds[0]):
            return False  # other arguments keep such calls from torch's function
        kinds[:] = [kind, *(k for k in kinds if k is not kind)][:MOST_KINDS]
        self._set(dict(zip(KIND_GUARDS[2:] if bare else KIND_GUARDS[:2], (*kinds, never_matches), strict=False)))
        if self._direct is not None and self._direct.exact is not None:
            self._set({"learn": self._learn})
        return True

    def _learn(self, *given: Tensor | None) -> bool:
        """Notes the shapes of a call that is torch's function's. Shapes that come twice in a row are not looked at from
        then on."""
        exact = self._direct.exact if self._direct is not None else None
        tensors = [t for t in given if t is not None]
        if exact is None or len(tensors) < len(given):
            return True
        shapes = tuple(exact.sizes(t) for t in tensors)
        if shapes != self._shapes:
            self._shapes = shapes
            return True
        with plans.passthrough_allowed() as allowed:
            if allowed and self._hurried:
                self._set({"exact": kind_of(tensors, exact), "learned": exact.learn(*tensors)})
        return True

    def _in_python(self, *given: Any) -> Any:
        args, out, kernel = given[:-2], given[-2], given[-1]
        if out is kernel is None and self._left and not (_functorch() or _tracing() or forward_ad._current_level >= 0):
            key = _key(args)
            met = self._left.get(key)
            if met is not None and not _autocasting():
                if met:
                    self._left[key] = self._meet(args)
                return self._op.as_written(*args)
        return self._miss(args, out, kernel)

    # ------------------------------------------------------------

    def attach_function(self, function: Any, absent: object) -> None:
        """Has calls of the op's public function that are the op's own go straight to it; ``absent`` is a default that
        stands for none. The function's code must hand such a call to ``op.call`` as it is, and return what that does,
        or say that it does not (``own_result``). C++ reads no lists of tensors: a function that takes some is called
        as ever."""
        if getattr(function, "own_result", False) or any(
            str(a.type).startswith("List[") for a in torch._C.parse_schema(self._op.passes["forward"].schema).arguments
        ):
            return
        if self._function is None:
            self._function, self._absent, self._codes = function, absent, (function.__code__, function.__code__)
            if self._direct is not None:
                self._preface(function, self._direct)
        self._show()

    def _preface(self, function: Any, direct: Passthrough) -> None:
        """Has the function call torch's by itself, where that may be done at once."""
        self._codes = (function.__code__, preface(function, direct))
        as_written = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__
        )
        as_written.__kwdefaults__ = function.__kwdefaults__
        read = {n: self._scope[n] for n in ("is_compiling", *direct.names, *direct.guards)}
        prefixed = functools.partial(prefix_names, function.__name__)
        function.__globals__.update(prefixed({**read, "as_written": as_written}))
        self._scopes.append((function.__globals__, prefixed))

    def _show(self) -> None:
        if self._function is None:
            return
        self._function.__code__ = self._codes[self._module is None]
        if self._module is not None:
            self._module.attach(self._function, self._op.call, *_parameters(self._op, self._function, self._absent))
        elif self._attached_module is not None:
            self._attached_module.attach(self._function, None, 0, ())
        self._attached_module = self._module

    def recorder(self, kernel: str | None) -> Any:
        """The op's forward as C++ records it, ``call(*args)``; None where that is Python's to do."""
        if self._module is None:
            return None
        if self._recipe is None:
            self._recipe = self._module.Recipe(self._op.call, *recipe(self._op))
        return self._module.Recorder(self._recipe, kernel)

    def program(self, expression: Any, args: tuple[Any, ...]) -> Any:
        """Torch's operators for calls like this one, ``call(*args)``; None where Python calls torch's function."""
        return None if self._module is None else program(self._module, expression, args)

    @property
    def in_cpp(self) -> bool:
        return self._module is not None


KINDS = {"Tensor": "T", "int": "i", "float": "f", "bool": "b", "str": "s", "List[int]": "?"}


def _parameters(op: Any, function: Any, absent: object) -> tuple[int, tuple[tuple[Any, ...], ...]]:
    """How many arguments a function takes by position, and of each argument of the op, ``out`` and ``kernel``: its
    name, whether it has a default, and which, its place, whether it may be named, its kind, whether it may be None."""
    schema = torch._C.parse_schema(op.passes["forward"].schema)
    types = {a.name: str(a.type) for a in schema.arguments}
    code, defaults = function.__code__, function.__defaults__ or ()
    places = code.co_varnames[: code.co_argcount]
    presets = dict(zip(places[len(places) - len(defaults) :], defaults, strict=True)) | (function.__kwdefaults__ or {})
    found = []
    for name in (*op.passes["forward"].names, "out", "kernel"):
        kind = types.get(name, "")
        bare = kind.removeprefix("Optional[").removesuffix("]")
        place = places.index(name) if name in places else -1
        preset = presets.get(name, absent)
        found.append((
            name, preset is not absent, preset, place, place < 0 or place >= code.co_posonlyargcount,
            "?" if name in ("out", "kernel") else KINDS[bare], bare != kind,
        ))  # fmt: skip
    return code.co_argcount, tuple(found)


# ---------------------------------------------------------------- what torch's function takes at once


def _key(args: tuple[Any, ...]) -> Any:
    """What a contract looks at, and autograd: None where there is more to it than that."""
    key: list[Any] = [_grad_enabled()]
    for a in args:
        kind: Any = a.__class__
        if a is None:
            key.append(a)
        elif kind in PLAIN_TYPES:
            key += a.dtype, a.shape, a.device, a.requires_grad
        elif kind in _VALUES:
            key += kind, a
        else:
            return None
    return tuple(key)


_VALUES = frozenset({int, float, bool, str})


def _is_too_small(choice: Any, pass_: str) -> bool:
    """Whether a tuning record chose a kernel for a call that the way to it in Python would take too long for."""
    return not choice.native and choice.tuning_record is not None and not _worth(choice.tuning_record, pass_)


def _worth(tuning_record: tuning_records.TuningRecord, pass_: str) -> bool:
    """Whether a tuning record says that a kernel is quicker by more than the way to it takes, which is next to nothing
    of it."""
    race, way = tuning_record.whole, PYTHON_US["training" if pass_ == "training" else "forward"]
    return race.torch_us >= WORTH * way and race.ours_us + way <= race.torch_us / tuning_records.MARGIN


def _large(name: str, tensors: tuple[str, ...]) -> tuple[int | None, int]:
    """The tensor that tells the calls of an op for which a kernel of ours may be worth the way to it, by its place, and
    how many elements it has at least; None if there are none on this machine. Where a GPU and the CPU differ in the
    tensor, it is the GPU's."""
    found = [least for place in _places() if (least := _least(tuning_records.records_of(name, place), tensors))]
    same = [size for place, size in found if place == found[-1][0]]
    return (found[-1][0], min(same)) if found else (None, 0)


def _places() -> list[str]:
    found = []
    for device in ("cpu", *(("cuda",) if torch.cuda.is_initialized() else ())):
        try:
            found.append(place_of(device))
        except (RuntimeError, BuildError):
            continue
    return found


def _least(records: Iterable[tuning_records.TuningRecord], names: tuple[str, ...]) -> tuple[int, int] | None:
    """The argument that tells large calls best, by its place, and how many elements it has at least: half of what was
    benchmarked, since what was is to speak for its neighbours."""
    least: dict[str, int] = {}
    for record in records:
        if record.beats_torch and _worth(record, record.pass_):
            for name, size in tuning_records.element_counts(record.call).items():
                least[name] = min(size, least.get(name, size))
    sizes = [(size // 2, names.index(name)) for name, size in least.items() if name in names]
    return max(sizes)[::-1] if sizes else None
