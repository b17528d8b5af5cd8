"""Shrinks a compiled region that is wrong to a few lines, and writes them as a file that shows it.

The graphs that dynamo makes of a call are compiled one by one. In one that is wrong the first value that is wrong is
looked for, then as few of the nodes before it as still show it: what comes before them becomes an input.
"""

from __future__ import annotations

import base64
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from kernelworks.diagnose.optimizations.compiler_backends import backend_of
from kernelworks.diagnose.sites.functions import Function
from kernelworks.diagnose.sites.modules import Sample
from kernelworks.diagnose.snapshot import State, duplicate
from kernelworks.diagnose.verify.answers import in_place_of
from kernelworks.records.fix import CompilerReport

__all__ = ["report_of"]

FEW_NUMBERS = 64  # are written as numbers
MOST_BYTES = 1 << 18  # of inputs that are written into the file
# Of a part that is written: nobody finds a compiler's error in more, and rounding alone may add up there.
MOST_CALLS = 64
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}


def report_of(sample: Sample, how: Mapping[str, Any], drawn: str, most_s: float) -> CompilerReport | None:
    """A file that shows where ``torch.compile`` with these options is wrong in this call, made in about so many
    seconds; None if no graph by itself is wrong, or no small part of it."""
    ends = time.perf_counter() + most_s
    options = {name: backend_of(value) for name, value in how.items()}
    for graph, inputs in _graphs(sample):
        trial = _Trial(options, ends)
        if trial.is_wrong(graph, inputs):
            part, given = _shrunk(graph, inputs, trial)
            return _written(part, given, how, drawn) if len(_calls(part)) <= MOST_CALLS else None
        if time.perf_counter() > ends:
            break
    return None


def _graphs(sample: Sample) -> list[tuple[fx.GraphModule, list[Any]]]:
    """What dynamo makes of the call, with what each graph is given."""
    found: list[tuple[fx.GraphModule, list[Any]]] = []

    def keep(graph: fx.GraphModule, _: Any) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            found.append((graph, [_input(value) for value in inputs]))
            return graph.forward(*inputs)

        return run

    module, state = sample.module, State(sample.module)
    args, kwargs = duplicate((sample.args, sample.kwargs))
    call = module.fn if isinstance(module, Function) else module.forward
    try:
        with in_place_of(sample):
            torch.compile(call, backend=keep, dynamic=False)(*args, **kwargs)
    finally:
        state.restore()
    return found


def _input(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


class _Trial:
    """Compiles graphs and compares them with themselves, until the time is over: then nothing is wrong any more."""

    def __init__(self, options: Mapping[str, Any], ends: float) -> None:
        self.options, self.ends = options, ends

    def is_wrong(self, graph: nn.Module, inputs: Sequence[Any]) -> bool:
        if time.perf_counter() > self.ends:
            return False
        try:
            with torch.no_grad():
                expected = graph(*duplicate(list(inputs)))
                compiled = torch.compile(graph, dynamic=False, **self.options)
                return not _alike(expected, compiled(*duplicate(list(inputs))))
        except Exception:  # another fault than the one that is looked for
            return False


def _alike(expected: Any, got: Any) -> bool:
    if isinstance(expected, (list, tuple)):
        return all(_alike(a, b) for a, b in zip(expected, got, strict=True))
    if not isinstance(expected, Tensor):
        return True
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return False
    if not expected.is_floating_point():
        return torch.equal(expected, got)
    most = TOLERANCE.get(expected.dtype, 0.1)
    where = expected.isfinite()
    if not torch.equal(where, got.isfinite()):
        return False
    a, b = (torch.where(where, t, 0).double() for t in (expected, got))
    return float((a - b).norm()) <= most * float(a.norm())


# ---------------------------------------------------------------- fewer nodes


def _shrunk(graph: fx.GraphModule, inputs: Sequence[Any], trial: _Trial) -> tuple[fx.GraphModule, list[Any]]:
    """The smallest part of the graph that was found wrong, with its inputs."""
    values = _values(graph, inputs)
    nodes = [node for node in _calls(graph) if _is_told(values.get(node))]
    best = graph, list(inputs)

    def tried(some: Sequence[fx.Node]) -> bool:
        nonlocal best
        part = _part(graph, some, values)
        if part is None or not trial.is_wrong(*part):
            return False
        best = part
        return True

    if not nodes or not tried(nodes):
        return best
    low, high = 0, len(nodes) - 1
    while low < high:  # a last node, as early as halving finds one
        middle = (low + high) // 2
        if tried(nodes[: middle + 1]):
            high = middle
        else:
            low = middle + 1
    first, behind = 0, high
    while first < behind:  # and a first node, as late
        middle = (first + behind + 1) // 2
        if tried(nodes[middle : high + 1]):
            first = middle
        else:
            behind = middle - 1
    left = nodes[first : high + 1]
    if any(tried([node]) for node in left):
        return best
    for node in left[:-1]:  # one by one
        fewer = [each for each in left if each is not node]
        left = fewer if tried(fewer) else left
    return best


def _calls(graph: fx.GraphModule) -> list[fx.Node]:
    return [node for node in graph.graph.nodes if node.op.startswith("call_")]


def _values(graph: fx.GraphModule, inputs: Sequence[Any]) -> dict[fx.Node, Any]:
    """What each node gives."""
    found: dict[fx.Node, Any] = {}

    class Kept(fx.Interpreter):
        def run_node(self, node: fx.Node) -> Any:
            found[node] = _input(made := super().run_node(node))
            return made

    with torch.no_grad():
        Kept(graph).run(*duplicate(list(inputs)))
    return found


def _is_told(value: Any) -> bool:
    return isinstance(value, (Tensor, int, float, bool, tuple, list))


def _part(
    graph: fx.GraphModule, nodes: Sequence[fx.Node], values: Mapping[fx.Node, Any]
) -> tuple[fx.GraphModule, list[Any]] | None:
    """Those nodes that the last of them needs as a graph by themselves; what comes before them are its inputs."""
    wanted, queue = set[fx.Node](), [nodes[-1]]
    while queue:
        node = queue.pop()
        if node in wanted:
            continue
        wanted.add(node)
        queue += [each for each in node.all_input_nodes if each in set(nodes)]
    made, places, given = fx.Graph(), dict[fx.Node, fx.Node](), list[Any]()

    def place(node: fx.Node) -> fx.Node:
        if node not in places:
            if not isinstance(values.get(node), Tensor):
                raise _NoPart
            places[node] = made.placeholder(f"x{len(given)}")
            given.append(values[node])
        return places[node]

    try:
        outside = [each for node in nodes if node in wanted for each in node.all_input_nodes if each not in wanted]
        for node in outside:
            place(node)
        for node in nodes:
            if node in wanted:
                places[node] = made.node_copy(node, lambda n: places[n])
    except _NoPart:
        return None
    made.output(places[nodes[-1]])
    return fx.GraphModule(graph, made), given


class _NoPart(Exception):
    """A number stands between two nodes: they cannot be taken apart there."""


# ---------------------------------------------------------------- the file


def _written(graph: fx.GraphModule, inputs: Sequence[Any], how: Mapping[str, Any], drawn: str) -> CompilerReport:
    given = ", ".join(f"{name}={value!r}" for name, value in how.items())
    ops = [_name_of(node) for node in _calls(graph)]
    title = f"torch.compile({given}) gives other values than eager: {', '.join(dict.fromkeys(ops))}"[:200]
    body = graph.code.strip().replace("def forward(self, ", "def region(").replace("def forward(self)", "def region()")
    names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
    values = "\n".join(f"{name} = {_text_of(value)}" for name, value in zip(names, inputs, strict=True))
    call = ", ".join(names)
    imports = "import kernelworks  # noqa: F401  the backend\n" if how.get("backend") == "kernelworks" else ""
    text = (
        f'"""{title}\n\nFound on {drawn}; torch {torch.__version__}.\n"""\n\n'
        f"import base64\nimport zlib\n\n{imports}import torch\nfrom torch import device, inf, nan  # noqa: F401\n\n\n"
        f"{body}\n\n\n{values}\nexpected = region({call})\n"
        f"got = torch.compile(region, {f'{given}, ' if given else ''}dynamic=False)({call})\n"
        'print("eager:   ", expected)\nprint("compiled:", got)\n'
        "torch.testing.assert_close(got, expected)\n"
    )
    return CompilerReport(title, text)


def _name_of(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def _text_of(value: Any) -> str:
    """Python that makes the value."""
    if not isinstance(value, Tensor):
        return repr(value)
    dense = value.detach().cpu().contiguous()
    if dense.numel() <= FEW_NUMBERS:
        return f"torch.tensor({dense.tolist()}, dtype={dense.dtype})"
    if dense.nbytes > MOST_BYTES:
        made = (
            "torch.randint(0, 100, {0}, dtype={1})" if not dense.is_floating_point() else "torch.randn({0}, dtype={1})"
        )
        return made.format(tuple(dense.shape), dense.dtype) + "  # others than those that it was found on"
    held = base64.b64encode(zlib.compress(dense.view(torch.uint8).numpy().tobytes(), 9)).decode()
    shape = tuple(dense.shape)
    return (
        f"torch.frombuffer(bytearray(zlib.decompress(base64.b64decode(\n    {held!r}\n))), "
        f"dtype={dense.dtype}).reshape({shape})"
    )
