"""The mean that a batch norm takes away moves with what it reads, and nothing else of it does."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

import secateur


class Model(nn.Module):
    """Of what its second layer reads, only channel 0 has a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 3, 1, bias=False), nn.Conv2d(3, 6, 3, bias=False)
        self.norm = nn.BatchNorm2d(6)
        nn.init.uniform_(self.norm.running_var, 0.5, 2)
        nn.init.normal_(self.norm.weight)
        with torch.no_grad():
            self.first.weight[:, :, 0, 0] = torch.eye(3)
            self.norm.weight[2] = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.second(self.first(x).tanh()))


def images(dtype: torch.dtype) -> Tensor:
    return torch.randn(64, 3, 7, 7, dtype=dtype) + torch.tensor([2.0, 0, 0], dtype=dtype)[:, None, None]


def test_the_mean_of_the_output_is_that_of_the_dense_model() -> None:
    model = Model().double().train()
    dense, x = copy.deepcopy(model).eval(), images(torch.float64)
    report = secateur.repair(
        model, secateur.plan_channels(model, x[:2], keep_indices={"first": [1, 2]}), x, progress=False
    )
    assert report.after < report.before
    means = [each.eval()(x).mean((0, 2, 3)) for each in (model, dense)]
    torch.testing.assert_close(*means, rtol=1e-9, atol=1e-9)
    for name in ("weight", "bias", "running_var", "num_batches_tracked"):
        assert torch.equal(getattr(model.norm, name), getattr(dense.norm, name))
    assert torch.equal(model.norm.running_mean[2], dense.norm.running_mean[2])  # which nothing could tell


def test_statistics_of_the_batch_are_left_to_the_norm() -> None:
    model = Model()
    model.norm = nn.BatchNorm2d(6, track_running_stats=False)
    x = images(torch.float32) + 2 * torch.randn(64, 1, 7, 7)  # by which the channels that are left know of the other
    report = secateur.repair(
        model, secateur.plan_channels(model, x[:2], keep_indices={"first": [1, 2]}), x, progress=False
    )
    assert [(layer.name, layer.kept) for layer in report.layers] == [("second.weight", "")]
