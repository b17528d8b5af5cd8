"""Attention maps that nobody reads are not computed: ``need_weights=False`` in ``nn.MultiheadAttention``.

torch's default computes and averages them, in which case no fused attention can be used. A run of the program says
whether anything reads them, and the source of the methods that call the attention says whether they ever can: they take
the first of the two results, or name the second and never read it. Whoever else calls the attention, and whoever hooks
it, gets the maps.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from types import CodeType, MethodType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from kernelworks.diagnose.optimization import Candidate, Change, Impossible, Promise, Scene
from kernelworks.diagnose.optimizations.accepted_options import Takes, a_list
from kernelworks.diagnose.optimizations.callers import fits, methods_of
from kernelworks.diagnose.optimizations.trial import race_promise
from kernelworks.diagnose.sites import modules as sites_modules
from kernelworks.diagnose.sites.functions import Function
from kernelworks.diagnose.slow_paths.look import watched_run
from kernelworks.diagnose.slow_paths.unread_maps import NEED_WEIGHTS, Maps
from kernelworks.nn.gates import is_hooked
from kernelworks.nn.install import InstalledAttributes
from kernelworks.nn.source_code import definition

__all__ = ["OPTIMIZATION", "without_maps"]

PARTS = "parts"
READ_TEXT = "no method of {of} calls it and leaves the maps unread, in the source as it runs"
FILES_BETWEEN = frozenset(
    {torch_module.__file__, sites_modules.__file__}
)  # whose frames lie between caller and forward
Caller = tuple[str, int, str]  # the file of a method, its first line and its name


class _Attention(NamedTuple):
    module: nn.MultiheadAttention
    callers: frozenset[Caller]  # that leave its maps unread


class _Optimization:
    name = "unread maps"
    takes = Takes(("module",), {PARTS: a_list("paths of modules", lambda value: isinstance(value, str))}, ((PARTS,),))

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        program = scene.program
        if program is None or not any(isinstance(part, nn.MultiheadAttention) for _, part in scene.parts()):
            return
        maps = Maps()
        watched_run(program.run, [maps])
        unread, left = {id(module) for module in maps.unread.modules()}, list[str]()
        for root in scene.roots.modules:
            if isinstance(root, Function):
                continue
            paths = [path for path, part in root.named_modules() if id(part) in unread and _is_plain(part)]
            without = [path for path in paths if not _callers(root, path)]
            left += [_read_by(root, path) for path in without]
            paths = [path for path in paths if path not in without]
            if paths:
                places = "1 place" if len(paths) == 1 else f"{len(paths)} places"
                left.clear()
                yield Candidate(
                    self.name, scene.site(root), f"attention maps that nobody reads are not computed, in {places}",
                    code="attention(query, key, value, need_weights=False)", options=((PARTS, paths),),
                    touches=frozenset({"ops"}),
                )  # fmt: skip
        if left:
            raise Impossible(left[0])

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        return race_promise(scene, self.apply(scene, candidate), scene.scene_of(scene.at(candidate.site)).roots)

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        root: nn.Module = scene.at(candidate.site)
        parts, found, left = dict(root.named_modules()), list[_Attention](), list[str]()
        for path in candidate.option(PARTS):
            part = parts.get(path)
            if not isinstance(part, nn.MultiheadAttention):
                raise Impossible("there is no nn.MultiheadAttention at that place")
            callers = _callers(root, path) if _is_plain(part) else frozenset()
            if callers:
                found.append(_Attention(part, callers))
            else:
                left.append(_read_by(root, path))
        if not found:
            raise Impossible(left[0] if left else "there is no nn.MultiheadAttention at that place")
        change = Change(lambda: without_maps(found))
        change.left = tuple(left)
        return change


def _is_plain(part: nn.Module) -> bool:
    return type(part).forward is nn.MultiheadAttention.forward and "forward" not in part.__dict__


def _read_by(root: nn.Module, path: str) -> str:
    above = root.get_submodule(path.rpartition(".")[0]) if path else None
    of = type(above).__name__ if above is not None else "a module"
    return f"the maps of {path or type(root).__name__}: {READ_TEXT.format(of=of)}"


# ---------------------------------------------------------------- who calls it


def _callers(root: nn.Module, path: str) -> frozenset[Caller]:
    """The methods that call the attention at a path and cannot read its maps; none if one of its module's may."""
    above, _, name = path.rpartition(".")
    if not path:
        return frozenset()
    found = set[Caller]()
    for _, function in methods_of(root.get_submodule(above)):
        code = function.__code__
        if name not in _names(code):
            continue
        node = definition(code) if fits(function) else None
        if node is None or not _leaves_maps(node, code.co_varnames[0], name):
            return frozenset()
        found.add(_key(code))
    return frozenset(found)


def _key(code: CodeType) -> Caller:
    return code.co_filename, code.co_firstlineno, code.co_name


def _names(code: CodeType) -> set[str]:
    """The names that a function uses, and those of functions in it."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return {*code.co_names}.union(*map(_names, inner))


def _leaves_maps(node: ast.FunctionDef, owner: str, part: str) -> bool:
    """Whether a method does nothing with the second result of ``owner.part(...)``, wherever it mentions that part."""
    above = {child: parent for parent in ast.walk(node) for child in ast.iter_child_nodes(parent)}
    loaded = [n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]

    def is_first(each: ast.AST) -> bool:
        """Whether ``each[0]`` is all that is taken of it."""
        parent = above[each]
        index = parent.slice if isinstance(parent, ast.Subscript) and parent.value is each else None
        return isinstance(index, ast.Constant) and type(index.value) is int and index.value == 0

    def leaves(call: ast.AST) -> bool:
        holder = above[call]
        if is_first(call) or isinstance(holder, ast.Expr):
            return True
        if not isinstance(holder, ast.Assign) or len(holder.targets) != 1:
            return False
        target = holder.targets[0]
        if isinstance(target, ast.Name):
            return all(is_first(each) for each in loaded if each.id == target.id)
        if not isinstance(target, ast.Tuple) or len(target.elts) != 2:
            return False
        second = target.elts[1]
        return isinstance(second, ast.Name) and all(each.id != second.id for each in loaded)

    for each in ast.walk(node):
        if not isinstance(each, ast.Attribute) or each.attr != part:
            continue
        if not isinstance(each.value, ast.Name) or each.value.id != owner:
            return False
        parent = above[each]
        called = isinstance(parent, ast.Call) and parent.func is each
        if called and not leaves(parent):
            return False
        of_it = isinstance(parent, ast.Attribute) and not isinstance(above[parent], ast.Call)
        if not called and not of_it:
            return False
    return not any(isinstance(each, (ast.Global, ast.Nonlocal)) for each in ast.walk(node))


# ---------------------------------------------------------------- a call


def without_maps(parts: list[_Attention]) -> Callable[[], None]:
    """Has each called without ``need_weights`` by those who leave its maps unread; returns what undoes that."""
    installed = [InstalledAttributes(each.module) for each in parts]
    for entries, each in zip(installed, parts, strict=True):
        entries.set("forward", MethodType(_called_without(each.callers), each.module))

    def back() -> None:
        for entries in reversed(installed):
            entries.remove()

    return back


def _called_without(callers: frozenset[Caller]) -> Callable[..., Any]:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) < NEED_WEIGHTS and not is_hooked(self) and (torch.compiler.is_compiling() or _called_by(callers)):
            kwargs["need_weights"] = False
        return type(self).forward(self, *args, **kwargs)  # by now: a swap may have replaced the class

    return forward


def _called_by(callers: frozenset[Caller]) -> bool:
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename in FILES_BETWEEN:
        frame = frame.f_back
    return frame is not None and _key(frame.f_code) in callers


OPTIMIZATION = _Optimization()
