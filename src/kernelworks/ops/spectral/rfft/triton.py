"""rfft on the GPU."""
from typing import Any
def forward(*args: Any, out: Any = None) -> Any: raise NotImplementedError
def backward(*args: Any, out: Any = None) -> Any: raise NotImplementedError
