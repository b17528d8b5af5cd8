"""A swapped model takes whatever the model took, and refuses what it refused in the same words."""

from __future__ import annotations

import copy
import os
import re
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernelworks.nn.swap import swap

warnings.filterwarnings("ignore", message=".*(nested tensors|Sparse CSR|jit.trace|jit.script|torch.jit).*")


class Written(nn.Module):
    """Calls of torch.nn.functional, a norm in arithmetic, and a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.w1, self.w3 = nn.Parameter(torch.rand(8)), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        x = F.silu(self.w1(x)) * self.w3(x)
        x = F.gelu(x, approximate="tanh") * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight
        return F.softmax(F.rms_norm(x, self.weight.shape, self.weight, 1e-5), dim=-1)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.rand(8)), 1e-5

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class Attends(nn.Module):
    def forward(self, x):
        q = x.reshape(1, -1, 2, 4).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q, is_causal=True)


class Mine(torch.Tensor):
    """A subclass that keeps itself."""


MODULES = {
    "linear": lambda: nn.Linear(8, 8),
    "no bias": lambda: nn.Linear(8, 8, bias=False),
    "layer norm": lambda: nn.LayerNorm(8),
    "layer norm of two": lambda: nn.LayerNorm((2, 8)),
    "layer norm, plain": lambda: nn.LayerNorm(8, elementwise_affine=False),
    "layer norm, no bias": lambda: nn.LayerNorm(8, bias=False),
    "rms norm": lambda: nn.RMSNorm(8, eps=1e-5),
    "rms norm, no eps": lambda: nn.RMSNorm(8),
    "gelu": nn.GELU,
    "gelu tanh": lambda: nn.GELU("tanh"),
    "softmax": lambda: nn.Softmax(-1),
    "softmax over the first": lambda: nn.Softmax(0),
    "softmax of no dimension": nn.Softmax,
    "written": Written,
    "norm": Norm,
    "attention": Attends,
    "all": lambda: nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), Norm(), Written()),
}


def outcome(run):
    """What a call gives, or the error that it raises."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run()
    except Exception as error:
        return type(error), str(error)


def flat(value):
    if isinstance(value, torch.Tensor):
        value = value.detach()
        if value.is_nested:
            return [part for t in value.unbind() for part in flat(t)]
        return [value.to_dense() if value.layout is not torch.strided else value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [leaf for v in value for leaf in flat(v)]
    return [value]


def alike(got, want):
    if isinstance(want, tuple) and isinstance(want[0], type):
        assert got[0] is want[0]
        assert re.sub(r"\bj\d+", "j", got[1]) == re.sub(r"\bj\d+", "j", want[1])  # torch counts its ragged sizes
        return
    for a, b in zip(flat(got), flat(want), strict=True):
        if isinstance(b, torch.Tensor):
            assert type(a) is type(b) and a.dtype is b.dtype and a.shape == b.shape and a.device == b.device
            if not b.is_meta:
                exact = not b.dtype.is_floating_point and not b.dtype.is_complex
                eps = 0.0 if exact else torch.finfo(b.dtype).eps
                torch.testing.assert_close(a, b, rtol=64 * eps, atol=64 * eps, equal_nan=True)
        else:
            assert a == b


def seeded(module, run):
    torch.manual_seed(0)
    return outcome(lambda: run(module))


def both(module, *runs, more=False):
    """Runs the same on the module as it is and swapped, which may also do ``more``: what torch has no derivative of."""
    wanted = [seeded(module, run) for run in runs]
    with swap(module, verbose=False):
        found = [seeded(module, run) for run in runs]
    for got, want in zip(found, wanted, strict=True):
        if not (more and "derivative" in str(want) and isinstance(want, tuple)):
            alike(got, want)


X = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
INPUTS = {
    "float64": lambda: X.double(),
    "bfloat16": lambda: X.bfloat16(),
    "complex": lambda: X.to(torch.cfloat),
    "integers": lambda: X.long(),
    "booleans": lambda: X > 0,
    "no rows": lambda: X[:0],
    "no elements at all": lambda: torch.zeros(0),
    "one row": lambda: X[0],
    "a number": lambda: torch.tensor(1.0),
    "a Python number": lambda: 1.0,
    "a list": lambda: [[1.0] * 8],
    "nothing": lambda: None,
    "five dimensions": lambda: X.expand(2, 1, 3, 2, 8),
    "strided": lambda: torch.randn(8, 2).t(),
    "wrong width": lambda: torch.randn(2, 7),
    "a negative bit": lambda: torch._neg_view(X),
    "part of a complex": lambda: torch.complex(X, X).conj().imag,
    "meta": lambda: X.to("meta"),
    "nested": lambda: torch.nested.nested_tensor([X[:1], X]),
    "jagged": lambda: torch.nested.nested_tensor([X[:1], X], layout=torch.jagged),
    "sparse": lambda: X.to_sparse(),
    "sparse rows": lambda: X.to_sparse_csr(),
    "mkldnn": lambda: X.to_mkldnn(),
    "zeros without memory": lambda: torch._efficientzerotensor((2, 8)),
    "a parameter": lambda: nn.Parameter(X),
    "a subclass": lambda: X.as_subclass(Mine),
    "a quantized one": lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.quint8),
    "in inference mode": lambda: torch.inference_mode()(lambda: X.clone())(),
}


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES.keys())
def test_inputs_of_every_kind(make) -> None:
    torch.manual_seed(0)
    module = make()
    # torch's own answer of attention to zeros without memory changes from call to call
    inputs = [give for name, give in INPUTS.items() if not (isinstance(module, Attends) and "without memory" in name)]
    both(module, *(lambda m, give=give: m(give()) for give in inputs))
    with torch.no_grad():
        both(module, *(lambda m, give=give: m(give()) for give in inputs))
    module.double()
    both(module, lambda m: m(X.double()), lambda m: m(X))


def test_packed_sequences_and_keywords() -> None:
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 8), torch.randn(2, 8)])
    for make in MODULES.values():
        module = make()
        both(
            module, lambda m: m(packed), lambda m: m(packed.data), lambda m: m(input=X), lambda m: m(x=X),
            lambda m: m(X, X), lambda m: m(),
        )  # fmt: skip


def with_weight(made):
    module = nn.Linear(8, 8)
    weight = made(module.weight.detach())
    module.weight = nn.Parameter(weight, requires_grad=False) if isinstance(weight, torch.Tensor) else weight
    return module


BIASES = ((), (1,), (8,), (1, 8), (2, 8), (2, 1), (7,), (3, 8), (1, 1, 8))


@pytest.mark.parametrize("shape", BIASES)
@pytest.mark.parametrize("gradients", [False, True])
def test_biases_of_every_shape(shape, gradients) -> None:
    module = nn.Linear(8, 8)
    module.bias = nn.Parameter(torch.randn(shape))
    with torch.set_grad_enabled(gradients):
        both(module, *(lambda m, x=x: m(x) for x in (X, X[0], X[None])))
    for op in ("layer_norm", "rms_norm"):
        norm = nn.LayerNorm(8) if op == "layer_norm" else nn.RMSNorm(8, eps=1e-5)
        for name in dict(norm.named_parameters()):
            norm = copy.deepcopy(norm)
            setattr(norm, name, nn.Parameter(torch.randn(shape)))
            both(norm, lambda m: m(X))


WEIGHTS = {
    "sparse rows": lambda w: w.to_sparse_csr(),
    "sparse": lambda w: w.to_sparse(),
    "a vector": lambda w: w[0],
    "a batch": lambda w: w[None],
    "float64": lambda w: w.double(),
    "bfloat16": lambda w: w.bfloat16(),
    "another width": lambda w: w[:, :7],
    "transposed": lambda w: w.t(),
    "expanded": lambda w: w[:1].expand(8, 8),
    "no rows": lambda w: w[:0],
    "a negative bit": lambda w: torch._neg_view(w),
}


@pytest.mark.parametrize("made", WEIGHTS.values(), ids=WEIGHTS.keys())
def test_weights_of_every_kind(made) -> None:
    module = with_weight(made)
    both(module, lambda m: m(X))
    with torch.no_grad():
        both(module, lambda m: m(X))
    module.bias = None
    both(module, lambda m: m(X))
    both(module, lambda m: m(X.double()))


def test_weights_that_are_computed() -> None:
    import torch.nn.utils.prune as prune

    for change in (
        lambda m: nn.utils.parametrizations.weight_norm(m),
        lambda m: nn.utils.parametrizations.spectral_norm(m),
        lambda m: nn.utils.parametrizations.orthogonal(m),
        lambda m: prune.random_unstructured(m, "weight", amount=0.3),
        lambda m: prune.l1_unstructured(m, "bias", amount=0.3),
        lambda m: nn.utils.weight_norm(m) if hasattr(nn.utils, "weight_norm") else m,
    ):
        before, during = nn.Linear(8, 8), nn.Linear(8, 8)
        change(before)
        before.eval()
        both(before, lambda m: m(X))
        with swap(during, verbose=False) as swapped:
            change(during)
            during.eval()
            got = during(X)
            swapped.undo()
            alike(got, during(X))


# ---------------------------------------------------------------- what torch does with a model


def loss(m, x):
    return m(x).square().sum()


TRANSFORMS = {
    "grad": lambda m: torch.func.grad(lambda x: loss(m, x))(X),
    "of parameters": lambda m: torch.func.grad(lambda p: torch.func.functional_call(m, p, (X,)).square().sum())(
        dict(m.named_parameters())
    ),
    "grad of grad": lambda m: torch.func.grad(lambda x: torch.func.grad(lambda y: loss(m, y))(x).sum())(X),
    "jvp": lambda m: torch.func.jvp(m, (X,), (X,)),
    "vjp": lambda m: torch.func.vjp(m, X)[1](torch.ones_like(m(X))),
    "jacrev": lambda m: torch.func.jacrev(m)(X),
    "jacfwd": lambda m: torch.func.jacfwd(m)(X),
    "hessian": lambda m: torch.func.hessian(lambda x: loss(m, x))(X[:1]),
    "vmap": lambda m: torch.vmap(m)(X.expand(3, 2, 8)),
    "vmap of grad": lambda m: torch.vmap(torch.func.grad(lambda x: loss(m, x)))(X.expand(3, 2, 8)),
    "create_graph": lambda m: _twice(m),
    "dual numbers": lambda m: _dual(m),
    "make_fx": lambda m: torch.fx.experimental.proxy_tensor.make_fx(lambda x: m(x))(X)(X + 1),
    "symbolic trace": lambda m: torch.fx.symbolic_trace(m)(X + 1),
    "jit.trace": lambda m: torch.jit.trace(m, X, check_trace=False)(X + 1),
    "jit.trace without gradients": lambda m: _without_gradients(
        lambda: torch.jit.trace(m, X, check_trace=False)(X + 1)
    ),
    "jit.script": lambda m: torch.jit.script(m)(X + 1),
    "export": lambda m: torch.export.export(m, (X,), strict=False).module()(X + 1),
    "functional_call": lambda m: torch.func.functional_call(m, {n: p * 2 for n, p in m.named_parameters()}, (X,)),
    "autocast": lambda m: _under(torch.autocast("cpu", torch.bfloat16), m),
    "inference mode": lambda m: _under(torch.inference_mode(), m).clone(),
    "checkpoint": lambda m: torch.utils.checkpoint.checkpoint(m, X.clone().requires_grad_(), use_reentrant=False),
    "anomaly": lambda m: _under(torch.autograd.set_detect_anomaly(True), m),
    "saved on the way": lambda m: _under(torch.autograd.graph.save_on_cpu(), m),
    "fake tensors": lambda m: _fake(m),
    "a default device": lambda m: _under(torch.device("cpu"), m),
    "half": lambda m: copy.deepcopy(m).half()(X.half()),
    "quantized": lambda m: torch.ao.quantization.quantize_dynamic(m, {nn.Linear})(X),
}


def _twice(m):
    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(loss(m, x), x, create_graph=True)
    return torch.autograd.grad(first.square().sum(), x)


def _dual(m):
    with torch.autograd.forward_ad.dual_level():
        out = m(torch.autograd.forward_ad.make_dual(X, X + 1))
        return tuple(torch.autograd.forward_ad.unpack_dual(out))


def _under(context, m):
    with context:
        return m(X)


def _without_gradients(run):
    with torch.no_grad():
        return run()


def _fake(m):
    with torch._subclasses.fake_tensor.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return m(mode.from_tensor(X)).shape


@pytest.mark.parametrize("make", ["linear", "layer norm", "rms norm", "gelu", "written", "norm", "attention", "all"])
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_what_torch_does_with_a_model(transform, make) -> None:
    torch.manual_seed(0)
    module = MODULES[make]().eval()
    parts = list(module.modules())
    both(module, transform, more=make == "attention")
    assert all(a is b for a, b in zip(parts, module.modules(), strict=True))


def test_a_scripted_model_goes_into_a_file(tmp_path) -> None:
    module = MODULES["all"]().eval()
    want, parts = module(X), list(module.modules())
    with swap(module, verbose=False):
        torch.jit.script(module).save(tmp_path / "scripted.pt")
        torch.jit.trace(module, X, check_trace=False).save(tmp_path / "traced.pt")
        assert all(a is b for a, b in zip(parts, module.modules(), strict=True))
        torch.testing.assert_close(module(X), want)
    for name in ("scripted.pt", "traced.pt"):
        torch.testing.assert_close(torch.jit.load(tmp_path / name)(X), want)
        torch.testing.assert_close(torch.jit.load(tmp_path / name)(X + 1), module(X + 1))
