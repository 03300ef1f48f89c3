"""What `engine.json` says: all about a sparse engine but the numbers in it. Checked to the last field when read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args

from secateur.base import UsageError
from secateur.bench import Timing
from secateur.checkpoint import (
    MOST_BYTES,
    Layout,
    StoredFile,
    checked_names,
    checked_shapes,
    checked_texts,
    number_of_elements,
    parse_stored_file,
    refusing_damage,
    require_keys,
    seal,
    unseal,
    whole_number,
)
from secateur.sparse.dense import Activation, Pair
from secateur.sparse.origin import Folded, Origin, Window
from secateur.sparse.packed import BLOCKS
from secateur.sparse.stored import example_tensors as examples
from secateur.sparse.trial import LayerChoice

__all__ = ["LAYOUT", "RECORD_FILE", "TENSORS_FILE", "EngineRecord", "StoredLayer", "parse_engine", "read_engine"]

RECORD_FILE = "engine.json"
TENSORS_FILE = "engine.safetensors"
LAYOUT = Layout(RECORD_FILE, (TENSORS_FILE,))

_FORMAT = "secateur-sparse-engine"
_VERSION = 1
_KEYS = set(
    """tensors architecture example_inputs graph layers machine threads notes tied channels_last versions""".split()
)
_LAYER_KEYS = {field.name for field in fields(LayerChoice)} | set(
    """norms residual activation geometry panel_width""".split()
)


@dataclass(frozen=True)
class StoredLayer:
    """A layer with its measurement, and how it is packed."""

    choice: LayerChoice
    folded: Folded
    panel_width: int | None
    """Of its packed matrices; None where it is dense."""


@dataclass(frozen=True)
class EngineRecord:
    """The contents of `engine.json`."""

    tensors: StoredFile
    origin: Origin
    layers: tuple[StoredLayer, ...]
    threads: int
    notes: tuple[str, ...]
    tied: Mapping[str, str]
    """For a tensor with several names, each further name and the one that it is stored under."""
    channels_last: tuple[str, ...]
    """Tensors whose channels lie side by side in memory, which some dense kernels go by."""
    versions: Mapping[str, str]

    @property
    def files(self) -> Mapping[str, StoredFile]:
        return {TENSORS_FILE: self.tensors}

    def to_bytes(self) -> bytes:
        contents = {
            "tensors": asdict(self.tensors),
            "architecture": {name: list(shape) for name, shape in self.origin.architecture.items()},
            "example_inputs": examples.to_json(self.origin.example_inputs),
            "graph": self.origin.graph,
            "layers": [_layer_as_json(layer) for layer in self.layers],
            "machine": self.origin.machine,
            "threads": self.threads,
            "notes": list(self.notes),
            "tied": dict(self.tied),
            "channels_last": list(self.channels_last),
            "versions": dict(self.versions),
        }
        return seal(contents, _FORMAT, _VERSION)


def _layer_as_json(layer: StoredLayer) -> dict[str, Any]:
    folded = asdict(layer.folded)
    timing = layer.choice.timing
    return {
        **asdict(layer.choice),
        "timing": timing and {name: None if math.isnan(value) else value for name, value in asdict(timing).items()},
        "norms": folded["norms"],
        "residual": folded["residual"],
        "activation": folded["activation"],
        "geometry": folded["window"],
        "panel_width": layer.panel_width,
    }


def read_engine(folder: Path) -> EngineRecord:
    file = folder / RECORD_FILE
    if not file.is_file():  # nor a pipe, which would never end
        raise UsageError(f"There is no sparse engine in {folder}; give a folder that secateur.save_engine wrote.")
    with file.open("rb") as opened:
        return parse_engine(opened.read(MOST_BYTES + 1), str(file))


def parse_engine(raw: bytes, source: str = RECORD_FILE) -> EngineRecord:
    with refusing_damage(source):
        otherwise = "not a sparse engine; give a folder that secateur.save_engine wrote"
        contents = unseal(raw, _FORMAT, _VERSION, source=source, otherwise=otherwise)
        require_keys(contents, _KEYS, "the record")
        layers = tuple(map(_parsed_layer, contents["layers"]))
        if contents["threads"] == 0:
            raise ValueError("it was measured without threads")
        return EngineRecord(
            tensors=parse_stored_file(contents["tensors"]),
            origin=Origin(
                architecture=checked_shapes(contents["architecture"]),
                example_inputs=examples.from_json(contents["example_inputs"]),
                graph=None if contents["graph"] is None else _text(contents["graph"]),
                layers=tuple(layer.folded for layer in layers),
                machine=_text(contents["machine"]),
            ),
            layers=layers,
            threads=whole_number(contents["threads"]),
            notes=tuple(map(_text, contents["notes"])),
            tied=checked_texts(contents["tied"], "tied"),
            channels_last=checked_names(contents["channels_last"]),
            versions=checked_texts(contents["versions"], "versions"),
        )


def _parsed_layer(item: Any) -> StoredLayer:
    require_keys(item, _LAYER_KEYS, "a layer")
    number_of_elements(item["shape"])
    name, shape = _text(item["name"]), tuple(item["shape"])
    kind = _one_of(item["kind"], ("linear", "conv"))
    choice = LayerChoice(
        name=name,
        kind=kind,
        shape=shape,
        sparsity=_number(item["sparsity"]),
        block=_one_of(whole_number(item["block"]), BLOCKS),
        sparse=_flag(item["sparse"]),
        timing=None if item["timing"] is None else _parsed_timing(item["timing"]),
        reason=_text(item["reason"]),
    )
    folded = Folded(
        name=name,
        kind=kind,
        shape=shape,
        norms=whole_number(item["norms"]),
        residual=_flag(item["residual"]),
        activation=_one_of(item["activation"], get_args(Activation)),
        window=None if item["geometry"] is None else _parsed_window(item["geometry"]),
    )
    if (item["panel_width"] is None) == choice.sparse or (folded.window is None) != (kind == "linear"):
        raise ValueError(f"what is said of {name} does not fit together")
    if choice.sparse and folded.window is not None and isinstance(folded.window.padding, str):
        raise ValueError(f"there are no kernels for the padding of {name}")
    return StoredLayer(choice, folded, None if item["panel_width"] is None else whole_number(item["panel_width"]))


def _parsed_timing(item: Any) -> Timing:
    require_keys(item, set(Timing.__dataclass_fields__), "a timing")
    rounds = whole_number(item["rounds"])
    numbers = {name: math.nan if value is None else _number(value) for name, value in item.items()}
    return Timing(**{**numbers, "rounds": rounds})  # type: ignore[arg-type]


def _parsed_window(item: Any) -> Window:
    require_keys(item, set(Window.__dataclass_fields__), "a geometry")
    padding = item["padding"]
    return Window(
        stride=_pair(item["stride"]),
        padding=_one_of(padding, ("same",)) if isinstance(padding, str) else _pair(padding),
        dilation=_pair(item["dilation"]),
        groups=whole_number(item["groups"]),
    )


def _pair(value: Any) -> Pair:
    first, second = map(whole_number, value)
    return first, second


def _one_of(value: Any, choices: tuple[Any, ...]) -> Any:
    if not isinstance(value, str | int) or value not in choices:
        raise ValueError(f"{str(value)[:40]} is none of {', '.join(map(str, choices))}")
    return value


def _text(value: Any) -> str:
    """Fit for a terminal, since it ends up in the report."""
    (text,) = checked_names([value])
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{str(value)[:40]} is neither true nor false")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{str(value)[:40]} is not a number")
    return float(value)
