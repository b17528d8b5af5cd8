"""An expression as C++ for ``simd/fused.hpp``: one function over a run of elements, a pass for each stage."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from kernelworks.fuse.expression import BOOLEAN, ELEMENTS, REDUCTIONS, ROWS, SUMS, Expression
from kernelworks.fuse.functions import ELEMENT_FUNCTIONS

__all__ = ["cpp_text"]

TYPES = {torch.float32: "float", torch.bfloat16: "bf16", torch.float16: "f16", torch.bool: "truth"}
# A value that takes so many operations is kept for the row's next pass, not computed again.
WORTH_A_LINE = 12
# Vectors in flight, by the operations of an element: what takes many holds too many registers.
STEPS = ((24, 4), (96, 2), (math.inf, 1))


def cpp_text(expression: Expression) -> str:
    """The source behind its ``#include``."""
    return "\n".join(_Printer(expression).lines()) + "\n"


def _number(value: float) -> str:
    if math.isnan(value):
        return "operand(NAN)"
    if math.isinf(value):
        return f"operand({'-' if value < 0 else ''}INFINITY)"
    return f"operand({float(value)!r}f)"


class _Printer:
    def __init__(self, expression: Expression) -> None:
        self.expression = expression
        self.nodes = expression.nodes
        self.rows, self.stage_of = expression.row_values(), expression.stages()
        self.outs = len(expression.outputs)
        self.step = next(step for most, step in STEPS if self._operations() <= most)
        self.kept: dict[int, int] = {}
        self.kept = self._kept_lines()

    def _operations(self) -> int:
        return sum(self._cost(i) for i in range(len(self.nodes)) if not self.rows[i])

    def _cost(self, place: int) -> int:
        function = ELEMENT_FUNCTIONS.get(self.nodes[place].op)
        return function.operations if function is not None else 1

    def _is_reduction(self, place: int) -> bool:
        return self.nodes[place].op in REDUCTIONS

    @property
    def last(self) -> int:
        """The last pass over the elements."""
        passes = [self.stage_of[i] for i in range(len(self.nodes)) if self._is_reduction(i)]
        outputs = [self.stage_of[o.node] for o in self.expression.outputs if o.place != ROWS]
        return max((*passes, *outputs), default=0)

    def _wanted(self, stage: int) -> list[int]:
        """What a pass over the elements is for: what it reduces and writes."""
        found = [i for i in range(len(self.nodes)) if self._is_reduction(i) and self.stage_of[i] == stage]
        return found + [o.node for o in self.expression.outputs if o.place != ROWS and self._writes(o.node) == stage]

    def _writes(self, place: int) -> int:
        return self.stage_of[place] + self._is_reduction(place)

    def _elements(self, stage: int) -> list[int]:
        """Element values that a pass computes, or reads from a line, and the reductions that it makes."""
        found, queue = set[int](), list(self._wanted(stage))
        while queue:
            place = queue.pop()
            reduced = self._is_reduction(place) and self.stage_of[place] == stage
            if place in found or (self.rows[place] and not reduced):
                continue
            found.add(place)
            if self.kept.get(place, stage) >= stage:
                queue += self.nodes[place].values
        return sorted(found)

    def _kept_lines(self) -> dict[int, int]:
        """Values that a later pass reads from a line: the pass that computes them, by their places."""
        if not self.expression.by_rows:
            return {}
        stages = range(self.last + 1)
        used = [{i for i in self._elements(s) if not self.rows[i]} for s in stages]
        found: dict[int, int] = {}
        for place, node in enumerate(self.nodes):
            passes = [s for s in stages if place in used[s]]
            costs = sum(self._cost(i) for i in self.expression.walk([place]) if not self.rows[i])
            heavy = node.op not in BOOLEAN and not self.rows[place] and costs >= WORTH_A_LINE
            if len(passes) > 1 and heavy:
                found[place] = passes[0]
        # One that only serves another kept one in later passes needs no line of its own.
        self.kept = found
        needed = {i: s for i, s in found.items() if any(i in self._elements(t) for t in stages if t > s)}
        return needed

    # ------------------------------------------------------------ text

    def lines(self) -> Iterator[str]:
        e = self.expression
        outs, ins = ", ".join(TYPES[o.dtype] for o in e.outputs), ", ".join(TYPES[i.dtype] for i in e.inputs)
        places = ", ".join(o.place for o in e.outputs)
        yield "namespace kw {"
        yield "namespace {"
        yield "struct Fused {"
        yield f"    using OUT = Types<{outs}>;"
        yield f"    using IN = Types<{ins}>;"
        yield f"    static constexpr bool BY_ROWS = {_bool(e.by_rows)}, SUMMED = {_bool(e.is_summed)};"
        yield f"    static constexpr int LEADER = {self._leader()}, NUMBERS = {e.numbers}, RANDOMS = {e.randoms};"
        yield f"    static constexpr int LINES = {len(self.kept)}, STEP = {self.step};"
        yield "    static constexpr Place place(int k) {"
        yield f"        constexpr Place of[] = {{{places}}};"
        yield f"        return k < {self.outs} ? of[k] : ELEMENTS;"
        yield "    }"
        yield "    static void run([[maybe_unused]] const Run& run) {"
        for line in self._body():
            yield f"        {line}"
        yield "    }"
        yield "};"
        yield "}"
        yield "}"
        yield "KW_FUSED(Fused)"

    def _leader(self) -> int:
        """The operand whose order in memory is followed: an output of every element, else the largest input."""
        for k, output in enumerate(self.expression.outputs):
            if output.place == ELEMENTS:
                return k
        sizes = [math.prod(i.shape) for i in self.expression.inputs]
        return self.outs + sizes.index(max(sizes))

    def _body(self) -> Iterator[str]:
        e, used = self.expression, self.expression.used_nodes()
        for k, output in enumerate(e.outputs):
            if output.place == SUMS:
                yield f"RowsSum q{k}(run, {k});"
            else:
                yield f"{TYPES[output.dtype]}* const q{k} = run.at<{TYPES[output.dtype]}>({k});"
        for i, node in enumerate(self.nodes):
            if node.op == "input" and used[i]:
                k, kind = node.operands[0], TYPES[e.inputs[node.operands[0]].dtype]
                yield f"const {kind}* const p{k} = run.at<const {kind}>({self.outs + k});"
                yield f"[[maybe_unused]] const int64_t s{k} = run.step[{self.outs + k}];"
        for number in range(len(self.kept)):
            yield f"float* const line{number} = run.lines + {number} * ((run.n + 15) / 16 * 16);"
        ready = -1
        for stage in range(self.last + 1):
            yield from self._row_values(ready, stage)
            ready = stage
            if self._wanted(stage):
                yield from self._pass(stage)
        yield from self._row_values(ready, self.last + 1)
        for k, output in enumerate(e.outputs):
            if output.place == ROWS:
                yield f"store(q{k}, {self._as_number(output.node)}, 1);"

    def _row_values(self, before: int, stage: int) -> Iterator[str]:
        """Values of a whole row that are known before a pass and were not before."""
        used = self.expression.used_nodes()
        for i, node in enumerate(self.nodes):
            known = self.stage_of[i] + self._is_reduction(i)
            if self.rows[i] and used[i] and before < known <= stage:
                if self._is_reduction(i):
                    yield f"const V v{i} = r{i}.value();"
                elif node.op == "input":
                    yield f"const V v{i} = operand(first(kw::load(p{node.operands[0]}, 1)));"
                else:
                    yield f"const auto v{i} = {self._text(i)};"

    def _pass(self, stage: int) -> Iterator[str]:
        places = self._elements(stage)
        outputs = [
            (k, o) for k, o in enumerate(self.expression.outputs) if o.place != ROWS and self._writes(o.node) == stage
        ]
        reductions = [i for i in places if self._is_reduction(i) and self.stage_of[i] == stage]
        for i in reductions:
            op = self.nodes[i].op
            kind = "Sum<STEP>" if op == "row_sum" else f"Extreme<STEP, {_bool(op == 'row_max')}>"
            yield f"{kind} r{i};"
        streamed = [f"{{q{k}, sizeof *q{k}}}" for k, o in outputs if o.place == ELEMENTS] or ["{nullptr, 1}"]
        summed = bool(reductions) or any(o.place == SUMS for _, o in outputs)
        yield f"const Output written{stage}[] = {{{', '.join(streamed)}}};"
        yield f"stage<STEP, {len(outputs)}, {_bool(summed)}>(run, written{stage},"
        yield "    [&](auto at, [[maybe_unused]] int j, [[maybe_unused]] V* y) {"
        for i in places:
            if self._is_reduction(i):
                continue
            yield f"        {self._element(i, stage)}"
            if self.kept.get(i) == stage:
                yield f"        at.template put<false>(line{list(self.kept).index(i)}, v{i});"
        for i in reductions:
            fill = {"row_sum": "0.0f", "row_max": "-INFINITY", "row_min": "INFINITY"}[self.nodes[i].op]
            yield f"        r{i}.add(j, at.filled({self._as_number(self.nodes[i].operands[0])}, {fill}));"
        for n, (_, output) in enumerate(outputs):
            yield f"        y[{n}] = {self._as_number(output.node)};"
        yield "    },"
        yield "    [&]([[maybe_unused]] auto at, [[maybe_unused]] const V* y, [[maybe_unused]] auto s) {"
        for n, (k, output) in enumerate(outputs):
            if output.place == SUMS:
                yield f"        q{k}.add(at, y[{n}]);"
            else:
                yield f"        at.template put<decltype(s)::value>(q{k}, y[{n}]);"
        yield "    },"
        flushes = [f"r{i}.flush();" for i in reductions] + [f"q{k}.flush();" for k, o in outputs if o.place == SUMS]
        yield f"    [&] {{ {' '.join(flushes)} }});"
        for k, output in outputs:
            if output.place == SUMS:
                yield f"q{k}.end();"

    def _element(self, place: int, stage: int) -> str:
        if place in self.kept and self.kept[place] < stage:
            return f"const V v{place} = at.load(line{list(self.kept).index(place)}, 1);"
        return f"const auto v{place} = {self._text(place)};"

    def _text(self, place: int) -> str:
        node = self.nodes[place]
        if node.op == "input":
            k = node.operands[0]
            loaded = f"at.load(p{k}, s{k})"
            return loaded
        if node.op == "number":
            return f"run.number({node.operands[0]})"
        if node.op == "constant":
            return _number(node.operands[0])
        if node.op == "length":
            return "operand(static_cast<float>(run.n))"
        if node.op == "kept":
            return f"kept(run, at, {node.operands[0]})"
        return ELEMENT_FUNCTIONS[node.op].cpp.format(*(f"v{k}" for k in node.operands))

    def _as_number(self, place: int) -> str:
        """A value as a vector of floats: true is 1."""
        if self.nodes[place].op in BOOLEAN:
            return f"where(v{place}, 1.0f, 0.0f)"
        return f"v{place}"


def _bool(value: bool) -> str:
    return "true" if value else "false"
