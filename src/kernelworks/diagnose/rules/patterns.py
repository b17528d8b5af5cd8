"""What several calls compute together, found by the flow of data between them: a norm, a rotary embedding, a gate, a
cache that grows, an optimizer's step, a batch norm after a convolution.

The names of ops in one module are no evidence: a CReLU negates and concatenates too, and a DenseNet grows by ``cat``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from kernelworks.dispatch.signature import gates
from kernelworks.profile.cost.dataflow import Flow, Step
from kernelworks.profile.cost.operands import Operand
from kernelworks.profile.trace import Call

__all__ = ["ADAM", "CACHE", "FOLDABLE", "GATE", "LOGITS", "NORM", "ROTARY", "patterns"]

NORM, ROTARY, GATE, CACHE = "norm", "rotary", "gate", "cache"
ADAM, FOLDABLE, LOGITS = "adam", "foldable", "logits"
MOVES = frozenset(
    {"to", "_to_copy", "contiguous", "clone", "reshape", "type_as", "float", "repeat", "repeat_interleave"}
)
ATTENTION = frozenset({
    "matmul", "bmm", "baddbmm", "einsum", "scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "kernelworks::attention",
})  # fmt: skip
PRODUCTS = frozenset({"linear", "mm", "addmm", "matmul"})
CONVOLUTIONS = frozenset({"conv1d", "conv2d", "conv3d", "convolution", "_convolution"})
# Without one of these, or the activation of a gate, there is none.
STARTS = "rsqrt sqrt neg cat addcdiv batch_norm cross_entropy_loss log_softmax _log_softmax"
MANY = 4  # a loop has at least so many turns


def patterns(calls: Sequence[Call]) -> dict[int, frozenset[str]]:
    """What each call is part of, by its ``id``. Calls are given in the order of the program."""
    signs = {f"aten::{name}" for name in (*STARTS.split(), *gates())}
    if not any(call.name.rstrip("_") in signs for call in calls):
        return {}
    flow = Flow(calls)
    found: dict[int, set[str]] = {}
    for name, find in FINDERS.items():
        for step in find(flow):
            found.setdefault(id(step.call), set()).add(name)
    return {key: frozenset(names) for key, names in found.items()}


def _back(step: Step | None, names: Iterable[str]) -> Step | None:
    """The step behind moves and, of those in ``names``, their first argument."""
    while step is not None and (step.name in MOVES or step.name in names):
        step = step.maker()
    return step


def _same(a: Operand, b: Operand) -> bool:
    return bool(a.storage) and a.storage == b.storage


def _square(step: Step | None) -> Operand | None:
    """What a step squares: ``pow(x, 2)``, ``square(x)``, ``x * x``."""
    if step is None or not step.tensors:
        return None
    x = step.tensors[0]
    if step.name == "square" or (step.name == "pow" and step.arguments[1] == 2):
        return x
    if step.name == "mul" and len(step.tensors) == 2 and _same(x, step.tensors[1]) and x.shape == step.tensors[1].shape:
        return x
    return None


def _last_dimension(step: Step) -> bool:
    """Whether a mean or a variance is over the last dimension, the one that our norms are over."""
    x = step.tensors[0]
    return bool(x.shape) and step.arguments.dims("dim", len(x.shape)) == (len(x.shape) - 1,)


def _norms(flow: Flow) -> Iterator[Step]:
    """x * rsqrt(mean(x^2) + eps): the mean over the last dimension, of the square of what is scaled."""
    for root in flow.of("rsqrt", "sqrt"):
        added = _back(root.maker(), ())
        spread = _back(added, ("add",)) if added is not None else None
        if spread is None or spread.name not in ("mean", "var") or not _last_dimension(spread):
            continue
        squares = spread.maker() if spread.name == "mean" else None
        x = spread.tensors[0] if spread.name == "var" else _square(squares)
        if x is None:
            continue
        inverse = [root]
        if root.name == "sqrt":  # then x is divided by it, or it is inverted first
            inverse += [s for s in root.readers if s.name == "reciprocal"]
        for step in inverse:
            for scaled in step.readers:
                if scaled.name not in ("mul", "div") or not _scales(scaled, x, step, squares):
                    continue
                chain = {id(s): s for s in (root, added, spread, squares, step, scaled) if s is not None}
                chain |= {id(s): s for s in _affine(scaled)}
                yield from chain.values()


def _scales(step: Step, x: Operand, by: Step, squares: Step | None) -> bool:
    """Whether a product is x, or x less its mean, times what ``by`` made; the mean may have been taken off twice."""
    before = squares.maker() if squares is not None else None
    taken = [o.storage for o in before.tensors] if before is not None and before.name == "sub" else None
    for operand, maker in zip(step.tensors, step.makers, strict=True):
        if maker is by or operand.shape != x.shape:
            continue
        if _same(operand, x):
            return True
        if maker is not None and maker.name == "sub":
            storages = [o.storage for o in maker.tensors]
            if x.storage in storages or storages == taken:
                return True
    return False


def _affine(step: Step) -> Iterator[Step]:
    """What scales and shifts a normalized tensor by parameters of one dimension."""
    for _ in range(3):
        after = [s for s in step.readers_that_write if s.name in ("mul", "add") or s.name in MOVES]
        if len(after) != 1 or (after[0].name not in MOVES and not any(len(o.shape) == 1 for o in after[0].tensors)):
            return
        step = after[0]
        yield step


def _rotations(flow: Flow) -> Iterator[Step]:
    """x * cos + cat([-x2, x1]) * sin, x1 and x2 the halves of x."""
    for negated in flow.of("neg"):
        half = negated.tensors[0]
        for turned in negated.readers:
            if turned.name != "cat" or len(turned.tensors) != 2 or turned.maker(0) is not negated:
                continue
            other = turned.tensors[1]
            if not _same(half, other) or other.shape != half.shape or not half.shape:
                continue
            for sine in turned.readers:
                for total in sine.readers if sine.name == "mul" else ():
                    cosine = _addend(total, sine)
                    if cosine is not None and any(_doubled(o, half) for o in cosine.tensors):
                        yield from (negated, turned, sine, cosine, total)


def _addend(total: Step, product: Step) -> Step | None:
    """The other product of a sum of two."""
    if total.name != "add" or product not in total.makers:
        return None
    return next((m for m in total.makers if m is not None and m is not product and m.name == "mul"), None)


def _doubled(whole: Operand, half: Operand) -> bool:
    return _same(whole, half) and whole.shape == (*half.shape[:-1], 2 * half.shape[-1])


def _gates(flow: Flow) -> Iterator[Step]:
    """silu(a) * b, or another gate of ours, both computed and of one shape."""
    for gate in flow.of(*gates()):
        for product in gate.readers:
            if product.name != "mul" or len(product.tensors) != 2:
                continue
            a, b = product.tensors
            others = [m for m in product.makers if m is not gate]
            if a.shape == b.shape and len(others) == 1 and others[0] is not None:
                yield from (gate, product)


def _caches(flow: Flow) -> Iterator[Step]:
    """cat([cache, new]) again and again in one place, each the next one's first part, and read by attention alone."""
    chains: dict[int, list[Step]] = {}
    for step in flow.of("cat"):
        before = step.maker()
        same_place = before is not None and before.name == "cat" and before.call.place.path == step.call.place.path
        chain = chains.pop(id(before), []) if same_place else []
        chains[id(step)] = [*chain, step]
    for chain in chains.values():
        if len(chain) >= MANY and all(_attended(step) for step in chain[1:-1]):
            yield from chain


def _attended(step: Step) -> bool:
    """Whether what a step made is read by attention, and but for the next turn by nothing else."""
    found, waiting = False, [s for s in step.readers_that_write if s.name != "cat"]
    while waiting:
        reader = waiting.pop()
        if reader.name in MOVES:
            waiting += reader.readers_that_write
        elif reader.name in ATTENTION:
            found = True
        else:
            return False
    return found


def _adams(flow: Flow) -> Iterator[Step]:
    """p.addcdiv_(m, sqrt(v) / c + eps): the step of Adam, written op by op, with what keeps m and v."""
    for update in flow.of("addcdiv"):
        if not update.arguments.in_place or len(update.makers) != 3:
            continue
        moment, below = update.makers[1], update.makers[2]
        root = _back(below, ("add", "div"))
        second = root.maker() if root is not None and root.name == "sqrt" else None
        if moment is None or second is None or root is None or not _averages(moment, second):
            continue
        yield from (update, moment, second, root)
        step: Step | None = below
        while step is not None and step is not root:
            yield step
            step = step.maker()
        for scaled in (moment.maker(), second.maker()):  # the moments, before the gradient is added to them
            if scaled is not None and scaled.name == "mul" and scaled.arguments.in_place:
                yield scaled


def _averages(moment: Step, second: Step) -> bool:
    """Whether both are kept as running averages: Adagrad and RMSprop, which keep one, look much alike."""
    if not moment.arguments.in_place or moment.name not in ("lerp", "add"):
        return False
    faded = second.maker()
    return second.name == "addcmul" and second.arguments.in_place and faded is not None and faded.name == "mul"


def _foldable(flow: Flow) -> Iterator[Step]:
    """A batch norm by fixed statistics of what a convolution made for it alone, in a run without a backward."""
    if any(step.call.backward for step in flow.steps):
        return
    for norm in flow.of("batch_norm"):
        made = norm.maker()
        fixed = norm.arguments["training"] is False
        if fixed and made is not None and made.name in CONVOLUTIONS and made.readers_that_write == [norm]:
            yield norm


def _logits(flow: Flow) -> Iterator[Step]:
    """What lies between a product and the loss of its classes: casts and copies."""
    for loss in flow.of("cross_entropy_loss", "log_softmax", "_log_softmax"):
        between, step = list[Step](), loss.maker()
        while step is not None and (step.name in MOVES or step.name in ("pad", "constant_pad_nd")):
            between.append(step)
            step = step.maker()
        if step is not None and step.name in PRODUCTS:
            yield from between


FINDERS: dict[str, Callable[[Flow], Iterator[Step]]] = {
    NORM: _norms, ROTARY: _rotations, GATE: _gates, CACHE: _caches, ADAM: _adams, FOLDABLE: _foldable,
    LOGITS: _logits,
}  # fmt: skip
