"""A tiny model with every op on its Triton kernel, interpreted: decoding and a training step against float64.

Run in a process of its own, because Triton reads TRITON_INTERPRET when kernels are defined. Prints errors as JSON.
"""

from __future__ import annotations

import copy
import json

import torch
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from kernelworks.dispatch import certificates
from kernelworks.dispatch.op import OPS
from kernelworks.nn.swap import swap
from kernelworks.nn.validate import relative_error


def decoded(model: nn.Module, ids: Tensor, feed: Tensor) -> Tensor:
    """The logits after a prompt and after each token that is fed."""
    with torch.inference_mode():
        output = model(ids, use_cache=True)
        logits = [output.logits[:, -1]]
        for i in range(feed.shape[1]):
            output = model(feed[:, i : i + 1], past_key_values=output.past_key_values, use_cache=True)
            logits.append(output.logits[:, -1])
    return torch.stack(logits, 1)


def stepped(model: nn.Module, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of a training step, and all its gradients as one vector."""
    model.zero_grad()
    loss = model(ids, labels=ids).loss
    loss.backward()
    return loss.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])


def main() -> None:
    certificates.invalid_reason = lambda *args, **kwargs: None
    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        head_dim=16, vocab_size=64, pad_token_id=0,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    reference = copy.deepcopy(model).double()
    ids, feed = torch.randint(1, 64, (2, 5)), torch.randint(1, 64, (2, 3))
    with swap(model, verbose=False):
        model.eval()
        logits = decoded(model, ids, feed)
        bound = [b for b, *_ in model.model.layers[0]._kernelworks_parts.bound.values() if b.steady]
        kernels = {name: getattr(bound[0], name) for name in ("before", "rope", "silu_mul")}
        model.train()
        output = model(ids, labels=ids)
        loss, gradients = stepped(model, ids)
    reference.eval()
    true_logits = decoded(reference, ids, feed)
    reference.train()
    true_loss, true_gradients = stepped(reference, ids)
    print(json.dumps({
        "logits": relative_error(logits, true_logits),
        "loss": relative_error(loss, true_loss),
        "gradients": relative_error(gradients, true_gradients),
        "kernels": sorted({getattr(kernel, "func", kernel).__module__ for kernel in kernels.values()}),
        "pair": bound[0].pair is not None,
        "no_logits": output.logits is None,
        "ops": len(OPS),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
