"""A whole model on a GPU, as it is, swapped, captured, and under torch.compile: training, decoding, answers, memory.

    python benchmarks/h200_models.py [--parts train,decode,validate,compile,opcheck] [--json FILE] [--within S] [--tiny]

The model is shaped as Qwen3 (transformers, random weights, bfloat16): 16 layers of width 2048, 16 + 8 heads of 128, an
MLP of 6144, 128256 tied classes, 1.07 billion parameters.

- train: forward, backward and AdamW (fused) on 8 x 2048 tokens; wall time, and the peak of allocated memory. Beside
  the swap also with ``kw.AdamW``, whose steps are held against torch's first.
- decode: greedy, after a prompt of 512 tokens, batch 1 and 32; tokens a second of wall time. ``swapped`` has the cache
  that grows, as eager has; ``swapped and captured`` one of fixed size (``kw.swap(model)``, ``kw.capture(model)``).
- validate: a model of the same widths with two layers, against itself in float64: logits, 32 greedy tokens, loss and
  gradients of a step, and the parameters after four steps of SGD.
- compile: that model's training step under ``torch.compile(fullgraph=True)``, as it is and swapped.
- opcheck: ``torch.library.opcheck`` of every op on the GPU.

train and decode are several processes (``model_variants.py``), one for each program and mode of torch.compile: all of
them compile beside each other, and as soon as one is ready it times its variants, in turns of that process and
alternating order, while the others are halted. The other parts are run beside them, as no clock decides them. What
``--within`` leaves no time for is told as cut off. Before the first round `swap(settle=)` times what the record does
not know of this machine yet, as a user would have it. ``--tiny`` runs the same code on a toy model, on the CPU too.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from side_by_side import RESULT, Entry, Heard, Started, Task, end_on_sigterm, side_by_side
from torch import Tensor, nn

from kernelworks.dispatch.op import OPS, Op
from kernelworks.nn.swap import swap
from kernelworks.nn.validate import relative_error, validate
from kernelworks.records.json_text import format_lines

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
ARMS = ("eager", "swapped")
PROMPT = 512
VARIANTS_OF = Path(__file__).resolve().with_name("model_variants.py")
SAME = ("machine", "versions")


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


def settle(model: nn.Module, run: Callable[[], Any]) -> list[str]:
    """Times the calls of ``run`` that no timing on record decides, so that the rounds race what a user would have: the
    rows that they take, on whose sources the figures hang."""
    begin = time.perf_counter()
    done = swap(model, autotune=run, verbose=False)
    done.undo()
    model.zero_grad(set_to_none=True)
    print(
        f"  (autotuned in {time.perf_counter() - begin:.1f} s: {str(done.autotune_result).splitlines()[-1]})",
        file=sys.stderr, flush=True,
    )  # fmt: skip
    calls = done.autotune_result.calls if done.autotune_result else ()
    return sorted({f"{call.op}.{row}" for call in calls for row in call.taken.split("+") if row not in ("", "torch")})


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

# A program, and how it is compiled beside the variants that all have: first what torch's users are told to take.
TASKS: dict[str, tuple[Task, ...]] = {
    "decode": (
        ("decode-32", "static-reduce-overhead"), ("decode-1", "static-reduce-overhead"),
        ("decode-1", "dynamic-default"),
    ),
    "train": (("train", "default"), ("train", "max-autotune-no-cudagraphs")),
}  # fmt: skip
SEARCHED = ("train", "max-autotune-no-cudagraphs")  # some 15 products, up to 20 s each: longer than all else
ANSWERS = "answers"  # the mode of what no clock decides
TOGETHER = 8  # processes
THREADS = {"max-autotune-no-cudagraphs": "16"}  # of one's compiler; it builds hundreds of kernels
LONG = ("train", "validate", "compile")  # to prepare: begun first


def tasks_of(parts: Collection[str], searched: bool = True) -> list[Task]:
    found = [task for part in TASKS if part in parts for task in TASKS[part] if searched or task != SEARCHED]
    found += [(part, ANSWERS) for part in PARTS if part in parts]
    return sorted(found, key=lambda task: task[0] not in LONG)


def command_of(task: Task, result: Path, more: Sequence[str] = ()) -> list[str]:
    """What makes it: a process that prepares and waits for its turn, or one that only answers."""
    if task[1] == ANSWERS:
        return [sys.executable, __file__, "--here", "--parts", task[0], "--json", str(result), *more[:1]]
    return [sys.executable, str(VARIANTS_OF), *task, str(result), *more]


def environment_of(task: Task) -> dict[str, str]:
    return {"TORCHINDUCTOR_COMPILE_THREADS": THREADS.get(task[1], "4")}


class Figures:
    """What came of each task, as one record: written anew with each, where there is a file.

    What the file holds of this machine, these versions and the sources that ran stays until it is measured anew.
    """

    def __init__(self, file: Path | None = None, head: Mapping[str, Any] | None = None) -> None:
        self.file, self.head = file, dict(head or {})
        self.entries: dict[Task, Entry] = {}
        before = json.loads(file.read_text(encoding="utf-8")) if file is not None and file.is_file() else {}
        if before and all(before[name] == self.head[name] for name in SAME):
            was, now = before["sources"], self.head["sources"]
            for task, entry in apart_again(before["figures"]).items():
                if all(was.get(row) == now.get(row) for row in entry.get("kernels_taken", was)):
                    self.entries[task] = entry

    def has(self, task: Task) -> bool:
        return "failed" not in self.entries.get(task, {"failed": ""})

    def tell(self, task: Task, entry: Entry | None) -> None:
        found = entry or {"failed": "cut off"}
        if task[1] == ANSWERS:
            found = found.get(task[0], found)
            at = f", at {' < '.join(found['at'])}" if "at" in found else ""
            print(f"{task[0]}: {found['failed'] + at if 'failed' in found else json.dumps(found)[:1500]}", flush=True)
        else:
            print(f"{' '.join(task)}: {found.get('failed') or in_words(found)}", flush=True)
        if "failed" in found and self.has(task):
            return  # it takes the place of no figure
        self.entries[task] = {**found, **{name: self.head[name] for name in ("date", "commit") if name in self.head}}
        if self.file is not None:
            scratch = self.file.with_suffix(f".{os.getpid()}")
            scratch.write_text(format_lines({**self.head, "figures": self.figures()}) + "\n", encoding="utf-8")
            scratch.replace(self.file)

    def figures(self) -> dict[str, Any]:
        versions = {"torch": str(torch.__version__), "transformers": transformers.__version__}
        gpu = torch.cuda.get_device_name() if GPU else "none"
        answers = {name: entry for (name, mode), entry in self.entries.items() if mode == ANSWERS}
        return {"gpu": gpu, "versions": versions, **together(self.entries), **answers}


def speed(parts: list[str], more: list[str], within: float, figures: Figures) -> None:
    """Whatever is asked for, in processes side by side."""

    def start(task: Task, heard: Heard) -> Started:
        folder = Path(tempfile.mkdtemp(prefix=f"{task[0]}-"))
        command = command_of(task, folder / RESULT, more)
        return Started(command, folder, within, heard=heard, environment=environment_of(task))

    end = time.monotonic() + within
    side_by_side(tasks_of(parts), start, end=end, together=TOGETHER, tell=figures.tell)


def in_words(entry: dict[str, Any]) -> str:
    ms = entry.get("ms") or entry["ms_a_token"]
    took = ", ".join(f"{name} {value:.2f} ms" for name, value in ms.items())
    name = "logits_apart" if "logits_apart" in entry else "loss"
    beside = ", ".join(f"{arm} {value:.5g}" for arm, value in entry[name].items())
    return f"{took}; {name}: {beside}; compiled in {entry['compile_s']:.0f} s"


OF_A_MODE = ("ms", "ms_a_token", "compile_s", "failed", "kernels_taken", "date", "commit")


def together(entries: Mapping[Task, Entry]) -> dict[str, Any]:
    """One record for each program: its first mode's, and what the other modes took beside the same variants."""
    found: dict[str, Entry] = {}
    known = [task for tasks in TASKS.values() for task in tasks if task in entries]
    for task in sorted(known, key=lambda task: "failed" in entries[task]):
        entry, (program, mode) = entries[task], task
        one = found.setdefault(program, {"program": program, "mode": mode, **entry, "modes": {}})
        one["modes"][mode] = {name: entry[name] for name in OF_A_MODE if name in entry}
    decoding = [found[name] for name in ("decode-1", "decode-32") if name in found]
    return {**({"train": found["train"]} if "train" in found else {}), **({"decode": decoding} if decoding else {})}


def apart_again(figures: Mapping[str, Any]) -> dict[Task, Entry]:
    """What was put together, by tasks."""
    found: dict[Task, Entry] = {(name, ANSWERS): figures[name] for name in PARTS if name in figures}
    for one in (figures.get("train", {}), *figures.get("decode", ())):
        for mode, entry in one.get("modes", {}).items() if "program" in one else ():
            whole = {name: value for name, value in one.items() if name not in ("program", "mode", "modes")}
            found[one["program"], mode] = whole if mode == one["mode"] else entry
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
    """How far the change of all parameters after some steps of SGD is from float64's, per variant. The parameters are
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
    rows, length = (2, 64) if tiny else (2, 2048)
    ids = tokens(model, rows, length)
    settle(model, lambda: model(input_ids=ids, labels=ids, use_cache=False).loss.backward())
    found: dict[str, Any] = {"loss": {}, "gradient_norm": {}}
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
    print(
        f"compiled with fullgraph, 2 layers, {rows}x{length}: loss {found['loss']['eager']:.5f} as it is, "
        f"{found['loss']['swapped']:.5f} swapped; gradient norm {found['gradient_norm']['eager']:.5f}, "
        f"{found['gradient_norm']['swapped']:.5f}"
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


OPCHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
PASSED = "passed"


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
            checks, left_out = OPCHECKS, ""
            if any(isinstance(a, Tensor) and a.is_floating_point() and a.itemsize == 1 for a in leaves):
                checks, left_out = OPCHECKS[1:], f"; {OPCHECKS[0]} asks of torch what it does not do in 8 bits"
            try:
                operator = getattr(torch.ops.kernelworks, name).default
                result = torch.library.opcheck(operator, (*leaves, None), test_utils=checks)
                found[name] = PASSED + left_out if set(result.values()) == {"SUCCESS"} else str(result)
            except Exception as error:
                found[name] = f"{type(error).__name__}: {str(error)[:300]}"
    bad = {k: v for k, v in found.items() if not v.startswith(PASSED)}
    print(f"opcheck on {DEVICE}: {len(found) - len(bad)} of {len(found)} ops pass {bad or ''}")
    return found


PARTS: dict[str, Callable[[bool], Any]] = {
    "validate": answers, "compile": compiled, "opcheck": opcheck,
}  # fmt: skip


def innermost(error: BaseException, most: int = 6) -> list[str]:
    """Where it was raised, and through whom: file, line and function, the last first."""
    frames = traceback.extract_tb(error.__traceback__)[::-1]
    return [f"{'/'.join(Path(f.filename).parts[-2:])}:{f.lineno} {f.name}" for f in frames[:most]]


def here(parts: list[str], tiny: bool, record: dict[str, Any]) -> None:
    """In this process, one after the other."""
    for name in parts:
        try:
            record[name] = PARTS[name](tiny)
        except Exception as error:  # the other parts still run; the record says which did not
            record[name] = {"failed": f"{type(error).__name__}: {str(error)[:500]}", "at": innermost(error)}
            print(f"{name} failed: {record[name]['failed']}, at {' < '.join(record[name]['at'])}")
        gc.collect()
        if GPU:
            torch.cuda.empty_cache()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join([*TASKS, *PARTS]))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tiny", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--profile", type=Path, help="a file for the device's time by kernel, of each variant")
    parser.add_argument("--within", type=float, default=112.0, help="seconds that all of it may take")
    parser.add_argument("--here", action="store_true", help="in this process, what no clock decides")
    given = parser.parse_args()
    if not GPU and not given.tiny:
        raise SystemExit("there is no GPU here: --tiny runs the same code on a toy model")
    record: dict[str, Any] = {}
    if given.here:
        here(given.parts.split(","), given.tiny, record)
    else:
        end_on_sigterm()
        profile = ["--profile", str(given.profile.resolve())] if given.profile else []
        figures = Figures()
        speed(given.parts.split(","), [f"--{'' if given.tiny else 'no-'}tiny", *profile], given.within, figures)
        record = figures.figures()
    if given.json:
        given.json.write_text(format_lines(record) + "\n", encoding="utf-8")
    found = [each for value in record.values() for each in (value if isinstance(value, list) else [value])]
    right = [each for each in found if isinstance(each, dict) and "torch" not in each and "failed" not in each]
    return 0 if right else 1  # what failed, or was cut off, is told in the record


if __name__ == "__main__":
    sys.exit(main())
