"""The best program found as a patch: a unified diff on the program's own source.

A change is written where it has one place: after the line that builds a model, in the call that makes an optimizer, as
a decorator of a function. Which line that is, is told by the program's modules and by their syntax. What has no one
place goes into a comment at the entry point, and the patch says so in its first lines, which ``git apply`` passes over.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from kernelworks.diagnose.functions import LIBRARIES, Function
from kernelworks.diagnose.remedies.remedy import Impossible, Offer, Scene
from kernelworks.diagnose.written import NoPlace, Source

__all__ = ["as_patch"]

MODEL = ("channels_last", "static cache", "swap", "torch.compile")  # what is written once for a model that is built
START = ("threads", "allocator")  # and what is written once, ahead of all else
AHEAD = "kernelworks: {n} of {all} changes have a place of their own in the source"
BESIDE = "; the others are in a comment at the entry point, with the lines to write: {names}"


def as_patch(offers: Sequence[Offer], scene: Scene, file: Path | None, entry: Any = None) -> str:
    """A patch that puts ``offers`` into the program's own source; "" where that is in no file. ``file`` is where the
    program begins, ``entry`` the function that it calls."""
    if file is None or not file.is_file() or not offers:
        return ""
    made = _Patch(scene, file, entry)
    without = [offer for offer in offers if not made.put(offer)]
    if without:
        made.tell(without)
    text = "".join(source.diff(made.base) for source in made.sources)
    if not text:
        return ""
    first = AHEAD.format(n=len(offers) - len(without), all=len(offers))
    if without:
        first += BESIDE.format(names=", ".join(dict.fromkeys(offer.remedy for offer in without)))
    return f"{first}\n{text}"


class _Patch:
    """The program's files, and what is written into them."""

    def __init__(self, scene: Scene, file: Path, entry: Any) -> None:
        self.scene, self.file, self.entry = scene, file.resolve(), entry
        here = Path.cwd().resolve()
        self.base = here if self.file.is_relative_to(here) else self.file.parent
        self.sources = list(self._sources())

    def _sources(self) -> Iterator[Source]:
        """The file that the program begins in, then those of its modules that lie below the same folder."""
        paths = [self.file]
        for module in list(sys.modules.values()):
            name = getattr(module, "__file__", None)
            if isinstance(name, str) and name.endswith(".py") and not str(Path(name).resolve()).startswith(LIBRARIES):
                paths.append(Path(name).resolve())
        for path in dict.fromkeys(paths):
            if path.is_relative_to(self.base):
                try:
                    yield Source(path)
                except (OSError, SyntaxError, ValueError):
                    continue

    def put(self, offer: Offer) -> bool:
        """Writes one change where it belongs; False where that is no one place."""
        put = PUT.get(offer.remedy)
        if put is None or not self.sources:
            return False
        before = [source.mark() for source in self.sources]
        try:
            put(self, offer)
        except (NoPlace, Impossible):
            for source, mark in zip(self.sources, before, strict=True):
                source.back_to(mark)
            return False
        return True

    def tell(self, offers: Sequence[Offer]) -> None:
        """What has no place, in a comment at the entry point."""
        lines = ["# kernelworks found these besides, which have no one place in this program:"]
        for offer in offers:
            lines.append(f"# {offer.remedy}, {offer.says} ({offer.site}):")
            lines += [f"#     {line}" for line in offer.code.splitlines()]
        source = self.sources[0]
        function = getattr(self.entry, "__func__", self.entry)
        code = getattr(function, "__code__", None)
        node = source.function(code) if code is not None and Path(code.co_filename).resolve() == source.path else None
        source.ahead_of(node, lines)

    # ------------------------------------------------------------ each

    def model(self, offer: Offer) -> None:
        if offer.site.kind == "function":
            self.decorated(offer)
            return
        roots = self.scene.roots.models if offer.site.kind == "everywhere" else [self._root(offer)]
        if not roots:
            raise NoPlace
        for root in roots:
            source, statement, name = self._built(root)
            code = re.sub(r"\bmodel\b", lambda _, n=name: n, offer.code)  # type: ignore[misc]
            source.after(statement, name, code.splitlines())
            source.importing([word for word in ("torch", "kernelworks") if re.search(rf"\b{word}\.", code)])

    def _root(self, offer: Offer) -> nn.Module:
        """The outermost module that an offer is of."""
        if offer.site.path:
            raise NoPlace
        found: nn.Module = self.scene.at(offer.site)
        return found

    def _built(self, root: nn.Module) -> tuple[Source, ast.stmt, str]:
        """The statement that builds a module, and by which name the program has it from then on."""
        held = [
            (source, statement, name)
            for source in self.sources
            for name in source.names_of(root)
            for statement in source.assigned(name)[-1:]
        ]
        found = held or [
            (source, statement, name)
            for source in self.sources
            for statement, name in source.built(type(root).__name__)
        ]
        if len(found) != 1:
            raise NoPlace
        return found[0]

    def decorated(self, offer: Offer) -> None:
        function: Function = self.scene.at(offer.site)
        code = inspect.unwrap(function.fn).__code__
        source = next((each for each in self.sources if each.path == Path(code.co_filename).resolve()), None)
        node = source.function(code) if source is not None else None
        if source is None or node is None:
            raise NoPlace
        given = ", ".join(f'{key}="{value}"' for key, value in offer.options if key in ("mode", "backend"))
        source.decorate(node, f"@torch.compile({given})" if given else "@torch.compile")
        source.importing(["torch"])

    def start(self, offer: Offer) -> None:
        self.sources[0].at_start(offer.code.splitlines())
        self.sources[0].importing(["torch"] if "torch." in offer.code else [])

    def optimizer(self, offer: Offer) -> None:
        kind = str(offer.option("kind") or offer.site.type).rpartition(".")[2]
        calls = [(source, call) for source in self.sources for call in source.calls(kind)]
        if not calls or (len(calls) > 1 and not offer.option("kind")):
            raise NoPlace
        how = offer.option("how", "fused")
        for source, call in calls:
            if how == "kernelworks":
                source.renamed(call, "kernelworks.optim.AdamW")
                source.importing(["kernelworks"])
            else:
                source.keyword(call, how, "True")

    def zeroed(self, offer: Offer) -> None:
        found = 0
        for source in self.sources:
            for call in source.calls("zero_grad"):
                values = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "set_to_none")]
                for value in values:
                    if not (isinstance(value, ast.Constant) and value.value is False):
                        raise NoPlace
                    source.replaced(value, "True")
                    found += 1
        if not found:
            raise NoPlace

    def clipped(self, offer: Offer) -> None:
        found = [(source, call) for source in self.sources for call in source.calls("clip_grad_norm_")]
        if not found:
            raise NoPlace
        for source, call in found:
            if offer.option("how") == "foreach":
                source.keyword(call, "foreach", "None")
            else:
                source.statement(call, *_clipping(call, source))
                source.importing(["torch"])


def _clipping(call: ast.Call, source: Source) -> tuple[Callable[[str], list[str]], str]:
    """The lines that clip, given the name of the norm, and that name where nothing else is said."""
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    given = dict(zip(("parameters", "max_norm"), call.args, strict=False)) | named
    if given.keys() != {"parameters", "max_norm"}:
        raise NoPlace
    parameters, most = (source.text_of(given[name]) for name in ("parameters", "max_norm"))

    def lines(norm: str) -> list[str]:
        return [
            f"{norm} = torch.nn.utils.get_total_norm([p.grad for p in {parameters} if p.grad is not None])",
            f"if {norm} > {most}:  # on a CPU nothing is waited for, and the gradients need no pass where they are",
            f"    torch.nn.utils.clip_grads_with_norm_({parameters}, {most}, {norm})",
        ]

    return lines, "norm_of_gradients"


PUT: dict[str, Callable[[_Patch, Offer], None]] = {
    **dict.fromkeys(MODEL, _Patch.model), **dict.fromkeys(START, _Patch.start), "fused optimizer": _Patch.optimizer,
    "zeroed gradients": _Patch.zeroed, "gradient clipping": _Patch.clipped,
}  # fmt: skip
