"""ultralytics' YOLO: `plan_yolo` makes a plan that training and export can work with, `pruned_trainer` keeps the cut.

`YOLO.train` builds the network anew from its YAML file, at full size, and takes over what weights still fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor, nn

from secateur.base import Amount, UsageError, copy_of_model, tensors_by_path
from secateur.channels import plan_channels
from secateur.plans import Options, Plan

if TYPE_CHECKING:
    from ultralytics import YOLO
    from ultralytics.engine.trainer import BaseTrainer

_SET_BY_DATA = {"nc": "classes", "kpt_shape": "key points", "channels": "image channels"}
"""What a network is built for, by the names that its YAML file and that of the data have for it."""


def plan_yolo(
    yolo: YOLO, images: Tensor, amount: Amount | None = None, *, target: str | None = None, **options: Unpack[Options]
) -> Plan:
    """`plan_channels` for the network of `yolo`: what the loss reads keeps its shape, and `YOLO.export` works after it.

    Args:
        yolo: stays as it is; `secateur.apply(yolo.model, plan)` cuts it.
        images: example inputs, with values from 0 to 1.
        amount: as in `plan_channels`, and so are `target` and the options.
    """
    network = copy_of_model(_network(yolo)).eval()
    for block in network.modules():
        if hasattr(block, "forward_split"):  # an export runs it instead of forward, and it reads one more size
            vars(block)["forward"] = block.forward_split
        if hasattr(block, "dynamic"):  # anchors are made in every pass: those that a head keeps are of the old widths
            vars(block)["dynamic"] = True
    options.setdefault("outputs", _read_by_the_loss(network, images))
    return plan_channels(network, images, amount, target=target, **options)


def pruned_trainer(yolo: YOLO) -> type[BaseTrainer]:
    """The trainer for `yolo.train(trainer=…)` that trains the network of `yolo` as it is, at the size it was cut to.

    Its checkpoints hold the pruned network whole, so `resume=True`, `val`, `predict`, `export` and `YOLO("best.pt")`
    have it, too. Every call of `train` needs it: without it the network is built at full size, silently.
    """
    pruned = _network(yolo)
    trainer: Any = yolo.task_map[yolo.task]["trainer"]

    class PrunedTrainer(trainer):
        def get_model(self, cfg: Any = None, weights: nn.Module | None = None, verbose: bool = True) -> nn.Module:
            network: Any = weights if self.resume else copy_of_model(pruned)
            _require_fit(network, self.data)
            if self.args.pretrained is not True:
                raise UsageError("pretrained would replace the weights of the pruned network; leave it out.")
            for layer in network.modules():
                if isinstance(layer, nn.Dropout) and self.args.dropout:
                    layer.p = self.args.dropout
            network.requires_grad_()  # a checkpoint holds averages, which are not trained
            network.info(verbose=verbose)
            return network  # type: ignore[no-any-return]

    return PrunedTrainer


def _network(yolo: YOLO) -> nn.Module:
    if not isinstance(yolo.model, nn.Module):
        raise UsageError(f"{yolo.model} is not a PyTorch network; load the .pt or .yaml file that it was made from.")
    return yolo.model


def _read_by_the_loss(network: nn.Module, images: Tensor) -> list[str]:
    """All outputs but the feature maps, of which the loss only asks height and width."""
    with torch.no_grad():
        outputs = network(images)
    return [path for path, _ in tensors_by_path(outputs) if "feats" not in path.split(".")]


def _require_fit(network: Any, data: dict[str, Any]) -> None:
    for name, noun in _SET_BY_DATA.items():
        built, asked = network.yaml.get(name), data.get(name)
        if None not in (built, asked) and built != asked:
            raise UsageError(
                f"The network was built for {built} {noun}, but the data has {asked}, and a new head would undo the "
                "cut; train the dense network on this data, then prune it."
            )
