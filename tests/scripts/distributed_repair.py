"""Repairs a model in however many processes torchrun starts, each on its share of the examples, and saves the outcome.

torchrun --nproc-per-node 2 distributed_repair.py OUT CASE

A case is "channels", "zeros", "lstm", "ways" (where only the examples of one process take a branch) or "broken" (where
the model fails on those of one process alone).
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, distributed, nn

import secateur
from secateur.refit import share_of


class Branching(nn.Module):
    """Negative images take one more layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.detour, self.last = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        if x.mean() < 0:
            hidden = torch.relu(self.detour(hidden))
        return self.last(hidden)


class Broken(Branching):
    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        if (x == 99).any():
            raise RuntimeError("nobody takes 99")
        return out


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows, self.last = nn.LSTM(12, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.rows(x.reshape(len(x), 4, -1))[0][:, -1])


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 12, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(12 * 16, 4),
    )  # fmt: skip


MODELS = {"channels": images, "zeros": images, "lstm": Reader, "ways": Branching, "broken": Broken}


def main(out: Path, case: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = MODELS[case]().double().eval()
    x = torch.randn(160, *((3, 8, 8) if case in ("channels", "zeros") else (48,) if case == "lstm" else (12,))).double()
    if case == "ways":
        x = torch.cat([x[:80].abs(), -x[80:].abs()])
    if case == "broken":
        x[150] = 99
    distributed.init_process_group("gloo")
    rank, processes = distributed.get_rank(), distributed.get_world_size()
    channels = case in ("channels", "lstm")
    plan = secateur.plan_channels(model, x[:2], 0.5) if channels else secateur.plan_weights(model, 0.5, scope="layer")
    mine = share_of([x], rank, processes)
    try:
        report = secateur.repair(model, plan, mine, group=distributed.group.WORLD, progress=False)
    except secateur.SecateurError as error:
        print(f"process {rank}: {error}", flush=True)
    else:
        torch.save(model.state_dict(), out / f"model-{processes}-{rank}.pt")
        print([(layer.name, layer.kept) for layer in report.layers], report.examples, report.held_back, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
