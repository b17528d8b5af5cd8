"""A whole model on a GPU, as it is and swapped: one training step, decoding, answers, memory.

    python benchmarks/h200_models.py [--parts train,decode,validate,compile,opcheck] [--json FILE] [--tiny]

The model is shaped as Qwen3 (transformers, random weights, bfloat16): 16 layers of width 2048, 16 + 8 heads of 128, an
MLP of 6144, 128256 tied classes, 1.07 billion parameters.

- train: forward, backward and AdamW (fused) on 8 x 2048 tokens; time by events, and the peak of allocated memory.
- decode: greedy, after a prompt of 512 tokens, batch 1 and 32; tokens a second of wall time.
- validate: a model of the same widths with two layers, against itself in float64: logits, 32 greedy tokens, loss and
  gradients of a step, and the parameters after four steps of SGD.
- compile: that model's training step under ``torch.compile(fullgraph=True)``.
- opcheck: ``torch.library.opcheck`` of every op on the GPU.

Both arms are the same model, swapped and given back in turn, in alternating order; medians over the rounds. Before
the first round `swap(settle=)` times what the record does not know of this machine yet, as a user would have it.
``--tiny`` runs the same code on a toy model, on the CPU where there is no GPU.
"""

from __future__ import annotations

import argparse
import copy
import gc
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from torch import Tensor, nn

from kernelworks.layout import in_lines
from kernelworks.models import swap, validate
from kernelworks.models.validate import relative_error
from kernelworks.op import OPS, Op

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
ARMS = ("eager", "swapped")


def qwen3(layers: int, tiny: bool, dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    """The model, with random weights made on the device."""
    size = {
        "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 128256,
    }  # fmt: skip
    if tiny:
        size |= {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
        size |= {"head_dim": 32, "vocab_size": 1000}
    config = transformers.Qwen3Config(
        **size, num_hidden_layers=layers, tie_word_embeddings=True, max_position_embeddings=8192
    )
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(DEVICE):
            return transformers.Qwen3ForCausalLM(config)
    finally:
        torch.set_default_dtype(before)


def tokens(model: nn.Module, rows: int, length: int, seed: int = 0) -> Tensor:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randint(1, model.config.vocab_size, (rows, length), generator=generator, device=DEVICE)


def synchronize() -> None:
    if GPU:
        torch.cuda.synchronize()


@contextmanager
def arm(name: str, model: nn.Module) -> Iterator[None]:
    with swap(model, verbose=False) if name == "swapped" else nullcontext():
        yield


def settle(model: nn.Module, run: Callable[[], Any]) -> None:
    """Times the calls of ``run`` that no timing on record decides, so that the rounds race what a user would have."""
    begin = time.perf_counter()
    done = swap(model, settle=run, verbose=False)
    done.undo()
    model.zero_grad(set_to_none=True)
    print(f"  (settled in {time.perf_counter() - begin:.1f} s: {str(done.settled).splitlines()[-1]})", flush=True)


def rounds(count: int) -> Iterator[tuple[int, str]]:
    for i in range(count):
        for name in ARMS if i % 2 == 0 else ARMS[::-1]:
            yield i, name


def peak(run: Callable[[], Any]) -> float:
    """GB (10^9 bytes) allocated at most while ``run`` ran."""
    if not GPU:
        run()
        return 0.0
    synchronize()
    torch.cuda.reset_peak_memory_stats()
    run()
    synchronize()
    return torch.cuda.max_memory_allocated() / 1e9


def milliseconds(run: Callable[[], Any]) -> float:
    synchronize()
    begin = time.perf_counter()
    run()
    synchronize()
    return (time.perf_counter() - begin) * 1e3


# ---------------------------------------------------------------- speed


def train(tiny: bool) -> dict[str, Any]:
    model = qwen3(2 if tiny else 16, tiny).train()
    rows, length = (2, 64) if tiny else (8, 2048)
    ids = tokens(model, rows, length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)

    def step() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    settle(model, step)
    times: dict[str, list[float]] = {name: [] for name in ARMS}
    memory: dict[str, float] = {}
    for _, name in rounds(3):
        with arm(name, model):
            step()
            memory[name] = max(memory.get(name, 0.0), peak(step))
            times[name] += [milliseconds(step), milliseconds(step)]
    ms = {name: statistics.median(found) for name, found in times.items()}
    logits = rows * length * model.config.vocab_size * 2 / 1e9
    parameters = sum(p.numel() for p in model.parameters())
    print(
        f"train {rows}x{length}, {parameters / 1e9:.2f}B: eager {ms['eager']:.1f} ms {memory['eager']:.2f} GB, "
        f"swapped {ms['swapped']:.1f} ms {memory['swapped']:.2f} GB; speedup over eager "
        f"{ms['eager'] / ms['swapped']:.2f}, logits {logits:.2f} GB"
    )
    return {
        "parameters": parameters, "rows": rows, "length": length, "ms": ms, "all_ms": times, "peak_gb": memory,
        "logits_gb": logits,
    }  # fmt: skip


def decode(tiny: bool) -> list[dict[str, Any]]:
    model = qwen3(2 if tiny else 16, tiny).eval()
    prompt, new = (16, 12) if tiny else (512, 48)
    found = []
    for batch in (1, 2 if tiny else 32):
        ids = tokens(model, batch, prompt)

        def run(ids: Tensor = ids) -> tuple[float, Tensor]:
            output = model(input_ids=ids, use_cache=True, logits_to_keep=1)
            past, chosen = output.past_key_values, [output.logits.argmax(-1)]
            for i in range(new):
                if i == 8:  # the first tokens bind and warm up
                    synchronize()
                    begin = time.perf_counter()
                output = model(input_ids=chosen[-1], past_key_values=past, use_cache=True)
                chosen.append(output.logits.argmax(-1))
            synchronize()
            return (time.perf_counter() - begin) / (new - 8), torch.cat(chosen, 1)

        seconds: dict[str, list[float]] = {name: [] for name in ARMS}
        texts: dict[str, Tensor] = {}
        with torch.inference_mode():
            settle(model, run)
            for _, name in rounds(1 if tiny else 4):
                with arm(name, model):
                    took, texts[name] = run()
                    seconds[name].append(took)
        ms = {name: statistics.median(took) * 1e3 for name, took in seconds.items()}
        same = int((texts["eager"] == texts["swapped"]).long().cumprod(1).sum()) / batch
        rate = {name: batch / value * 1e3 for name, value in ms.items()}
        print(
            f"decode batch {batch}: eager {rate['eager']:.0f} tokens/s ({ms['eager']:.2f} ms a token), swapped "
            f"{rate['swapped']:.0f} ({ms['swapped']:.2f}); speedup over eager {ms['eager'] / ms['swapped']:.2f}; "
            f"the first {same:.0f} of {new + 1} tokens are the same"
        )
        found.append({"batch": batch, "prompt": prompt, "ms_a_token": ms, "tokens_a_second": rate, "same_first": same})
    return found


# ---------------------------------------------------------------- answers


def answers(tiny: bool) -> dict[str, Any]:
    model = qwen3(2, tiny)
    ids = tokens(model, 1, 16 if tiny else 256)
    inputs = {"input_ids": ids, "labels": ids}
    settle(model, lambda: model(**inputs).loss.backward())
    found = validate(model, inputs, greedy_tokens=32, loss=lambda output: output.loss, step_in_training_mode=True)
    greedy, training = found.greedy, found.training
    assert greedy is not None and training is not None
    print(
        f"logits: error {found.error_before:.2e} eager, {found.error_after:.2e} swapped; undo exact {found.undo_exact}"
        f"; greedy as float64 chooses: {greedy.right_before} eager, {greedy.right_after} swapped of {greedy.tokens}"
    )
    print(
        f"a training step: loss error {training.loss_error_before:.1e} eager, {training.loss_error_after:.1e} swapped; "
        f"gradient error {training.gradient_error_before:.2e} eager, {training.gradient_error_after:.2e} swapped"
    )
    steps = several_steps(model, inputs)
    print(f"update after 4 steps of SGD: error {steps['eager']:.2e} eager, {steps['swapped']:.2e} swapped")
    return {
        "logits": [found.error_before, found.error_after], "no_worse": found.no_worse, "undo_exact": found.undo_exact,
        "greedy": vars(greedy), "training": vars(training), "update_error": steps,
    }  # fmt: skip


def several_steps(model: nn.Module, inputs: dict[str, Tensor], count: int = 4) -> dict[str, float]:
    """How far the change of all parameters after some steps of SGD is from float64's, per arm. The parameters are
    kept in float32 between steps, so that what shows is the gradients' error and not the rounding of the sum."""

    def update(of: nn.Module) -> Tensor:
        parameters = list(of.parameters())
        begin = [p.detach().clone() for p in parameters]
        master = [p.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True) for p in parameters]
        first = [m.clone() for m in master]
        for _ in range(count):
            of(**inputs).loss.backward()
            with torch.no_grad():
                for p, m in zip(parameters, master, strict=True):
                    m -= 0.02 * p.grad
                    p.copy_(m)
                    p.grad = None
        change = torch.cat([(m - f).flatten() for m, f in zip(master, first, strict=True)])
        with torch.no_grad():
            for p, b in zip(parameters, begin, strict=True):
                p.copy_(b)
        return change

    model.train()
    truth = update(copy.deepcopy(model).double())
    found = {}
    for name in ARMS:
        with arm(name, model):
            found[name] = relative_error(update(model), truth)
    return found


def compiled(tiny: bool) -> dict[str, Any]:
    model = qwen3(2, tiny).train()
    rows, length = (2, 64) if tiny else (8, 2048)
    ids = tokens(model, rows, length)
    settle(model, lambda: model(input_ids=ids, labels=ids, use_cache=False).loss.backward())
    found: dict[str, Any] = {"ms": {}, "loss": {}, "gradient_norm": {}}
    for name in ARMS:
        torch._dynamo.reset()
        with arm(name, model):
            program = torch.compile(model, fullgraph=True, backend="aot_eager" if tiny else "inductor")

            def step(program: Any = program) -> Tensor:
                loss: Tensor = program(input_ids=ids, labels=ids, use_cache=False).loss
                loss.backward()
                return loss.detach()

            found["loss"][name] = float(step())
            found["gradient_norm"][name] = float(
                torch.stack([p.grad.float().norm() for p in model.parameters() if p.grad is not None]).norm()
            )
            model.zero_grad(set_to_none=True)
            times = []
            for _ in range(2 if tiny else 6):
                times.append(milliseconds(step))
                model.zero_grad(set_to_none=True)
            found["ms"][name] = statistics.median(times)
    print(
        f"compiled with fullgraph, 2 layers, {rows}x{length}: {found['ms']['eager']:.1f} ms as it is, "
        f"{found['ms']['swapped']:.1f} swapped; loss {found['loss']['eager']:.5f}, {found['loss']['swapped']:.5f}; "
        f"gradient norm {found['gradient_norm']['eager']:.5f}, {found['gradient_norm']['swapped']:.5f}"
    )
    return found


# ---------------------------------------------------------------- operator checks


def small_case(op: Op) -> tuple[Any, ...]:
    """The arguments of an ordinary case that is neither empty nor large, on the device."""

    def made(case: Any) -> dict[str, Any]:
        arguments: dict[str, Any] = case.make(torch.Generator().manual_seed(0), torch.float32)
        return arguments

    def weight(case: Any) -> int:
        sizes = [
            t.numel() for v in made(case).values() for t in (v if isinstance(v, list) else [v]) if isinstance(t, Tensor)
        ]
        return max(sizes) if sizes and min(sizes) > 16 else 1 << 40

    case = min((c for c in op.contract.cases if torch.float32 in c.dtypes and c.gradients), key=weight)
    given = made(case)
    return tuple(moved(given.get(name)) for name in op.passes["forward"].names)


def moved(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to(DEVICE)
    return [moved(v) for v in value] if isinstance(value, (list, tuple)) else value


def opcheck(tiny: bool) -> dict[str, str]:
    found = {}
    for name, op in OPS.items():
        args = small_case(op)
        wants = op.contract.differentiable
        leaves = tuple(
            a.requires_grad_() if n in wants and isinstance(a, Tensor) and a.is_floating_point() else a
            for n, a in zip(op.passes["forward"].names, args, strict=True)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # opcheck itself uses deprecated parts of torch
            try:
                result = torch.library.opcheck(getattr(torch.ops.kernelworks, name).default, (*leaves, None))
                found[name] = "passed" if set(result.values()) == {"SUCCESS"} else str(result)
            except Exception as error:
                found[name] = f"{type(error).__name__}: {str(error)[:300]}"
    bad = {k: v for k, v in found.items() if v != "passed"}
    print(f"opcheck on {DEVICE}: {len(found) - len(bad)} of {len(found)} ops pass {bad or ''}")
    return found


PARTS: dict[str, Callable[[bool], Any]] = {
    "train": train, "decode": decode, "validate": answers, "compile": compiled, "opcheck": opcheck,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    if not GPU and not given.tiny:
        raise SystemExit("there is no GPU here: --tiny runs the same code on a toy model")
    versions = {
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
    }
    record: dict[str, Any] = {"gpu": torch.cuda.get_device_name() if GPU else "none", "versions": versions}
    for name in given.parts.split(","):
        begin = time.perf_counter()
        try:
            record[name] = PARTS[name](given.tiny)
        except Exception as error:  # the other parts still run; the record says which did not
            record[name] = {"failed": f"{type(error).__name__}: {str(error)[:500]}"}
            print(f"{name} failed: {record[name]['failed']}")
        print(f"  ({name}: {time.perf_counter() - begin:.1f} s)", flush=True)
        gc.collect()
        if GPU:
            torch.cuda.empty_cache()
        if given.json:
            given.json.write_text(in_lines(record) + "\n", encoding="utf-8")
    return 1 if any("failed" in found for found in record.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
