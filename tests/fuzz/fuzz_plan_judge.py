"""Runs a program with its plan and without, line by line, and compares all that can be seen of the two.

Where the bits are not the same, the program without the plan runs twice more: in float64, and with every result moved
by some roundings. What these do to it is what an optimization may do that computes the same in another order; one that
computes the same in the same order may do nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import linecache
import logging
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from eligible import only
from fuzz_judge import MEASURES, worse
from fuzz_plan_grammar import FEWER, PRELUDE, Program
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

EXACT = frozenset({"weights cast once", "zeroed gradients", "gradient clipping", "torch.compile"})
RELAID = "channels_last"
# docs/reference/diagnose.md: of a program that takes a view of an image laid out anew
VIEWED = "view size is not compatible"
NUMBERS = itertools.count()
Record = tuple[str, list[Any]]


class Fault(NamedTuple):
    kind: str  # what is left when numbers and names are taken away: a smaller program has the same fault or another
    text: str
    line: int

    def __str__(self) -> str:
        return self.text


class World:
    """One run of a program."""

    def __init__(self, program: Program, way: str) -> None:
        self.program, self.way = program, way
        self.records: list[list[Record]] = []
        self.errors: dict[int, str] = {}
        self.done: list[str] = []  # of the plan: what was in place
        self.space: dict[str, Any] = {}

    def note(self, what: str, *values: Any) -> None:
        flat = [w for v in values for w in (v if isinstance(v, (tuple, list)) else (v,))]
        kept = [v.detach().clone() if isinstance(v, Tensor) else v for v in flat]
        self.records[-1].append((what, kept))

    def run(self, codes: tuple[types.CodeType, types.CodeType]) -> None:
        name = f"planned_program_{next(NUMBERS)}"  # dynamo keeps modules by name
        module = types.ModuleType(name)
        module.__file__ = codes[1].co_filename
        sys.modules[name] = module
        self.space = space = vars(module)
        for code in codes:
            exec(code, space)
        note = torch._dynamo.disable(self.note) if self.program.backend else self.note
        space |= {
            "note": note, "PLAN": self.program.plan(name), "PLANNED": self.way == "planned", "WAY": self.way,
            "BACKEND": self.program.backend,
        }  # fmt: skip
        if self.way == "float64":
            built = space["build"]
            space["build"] = lambda cls: built(cls).double()
        if self.way == "narrow":
            narrowed, plain = NARROWED[self.program.option(FEWER, "bits")], space["call"]
            space["call"] = lambda function, *args, **named: plain(narrowed(function, space), *args, **named)
        if self.program.backend:
            torch._dynamo.reset()
        try:
            self._lines()
        finally:
            del sys.modules[name]
            for handle in space["handles"]:
                handle.remove()
        self.records.append([])
        held = space.get("model")
        for path, part in held.named_modules() if isinstance(held, nn.Module) else ():
            self.note(f"attributes of {path} at the end {sorted(vars(part))}")

    def _lines(self) -> None:
        for number, line in enumerate((*self.program.lines, "undo()")):
            torch.default_generator.manual_seed(number)
            self.records.append([])
            try:
                exec(compile(line, f"<line {number}>", "exec"), self.space)
                self.note("done")
            except Exception as error:
                self.note(f"raised {_kind(error)}")
                self.errors[number] = f"{type(error).__name__}: {error}"[:300]
            applied = self.space.get("APPLIED") or []
            self.done = [*(line for each in applied for line in each.done), *self.done]
            self._state()

    def _state(self) -> None:
        held = self.space.get("model")
        if not isinstance(held, nn.Module):
            return
        named = dict(held.named_parameters(remove_duplicate=False))
        self.note(f"parameters {[(n, p.requires_grad, type(p).__name__) for n, p in named.items()]}", *named.values())
        self.note(f"has gradients {[n for n, p in named.items() if p.grad is not None]}")
        self.note("gradients", *[p.grad for p in named.values() if p.grad is not None])
        self.note("buffers", *held.buffers())
        self.note(f"training {[m.training for m in held.modules()]}")


def _kind(error: Exception) -> str:
    """Of an error that a compiler has wrapped, the one inside."""
    inside = getattr(error, "inner_exception", None)
    return type(inside if isinstance(inside, Exception) else error).__name__


def ran(world: World, folder: Path, kernel: str | None = None) -> World:
    """The world, after its program: of a file, as whoever rewrites a method reads it."""
    text = world.program.text
    path = folder / f"planned_{os.getpid()}_{abs(hash(text)):x}.py"
    path.write_text(text, encoding="utf-8")
    prelude = compile(PRELUDE.read_text(encoding="utf-8"), str(PRELUDE), "exec")
    within: Any = only(kernel) if kernel is not None and world.way == "planned" else contextlib.nullcontext()
    measured: Any = contextlib.nullcontext()
    math: Any = contextlib.nullcontext()
    if world.way in MEASURES:
        measured, math = MEASURES[world.way](), sdpa_kernel(SDPBackend.MATH)
    try:
        with _left_as_found(), warnings.catch_warnings(), within, measured, math:
            warnings.simplefilter("ignore")
            world.run((prelude, compile(text, str(path), "exec")))
    finally:
        linecache.cache.pop(str(path), None)
        path.unlink()
    return world


# ---------------------------------------------------------------- fewer bits, as the program's own


class Int8(TorchFunctionMode):
    """Linears of int8 of what their weights hold at each call."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.nn.functional.linear or torch.is_grad_enabled() or args[0].dtype is not torch.float32:
            return func(*args, **(kwargs or {}))
        with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            weight, *bias = (t.detach().clone() if t is not None else None for t in args[1:])
            scales = weight.abs().amax(1).clamp_min(1e-12) / 127
            zeros = torch.zeros(len(weight), dtype=torch.int64)
            narrow = torch.quantize_per_channel(weight.contiguous(), scales.double(), zeros, 0, torch.qint8)
            packed = torch.ops.quantized.linear_prepack(narrow, *bias)
        return torch.ops.quantized.linear_dynamic(args[0], packed, True)


def _in_int8(function: Callable[..., Any], space: Any) -> Callable[..., Any]:
    def called(*args: Any, **named: Any) -> Any:
        with Int8():
            return function(*args, **named)

    return called


def _in_bfloat16(function: Callable[..., Any], space: Any) -> Callable[..., Any]:
    def called(*args: Any, **named: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            made = function(*args, **named)
        wide = [t.float() if t.dtype is torch.bfloat16 else t for t in space["leaves"](made)]
        return wide[0] if len(wide) == 1 else wide

    return called


NARROWED = {"int8": _in_int8, "bf16": _in_bfloat16}


# ---------------------------------------------------------------- comparing


def faults(program: Program, folder: Path, kernel: str | None = None) -> tuple[list[Fault], list[str]]:
    """What the program does otherwise with its plan, and which of its optimizations were in place."""

    def run(way: str) -> World:
        return ran(World(program, way), folder, kernel)

    twin, planned = run("twin"), run("planned")
    found = _differences(twin, planned, [])
    if found and not all(candidate["optimization"] in EXACT for candidate in program.candidates):
        others = ["narrow"] * program.has(FEWER) + list(MEASURES)
        found = _differences(twin, planned, [run(way) for way in others])
    return found, [line.partition(":")[0] for line in planned.done]


def _differences(twin: World, planned: World, measures: list[World]) -> list[Fault]:
    program, wrong = twin.program, list[Fault]()
    lines = [*program.lines, "undo()", "at the end"]
    narrow = next((world for world in measures if world.way == "narrow"), None)
    measures = [world for world in measures if world is not narrow]
    for number, (records, others) in enumerate(zip(twin.records, planned.records, strict=True)):
        if program.has(RELAID) and VIEWED in planned.errors.get(number, ""):
            break
        if narrow is not None and _names(records) != _names(others) == _names(narrow.records[number]):
            records = narrow.records[number]  # what fewer bits alone let pass
        if _names(records) != _names(others):
            at = next((i for i, (a, b) in enumerate(zip(records, others, strict=False)) if a[0] != b[0]), -1)
            a, b = (r[at][0] if r else "nothing" for r in (records, others))
            text = f"{b} {planned.errors.get(number, '')}; without {a} {twin.errors.get(number, '')}"
            wrong.append(Fault(f"{_word(b)}, without {_word(a)}", f"{lines[number]}: {text}", number))
            continue
        beside = [w.records[number] for w in measures if _names(w.records[number]) == _names(records)]
        for at, ((what, values), (_, theirs)) in enumerate(zip(records, others, strict=True)):
            if len(values) != len(theirs):
                text = f"{lines[number]}: {len(theirs)} {what}, without {len(values)}"
                wrong.append(Fault(_word(what), text, number))
                continue
            for i, (a, b) in enumerate(zip(values, theirs, strict=True)):
                reason = _other(a, b, [_value(r, at, i) for r in beside], bool(measures), program.has(RELAID))
                if reason and narrow is not None:
                    like = _value(narrow.records[number], at, i)
                    also = [] if not isinstance(like, Tensor) else [_value(r, at, i) for r in beside]
                    reason = _other(like, b, also, True, program.has(RELAID)) if also else reason
                text = f"{lines[number]}: {what.split(' [')[0]} {i}: {reason}"
                wrong += [Fault(_word(what), text, number)] if reason else []
    return wrong


def _names(records: list[Record]) -> list[str]:
    return [what for what, _ in records]


def _word(what: str) -> str:
    """Of a record's name what does not depend on the model."""
    return what if what.startswith("raised") else what.partition(" ")[0]


def _value(records: list[Record], at: int, i: int) -> Any:
    return records[at][1][i] if at < len(records) and i < len(records[at][1]) else None


def _other(a: Any, b: Any, measures: list[Any], rounded: bool, relaid: bool) -> str:
    """What is wrong with ``b`` in place of ``a``, or ""."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return "" if type(a) is type(b) and (a is b or a == b) else f"{b}, without {a}"
    if a.layout is torch.strided is b.layout and a.shape == b.shape and a.numel() and not relaid:
        own, theirs = ([s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1] for t in (a, b))
        if own != theirs:
            return f"strides {b.stride()}, without {a.stride()}"
    if a.layout is not torch.strided or b.layout is not torch.strided:
        return "" if a.layout is b.layout and torch.equal(a.to_dense(), b.to_dense()) else "another layout or values"
    if a.is_meta or b.is_meta:
        return "" if a.is_meta and b.is_meta and (a.shape, a.dtype) == (b.shape, b.dtype) else "other data, or none"
    others = [m for m in measures if isinstance(m, Tensor)]
    return worse(a, b, others, exact=not rounded, least=0.0)


@contextlib.contextmanager
def _left_as_found() -> Iterator[None]:
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # a compiler tells at length of what a program gives it on purpose
    threads, grad = torch.get_num_threads(), torch.is_grad_enabled()
    try:
        yield
    finally:
        logging.disable(disabled)
        torch.set_num_threads(threads)
        torch.set_grad_enabled(grad)


# ---------------------------------------------------------------- the least program that does it


def reduced(program: Program, folder: Path, kernel: str | None = None, *, words: bool = True) -> Program:
    """A program of which no line, optimization, place or line of the model (``words``; not of what is compiled) can be
    left out without its first fault."""

    def kinds(candidate: Program) -> set[str]:
        try:
            return {fault.kind for fault in faults(candidate, folder, kernel)[0]}
        except Exception:  # no program any more
            return set()

    wrong = faults(program, folder, kernel)[0]
    if wrong:  # what comes after it says nothing
        last = wrong[0].line + 1
        program = dataclasses.replace(program, lines=program.lines[:last], names=program.names[:last])
    compiles = program.backend is not None  # which takes a second each time
    for parts in (_lines, _places, _words) if words and not compiles else (_lines, _places):
        at = len(parts(program))
        while wrong and at > 0:
            at -= 1
            smaller = parts(program)[at : at + 1]  # leaving one out may leave others without a place
            if smaller and wrong[0].kind in kinds(smaller[0]):
                program = smaller[0]
    return program


def _lines(program: Program) -> list[Program]:
    """The program without each of its lines but the first, which makes the model."""
    found = []
    for at in range(1, len(program.lines)):
        lines, names = (kept[:at] + kept[at + 1 :] for kept in (program.lines, program.names))
        found.append(dataclasses.replace(program, lines=lines, names=names))
    return found


def _places(program: Program) -> list[Program]:
    found = []
    for at, candidate in enumerate(program.candidates):
        before, after = program.candidates[:at], program.candidates[at + 1 :]
        for name in ("pairs", "groups"):
            for number in range(len(candidate["options"].get(name, []))):
                fewer = json.loads(json.dumps(candidate))
                del fewer["options"][name][number]
                found.append(dataclasses.replace(program, candidates=(*before, fewer, *after)))
        found.append(dataclasses.replace(program, candidates=before + after))
    return found


def _words(program: Program) -> list[Program]:
    lines = program.text.split("\n")
    return [
        dataclasses.replace(program, text="\n".join(lines[:at] + lines[at + 1 :]))
        for at, line in enumerate(lines)
        if line.strip() and not line.startswith(("import", "from"))
    ]
