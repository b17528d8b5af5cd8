"""Batch norm folding: batch norms with fixed statistics are folded into the convolution or product before them.

With fixed statistics a batch norm is y * s + t for each channel, s = gamma / sqrt(var + eps), t = beta - mean * s. So
(W * s) x + (b * s + t) gives it without a pass of its own. The folded weight is computed in float64 and kept beside the
module's own, which stays what it is in ``state_dict``, for training, and for whoever changes it (``derived_values``).

The fold is applied at the place that calls the norm on the product's result (``callers``): ``self.norm(self.conv(x))``,
the same in two statements, or one after the other in an nn.Sequential. The modules stay what they are: whoever calls
one of them by itself, hooks it or replaces it has torch's own.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelworks.build.digest import has_digest
from kernelworks.contract.tensors import is_plain
from kernelworks.diagnose.optimization import Candidate, Change, Impossible, Promise, Scene
from kernelworks.diagnose.optimizations import callers
from kernelworks.diagnose.optimizations.accepted_options import Takes, groups_of
from kernelworks.diagnose.optimizations.derived_values import (
    NARROW,
    NO_DIGEST,
    NORMS,
    PRODUCTS,
    DerivedValue,
    any_requires_grad,
    as_shipped,
    needs_torch_operators,
)
from kernelworks.diagnose.optimizations.trial import race_promise
from kernelworks.nn.originals import shipped_forward
from kernelworks.profile.cost.dataflow import Flow, Step
from kernelworks.records.fix import MODULES_MADE_ANEW

__all__ = ["CALLS", "OPTIMIZATION", "below", "in_full", "install_all", "norms_after_products"]

OPS = frozenset({
    "conv1d", "conv2d", "conv3d", "convolution", "_convolution", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "linear",
})  # fmt: skip
DIMS: dict[type, tuple[type, int]] = {  # the norm of a product's results, and their dimensions
    nn.Linear: (nn.BatchNorm1d, 2), nn.Conv1d: (nn.BatchNorm1d, 3), nn.ConvTranspose1d: (nn.BatchNorm1d, 3),
    nn.Conv2d: (nn.BatchNorm2d, 4), nn.ConvTranspose2d: (nn.BatchNorm2d, 4),
    nn.Conv3d: (nn.BatchNorm3d, 5), nn.ConvTranspose3d: (nn.BatchNorm3d, 5),
}  # fmt: skip
SEQUENTIAL = shipped_forward(nn.Sequential)
NOT_CHAINED = "no method of {of} calls the one on the other's result, in the source as it runs"
CODE = """\
for product, norm in (
{pairs}
):
    one, other = model.get_submodule(product).eval(), model.get_submodule(norm).eval()
    model.set_submodule(product, torch.nn.utils.{fuse}(one, other{more}))
    model.set_submodule(norm, torch.nn.Identity())"""


def in_full(model: nn.Module, pairs: Iterable[tuple[str, str]]) -> str:
    """The lines that fold all of a model's pairs of a product and the norm after it, without kernelworks."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for product, norm in pairs:
        part = model.get_submodule(product)
        fuse = "fuse_linear_bn_eval" if isinstance(part, nn.Linear) else "fuse_conv_bn_eval"
        more = ", transpose=True" if isinstance(part, nn.modules.conv._ConvTransposeNd) else ""
        kinds.setdefault((fuse, more), []).append(f'    ("{product}", "{norm}"),')
    return "\n".join(CODE.format(pairs="\n".join(lines), fuse=fuse, more=more) for (fuse, more), lines in kinds.items())


class _Optimization:
    name = "folded norms"
    takes = Takes(("module",), {"pairs": groups_of(2, 2)}, needs=(("pairs",),))

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        timeline = scene.forecaster.timeline if scene.forecaster is not None else None
        if timeline is None or scene.training:
            return
        found, without, has_candidate = norms_after_products(timeline.calls), list[str](), False
        for root in scene.roots.modules:
            name = type(root).__name__
            pairs = [(below(name, a), below(name, b)) for a, b in found]
            places, left = places_of(root, pairs)
            taken = {pair for place in places for pair in place.paths}
            pairs = [pair for pair in pairs if pair in taken]
            if pairs and scene.roots.fresh:
                raise Impossible(MODULES_MADE_ANEW)
            if pairs:
                says = f"{len(pairs)} batch norms folded into what comes before them"
                if left:
                    says += f", {len(left)} left as they are"
                yield Candidate(
                    self.name, scene.site(root), says, code=in_full(root, pairs), options=(("pairs", pairs),),
                    touches=frozenset({"ops"}),
                )  # fmt: skip
                has_candidate = True
            else:
                without += left
        if without and not has_candidate:
            raise Impossible(without[0])

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        module = scene.at(candidate.site)
        parts = dict(module.named_modules())
        size = sum(t.nbytes for a, _ in candidate.option("pairs") for t in parts[a].parameters())
        return race_promise(scene, self.apply(scene, candidate), scene.scene_of(module).roots, cost_bytes=size)

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        module = scene.at(candidate.site)
        if not has_digest():
            raise Impossible(NO_DIGEST)
        pairs = [(str(a), str(b)) for a, b in candidate.option("pairs", ())]
        places, left = places_of(module, pairs)
        if not places:
            raise Impossible(left[0] if left else "there is no batch norm to fold")
        kept: list[Folding] = scene.keep((self.name, id(module)), lambda: [Folding(place) for place in places])
        change = Change(lambda: install_all(kept))
        change.left = tuple(left)
        return change


class Installs(Protocol):
    def install(self) -> Callable[[], None]: ...


def install_all(each: Iterable[Installs]) -> Callable[[], None]:
    """Installs them in their order; what is returned takes them out in the reverse."""
    placed = [one.install() for one in each]

    def back() -> None:
        for remove in reversed(placed):
            remove()

    return back


def below(root: str, path: str) -> str:
    """A module's path without the name of the outermost one."""
    head, _, rest = path.partition(".")
    return rest if head == root else "?"


def norms_after_products(calls: Sequence[Any]) -> list[tuple[str, str]]:
    """The paths of the modules of each product and of the batch norm, by fixed statistics, that alone reads what it
    made; a module that is called several times is among them only if each call is such."""
    flow = Flow(calls)
    pairs: dict[str, set[str]] = {}
    seen: dict[str, set[str]] = {}
    for step in flow.steps:
        path = step.call.place.path
        if step.name in OPS and path:
            pairs.setdefault(path, set()).add(_norm_after(step))
        elif step.name == "batch_norm" and path:
            made = step.maker()
            seen.setdefault(path, set()).add(made.call.place.path if made is not None else "")
    found = []
    for product, norms in pairs.items():
        norm = next(iter(norms))
        if len(norms) == 1 and norm and seen.get(norm) == {product}:
            found.append((product, norm))
    return found


def _norm_after(step: Step) -> str:
    """The path of the one batch norm by fixed statistics that reads what a step made, or ""."""
    readers = step.readers_that_write
    if len(readers) != 1 or readers[0].name != "batch_norm" or readers[0].maker() is not step:
        return ""
    return readers[0].call.place.path if readers[0].arguments["training"] is False else ""


# ---------------------------------------------------------------- where


class Place(NamedTuple):
    """A module whose methods call some pairs of its parts, and how: its rewritten methods, by name."""

    caller: nn.Module
    paths: tuple[tuple[str, str], ...]
    pairs: tuple[tuple[nn.Module, nn.Module], ...]
    methods: dict[str, tuple[Any, CodeType | None]]  # no code: nn.Sequential's forward


def places_of(root: nn.Module, pairs: Iterable[tuple[str, str]]) -> tuple[list[Place], list[str]]:
    """The places at which pairs of a product and a norm can be folded, and why the others cannot."""
    parts = dict(root.named_modules())
    by_caller: dict[str, list[tuple[str, str]]] = {}
    left = []
    for product, norm in pairs:
        above = product.rpartition(".")[0]
        if "?" in (product, norm) or not foldable(parts.get(product), parts.get(norm)):
            left.append(f"{norm}: what it normalizes, or the norm itself, is not torch's own, or has hooks")
        elif norm.rpartition(".")[0] != above:
            left.append(f"{norm}: it is called by another module than the one that calls {product}")
        else:
            by_caller.setdefault(above, []).append((product, norm))
    places, done = [], dict[Any, Any]()
    for above, mine in by_caller.items():
        caller = parts[above]
        names = [(a.rpartition(".")[2], b.rpartition(".")[2]) for a, b in mine]
        found, methods = _methods(caller, names, done)
        taken = [pair for pair, name in zip(mine, names, strict=True) if name in found]
        if taken:
            held = tuple((parts[a], parts[b]) for a, b in taken)
            places.append(Place(caller, tuple(taken), held, methods))
        left += [f"{b}: {NOT_CHAINED.format(of=type(caller).__name__)}" for a, b in mine if (a, b) not in taken]
    return places, left


def foldable(product: Any, norm: Any) -> bool:
    """Whether the modules are torch's own, unwatched, and the norm has statistics of as many channels."""
    if not as_shipped(product) or not as_shipped(norm):
        return False
    if not isinstance(norm, NORMS) or type(norm) is not DIMS[type(product)][0]:
        return False
    channels: int = product.out_features if isinstance(product, nn.Linear) else product.out_channels
    transposed = isinstance(product, nn.modules.conv._ConvTransposeNd)
    return norm.running_var is not None and channels == norm.num_features and not (transposed and product.groups != 1)


def _methods(
    caller: nn.Module, names: Sequence[tuple[str, str]], done: dict[Any, Any]
) -> tuple[set[tuple[str, str]], dict[str, tuple[Any, CodeType | None]]]:
    """The pairs whose norm a module's own methods call on the product's result, and those methods, rewritten."""
    if type(caller).forward is SEQUENTIAL:
        order = list(caller._modules)
        if "forward" in caller.__dict__ or type(caller).__iter__ is not nn.Sequential.__iter__:  # type: ignore[attr-defined]
            return set(), {}
        follow = set(itertools.pairwise(order)) & set(names)
        return follow, {"forward": (SEQUENTIAL, None)} if follow else {}
    found: set[tuple[str, str]] = set()
    methods: dict[str, tuple[Any, CodeType | None]] = {}
    for name, function in callers.methods_of(caller):
        if name in caller.__dict__ or not any({a, b} <= set(function.__code__.co_names) for a, b in names):
            continue
        key = function, *names
        if key not in done:
            done[key] = _rewritten(function, names)
        code, here = done[key]
        if code is not None:
            methods[name] = function, code
            found |= here
    return found, methods


def _rewritten(function: Any, names: Sequence[tuple[str, str]]) -> tuple[CodeType | None, set[tuple[str, str]]]:
    found: set[tuple[str, str]] = set()

    def rewrite(node: ast.FunctionDef, owner: str, code: CodeType) -> bool:
        fold = _Fold(owner, set(names), set(code.co_varnames) - set(code.co_cellvars))
        node.body = fold.block(node.body, apart=True)
        found.update(fold.found)
        return bool(found)

    return callers.rewritten(function, rewrite), found


class _Fold(ast.NodeTransformer):
    """Rewrites ``self.norm(self.product(x))``, and ``v = self.product(x)`` with ``v = self.norm(v)`` right after it."""

    def __init__(self, owner: str, pairs: set[tuple[str, str]], variables: set[str]) -> None:
        self.owner, self.pairs, self.variables = owner, pairs, variables
        self.found: set[tuple[str, str]] = set()

    def block(self, statements: list[ast.stmt], *, apart: bool) -> list[ast.stmt]:
        """``apart``: nothing catches what is raised in it, and so sees a variable with another value."""
        for first, second in itertools.pairwise(statements):
            product, norm = self._assigned(first), self._assigned(second)
            if apart and product and norm and product[0] == norm[0] and (product[1], norm[1]) in self.pairs:
                argument = norm[2].args[0]
                if isinstance(argument, ast.Name) and argument.id == product[0]:
                    self.found.add((product[1], norm[1]))
                    first.value = _at(callers.on_site("begin", product[2].func, product[2].args[0]), product[2])  # type: ignore[attr-defined]
                    second.value = _at(callers.on_site("finish", norm[2].func, argument), norm[2])  # type: ignore[attr-defined]
        for statement in statements:
            inner = apart and not isinstance(statement, (ast.Try, ast.With))
            for name, value in ast.iter_fields(statement):
                if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                    if not isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
                        setattr(statement, name, self.block(value, apart=inner))
                elif isinstance(value, ast.expr):
                    setattr(statement, name, self.visit(value))
        return statements

    def _assigned(self, statement: ast.stmt) -> tuple[str, str, ast.Call] | None:
        """The variable, the part of ``self`` whose result it gets, and the call."""
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return None
        target, value = statement.targets[0], statement.value
        part = callers.called_on(value, self.owner)
        if not part or not isinstance(target, ast.Name) or target.id not in self.variables:
            return None
        assert isinstance(value, ast.Call)
        return target.id, part, value

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        norm = callers.called_on(node, self.owner)
        inner = node.args[0] if norm else node
        product = callers.called_on(inner, self.owner) if norm else ""
        if (product, norm) not in self.pairs:
            return node
        assert isinstance(inner, ast.Call)
        self.found.add((product, norm))
        begun = _at(callers.on_site("begin", inner.func, inner.args[0]), inner)
        return _at(callers.on_site("finish", node.func, begun), node)

    def _as_it_is(self, node: ast.AST) -> ast.AST:
        return node  # another function

    visit_Lambda = visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _as_it_is


def _at(made: ast.Call, where: ast.AST) -> ast.Call:
    return ast.fix_missing_locations(ast.copy_location(made, where))


# ---------------------------------------------------------------- a call


class _Begun(NamedTuple):
    """A product that is still to be computed."""

    pair: Pair
    x: Tensor


class Folding:
    """One place while it is installed: what rewritten code calls."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.pairs = [Pair(product, norm) for product, norm in place.pairs]
        self.products = {id(pair.product): pair for pair in self.pairs}  # which are held

    def install(self) -> Callable[[], None]:
        """Puts it in place; returns what takes it out."""
        ours = {
            name: (plain, self._chain if code is None else callers.of_site(plain, code, self))
            for name, (plain, code) in self.place.methods.items()
        }
        return callers.placed_in(self.place.caller, ours)

    def begin(self, product: Any, x: Any) -> Any:
        """``product(x)``, deferred if computing it is all that a call of it does."""
        pair = self.products.get(id(product))
        if (
            pair is None
            or not as_shipped(product)
            or not isinstance(x, Tensor)
            or not is_plain(x)
            or needs_torch_operators()
        ):
            return product(x)
        return _Begun(pair, x)

    def finish(self, norm: Any, made: Any) -> Any:
        """``norm(made)``."""
        if type(made) is not _Begun:
            return norm(made)
        pair, x = made
        found = pair(x) if norm is pair.norm else None
        return norm(pair.product(x)) if found is None else found

    def _chain(self, sequence: Any, input: Any) -> Any:
        """nn.Sequential's forward."""
        if type(sequence).__iter__ is not nn.Sequential.__iter__:
            return SEQUENTIAL(sequence, input)
        modules = list(sequence)
        for at, module in enumerate(modules):
            if type(input) is _Begun:
                input = self.finish(module, input)
            elif at + 1 < len(modules) and type(modules[at + 1]) in NORMS:
                input = self.begin(module, input)
            else:
                input = module(input)
        return input


class Pair:
    """A product and the norm of its results."""

    def __init__(self, product: nn.Module, norm: nn.Module) -> None:
        self.product: Any = product
        self.norm: Any = norm
        self.folded: DerivedValue[tuple[Tensor, Tensor]] = DerivedValue(_folded)

    def __call__(self, x: Tensor) -> Tensor | None:
        """The output of both, if the product is as torch ships it; None if they are to be computed as written."""
        product, norm = self.product, self.norm
        if norm.training or type(norm.eps) is not float or not as_shipped(norm):
            return None
        if x.dim() != DIMS[type(product)][1] or not x.numel():
            return None  # the norm refuses it
        transposed = isinstance(product, nn.modules.conv._ConvTransposeNd)
        if transposed and (product.groups != 1 or product.padding_mode != "zeros"):
            return None
        maybe = product.weight, norm.running_mean, norm.running_var, product.bias, norm.weight, norm.bias
        held = [t for t in maybe if t is not None]
        if not all(isinstance(t, Tensor) for t in (*maybe[:3], *held)) or any_requires_grad(held):
            return None
        dtype = _computed_in(x, held[0])
        there = tuple([t is not None for t in maybe[3:]])
        attributes = dtype, x.device, norm.eps, transposed, there
        found = self.folded.cached_value(held, attributes)
        if found is None:
            channels = held[0].shape[1 if transposed else 0]
            alike = all(t.dtype is held[0].dtype and t.device == x.device for t in held)
            if dtype is None or not alike or not is_plain(*held) or any(t.shape != (channels,) for t in held[1:]):
                return None
            found = self.folded.of(held, attributes)
        return CALLS[type(product)](product, x, *found)


def _folded(tensors: Sequence[Tensor], attributes: Any) -> tuple[Tensor, Tensor]:
    """The folded weight and bias, computed in float64."""
    dtype, _, eps, transposed, there = attributes
    weight, mean, var, *rest = tensors
    bias, gamma, beta = (rest.pop(0) if held else None for held in there)
    scale = torch.rsqrt(var.double() + eps)
    if gamma is not None:
        scale = scale * gamma.double()
    shift = -mean.double() * scale
    if beta is not None:
        shift = shift + beta.double()
    if bias is not None:
        shift = shift + bias.double() * scale
    shape = [-1 if at == int(transposed) else 1 for at in range(weight.dim())]
    return (weight.double() * scale.view(shape)).to(dtype), shift.to(dtype)


def _computed_in(x: Tensor, weight: Tensor) -> torch.dtype | None:
    """The dtype of the product and of the norm's result; None if torch would raise, or there are several."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind):
        return weight.dtype if x.dtype is weight.dtype and x.is_floating_point() else None
    return torch.get_autocast_dtype(kind) if x.dtype in NARROW and weight.dtype in NARROW else None


def _convolved(module: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    made: Tensor = module._conv_forward(x, weight, bias)
    return made


def _transposed(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(module: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return function(
            x, weight, bias, module.stride, module.padding, module.output_padding, module.groups, module.dilation
        )

    return call


def _multiplied(module: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias)


CALLS: dict[type, Callable[..., Tensor]] = {
    nn.Conv1d: _convolved, nn.Conv2d: _convolved, nn.Conv3d: _convolved, nn.Linear: _multiplied,
    nn.ConvTranspose1d: _transposed(F.conv_transpose1d), nn.ConvTranspose2d: _transposed(F.conv_transpose2d),
    nn.ConvTranspose3d: _transposed(F.conv_transpose3d),
}  # fmt: skip
assert set(CALLS) == set(PRODUCTS) == set(DIMS)


OPTIMIZATION = _Optimization()
