"""The best k experts of each token, and their weights."""

import numpy as np

from kernelworks.learn.case import HALF_ULP, Case, Output, random

EQUAL = "of equal logits the expert with the smaller index comes first"


def case(logits, k, about, **more):
    tokens, count = logits.shape
    outputs = {"experts": Output((tokens, k), "int64"), "weights": Output((tokens, k))}
    arrays = {"logits": logits.astype(np.float32), **outputs}
    return Case(about, {**arrays, "tokens": tokens, "count": count, "k": k}, **more)


def cases():
    for tokens, count, k in ((3, 8, 2), (2, 5, 1), (4, 4, 4), (1, 13, 3)):
        yield case(2 * random(count).standard_normal((tokens, count)), k, f"{tokens} tokens, {count} experts, k = {k}")
    yield case(100 * random(3).standard_normal((3, 6)), 2, "logits of hundreds")
    yield case(np.array([[1.0, 2.0, 2.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0, 0.0]]), 3, "equal logits", alone=EQUAL)


def timed():
    tokens, count, k = 256, 64, 4
    logits = random(1).standard_normal((tokens, count))
    about = f"{tokens} tokens, {count} experts, k = {k}"
    return case(logits, k, about, flop=tokens * count * k, bytes=4 * tokens * count)


def best(logits, k):
    return np.argsort(-logits, axis=1, kind="stable")[:, :k]


def shares(chosen):
    powers = np.exp(chosen - chosen.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def reference(logits, tokens, count, k):
    experts = best(logits, k)
    return {"experts": experts, "weights": shares(np.take_along_axis(logits, experts, 1))}


def bound(logits, tokens, count, k):
    chosen = np.take_along_axis(logits, best(logits, k), 1)
    limit = HALF_ULP * (k + 8 + np.abs(chosen - chosen.max(axis=1, keepdims=True))) * shares(chosen) + 2.0**-140
    return {"experts": np.zeros((tokens, k)), "weights": limit}


def over_all(logits, tokens, count, k):
    experts = best(logits, k)
    return {"experts": experts, "weights": np.take_along_axis(shares(logits), experts, 1)}


def again(logits, tokens, count, k):
    return {"experts": np.repeat(best(logits, 1), k, axis=1), "weights": np.full((tokens, k), 1 / k)}


def as_they_are(logits, tokens, count, k):
    experts = best(logits, k)
    return {"experts": experts, "weights": np.take_along_axis(logits, experts, 1)}


MISTAKES = {
    "the same expert is chosen again and again": again,
    "the softmax is over all experts: it is over the chosen ones": over_all,
    "the weights are the logits themselves": as_they_are,
}
