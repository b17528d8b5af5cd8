"""A recurrent language model (Zaremba et al. 2014): two LSTM layers with dropout, trained over windows of a text."""

from __future__ import annotations

import functools

import torch
from place import DEVICE, sized
from torch import Tensor, nn

PAIRS = {"lstm": "speller"}

State = tuple[Tensor, Tensor]


class LanguageModel(nn.Module):
    def __init__(self, vocabulary: int, width: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, width, depth, dropout=dropout)
        self.decoder = nn.Linear(width, vocabulary)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)

    def forward(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """[T, B] -> [T * B, vocabulary]"""
        out, state = self.rnn(self.drop(self.encoder(ids)), state)
        return self.decoder(self.drop(out)).flatten(0, 1), state


@functools.cache
def speller() -> tuple[nn.Module, nn.Module, Tensor, State]:
    torch.manual_seed(0)
    vocabulary, width, rows, length = sized(cpu=(6000, 320, 20, 71), gpu=(33278, 1500, 64, 141))
    model = LanguageModel(vocabulary, width, 2, 0.2).to(DEVICE)
    state = (torch.zeros(2, rows, width, device=DEVICE), torch.zeros(2, rows, width, device=DEVICE))
    return model, nn.CrossEntropyLoss(), torch.randint(0, vocabulary, (length, rows), device=DEVICE), state


def lstm() -> float:
    """An epoch of two windows, the state handed on; gradients clipped, plain descent by hand."""
    model, criterion, text, state = speller()
    model.train()
    total, window = 0.0, (len(text) - 1) // 2
    for start in range(0, len(text) - 1, window):
        ids, target = text[start : start + window], text[start + 1 : start + 1 + window].reshape(-1)
        state = (state[0].detach(), state[1].detach())
        model.zero_grad()
        out, state = model(ids, state)
        loss = criterion(out, target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        with torch.no_grad():
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-1e-3)
        total += loss.item()
    return total / 2
