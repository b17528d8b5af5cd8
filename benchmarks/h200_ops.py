"""How the GPU rows stand against a device copy of the same bytes and the strongest peers, in one run.

    python benchmarks/h200_ops.py [--only rms_norm,softmax] [--json FILE]

What is timed of an op, and beside whom, its room says: the contract's cases for a GPU, ``peers.py``, what users write.
Beside those stand products, attention, packed sequences and AdamW in sizes that no proof tries. All arms of a case are
timed by events with the L2 cache flushed, three rounds in alternating order, and the median of the rounds' medians is
kept. Each row is checked against float32 torch on the timed inputs first (its proof holds it to its bound), and carries
the hash of the source it ran, so that a figure of changed source is not shown.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
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
from kernelworks.ops.attention.varlen_attn.contract import seen_pairs
from kernelworks.ops.attention.varlen_attn.peers import by_flex
from kernelworks.plain import leaves

BF16 = torch.bfloat16
GIB = 2**30
FILLING = 8 << 20  # bytes: with fewer a GPU is done before its host is
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
    asked: tuple[Any, ...] = ()  # the forward's arguments, by which the dispatcher's choice is looked up


def random(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False)


def backward_of(function: Callable[..., Any], *inputs: Tensor) -> Call:
    """Only the backward of ``function(*inputs)``, for one fixed gradient of the output."""
    own = [x.detach().clone().requires_grad_() for x in inputs]
    result = function(*own)
    outputs = [result] if isinstance(result, Tensor) else list(result)
    device = outputs[0].device
    generator = torch.Generator(device).manual_seed(3)
    grads = [torch.randn(o.shape, device=device, generator=generator).to(o.dtype) for o in outputs]
    return lambda: torch.autograd.grad(outputs, own, grads, retain_graph=True)


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


PLAIN = (None, None, None, False, None, None)  # no window, scale, mask, logarithms of sums, softcap, sinks


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
            of_peak=True, asked=(q, k, v, None, *PLAIN),
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
            asked=(q, k, v, kind, *PLAIN),
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
        yield Case(
            "attention", "backward", shape, backward, backward["flash2"], flop=2.5 * flop,
            asked=(q, k, v, "top_left", *PLAIN),
        )  # fmt: skip


def when_called(make: Callable[[], Call]) -> Call:
    """What ``make`` makes, made at the first call: what fails there fails one case, not those behind it."""
    made = functools.cache(make)
    return lambda: made()()


def packed() -> Iterator[Case]:
    """Sequences of many lengths: torch's function for them, FlexAttention with a mask of documents, ours."""
    op = OPS["varlen_attn"]
    for case in op.contract.device_bench_cases:
        asked = Asked(op, case)
        args, (q, k, v), rest = asked.args, asked.given[:3], asked.given[3:]
        ends = (args["cu_seq_q"].tolist(), args["cu_seq_k"].tolist())
        lengths = zip(*([b - a for a, b in pairwise(e)] for e in ends), strict=True)
        flop = 4.0 * q.shape[1] * q.shape[2] * sum(seen_pairs(*pair, args["window_size"]) for pair in lengths)
        flex = functools.cache(functools.partial(by_flex, args))
        peers = {
            "torch": lambda q, k, v, rest=rest, asked=asked: asked.eager(q, k, v, *rest),
            "flex": lambda q, k, v, flex=flex: flex()(q, k, v),
            "ours": lambda q, k, v, rest=rest: op(q, k, v, *rest),
        }  # fmt: skip
        wide = [t.float() for t in (q, k, v)]
        forward = {n: (lambda f=f, q=q, k=k, v=v: f(q, k, v)) for n, f in peers.items()}
        truth = functools.partial(peers["torch"], *wide)
        yield Case(op.name, "forward", case.name, forward, truth, flop=flop, asked=asked.given)
        backward = {n: when_called(functools.partial(backward_of, f, q, k, v)) for n, f in peers.items()}
        truth = when_called(functools.partial(backward_of, peers["torch"], *wide))
        yield Case(op.name, "backward", case.name, backward, truth, flop=2.5 * flop, asked=asked.given)


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


@dataclass
class Asked:
    """An op on one of its contract's cases: the arguments, what users write and ours on them, and which of them have
    gradients."""

    op: Op
    case: contract.Case
    device: str = "cuda"

    def __post_init__(self) -> None:
        with torch.device(self.device):
            self.args = self.case.make(torch.Generator(self.device).manual_seed(0), BF16)
        self.names = self.op.passes["forward"].names
        self.given = tuple(self.args.get(name) for name in self.names)
        wants = self.op.contract.differentiable
        self.places = [i for i, n in enumerate(self.names) if n in wants and isinstance(self.given[i], Tensor)]

    def eager(self, *given: Any) -> Any:
        return baselines.eager(self.op)(**dict(zip(self.names, given, strict=True)))

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
            request = op.backward_of(op.request("training", self.given, wanted))
        cost = op.contract.cost(request)
        return {"flop": cost.flop} if op.contract.arithmetic == "products" else {"bytes": int(cost.bytes)}


def of_contract(asked: Asked) -> Iterator[Case]:
    """An op's passes: what users write, torch.compile of it, peers and ours."""
    op, given, shape = asked.op, asked.given, asked.case.name
    eager = asked.eager
    functions = {"eager": eager, "ours": op} | ({"compile": compiled(eager)} if baselines.generated(op) else {})
    made = {n: make(asked.args) for n, make in baselines.peers(op, asked.device).items()}
    arms = {name: (lambda f=f: f(*given)) for name, f in functions.items()}
    arms |= {name: call for name, call in made.items() if call is not None}
    wide = tuple(v.float() if isinstance(v, Tensor) and v.is_floating_point() else v for v in given)
    yield Case(op.name, "forward", shape, arms, lambda: eager(*wide), asked=given, **asked.need("forward"))
    if "backward" in op.passes:
        arms = {name: asked.back(f, given) for name, f in functions.items()}
        truth = asked.back(eager, wide)
        yield Case(op.name, "backward", shape, arms, truth, asked=given, **asked.need("backward"))


def by_room(only: Iterable[str], *, small: bool = False) -> Iterator[Asked]:
    """These ops on what their rooms would have timed on a GPU: the sizes that fill one, or those that its host time
    limits."""
    for op in (OPS[name] for name in only):
        if op.contract.mutates:
            continue
        for case in op.contract.device_bench_cases or op.contract.bench_cases:
            if BF16 in case.dtypes:
                asked = Asked(op, case)
                moved = sum(t.nbytes for t in leaves(asked.given))
                if (moved < FILLING) == small:
                    yield asked


def others(only: Iterable[str]) -> Iterator[Case]:
    for asked in by_room(only):  # a gradient that is a view is no line of a table
        yield from (case for case in of_contract(asked) if case.flop or case.bytes >= FILLING)


SMALL = "small"  # by this name the host times of small calls are asked for
# Of sizes, or against peers, that a room's bench has not: its cases are proved too, in float64.
GROUPS = (products, attentions, packed, optimizers)


# ---------------------------------------------------------------- how it is timed


def median(call: Call) -> float:
    return float(do_bench(call, warmup=10, rep=50, return_mode="median"))


def flat(result: Any) -> Tensor:
    return (result if isinstance(result, Tensor) else result[0]).double().flatten()


def off(call: Call, want: Tensor) -> float:
    return float((flat(call())[: want.numel()] - want).norm() / want.norm())


def row_of(case: Case) -> str:
    """The row that the dispatcher takes for the pass that was timed; gradients are settled with their forward."""
    op, asked = OPS[case.op], case.asked
    if case.pass_ != "backward":
        return choose(op, op.request("forward", asked)).row.name
    named = zip(op.passes["forward"].names, asked, strict=True)
    wanted = tuple(n for n, v in named if n in op.contract.differentiable and isinstance(v, Tensor))
    training = op.request("training", asked, wanted)
    choice = choose(op, training)
    if choice.backward is None and not choice.together and not choice.native:
        return choose(op, op.backward_of(training)).row.name
    return (choice.backward or choice.row).name


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
    row = row_of(case)
    errors_differ = len(errors) == 2 and not errors["ours"] <= 2 * min(errors.values()) + SAME
    rounded = case.op == "attention" and case.pass_ != "decode"  # the truth there is bfloat16 itself
    loose = rounded and len(errors) == 2 and errors["ours"] <= 1.5e-2
    return {
        "op": case.op, "pass": case.pass_, "shape": case.shape, "row": row,
        "source_hash": OPS[case.op].row(row).hash(), "ms": ms, "bytes": case.bytes, "flop": case.flop,
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
    """Eager wall clock of a small call, forward and backward, ours beside torch's."""
    lines = []
    for asked in by_room(OPS, small=True):
        given, pair = asked.given, {"torch": asked.eager, "ours": asked.op}
        line: dict[str, Any] = {"op": asked.op.name, "shape": asked.case.name}
        for name, f in (*pair.items(), *pair.items()):
            line[f"forward_{name}_us"] = host_us(lambda f=f, given=given: f(*given))
            if "backward" in asked.op.passes:
                line[f"backward_{name}_us"] = host_us(asked.back(f, given), 500)
        lines.append(line)
    return lines


def settled(cases: Iterator[Case], only: set[str]) -> Iterator[Case]:
    """Cases of these ops (of all, where none is named), each raced as it is made and called, as a user would have it;
    what is known of this kind of machine is not raced again."""
    made: list[Case] = []
    while True:
        made.clear()
        kw.settle(lambda: made.extend(itertools.islice(cases, 1)))
        if not made:
            return
        (case,) = made
        if only and case.op not in only:
            continue
        with contextlib.suppress(Exception):  # it says so when it is timed
            kw.settle(case.arms["ours"])
        yield case


def measure(only: set[str]) -> dict[str, Any]:
    torch.manual_seed(0)
    source = torch.empty(GIB, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    peak = 2 * GIB / median(lambda: target.copy_(source)) / 1e6
    print(f"1 GiB copy {peak:.0f} GB/s", flush=True)
    rows, named = [], set[str]()
    for group in (*GROUPS, lambda: others([n for n in OPS if n not in named and (not only or n in only)])):
        for case in settled(iter(group()), only):
            named.add(case.op)
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
