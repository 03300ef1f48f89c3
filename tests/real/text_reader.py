"""EasyOCR's reader of English text (a VGG, two bidirectional LSTMs, a letter or none for each column), and images of
words."""

from __future__ import annotations

import random
from itertools import groupby

import torch
from torch import Tensor, nn

from tests.real.network import folder_of
from tests.real.sentence_encoder import sentences

LETTERS = "0123456789!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ €ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""Their numbers begin with 1; 0 is none."""
HEIGHT, WIDTH = 64, 256
SEEN = 96
"""Phrases that a repair reads."""


class BothWays(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.rnn = nn.LSTM(inputs, outputs, bidirectional=True, batch_first=True)
        self.linear = nn.Linear(2 * outputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.rnn(x)[0])


class TextReader(nn.Module):
    """The layers whose weights the package holds."""

    def __init__(self) -> None:
        super().__init__()
        pools = nn.MaxPool2d(2), nn.MaxPool2d(2), nn.Identity(), nn.MaxPool2d((2, 1))
        plain: list[nn.Module] = []
        for inputs, outputs, pool in zip((1, 32, 64, 128), (32, 64, 128, 128), pools, strict=True):
            plain += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), pool]
        normed: list[nn.Module] = []
        for inputs in (128, 256):
            normed += [nn.Conv2d(inputs, 256, 3, padding=1, bias=False), nn.BatchNorm2d(256), nn.ReLU()]
        last = nn.MaxPool2d((2, 1)), nn.Conv2d(256, 256, 2), nn.ReLU()
        self.columns = nn.Sequential(*plain, *normed, *last)
        self.context = nn.Sequential(BothWays(256, 256), BothWays(256, 256))
        self.letters = nn.Linear(256, len(LETTERS) + 1)

    def forward(self, images: Tensor) -> Tensor:
        """(images, 1, HEIGHT, width) from -1 to 1 → (images, columns, letters)."""
        return self.letters(self.context(self.columns(images).mean(2).transpose(1, 2)))


def build() -> nn.Module:
    """The package's names are others; the order is the same."""
    trained = torch.load(folder_of("easyocr_en_models") / "models" / "english_g2.pth", "cpu", weights_only=True)
    model = TextReader()
    model.load_state_dict(dict(zip(model.state_dict(), trained.values(), strict=True)))
    return model.eval()


def phrases() -> list[str]:
    """Of two words each."""
    words = " ".join(sentences()).split()
    return [" ".join(words[2 * i : 2 * i + 2]) for i in range(SEEN + 64)]


def inputs() -> tuple[Tensor, Tensor]:
    chance = random.Random(0)
    images = torch.stack([drawn(phrase, chance) for phrase in phrases()])
    return images[:SEEN], images[SEEN:]


def drawn(phrase: str, chance: random.Random) -> Tensor:
    """Dark on light, in many sizes, a little turned and blurred."""
    import numpy as np
    from PIL import Image, ImageDraw, ImageFilter, ImageFont

    image = Image.new("L", (WIDTH, HEIGHT), chance.randint(180, 255))
    font = ImageFont.load_default(chance.uniform(18, 26))
    place = (chance.uniform(4, 16), HEIGHT / 2 + chance.uniform(-6, 6))
    ImageDraw.Draw(image).text(place, phrase, chance.randint(0, 100), font, anchor="lm")
    turned = image.rotate(chance.uniform(-1.5, 1.5), Image.Resampling.BICUBIC, fillcolor=image.getpixel((0, 0)))
    values = np.array(turned.filter(ImageFilter.GaussianBlur(chance.uniform(0, 1.2))))
    return torch.from_numpy(values)[None].float() / 127.5 - 1


def texts(model: nn.Module, images: Tensor) -> list[str]:
    """Letters that follow each other are one, unless there is none between them."""
    best = model(images).argmax(2).tolist()
    return ["".join(LETTERS[number - 1] for number, _ in groupby(columns) if number) for columns in best]


def same_letters(given: list[str], wanted: list[str]) -> float:
    """1 less the letters to insert, leave out or exchange, by the letters wanted."""
    wrong = sum(distance(a, b) for a, b in zip(given, wanted, strict=True))
    return max(0.0, 1 - wrong / sum(map(len, wanted)))


def distance(a: str, b: str) -> int:
    """Of Levenshtein."""
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        before, row = row, [i]
        for j, other in enumerate(b, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != other)))
    return row[-1]
