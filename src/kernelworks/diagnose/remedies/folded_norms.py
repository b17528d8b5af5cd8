"""Batch norms by fixed statistics, folded into the convolution or product before them.

With fixed statistics a batch norm is y * s + t for each channel, s = gamma / sqrt(var + eps), t = beta - mean * s; so
(W * s) x + (b * s + t) gives it with no pass of its own. The folded weight is computed in float64 and kept beside the
module's own, which stays what it is: in ``state_dict``, for training, and for whoever changes it, upon which it is
folded anew.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import MethodType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelworks.diagnose.remedies.remedy import Change, Impossible, Offer, Promise, Scene
from kernelworks.diagnose.remedies.takes import Takes, groups_of
from kernelworks.diagnose.remedies.trial import raced
from kernelworks.models.install import Installed
from kernelworks.plain import version_of
from kernelworks.work.flow import Flow, Step

__all__ = ["CALLS", "REMEDY", "Folded", "below", "in_full", "installed", "norms_after_products"]

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
PRODUCTS = frozenset({
    "conv1d", "conv2d", "conv3d", "convolution", "_convolution", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "linear",
})  # fmt: skip
CODE = """\
from torch.nn.utils.fusion import fuse_conv_bn_eval  # for each pair; the norm becomes nn.Identity()
model.{product} = fuse_conv_bn_eval(model.{product}, model.{norm}); model.{norm} = torch.nn.Identity()"""


FULL = """\
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
    return "\n".join(FULL.format(pairs="\n".join(lines), fuse=fuse, more=more) for (fuse, more), lines in kinds.items())


class _Remedy:
    name = "folded norms"
    takes = Takes(("module",), {"pairs": groups_of(2, 2)}, needs=(("pairs",),))

    def offers(self, scene: Scene) -> Iterator[Offer]:
        timeline = scene.forecaster.timeline if scene.forecaster is not None else None
        if timeline is None or scene.training or scene.roots.fresh:
            return
        found = norms_after_products(timeline.calls)
        for root in scene.roots.modules:
            name, parts = type(root).__name__, dict(root.named_modules())
            pairs = [(below(name, a), below(name, b)) for a, b in found]
            pairs = [(a, b) for a, b in pairs if foldable(parts.get(a), parts.get(b))]
            if pairs:
                code = CODE.format(product=pairs[0][0], norm=pairs[0][1])
                says = f"{len(pairs)} batch norms folded into what comes before them"
                yield Offer(
                    self.name, scene.site(root), says, code=code, options=(("pairs", pairs),),
                    touches=frozenset({"ops"}),
                )  # fmt: skip

    def predict(self, scene: Scene, offer: Offer) -> Promise:
        module = scene.at(offer.site)
        parts = dict(module.named_modules())
        size = sum(t.nbytes for a, _ in offer.option("pairs") for t in parts[a].parameters())
        return raced(scene, self.apply(scene, offer), scene.alone(module).roots, cost_bytes=size)

    def apply(self, scene: Scene, offer: Offer) -> Change:
        module = scene.at(offer.site)
        parts = dict(module.named_modules())
        pairs = offer.option("pairs", ())
        if not all(foldable(parts.get(a), parts.get(b)) for a, b in pairs):
            raise Impossible("a batch norm that is to be folded is another one here")
        key = (self.name, id(module))
        folded: list[Folded] = scene.keep(key, lambda: [Folded(parts[a], parts[b]) for a, b in pairs])

        return Change(lambda: installed(folded))


class Installs(Protocol):
    def install(self) -> Callable[[], None]: ...


def installed(each: Iterable[Installs]) -> Callable[[], None]:
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
        if step.name in PRODUCTS and path:
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


def foldable(product: Any, norm: Any) -> bool:
    """Whether the modules are torch's own, unwatched, and the norm has statistics of as many channels."""
    if type(product) not in CALLS or type(norm) not in NORMS or norm.running_var is None:
        return False
    for module in (product, norm):
        if "forward" in module.__dict__ or module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
            return False
    transposed = isinstance(product, nn.modules.conv._ConvTransposeNd)
    channels: int = product.out_features if isinstance(product, nn.Linear) else product.out_channels
    return channels == norm.num_features and not (transposed and product.groups != 1)


def _convolved(module: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    made: Tensor = module._conv_forward(x, weight, bias)
    return made


def _transposed(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(module: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return function(
            x, weight, bias, module.stride, module.padding, module.output_padding, module.groups, module.dilation
        )

    return call


def _multiplied(module: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x, weight, bias)


CALLS: dict[type, Callable[..., Tensor]] = {
    nn.Conv1d: _convolved, nn.Conv2d: _convolved, nn.Conv3d: _convolved, nn.Linear: _multiplied,
    nn.ConvTranspose1d: _transposed(F.conv_transpose1d), nn.ConvTranspose2d: _transposed(F.conv_transpose2d),
    nn.ConvTranspose3d: _transposed(F.conv_transpose3d),
}  # fmt: skip


class Folded:
    """A product and the norm after it. While installed, each call in which nothing of them is trained gives what both
    would, and the norm lets pass what the product made so; any other call is as it was."""

    def __init__(self, product: nn.Module, norm: nn.Module) -> None:
        self.product: Any = product
        self.norm: Any = norm
        self._seen: Any = None
        self._weight = self._bias = torch.empty(0)
        self._made: Tensor | None = None

    def install(self) -> Callable[[], None]:
        """Puts it in place; returns what takes it out."""
        placed = []
        for module, function in ((self.product, self._product), (self.norm, self._norm)):
            entries = Installed(module)
            plain = type(module).forward
            entries.set("forward", MethodType(functools.wraps(plain)(_method(function, plain)), module))
            placed.append(entries)
        if self._fixed():
            self._fold(self.product.weight)  # a compiled graph takes what is there
        handles = [m.register_load_state_dict_post_hook(self._loaded) for m in (self.product, self.norm)]

        def back() -> None:
            self._made = None
            for entries in reversed(placed):
                entries.remove()
            for handle in handles:
                handle.remove()

        return back

    def _product(self, plain: Callable[..., Tensor], x: Tensor, *more: Any, **named: Any) -> Tensor:
        if more or named or not self._fixed():
            return plain(self.product, x, *more, **named)
        if torch.compiler.is_compiling():
            return CALLS[type(self.product)](self.product, x, self._weight, self._bias)
        self._fold(x)
        made = CALLS[type(self.product)](self.product, x, self._weight, self._bias)
        self._made = made
        return made

    def _norm(self, plain: Callable[..., Tensor], x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return x if self._fixed() else plain(self.norm, x)
        if x is self._made:
            self._made = None
            return x
        return plain(self.norm, x)

    def _fixed(self) -> bool:
        """Whether this call may be folded: by fixed statistics, and no gradient of a weight is wanted."""
        if self.norm.training:
            return False
        return not torch.is_grad_enabled() or not any(t.requires_grad for t in self._own())

    def _own(self) -> list[Tensor]:
        product, norm = self.product, self.norm
        held = (product.weight, product.bias, norm.weight, norm.bias, norm.running_mean, norm.running_var)
        return [t for t in held if t is not None]

    def _written(self) -> list[Tensor]:
        """Whose versions tell of any change: a batch norm writes its statistics without a word, but counts batches."""
        return [*self._own(), *(t for t in (self.norm.num_batches_tracked,) if t is not None)]

    def _fold(self, x: Tensor) -> None:
        """As calls of ``x`` need it."""
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.product.weight.dtype
        looks = (dtype, *((t.data_ptr(), version_of(t)) for t in self._written()))
        if looks == self._seen:
            return
        weight, bias = folded(self.product, self.norm)
        if alike(self._weight, weight, dtype):
            with torch.no_grad():
                self._weight.copy_(weight)
                self._bias.copy_(bias)
        else:
            self._weight, self._bias = weight.to(dtype), bias.to(dtype)
        self._seen = looks

    def _loaded(self, module: nn.Module, keys: Any) -> None:
        """A compiled graph holds the folded tensors themselves, and asks for nothing: they are written in place."""
        if self._weight.numel():
            with torch.no_grad():
                weight, bias = folded(self.product, self.norm)
                self._weight.copy_(weight)
                self._bias.copy_(bias)


def alike(kept: Tensor, wanted: Tensor, dtype: torch.dtype) -> bool:
    """Whether there is room for it in what was kept: it is written there, as graphs are captured of where it lies."""
    mine = kept.shape, kept.stride(), kept.dtype, kept.device
    return mine == (wanted.shape, wanted.stride(), dtype, wanted.device) and not kept.is_inference()


def _method(function: Callable[..., Tensor], plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def forward(self: nn.Module, x: Tensor, *more: Any, **named: Any) -> Tensor:
        return function(plain, x, *more, **named)

    return forward


def folded(product: Any, norm: Any) -> tuple[Tensor, Tensor]:
    """The weight and the bias that do both, in float64 but for the layout."""
    with torch.no_grad():
        scale = torch.rsqrt(norm.running_var.double() + norm.eps)
        if norm.weight is not None:
            scale = scale * norm.weight.double()
        shift = -norm.running_mean.double() * scale
        if norm.bias is not None:
            shift = shift + norm.bias.double()
        if product.bias is not None:
            shift = shift + product.bias.double() * scale
        weight = product.weight
        along = 1 if isinstance(product, nn.modules.conv._ConvTransposeNd) else 0
        shape = [-1 if at == along else 1 for at in range(weight.dim())]
        return weight.double() * scale.view(shape), shift


REMEDY = _Remedy()
