"""Pictures: a vision transformer, a convolutional net that is asked, and one that is trained."""

from __future__ import annotations

import functools

import torch
from place import DEVICE, sized
from resnet import resnet18, resnet50
from torch import nn
from transformers import ViTConfig, ViTForImageClassification

PAIRS = {"vit": "transformer", "conv_inference": "net", "conv_training": "trained"}


@functools.cache
def transformer() -> tuple[nn.Module, torch.Tensor]:
    """ViT: tiny on a CPU, large on a GPU."""
    torch.manual_seed(0)
    tiny = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768}
    large = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    with torch.device(DEVICE):
        model = ViTForImageClassification(ViTConfig(num_labels=1000, **sized(cpu=tiny, gpu=large)))
    dtype = sized(cpu=torch.float32, gpu=torch.bfloat16)
    pictures = torch.randn(sized(cpu=16, gpu=64), 3, 224, 224, device=DEVICE, dtype=dtype)
    return model.to(dtype).eval(), pictures


@torch.inference_mode()
def vit() -> torch.Tensor:
    """The five likeliest classes of each picture."""
    model, pictures = transformer()
    return model(pixel_values=pictures).logits.topk(5).indices


@functools.cache
def net() -> tuple[nn.Module, torch.Tensor]:
    """ResNet-50."""
    torch.manual_seed(0)
    model = resnet50().to(DEVICE).eval()
    pictures = torch.randn(sized(cpu=4, gpu=64), 3, 224, 224, device=DEVICE)
    return (model.half(), pictures.half()) if DEVICE == "cuda" else (model, pictures)


def conv_inference() -> torch.Tensor:
    """The classes' probabilities."""
    model, pictures = net()
    with torch.no_grad():
        return torch.softmax(model(pictures), dim=1)


@functools.cache
def trained() -> tuple[nn.Module, torch.optim.Optimizer, nn.Module, torch.Tensor, torch.Tensor]:
    """ResNet-18 on a CPU as it comes; ResNet-50 on a GPU with the channels last."""
    torch.manual_seed(0)
    model = sized(cpu=resnet18, gpu=resnet50)().to(DEVICE).train()
    rows, side = sized(cpu=(8, 112), gpu=(64, 224))
    pictures = torch.randn(rows, 3, side, side, device=DEVICE)
    labels = torch.randint(0, 1000, (rows,), device=DEVICE)
    if DEVICE == "cuda":
        model = model.to(memory_format=torch.channels_last)
        pictures = pictures.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
    return model, optimizer, nn.CrossEntropyLoss(label_smoothing=0.1), pictures, labels


def conv_training() -> torch.Tensor:
    """One step."""
    model, optimizer, criterion, pictures, labels = trained()
    with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=DEVICE == "cuda"):
        loss = criterion(model(pictures), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()
