"""Programs of the kind that people bring to have them made quicker, at tiny sizes: name -> (run, its patterns)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelworks.diagnose.rules.patterns import ADAM, FOLDABLE, GATE, NORM, ROTARY

__all__ = ["PROGRAMS", "TRAINED"]

torch.manual_seed(0)
Run = Callable[[], Any]

A, B = torch.randn(8, 12), torch.randn(12, 10)
X, Y = torch.randn(6, 16), torch.rand(6, 16)
SEQUENCE = torch.randn(2, 5, 16)
LINE, IMAGE, VOLUME = torch.randn(2, 4, 12), torch.randn(2, 4, 10, 10), torch.randn(1, 4, 5, 6, 7)
IDS, CLASSES = torch.randint(0, 16, (2, 5)), torch.randint(0, 16, (6,))
SIGNS = torch.sign(torch.randn(6))


def module(made: nn.Module, *args: Tensor, train: bool = False) -> Run:
    made.train(train)
    return lambda: made(*args)


# ---------------------------------------------------------------- small networks


class Residual(nn.Module):
    def __init__(self, channels: int, groups: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, groups=groups, bias=False)
        self.second = nn.Conv2d(channels, channels, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)])

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + x)


class Squeeze(nn.Module):
    """Squeeze and excitation, then shuffled channels."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(4, 2), nn.Linear(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.sigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1).flatten(1)))))
        y = (x * weights[:, :, None, None]).view(2, 2, 2, 10, 10)
        return y.transpose(1, 2).reshape(2, 4, 10, 10)


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        parts = [
            nn.Sequential(nn.BatchNorm2d(4 + 2 * i), nn.ReLU(), nn.Conv2d(4 + 2 * i, 2, 3, 1, 1)) for i in range(5)
        ]
        self.layers = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return torch.cat(features, 1)


class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(4, 2, 1), nn.Conv2d(4, 2, 3, padding=1), nn.Conv2d(4, 2, 5, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.a(x), self.b(x), self.c(x), F.max_pool2d(x, 3, 1, 1)], 1)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(8, 4, 2, 2), nn.Conv2d(12, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = F.softmax(self.down(x), 1)
        y = self.up(F.silu(self.middle(F.max_pool2d(kept, 2))))
        return self.last(torch.cat([kept, y], 1))


class Vgg(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2, 2), nn.Flatten(),
            nn.Linear(200, 32), nn.ReLU(True), nn.Dropout(0.5), nn.Linear(32, 4),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Block(nn.Module):
    """A transformer block as minGPT has it: its own gelu, its own mask."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("mask", torch.tril(torch.ones(8, 8)).view(1, 1, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norms[0](x)).split(width, 2)
        )
        scores = (q @ k.transpose(-2, -1)) * (width / self.heads) ** -0.5
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        y = (F.softmax(scores, -1) @ v).transpose(1, 2).contiguous().view(batch, length, width)
        x = x + self.out(y)
        h = self.up(self.norms[1](x))
        return x + self.down(0.5 * h * (1.0 + torch.tanh(0.7978845608 * (h + 0.044715 * torch.pow(h, 3.0)))))


class Llama(nn.Module):
    """A block with its norm, rotary embedding and gate written out."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.weight, self.heads = nn.Parameter(torch.ones(width)), 2
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(width, 24), nn.Linear(width, 24), nn.Linear(24, width)
        self.register_buffer("cos", torch.randn(5, 8))
        self.register_buffer("sin", torch.randn(5, 8))

    def norm(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def rotate(self, x: Tensor) -> Tensor:
        left, right = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        return x * self.cos + torch.cat((-right, left), -1) * self.sin

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (p(h).view(2, 5, 2, 8).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(2, 5, 16))
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Scan(nn.Module):
    """A selective scan, step by step, behind a short convolution and before a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out, self.rate = nn.Linear(16, 32), nn.Linear(16, 16), nn.Parameter(torch.randn(16, 4))
        self.short, self.select = nn.Conv1d(16, 16, 3, padding=2, groups=16), nn.Linear(16, 24)

    def forward(self, u: Tensor) -> Tensor:
        x, z = self.into(u).chunk(2, -1)
        x = F.silu(self.short(x.transpose(1, 2))[..., :5].transpose(1, 2))
        step, b, c = self.select(x).split([16, 4, 4], -1)
        step, a = F.softplus(step), -torch.exp(self.rate)
        state, outputs = torch.zeros(2, 16, 4), []
        for t in range(5):
            decay = torch.exp(step[:, t, :, None] * a)
            state = decay * state + (step[:, t] * x[:, t])[..., None] * b[:, t, None]
            outputs.append((state * c[:, t, None]).sum(-1))
        return self.out(torch.stack(outputs, 1) * F.silu(z))


class Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.token = nn.Linear(100, 16), nn.Parameter(torch.randn(1, 1, 16))
        self.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu")
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        patches = x.unfold(2, 5, 5).unfold(3, 5, 5).permute(0, 2, 3, 1, 4, 5).reshape(2, 4, 100)
        y = torch.cat([self.token.expand(2, -1, -1), self.patch(patches)], 1)
        return self.head(self.block(y)[:, 0])


class Vlad(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.clusters, self.centres = nn.Parameter(torch.randn(16, 4)), nn.Parameter(torch.randn(1, 16, 4))

    def forward(self, x: Tensor) -> Tensor:
        share = F.softmax(x @ self.clusters, -1)
        summed = share.sum(1, keepdim=True) * self.centres
        vlad = torch.matmul(share.transpose(1, 2), x).transpose(1, 2) - summed
        return F.normalize(F.normalize(vlad, dim=1).reshape(2, -1))


def triangular() -> Tensor:
    return torch.triu(torch.matmul(torch.triu(A[:, :8]), torch.triu(A[:, 4:])))


def step(make: Callable[..., torch.optim.Optimizer], model: nn.Module, x: Tensor) -> Run:
    optimizer = make(model.parameters())

    def run() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.tensor([1, 3])).backward()
        optimizer.step()

    return run


class Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru, self.head = (
            nn.LSTM(16, 8, batch_first=True),
            nn.GRU(8, 8, batch_first=True),
            nn.Linear(8, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(self.lstm(x)[0])[0][:, -1])


# ---------------------------------------------------------------- the table

SIMPLE: dict[str, Run] = {
    "square product": lambda: A @ A.t(), "tall product": lambda: A.t() @ A, "batched product": lambda: torch.bmm(
        SEQUENCE, SEQUENCE.transpose(1, 2)
    ), "matrix and vector": lambda: A @ B[:, 0], "diagonal product": lambda: torch.diag(A[:, 0]) @ A,
    "four-dimensional product": lambda: torch.einsum("bijl,lk->bijk", IMAGE, torch.randn(10, 3)),
    "triangular product": triangular, "scaled product": lambda: A * 3.0,
    "outer sum": lambda: torch.addr(A, A[:, 0], A[0]), "bilinear": module(nn.Bilinear(16, 16, 3), X, Y),
    "leaky relu": lambda: F.leaky_relu(X, 0.01), "hardsigmoid": lambda: F.hardsigmoid(X), "elu": lambda: F.elu(X),
    "softsign": lambda: F.softsign(X), "mish": lambda: F.mish(X), "glu": lambda: F.glu(X), "selu": lambda: F.selu(X),
    "prelu": module(nn.PReLU(), X), "log softmax": lambda: F.log_softmax(X, 1), "hardtanh": lambda: F.hardtanh(X),
    "swish": lambda: X * torch.sigmoid(X), "softplus": lambda: F.softplus(X), "logsumexp": lambda: X.logsumexp(1),
    "batch norm": module(nn.BatchNorm2d(4), IMAGE, train=True), "instance norm": module(nn.InstanceNorm2d(4), IMAGE),
    "group norm": module(nn.GroupNorm(2, 4), IMAGE), "frobenius norm": lambda: X / torch.norm(X, p="fro"),
    "l1 norm": lambda: X / X.abs().sum(1, keepdim=True), "l2 norm": lambda: X / X.norm(p=2, dim=1, keepdim=True),
    "layer norm": module(nn.LayerNorm((4, 10, 10)), IMAGE), "local response": lambda: F.local_response_norm(IMAGE, 2),
    "norm over channels": lambda: IMAGE / torch.sqrt((IMAGE**2).mean(1, keepdim=True) + 1e-5),
    "pools": lambda: [F.max_pool1d(LINE, 3, 2, 1, 2), F.avg_pool2d(IMAGE, 3), F.max_pool3d(VOLUME, 2, ceil_mode=True)],
    "reductions": lambda: [X.max(1), X.min(1), X.argmax(1), X.argmin(1), X.mean(1), X.prod(1), X.median(1)],
    "scans": lambda: [X.cumsum(1), X.cumprod(1), X.flip(1).cumsum(1).flip(1), (X * (X > 0)).cumsum(1), X.cummax(1)],
    "losses": lambda: [
        F.mse_loss(X, Y), F.smooth_l1_loss(X, Y), F.huber_loss(X, Y), F.cross_entropy(X, CLASSES), F.l1_loss(X, Y),
        F.kl_div(torch.log(Y), Y, reduction="batchmean"), F.triplet_margin_loss(X, Y, X + 1),
        F.binary_cross_entropy(Y, Y), F.binary_cross_entropy_with_logits(X, Y), F.nll_loss(X, CLASSES),
        torch.mean(torch.clamp(1 - X[:, 0] * SIGNS, min=0)), (1 - F.cosine_similarity(X, Y)).mean(),
        F.cosine_embedding_loss(X, Y, SIGNS), F.gaussian_nll_loss(X, Y, Y), F.multi_margin_loss(X, CLASSES),
    ],
    "conv 1d, dilated": module(nn.Conv1d(4, 6, 3, stride=2, dilation=2), LINE),
    "conv 2d, depthwise and pointwise": module(nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 8, 1)), IMAGE),
    "conv 2d, odd sides": module(nn.Conv2d(4, 6, (3, 5), padding=(1, 2)), IMAGE),
    "conv 3d": module(nn.Conv3d(4, 6, 3, padding=1), VOLUME),
    "transposed conv 1d": module(nn.ConvTranspose1d(4, 6, 3, stride=2, dilation=2), LINE),
    "transposed conv 2d": module(nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1), IMAGE),
    "transposed conv 3d": module(nn.ConvTranspose3d(4, 6, 3, groups=2), VOLUME),
    "conv, bias, clamp": lambda: torch.clamp(F.conv2d(IMAGE, torch.ones(4, 4, 3, 3)) + 1, 0, 1).mul(2).tanh(),
    "conv, min, tanh twice": lambda: F.conv2d(IMAGE, torch.ones(4, 4, 3, 3)).min(1, keepdim=True)[0].tanh().tanh(),
    "conv, silu alone": lambda: F.silu(F.conv2d(IMAGE, torch.ones(4, 4, 3, 3))),
    "product, sum, max, logsumexp": lambda: (A @ B).sum(1, keepdim=True).max(1, keepdim=True)[0].logsumexp(1),
    "product, dropout, softmax": lambda: F.softmax(F.dropout(A @ B, 0.5), 1), "crelu": lambda: torch.cat([X, -X], 1),
    "look-ups": lambda: [F.embedding(IDS, X.t()), F.embedding_bag(IDS, X.t()), X[:, CLASSES], X.gather(1, IDS[:, :5])],
    "resized": lambda: [
        F.interpolate(IMAGE, scale_factor=2), F.interpolate(IMAGE, size=7, mode="bilinear"), F.pixel_shuffle(IMAGE, 2),
        F.interpolate(IMAGE, size=5, mode="bicubic"), F.unfold(IMAGE, 3), F.pad(IMAGE, (1, 1, 1, 1), mode="reflect"),
        F.grid_sample(IMAGE, torch.rand(2, 3, 3, 2), align_corners=False),
        F.adaptive_max_pool2d(IMAGE, 3), F.adaptive_avg_pool2d(IMAGE, 3),
    ],
    "spectrum": lambda: [torch.fft.rfft(X), torch.fft.fft2(X).abs(),
        torch.stft(LINE[0], 8, window=LINE[0, 0, :8], return_complex=True)],
    "matrices": lambda: [torch.linalg.svdvals(A), torch.linalg.qr(A), torch.linalg.inv(A @ A.t() + 9 * torch.eye(8))],
    "lstm": module(nn.LSTM(16, 8, 2, batch_first=True, bidirectional=True), SEQUENCE),
    "gru": module(nn.GRU(16, 8, 2), SEQUENCE), "rnn": module(nn.RNN(16, 8), SEQUENCE),
    "cells": lambda: [nn.LSTMCell(16, 8)(X), nn.GRUCell(16, 8)(X)],
    "attention of torch": lambda: nn.MultiheadAttention(16, 2)(SEQUENCE, SEQUENCE, SEQUENCE),
    "encoder, quick way": module(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), SEQUENCE),
    "encoder, trained": module(nn.TransformerEncoderLayer(16, 2, 32), SEQUENCE, train=True),
    "relu attention": lambda: F.relu(SEQUENCE @ SEQUENCE.transpose(1, 2)) @ SEQUENCE,
    "squeeze and shuffle": module(Squeeze(), IMAGE), "densenet": module(Dense(), IMAGE), "vgg": module(Vgg(), IMAGE),
    "inception": module(Inception(), IMAGE), "unet": module(UNet(), IMAGE), "mingpt": module(Block(), SEQUENCE),
    "vision transformer": module(Vit(), IMAGE), "netvlad": module(Vlad(), SEQUENCE),
}  # fmt: skip

PROGRAMS: dict[str, tuple[Run, set[str]]] = {
    **{name: (run, set[str]()) for name, run in SIMPLE.items()},
    "resnet": (module(nn.Sequential(Residual(4), Residual(4)), IMAGE), {FOLDABLE}),
    "mobilenet": (module(nn.Sequential(Residual(4, 4), nn.AdaptiveAvgPool2d(1)), IMAGE), {FOLDABLE}),
    "llama": (module(Llama(), SEQUENCE), {NORM, ROTARY, GATE}),
    "mamba": (module(Scan(), SEQUENCE), {GATE}),
    "rms norm": (lambda: X / torch.sqrt((X**2).mean(-1, keepdim=True) + 1e-5), {NORM}),
}

TRAINED: dict[str, tuple[Run, set[str]]] = {
    "vgg by adamw": (step(torch.optim.AdamW, Vgg(), IMAGE), {ADAM}),
    "vgg by fused adamw": (step(lambda p: torch.optim.AdamW(p, fused=True), Vgg(), IMAGE), set()),
    "vgg by adamw of lists": (step(lambda p: torch.optim.AdamW(p, foreach=True), Vgg(), IMAGE), set()),
    "resnet by sgd": (
        step(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), nn.Sequential(Residual(4), nn.Flatten()), IMAGE),
        set(),
    ),
    "unet by rmsprop": (step(lambda p: torch.optim.RMSprop(p), nn.Sequential(UNet(), nn.Flatten()), IMAGE), set()),
    "transformer by adam": (step(torch.optim.Adam, nn.Sequential(Vit()), IMAGE), {ADAM}),
    "lstm by adagrad": (step(torch.optim.Adagrad, Last(), SEQUENCE), set()),
}
