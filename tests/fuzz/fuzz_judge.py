"""Runs a random program five ways and compares: as it is, swapped, in float64, with roundings added, and after undo."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import types
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from eligible import only
from fuzz_blocks import HEADER
from fuzz_grammar import Source
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kernelworks.nn.swap import swap

NOISE = 4  # units in the last place of every result, in the run that asks how far roundings reach
FACTOR = 8.0  # how many times what roundings did to the original may happen to the swapped one
ROUNDINGS = 16  # units in the last place of a tensor's largest value, where the original's error happens to be none


class Rounding(TorchDispatchMode):
    """Rounds every result anew: what comes out otherwise is what this program's roundings may do to it."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        values = result if isinstance(result, (tuple, list)) else (result,)
        for value, returned in zip(values, func._schema.returns, strict=False):
            alias = returned.alias_info
            if type(value) is Tensor and value.is_floating_point() and (alias is None or alias.is_write):
                self.disturb(value)
        return result

    def disturb(self, value: Tensor) -> None:
        if not value.numel() or value.is_meta or value.is_sparse or value._is_zerotensor() or 0 in value.stride():
            return
        noise = torch.rand(value.shape, generator=self.generator, dtype=torch.float64) * 2 - 1
        unit = NOISE * torch.finfo(value.dtype).eps
        value.copy_(torch.where(value.isfinite() & (value != 0), value.double() * (1 + unit * noise), value.double()))


class Recomputed(TorchFunctionMode):
    """Attention's probabilities made of scores and the logarithm of their sum, two numbers that are rounded apart, as
    every kernel has it that keeps no probabilities: of scores of 1000 a saturated one is 1 within 1e-4 only."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            return attention(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def attention(
    function: Any, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    q, k, v = query, key, value
    named = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    seen = attn_mask if attn_mask is not None and attn_mask.dtype is torch.bool else None
    added = attn_mask is not None and seen is None
    if dropout_p or enable_gqa or added or q.dtype.itemsize < 4 or q.shape[-1] != k.shape[-1]:
        return laid_out(function, function(q, k, v, attn_mask, **named), q, k, v, attn_mask, **named)
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:  # by a sum, of which nothing is kept: a program's hooks may take what is kept for numbers
        scores = scores.tril() + torch.full(scores.shape[-2:], -torch.inf, dtype=scores.dtype).triu(1)
    if seen is not None:
        scores = torch.where(seen, scores, -torch.inf)
    found = (scores - scores.logsumexp(-1, keepdim=True)).exp()
    found = found.tril() if is_causal else found  # what a query does not see, its NaN does not reach
    found = torch.where(seen, found, 0.0) if seen is not None else found
    return laid_out(function, found @ v, q, k, v, attn_mask, **named)


def laid_out(function: Any, result: Tensor, *args: Any, **named: Any) -> Tensor:
    """A result in memory as torch's own choice of a kernel has it: a program's views may stand on that."""
    if result.dim() != 4 or named.get("dropout_p"):
        return result
    with torch.no_grad(), sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        like = function(*args, **named)
    if like.stride() == result.stride():
        return result
    return result.transpose(1, 2).contiguous().transpose(1, 2)


@contextlib.contextmanager
def rounded() -> Iterator[None]:
    with Rounding(), Recomputed():
        yield


HALVES = (torch.bfloat16, torch.float16)


class Wide(TorchFunctionMode):
    """float64 wherever a program says float32, so that its reference is not rounded on the way."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.float:
            func = Tensor.double
        if func is F.scaled_dot_product_attention:
            return laid_out(func, func(*args, **(kwargs or {})), *args, **(kwargs or {}))
        args = tuple(torch.float64 if a is torch.float32 else a for a in args)
        kwargs = {k: torch.float64 if v is torch.float32 else v for k, v in (kwargs or {}).items()}
        result = func(*args, **kwargs)
        if func is Tensor.to and isinstance(args[0], nn.Parameter) and result.dtype in HALVES:
            return result.double()  # a model of rounded weights, as one that is built with them
        return result


MINDS_NAN = "returned nan values"  # autograd's check for anomalies, which minds no infinity
OVERWRITTEN = "modified by an inplace operation"  # docs/reference/limits.md

MEASURES = {"float64": Wide, "rounded": rounded}


@dataclass
class World:
    """What a program's lines can reach besides their own module: one of the five ways to run them."""

    way: str  # original, swapped, float64, rounded, undone
    space: dict[str, Any] = field(default_factory=dict)
    records: list[list[tuple[str, Any]]] = field(default_factory=list)  # of each line: what was noted
    swaps: list[Any] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)
    line: int = 0

    # ------------------------------------------------------------ names that lines use

    def names(self) -> dict[str, Any]:
        public = ("build", "swap", "undo", "tensor", "call", "twice", "new", "descend", "patched", "total")
        return {name: getattr(self, name) for name in public}

    def dtype(self, wanted: torch.dtype) -> torch.dtype:
        return torch.float64 if self.way == "float64" and wanted.is_floating_point else wanted

    def new(self, value: Any) -> Any:
        """A new module or tensor as it fits the model."""
        return value.to(self.dtype(self.model_dtype()))

    def model_dtype(self) -> torch.dtype:
        return next((p.dtype for p in self.space["model"].parameters()), torch.float32)

    def build(self, cls: type[nn.Module], dtype: str) -> nn.Module:
        torch.default_generator.manual_seed(1)
        with torch._C.DisableTorchFunction():  # made in float32 and then widened, parametrizations too
            model = cls()
        for module in model.modules():
            if type(module) is nn.LazyLinear:
                module.in_features = module.out_features
                module.weight.materialize((module.out_features, module.out_features))
                module.bias.materialize((module.out_features,))
                module.reset_parameters()
                module.__class__ = nn.Linear
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn(parameter.shape) * 0.2)
        return model.to(self.dtype(getattr(torch, dtype)))

    def swap(self, model: nn.Module) -> None:
        if self.way == "swapped":
            self.swaps.append(swap(model, verbose=False))
        if self.way == "undone":
            swap(model, verbose=False).undo()

    def undo(self) -> None:
        while self.swaps:
            self.swaps.pop().undo()

    def tensor(self, shape: tuple[int, ...], kind: str, grad: bool = False) -> Tensor:
        generator = torch.Generator().manual_seed(self.line)
        value = torch.randn(shape, generator=generator)
        if value.numel():
            value.view(-1)[0] = {"nan": torch.nan, "infinite": torch.inf, "huge": 1e30}.get(kind, 0.7)
        value = {"tiny": value * 1e-39, "zero": value * 0, "constant": value * 0 + 2}.get(kind, value)
        value = value.to(self.dtype(self.model_dtype()))
        value = _laid_out(value, kind)
        if kind == "parameter":
            return nn.Parameter(value)
        return value.requires_grad_() if grad and kind != "expanded" else value

    @contextlib.contextmanager
    def patched(self, owner: Any, name: str, value: Any) -> Iterator[None]:
        before = getattr(owner, name)
        setattr(owner, name, value)
        try:
            yield
        finally:
            setattr(owner, name, before)

    def total(self, value: Any) -> Any:
        leaves = [leaf for leaf in _leaves(value) if leaf.is_floating_point()]
        return sum((leaf.float() if leaf.dtype.itemsize < 4 else leaf).square().sum() for leaf in leaves)

    def descend(self, model: nn.Module) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(0.01 * parameter.grad.clamp(-1, 1).nan_to_num())

    # ------------------------------------------------------------ calls, and what is noted of them

    def call(self, function: Any, *args: Any, **named: Any) -> None:
        self._forget_gradients(args, named)
        output = function(*args, **named)
        leaves = _leaves(output)
        self.note("output", leaves)
        self.note("requires grad", [leaf.requires_grad for leaf in leaves])
        wanted = [leaf for leaf in leaves if leaf.requires_grad and leaf.is_floating_point()]
        if wanted:
            generator = torch.Generator().manual_seed(self.line)
            seeds = [torch.randn(leaf.shape, generator=generator).to(leaf.dtype) for leaf in wanted]
            torch.autograd.backward(wanted, seeds)
        self._note_state(args, named)

    def twice(self, model: nn.Module, x: Tensor) -> None:
        x = x.detach().clone().requires_grad_()
        (first,) = torch.autograd.grad(self.total(model(x)), x, create_graph=True)
        self.note("gradient", [first])
        first.square().sum().backward()
        self._note_state((x,), {})

    def note(self, what: str, values: Any) -> None:
        kept = [v.detach().clone() if isinstance(v, Tensor) else v for v in values]
        self.records[-1].append((what, kept))

    def _forget_gradients(self, args: Any, named: Any) -> None:
        for tensor in [*self.space["model"].parameters(), *_leaves((args, named))]:
            if tensor.is_leaf:
                tensor.grad = None

    def _note_state(self, args: Any, named: Any) -> None:
        model = self.space["model"]
        given = _leaves((args, named))
        self.note("inputs after", given)
        self.note("gradients of inputs", [t.grad for t in given if t.is_leaf and t.grad is not None])
        grads = {n: p.grad for n, p in model.named_parameters()}
        self.note(
            f"gradients of {sorted(n for n in grads if grads[n] is not None)}",
            [g for g in grads.values() if g is not None],
        )
        self.note("buffers", list(model.buffers()))
        for path, module in model.named_modules():
            state = {
                k: v for k, v in vars(module).items() if isinstance(v, (int, bool)) and k != "_is_full_backward_hook"
            }
            self.note(f"attributes of {path} {state}", [])
            self.note(f"what {path} saw", [torch.tensor(v) for v in vars(module).get("seen", ())])

    # ------------------------------------------------------------ running

    def run(self, source: Source, code: types.CodeType, name: str) -> None:
        module = types.ModuleType(name)
        module.__file__ = code.co_filename
        sys.modules[name] = module
        self.space = vars(module)
        exec(code, self.space)
        self.space.update(self.names())
        for number, line in enumerate(source.lines):
            self.line = number
            torch.default_generator.manual_seed(number)
            self.records.append([])
            try:
                exec(compile(line, f"<{name}>", "exec"), self.space)
                self.note("done", [])
            except Exception as error:
                self.note(f"raised {type(error).__name__}", [])
                self.errors[number] = f"{type(error).__name__}: {error}"[:250]
        self.undo()
        self.records.append([])
        model = self.space.get("model")
        for path, part in model.named_modules() if model is not None else ():
            self.note(f"attributes of {path} at the end {sorted(k for k in vars(part) if k != 'seen')}", [])


def _leaves(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    return [leaf for item in value for leaf in _leaves(item)]


def _laid_out(value: Tensor, kind: str) -> Tensor:
    """The same values, elsewhere or otherwise in memory."""
    if kind == "transposed":
        return value.transpose(0, -1).contiguous().transpose(0, -1)
    if kind == "strided":
        memory = torch.full((*value.shape[:-1], 2 * value.shape[-1] + 1), torch.nan, dtype=value.dtype)
        memory[..., 1::2] = value
        return memory[..., 1::2]
    if kind == "negated":
        return torch._neg_view(-value)
    if kind == "conjugate" and value.dtype in (torch.float32, torch.float64):
        return torch.complex(torch.zeros_like(value), -value).conj().imag
    if kind == "expanded":
        return value[:1].expand(value.shape)
    if kind == "offset":
        memory = torch.empty(value.numel() + 3, dtype=value.dtype)
        return memory[3:].view(value.shape).copy_(value)
    return value


# ---------------------------------------------------------------- comparing


def faults(source: Source, kernel: str, folder: Path) -> tuple[list[str], set[tuple[str, str]]]:
    """What the swapped program does otherwise than the original, and for which (op, pass) kernels of ours were
    taken."""
    path = folder / f"program_{os.getpid()}_{abs(hash(source.text)):x}.py"
    path.write_text(source.text, encoding="utf-8")
    name = path.stem
    code = compile(source.text, str(path), "exec")
    worlds = {way: World(way) for way in ("original", "swapped", "float64", "rounded", "undone")}
    taken: set[tuple[str, str]] = set()
    for way, world in worlds.items():
        with _left_as_found(name), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if way == "swapped":
                with only(kernel) as taken:
                    world.run(source, code, name)
            elif way in MEASURES:  # torch's quick attention makes zeros of rows of NaN, its plain one does not
                with MEASURES[way](), sdpa_kernel(SDPBackend.MATH):
                    world.run(source, code, name)
            else:
                world.run(source, code, name)
    linecache.cache.pop(str(path), None)
    path.unlink()
    original, swapped, undone, *measures = (worlds[w] for w in ("original", "swapped", "undone", *MEASURES))
    found = _differences(source, original, undone, exact=True)
    return found + _differences(source, original, swapped, *measures), taken


def reduced(source: Source, kernel: str, folder: Path) -> Source:
    """A program with no line left that its first kind of fault can do without."""

    def kind(text: list[str], lines: list[str]) -> str:
        try:
            wrong = faults(Source("\n".join(text), tuple(lines)), kernel, folder)[0]
        except Exception:  # no program any more
            return ""
        return wrong[0].split(":")[0] if wrong else ""

    lines, text = list(source.lines), source.text.split("\n")
    first = kind(text, lines)
    for at in reversed(range(len(lines))):
        fewer = lines[:at] + lines[at + 1 :]
        lines = fewer if first and kind(text, fewer) == first else lines
    for at in reversed(range(len(HEADER.split("\n")), len(text))):
        fewer = text[:at] + text[at + 1 :]
        text = fewer if first and kind(fewer, lines) == first else text
    return Source("\n".join(text), tuple(lines))


@contextlib.contextmanager
def _left_as_found(name: str) -> Iterator[None]:
    """Whatever a program does to torch's modules and settings ends with it."""
    kept = [(module, dict(vars(module))) for module in (F, torch)]
    classes = [(cls, cls.__dict__.get("extra")) for cls in vars(nn).values() if isinstance(cls, type)]
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        for module, before in kept:
            for key in set(vars(module)) - set(before):
                delattr(module, key)
            vars(module).update(before)
        for cls, extra in classes:
            if extra is None and "extra" in cls.__dict__:
                del cls.extra
        torch.set_num_threads(threads)
        sys.modules.pop(name, None)


def _differences(source: Source, want: World, got: World, *measures: World, exact: bool = False) -> list[str]:
    wrong = []
    for number, (records, others) in enumerate(zip(want.records, got.records, strict=True)):
        line = f"{got.way}: {[*source.lines, 'at the end'][number]}: "
        if not exact and _excused(want.errors.get(number, ""), got.errors.get(number, ""), others):
            break  # one of the two went further than the other, and what it counted or wrote stays
        for at, ((what, values), (said, theirs)) in enumerate(zip(records, others, strict=False)):
            if said != what or len(values) != len(theirs):
                wrong.append(
                    f"{line}{len(theirs)} {said} {got.errors.get(number, '')}; "
                    f"originally {len(values)} {what} {want.errors.get(number, '')}"
                )
                break
            for i, (a, b) in enumerate(zip(values, theirs, strict=True)):
                if not isinstance(a, Tensor):
                    wrong += [] if a == b else [f"{line}{what} {i} is {b}, originally {a}"]
                    continue
                beside = [t for m in measures for t in _counterpart(m, number, at, what, i)]
                # gradients are of seeds near one: what cancels to nothing in the original need not in ours
                reason = worse(a, b, beside, exact, least=1.0 if "gradient" in what else 0.0)
                wrong += [f"{line}{what} {i}: {reason}"] if reason else []
    return wrong


# Errors of the original that a swapped program need not have: what torch has not got, and what depends on how a result
# lies in memory or on what is kept for a backward. Where ours reads again what is overwritten, it says so, too.
NEED_NOT_RAISE = ("not implemented", "not been implemented", "view size is not compatible", OVERWRITTEN)


def _excused(error: str, ours: str, noted: list[tuple[str, Any]]) -> bool:
    if MINDS_NAN in error:  # which torch makes of infinity in places where there is no need
        return not any(v.isnan().any() for _, values in noted for v in values if isinstance(v, Tensor))
    return any(words in error for words in NEED_NOT_RAISE) or OVERWRITTEN in ours


def _counterpart(world: World, line: int, at: int, what: str, i: int) -> list[Tensor]:
    """The same value in another world, where that world came so far."""
    records = world.records[line]
    if at < len(records) and records[at][0] == what and i < len(records[at][1]):
        return [t for t in records[at][1][i : i + 1] if isinstance(t, Tensor)]
    return []


def worse(a: Tensor, b: Tensor, measures: list[Tensor], exact: bool, least: float) -> str:
    """What is wrong with ``b`` in place of ``a``, or ""; ``measures`` tell by how much ``a`` may be off itself."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{b.dtype} {list(b.shape)}, originally {a.dtype} {list(a.shape)}"
    if exact or not a.is_floating_point():
        return "" if torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) else "other bits"
    if not a.numel():
        return ""
    x, y, *others = (t.resolve_neg().double() for t in (a, b, *(m for m in measures if m.shape == a.shape)))
    if not torch.stack([_kinds(y) == _kinds(t) for t in (x, *others)]).any(0).all():
        return f"NaN or infinity where there was none, or none where there was one: {y}, originally {x}"
    apart = [float((t - x).abs().nan_to_num(0.0, 0.0, 0.0).max()) for t in (y, *others)]
    size = max(least, float(x.abs().nan_to_num(0.0, 0.0, 0.0).max()))
    allowed = FACTOR * sum(apart[1:]) + ROUNDINGS * torch.finfo(a.dtype).eps * size
    return "" if apart[0] <= allowed else f"off by {apart[0]:.2g}, at most {allowed:.2g}: {y}, originally {x}"


def _kinds(value: Tensor) -> Tensor:
    """Which elements are no numbers. Which kind they are, the order of an overflow decides."""
    return ~value.isfinite()
