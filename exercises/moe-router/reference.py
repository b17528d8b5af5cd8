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


def zero_first(logits, k, *, above=None):
    """Expert 0 stays where no other that is left is larger than it, or than ``above``."""
    experts = np.zeros((len(logits), k), int)
    for row, to in zip(logits, experts, strict=True):
        for slot in range(k):
            found, largest = 0, row[0] if above is None else above
            for e in range(len(row)):
                if e not in to[:slot] and row[e] > largest:
                    found, largest = e, row[e]
            to[slot] = found
    return {"experts": experts, "weights": shares(np.take_along_axis(logits, experts, 1))}


def by_token_0(logits, k):
    """An expert counts as taken where token 0 has taken it."""
    experts = np.zeros((len(logits), k), int)
    for row, to in zip(logits, experts, strict=True):
        for slot in range(k):
            left = [e for e in range(len(row)) if e not in experts[0][:slot]]
            to[slot] = max(left, key=lambda e: row[e])
    return {"experts": experts, "weights": shares(np.take_along_axis(logits, experts, 1))}


def with_weights(logits, k, weigh):
    experts = best(logits, k)
    return {"experts": experts, "weights": weigh(np.take_along_axis(logits, experts, 1))}


def going_on(chosen):
    powers = np.exp(chosen - chosen.max(axis=1, keepdims=True))
    return powers / np.cumsum(powers.sum(axis=1))[:, None]


def of_slots(logits, experts):
    first = logits[:, : experts.shape[1]] - np.take_along_axis(logits, experts[:, :1], 1)
    powers = np.exp(first.astype(np.float32))
    return powers / powers.sum(axis=1, keepdims=True)


def ascending(logits, tokens, count, k):
    found = reference(logits, tokens, count, k)
    return {name: value[:, ::-1] for name, value in found.items()}


MISTAKES = {
    "the same expert is chosen again and again": again,
    "the softmax is over all experts: it is over the chosen ones": over_all,
    "the weights are the logits themselves": as_they_are,
    "expert 0 is chosen again: best begins with an expert that may be taken already": lambda logits, tokens, count, k: (
        zero_first(logits, k)
    ),
    "expert 0 is chosen where all that are left are negative: the largest begins with one of them, not with 0": (
        lambda logits, tokens, count, k: zero_first(logits, k, above=0.0)
    ),
    "the weights are not divided by their sum": lambda logits, tokens, count, k: with_weights(
        logits, k, lambda chosen: np.exp(chosen - chosen.max(axis=1, keepdims=True))
    ),
    "the sum of the weights goes on from token to token": lambda logits, tokens, count, k: with_weights(
        logits, k, going_on
    ),
    "weight number slot is that of logit number slot: take the logit of the expert": lambda logits, tokens, count, k: {
        "experts": best(logits, k),
        "weights": of_slots(logits, best(logits, k)),
    },
    "the smallest comes first: the largest is to be first": ascending,
    "the chosen experts of token 0 are looked at for every token": lambda logits, tokens, count, k: by_token_0(
        logits, k
    ),
}
