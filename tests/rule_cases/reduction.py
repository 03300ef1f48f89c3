"""Reductions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .registry import image, stays, tokens

aten = torch.ops.aten

REDUCED: dict[str, Callable[[Tensor, int], Tensor]] = {
    "sum": lambda x, d: x.sum(d, keepdim=True),
    "sum without the axis": lambda x, d: x.sum(d).unsqueeze(d),
    "mean": lambda x, d: x.mean(d, keepdim=True),
    "amax": lambda x, d: x.amax(d, keepdim=True),
    "amin": lambda x, d: x.amin(d).unsqueeze(d),
    "var": lambda x, d: x.var(d, keepdim=True),
    "std": lambda x, d: x.std(d, keepdim=True),
    "var_mean": lambda x, d: torch.stack(torch.var_mean(x, d, keepdim=True)).sum(0),
    "std_mean": lambda x, d: torch.stack(torch.std_mean(x, d, keepdim=True)).sum(0),
    "norm": lambda x, d: aten.norm.ScalarOpt_dim(x, 2, [d], True),
    "linalg_vector_norm": lambda x, d: torch.linalg.vector_norm(x, 2, d, keepdim=True),
    "logsumexp": lambda x, d: x.logsumexp(d, keepdim=True),
    "prod": lambda x, d: x.prod(d, keepdim=True),
    "softmax": lambda x, d: (x * x.softmax(d)).sum(d, keepdim=True),
    "log_softmax": lambda x, d: (x * x.log_softmax(d)).sum(d, keepdim=True),
    "_safe_softmax": lambda x, d: (x * torch._safe_softmax(x, d)).sum(d, keepdim=True),
    "cumsum": lambda x, d: x.cumsum(d).mean(d, keepdim=True),
    "cumprod": lambda x, d: x.cumprod(d).mean(d, keepdim=True),
    "logcumsumexp": lambda x, d: x.logcumsumexp(d).mean(d, keepdim=True),
    "nansum": lambda x, d: x.nansum(d, keepdim=True),
    "nanmean": lambda x, d: x.nanmean(d, keepdim=True),
    "any": lambda x, d: (x > 1).any(d, keepdim=True) * x.mean(d, keepdim=True),
    "all": lambda x, d: (x > -1).all(d, keepdim=True) * x.mean(d, keepdim=True),
}
for name, reduced in REDUCED.items():
    if not name.startswith("nan") and name not in ("any", "all"):
        tokens(f"{name} over channels", lambda x, f=reduced: f(x, -1), 1, {"first.weight": 0}, moved=name != "amax")
    image(f"{name} over space", lambda x, f=reduced: f(x, 2))
tokens("sum of all", lambda x: x.sum()[None], reads=1, cut={"first.weight": 0})
tokens("max of all", lambda x: x.max()[None], reads=1, cut={"first.weight": 0}, moved=False)
tokens("median of all", lambda x: x.median()[None], reads=1, **stays("`median`"))
tokens("mean over two axes", lambda x: x.mean((1, 2))[:, None], reads=1, cut={"first.weight": 0})
tokens("argmax of all", lambda x: x.argmax()[None] + 0.5, reads=1, cut={}, left={})
