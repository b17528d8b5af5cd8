"""How the GPU rows stand against a device copy of the same bytes and the strongest peers, in one run.

    python benchmarks/h200_ops.py [--only rms_norm,softmax] [--json FILE]

All arms of a case are timed by events with the L2 cache flushed, three rounds in alternating order, and the median of
the rounds' medians is kept. Each row is checked against float32 torch on the timed inputs first (its proof holds it to
its bound), and carries the hash of the source it ran, so that a figure of changed source is not shown.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from triton.testing import do_bench

import kernelworks as kw
from kernelworks import contract
from kernelworks.bench import baselines
from kernelworks.choose import choose
from kernelworks.layout import in_lines
from kernelworks.op import OPS, Op

BF16 = torch.bfloat16
GIB = 2**30
SAME = 3e-3  # how much further from float32 torch than eager an arm may be, normwise: half an ulp of bfloat16

Call = Callable[[], Any]


# ---------------------------------------------------------------- what is timed


@dataclass
class Case:
    """One line of the table. ``bytes`` or ``flop`` is what the op cannot do without; a bar is a share of a copy's rate
    (``of_peak``: of the copy of 1 GiB, which is what a kernel that only reads is held to) or TFLOP/s."""

    op: str
    pass_: str
    shape: str
    arms: dict[str, Call]
    truth: Call
    bytes: int = 0
    flop: float = 0.0
    of_peak: bool = False
    asked: tuple[Any, ...] = ()  # arguments by which the dispatcher's choice is looked up
    asked_pass: str = "forward"  # whose arguments these are
    row: str | None = None
    notes: list[str] = field(default_factory=list)


def random(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False)


def liger(module: str, name: str) -> Any:
    """A peer's autograd function; None where the package is not installed."""
    if importlib.util.find_spec("liger_kernel") is None:
        return None
    return getattr(importlib.import_module(f"liger_kernel.ops.{module}"), name)


def backward_of(function: Callable[..., Any], *inputs: Tensor) -> Call:
    """Only the backward of ``function(*inputs)``, for one fixed gradient of the output."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    result = function(*leaves)
    outputs = [result] if isinstance(result, Tensor) else list(result)
    device = outputs[0].device
    generator = torch.Generator(device).manual_seed(3)
    grads = [torch.randn(o.shape, device=device, generator=generator).to(o.dtype) for o in outputs]
    return lambda: torch.autograd.grad(outputs, leaves, grads, retain_graph=True)


def both_passes(
    op: str, shape: str, ours: Callable[..., Any], eager: Callable[..., Any], inputs: tuple[Tensor, ...],
    forward_bytes: int, backward_bytes: int, peer: Callable[..., Any] | None, asked: tuple[Any, ...],
) -> Iterator[Case]:  # fmt: skip
    """Forward and backward of an op on one shape, with eager, torch.compile and a peer beside it."""
    wide = tuple(x.float() for x in inputs)
    quick = compiled(eager)
    functions = {"eager": eager, "compile": quick, "ours": ours} | ({"liger": peer} if peer else {})
    arms = {name: (lambda f=f: f(*inputs)) for name, f in functions.items()}
    yield Case(op, "forward", shape, arms, lambda: eager(*wide), bytes=forward_bytes, asked=asked)
    arms = {name: backward_of(f, *inputs) for name, f in functions.items()}
    yield Case(op, "backward", shape, arms, backward_of(eager, *wide), bytes=backward_bytes, asked=asked)


def rowwise() -> Iterator[Case]:
    rms_peer, layer_peer = liger("rms_norm", "LigerRMSNormFunction"), liger("layer_norm", "LigerLayerNormFunction")
    for m, n in ((8192, 4096), (4096, 16384), (32768, 1024)):
        x, w, b = random(m, n), random(n), random(n)
        size, shape = x.nbytes, f"{m}x{n}"
        yield from both_passes(
            "rms_norm", shape, lambda x, w: kw.rms_norm(x, w, eps=1e-6), lambda x, w, n=n: F.rms_norm(x, (n,), w, 1e-6),
            (x, w), 2 * size, 3 * size, rms_peer and (lambda x, w: rms_peer.apply(x, w, 1e-6)), (x, w, 1e-6, None),
        )  # fmt: skip
        yield from both_passes(
            "layer_norm", shape, lambda x, w, b: kw.layer_norm(x, w, b, eps=1e-5),
            lambda x, w, b, n=n: F.layer_norm(x, (n,), w, b, 1e-5), (x, w, b), 2 * size, 3 * size,
            layer_peer and (lambda x, w, b: layer_peer.apply(x, w, b, 1e-5)), (x, w, b, 1e-5),
        )  # fmt: skip
        yield from both_passes(
            "softmax", shape, lambda x: kw.softmax(x, dim=-1), lambda x: F.softmax(x, -1), (x,), 2 * size, 3 * size,
            None, (x, -1),
        )  # fmt: skip


def pointwise() -> Iterator[Case]:
    x, y = random(4096, 16384), random(4096, 16384)
    peer = liger("swiglu", "LigerSiLUMulFunction")
    yield from both_passes(
        "silu_mul", "4096x16384", kw.silu_mul, lambda a, b: F.silu(a) * b, (x, y), 3 * x.nbytes, 5 * x.nbytes,
        peer and (lambda a, b: peer.apply(a, b)), (x, y),
    )  # fmt: skip
    yield from both_passes(
        "gelu", "4096x16384", lambda a: kw.gelu(a, approximate="tanh"), lambda a: F.gelu(a, approximate="tanh"), (x,),
        2 * x.nbytes, 3 * x.nbytes, None, (x, "tanh"),
    )  # fmt: skip
    q, k = random(1, 32, 8192, 128), random(1, 8, 8192, 128)
    angle = torch.outer(torch.arange(8192.0), 1e4 ** (-torch.arange(0, 128, 2.0) / 128)).cuda()
    cos, sin = torch.cat((angle.cos(),) * 2, -1), torch.cat((angle.sin(),) * 2, -1)

    def rotate(t: Tensor) -> Tensor:
        half = torch.cat((-t[..., 64:], t[..., :64]), -1)
        return t * cos.to(t.dtype) + half * sin.to(t.dtype)

    narrow = cos.to(BF16), sin.to(BF16)
    moved = 2 * (q.nbytes + k.nbytes)
    yield from both_passes(
        "rope", "8192x(32+8)x128", lambda q, k: kw.rope(q, k, *narrow), lambda q, k: (rotate(q), rotate(k)), (q, k),
        moved, moved, None, (q, k, *narrow, False),
    )  # fmt: skip


def lookups() -> Iterator[Case]:
    logits, target = random(4096, 128256), torch.randint(0, 128256, (4096,), device="cuda")

    def step(loss: Callable[..., Tensor], dtype: torch.dtype = BF16) -> Call:
        def run() -> Tensor | None:
            x = logits.detach().to(dtype).requires_grad_()
            loss(x, target).backward()
            return x.grad

        return run

    eager = lambda x, t: F.cross_entropy(x.float(), t)  # noqa: E731
    arms = {"eager": step(eager), "compile": step(compiled(eager)), "ours": step(kw.cross_entropy)}
    yield Case(
        "cross_entropy", "forward and backward", "4096x128256", arms, step(eager, torch.float32),
        bytes=2 * logits.nbytes, asked=(logits, target, -100),
    )  # fmt: skip
    del arms
    weight, ids = random(128256, 4096), torch.randint(0, 128256, (16384,), device="cuda")
    yield Case(
        "embedding", "forward", "16384x4096",
        {"eager": lambda: F.embedding(ids, weight), "ours": lambda: kw.embedding(ids, weight)},
        lambda: F.embedding(ids, weight).float(), bytes=2 * 16384 * 4096 * 2, asked=(ids, weight),
    )  # fmt: skip
    table = random(32000, 4096)
    small = ids % 32000
    grad = lambda f: backward_of(lambda w: f(small, w), table)  # noqa: E731
    yield Case(
        "embedding", "backward", "16384x4096 of 32000", {"eager": grad(F.embedding), "ours": grad(kw.embedding)},
        backward_of(lambda w: F.embedding(small, w), table.float()), bytes=16384 * 4096 * 2 + table.nbytes,
        asked=(small, table),
    )  # fmt: skip


def products() -> Iterator[Case]:
    for m, n, k in ((1, 4096, 4096), (1, 14336, 4096), (1, 28672, 8192), (4, 5120, 5120)):
        x, w = random(m, k), random(n, k)
        arms = {"eager": lambda x=x, w=w: F.linear(x, w), "ours": lambda x=x, w=w: kw.linear(x, w)}
        yield Case(
            "linear", "forward", f"{m}x{n}x{k}", arms, lambda x=x, w=w: F.linear(x.double(), w.double()),
            bytes=w.nbytes, of_peak=True, asked=(x, w, None),
        )  # fmt: skip
    for m, n, k in ((2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (4096, 28672, 4096),
                    (8192, 4096, 14336), (16384, 4096, 4096), (64, 14336, 4096)):  # fmt: skip
        x, w = random(m, k), random(n, k)
        arms = {"eager": lambda x=x, w=w: F.linear(x, w), "ours": lambda x=x, w=w: kw.linear(x, w)}
        yield Case(
            "linear", "forward", f"{m}x{n}x{k}", arms, lambda x=x, w=w: F.linear(x.float(), w.float()),
            flop=2 * m * n * k, asked=(x, w, None),
        )  # fmt: skip


# batch, heads, key-value heads, length, head_dim, causal
PREFILL = (
    (4, 16, 16, 4096, 128, True), (1, 16, 16, 16384, 128, True), (2, 32, 8, 8192, 128, True),
    (4, 16, 16, 4096, 128, False), (1, 16, 16, 16384, 128, False), (2, 32, 8, 8192, 128, False),
    (4, 16, 16, 4096, 64, True), (4, 16, 16, 4096, 64, False), (2, 16, 16, 2048, 64, True),
    (64, 12, 12, 256, 64, False), (64, 16, 16, 197, 64, False), (8, 12, 12, 1500, 64, False),
)  # fmt: skip


def attentions() -> Iterator[Case]:
    def torchs(backend: SDPBackend, **how: Any) -> Callable[..., Tensor]:
        def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, **how)

        return run

    for b, h, length in ((1, 32, 8192), (32, 32, 4096), (128, 32, 2048), (1, 32, 131072), (16, 40, 3000)):
        q, k, v = random(b, h, 1, 128), random(b, 8, length, 128), random(b, 8, length, 128)
        peers = {
            "flash2": torchs(SDPBackend.FLASH_ATTENTION, enable_gqa=True),
            "cudnn": torchs(SDPBackend.CUDNN_ATTENTION, enable_gqa=True),
            "ours": kw.attention,
        }
        wide = [t.float() for t in (q, k, v)]
        yield Case(
            "attention", "decode", f"{b}x{length}",
            {n: (lambda f=f, q=q, k=k, v=v: f(q, k, v)) for n, f in peers.items()},
            lambda wide=wide: F.scaled_dot_product_attention(*wide, enable_gqa=True), bytes=k.nbytes + v.nbytes,
            of_peak=True, asked=(q, k, v, None, None, None, None, False),
        )  # fmt: skip
    for b, h, kv, length, dim, causal in PREFILL:
        q, k, v = random(b, h, length, dim), random(b, kv, length, dim), random(b, kv, length, dim)
        kind = "top_left" if causal else None
        peers = {
            "flash2": torchs(SDPBackend.FLASH_ATTENTION, is_causal=causal, enable_gqa=True),
            "cudnn": torchs(SDPBackend.CUDNN_ATTENTION, is_causal=causal, enable_gqa=True),
            "ours": lambda q, k, v, kind=kind: kw.attention(q, k, v, causal=kind),
        }
        forward = {name: (lambda f=f, q=q, k=k, v=v: f(q, k, v)) for name, f in peers.items()}
        heads = f"{h}" if h == kv else f"{h}({kv})"
        yield Case(
            "attention", "forward", f"{'causal' if causal else 'full'} {b}x{heads}x{length}x{dim}", forward,
            forward["flash2"], flop=(2.0 if causal else 4.0) * b * h * length * length * dim,
            asked=(q, k, v, kind, None, None, None, False),
        )  # fmt: skip
    for b, h, length in ((4, 16, 4096), (1, 16, 16384)):
        q, k, v = (random(b, h, length, 128) for _ in range(3))
        flop = 2.0 * b * h * length * length * 128
        peers = {
            "flash2": torchs(SDPBackend.FLASH_ATTENTION, is_causal=True),
            "cudnn": torchs(SDPBackend.CUDNN_ATTENTION, is_causal=True),
            "ours": lambda q, k, v: kw.attention(q, k, v, causal="top_left"),
        }
        backward = {name: backward_of(f, q, k, v) for name, f in peers.items()}
        shape = f"causal {b}x{h}x{length}x128"
        lse = torch.empty(q.shape[:3], device="cuda")
        yield Case(
            "attention", "backward", shape, backward, backward["flash2"], flop=2.5 * flop, asked_pass="backward",
            asked=(q, q, k, v, q, lse, "top_left", None, None, None, [True] * 3),
        )  # fmt: skip


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


def of_contract(op: Op, case: contract.Case, device: str = "cuda") -> Iterator[Case]:
    """An op's passes on one of its contract's cases: what users write, torch.compile of it, peers and ours."""
    with torch.device(device):
        args = case.make(torch.Generator(device).manual_seed(0), BF16)
    names = op.passes["forward"].names
    given = tuple(args.get(name) for name in names)
    written = baselines.eager(op)
    eager = lambda *given: written(**dict(zip(names, given, strict=True)))  # noqa: E731
    functions = {"eager": eager, "ours": op} | ({"compile": compiled(eager)} if baselines.generated(op) else {})
    arms = {name: (lambda f=f: f(*given)) for name, f in functions.items()}
    arms |= {n: call for n, make in baselines.peers(op, device).items() if (call := make(args)) is not None}
    wide = tuple(v.float() if isinstance(v, Tensor) and v.is_floating_point() else v for v in given)
    cost, products = op.contract.cost(op.request("forward", given)), op.contract.arithmetic == "products"
    need = {"flop": cost.flop} if products else {"bytes": int(cost.bytes)}
    yield Case(op.name, "forward", case.name, arms, lambda: eager(*wide), asked=given, **need)
    if "backward" not in op.passes:
        return
    places = [names.index(n) for n in op.contract.differentiable if isinstance(args.get(n), Tensor)]

    def back(function: Callable[..., Any], given: tuple[Any, ...]) -> Call:
        def of(*leaves: Tensor) -> Any:
            at = dict(zip(places, leaves, strict=True))
            return function(*(at.get(i, v) for i, v in enumerate(given)))

        return backward_of(of, *(given[i] for i in places))

    gradients = sum(given[i].nbytes for i in places)
    need = {"flop": 2 * cost.flop} if products else {"bytes": int(cost.bytes) + gradients}
    arms = {name: back(f, given) for name, f in functions.items()}
    yield Case(op.name, "backward", case.name, arms, back(eager, wide), asked=given, **need)


def others(named: Iterable[str]) -> Iterator[Case]:
    """Every op that none of the groups names, on what its contract would have timed on a GPU."""
    for op in OPS.values():
        if op.name not in named and not op.contract.mutates:
            for case in op.contract.device_bench_cases or op.contract.bench_cases:
                if BF16 in case.dtypes:
                    yield from of_contract(op, case)


SMALL = "small"  # by this name the host times of small calls are asked for
GROUPS = (rowwise, pointwise, lookups, products, attentions, optimizers)


# ---------------------------------------------------------------- how it is timed


def median(call: Call) -> float:
    return float(do_bench(call, warmup=10, rep=50, return_mode="median"))


def flat(result: Any) -> Tensor:
    return (result if isinstance(result, Tensor) else result[0]).double().flatten()


def off(call: Call, want: Tensor) -> float:
    return float((flat(call())[: want.numel()] - want).norm() / want.norm())


def timed(case: Case, peak: float, source: Tensor, target: Tensor) -> dict[str, Any]:
    """One line of the record: milliseconds by arm, what was reached, and the error of ours beside eager's."""
    arms = dict(case.arms)
    errors = {}
    want = case.truth()
    if want is not None:
        want = flat(want)
        errors = {name: off(arms[name], want) for name in ("ours", next(n for n in arms if n != "ours"))}
        del want
    if case.bytes:
        half = min(case.bytes // 2, GIB)
        arms = {"copy": lambda: target[:half].copy_(source[:half]), **arms}
    found: dict[str, list[float]] = {name: [] for name in arms}
    order = list(arms)
    for _ in range(3):
        for name in order:
            found[name].append(median(arms[name]))
        order.reverse()
    ms = {name: statistics.median(values) for name, values in found.items()}
    rate = case.bytes / ms["ours"] / 1e6 if case.bytes else case.flop / ms["ours"] / 1e9
    copied = peak if case.of_peak else case.bytes / ms["copy"] / 1e6 if case.bytes else 0.0
    best = min((v, n) for n, v in ms.items() if n not in ("ours", "copy"))
    row = case.row
    if row is None and case.asked:
        op = OPS[case.op]
        names = op.passes[case.asked_pass].names
        asked = (*case.asked, *([None] * (len(names) - len(case.asked))))
        if case.asked_pass == "backward":  # settled with the forward that it follows
            have = dict(zip(names, asked, strict=True))
            forward = tuple(have.get(name) for name in op.passes["forward"].names)
            choice = choose(op, op.request("training", forward, op.contract.differentiable))
            apart = choice.backward is None and not choice.together and not choice.native
            row = (choose(op, op.request("backward", asked)).row if apart else choice.backward or choice.row).name
        else:
            row = choose(op, op.request("forward", asked)).row.name
    errors_differ = len(errors) == 2 and not errors["ours"] <= 2 * min(errors.values()) + SAME
    rounded = case.op == "attention" and case.pass_ != "decode"  # the truth there is bfloat16 itself
    loose = rounded and len(errors) == 2 and errors["ours"] <= 1.5e-2
    return {
        "op": case.op, "pass": case.pass_, "shape": case.shape, "row": row,
        "source_hash": OPS[case.op].row(row).hash() if row else None, "ms": ms, "bytes": case.bytes, "flop": case.flop,
        "share_of_copy": rate / copied if copied else None, "of_1_gib_copy": case.of_peak,
        "tflops": None if case.bytes else rate, "best": best[1], "over_best": best[0] / ms["ours"], "errors": errors,
        "wrong": errors_differ and not loose,
    }  # fmt: skip


def shown(line: dict[str, Any]) -> str:
    reached = (
        f"{100 * line['share_of_copy']:5.1f}% of copy" if line["share_of_copy"] else f"{line['tflops']:6.0f} TFLOP/s"
    )
    return (
        f"{line['op']:14s} {line['pass']:20s} {line['shape']:24s} {reached}  {1e3 * line['ms']['ours']:9.1f} us  "
        f"{line['over_best']:.2f}x over {line['best']}  [{line['row']}]{'  WRONG' if line['wrong'] else ''}"
    )


def host_us(call: Call, calls: int = 2000) -> float:
    """Wall clock of an eager call while the GPU keeps up: what the host spends on it."""
    for _ in range(100):
        call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    spent = time.perf_counter() - begin
    torch.cuda.synchronize()
    return spent / calls * 1e6


def small_calls() -> list[dict[str, Any]]:
    """Eager wall clock a call on 16x1024, forward and forward with backward, ours beside torch's."""
    x, y, w = random(16, 1024), random(16, 1024), random(1024)
    b = random(1024)
    pairs: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Tensor, ...]]] = {
        "rms_norm": (lambda x, w: F.rms_norm(x, (1024,), w, 1e-6), lambda x, w: kw.rms_norm(x, w, eps=1e-6), (x, w)),
        "layer_norm": (
            lambda x, w, b: F.layer_norm(x, (1024,), w, b, 1e-5), lambda x, w, b: kw.layer_norm(x, w, b, eps=1e-5),
            (x, w, b),
        ),
        "softmax": (lambda x: F.softmax(x, -1), lambda x: kw.softmax(x, dim=-1), (x,)),
        "gelu": (lambda x: F.gelu(x, approximate="tanh"), lambda x: kw.gelu(x, approximate="tanh"), (x,)),
        "silu_mul": (lambda x, y: F.silu(x) * y, kw.silu_mul, (x, y)),
    }  # fmt: skip
    lines = []
    for op, (eager, ours, inputs) in pairs.items():
        line: dict[str, Any] = {"op": op, "shape": "16x1024"}
        for name, f in (("torch", eager), ("ours", ours), ("torch", eager), ("ours", ours)):
            line[f"forward_{name}_us"] = host_us(lambda f=f, inputs=inputs: f(*inputs))
            line[f"backward_{name}_us"] = host_us(backward_of(f, *inputs), 500)
        lines.append(line)
    return lines


def measure(only: set[str]) -> dict[str, Any]:
    torch.manual_seed(0)
    source = torch.empty(GIB, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    peak = 2 * GIB / median(lambda: target.copy_(source)) / 1e6
    print(f"1 GiB copy {peak:.0f} GB/s", flush=True)
    rows, named = [], set[str]()
    for group in (*GROUPS, lambda: others(named.copy())):
        for case in group():
            named.add(case.op)
            if only and case.op not in only:
                continue
            try:
                line = timed(case, peak, source, target)
            except Exception as error:  # one case that cannot run must not hide the others
                line = {"op": case.op, "pass": case.pass_, "shape": case.shape, "failed": f"{error}"[:500]}
                print(f"{case.op} {case.pass_} {case.shape}: {type(error).__name__}: {error}"[:300], flush=True)
            else:
                print(shown(line), flush=True)
            rows.append(line)
        torch.cuda.empty_cache()
    calls = small_calls() if not only or SMALL in only else []
    for line in calls:
        print("  ".join(f"{k} {v:.1f}" if isinstance(v, float) else str(v) for k, v in line.items()))
    return {"copy_gbs": peak, "rows": rows, "small_calls": calls}


def joined(found: dict[str, Any], before: dict[str, Any], head: dict[str, Any]) -> dict[str, Any]:
    """What was measured of some ops, and the rest of the record that was there, each of its rows with its date and
    commit. Raises ValueError where that was another machine or other versions."""
    for what in ("machine", "versions"):
        if before[what] != head[what]:
            raise ValueError(f"the record is of {before[what]}, here is {head[what]}: measure all ops")
    measured = {row["op"] for row in found["rows"]}
    origin = {"date": before["date"], "commit": before["commit"].split(" ")[0]}
    kept = [{**origin, **row} for row in before["rows"] if row["op"] not in measured]
    order = list(dict.fromkeys(row["op"] for row in before["rows"]))
    rows = sorted([*kept, *found["rows"]], key=lambda row: order.index(row["op"]) if row["op"] in order else len(order))
    others = sorted({row["commit"] for row in kept} - {head["commit"]})
    return {
        **found, "rows": rows, "small_calls": found["small_calls"] or before["small_calls"],
        "commit": " ".join([head["commit"], *(f"and {other}" for other in others)]),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="these ops alone; `small` for the host times of small calls")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = measure(set(filter(None, given.only.split(","))))
    if given.json:
        given.json.write_text(in_lines(found) + "\n", encoding="utf-8")
    return 1 if any(row.get("wrong") or row.get("failed") for row in found["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
