"""A plan as C++ that a person can read: the same text for the same plan, always."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kernelworks.search.schedule.arithmetic import SYMBOLS, VECTOR_EXPRESSIONS, text_of
from kernelworks.search.schedule.nest import IDENTITY, Access, Apply, Expr, Index, Number, Stage, Strides
from kernelworks.search.schedule.plan import Group, Pass, Plan, clean

__all__ = ["arguments", "emit_cpp"]

WORDS = {"float32": "float", "int64": "long", "bool": "bool"}
STREAMS = {4: "_mm_stream_ps", 8: "_mm256_stream_ps", 16: "_mm512_stream_ps"}


@dataclass(frozen=True)
class Range:
    """Some iterations of a loop: ``copies`` side by side, each of ``lanes``. ``base``: its variable, or where it stands
    when it runs once."""

    base: str | int
    copies: int = 1
    lanes: int = 1


def arguments(plan: Plan) -> list[str]:
    """The buffers that a kernel is called with, in order."""
    kinds = ("input", "weight", "output")
    used = {r.buffer for s in plan.kernel.stages for r in _reads(s.value)} | {s.name for s in plan.kernel.stages}
    return [b.name for kind in kinds for b in plan.kernel.buffers.values() if b.kind == kind and b.name in used]


def _reads(value: Expr) -> Iterator[Access]:
    if isinstance(value, Access):
        yield value
    elif isinstance(value, Apply):
        for operand in value.operands:
            yield from _reads(operand)


def emit_cpp(plan: Plan) -> str:
    """The kernel's whole C++."""
    return _Printer(plan).text()


class _Printer:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.kernel = plan, plan.kernel
        self.lines: list[str] = []
        self.depth = 1
        self.called: set[str] = set()
        self.widths: set[int] = set()
        self.streamed = False

    def say(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def open(self, line: str) -> None:
        self.say(line)
        self.depth += 1

    def close(self) -> None:
        self.depth -= 1
        self.say("}")

    def text(self) -> str:
        for group in self.plan.schedule.groups:
            self._group(group)
        if self.streamed:
            self.say("_mm_sfence();")
        names = arguments(self.plan)
        kept = [s.name for s in self.kernel.stages if s.name not in self.plan.kept and s.name not in names]
        scratch = [f"alignas(64) static float {n}[{max(1, self.kernel.buffers[n].elements)}];" for n in kept]
        given = ", ".join(self._given(n) for n in names)
        head = ["#include <cmath>", *(["#include <immintrin.h>"] if self.streamed else [])]
        return "\n".join(
            [
                *head, "", text_of(self.called, self.widths), "", *scratch, *([""] if scratch else []),
                f'extern "C" void kernel({given}, int threads) {{', *self.lines, "}", "",
            ]
        )  # fmt: skip

    def _given(self, name: str) -> str:
        buffer = self.kernel.buffers[name]
        if buffer.kind == "output":
            return f"float* __restrict__ {name}"
        return f"const {WORDS[buffer.dtype]}* __restrict__ {name}"

    # ------------------------------------------------------------ loops

    def _group(self, group: Group) -> None:
        part = group.passes[0]
        say = " ".join(n for p in group.passes for n in p.all_stages)
        self.say(f"// {say}")
        inside = max(0, group.parallel - len(group.shared))  # of the pass's own loops
        env: dict[str, Range] = {}
        if group.parallel and group.shared:
            self._pragma(group, group.parallel)
        for dim in group.shared:
            self.open(f"for (long {dim} = 0; {dim} < {self.kernel.sizes[dim]}; ++{dim}) {{")
            env[dim] = Range(dim)
        here = {n for p in group.passes for n in p.all_stages}
        for name, (_, elements) in self.plan.kept.items():
            if name in here and elements:
                self.say(f"alignas(64) float {name}[{elements}];" if elements > 1 else f"float {name}[1];")
        for each in group.passes:
            nest = _Nest(self, group, each, inside if each is part else 0)
            if not nest.written or len(group.passes) > 1:
                self.open(f"{{  // {' '.join(each.all_stages)}")
            nest.run(env)
            if not nest.written or len(group.passes) > 1:
                self.close()
        for _ in group.shared:
            self.close()

    def _pragma(self, group: Group, loops: int) -> None:
        collapse = f" collapse({loops})" if loops > 1 else ""
        grain = f", {group.grain}" if group.grain else ""
        self.say(f"#pragma omp parallel for{collapse} schedule(static{grain}) num_threads(threads)")


class _Nest:
    """One pass."""

    def __init__(self, printer: _Printer, group: Group, part: Pass, parallel: int) -> None:
        self.printer, self.group, self.part, self.parallel = printer, group, part, parallel
        self.plan, self.kernel = printer.plan, printer.kernel
        self.written, self.reduced = self.plan.own(group, part)
        self.stages = [self.kernel.stage(n) for n in part.stages]
        self.after = [self.kernel.stage(n) for n in part.after]
        self.clean = clean(self.kernel, part)
        if part.vector:
            printer.widths.add(part.width)

    def run(self, env: Mapping[str, Range]) -> None:
        self._written(0, dict(env))

    def segments(self, dim: str) -> list[tuple[int, int, int, int]]:
        """(from, to, copies, lanes): the whole blocks of a loop, then what is left."""
        size, at = self.kernel.sizes[dim], 0
        copies = self.part.block.get(dim, 1)
        lanes = self.part.width if dim == self.part.vector else 1
        found = []
        for many, wide in dict.fromkeys(((copies, lanes), (1, lanes), (1, 1))):
            to = at + (size - at) // (many * wide) * (many * wide)
            if to > at:
                found.append((at, to, many, wide))
                at = to
        return found

    def _written(self, depth: int, env: dict[str, Range]) -> None:
        if depth == len(self.written):
            self._gathered(env)
            return
        dim = self.written[depth]
        for begin, end, copies, lanes in self.segments(dim):
            step = copies * lanes
            once = end - begin == step
            if self.parallel and depth == 0 and not self.group.shared and not once and begin == 0:
                self.printer._pragma(self.group, self.parallel)
            self._loop(dim, begin, end, step)
            self._written(depth + 1, env | {dim: Range(begin if once else dim, copies, lanes)})
            self.printer.close()

    def _loop(self, dim: str, begin: int, end: int, step: int) -> None:
        if end - begin == step:
            self.printer.open("{" if begin else f"{{  // {dim}")
            return
        more = f"++{dim}" if step == 1 else f"{dim} += {step}"
        self.printer.open(f"for (long {dim} = {begin}; {dim} < {end}; {more}) {{")

    def _copies(self, env: Mapping[str, Range], dims: list[str]) -> list[dict[str, int]]:
        """Of each copy the places in its ranges, in elements."""
        each = [[(d, n * env[d].lanes) for n in range(env[d].copies)] for d in dims]
        return [dict(one) for one in itertools.product(*each)]

    # ------------------------------------------------------------ reductions

    def _gathered(self, env: dict[str, Range]) -> None:
        if not self.reduced:
            self._body(env, None)
            return
        lanes = self._lanes(env)
        copies = self._copies(env, self.written)
        across = self.part.vector in self.reduced
        rest = across and any(wide == 1 for *_, wide in self.segments(self.part.vector))
        wide = self.part.width if across else lanes
        for stage in self.stages:
            if not stage.monoid:
                continue
            for n in range(len(copies)):
                names = [f"{stage.name}_a{n}_{k}" for k in range(self.part.partials)]
                self._declared(names, IDENTITY[stage.monoid], wide)
                if rest:
                    self._declared([f"{stage.name}_a{n}_rest"], IDENTITY[stage.monoid], 1)
        self._reduced(0, env)
        forwarded: dict[tuple[str, int], str] = {}
        for stage in self.stages:
            if stage.monoid:
                for n, copy in enumerate(copies):
                    forwarded[stage.name, n] = self._combined(stage, n, wide, across=across, rest=rest)
                    self._stored(stage, env, copy, forwarded[stage.name, n], lanes)
        body = _Body(self, env, lanes)
        for n, copy in enumerate(copies):
            body.known = {name: text for (name, m), text in forwarded.items() if m == n}
            for stage in self.after:
                text = body.value(stage, copy, f"{stage.name}_e{n}")
                self._stored(stage, env, copy, text, lanes)

    def _declared(self, names: list[str], value: float, lanes: int) -> None:
        start = _number(value)
        if lanes > 1:
            start = f"splat<v{lanes}>({start})"
        kind = f"v{lanes}" if lanes > 1 else "float"
        self.printer.say(f"{kind} {', '.join(f'{n} = {start}' for n in names)};")

    def _combined(self, stage: Stage, n: int, wide: int, *, across: bool, rest: bool) -> str:
        """What the accumulators come to, in a variable."""
        names = [f"{stage.name}_a{n}_{k}" for k in range(self.part.partials)]
        while len(names) > 1:
            pairs = [self._two(stage.monoid, *names[i : i + 2]) for i in range(0, len(names) - 1, 2)]
            names = pairs + names[len(names) - len(names) % 2 :]
        text = names[0]
        if across:
            function = f"{stage.monoid}_of"
            self.printer.called.add(function)
            text = f"{function}({text})"
        if rest:
            text = self._two(stage.monoid, text, f"{stage.name}_a{n}_rest")
        kind = f"v{wide}" if wide > 1 and not across else "float"
        self.printer.say(f"const {kind} {stage.name}_r{n} = {text};")
        return f"{stage.name}_r{n}"

    def _two(self, monoid: str, a: str, b: str) -> str:
        if monoid == "sum":
            return f"({a} + {b})"
        self.printer.called.add(monoid)
        return f"{monoid}_({a}, {b})"

    def _reduced(self, depth: int, env: dict[str, Range]) -> None:
        if depth == len(self.reduced):
            self._body(env, self._copies(env, self.reduced))
            return
        dim = self.reduced[depth]
        for begin, end, copies, lanes in self.segments(dim):
            step = copies * lanes
            self._loop(dim, begin, end, step)
            once = end - begin == step
            self._reduced(depth + 1, env | {dim: Range(begin if once else dim, copies, lanes)})
            self.printer.close()

    # ------------------------------------------------------------ statements

    def _lanes(self, env: Mapping[str, Range]) -> int:
        found = env.get(self.part.vector)
        return found.lanes if found is not None else 1

    def _body(self, env: dict[str, Range], terms: list[dict[str, int]] | None) -> None:
        lanes = self._lanes(env)
        body = _Body(self, env, lanes)
        short = self.part.vector in self.reduced and lanes == 1
        for n, copy in enumerate(self._copies(env, self.written)):
            for k, term in enumerate(terms if terms is not None else [{}]):
                body.known = {}
                for stage in self.stages:
                    place = copy | term
                    text = body.value(stage, place, f"{stage.name}_e{n}_{k}")
                    if stage.monoid:
                        at = f"{stage.name}_a{n}_{'rest' if short else k % self.part.partials}"
                        self.printer.say(f"{at} = {self._summed(stage.monoid, at, text)};")
                    else:
                        self._stored(stage, env, place, text, lanes)

    def _summed(self, monoid: str, at: str, text: str) -> str:
        if monoid == "sum":
            return f"{at} + {text}"
        self.printer.called.add(monoid)
        return f"{monoid}_({at}, {text})"

    def _stored(self, stage: Stage, env: Mapping[str, Range], copy: Mapping[str, int], text: str, lanes: int) -> None:
        if stage.name in self.plan.kept and not self.plan.kept[stage.name][1]:
            return
        at = address(self.plan, stage.writes, env, copy, self.group.shared)
        if lanes == 1 or self.part.vector not in stage.dims:
            self.printer.say(f"{stage.name}[{at}] = {text};")
        elif self.part.stream and self.kernel.buffers[stage.name].kind == "output":
            self.printer.streamed = True
            self.printer.say(f"{STREAMS[lanes]}({stage.name} + {at}, {text});")
        else:
            self.printer.say(f"store<v{lanes}>({stage.name} + {at}, {text});")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return f"{float(value)!r}f"


def _sum(strides: Strides, offset: int, env: Mapping[str, Range], copy: Mapping[str, int]) -> str:
    """An affine index as C++, its constant last."""
    terms = []
    for dim, stride in strides:
        base = env[dim].base
        offset += stride * copy.get(dim, 0)
        if isinstance(base, int):
            offset += stride * base
        elif stride:
            terms.append(base if stride == 1 else f"{base} * {stride}")
    if offset or not terms:
        terms.append(str(offset))
    return " + ".join(terms)


def address(
    plan: Plan, read: Access, env: Mapping[str, Range], copy: Mapping[str, int], shared: tuple[str, ...]
) -> str:  # fmt: skip
    """Where an access lies: in memory, or in what a thread keeps of a buffer."""
    if read.buffer not in plan.kept:
        return _sum(read.strides, read.offset, env, copy)
    packed, _ = plan.kept[read.buffer]
    return _sum(tuple((d, packed[n]) for d, n in read.strides if d not in shared), 0, env, copy)


class _Body:
    """Statements that stand together: what one has loaded or computed, the next one finds."""

    def __init__(self, nest: _Nest, env: Mapping[str, Range], lanes: int) -> None:
        self.nest, self.env, self.lanes = nest, env, lanes
        self.known: dict[str, str] = {}  # stage of this copy -> its value
        self.loaded: dict[str, str] = {}

    def value(self, stage: Stage, copy: Mapping[str, int], name: str) -> str:
        text, wide = self.expression(stage.value, copy)
        if self.lanes > 1 and not wide and self.nest.part.vector in {*stage.dims, *stage.reduced}:
            text, wide = f"splat<v{self.lanes}>({text})", True
        readers = self.nest.kernel.readers(stage.name)
        if stage.monoid or not any(r.name in self.nest.part.all_stages for r in readers):
            return text
        self.nest.printer.say(f"const {f'v{self.lanes}' if wide else 'float'} {name} = {text};")
        self.known[stage.name] = name
        return name

    def expression(self, value: Expr, copy: Mapping[str, int]) -> tuple[str, bool]:
        """Its text, and whether it is a vector."""
        if isinstance(value, Number):
            return _number(value.value), False
        if isinstance(value, Index):
            return self._index(value, copy)
        if isinstance(value, Access):
            return self._load(value, copy)
        operands = [self.expression(o, copy) for o in value.operands]
        wide = any(w for _, w in operands)
        texts = [t for t, _ in operands]
        if value.function in SYMBOLS:
            return SYMBOLS[value.function].format(*texts), wide
        called = value.function in VECTOR_EXPRESSIONS
        if wide or (called and self.lanes > 1):
            texts = [t if w else f"splat<v{self.lanes}>({t})" for t, w in operands]
            wide = True
        if called:
            return VECTOR_EXPRESSIONS[value.function].format(*texts), wide
        self.nest.printer.called.add(value.function)
        return f"{value.function}_({', '.join(texts)})", wide

    def _index(self, value: Index, copy: Mapping[str, int]) -> tuple[str, bool]:
        text = f"(float)({_sum(value.strides, value.offset, self.env, copy)})"
        step = dict(value.strides).get(self.nest.part.vector, 0)
        if self.lanes > 1 and step:
            return f"count<v{self.lanes}>({text}, {step}.0f)", True
        return text, False

    def _load(self, read: Access, copy: Mapping[str, int]) -> tuple[str, bool]:
        if read.buffer in self.known:
            name = self.known[read.buffer]
            return name, self.lanes > 1 and self._moves(read)
        nest, vector = self.nest, self.nest.part.vector
        at = address(nest.plan, read, self.env, copy, nest.group.shared)
        whole = nest.kernel.buffers[read.buffer].dtype != "float32"
        wide = self.lanes > 1 and read.stride(vector) != 0
        if not wide:
            text = f"(float){read.buffer}[{at}]" if whole else f"{read.buffer}[{at}]"
        else:
            step = read.stride(vector)
            if read.buffer in nest.plan.kept:
                step = nest.plan.kept[read.buffer][0][step]
            function = "whole" if whole else "load" if step == 1 else "gather"
            if whole:
                nest.printer.called.add("int")
            more = "" if function == "load" else f", {step}"
            text = f"{function}<v{self.lanes}>({read.buffer} + {at}{more})"
        if text not in self.loaded:
            name = f"{read.buffer}_v{len(self.loaded)}"
            self.loaded[text] = name
            nest.printer.say(f"const {f'v{self.lanes}' if wide else 'float'} {name} = {text};")
        return self.loaded[text], wide

    def _moves(self, read: Access) -> bool:
        """Whether a value of this pass differs from lane to lane."""
        vector = self.nest.part.vector
        return vector in self.nest.kernel.stage(read.buffer).dims
