"""Manifests: what the files of a folder hold, as JSON that is sealed by a digest.

A manifest knows the files beside it by size and digest.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar, Self

import secateur
from secateur.base import (
    MOST_BYTES,
    Count,
    FileFormat,
    Must,
    UsageError,
    from_json,
    open_regular,
    parse_json,
    refusing_damage,
    require_format,
    to_json,
)


@dataclass(frozen=True)
class StoredFile:
    """By which a file is known to be the one that a manifest was written with."""

    bytes: Count
    digest: Annotated[str, Must(re.compile(r"[0-9a-f]{64}").fullmatch, "is not a digest")]

    @staticmethod
    def of(opened: BinaryIO) -> StoredFile:
        opened.seek(0)
        digest = hashlib.file_digest(opened, "sha256")  # type: ignore[arg-type]
        return StoredFile(opened.tell(), digest.hexdigest())

    def is_in(self, opened: BinaryIO) -> bool:
        return os.fstat(opened.fileno()).st_size == self.bytes and StoredFile.of(opened) == self


@dataclass(frozen=True)
class SealedManifest:
    """What all manifests can do; a class says its format, where it is written, and of which files it may speak."""

    _file_format: ClassVar[FileFormat]
    file_name: ClassVar[str]
    beside_it: ClassVar[tuple[str, ...]]

    def stored_files(self) -> Mapping[str, StoredFile]:
        raise NotImplementedError

    def to_bytes(self) -> bytes:
        """One line for each key, and a digest of all of them."""
        contents = to_json(self)
        contents["digest"] = _digest_of(contents)
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in contents.items()]
        raw = ("{\n" + ",\n".join(lines) + "\n}\n").encode()
        if len(raw) > MOST_BYTES:
            raise UsageError(f"{self.file_name} would take {len(raw):,} bytes; give fewer metrics and settings.")
        return raw

    @classmethod
    def from_bytes(cls, raw: bytes, source: str) -> Self:
        with refusing_damage(source):
            contents = parse_json(raw)
            require_format(contents, *cls._file_format, source=source)
            if contents.pop("digest", None) != _digest_of(contents):
                raise ValueError("its digest does not fit its contents")
            return from_json(cls, contents)

    @classmethod
    def open(cls, folder: Path) -> BinaryIO:
        _, _, what, written_by = cls._file_format
        try:
            return open_regular(folder / cls.file_name)
        except (FileNotFoundError, NotADirectoryError):
            raise UsageError(f"There is no {what} in {folder}; give a folder that {written_by} wrote.") from None
        except OSError as error:
            raise UsageError(
                f"There is no {what} in {folder} that can be read ({error}); give a folder that {written_by} wrote."
            ) from error

    @classmethod
    def read(cls, opened: BinaryIO) -> Self:
        return cls.from_bytes(opened.read(MOST_BYTES + 1), str(opened.name))


def _digest_of(contents: dict[str, Any]) -> str:
    """The same for the same contents, however they are written down."""
    return hashlib.sha256(json.dumps(contents, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def versions_now() -> dict[str, str]:
    libraries = ("torch", "numpy", "accelerate", "safetensors")
    found = {library: version(library) for library in libraries}
    return {"secateur": secateur.__version__, "python": platform.python_version(), **found}
