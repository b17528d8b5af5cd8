"""The best program found as a patch: a unified diff on the program's own source.

A change is written if it has exactly one place: after the line that builds a model, in the call that makes an
optimizer, as a decorator of a function. The holders of the object and the syntax of the program tell the line
(``locate``). A change without one place goes into a comment at the entry point with the reason, and the first line of
the patch, which ``git apply`` ignores, says so.
"""

from __future__ import annotations

import ast
import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

from torch import nn

from kernelworks.diagnose.fix.locate import place_of
from kernelworks.diagnose.fix.source_edit import NoPlace, Source
from kernelworks.diagnose.optimization import PROCESS, Candidate, Impossible, Scene
from kernelworks.diagnose.optimizations.alike_layers import ALIKE
from kernelworks.diagnose.optimizations.folded_norms import in_full
from kernelworks.diagnose.optimizations.swapped_functions import called_by
from kernelworks.diagnose.sites.functions import LIBRARIES, Function
from kernelworks.nn.rebind import Rebinder

__all__ = ["as_patch", "patch_folder"]

START = ("threads", "allocator")  # what is written once, before everything else
MODEL = (  # and what is written once for a model; of several changes one after the other
    "folded norms", "fewer bits", "weights cast once", "channels_last", "static cache", "swap", "torch.compile",
)  # fmt: skip
WEIGHTS = (
    "folded norms",
    "fewer bits",
    "weights cast once",
)  # these derive values from the weights as they are at the call
AUTHORS = {  # optimizations without one place, however the program is written
    "merged projections": "it goes into the forward of {of}",
    "CUDA graph": "it needs example inputs, which the line that builds the model does not have",
}
CLIPPED_NAME = "clipped_parameters"
HEADER = "kernelworks: {n} of {all} changes have a place of their own in the source"
HEADER_OTHERS = "; the others are in a comment at the entry point, with the lines to write: {names}"


def as_patch(candidates: Sequence[Candidate], scene: Scene, file: Path | None, entry: Any = None) -> str:
    """A patch that puts ``candidates`` into the program's own source; "" if that is in no file. ``file`` is where
    the program begins, ``entry`` the function that it calls."""
    if file is None or not file.is_file() or not candidates:
        return ""
    made = _Patch(scene, file, entry)
    ordered = sorted(
        candidates,
        key=lambda candidate: MODEL.index(candidate.optimization) if candidate.optimization in MODEL else len(MODEL),
    )
    tried = [(candidate, made.put(candidate)) for candidate in ordered]
    without = [(candidate, why) for candidate, why in tried if why]
    if without:
        made.tell(without)
    text = "".join(source.diff(made.base) for source in made.sources)
    if not text:
        return ""
    first = HEADER.format(n=len(candidates) - len(without), all=len(candidates))
    if without:
        first += HEADER_OTHERS.format(
            names=", ".join(dict.fromkeys(candidate.optimization for candidate, _ in without))
        )
    return f"{first}\n{text}"


def patch_folder(file: Path | None) -> str:
    """The folder in which the patch is to be applied, as seen from the current one; "" if that is the same."""
    base = Path.cwd() if file is None else _base(file.resolve())
    return "" if base == Path.cwd().resolve() else os.path.relpath(base)


def _base(file: Path) -> Path:
    """The folder from which the paths of a patch are told."""
    here = Path.cwd().resolve()
    return here if file.is_relative_to(here) else file.parent


class _Patch:
    """The program's files, and what is written into them."""

    def __init__(self, scene: Scene, file: Path, entry: Any) -> None:
        self.scene, self.file, self.entry = scene, file.resolve(), entry
        self.base = _base(self.file)
        self.sources = list(self._sources())

    def _sources(self) -> Iterator[Source]:
        """The file that the program begins in, then those of its modules that lie below the same folder."""
        paths = [self.file]
        folder_of = functools.cache(os.path.realpath)  # thousands of modules lie in hundreds of folders
        for module in list(sys.modules.values()):
            name = getattr(module, "__file__", None)
            if not isinstance(name, str) or not name.endswith(".py"):
                continue
            folder, file = os.path.split(name)
            real = os.path.realpath(name) if os.path.islink(name) else os.path.join(folder_of(folder), file)
            if not real.startswith(LIBRARIES):
                paths.append(Path(real))
        for path in dict.fromkeys(paths):
            if path.is_relative_to(self.base):
                try:
                    yield Source(path)
                except (OSError, SyntaxError, ValueError):
                    continue

    def put(self, candidate: Candidate) -> str:
        """Writes one change at its place. Returns "", or the reason if it has not exactly one place."""
        if not self.sources:
            return "the program is in no file that can be read"
        before = [source.mark() for source in self.sources]
        try:
            WRITERS.get(candidate.optimization, _Patch.leave_to_author)(self, candidate)
            for source in self.sources:
                source.edited_text()
        except (NoPlace, Impossible) as why:
            for source, mark in zip(self.sources, before, strict=True):
                source.back_to(mark)
            return str(why)
        return ""

    def tell(self, candidates: Sequence[tuple[Candidate, str]]) -> None:
        """Writes what has no place into a comment at the entry point, and why it has none."""
        lines = ["# kernelworks found these too, which have no single place in this program:"]
        for candidate, why in candidates:
            lines += [f"# {candidate.optimization}, {candidate.says} ({candidate.site}):", f"#   ({why})"]
            lines += [f"#     {line}" for line in candidate.code.splitlines()]
        source = self.sources[0]
        function = inspect.unwrap(getattr(self.entry, "__func__", self.entry)) if self.entry is not None else None
        code = getattr(function, "__code__", None)
        node = source.function(code) if code is not None and Path(code.co_filename).resolve() == source.path else None
        source.ahead_of(node, lines)

    # ------------------------------------------------------------ each

    def leave_to_author(self, candidate: Candidate) -> None:
        """What only the author can write."""
        why = AUTHORS.get(candidate.optimization, "it is not one line of the program")
        if "{of}" in why:
            root = self.scene.at(candidate.site)
            path = str(candidate.option("groups")[0][0]).rpartition(".")[0]
            why = why.format(of=_forward_of(root.get_submodule(path)))
        raise NoPlace(why)

    def model(self, candidate: Candidate) -> None:
        """After the lines that build a model."""
        if candidate.site.kind == "function":
            self.decorate_function(candidate)
            return
        if candidate.site == PROCESS:
            self.start(candidate)
            return
        roots = self.scene.roots.models if candidate.site.kind == "everywhere" else [self._root(candidate)]
        if not roots:
            raise NoPlace("the program calls no torch.nn.Module")
        if candidate.code.startswith("#"):
            raise NoPlace("another module shares a weight of it")
        for root in roots:
            source, statement, name = place_of(self.sources, root)
            code = (
                in_full(root, candidate.option("pairs")) if candidate.optimization == "folded norms" else candidate.code
            )
            code = re.sub(r"(?<![\w.\"'])model\b", lambda _, n=name: n, code)  # type: ignore[misc]
            source.after(statement, name, code.splitlines(), after_uses=candidate.optimization in WEIGHTS)
            source.importing([word for word in ("torch", "kernelworks") if re.search(rf"\b{word}\.", code)])

    def _root(self, candidate: Candidate) -> nn.Module:
        """The outermost module of a candidate."""
        if candidate.option(ALIKE):
            raise NoPlace(f"{candidate.option(ALIKE)} modules are compiled, which no one line makes")
        if candidate.site.path:
            raise NoPlace(f"{candidate.site.path} is a part that the model's own class makes")
        found: nn.Module = self.scene.at(candidate.site)
        return found

    def _function(self, fn: Callable[..., Any]) -> tuple[Source, Any]:
        """A function's file and its definition in it."""
        code = inspect.unwrap(fn).__code__
        source = next((each for each in self.sources if each.path == Path(code.co_filename).resolve()), None)
        node = source.function(code) if source is not None else None
        if source is None or node is None:
            raise NoPlace(f"{code.co_filename}:{code.co_firstlineno} is no function of the program's own files")
        return source, node

    def replace_calls(self, candidate: Candidate) -> None:
        """Puts our functions in the place of torch's, whose arguments they take, there and in what it calls."""
        function: Function = self.scene.at(candidate.site)
        found = Rebinder().rebind(function.fn)
        helpers = (each for _, _, each in found.replaced if isinstance(each, FunctionType)) if found else ()
        changed = 0
        for fn in dict.fromkeys((inspect.unwrap(function.fn), *helpers)):
            source, node = self._function(fn)
            for call in (each for each in ast.walk(node) if isinstance(each, ast.Call)):
                ours = called_by(ast.unparse(call.func), fn.__globals__)
                if ours:
                    source.rename_call(call, f"kernelworks.{ours}")
                    source.importing(["kernelworks"])
                    changed += 1
        if not changed:
            raise NoPlace(f"what {function.path}() calls is not called by torch.nn.functional's names")

    def decorate_function(self, candidate: Candidate) -> None:
        function: Function = self.scene.at(candidate.site)
        source, node = self._function(function.fn)
        given = ", ".join(f'{key}="{value}"' for key, value in candidate.options if key in ("mode", "backend"))
        source.decorate(node, f"@torch.compile({given})" if given else "@torch.compile")
        source.importing(["torch"])

    def start(self, candidate: Candidate) -> None:
        self.sources[0].at_start(candidate.code.splitlines())
        self.sources[0].importing(["torch"] if "torch." in candidate.code else [])

    def optimizer(self, candidate: Candidate) -> None:
        kind = str(candidate.option("kind") or candidate.site.type).rpartition(".")[2]
        calls = [(source, call) for source in self.sources for call in source.calls(kind)]
        if not calls:
            raise NoPlace(f"no line of the program calls {kind}")
        if len(calls) > 1 and not candidate.option("kind"):  # it is unknown which of them made this one
            source, statement, _ = place_of(self.sources, self.scene.at(candidate.site))
            calls = [(source, call) for call in source.calls(kind) if source.holds(statement, call)]
            if len(calls) != 1:
                raise NoPlace(f"{source.path.name}:{statement.lineno} calls {kind} {len(calls)} times")
        how = candidate.option("how", "fused")
        for source, call in calls:
            if how == "kernelworks":
                source.rename_call(call, f"kernelworks.nn.optim.{kind}")
                source.importing(["kernelworks"])
            else:
                source.keyword(call, how, "True")

    def rewrite_clipping(self, candidate: Candidate) -> None:
        found = [(source, call) for source in self.sources for call in source.calls("clip_grad_norm_")]
        if not found:
            raise NoPlace("no line of the program calls clip_grad_norm_")
        for source, call in found:
            if candidate.option("how") == "foreach":
                source.keyword(call, "foreach", "None")
            else:
                source.statement(call, *_clipping(call, source))
                source.importing(["torch"])


def _clipping(call: ast.Call, source: Source) -> tuple[Callable[[str], list[str]], str]:
    """The lines that clip, given the name of the norm, and that name if the program gives none."""
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    given = dict(zip(("parameters", "max_norm"), call.args, strict=False)) | named
    if given.keys() != {"parameters", "max_norm"}:
        raise NoPlace(f"{source.path.name}:{call.lineno} passes more than the parameters and the norm")
    parameters, most = (source.text_of(given[name]) for name in ("parameters", "max_norm"))
    first = list[str]()
    if not isinstance(given["parameters"], ast.Call):  # a name may be a generator's, which can be read once
        alone = f"isinstance({parameters}, torch.Tensor)"
        first.append(f"{CLIPPED_NAME} = [{parameters}] if {alone} else list({parameters})")
        parameters = CLIPPED_NAME

    def lines(norm: str) -> list[str]:
        return [
            *first,
            f"{norm} = torch.nn.utils.get_total_norm([p.grad for p in {parameters} if p.grad is not None])",
            f"if not {norm} < {most}:  # on a CPU this waits for nothing, and saves a pass over the gradients",
            f"    torch.nn.utils.clip_grads_with_norm_({parameters}, {most}, {norm})",
        ]

    return lines, "norm_of_gradients"


WRITERS: dict[str, Callable[[_Patch, Candidate], None]] = {
    **dict.fromkeys(MODEL, _Patch.model), **dict.fromkeys(START, _Patch.start), "fused optimizer": _Patch.optimizer,
    "gradient clipping": _Patch.rewrite_clipping, "swap in functions": _Patch.replace_calls,
}  # fmt: skip


def _forward_of(module: nn.Module) -> str:
    """A module's class, and the line of its forward."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return f"{type(module).__name__}, {Path(code.co_filename).name}:{code.co_firstlineno}" if code else ""
