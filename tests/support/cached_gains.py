"""A cached function in a file of its own, for `tests/channels/test_caches.py`."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache
def gains(length: int, channels: int) -> Tensor:
    return torch.full((length, channels), 0.5)
