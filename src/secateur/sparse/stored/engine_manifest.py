"""What `engine.json` says: all about a sparse engine but the numbers in it. Checked to the last field when read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal

from secateur.base import Count, FileFormat, Finite, Label, Shape, StoredAs
from secateur.bench import Timing
from secateur.checkpoint import SealedManifest, StoredFile
from secateur.sparse.dense import Activation
from secateur.sparse.origin import Folded, Origin
from secateur.sparse.stored.example_tensors import read_examples, written_examples
from secateur.sparse.trial import LayerChoice
from secateur.sparse.window import Window

TENSORS_FILE = "engine.safetensors"


@dataclass(frozen=True)
class StoredLayer:
    """A layer with its measurement, what was folded into it, and how it is packed."""

    name: Label
    kind: Literal["linear", "conv"]
    shape: Shape
    sparsity: Finite
    block: Literal[1, 4]
    sparse: bool
    timing: Timing | None
    reason: Label
    norms: Count
    residual: bool
    activation: Activation
    geometry: Window | None
    panel_width: Count | None
    """Of its packed matrices; None where it is dense."""

    def __post_init__(self) -> None:
        if (self.panel_width is None) == self.sparse or (self.geometry is None) != (self.kind == "linear"):
            raise ValueError(f"what is said of {self.name} does not fit together")
        if self.sparse and self.geometry is not None and isinstance(self.geometry.padding, str):
            raise ValueError(f"there are no kernels for the padding of {self.name}")

    @property
    def choice(self) -> LayerChoice:
        return LayerChoice(**{field.name: getattr(self, field.name) for field in fields(LayerChoice)})

    @property
    def folded(self) -> Folded:
        return Folded(self.name, self.kind, self.shape, self.norms, self.residual, self.activation, self.geometry)


@dataclass(frozen=True)
class EngineManifest(SealedManifest):
    """The contents of `engine.json`."""

    _file_format: ClassVar = FileFormat("secateur-sparse-engine", 1, "sparse engine", "secateur.save_engine")
    file_name: ClassVar = "engine.json"
    beside_it: ClassVar = (TENSORS_FILE,)

    tensors: StoredFile
    architecture: Mapping[str, Shape]
    example_inputs: Annotated[Any, StoredAs(written_examples, read_examples)]
    graph: Label | None
    layers: tuple[StoredLayer, ...]
    machine: Label
    threads: Count
    notes: tuple[Label, ...]
    tied: Mapping[str, str]
    """For a tensor with several names, each further name and the one that it is stored under."""
    channels_last: tuple[str, ...]
    """Tensors whose channels lie side by side in memory, which some dense kernels go by."""
    versions: Mapping[str, str]

    def __post_init__(self) -> None:
        if self.threads == 0:
            raise ValueError("it was measured without threads")

    def stored_files(self) -> Mapping[str, StoredFile]:
        return {TENSORS_FILE: self.tensors}

    @property
    def origin(self) -> Origin:
        folded = tuple(layer.folded for layer in self.layers)
        return Origin(self.architecture, self.example_inputs, self.graph, folded, self.machine)
