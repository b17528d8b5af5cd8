"""The table of optimizers on the GPU. Written by `make docs`: changes are lost."""

import triton.language as tl

from kernelworks.build.triton import kernel
from kernelworks.tile.optimizers.step_table import quotient, root, steps


@kernel
def adadelta_element(place, g, number):
    p = place[0]
    v = place[1]
    u = place[2]
    sign = number[0]
    decay = number[1]
    keep = number[2]
    take = number[3]
    rate = number[4]
    eps = number[5]
    d = sign * g + decay * p
    v = keep * v + take * (d * d)
    e = quotient(root(u + eps), root(v + eps)) * d
    p = p - rate * e
    u = keep * u + take * (e * e)
    return p, v, u


adadelta_forward, adadelta_prepare = steps(
    __file__,
    adadelta_element,
    ("params", "grads", "square_avgs", "acc_deltas"),
    ("params", "square_avgs", "acc_deltas"),
    ("lr", "rho", "eps", "weight_decay", "maximize"),
    {"sign": "1 - 2 * maximize", "decay": "weight_decay", "keep": "rho", "take": "1 - rho", "rate": "lr", "eps": "eps"},
)


@kernel
def adagrad_element(place, g, number):
    p = place[0]
    s = place[1]
    sign = number[0]
    decay = number[1]
    rate = number[2]
    eps = number[3]
    d = sign * g + decay * p
    s = s + d * d
    p = p - quotient(rate * d, root(s) + eps)
    return p, s


adagrad_forward, adagrad_prepare = steps(
    __file__,
    adagrad_element,
    ("params", "grads", "state_sums"),
    ("params", "state_sums"),
    ("step", "lr", "lr_decay", "eps", "weight_decay", "maximize"),
    {"sign": "1 - 2 * maximize", "decay": "weight_decay", "rate": "lr / (1 + (step - 1) * lr_decay)", "eps": "eps"},
)


@kernel
def adam_element(place, g, number):
    p = place[0]
    m = place[1]
    v = place[2]
    sign = number[0]
    decay = number[1]
    keep = number[2]
    take = number[3]
    keep2 = number[4]
    take2 = number[5]
    rate = number[6]
    floor = number[7]
    d = sign * g + decay * p
    m = keep * m + take * d
    v = keep2 * v + take2 * (d * d)
    p = p - quotient(rate * m, root(v) + floor)
    return p, m, v


adam_forward, adam_prepare = steps(
    __file__,
    adam_element,
    ("params", "grads", "exp_avgs", "exp_avg_sqs"),
    ("params", "exp_avgs", "exp_avg_sqs"),
    ("step", "lr", "beta1", "beta2", "eps", "weight_decay", "maximize"),
    {
        "sign": "1 - 2 * maximize",
        "decay": "weight_decay",
        "keep": "beta1",
        "take": "1 - beta1",
        "keep2": "beta2",
        "take2": "1 - beta2",
        "rate": "lr * (1 - beta2**step) ** 0.5 / (1 - beta1**step)",
        "floor": "eps * (1 - beta2**step) ** 0.5",
    },
)


@kernel
def lion_element(place, g, number):
    p = place[0]
    m = place[1]
    sign = number[0]
    keep = number[1]
    take = number[2]
    keep2 = number[3]
    take2 = number[4]
    rate = number[5]
    kept = number[6]
    d = sign * g
    c = keep * m + take * d
    way = tl.where(c > 0.0, 1.0, tl.where(c < 0.0, -1.0, 0.0))
    m = keep2 * m + take2 * d
    p = kept * p - rate * way
    return p, m


lion_forward, lion_prepare = steps(
    __file__,
    lion_element,
    ("params", "grads", "exp_avgs"),
    ("params", "exp_avgs"),
    ("lr", "beta1", "beta2", "weight_decay", "maximize"),
    {
        "sign": "1 - 2 * maximize",
        "keep": "beta1",
        "take": "1 - beta1",
        "keep2": "beta2",
        "take2": "1 - beta2",
        "rate": "lr",
        "kept": "1 - lr * weight_decay",
    },
)


@kernel
def muon_momentum_element(place, g, number):
    p = place[0]
    m = place[1]
    keep = number[0]
    take = number[1]
    ahead = number[2]
    d = g - m
    m = tl.where(take * 1.0 < 0.5, m + take * d, g - keep * d)
    e = m - g
    n = tl.where(keep * 1.0 < 0.5, g + keep * e, m - take * e)
    p = tl.where(ahead * 1.0 > 0.5, n, m)
    return p, m


muon_momentum_forward, muon_momentum_prepare = steps(
    __file__,
    muon_momentum_element,
    ("params", "grads", "momentum_buffers"),
    ("params", "momentum_buffers"),
    ("momentum", "nesterov"),
    {"keep": "momentum", "take": "1 - momentum", "ahead": "nesterov"},
)


@kernel
def rmsprop_element(place, g, number):
    p = place[0]
    v = place[1]
    sign = number[0]
    decay = number[1]
    keep = number[2]
    take = number[3]
    rate = number[4]
    eps = number[5]
    d = sign * g + decay * p
    v = keep * v + take * (d * d)
    p = p - quotient(rate * d, root(v) + eps)
    return p, v


rmsprop_forward, rmsprop_prepare = steps(
    __file__,
    rmsprop_element,
    ("params", "grads", "square_avgs"),
    ("params", "square_avgs"),
    ("lr", "alpha", "eps", "weight_decay", "maximize"),
    {
        "sign": "1 - 2 * maximize",
        "decay": "weight_decay",
        "keep": "alpha",
        "take": "1 - alpha",
        "rate": "lr",
        "eps": "eps",
    },
)
