"""``clip_grad_norm_`` with less work: gradients are scaled only if their norm is too large, and all in one call.

torch scales gradients at every step, by 1 if nothing is to be clipped, because a check on a GPU is a wait for it. On a
CPU the check waits for nothing, and the pass over all gradients, read and written, is two thirds of what clipping
moves. On a GPU ``foreach=False`` makes a launch for each tensor, and ``error_if_nonfinite=True`` waits at every step:
that is advice, because only the author knows who looks at the error.

The two halves of torch's own function are replaced, so it does not matter how the program has imported it.
"""

from __future__ import annotations

import contextlib
import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad

from kernelworks.diagnose.optimization import PROCESS, PROGRAM, Candidate, Change, Impossible, Promise, Rejected, Scene
from kernelworks.diagnose.optimizations.accepted_options import Takes, one_of
from kernelworks.diagnose.optimizations.settings import Setting
from kernelworks.diagnose.optimizations.trial import run_s

__all__ = ["FOREACH", "OPTIMIZATION", "SCALED", "Clipping", "clippings"]

NORM, SCALE = "_get_total_norm", "_clip_grads_with_norm_"  # what clip_grad_norm_ is made of, by their names in torch
HALVES: dict[str, Setting[Any]] = {
    name: Setting(functools.partial(getattr, clip_grad, name), functools.partial(setattr, clip_grad, name))
    for name in (NORM, SCALE)
}
SCALED, FOREACH = "scaled if clipped", "foreach"
SyncWrapper = Callable[[Callable[[], Any]], Callable[[], Any]]  # of a function one that is over when the device is done
VERIFIED_AGAINST = "torch's own clipping, on copies"
MOST_BYTES = 256 << 20  # of gradients that are copied for a trial
TURNS, ENOUGH_S = (5, 25), 0.5
EUCLIDEAN_NORM = 2.0  # the norm that torch takes by default
SAYS = {
    SCALED: "gradients scaled only if their norm is too large",
    FOREACH: "gradients clipped in one call for all of them",
}
CODE = {
    SCALED: """\
grads = [p.grad for p in model.parameters() if p.grad is not None]
norm = torch.nn.utils.get_total_norm(grads{norm_type})
if not norm < max_norm:  # also if it is no number
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), max_norm, norm)""",
    FOREACH: "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm{norm_type})  # without foreach=False",
}
SYNC_ADVICE = (
    "clip_grad_norm_(error_if_nonfinite=True) waits for the GPU at every step: leave it out, and look at the norm that "
    "it returns every so many steps"
)


@dataclass(frozen=True)
class Clipping:
    """One call of ``clip_grad_norm_``: the gradients' sizes, dtypes and devices, and how it was asked."""

    gradients: tuple[tuple[torch.Size, torch.dtype, torch.device], ...]
    norm_type: float
    checked: bool
    foreach: bool | None
    clipped: bool

    @property
    def nbytes(self) -> int:
        return sum(shape.numel() * dtype.itemsize for shape, dtype, _ in self.gradients)

    @property
    def kinds(self) -> set[str]:
        return {device.type for _, _, device in self.gradients}


def clippings(run: Callable[[], Any]) -> list[Clipping]:
    """Each clipping of gradients by norm in a run. On a GPU none counts as one that scales: a check would wait."""
    norm, scale = getattr(clip_grad, NORM), getattr(clip_grad, SCALE)
    found: list[Clipping] = []

    def seen(tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: Any = None) -> Any:
        total = norm(tensors, norm_type, error_if_nonfinite, foreach)
        given = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        plain = all(type(t) is Tensor and t.layout is torch.strided for t in given)
        looks = tuple((t.shape, t.dtype, t.device) for t in given) if plain else ()
        found.append(Clipping(looks, float(norm_type), bool(error_if_nonfinite), foreach, clipped=False))
        return total

    def scaled(parameters: Any, max_norm: float, total_norm: Tensor, foreach: Any = None) -> None:
        if found and total_norm.device.type == "cpu":
            last = found[-1]
            found[-1] = Clipping(
                last.gradients, last.norm_type, last.checked, last.foreach, _coefficient(max_norm, total_norm) != 1.0
            )
        scale(parameters, max_norm, total_norm, foreach)

    with _within(lambda: _put({NORM: seen, SCALE: scaled})):
        run()
    return found


def _coefficient(max_norm: float, total_norm: Tensor) -> float:
    """The factor of torch's scaling; NaN if the norm is NaN."""
    return float(torch.clamp(float(max_norm) / (total_norm.detach() + 1e-6), max=1.0))


@contextlib.contextmanager
def _within(put: Callable[[], Callable[[], None]]) -> Iterator[None]:
    back = put()
    try:
        yield
    finally:
        back()


def _put(others: dict[str, Callable[..., Any]]) -> Callable[[], None]:
    """Puts these in the place of torch's; returns what undoes that. Whoever has wrapped one meanwhile, or holds it,
    calls torch's own from then on."""
    before = {name: getattr(clip_grad, name) for name in others}
    active = True

    def either(name: str) -> Callable[..., Any]:
        @functools.wraps(before[name])
        def call(*args: Any, **kwargs: Any) -> Any:
            return (others if active else before)[name](*args, **kwargs)

        return call

    backs = [HALVES[name].want(either(name)) for name in others]

    def back() -> None:
        nonlocal active
        active = False
        for each in backs:
            each()

    return back


def only_where_clipped() -> Callable[[], None]:
    """Scales gradients only if that changes one; returns what undoes it. Their version counters move nevertheless:
    autograd and caches read them."""
    scale = getattr(clip_grad, SCALE)

    def scaled(parameters: Any, max_norm: float, total_norm: Tensor, foreach: bool | None = None) -> None:
        parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        gradients = [p.grad for p in parameters if p.grad is not None]
        known = type(total_norm) is Tensor and total_norm.device.type == "cpu" and not torch.compiler.is_compiling()
        plain = all(type(g) is Tensor and g.device.type == "cpu" and not g.is_inference() for g in gradients)
        if not known or not plain or _coefficient(max_norm, total_norm) != 1.0:
            scale(parameters, max_norm, total_norm, foreach)
        else:
            for gradient in gradients:
                torch.autograd.graph.increment_version(gradient)

    return _put({SCALE: scaled})


def in_one_call() -> Callable[[], None]:
    """Treats ``foreach=False`` as torch's default; returns what undoes that."""
    norm, scale = getattr(clip_grad, NORM), getattr(clip_grad, SCALE)

    def total(tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: Any = None) -> Any:
        return norm(tensors, norm_type, error_if_nonfinite, foreach or None)

    def scaled(parameters: Any, max_norm: float, total_norm: Tensor, foreach: bool | None = None) -> None:
        scale(parameters, max_norm, total_norm, foreach or None)

    return _put({NORM: total, SCALE: scaled})


INSTALLERS: dict[str, Callable[[], Callable[[], None]]] = {SCALED: only_where_clipped, FOREACH: in_one_call}


class _Optimization:
    name = "gradient clipping"
    takes = Takes(("process", "program"), {"how": one_of(SCALED, FOREACH)}, needs=(("how",),))

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        if not scene.backward or scene.program is None or not (hasattr(clip_grad, NORM) and hasattr(clip_grad, SCALE)):
            return
        found = self._found(scene)
        kinds = {kind for each in found for kind in each.kinds}
        if kinds == {"cpu"} and not all(each.clipped for each in found):
            yield self._candidate(SCALED, found)
        if "cuda" in kinds and any(each.foreach is False for each in found):
            yield self._candidate(FOREACH, found)
        if "cuda" in kinds and any(each.checked for each in found):
            yield Candidate(
                self.name, PROGRAM, "no wait for the norm", advice=SYNC_ADVICE,
                code="torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)",
            )  # fmt: skip

    def _candidate(self, how: str, found: Sequence[Clipping] = ()) -> Candidate:
        other = next((each.norm_type for each in found if each.norm_type != EUCLIDEAN_NORM), EUCLIDEAN_NORM)
        number = f"{other:g}" if math.isfinite(other) else f'float("{other}")'
        said = "" if other == EUCLIDEAN_NORM else f", norm_type={number}"
        return Candidate(
            self.name, PROCESS, SAYS[how], code=CODE[how].format(norm_type=said), options=(("how", how),),
            group=self.name, touches=frozenset({"gradients"}),
        )  # fmt: skip

    def _found(self, scene: Scene) -> list[Clipping]:
        """What one run clips, seen once."""
        program = scene.program
        assert program is not None
        return scene.keep("clippings", lambda: clippings(program.run))

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        """Benchmarks torch's function on gradients like those that were seen, as it is and changed."""
        assert scene.forecaster is not None
        saved = 0.0
        for each in self._found(scene):
            if not each.gradients:
                raise Impossible("some gradients that are clipped are no plain tensors")
            was, now = _race_clipping(each, candidate.option("how"), scene.forecaster.device.with_sync)
            saved += was - now
        return Promise(saved / run_s(scene), how="clippings of copies benchmarked")

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        if not (hasattr(clip_grad, NORM) and hasattr(clip_grad, SCALE)):
            raise Impossible("this version of torch clips gradients in another way")
        return Change(INSTALLERS[candidate.option("how")], VERIFIED_AGAINST)


def _race_clipping(
    clipping: Clipping, how: str, with_sync: Callable[[Callable[[], Any]], Callable[[], Any]]
) -> tuple[float, float]:
    """Seconds of a clipping as it is and changed, in turns. Raises Rejected if the two leave different gradients."""
    every = max(1, -(-clipping.nbytes // MOST_BYTES))
    variants = [_copied(clipping, every) for _ in range(2)]
    if not variants[0]:
        raise Impossible("no gradients are clipped")
    with torch.no_grad():
        total = float(clip_grad.clip_grad_norm_(variants[0], float("inf"), clipping.norm_type))
    most = total / 2 if clipping.clipped else 2 * total

    def seconds(variant: int, max_norm: float) -> float:
        asked = (variants[variant], max_norm, clipping.norm_type, clipping.checked, clipping.foreach)
        run = with_sync(lambda: clip_grad.clip_grad_norm_(*asked))
        with _within(INSTALLERS[how]) if variant else contextlib.nullcontext():
            begin = time.perf_counter()
            run()
            return time.perf_counter() - begin

    for max_norm in (total / 2, total, 2 * total):
        for variant in (0, 1):
            _fill(variants[variant])
            seconds(variant, max_norm)
        _check(*variants)
    times: tuple[list[float], list[float]] = ([], [])
    begin = time.perf_counter()
    for turn in range(TURNS[1]):
        for variant in (0, 1) if turn % 2 else (1, 0):
            if clipping.clipped:
                _fill(variants[variant])
            times[variant].append(seconds(variant, most))
        if turn + 1 >= TURNS[0] and time.perf_counter() - begin > ENOUGH_S:
            break
    raced_bytes = sum(p.nbytes for p in variants[0])  # by bytes: one of them may be most of all
    was, now = (statistics.median(t) * clipping.nbytes / raced_bytes for t in times)
    return was, now


def _copied(clipping: Clipping, every: int) -> list[nn.Parameter]:
    """Parameters with gradients of the same sizes: of every n-th one."""
    made = []
    for shape, dtype, device in clipping.gradients[::every]:
        with torch.no_grad():
            parameter = nn.Parameter(
                torch.empty(shape, dtype=dtype, device=device), requires_grad=dtype.is_floating_point
            )
            parameter.grad = torch.empty_like(parameter)
        made.append(parameter)
    _fill(made)
    return made


def _fill(parameters: Sequence[nn.Parameter]) -> None:
    for number, parameter in enumerate(parameters):
        assert parameter.grad is not None
        parameter.grad.fill_(1e-3 * (1 + number % 7))


def _check(first: Sequence[nn.Parameter], second: Sequence[nn.Parameter]) -> None:
    """Raises Rejected if gradients differ by more than a rounding of their norm."""
    for one, other in zip(first, second, strict=True):
        assert one.grad is not None and other.grad is not None
        unit = torch.finfo(one.grad.dtype).eps
        if not torch.allclose(one.grad, other.grad, rtol=4 * unit, atol=0.0):
            raise Rejected("clipped gradients differ by more than rounding explains")


OPTIMIZATION = _Optimization()
