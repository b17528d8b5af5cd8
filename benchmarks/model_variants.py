"""One program of ``h200_models.py``, eager, swapped, captured and under one of torch.compile's modes, in turns of one
process: started by that script, so that others compile while one is timed.

    python benchmarks/model_variants.py PROGRAM MODE RESULT [--tiny] [--profile FILE]

PROGRAM is ``train``, or ``decode-`` and the batch. Compiles, writes ``ready``, waits for a line on stdin (until then it
may be halted: ``halted_s.txt`` says for how long), autotunes what no tuning record decides, and then measures the
variants in alternating order. RESULT is a JSON file; it holds what cannot be done as ``failed``.

MODE is one of torch.compile's (``default`` is none), for decoding with ``static`` or ``dynamic`` ahead: transformers'
cache of fixed size, as its documentation advises for CUDA graphs, or the one that grows. A cache of fixed size is made
once and emptied ahead of each prompt, since a graph is of the cache that it was captured with; the prompt itself is
not compiled, as ``generate`` has it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from h200_models import GPU, PROMPT, arm, milliseconds, peak, qwen3, settle, synchronize, tokens
from program_variant import halted_s
from side_by_side import wait_for_turn
from torch import Tensor
from transformers import StaticCache

import kernelworks as kw
from kernelworks.build import native

WARM = 8  # tokens that bind and warm up
APART = 2e-2  # of what a step moves: some parameters are rounded to the other neighbour, of bfloat16 half of 2^-8 away
Variant = Callable[[], AbstractContextManager[Any]]


def in_turns(count: int, names: list[str]) -> Iterator[tuple[int, str]]:
    for i in range(count):
        for name in names if i % 2 == 0 else names[::-1]:
            yield i, name


def compiled(call: Any, mode: str, tiny: bool) -> Any:
    if tiny:
        return torch.compile(call, backend="aot_eager")
    return torch.compile(call, **({} if mode == "default" else {"mode": mode}))


def ready() -> None:
    native.provide()
    gc.collect()
    if GPU:
        torch.cuda.empty_cache()  # for whoever is timed meanwhile
    wait_for_turn()


@contextlib.contextmanager
def profiled(file: Path | None, name: str) -> Iterator[None]:
    """The device's time by kernel."""
    if file is None or not GPU:
        yield
        return
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        yield
        synchronize()
    spans = sorted(
        (e.time_range.start, e.time_range.end, e.name) for e in found.events() if e.device_type.name == "CUDA"
    )
    kernels: dict[str, list[float]] = {}
    for begin, end, kernel in spans:
        kernels.setdefault(kernel[:160], []).append(end - begin)
    with file.open("a", encoding="utf-8") as out:
        busy, wall = sum(e - b for b, e, _ in spans), spans[-1][1] - spans[0][0]
        print(f"== {name}: {len(spans)} kernels, busy {busy:.0f} us of {wall:.0f} us", file=out)
        for kernel, took in sorted(kernels.items(), key=lambda item: -sum(item[1]))[:60]:
            print(f"{sum(took):10.1f} us {len(took):5d} x {statistics.median(took):8.2f}  {kernel}", file=out)


# ---------------------------------------------------------------- training


WITH_OURS = "swapped, kw.AdamW"


def steps_apart(model: Any, gradients: Callable[[], object]) -> float:
    """How far two steps by ``kw.AdamW`` are from two by torch's fused AdamW of the same gradients, normwise; of the
    state that both keep the dtypes are one. Parameters are as they were, gradients are gone."""
    gradients()
    params = [p for p in model.parameters() if p.grad is not None]
    begin, flows = [p.detach().clone() for p in params], [p.grad for p in params]
    ends, kinds = [], []
    for make in (lambda: torch.optim.AdamW(params, lr=1e-2, fused=True), lambda: kw.AdamW(params, lr=1e-2)):
        optimizer = make()
        for scale in (1.0, -0.5):
            for p, flow in zip(params, flows, strict=True):
                p.grad = scale * flow
            optimizer.step()
        kinds.append([{n: s.dtype for n, s in optimizer.state[p].items() if n != "step"} for p in params])
        ends.append([p.detach().clone() for p in params])
        with torch.no_grad():
            torch._foreach_copy_(params, begin)
    if kinds[0] != kinds[1]:
        raise RuntimeError("kw.AdamW keeps its state in other dtypes than torch's: that is another training")
    off, moved = (
        sum(float((a.float() - b.float()).square().sum()) for a, b in zip(*pair, strict=True))
        for pair in ((ends[1], ends[0]), (ends[0], begin))
    )
    for p in params:
        p.grad = None
    apart = float((off / moved) ** 0.5)
    if not apart < APART:
        raise RuntimeError(f"kw.AdamW's steps are {apart:.1e} from torch's: that is another training")
    return apart


def train(mode: str, tiny: bool, rounds: int, profile: Path | None) -> dict[str, Any]:
    model = qwen3(2 if tiny else 16, tiny).train()
    rows, length = (2, 64) if tiny else (8, 2048)
    ids = tokens(model, rows, length)
    theirs, ours = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True), kw.AdamW(model.parameters(), lr=1e-6)
    program = compiled(model, mode, tiny)

    def step(call: Any = model, optimizer: torch.optim.Optimizer | None = theirs) -> Tensor:
        loss: Tensor = call(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    with arm("swapped", model):
        step()  # builds our kernels
    began, halted = time.perf_counter(), halted_s()
    for _ in range(2):
        step(program)
    synchronize()
    compile_s = time.perf_counter() - began - (halted_s() - halted)
    ready()
    kernels_taken = settle(model, lambda: (step(), step(optimizer=ours)))

    variants: dict[str, tuple[str, Callable[[], Tensor]]] = {
        "eager": ("eager", step), "swapped": ("swapped", step), WITH_OURS: ("swapped", lambda: step(optimizer=ours)),
        mode: ("eager", lambda: step(program)),
    }  # fmt: skip
    try:
        how_far: Any = steps_apart(model, lambda: step(optimizer=None))
    except RuntimeError as error:  # the other variants still run
        del variants[WITH_OURS]
        how_far = str(error)
    names = list(variants)
    found: dict[str, Any] = {"ms": {}, "all_ms": {name: [] for name in names}, "peak_gb": {}, "loss": {}}
    found["steps_apart"] = how_far
    for _, name in in_turns(rounds, names):
        for optimizer in (theirs, ours):  # a variant has the memory of one: its first step makes the state anew
            optimizer.state.clear()
        kind, run = variants[name]
        with arm(kind, model):
            found["loss"].setdefault(name, float(run()))
            found["peak_gb"][name] = max(found["peak_gb"].get(name, 0.0), peak(run))
            found["all_ms"][name] += [milliseconds(run), milliseconds(run)]
    found["ms"] = {name: statistics.median(took) for name, took in found["all_ms"].items()}
    for name, (kind, run) in variants.items() if profile is not None else ():
        with arm(kind, model), profiled(profile, f"train {name}"):
            run()
    parameters = sum(p.numel() for p in model.parameters())
    logits = rows * length * model.config.vocab_size * 2 / 1e9
    return {
        **found,
        "parameters": parameters,
        "rows": rows,
        "length": length,
        "logits_gb": logits,
        "compile_s": compile_s,
        "kernels_taken": kernels_taken,
    }


# ---------------------------------------------------------------- decoding


class Decoding:
    """Greedy tokens after a prompt."""

    def __init__(self, model: Any, batch: int, tiny: bool) -> None:
        self.model, self.batch = model, batch
        self.prompt, self.new = (16, 12) if tiny else (PROMPT, 48)
        self.ids = tokens(model, batch, self.prompt)
        length_needed = -(-(self.prompt + self.new + 1) // 64) * 64
        self.fixed = StaticCache(config=model.config, max_cache_len=length_needed)

    def __call__(self, call: Any = None, cache: Any = None, watch: Any = None) -> tuple[float, Tensor, Tensor]:
        """Seconds a token once it is warm, the tokens, and the logits of the first. ``watch``: for four of them."""
        call = self.model if call is None else call
        if cache is not None:
            cache.reset()
        output = self.model(input_ids=self.ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        past, chosen = output.past_key_values, [output.logits.argmax(-1)]
        for i in range(self.new):
            if i == WARM:
                synchronize()
                begin = time.perf_counter()
            if watch is not None and i == WARM:
                watch.__enter__()
            if watch is not None and i == WARM + 4:
                watch.__exit__(None, None, None)
            output = call(input_ids=chosen[-1], past_key_values=past, use_cache=True)
            chosen.append(output.logits.argmax(-1))
            if i == 0:
                first = output.logits.float()
        synchronize()
        return (time.perf_counter() - begin) / (self.new - WARM), torch.cat(chosen, 1), first


def variants_of(run: Decoding, program: Any, mode: str, fixed: bool) -> dict[str, tuple[Variant, Callable[..., Any]]]:
    """What is in place around each, and what it runs."""
    model = run.model

    def swapped() -> AbstractContextManager[Any]:
        return arm("swapped", model)

    @contextlib.contextmanager
    def captured() -> Iterator[None]:
        with swapped(), kw.capture(model) if GPU else contextlib.nullcontext() as done:
            yield
            print(f"  ({done})", file=sys.stderr, flush=True)

    cache = run.fixed if fixed else None
    variants: dict[str, tuple[Variant, Callable[..., Any]]] = {
        "eager": (contextlib.nullcontext, run),
        mode: (contextlib.nullcontext, lambda watch=None: run(program, cache, watch)),
        "swapped": (swapped, run),
    }
    if fixed:
        variants["swapped and captured"] = (captured, lambda watch=None: run(model, cache, watch))
    return variants


def apart(logits: Tensor, want: Tensor, same: Tensor) -> float:
    """How far the first step's logits are apart, where the prompt's last ones chose the same token: of two that are
    nearly as likely either may be chosen, and then all that follows is another text."""
    return float((logits[same] - want[same]).norm() / want[same].norm())


def decode(batch: int, mode: str, tiny: bool, rounds: int, profile: Path | None) -> dict[str, Any]:
    kind, _, mode = mode.partition("-")
    model = qwen3(2 if tiny else 16, tiny).eval()
    run, name_of_mode = Decoding(model, batch, tiny), f"{mode}, {kind} cache"
    variants = variants_of(run, compiled(model, mode, tiny), name_of_mode, kind == "static")
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    texts: dict[str, Tensor] = {}
    logits: dict[str, Tensor] = {}
    with torch.inference_mode():
        with arm("swapped", model):  # builds our kernels
            run()
            run(cache=run.fixed)
        began, halted = time.perf_counter(), halted_s()
        variants[name_of_mode][1]()
        variants[name_of_mode][1]()
        synchronize()
        compile_s = time.perf_counter() - began - (halted_s() - halted)
        ready()
        kernels_taken = settle(model, lambda: (run(), run(cache=run.fixed)))
        for i, name in in_turns(rounds, list(variants)):
            around, call = variants[name]
            with around():
                if i == 0:
                    call()
                took, texts[name], logits[name] = call()
                seconds[name].append(took)
        for name in variants if profile is not None else ():
            around, call = variants[name]
            with around():
                call()
                call(watch=profiled(profile, f"decode {batch} {name}, 4 tokens"))
    ms = {name: statistics.median(took) * 1e3 for name, took in seconds.items()}
    want = logits["eager"]
    return {
        "batch": batch, "prompt": run.prompt, "new": run.new, "ms_a_token": ms,
        "all_ms": {name: [t * 1e3 for t in took] for name, took in seconds.items()},
        "tokens_a_second": {name: batch / value * 1e3 for name, value in ms.items()},
        "same_first": {n: int((texts["eager"] == t).long().cumprod(1).sum()) / batch for n, t in texts.items()},
        "logits_apart": {n: apart(x, want, texts[n][:, 0] == texts["eager"][:, 0]) for n, x in logits.items()},
        "compile_s": compile_s, "kernels_taken": kernels_taken,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("mode")
    parser.add_argument("result", type=Path)
    parser.add_argument("--tiny", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", type=Path)
    given = parser.parse_args()
    kind, _, batch = given.program.partition("-")
    try:
        if kind == "train":
            found = train(given.mode, given.tiny, given.rounds, given.profile)
        else:
            found = decode(int(batch), given.mode, given.tiny, given.rounds, given.profile)
    except Exception as error:  # what torch cannot compile is what is to be told
        traceback.print_exc()
        lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
        found = {"failed": f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]}
    given.result.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
