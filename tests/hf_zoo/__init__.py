"""Tiny randomly initialised models of the transformers library, by family."""

from tests.hf_zoo import experts, senses, text, vision
from tests.hf_zoo.registry import ZOO, ZooModel

__all__ = ["ZOO", "ZooModel"]

for family in (
    vision.image_encoders,
    vision.image_convolutions,
    text.text_encoders,
    text.decoders,
    experts.experts,
    experts.recurrences,
    text.encoder_decoders,
    senses.audio,
    senses.multimodal,
    senses.others,
):
    family()
