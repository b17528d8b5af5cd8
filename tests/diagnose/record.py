"""Records the traces that test_gpu reads, on a GPU: ``python tests/diagnose/record.py [FOLDER]``. Takes 15 s."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from recorded import Recorded, keep, save
from torch.nn import functional
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from kernelworks.profile.call_sites import Survey
from kernelworks.profile.inductor.compiled_graphs import annotate_kernels
from kernelworks.profile.inputs import inputs_of
from kernelworks.profile.on_gpu import waiting
from kernelworks.profile.recording import record
from kernelworks.profile.trace import RUN_ANNOTATION

HIDDEN, VOCABULARY = 256, 2048


def model() -> LlamaForCausalLM:
    """Two layers of a Llama, in bfloat16."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=704, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=VOCABULARY, max_position_embeddings=512,
    )  # fmt: skip
    return LlamaForCausalLM(config).to("cuda", torch.bfloat16)


def programs() -> dict[str, Callable[[], Any]]:
    """A training step, a decode loop that reads each token, tiny kernels, fresh blocks, large products."""
    trained, decoded = model(), model().eval()
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-4)
    ids = torch.randint(0, VOCABULARY, (2, 128), device="cuda")
    small = torch.randn(1024, device="cuda")
    large = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def training() -> None:
        optimizer.zero_grad(set_to_none=True)
        trained(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()

    @torch.inference_mode()
    def decode() -> list[int]:
        past, token, chosen = DynamicCache(), ids[:1, :16], []
        for _ in range(5):
            out = decoded(token, past_key_values=past, use_cache=True)
            token = out.logits[:, -1:].argmax(-1)
            chosen.append(int(token.item()))
        return chosen

    def tiny() -> torch.Tensor:
        x = small
        for _ in range(40):
            x = torch.relu(x * 1.01 + 0.1)
        return x

    def fresh() -> float:
        torch.cuda.empty_cache()
        blocks = [torch.zeros(64 << 20, device="cuda", dtype=torch.uint8) for _ in range(4)]
        return sum(float(block[0].item()) for block in blocks)

    def products() -> torch.Tensor:
        for _ in range(4):
            out = large @ large
        return (torch.nn.functional.gelu(out) + large).sum()

    return {"training": training, "decode": decode, "tiny": tiny, "fresh": fresh, "large": products}


class Block(torch.nn.Module):
    """One of a transformer's, without dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.n1, self.n2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = (y.view(batch, length, 16, -1).transpose(1, 2) for y in self.qkv(self.n1(x)).chunk(3, -1))
        attended = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.n2(x))))


def compiled_programs(width: int = 1024, tokens: int = 4096) -> dict[str, Callable[[], Any]]:
    """Two blocks under torch.compile: a training step, and a forward in one of CUDA's graphs."""
    torch.manual_seed(0)
    layers = (torch.nn.Embedding(tokens, width), Block(width), Block(width), torch.nn.Linear(width, tokens, bias=False))
    net = torch.nn.Sequential(*layers).to("cuda", torch.bfloat16)
    ids = torch.randint(0, tokens, (8, 512), device="cuda")
    trained, graphed, few = torch.compile(net), torch.compile(net, mode="reduce-overhead"), ids[:1, :64].contiguous()

    def compiled() -> None:
        net.zero_grad()
        functional.cross_entropy(trained(ids).flatten(0, 1).float(), ids.flatten()).backward()

    @torch.no_grad()
    def in_a_graph() -> torch.Tensor:
        found: torch.Tensor = graphed(few).clone()
        return found

    return {"compiled": compiled, "graphed": in_a_graph}


def graphs(run: Callable[[], Any]) -> list[dict[str, Any]]:
    """The graphs of torch.compile that a run goes through."""
    with annotate_kernels() as found:
        run()
    fields = ("module", "annotation", "text", "graph", "given")
    return [{name: getattr(graph, name) for name in fields} for graph in found.graphs() if graph.annotation]


def taken(run: Callable[[], Any], survey: Survey | None = None) -> Recorded:
    """One run under the profiler, its events from the run's start to 10 ms after its end."""
    found: list[Recorded] = []

    def raw(results: Any, places: list[Any]) -> None:
        events = results.events()
        whole = next(e for e in events if e.name() == RUN_ANNOTATION and str(e.device_type()).endswith("CPU"))
        inputs: list[Any] = []
        if survey is not None:
            inputs = [[n, i.pointers, i.shapes, i.strides] for n, i in inputs_of(results).items()]
        kept = keep(events, since=whole.start_ns(), until=whole.end_ns() + 10_000_000)
        found.append(Recorded(kept, inputs, places, dict(survey.persistent) if survey else {}))

    record(run, survey=survey, gpu=True, raw=raw)
    return found[0]


def main(folder: Path) -> None:
    for name, program in (programs() | compiled_programs()).items():
        run = waiting(program)
        for _ in range(3):
            run()
        walls = []
        for _ in range(7):
            start = time.perf_counter()
            run()
            walls.append(time.perf_counter() - start)
        taken(run)
        facts = {"wall": statistics.median(walls), "torch": str(torch.__version__), "graphs": graphs(run)}
        save(folder / f"{name}.json.gz", {"timed": taken(run), "survey": taken(run, Survey())}, facts)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "traces")
