"""Random programs with a plan: a model, what kw.fix would write for it, and what a user then does."""

from __future__ import annotations

import ast
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fuzz_plan_events as events
import fuzz_plan_models as models

from kernelworks.diagnose.fix.plan_fields import VERSION

PRELUDE = Path(__file__).parent / "fuzz_plan_prelude.py"
AUTOCAST = "torch.autocast('cpu', torch.bfloat16)"
COMPILE, FEWER = "torch.compile", "fewer bits"


@dataclass(frozen=True)
class Program:
    """The text of a module, the candidates of a plan for it, and lines that are run one at a time."""

    text: str
    candidates: tuple[dict[str, Any], ...]
    lines: tuple[str, ...]
    names: tuple[str, ...] = field(default=(), compare=False)  # of the event that each line is, or ""

    def plan(self, module: str) -> dict[str, Any]:
        root = f"{module}.Program"
        candidates: list[Any] = json.loads(json.dumps(self.candidates).replace("ROOT", root))
        return {"kernelworks_plan": VERSION, "roots": [root], "candidates": candidates}

    def option(self, optimization: str, name: str, default: Any = None) -> Any:
        return next(
            (o["options"].get(name, default) for o in self.candidates if o["optimization"] == optimization), None
        )

    def has(self, *optimizations: str) -> bool:
        return any(o["optimization"] in optimizations for o in self.candidates)

    @property
    def backend(self) -> str | None:
        """Of the compiler that the plan names."""
        return self.option(COMPILE, "backend", "inductor")

    def __str__(self) -> str:
        """A script that does it with and without the plan."""
        body = [*self.text.removeprefix(models.HEADER).strip().splitlines(), *"\n".join(self.lines).splitlines()]
        needed = _needed("\n".join([*self.lines, "note"]))
        return "\n".join(
            [
                models.HEADER.strip(), "import contextlib, sys, threading", "import kernelworks as kw", "",
                f"PLAN = {self.plan('__main__')}", f"BACKEND, WAY = {self.backend!r}, ''", "", needed, "",
                "for PLANNED in (False, True):", "    SEEN, APPLIED, handles = [], [], []",
                *(f"    {line}".rstrip() for line in body),
                "    print('planned' if PLANNED else 'twin', *SEEN, sep='\\n')",
            ]
        )  # fmt: skip


def _needed(lines: str) -> str:
    """Of the prelude, what these lines call."""
    source = PRELUDE.read_text(encoding="utf-8")
    parts = {n.name: n for n in ast.parse(source).body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    found: dict[str, str] = {}
    waiting = [name for name in parts if f"{name}(" in lines or name == "note"]
    while waiting:
        name = waiting.pop()
        if name not in found:
            node = parts[name]
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            found[name] = "\n".join(source.splitlines()[first - 1 : node.end_lineno])
            waiting += [other for other in parts if f"{other}(" in found[name]]
    return "\n".join(["from typing import Any", *(found[name] for name in parts if name in found)])


@dataclass
class Builder:
    random: random.Random
    inductor: bool = False  # a few programs go through torch's own compiler, which takes seconds
    generating: bool = False  # and a few generate tokens
    lines: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def program(self) -> Program:
        self.model = model = (models.generating if self.generating else models.drawn)(self.random)
        self.autocast = not self.generating and self.random.random() < 0.3
        self.training = not self.generating and self.random.random() < 0.25
        candidates = self.candidates()
        self.compiled = any(candidate["optimization"] == COMPILE for candidate in candidates)
        self.say("model = build(Program)")
        self.say("x = torch.arange(6).view(2, 3)" if self.generating else f"x = tensor({model.shape}, 1)")
        if self.training:
            self.trains(candidates)
        else:
            self.serves()
        text = models.GENERATES if self.generating else "\n\n" + model.text()
        return Program(models.HEADER + text, tuple(candidates), tuple(self.lines), tuple(self.names))

    def say(self, line: str, name: str = "") -> None:
        self.lines.append(line)
        self.names.append(name)

    def one(self, options: Any) -> Any:
        return self.random.choice(list(options))

    # ------------------------------------------------------------ the plan

    def candidates(self) -> list[dict[str, Any]]:
        own = {"kind": "module", "root": "ROOT", "number": 0, "path": "", "type": "ROOT"}
        everywhere, process = {"kind": "everywhere"}, {"kind": "process"}
        model = self.model
        backend = self.one(["eager", "eager", "aot_eager"])
        compiled = _candidate(COMPILE, own, **({} if self.inductor else {"backend": backend}))
        if self.generating:
            merged = _candidate("merged projections", own, groups=model.groups)
            return [
                _candidate("static cache", own),
                *self.random.choices([merged, _candidate("swap", everywhere)], k=1),
            ]
        if self.training:
            kind = self.optimizer = self.one(["AdamW", "AdamW", "Adam", "SGD", "Adagrad", "RMSprop"])
            how = {"AdamW": self.one(["fused", "kernelworks"]), "RMSprop": "foreach"}.get(kind, "fused")
            step = {"kind": "optimizer", "type": f"torch.optim.{kind.lower()}.{kind}"}
            found = [
                _candidate("fused optimizer", step, how=how), _candidate("fused optimizer", step, how=how),
                _candidate("zeroed gradients", process), _candidate("zeroed gradients", process),
                _candidate("gradient clipping", process, how="scaled if clipped"),
            ]  # fmt: skip
            if model.dims > 1:
                found.append(_candidate("channels_last", everywhere))
        else:
            found = []
            if model.pairs:
                found += [_candidate("folded norms", own, pairs=[list(pair) for pair in model.pairs])] * 4
            if model.groups:
                found += [_candidate("merged projections", own, groups=model.groups)] * 4
            if self.autocast and model.products:
                found += [_candidate("weights cast once", everywhere)] * 3
            if not self.autocast and self.random.random() < 0.3:
                found.append(
                    _candidate(FEWER, everywhere, bits=self.one(["bf16", "int8"] if not model.odd else ["bf16"]))
                )
            found.append(_candidate("swap", everywhere))
            if model.dims > 1:
                found.append(_candidate("channels_last", everywhere))
        first = compiled if self.inductor else self.one(found)
        others = [o for o in found if o["optimization"] != first["optimization"]]
        if not self.inductor and first["optimization"] != FEWER and self.random.random() < 0.12:
            return [first, compiled]
        return [first, self.one(others)] if others and self.random.random() < 0.35 else [first]

    # ------------------------------------------------------------ what happens

    def called(self) -> str:
        within = ["torch.no_grad()"] * 6 + ["torch.inference_mode()", ""]
        contexts = [c for c in (self.one(within), AUTOCAST if self.autocast else "") if c]
        call = "call(model.features, x)" if self.generating else "call(model, x)"
        return f"with {', '.join(contexts)}: {call}" if contexts else call

    def serves(self) -> None:
        if self.random.random() < 0.15:
            self.event(self.one([events.STRUCTURE, events.HOOKS, events.FLAGS, events.WRITES]))
        within = self.one(["", "", "with torch.no_grad(): ", "with torch.inference_mode(): "])
        self.say(f"{within}apply()")
        self.say(self.called())
        kinds = [events.WRITES] * 7 + [events.WAYS] * 7 + [events.STRUCTURE, *[events.HOOKS] * 2, events.COPIES]
        kinds += [events.COPIES, *[events.FLAGS] * 2, *([events.NORMS] * 4 if self.model.norms else [])]
        for _ in range(self.random.randint(3, 8)):
            self.event(self.one(kinds))
            if self.random.random() < 0.6:
                self.say(self.called())
            if self.random.random() < 0.08:
                self.say("undo()")
                self.say(self.called())
                if self.random.random() < 0.6:
                    self.say("apply()")
                    self.say(self.called())

    def trains(self, candidates: list[dict[str, Any]]) -> None:
        # Where nothing is known but a rounding of zero, an epsilon keeps a step from being as large as any other.
        rates = "0.01, momentum=0.9" if self.optimizer == "SGD" else "0.01, eps=1e-2"
        self.say(f"optimizer = torch.optim.{self.optimizer}(model.parameters(), {rates})")
        if self.random.random() < 0.3:
            self.say("model.train()")
        if self.random.random() < 0.3:
            self.say("step(x)")
        self.say("apply()")
        self.say("step(x)")
        for _ in range(self.random.randint(3, 8)):
            self.event(events.STEPS)
            if self.random.random() < 0.5:
                self.say("step(x)")
            if self.random.random() < 0.12:
                self.say("undo()")
                self.say("step(x)")
                if self.random.random() < 0.5:
                    self.say("apply()")
                    self.say("step(x)")

    def event(self, table: dict[str, str]) -> None:
        name = self.one(table)
        line = self.filled(table[name])
        if line:
            self.say(line, name)

    def filled(self, text: str) -> str:
        """The line with drawn parts in their places; "" where the model has none such."""
        model = self.model
        if not model.products and ("{w" in text or "{p}" in text or "{o}" in text):
            return ""
        if (not model.norms and "{n" in text) or (self.compiled and "Names()" in text):  # dynamo would trace the mode
            return ""
        at = {}
        if model.products:
            w = self.one(model.products)
            n = self.one(model.norms) if model.norms else ""
            if model.pairs and self.random.random() < 0.5:
                w, n = self.one(model.pairs)
            group = next((g for g in model.groups if w in g), list(model.products))
            o = self.one([each for each in group if each != w] or [w])
            held = [f"{_at(path)}.weight" for path in (w, w, o)] + [f"{_at(w)}.bias"] * model.products[w]
            held += [f"{_at(n)}.{what}" for n, has in model.norms.items() if has for what in ("weight", "bias")][:2]
            at = {"w": _at(w), "wp": _at(w.rpartition(".")[0]), "wn": w.rpartition(".")[2], "o": _at(o)}
            at["p"] = self.one(held)
        if model.norms:
            at |= {"n": _at(n), "np": _at(n.rpartition(".")[0]), "nn": n.rpartition(".")[2]}
        quiet = f"{AUTOCAST}(torch.no_grad()(call))" if self.autocast else "torch.no_grad()(call)"
        return text.format(
            **at, C=4 if model.dims > 0 else 8, call=f"{quiet}(model, x)",
            autocast=f"with {AUTOCAST}: " if self.autocast else "",
            and_autocast=f", {AUTOCAST}" if self.autocast else "",
            threads=", autocast=True" if self.autocast else "",
            F={2: "torch.channels_last", 3: "torch.channels_last_3d"}.get(model.dims, "torch.contiguous_format"),
        )  # fmt: skip


def _candidate(optimization: str, site: dict[str, Any], **options: Any) -> dict[str, Any]:
    changes = str(options.get("bits", ""))
    return {
        "optimization": optimization,
        "site": site,
        "says": optimization,
        "code": "",
        "changes": changes,
        "options": options,
    }


def _at(path: str) -> str:
    return models.written("model", path)
