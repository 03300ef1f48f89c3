"""silero-vad, which says for every 32 ms of sound whether somebody speaks, and sentences spoken by eSpeak NG."""

from __future__ import annotations

import ctypes
import random
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.real.network import folder_of
from tests.real.sentence_encoder import sentences

RATE, STEP, CONTEXT = 16_000, 512, 64
"""Samples: in a second, in what one answer is about, and of those before that the network reads along."""
STEPS = 64
SEEN = 192
"""Recordings that a repair hears."""
VOICES = "en en+f2 en-us+m3 en-us+f4 en-gb-scotland+m5 de+f1 fr it+m2 es+f3 pl nl+m7 ru".split()


class SpeechDetector(nn.Module):
    """The layers of the package's network for 16 kHz, on a whole recording at once."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        self.conv1 = nn.Conv1d(129, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, 3, padding=1)
        self.lstm = nn.LSTM(128, 128, batch_first=True)
        self.final_conv = nn.Conv1d(128, 1, 1)

    def forward(self, sound: Tensor) -> Tensor:
        """(recordings, CONTEXT + steps * STEP) → how probably each step is speech, (recordings, steps)."""
        windows = sound.unfold(1, CONTEXT + STEP, STEP)
        waves = self.stft_conv(F.pad(windows.flatten(0, 1), (0, 64), "reflect")[:, None])
        real, imaginary = waves.chunk(2, dim=1)
        features = (real**2 + imaginary**2).sqrt()
        for layer in (self.conv1, self.conv2, self.conv3, self.conv4):
            features = layer(features).relu()
        states, _ = self.lstm(features[:, :, 0].unflatten(0, windows.shape[:2]))
        return self.final_conv(states.relu().transpose(1, 2)).sigmoid()[:, 0]


def build() -> nn.Module:
    """The package's names are others; the order is the same, after that of the network for 8 kHz is left out."""
    model, trained = SpeechDetector(), published().state_dict()
    weights = [value for name, value in trained.items() if name.startswith("_model.")]
    model.load_state_dict(dict(zip(model.state_dict(), weights, strict=True)))
    return model.eval()


def published() -> nn.Module:
    """The network itself, as TorchScript, which is asked step by step."""
    return torch.jit.load(folder_of("silero_vad") / "data" / "silero_vad.jit")


def inputs() -> tuple[Tensor, Tensor]:
    chance = random.Random(0)
    texts = sentences()[: SEEN + 96]
    recordings = torch.stack([recording(text, VOICES[i % len(VOICES)], chance) for i, text in enumerate(texts)])
    return recordings[:SEEN], recordings[SEEN:]


def recording(text: str, voice: str, chance: random.Random) -> Tensor:
    """Two seconds: some words, with silence before and behind, over noise, loud or low."""
    length = CONTEXT + STEPS * STEP
    speech = spoken(text[: chance.randint(8, 20)], voice)[:length]
    begin = chance.randint(0, length - len(speech))
    noise = torch.randn(length, generator=torch.Generator().manual_seed(chance.randrange(1 << 30)))
    heard = F.pad(speech, (begin, length - begin - len(speech))) + 10 ** chance.uniform(-4, -1.5) * noise
    return heard * 10 ** chance.uniform(-1, 0)


def spoken(text: str, voice: str) -> Tensor:
    """By eSpeak NG, at RATE."""
    library, rate = espeak()
    heard = bytearray()

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    def hear(samples: int | None, count: int, _: int | None) -> int:
        heard.extend(ctypes.string_at(samples, 2 * count) if samples else b"")
        return 0

    library.espeak_SetSynthCallback(hear)
    library.espeak_SetVoiceByName(voice.encode())
    words, utf8 = text.encode() + b"\0", 1
    library.espeak_Synth(words, len(words), 0, 0, 0, utf8, None, None)
    sound = torch.frombuffer(heard, dtype=torch.int16).float() / (1 << 15)
    return F.interpolate(sound[None, None], scale_factor=RATE / rate, mode="linear")[0, 0]


@cache
def espeak() -> tuple[ctypes.CDLL, int]:
    """The library, and its samples in a second."""
    folder_of("espeakng_loader")
    import espeakng_loader

    library, synchronous = ctypes.CDLL(espeakng_loader.get_library_path()), 2
    return library, library.espeak_Initialize(synchronous, 0, espeakng_loader.get_data_path().encode(), 0)


def same_verdict(given: Tensor, wanted: Tensor) -> float:
    """The share of steps that both take for speech, or neither."""
    return float(((given > 0.5) == (wanted > 0.5)).double().mean())
