"""What ``h200_ops.py`` times, and beside whom: groups of lines, each made when its turn comes.

What an op is timed on, its op package says: the contract's cases for a GPU, ``baselines.py`` and what users write.
Beside those stand the tables below: products, attention, packed sequences, blocks and AdamW, in sizes that no
verification tries or against baselines that no op package has. A line more is a line in one of them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

import kernelworks as kw
from kernelworks import contract
from kernelworks.contract.tensors import leaves
from kernelworks.dispatch.op import OPS, Op
from kernelworks.measure.bench import baselines
from kernelworks.measure.roofline.kernel_time import count_values
from kernelworks.ops.attention.attention.baselines import by_flex as attention_by_flex
from kernelworks.ops.attention.block_sparse_attention.baselines import by_flex as of_blocks
from kernelworks.ops.attention.varlen_attn.baselines import by_flex as of_sequences

__all__ = ["BOTH", "FILLING", "Asked", "Call", "Case", "Group", "groups", "of_contract", "small_calls"]

BF16 = torch.bfloat16
BOTH = "forward and backward"
ONLY_READS = 1 / 16  # of what is read: who writes less is no copy
PAIRED = 4096  # rows, all pairs of which torch's gradients hold: 4 GiB of 64 dimensions
FILLING = 8 << 20  # bytes: with fewer a GPU is done before its host is

Call = Callable[[], Any]


@dataclass
class Case:
    """One line of the table. ``bytes`` or ``flop`` is what the op cannot do without; what is reached is a share of a
    copy's rate (``of_peak``: of the copy of 1 GiB, which is what a kernel that only reads is held to) or TFLOP/s."""

    op: str
    pass_: str
    shape: str
    arms: dict[str, Call]
    truth: Call
    bytes: int = 0
    flop: float = 0.0
    of_peak: bool = False
    asked: tuple[Any, ...] = ()  # the forward's arguments, by which the dispatcher's choice is looked up
    wanted: tuple[str, ...] = ()  # whose gradients a backward makes; all that there are, where none is named


@dataclass(frozen=True)
class Group:
    """The lines that share their inputs. ``make`` makes those; ``small`` ones are timed by the host's clock."""

    op: str
    name: str
    make: Callable[[], Iterator[Case]]
    small: bool = False

    def __str__(self) -> str:
        return f"{self.op} {self.name}"


def random(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


@functools.cache
def compiled(op: str) -> Callable[..., Any]:
    """torch.compile of what users write for an op, its arguments by place. One function for a worker's life: a line
    that is made again finds what was compiled for its shapes."""
    return torch.compile(written(op), dynamic=False)


@functools.cache
def written(op: str) -> Callable[..., Any]:
    """What users write for an op, its arguments by place."""
    eager, names = baselines.eager_baseline(OPS[op]), OPS[op].passes["forward"].names
    return lambda *given: eager(**dict(zip(names, given, strict=True)))


def when_called(make: Callable[[], Call]) -> Call:
    """What ``make`` makes, made at the first call: what fails there fails one variant, not those behind it."""
    made = functools.cache(make)
    return lambda: made()()


def backward_of(function: Callable[..., Any], *inputs: Tensor) -> Call:
    """Only the backward of ``function(*inputs)``, for one fixed gradient of each output that has one (positions and
    indices have none). An input that torch makes no gradient of gets none."""
    own = [x.detach().clone().requires_grad_() for x in inputs]
    result = function(*own)
    outputs = [o for o in ([result] if isinstance(result, Tensor) else result) if o.requires_grad]
    device = outputs[0].device
    generator = torch.Generator(device).manual_seed(3)
    grads = [torch.randn(o.shape, device=device, generator=generator).to(o.dtype) for o in outputs]
    return lambda: torch.autograd.grad(outputs, own, grads, retain_graph=True, allow_unused=True)


# ---------------------------------------------------------------- products

READING = ((1, 4096, 4096), (1, 14336, 4096), (1, 28672, 8192), (4, 5120, 5120))  # M, N, K: as quick as w is read
MULTIPLYING = (
    (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (4096, 28672, 4096), (8192, 4096, 14336),
    (16384, 4096, 4096), (64, 14336, 4096),
)  # fmt: skip


def product(m: int, n: int, k: int, reads: bool) -> Iterator[Case]:
    x, w = random(m, k), random(n, k)
    exact = torch.double if reads else torch.float
    what: dict[str, Any] = {"bytes": w.nbytes, "of_peak": True} if reads else {"flop": 2.0 * m * n * k}
    yield Case(
        "linear", "forward", f"{m}x{n}x{k}", {"eager": lambda: F.linear(x, w), "ours": lambda: kw.linear(x, w)},
        lambda: F.linear(x.to(exact), w.to(exact)), asked=(x, w, None), **what,
    )  # fmt: skip


# ---------------------------------------------------------------- attention

# batch, heads and length of one query beside 8 heads of keys
DECODE = ((1, 32, 8192), (32, 32, 4096), (128, 32, 2048), (1, 32, 131072), (16, 40, 3000))
# batch, heads, key-value heads, length, head_dim, causal; those before LONG tire no reader of a table with a backward
PREFILL = (
    (4, 16, 16, 4096, 128, True), (1, 16, 16, 16384, 128, True), (2, 32, 8, 8192, 128, True),
    (4, 16, 16, 4096, 128, False), (1, 16, 16, 16384, 128, False), (2, 32, 8, 8192, 128, False),
    (4, 16, 16, 4096, 64, True), (4, 16, 16, 4096, 64, False), (2, 16, 16, 2048, 64, True),
    (4, 8, 4, 4096, 256, True), (4, 8, 4, 4096, 256, False),
    (64, 12, 12, 256, 64, False), (64, 16, 16, 197, 64, False), (8, 12, 12, 1500, 64, False),
)  # fmt: skip
SHORT = 2048  # up to here torch as it is called by default is benchmarked too
# name, batch, heads, key-value heads, length, head_dim, what of attention's arguments is given: beside FlexAttention
SPECIAL: tuple[tuple[str, int, int, int, int, int, dict[str, Any]], ...] = (
    ("window 1024", 1, 16, 16, 16384, 128, {"window": 1024}),
    ("softcap 50", 4, 16, 16, 4096, 128, {"softcap": 50.0}),
    ("sinks", 4, 16, 16, 4096, 64, {"sinks": True}),
)  # fmt: skip
QKV = ("q", "k", "v")
PLAIN: dict[str, Any] = {
    "causal": None, "window": None, "scale": None, "mask": None, "with_lse": False, "softcap": None, "sinks": None,
}  # fmt: skip


def no_peer(*given: Tensor) -> Tensor:
    raise RuntimeError("the peer has no such call")


def torchs(backend: SDPBackend, **how: Any) -> Callable[..., Tensor]:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, **how)

    return run


def decode(b: int, h: int, length: int) -> Iterator[Case]:
    q, k, v = random(b, h, 1, 128), random(b, 8, length, 128), random(b, 8, length, 128)
    arms: dict[str, Call] = {
        "flash2": lambda: torchs(SDPBackend.FLASH_ATTENTION, enable_gqa=True)(q, k, v),
        "cudnn": lambda: torchs(SDPBackend.CUDNN_ATTENTION, enable_gqa=True)(q, k, v),
        "ours": lambda: kw.attention(q, k, v),
    }
    yield Case(
        "attention", "decode", f"{b}x{length}", arms,
        lambda: F.scaled_dot_product_attention(q.float(), k.float(), v.float(), enable_gqa=True),
        bytes=k.nbytes + v.nbytes, of_peak=True, asked=(q, k, v, *PLAIN.values()),
    )  # fmt: skip


def both_passes(
    shape: str, tensors: tuple[Tensor, ...], functions: dict[str, Callable[..., Any]], given: dict[str, Any]
) -> Iterator[Case]:
    """Forward and backward of attention, ours called with ``given``; the truth is FlashAttention 2, or the first."""
    args = PLAIN | given
    asked = (*tensors[:3], *args.values())
    op = OPS["attention"]
    cost = op.contract.cost(op.request("forward", asked))
    functions = functions | {"ours": lambda q, k, v: kw.attention(q, k, v, **given)}
    want = functions.pop("truth", None) or next(iter(functions.values()))
    forward = {n: functools.partial(f, *tensors[:3]) for n, f in functions.items()}
    truth = functools.partial(want, *tensors[:3])
    yield Case("attention", "forward", shape, forward, truth, flop=cost.flop, asked=asked)
    backward = {n: when_called(functools.partial(backward_of, f, *tensors[:3])) for n, f in functions.items()}
    truth = when_called(functools.partial(backward_of, want, *tensors[:3]))
    yield Case("attention", "backward", shape, backward, truth, flop=2.5 * cost.flop, asked=asked, wanted=QKV)


def prefill(b: int, h: int, kv: int, length: int, dim: int, causal: bool) -> Iterator[Case]:
    q, k, v = random(b, h, length, dim), random(b, kv, length, dim), random(b, kv, length, dim)
    how = {"is_causal": causal, "enable_gqa": h != kv}
    peers: dict[str, Callable[..., Any]] = {
        "truth": torchs(SDPBackend.FLASH_ATTENTION, **how), "cudnn": torchs(SDPBackend.CUDNN_ATTENTION, **how),
    }  # fmt: skip
    if length <= SHORT:
        peers["eager"] = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **how)
    heads = f"{h}" if h == kv else f"{h}({kv})"
    shape = f"{'causal' if causal else 'full'} {b}x{heads}x{length}x{dim}"
    yield from both_passes(shape, (q, k, v), peers, {"causal": "top_left" if causal else None})


@functools.cache
def flex_of(name: str, b: int, h: int, kv: int, length: int, dim: int) -> tuple[dict[str, Any], Callable[..., Any]]:
    """What is given to ours, and FlexAttention with the same, compiled once."""
    given = {"causal": "top_left"} | next(told for named, *_, told in SPECIAL if named == name)
    if given.get("sinks"):
        given["sinks"] = random(h)
    shapes = {"q": random(b, h, length, dim), "k": random(b, kv, length, dim)}
    flex = attention_by_flex({**PLAIN, **given, **shapes})
    assert flex is not None
    return given, flex


def special(name: str, b: int, h: int, kv: int, length: int, dim: int) -> Iterator[Case]:
    """What scaled_dot_product_attention has no word for, causal, beside FlexAttention."""
    q, k, v = random(b, h, length, dim), random(b, kv, length, dim), random(b, kv, length, dim)
    given, flex = flex_of(name, b, h, kv, length, dim)
    yield from both_passes(f"{name} {b}x{h}x{length}x{dim}", (q, k, v), {"flex": flex}, given)


FLEX = {"varlen_attn": of_sequences, "block_sparse_attention": of_blocks}


@functools.cache
def sparse_flex(name: str, case: str) -> Callable[..., Any] | None:
    op = OPS[name]
    return FLEX[name](Asked(op, next(c for c in op.contract.device_bench_cases if c.name == case)).args)


def sparse(op: Op, case: contract.Case) -> Iterator[Case]:
    """Sequences of many lengths, or blocks: torch's function for them, FlexAttention with the same mask, ours."""
    flex = sparse_flex(op.name, case.name) or no_peer
    asked = Asked(op, case)
    (q, k, v), rest = asked.given[:3], asked.given[3:]
    flop = op.contract.cost(count_values(op, op.request("forward", asked.given), asked.given)).flop
    peers: dict[str, Callable[..., Any]] = {
        "torch": lambda q, k, v: asked.eager(q, k, v, *rest), "flex": lambda q, k, v: flex(q, k, v),
        "ours": lambda q, k, v: op(q, k, v, *rest),
    }  # fmt: skip
    wide = [t.float() for t in (q, k, v)]
    forward = {n: functools.partial(f, q, k, v) for n, f in peers.items()}
    truth = functools.partial(peers["torch"], *wide)
    yield Case(op.name, "forward", case.name, forward, truth, flop=flop, asked=asked.given)
    backward = {n: when_called(functools.partial(backward_of, f, q, k, v)) for n, f in peers.items()}
    truth = when_called(functools.partial(backward_of, peers["torch"], *wide))
    yield Case(op.name, "backward", case.name, backward, truth, flop=2.5 * flop, asked=asked.given)


# ---------------------------------------------------------------- optimisers


def optimizers() -> Iterator[Case]:
    params = [torch.nn.Parameter(random(4096, 4096, dtype=torch.float32)) for _ in range(16)]
    for p in params:
        p.grad = random(4096, 4096, dtype=torch.float32)
    how = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    fused, foreach = (torch.optim.AdamW(params, **how, **{kind: True}) for kind in ("fused", "foreach"))
    grads = [p.grad for p in params]
    values = [p.detach() for p in params]
    first, second = ([torch.zeros_like(p) for p in values] for _ in range(2))
    arms = {
        "eager": foreach.step, "fused": fused.step,
        "ours": lambda: kw.adamw_(
            values, grads, first, second, step=10, lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1
        ),
    }  # fmt: skip
    moved = 7 * sum(p.nbytes for p in values)  # reads parameter, gradient and two moments; writes all but the gradient
    asked = (values, grads, first, second, 10, 1e-3, 0.9, 0.95, 1e-8, 0.1, False)
    yield Case("adamw_", "forward", "16 of 4096x4096 fp32", arms, lambda: None, bytes=moved, of_peak=True, asked=asked)


# ---------------------------------------------------------------- losses

LOSSES = ((4096, 128256), (8192, 50304))  # of logits


def loss(m: int, n: int) -> Iterator[Case]:
    """Loss and gradient together, as a training step has them: a row may make both at once."""
    op, args = OPS["cross_entropy"], {"logits": random(m, n), "target": torch.randint(0, n, (m,), device="cuda")}
    logits = args["logits"].requires_grad_()
    wide = logits.detach().float().requires_grad_()
    given = tuple({"ignore_index": -100, "reduction": "mean", **args}.get(name) for name in op.passes["forward"].names)
    eager = functools.partial(F.cross_entropy, target=args["target"])
    whole = compiled(op.name)
    functions = {
        "eager": eager, "compile": lambda x: whole(x, *given[1:]), "ours": lambda x: kw.cross_entropy(x, args["target"])
    }  # fmt: skip

    def step(function: Callable[..., Any], x: Tensor) -> Call:
        return lambda: torch.autograd.grad(function(x), x)

    yield Case(
        op.name, BOTH, f"{m}x{n}", {name: step(f, logits) for name, f in functions.items()}, step(eager, wide),
        bytes=2 * logits.nbytes, asked=given,
    )  # fmt: skip


# ---------------------------------------------------------------- by the op packages


def gradient_request(op: Op, training: contract.Request) -> contract.Request:
    """The backward of a training call, with those of the forward's arguments that it does not take: its contract may
    count by them."""
    request = op.backward_of(training)
    return dataclasses.replace(request, args={**training.args, **request.args})


@dataclass
class Asked:
    """An op on one of its contract's cases: the arguments, what users write and ours on them, and which of them have
    gradients."""

    op: Op
    case: contract.Case
    device: str = "cuda"

    def __post_init__(self) -> None:
        with torch.device(self.device):
            self.args = self.case.make(torch.Generator(self.device).manual_seed(0), timed_dtype(self.case))
        self.names = self.op.passes["forward"].names
        self.given = tuple(self.args.get(name) for name in self.names)
        wants = self.op.contract.differentiable
        self.places = [i for i, n in enumerate(self.names) if n in wants and isinstance(self.given[i], Tensor)]

    def eager(self, *given: Any) -> Any:
        return written(self.op.name)(*given)

    def back(self, function: Callable[..., Any], given: tuple[Any, ...]) -> Call:
        """The backward of a function with these arguments."""

        def of(*inputs: Tensor) -> Any:
            at = dict(zip(self.places, inputs, strict=True))
            return function(*(at.get(i, v) for i, v in enumerate(given)))

        return backward_of(of, *(given[i] for i in self.places))

    def need(self, pass_: str) -> dict[str, Any]:
        """What a pass cannot do without, as ``Case`` has it."""
        op, wanted = self.op, tuple(self.names[i] for i in self.places)
        request = op.request("forward", self.given)
        if pass_ == "backward":
            request = gradient_request(op, op.request("training", self.given, wanted))
        cost = op.contract.cost(count_values(op, request, self.given))
        if op.contract.arithmetic == "products":
            return {"flop": cost.flop}
        return {"bytes": int(cost.bytes), "of_peak": cost.bytes_written < ONLY_READS * cost.bytes_read}


def timed_dtype(case: contract.Case) -> torch.dtype:
    """bfloat16, of a case that has it."""
    return BF16 if BF16 in case.dtypes else case.dtypes[0]


@functools.cache
def moved(case: contract.Case) -> int:
    """The bytes of a case's tensors, none of which is made."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        args = case.make(torch.Generator().manual_seed(0), timed_dtype(case))
        return sum(t.nbytes for t in leaves(tuple(args.values())))


def of_contract(asked: Asked) -> Iterator[Case]:
    """An op's passes: what users write, torch.compile of it, baselines and ours. A backward's forwards are run when it
    is first called."""
    op, given, shape = asked.op, asked.given, asked.case.name
    eager = asked.eager
    functions = {"eager": eager, "ours": op} | (
        {"compile": compiled(op.name)} if baselines.has_inductor_kernel(op) else {}
    )
    made = {n: make(asked.args) for n, make in baselines.library_baselines(op, asked.device).items()}
    arms: dict[str, Call] = {name: (lambda f=f: f(*given)) for name, f in functions.items()}
    arms |= {name: call for name, call in made.items() if call is not None}
    wide = tuple(v.float() if isinstance(v, Tensor) and v.is_floating_point() else v for v in given)
    yield Case(op.name, "forward", shape, arms, lambda: eager(*wide), asked=given, **asked.need("forward"))
    if "backward" in op.passes:
        arms = {name: when_called(functools.partial(asked.back, f, given)) for name, f in functions.items()}
        truth = when_called(functools.partial(asked.back, eager, wide))
        yield Case(op.name, "backward", shape, arms, truth, asked=given, **asked.need("backward"))


def by_room(op: Op, case: contract.Case) -> Iterator[Case]:
    """What fills a GPU; a gradient that is a view is no line of a table. Gradients whose checks take pieces of rows are
    timed on fewer rows: torch's need all pairs of them at once."""
    pairs = bool(op.contract.pieces)
    for made in of_contract(Asked(op, case)):
        if (made.flop or made.bytes >= FILLING) and not (pairs and made.pass_ == "backward"):
            yield made
    if pairs:
        yield from (made for made in of_contract(Asked(op, cut_rows(case))) if made.pass_ == "backward")


def cut_rows(case: contract.Case) -> contract.Case:
    """The case with at most PAIRED rows of each matrix."""

    def make(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
        given = case.make(generator, dtype)
        return {n: v[:PAIRED] if isinstance(v, Tensor) and v.dim() == 2 else v for n, v in given.items()}

    return dataclasses.replace(case, name=f"{case.name}, at most {PAIRED} rows", make=make)


def groups() -> list[Group]:
    """All of them, in the order of the table. An op whose sizes stand above is not timed by its op package."""
    some = functools.partial
    found = [Group("linear", f"{m}x{n}x{k}", some(product, m, n, k, True)) for m, n, k in READING]
    found += [Group("linear", f"{m}x{n}x{k}", some(product, m, n, k, False)) for m, n, k in MULTIPLYING]
    found += [Group("attention", f"decode {b}x{n}", some(decode, b, h, n)) for b, h, n in DECODE]
    found += [Group("attention", "x".join(map(str, line)), some(prefill, *line)) for line in PREFILL]
    found += [Group("attention", line[0], some(special, *line[:6])) for line in SPECIAL]
    for op in (OPS[name] for name in FLEX):
        found += [Group(op.name, c.name, some(sparse, op, c)) for c in op.contract.device_bench_cases]
    found.append(Group("adamw_", "16 of 4096x4096", optimizers))
    named = {group.op for group in found}
    found += [Group("cross_entropy", f"both {m}x{n}", some(loss, m, n)) for m, n in LOSSES]
    for op in (OPS[name] for name in OPS):
        for case in _timed_cases(op):
            if op.name not in named and moved(case) >= FILLING:
                found.append(Group(op.name, case.name, some(by_room, op, case)))
    return found


def small_calls() -> list[Group]:
    """What the host's time limits: one line an op, both passes in it."""
    found = []
    for op in (OPS[name] for name in OPS):
        for case in _timed_cases(op):
            if moved(case) < FILLING:
                found.append(Group(op.name, case.name, functools.partial(small_call, op, case), small=True))
    return found


def small_call(op: Op, case: contract.Case) -> Iterator[Case]:
    """The forward and, where there is one, the backward, ours beside what users write."""
    asked = Asked(op, case)
    pair: dict[str, Callable[..., Any]] = {"torch": asked.eager, "ours": op}
    arms: dict[str, Call] = {n: functools.partial(f, *asked.given) for n, f in pair.items()}
    yield Case(op.name, "forward", case.name, arms, lambda: None, asked=asked.given)
    if "backward" in op.passes:
        arms = {n: when_called(functools.partial(asked.back, f, asked.given)) for n, f in pair.items()}
        yield Case(op.name, "backward", case.name, arms, lambda: None, asked=asked.given)


def _timed_cases(op: Op) -> Iterable[contract.Case]:
    """Those with bfloat16; all, of an op whose none has it."""
    if op.contract.mutates or not any(kernel.device == "cuda" for kernel in op.kernels):
        return ()
    cases = op.contract.device_bench_cases or op.contract.bench_cases
    narrow = [case for case in cases if BF16 in case.dtypes]
    return narrow or cases
