"""Products of one input by several weights (query, key and value; gate and up) as one product.

The input is read once, one call is made instead of three, and a product of few rows keeps more of the machine busy.
The weights are laid in one memory, and each parameter becomes a view of it: the same objects with the same values, tied
if they were tied, for no more memory. A write to a parameter is a write to that memory, so nothing has to be made anew.

The data flow shows which products share an input, and so does the method that calls them (``callers``): it passes one
variable to all of them, and nothing between the first and the last can write to it or to a weight. The other results
live only within that call. Each call checks what can change: the modules, their parameters, hooks, gradients.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelworks.build.digest import look
from kernelworks.contract.tensors import is_plain, version_of
from kernelworks.diagnose.graphs.held_state import Itself
from kernelworks.diagnose.optimization import Candidate, Change, Impossible, Promise, Scene
from kernelworks.diagnose.optimizations import callers
from kernelworks.diagnose.optimizations.accepted_options import Takes, groups_of
from kernelworks.diagnose.optimizations.derived_values import (
    any_requires_grad,
    as_shipped,
    needs_torch_operators,
    own_memory,
)
from kernelworks.diagnose.optimizations.folded_norms import below, install_all
from kernelworks.diagnose.optimizations.trial import race_promise
from kernelworks.nn.gates import is_hooked
from kernelworks.profile.cost.dataflow import Flow
from kernelworks.profile.trace import Call
from kernelworks.records.fix import MODULES_MADE_ANEW

__all__ = ["OPTIMIZATION", "MergedParameters", "products_of_one_input"]

CODE = """\
# in the module that holds them, once, and again if a weight changes:
{made}
# and in its forward:
{names} = torch.nn.functional.linear(x, {given}).split([{sizes}], dim=-1)"""
NO_SHARED_INPUT = (
    "no method of {of} passes one variable to all of {names}, with nothing between that may write, "
    "in the source as it runs"
)
# What may stand between two products: it writes to nothing that existed before.
METHODS = frozenset({
    "view", "reshape", "transpose", "permute", "contiguous", "unflatten", "flatten", "squeeze", "unsqueeze", "expand",
    "chunk", "split", "size", "dim", "float", "relu", "sigmoid", "tanh", "softmax", "mul", "add", "clone", "movedim",
    "repeat", "matmul", "numel",
})  # fmt: skip
FUNCTIONS = frozenset({
    "cat", "silu", "gelu", "relu", "sigmoid", "tanh", "softmax", "reshape", "transpose", "permute", "matmul", "stack",
})  # fmt: skip
QUIET = ("torch.nn.modules.", "transformers.activations")  # whose modules compute and do nothing else
NODES = (
    ast.Name, ast.Load, ast.Constant, ast.Attribute, ast.Tuple, ast.List, ast.Call, ast.keyword, ast.BinOp,
    ast.operator, ast.UnaryOp, ast.unaryop, ast.Subscript, ast.Slice, ast.Starred,
)  # fmt: skip


class _Optimization:
    name = "merged projections"
    takes = Takes(("module",), {"groups": groups_of(2)}, needs=(("groups",),))

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        timeline = scene.forecaster.timeline if scene.forecaster is not None else None
        if timeline is None or scene.training or scene.autocast:
            return
        found, without, has_candidate = products_of_one_input(timeline.calls), list[str](), False
        for root in scene.roots.modules:
            name, parts = type(root).__name__, dict(root.named_modules())
            groups = [[below(name, path) for path in group] for group in found]
            groups = [group for group in groups if mergeable([parts.get(path) for path in group], root)]
            places, left = places_of(root, groups)
            groups = [list(place.groups[at].paths) for place in places for at in sorted(place.groups)]
            if groups and scene.roots.fresh:
                raise Impossible(MODULES_MADE_ANEW)
            if groups:
                short = [path.rpartition(".")[2] for path in groups[0]]
                kinds = ("weight",) if parts[groups[0][0]].bias is None else ("weight", "bias")
                made = (f"{kind} = torch.cat([{', '.join(f'self.{each}.{kind}' for each in short)}])" for kind in kinds)
                sizes = ", ".join(str(parts[path].out_features) for path in groups[0])
                code = CODE.format(made="\n".join(made), names=", ".join(short), given=", ".join(kinds), sizes=sizes)
                yield Candidate(
                    self.name, scene.site(root), f"{', '.join(short)} as one product, in {len(groups)} places",
                    code=code, options=(("groups", groups),), touches=frozenset({"ops"}),
                )  # fmt: skip
                has_candidate = True
            else:
                without += left
        if without and not has_candidate:
            raise Impossible(without[0])

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        return race_promise(scene, self.apply(scene, candidate), scene.scene_of(scene.at(candidate.site)).roots)

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        root = scene.at(candidate.site)
        parts = dict(root.named_modules())
        groups = [[str(path) for path in group] for group in candidate.option("groups", ())]
        if not all(mergeable([parts.get(path) for path in group], root) for group in groups):
            raise Impossible("a product that is to be merged differs here")
        places, left = places_of(root, groups)
        if not places:
            raise Impossible(left[0] if left else "there is nothing to merge")
        again = scene.forecaster is not None  # a search puts it in and takes it out many times
        merging = [Merging(place, again=again) for place in places]
        change = Change(lambda: install_all(merging))
        change.left = tuple(left)
        return change


def products_of_one_input(calls: Sequence[Call]) -> list[list[str]]:
    """The paths of the modules, in the order of their calls, whose products read one tensor; modules of one parent that
    are called together each time."""
    flow = Flow(calls)
    together: dict[tuple[Any, ...], list[str]] = {}
    seen: dict[str, int] = {}
    for step in flow.steps:
        path = step.call.place.path
        if step.name != "linear" or not path or not step.tensors:
            continue
        seen[path] = seen.get(path, 0) + 1
        x = step.tensors[0]
        key = (path.rpartition(".")[0], x.storage, id(step.maker()), x.shape, seen[path])
        together.setdefault(key, []).append(path)
    groups: dict[tuple[str, ...], int] = {}
    for paths in together.values():
        if len(paths) > 1:
            groups[tuple(paths)] = groups.get(tuple(paths), 0) + 1
    return [list(paths) for paths, count in groups.items() if all(seen[path] == count for path in paths)]


def mergeable(parts: Sequence[Any], root: nn.Module) -> bool:
    """Whether they are torch's own, without hooks, of one dtype, and share their memory with nothing."""
    if len(set(map(id, parts))) < 2 or any(type(part) is not nn.Linear or not as_shipped(part) for part in parts):
        return False
    if not all("weight" in p._parameters and "bias" in p._parameters for p in parts):
        return False
    if len({(p.in_features, p.weight.dtype, p.weight.device, p.bias is None) for p in parts}) > 1:
        return False
    held = {id(t): t for t in (*root.parameters(), *root.buffers())}.values()
    owners: dict[int, int] = {}
    for tensor in held:
        if tensor.layout is torch.strided:
            at = tensor.untyped_storage().data_ptr()
            owners[at] = owners.get(at, 0) + 1
    for part in parts:
        if "forward" in part.__dict__:
            return False
        for tensor in part._parameters.values():
            if tensor is not None and not _own(tensor, owners):
                return False
    return len({id(p.weight) for p in parts}) == len(parts)


def _own(tensor: Tensor, owners: dict[int, int]) -> bool:
    storage = tensor.untyped_storage()
    whole = tensor.is_contiguous() and storage.nbytes() == tensor.nbytes
    return whole and not tensor.is_inference() and owners.get(storage.data_ptr()) == 1 and type(tensor) is nn.Parameter


# ---------------------------------------------------------------- where


class Group(NamedTuple):
    """Products to which one method passes one variable, in their order, and the other parts that it calls meanwhile."""

    paths: tuple[str, ...]
    parts: tuple[Any, ...]
    between: tuple[str, ...]


class Place(NamedTuple):
    """A module with such groups, by number, and its rewritten methods, by name."""

    caller: nn.Module
    groups: dict[int, Group]
    methods: dict[str, tuple[Any, CodeType]]


def places_of(root: nn.Module, groups: Sequence[Sequence[str]]) -> tuple[list[Place], list[str]]:
    """The places at which groups of products can be merged, and why the others cannot."""
    parts = dict(root.named_modules())
    by_caller: dict[str, list[tuple[str, ...]]] = {}
    for group in groups:
        by_caller.setdefault(group[0].rpartition(".")[0], []).append(tuple(group))
    places, left, done = [], [], dict[Any, Any]()
    for above, mine in by_caller.items():
        caller = parts[above]
        names = tuple(tuple(path.rpartition(".")[2] for path in group) for group in mine)
        place = Place(caller, {}, {})
        for name, function in callers.methods_of(caller):
            if name in caller.__dict__ or not any(set(group) <= set(function.__code__.co_names) for group in names):
                continue
            key = function, names, type(caller)
            if key not in done:
                done[key] = _rewritten(function, names, type(caller))
            code, found = done[key]
            if code is not None and not found.keys() & place.groups.keys():
                place.methods[name] = function, code
                for at, (order, between) in found.items():
                    paths = tuple(mine[at][names[at].index(each)] for each in order)
                    place.groups[at] = Group(paths, tuple(parts[path] for path in paths), between)
        if place.groups:
            places.append(place)
        gone = (group for at, group in enumerate(names) if at not in place.groups)
        left += [NO_SHARED_INPUT.format(of=type(caller).__name__, names=", ".join(group)) for group in gone]
    return places, left


Straight = tuple[list[tuple[str, ast.Call]], tuple[str, ...]]
GroupOrders = dict[int, tuple[tuple[str, ...], tuple[str, ...]]]  # by number of a group: its order, and what is between


def _rewritten(
    function: FunctionType, names: Sequence[tuple[str, ...]], cls: type
) -> tuple[CodeType | None, GroupOrders]:
    found: GroupOrders = {}
    if getattr(cls, "__getattr__", None) is not nn.Module.__getattr__:  # reading an attribute may run any code
        return None, found

    def rewrite(node: ast.FunctionDef, owner: str, code: CodeType) -> bool:
        reading = _Reading(function, owner, cls)
        for at, group in enumerate(names):
            seen = reading.straight(node, group)
            if seen is not None:
                found[at] = tuple(part for part, _ in seen[0]), seen[1]
                for number, (_, call) in enumerate(seen[0]):
                    made = callers.on_site("take", ast.Constant(at), ast.Constant(number), call.func, *call.args)
                    call.func, call.args = made.func, made.args
        return bool(found)

    return callers.rewritten(function, rewrite, begin="call"), found


class _Reading:
    """Reads a method's definition for products of one variable between which nothing writes."""

    def __init__(self, function: FunctionType, owner: str, cls: type) -> None:
        self.function, self.owner, self.cls = function, owner, cls
        code = function.__code__
        self.variables = set(code.co_varnames) - set(code.co_cellvars)

    def straight(self, node: ast.FunctionDef, group: Sequence[str]) -> Straight | None:
        """The calls of a group's parts in their order, and the other parts that are called in the same statements."""
        if any(len([n for n in ast.walk(node) if self._part(n) == name]) != 1 for name in group):
            return None
        for holder in ast.walk(node):
            for _, block in ast.iter_fields(holder):
                if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                    found = self._in_block(block, group)
                    if found is not None:
                        return found
        return None

    def _in_block(self, block: list[ast.stmt], group: Sequence[str]) -> Straight | None:
        calls = [[c for c in _in_order(statement) if callers.called_on(c, self.owner) in group] for statement in block]
        at = [i for i, each in enumerate(calls) if each]
        found = [call for each in calls for call in each]
        if len(found) != len(group):
            return None
        given = {call.args[0].id if isinstance(call.args[0], ast.Name) else "" for call in found}
        x = next(iter(given))
        statements = block[at[0] : at[-1] + 1]
        between: set[str] = set()
        if len(given) > 1 or x not in self.variables:
            return None
        for number, statement in enumerate(statements):
            last = number == len(statements) - 1
            if not self._quiet(statement, between) or (not last and x in _stored(statement)):
                return None
        order = [(callers.called_on(call, self.owner), call) for call in found]
        return order, tuple(sorted(between - set(group)))

    def _part(self, node: ast.AST) -> str:
        """The attribute of ``self`` that an expression is, or ""."""
        own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == self.owner
        return node.attr if own and isinstance(node, ast.Attribute) else ""

    def _quiet(self, statement: ast.stmt, between: set[str]) -> bool:
        """Whether a statement computes, names results, and does nothing else; ``between`` gets the parts it calls."""
        if isinstance(statement, ast.Assign):
            targets = [each for t in statement.targets for each in (t.elts if isinstance(t, ast.Tuple) else [t])]
            if not all(isinstance(each, ast.Name) and each.id in self.variables for each in targets):
                return False
        elif not isinstance(statement, (ast.Return, ast.Expr)):
            return False
        if statement.value is None:
            return False
        for node in ast.walk(statement.value):
            if not isinstance(node, NODES) or isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
                return False
            part = self._part(node)
            if part and isinstance(inspect.getattr_static(self.cls, part, None), property):
                return False
            if isinstance(node, ast.Call) and not self._computes(node, between):
                return False
        return True

    def _computes(self, call: ast.Call, between: set[str]) -> bool:
        function = call.func
        if not isinstance(function, ast.Attribute) or any(k.arg in (None, "out", "inplace") for k in call.keywords):
            return False
        if self._part(function):
            between.add(function.attr)
            return True
        root: ast.AST = function.value
        dotted = [function.attr]
        while isinstance(root, ast.Attribute):
            dotted.append(root.attr)
            root = root.value
        if isinstance(root, ast.Name) and root.id not in self.function.__code__.co_varnames:
            value = self.function.__globals__.get(root.id)
            for name in reversed(dotted[1:]):
                value = getattr(value, name, None)
            return (value is torch or value is F) and function.attr in FUNCTIONS
        return function.attr in METHODS and not (isinstance(root, ast.Name) and root.id == self.owner)


def _in_order(node: ast.AST) -> Iterator[ast.Call]:
    """The calls in an expression or a simple statement, in the order in which they are made; none in a function, a
    branch or a statement with a body."""
    if isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.IfExp, ast.BoolOp)):
        return
    if isinstance(node, ast.stmt) and not isinstance(node, (ast.Assign, ast.Return, ast.Expr)):
        return
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)
    if isinstance(node, ast.Call):
        yield node


def _stored(statement: ast.stmt) -> set[str]:
    return {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}


# ---------------------------------------------------------------- a call


class MergedParameters:
    """The parameters of some nn.Linear, laid in one memory while installed."""

    def __init__(self, group: Group, *, again: bool) -> None:
        """``again``: each memory is kept while the other is in use, so that both lie where they did each time."""
        self.group, self.again = group, again
        self.weight = torch.empty(0, device="cpu")
        self.bias: Tensor | None = None
        self.laid: tuple[tuple[Any, Any, Any], ...] = ()  # of each parameter or None: itself, and how it lies

    def install(self) -> Callable[[], None]:
        weights = [part.weight for part in self.group.parts]
        biases = [part.bias for part in self.group.parts if part.bias is not None]
        before = [(p, p.data) for p in (*weights, *biases)] if self.again else []
        with torch.inference_mode(False), torch.no_grad():
            self.weight = _laid_together(weights, self.weight)
            self.bias = _laid_together(biases, self.bias) if biases else None
        self.laid = tuple(map(_lies, self._parameters()))

        def back() -> None:
            with torch.inference_mode(False), torch.no_grad():
                for parameter, data in before:
                    own_memory(parameter, data)
                if not self.again:
                    for parameter in (*weights, *biases):
                        parameter.data = parameter.data.clone()
                    self.weight, self.bias = torch.empty(0, device="cpu"), None
            self.laid = ()

        return back

    def _parameters(self) -> list[Any]:
        return [p for part in self.group.parts for p in (part.weight, part.bias)]

    def __call__(self, caller: Any, x: Any) -> list[Tensor] | None:
        """The outputs of all; None if each is to be called."""
        parts, weight, bias = self.group.parts, self.weight, self.bias
        if (
            needs_torch_operators()
            or not isinstance(x, Tensor)
            or x.device != weight.device
            or x.dtype is not weight.dtype
        ):
            return None
        if torch.is_autocast_enabled(x.device.type) or not all(map(as_shipped, parts)):
            return None
        if not all(_silent(caller._modules.get(name)) for name in self.group.between):
            return None
        held = self._parameters()
        tensors = [t for t in held if t is not None]
        if (
            not all(isinstance(t, Tensor) for t in tensors)
            or not is_plain(x, *tensors)
            or any_requires_grad((x, *tensors))
        ):
            return None
        if tuple(map(_lies, held)) != self.laid:
            return None
        if not x.is_contiguous() or not x.numel() or x.shape[-1] != weight.shape[1]:
            return None
        whole = F.linear(x, weight, bias)
        return [
            each.clone(memory_format=torch.contiguous_format) for each in whole.split([len(w) for w in held[::2]], -1)
        ]


def _lies(parameter: Any) -> tuple[Any, ...]:
    return Itself(parameter), look(parameter) if isinstance(parameter, Tensor) else None


def _silent(module: Any) -> bool:
    """Whether a call of a module computes and does nothing else."""
    if not isinstance(module, nn.Module) or is_hooked(module) or "forward" in module.__dict__:
        return False
    return type(module).__module__.startswith(QUIET) and not module._modules


class Merging:
    """One place while it is installed."""

    def __init__(self, place: Place, *, again: bool) -> None:
        self.place = place
        self.merged = {at: MergedParameters(group, again=again) for at, group in place.groups.items()}

    def install(self) -> Callable[[], None]:
        """Puts it in place; returns what takes it out."""
        methods = {name: (f, callers.of_site(f, code, self)) for name, (f, code) in self.place.methods.items()}
        back = install_all(self.merged.values())
        remove = callers.placed_in(self.place.caller, methods)

        def out() -> None:
            remove()
            back()

        return out

    def call(self) -> _Call:
        """What rewritten code gets when it begins."""
        return _Call(self)


class _Call:
    """One call of a rewritten method: what it keeps ends with it."""

    def __init__(self, merging: Merging) -> None:
        self.merging = merging
        self.made: dict[int, tuple[Any, int, list[Tensor | None]]] = {}

    def take(self, at: int, number: int, part: Any, x: Any) -> Any:
        """``part(x)``, the one of this number in a group."""
        merged = self.merging.merged[at]
        if part is not merged.group.parts[number]:
            return part(x)
        if number == 0:
            self.made.pop(at, None)
            found = merged(self.merging.place.caller, x)
            if found is None:
                return part(x)
            self.made[at] = x, version_of(x), [None, *found[1:]]
            return found[0]
        kept = self.made.get(at)
        if kept is None or kept[0] is not x or version_of(x) != kept[1] or kept[2][number] is None:
            return part(x)
        mine, kept[2][number] = kept[2][number], None
        return mine


def _laid_together(parameters: Sequence[Tensor], buffer: Tensor | None) -> Tensor:
    """One memory for all their rows, of which each becomes a view: ``buffer``, if one is given."""
    values = [p.data for p in parameters]
    whole = torch.cat(values, out=buffer) if buffer is not None and buffer.numel() else torch.cat(values)
    at = 0
    for parameter in parameters:
        parameter.data = whole[at : at + len(parameter)]
        at += len(parameter)
    return whole


OPTIMIZATION = _Optimization()
