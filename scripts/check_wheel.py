"""Runs the compiled kernels of the installed package, and fails without them: python scripts/check_wheel.py"""

from __future__ import annotations

import sys

import torch

import secateur
from secateur.examples import SmallResNet
from secateur.sparse.native import why_missing

if missing := why_missing():
    sys.exit(missing)
model = SmallResNet().eval()
secateur.apply(model, secateur.plan_weights(model, 0.95, scope="layer"))
images = torch.randn(8, 1, 28, 28)
engine = secateur.sparse_engine(model, images, progress=False)
print(secateur.__file__, engine, sep="\n")
with torch.inference_mode():
    torch.testing.assert_close(engine(images), model(images), atol=1e-4, rtol=1e-4)
