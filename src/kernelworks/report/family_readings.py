"""What each family of ops is: its word in a model, what it is as a kernel, and how such kernels usually fail."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FAMILY_READINGS", "FamilyReading"]


class FamilyReading(NamedTuple):
    """``model``: where a network has it. ``kernel``: what bounds it. ``failure``: what breaks first."""

    model: str
    kernel: str
    failure: str


FAMILY_READINGS = {
    "activation": FamilyReading(
        "between two linear layers: ReLU, GELU, SiLU, and their gated pairs",
        "one read and one write an element: bound by memory, unless an exponential is slower; fused it costs nothing",
        "overflow of exp in the tail, the derivative at 0 and at infinity",
    ),
    "attention": FamilyReading(
        "each token reads all tokens before it; with a cache a new token reads the cache",
        "two products with a softmax between, in tiles, scores never stored: bound by compute in prefill, by "
        "the reading of the cache in decode",
        "a row that is masked whole, the running maximum, a tile across the end of a cache or a page",
    ),
    "communication": FamilyReading(
        "gradients and activations shared between ranks",
        "bytes over a link: bound by the link and by its latency; hidden behind compute or not",
        "a rank that is late, dead, or has another shape",
    ),
    "convolution": FamilyReading(
        "images, audio, and the short filters before a state-space layer",
        "a product over a window: bound by compute with many channels, by memory when depthwise",
        "edges, strides and dilations that do not divide, groups, channels_last",
    ),
    "linalg": FamilyReading(
        "whitening, Gaussian processes, second-order optimizers: many small systems",
        "a few hundred flop for each small matrix: bound by latency unless a batch is done side by side",
        "a matrix that is nearly singular, values that lie close together",
    ),
    "linear": FamilyReading(
        "every projection: w x + b",
        "a matrix product: bound by compute for many rows, by the reading of weights for one",
        "tails of a tile, sums in 16 bits, a gradient of the bias that is summed in the wrong order",
    ),
    "lookup": FamilyReading(
        "token and item embeddings, gathers, scatters",
        "rows at addresses that are data: bound by memory latency, of which many must be under way",
        "two indices that name one row, padding, offsets beyond 2^31",
    ),
    "norm": FamilyReading(
        "LayerNorm, RMSNorm, GroupNorm, BatchNorm: a row by its own size",
        "two passes over a row: bound by memory; once if the row stays in registers",
        "a mean of 1e6 with a spread of 1e-3, a row of zeros, running statistics",
    ),
    "optimizer": FamilyReading(
        "the step: SGD, Adam, Lion over all parameters",
        "three to five streams of equal length: bound by memory; overhead if each tensor is a call",
        "a decay below the rounding of 16 bits, a learning rate of 0, states that are denormal",
    ),
    "pooling": FamilyReading(
        "maxima and means over windows of an image or a signal",
        "a small reduction for each output: bound by memory",
        "windows that hold padding alone, NaN, equal maxima",
    ),
    "position": FamilyReading(
        "RoPE: queries and keys turned by their position",
        "a rotation of pairs: bound by memory; one pass with queries and keys together",
        "angles of positions beyond 100,000 in 16 bits, which pairs belong together",
    ),
    "quantization": FamilyReading(
        "weights in 4 to 8 bits, as GGUF, AWQ and GPTQ keep them",
        "bytes unpacked on the way to a product: bound by the reading of weights",
        "a block of zeros, scales that are subnormal or infinite, rounding of ties",
    ),
    "recurrent": FamilyReading(
        "LSTM and GRU: a state from step to step",
        "a small product for each step, one after the other: bound by latency",
        "the state that a gate forgets, sequences of unequal lengths",
    ),
    "reduction": FamilyReading(
        "losses, softmax, sums, maxima over a dimension",
        "one read an element: bound by memory; in parts if rows are few",
        "the order of a long sum, NaN, a row of -infinity, ties of an argmax",
    ),
    "routing": FamilyReading(
        "mixture of experts: the best k experts of each token",
        "a selection, a product by groups of uneven sizes, a weighted sum: bound by the reading of experts",
        "an expert without tokens, one with all of them, ids that mean nobody",
    ),
    "scan": FamilyReading(
        "cumulative sums, linear attention, state-space layers",
        "a dependence from element to element, cut into chunks: bound by memory when the chunks are wide",
        "chunks that do not divide the length, a decay that underflows",
    ),
    "selection": FamilyReading(
        "the k largest, a sorted row, the next token",
        "comparisons, with data-dependent ends: bound by latency",
        "more ties than a buffer holds, NaN, -infinity",
    ),
    "similarity": FamilyReading(
        "kernel regression, Gaussian processes, support vectors: K(x, y) times v",
        "a product with exponentials between, K never stored: bound by compute or by exp",
        "points far from the origin and close together, duplicates",
    ),
    "spectral": FamilyReading(
        "long convolutions, audio, Fourier layers, Hadamard rotations",
        "log n passes over a line, kept in cache: bound by memory",
        "prime lengths, the imaginary part of what must be real, the plan of a second call",
    ),
}
