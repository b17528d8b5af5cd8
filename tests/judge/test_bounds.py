"""Derived bounds: what is honest is within them, and what had fewer bits is not, wherever that can be told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from arithmetic import OneByOne
from like_kernelbench import SOUND
from torch import Tensor, nn

from kernelworks.contract.bounds import Bound, NoBoundError, attention, bound_of
from kernelworks.contract.bounds.propagation import without_fused_kernels
from kernelworks.contract.leaves import leaves
from kernelworks.judge.formats import kernelbench, read_problem
from kernelworks.judge.inputs.low_precision import Narrow, bfloat16, half, tf32
from kernelworks.verify.compare import compare

SEED = 11


torch.manual_seed(SEED)  # for the inputs that tables of this module hold


@pytest.fixture(autouse=True)
def _drawn_alike() -> None:
    torch.manual_seed(SEED)


class Given:
    """A problem with its inputs and bound."""

    def __init__(self, name: str, folder: Path) -> None:
        file = folder / f"{name}.py"
        file.write_text(SOUND[name].text)
        problem = read_problem(file)
        loaded = kernelbench.load(problem, problem.shapes[0], folder)
        torch.manual_seed(SEED)
        self.model = loaded.reference(*loaded.init())
        self.inputs = loaded.inputs()
        with torch.no_grad():
            self.bound = bound_of(self.model, self.inputs)

    def share(self, arithmetic: contextlib.AbstractContextManager[Any]) -> float:
        """The worst error of a run in this arithmetic, as a share of the bound."""
        with torch.no_grad(), without_fused_kernels(), arithmetic:
            found = leaves(self.model(*self.inputs)).values()
        return worst(found, self.bound)


def worst(found: Any, bound: Bound) -> float:
    return max(compare(got, *limits)[0] for got, *limits in zip(found, bound.reference, bound.outputs, strict=True))


@pytest.mark.parametrize("name", SOUND)
def test_honest_arithmetic_is_within_the_bound(name: str, tmp_path: Path) -> None:
    given = Given(name, tmp_path)
    with torch.no_grad():
        assert worst(leaves(given.model(*given.inputs)).values(), given.bound) <= 1
    assert given.share(OneByOne()) <= 1
    assert not given.bound.unknown


# A mean over all hides what each term was off, and so does a sum of 8192 positive products; places have no bits.
HIDES = {"token_loss", "distance", "deep_product", "places", "half_softmax"}
MULTIPLIES = {
    "dense_relu", "conv_norm_relu", "transposed_conv", "depthwise", "feed_forward", "heads", "fused_heads",
    "gated_cell", "three_layers", "mish_norms",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(SOUND.keys() - HIDES))
def test_fewer_bits_are_beyond_it(name: str, tmp_path: Path) -> None:
    given = Given(name, tmp_path)
    for narrow in (half, bfloat16):
        assert given.share(Narrow(narrow)) > 5
    if name in MULTIPLIES:
        assert given.share(Narrow(tf32, products=True)) > 5


SIGNS = torch.cat([torch.ones(1024), -torch.ones(1024)])
ORDERED: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
    "signs by halves": (lambda a, b: a @ b, [torch.rand(16, 2048) * SIGNS, torch.rand(2048, 8)]),
    "sums by halves": (lambda a: a.sum(1), [torch.rand(16, 2048) * SIGNS]),
    "all alike": (lambda a, b, c: a * 0.1 @ b @ c, [torch.ones(16, 999), torch.ones(999, 99), torch.ones(99, 8) * 0.7]),
    "the same added again": (lambda a: a.mean(1), [torch.full((4, 5000), 0.1)]),
    "positive, thrice": (lambda a, b, c: a @ b @ c, [torch.rand(16, 500), torch.rand(500, 300), torch.rand(300, 8)]),
}


@pytest.mark.parametrize("name", ORDERED)
def test_terms_in_an_order_of_their_own_are_within_the_bound(name: str) -> None:
    run, inputs = ORDERED[name]
    bound = bound_of(run, inputs)
    with OneByOne():
        assert worst([run(*inputs)], bound) <= 1


def test_a_bound_says_what_it_is_made_of() -> None:
    layer = nn.Linear(512, 64)
    found = bound_of(lambda x: torch.tanh(layer(x)), [torch.randn(8, 512)])
    assert found.why[0].startswith("output: ")
    assert "mm K=512" in found.why[0]


def _silu_without_half_of_it(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x * 1.001)


WRONG: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], list[Tensor]]] = {
    "eps left out": (
        lambda x: F.layer_norm(x, (300,), eps=1e-3), lambda x: F.layer_norm(x, (300,), eps=0.0), [torch.rand(20, 300)]
    ),
    "one term short": (lambda x: x.sum(1), lambda x: x[:, :-1].sum(1), [torch.rand(64, 999)]),
    "another formula": (F.gelu, lambda x: F.gelu(x, approximate="tanh"), [torch.randn(4000)]),
    "a slope": (F.silu, _silu_without_half_of_it, [torch.randn(4000)]),
    "biased variance": (lambda x: x.var(1), lambda x: x.var(1, correction=0), [torch.randn(30, 200)]),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_beyond_it(name: str) -> None:
    right, wrong, inputs = WRONG[name]
    bound = bound_of(right, inputs)
    assert worst([right(*inputs)], bound) <= 1
    assert worst([wrong(*inputs)], bound) > 1


def _routed(x: Tensor, weight: Tensor) -> Tensor:
    values, places = (x @ weight).topk(2)
    return torch.zeros(len(x), weight.shape[1]).scatter(1, places, values.softmax(1))


# Ops that are neither pointwise, nor a move, nor a plain sum.
OTHERS: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
    "products": (lambda x: (x.prod(1), x.cumprod(1)), [torch.rand(20, 30) + 0.5]),
    "several in one place": (
        lambda x, i, y: x.index_put((i,), y, accumulate=True),
        [torch.randn(10, 4), torch.randint(0, 10, (30,)), torch.randn(30, 4)],
    ),
    "overlapping windows": (lambda x: F.fold(x, (8, 8), 3), [torch.randn(2, 27, 36)]),
    "recurrent": (nn.LSTM(8, 12, 2), [torch.randn(5, 3, 8)]),
    "an encoder's layer": (nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval(), [torch.randn(2, 7, 32)]),
    "routed": (_routed, [torch.randn(40, 50), torch.randn(50, 8)]),
    "the largest and its place": (lambda x: x.max(1), [torch.randn(40, 50)]),
    "a window's largest": (nn.MaxPool3d(2), [torch.randn(2, 3, 8, 8, 8)]),
    "a draw": (lambda x: F.dropout(x, 0.5) * 3.3, [torch.randn(40, 50)]),
    "control by a value": (lambda x: x * 2.2 if x.sum().item() > 0 else x * 3.3, [torch.randn(40, 50)]),
    "whole numbers": (lambda x: (x / x.abs().amax() * 127).round().to(torch.int8), [torch.randn(40, 50)]),
    "a factorisation": (lambda a: torch.linalg.cholesky(a @ a.mT + torch.eye(8)), [torch.randn(5, 8, 8)]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_ops_are_within_the_bound(name: str) -> None:
    run, inputs = OTHERS[name]
    with torch.no_grad():
        torch.manual_seed(SEED)
        found = bound_of(run, inputs)
        torch.manual_seed(SEED)
        assert worst(leaves(run(*inputs)).values(), found) <= 1
    assert bool(found.unknown) == (name == "a factorisation")


# ---------------------------------------------------------------- what rounding decides, and what cannot be followed


def test_a_convolution_of_many_images_is_its_sum() -> None:
    """From sixteen images on torch would take one by transforms."""
    layer = nn.Conv2d(16, 16, 3)
    x = torch.rand(16, 16, 24, 24)
    with torch.no_grad():
        found = bound_of(layer, [x])
        assert worst(found.native, found) < 0.5 and worst([layer(x)], found) <= 1


def test_a_tie_may_be_decided_either_way() -> None:
    weight = torch.randn(50, 40)
    x = torch.randn(3, 50)
    twins = torch.cat([weight[:, :1], weight], 1)  # the first two scores are the same but for their rounding
    found = bound_of(lambda a: (a @ twins * torch.tensor([9.0, 9.0, *[0.01] * 39])).abs().argmax(1), [x])
    assert bool(found.outputs[0].isinf().all())
    clear = bound_of(lambda a: a.argmax(1), [x])
    assert not bool(clear.outputs[0].any())


def test_a_comparison_near_its_threshold_widens_what_hangs_on_it() -> None:
    x = torch.tensor([0.1, 1.0, 3.0])
    found = bound_of(lambda a: torch.where(a * 10 > 1.0000000149, 5.0, 7.0), [x])
    assert found.outputs[0][0] >= 2  # 0.1 in float32 times 10 is that number, near enough
    assert not bool(found.outputs[0][1:].any())


def test_views_and_writes_in_place_are_followed() -> None:
    def run(x: Tensor) -> Tensor:
        out = torch.empty(4, 6)
        out[:, ::2] = x / 3
        out[:, 1::2] = 1.0
        out.t()[1].mul_(0.7)
        return out

    x = torch.rand(4, 3)
    found = bound_of(run, [x])
    assert worst([run(x)], found) <= 1
    assert bool((found.outputs[0][:, ::2] > 0).all())
    assert not bool(found.outputs[0][:, 3::2].any())
    assert torch.equal(found.native[0], run(x))


def test_inputs_are_not_written_to() -> None:
    x = torch.ones(5)
    found = bound_of(lambda a: a.mul_(3), [x])
    assert float(x.sum()) == 5
    assert float(found.reference[0].sum()) == 15


def test_gradients_are_bounded_as_answers_are() -> None:
    layer = nn.Sequential(nn.Linear(96, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10))
    x, target = torch.randn(32, 96), torch.randint(0, 10, (32,))

    def gradients(a: Tensor, b: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            return list(torch.autograd.grad(F.cross_entropy(layer(a), b), list(layer.parameters())))

    found = bound_of(gradients, [x, target])
    assert worst(gradients(x, target), found) <= 1
    with Narrow(bfloat16, products=True):
        assert worst(gradients(x, target), found) > 1


CONVOLUTIONS: dict[str, nn.Module] = {
    "plain": nn.Conv2d(8, 12, 3, padding=1), "in groups": nn.Conv2d(8, 12, 3, stride=2, groups=4),
    "transposed": nn.ConvTranspose2d(8, 12, 3, stride=2), "of a line": nn.Conv1d(8, 6, 5),
}  # fmt: skip


@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_gradients_of_convolutions_are_sums(name: str, even: bool) -> None:
    """Of a mean what flows back is one number everywhere, which a sum over all places rounds alike every time."""
    layer = CONVOLUTIONS[name]
    x = torch.rand(16, 8, *[24] * (1 if name == "of a line" else 2))

    def gradients(a: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            given = a.detach().requires_grad_()
            answer = layer(given).flatten(2).mean(-1) if even else layer(given).tanh()
            return list(torch.autograd.grad(answer.square().sum(), [given, *layer.parameters()]))

    bound = bound_of(gradients, [x])
    assert not bound.unknown and worst(gradients(x), bound) <= 1
    with Narrow(bfloat16, products=True):
        assert worst(gradients(x), bound) > 1


SENT: dict[str, tuple[nn.Module, Tensor, Callable[[Tensor], Tensor]]] = {
    # What the first images add the last take away: between them the sums are far larger than what comes of them.
    "signs by images": (
        nn.Conv1d(4, 8, 3), torch.rand(16, 4, 902), lambda y: (F.gelu(y).mean(-1) * SIGNS[::128, None]).sum()
    ),
    # One number in each image, or zero: adding it rounds the same way again and again.
    "largest ones": (
        nn.Conv1d(1, 8, 1), torch.rand(4, 1, 1 << 16),
        lambda y: (F.max_pool1d(y, 4).mean(-1) * torch.linspace(0.5, 0.9, 8)).sum(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SENT)
def test_gradients_of_a_convolution_summed_place_by_place_are_within_the_bound(name: str) -> None:
    """As kernels do it that have the channels in their lanes: each lane adds all images and places in turn."""
    layer, x, answer = SENT[name]
    parameters = list(layer.parameters())

    def gradients(a: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            return list(torch.autograd.grad(answer(layer(a)), parameters))

    with torch.no_grad():
        made = layer(x)
    made.requires_grad_()
    (flow,) = torch.autograd.grad(answer(made), made)
    lines, windows = flow.transpose(1, 2), x.unfold(2, layer.kernel_size[0], 1).transpose(1, 2)
    terms = [lines[:, :, :, None, None] * windows[:, :, None], lines]
    found, short = (
        [torch.from_numpy(t[:count].flatten(0, 1).numpy().cumsum(0)[-1]) for t in terms] for count in (len(x), -1)
    )
    bound = bound_of(gradients, [x])
    assert worst(gradients(x), bound) <= 1 and worst(found, bound) <= 1
    assert worst([short[0], found[1]], bound) > 1 and worst([found[0], short[1]], bound) > 1  # an image left out


def _in_tiles(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As fused kernels do it: scores in float32, weights handed to the second product in the program's dtype."""
    scores = (q.float() @ k.float().mT) * q.shape[-1] ** -0.5
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return ((weights.to(q.dtype).float() @ v.float()) / weights.sum(-1, keepdim=True)).to(q.dtype)


MASKED = torch.rand(64, 64) < 0.7
ATTENDED: dict[str, dict[str, Any]] = {
    "all": {}, "causal": {"is_causal": True}, "masked": {"attn_mask": MASKED}, "scaled": {"scale": 0.3},
    "in groups": {"enable_gqa": True},
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("how", ATTENDED)
def test_attention_of_half_precision_rounds_between_its_products(how: str, dtype: torch.dtype) -> None:
    q, k, v = (torch.rand(2, 4, 64, 32).to(dtype) for _ in range(3))
    given = [q, k[:, :2], v[:, :2]] if how == "in groups" else [q, k, v]

    def run(*args: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*args, **ATTENDED[how])

    found = bound_of(run, given)
    assert 0.3 < worst([run(*given)], found) <= 1
    widened = run(*(t.float() for t in given)).to(dtype)
    assert worst([widened], found) <= 1
    if how == "all":
        assert worst([_in_tiles(*given)], found) <= 1
        fewer = [(t.view(torch.int16) & ~0xF).view(dtype) for t in given]
        assert worst([_in_tiles(*fewer)], found) > 1
    assert worst([F.scaled_dot_product_attention(*given, **ATTENDED[how] | {"scale": 0.2})], found) > 1


def test_attention_is_found_whoever_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = nn.MultiheadAttention(32, 4, batch_first=True).bfloat16(), torch.rand(2, 7, 32).bfloat16()
    calls, its = [], attention._attention
    monkeypatch.setattr(attention, "_attention", lambda **given: (calls.append(1), its(**given))[1])
    torchs = F.scaled_dot_product_attention
    for run in (lambda x: layer(x, x, x, need_weights=False)[0], lambda x: torchs(x, x, x)):
        with torch.no_grad():
            found = bound_of(run, [x])
            assert worst([run(x)], found) <= 1
    assert len(calls) == 2 and F.scaled_dot_product_attention is torchs


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_attention_of_half_precision_are_bounded(dtype: torch.dtype) -> None:
    given = [torch.randn(2, 4, 48, 32).to(dtype) for _ in range(4)]

    def gradients(q: Tensor, k: Tensor, v: Tensor, flow: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in (q, k, v)]
            return list(torch.autograd.grad(F.scaled_dot_product_attention(*leaves), leaves, flow))

    found = bound_of(gradients, given)
    assert 0.1 < worst(gradients(*given), found) <= 1


def _strassen(a: Tensor, b: Tensor) -> Tensor:
    (p, q), (r, s) = (half.chunk(2, 1) for half in a.chunk(2))
    (t, u), (v, w) = (half.chunk(2, 1) for half in b.chunk(2))
    one, two, three, four = (p + s) @ (t + w), (r + s) @ t, p @ (u - w), s @ (v - t)
    five, six, seven = (p + q) @ w, (r - p) @ (t + u), (q - s) @ (v + w)
    above = torch.cat([one + four - five + seven, three + five], 1)
    return torch.cat([above, torch.cat([two + four, one - two + three + six], 1)])


def _by_transforms(x: Tensor, weight: Tensor) -> Tensor:
    sizes = x.shape[2:]
    there = torch.einsum("ncij,kcij->nkij", torch.fft.rfft2(x, s=sizes), torch.fft.rfft2(weight.flip(2, 3), s=sizes))
    return torch.fft.irfft2(there, s=sizes)[:, :, 2:, 2:]


def test_algorithms_of_less_arithmetic_are_judged_by_each_element() -> None:
    """Right where every element is of a size, and not where small ones lie beside large ones: an element's bound is of
    its own terms, their error is of the whole."""
    a, b, even = torch.rand(128, 128), torch.rand(128, 128), torch.rand(2, 16, 26, 26)
    weight = torch.randn(8, 16, 3, 3) / 12
    uneven, spikes = a.clone(), 1e-3 * even
    uneven[64:] *= 1e-4
    spikes[:, :, ::8, ::8] = 1.0
    for run, least, small, large in (
        (torch.mm, _strassen, [a, b], [uneven, b]), (F.conv2d, _by_transforms, [even, weight], [spikes, weight])
    ):  # fmt: skip
        assert worst([least(*small)], bound_of(run, small)) <= 1
        assert worst([run(*large)], bound_of(run, large)) <= 1 < worst([least(*large)], bound_of(run, large)) / 5


def test_complex_numbers_are_not_followed() -> None:
    for run in (lambda x: torch.fft.rfft(x).abs(), torch.fft.rfft):
        with pytest.raises(NoBoundError, match="complex"):
            bound_of(run, [torch.randn(16)])


def test_a_convolution_may_begin_its_sum_with_the_bias() -> None:
    generator = torch.Generator().manual_seed(4)
    x, weight = (torch.rand(4, 6, 12, 12, generator=generator) * 2.0**-10, torch.randn(8, 6, 3, 3, generator=generator))
    bias = torch.randn(8, generator=generator)
    bound = bound_of(lambda *given: F.conv2d(*given, padding=1), [x, weight, bias])
    begun = bias.view(1, 8, 1).expand(4, 8, 144)
    lines = F.unfold(x, 3, padding=1)
    for k, factors in enumerate(weight.view(8, 54).unbind(1)):
        begun = begun + factors.view(1, 8, 1) * lines[:, k : k + 1]
    assert worst([begun.view(4, 8, 12, 12)], bound) <= 1
    assert worst([F.conv2d(x, weight, bias.bfloat16().float(), padding=1)], bound) > 100
    assert worst([F.conv2d(x, weight, None, padding=1)], bound) > 100


@pytest.mark.parametrize("run", [F.linear, lambda x, w, b: torch.addmm(b, x, w.t())], ids=["linear", "addmm"])
def test_a_product_may_begin_its_sum_with_the_bias(run: Any) -> None:
    generator = torch.Generator().manual_seed(4)
    x, weight = (torch.rand(24, 300, generator=generator) * 2.0**-10, torch.randn(40, 300, generator=generator) / 17)
    bias = torch.randn(40, generator=generator)
    bound = bound_of(run, [x, weight, bias])
    begun = bias.expand(24, 40)
    for k in range(300):
        begun = begun + x[:, k : k + 1] * weight[:, k]
    assert worst([begun], bound) <= 1
    for other in (bias.bfloat16().float(), torch.zeros(40)):
        assert worst([F.linear(x, weight, other)], bound) > 50


SUMS_OF_OPS: dict[str, Callable[..., Tensor]] = {
    "in an op of its own": lambda x, w, b: x @ w.t() + b,
    "before the product": lambda x, w, b: b + x @ w.t(),
    "less the product": lambda x, w, b: -(-b - x @ w.t()),
    "in place": lambda x, w, b: (x @ w.t()).add_(b),
    "of three dimensions": lambda x, w, b: (x.view(4, 6, 300) @ w.t() + b).view(24, 40),
    "moved in between": lambda x, w, b: (w @ x.t()).t().contiguous() + b,
    "behind another one": lambda x, w, b: F.linear(x, w, torch.zeros_like(b)) + b,
    "of a convolution": lambda x, w, b: (F.conv1d(x.unsqueeze(2), w.unsqueeze(2)) + b.view(1, 40, 1)).view(24, 40),
}


@pytest.mark.parametrize("run", SUMS_OF_OPS.values(), ids=SUMS_OF_OPS)
def test_a_sum_of_ops_may_begin_with_what_is_added_to_it(run: Callable[..., Tensor]) -> None:
    """And nothing else is right there: neither a coarser addend nor none, nor the products' own errors."""
    generator = torch.Generator().manual_seed(4)
    x, weight = (torch.rand(24, 300, generator=generator) * 2.0**-10, torch.randn(40, 300, generator=generator) / 17)
    bias = torch.randn(40, generator=generator)
    bound = bound_of(run, [x, weight, bias])
    begun = bias.expand(24, 40)
    for k in range(300):
        begun = begun + x[:, k : k + 1] * weight[:, k]
    assert worst([begun], bound) <= 1
    for other in (bias.bfloat16().float(), torch.zeros(40)):
        assert worst([run(x, weight, other)], bound) > 50
    assert worst([run(x, weight.bfloat16().float(), bias)], bound_of(run, [x, weight, torch.zeros(40)])) > 10


@pytest.mark.parametrize(
    "change",
    [lambda y: y.clone().mul_(1.0), lambda y: y.relu(), lambda y: y * 2 / 2],
    ids=["written", "bent", "scaled"],
)
def test_what_is_no_sum_any_more_does_not_begin_with_an_addend(change: Callable[[Tensor], Tensor]) -> None:
    generator = torch.Generator().manual_seed(4)
    x, weight = torch.rand(24, 300, generator=generator), torch.rand(40, 300, generator=generator)
    bias = torch.full((40,), 1e6)
    found, plain = (bound_of(run, [x, weight, bias]).outputs[0].max() for run in (
        lambda x, w, b: change(x @ w.t()) + b, lambda x, w, b: x @ w.t() + b
    ))  # fmt: skip
    assert found * 4 < plain


@pytest.mark.parametrize(
    "run", [lambda q, k, m: q @ k + m, lambda q, k, m: torch.baddbmm(m, q, k)], ids=["+", "baddbmm"]
)
def test_a_mask_of_infinities_leaves_the_bound_of_others(run: Callable[..., Tensor]) -> None:
    q, k, mask = torch.randn(2, 48, 32), torch.randn(2, 32, 48), torch.full((48, 48), -float("inf")).triu(1)
    bound = bound_of(lambda *given: torch.softmax(run(*given), -1), [q, k, mask.expand(2, 48, 48)])
    assert worst([torch.softmax(q @ k + mask, -1)], bound) <= 1
    assert worst([torch.softmax(q.half().float() @ k.half().float() + mask, -1)], bound) > 5


class Kept(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor, many: list[Tensor]) -> Any:
        y = x.tanh()
        return y, y[1:], y * 1.0, x.view(-1), many[0], self.mean


def test_it_is_said_which_answers_lie_in_one_memory_and_which_in_nobodys_new() -> None:
    bound = bound_of(Kept(), [torch.randn(3, 4), [torch.randn(2)]])
    assert bound.shared == ((0, 1),) and bound.lent == (3, 4, 5)
