"""A problem, and two right candidates for it."""

PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a, b):
        return torch.sigmoid(a) * b


def get_inputs():
    return [torch.randn(40, 100), torch.randn(40, 100)]


def get_init_inputs():
    return []
"""
RIGHT = """import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return b * torch.sigmoid(a)
"""
OTHER = RIGHT.replace("b * torch.sigmoid(a)", "torch.mul(torch.sigmoid(a), b)")
