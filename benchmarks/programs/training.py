"""Training language models: transformers' Trainer, and a loop by hand under autocast with a GPT of its own."""

from __future__ import annotations

import functools
import math
import tempfile
from typing import Any

import torch
import torch.nn.functional as F
from place import DEVICE, sized
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

PAIRS = {"trainer": "fine_tuned", "autocast": "gpt"}


class Lines(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Lines of tokens, whose labels are the tokens."""

    def __init__(self, rows: int, length: int, vocabulary: int) -> None:
        self.ids = torch.randint(0, vocabulary, (rows, length), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


@functools.cache
def fine_tuned() -> tuple[nn.Module, Any]:
    """GPT-2 small on a GPU, a smaller one on a CPU, and its Trainer."""
    torch.manual_seed(0)
    small = {"vocab_size": 8000, "n_embd": 256, "n_layer": 4, "n_head": 4}
    config = GPT2Config(**sized(cpu=small, gpu={}))
    model = GPT2LMHeadModel(config)
    steps, rows, length = sized(cpu=(2, 4, 64), gpu=(4, 8, 1024))
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=rows,
        max_steps=steps,
        learning_rate=1e-5,
        bf16=DEVICE == "cuda",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    return model, Trainer(model, arguments, train_dataset=Lines(steps * rows, length, config.vocab_size))


def trainer() -> float:
    """A few steps as ``Trainer.train`` takes them: data loader, scheduler, clipping and log included."""
    _, training = fine_tuned()
    return training.train().training_loss


# ---------------------------------------------------------------- by hand


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).split(c, dim=2)
        q, k, v = (s.view(b, t, self.heads, c // self.heads).transpose(1, 2) for s in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).contiguous().view(b, t, c))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


@functools.cache
def gpt() -> tuple[nn.Module, torch.optim.Optimizer, Tensor]:
    """A GPT with weights in float32, its optimiser, and a text of tokens."""
    torch.manual_seed(0)
    vocabulary, length, width, depth, heads = sized(cpu=(4096, 128, 256, 4, 4), gpu=(50304, 1024, 768, 12, 12))
    model = GPT(vocabulary, length, width, depth, heads).to(DEVICE)
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=6e-5, betas=(0.9, 0.95))
    rows = sized(cpu=8, gpu=8)
    return model, optimizer, torch.randint(0, vocabulary, (rows, length + 1), device=DEVICE)


def autocast() -> float:
    """One step: forward under autocast, backward, clipping, AdamW; and the loss is printed."""
    model, optimizer, text = gpt()
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        _, loss = model(text[:, :-1].contiguous(), text[:, 1:].contiguous())
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if not math.isfinite(norm.item()):
        raise FloatingPointError("the gradients are not finite")
    return loss.item()
