"""Trains a classifier of texts: the mean of a text's word vectors, and two linear layers. docs/tutorial.md is of it.

    python examples/classify.py
    kernelworks diagnose examples/classify.py:epoch --fix

It is written as tutorials of PyTorch write it, and spends most of its time on neither product. Texts are random.
"""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TEXTS, LENGTH, WORDS, CLASSES, WIDTH = 4096, 16, 15_000, 20, 64


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 128), nn.GELU(), nn.Linear(128, CLASSES))

    def forward(self, texts: torch.Tensor) -> torch.Tensor:
        return self.layers(self.words(texts).mean(1))


torch.manual_seed(0)
labels = torch.randint(0, CLASSES, (TEXTS,))
texts = torch.randint(0, WORDS, (TEXTS, LENGTH))
texts[:, ::4] = texts[:, ::4] // CLASSES * CLASSES + labels[:, None]  # every fourth word tells the class
data = TensorDataset(texts, labels)
batches = DataLoader(data, batch_size=256, shuffle=True)
model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def epoch() -> float:
    total = 0.0
    for text, label in batches:
        loss = nn.functional.cross_entropy(model(text), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(batches)


if __name__ == "__main__":
    for number in range(5):
        start = time.perf_counter()
        loss = epoch()
        print(f"epoch {number}: loss {loss:.3f}, {1e3 * (time.perf_counter() - start):.0f} ms")
