"""Estimators with scikit-learn's face on kernel matrices that are never stored.

``KernelRidge``, ``GaussianProcessRegressor`` and ``SVC``: their memory grows with the number of points, not with its
square. scikit-learn is optional to kernelworks; they need it (``pip install kernelworks[estimators]``).
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelworks.estimators.gaussian_process import GaussianProcessRegressor
    from kernelworks.estimators.ridge import KernelRidge
    from kernelworks.estimators.support_vectors import SVC

__all__ = ["SVC", "GaussianProcessRegressor", "KernelRidge"]

_HOMES = {"SVC": "support_vectors", "GaussianProcessRegressor": "gaussian_process", "KernelRidge": "ridge"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        importlib.import_module("sklearn")
    except ImportError as error:
        raise ImportError(f"kernelworks.estimators.{name} needs scikit-learn: pip install scikit-learn") from error
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
