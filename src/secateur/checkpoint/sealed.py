"""A record as bytes: of a format and version that its reader knows, and sealed by a digest."""

from __future__ import annotations

import json
from typing import Any

from secateur.base import SecateurError
from secateur.checkpoint.strict_json import canonical_digest, parse_object

__all__ = ["seal", "unseal"]


def seal(contents: dict[str, Any], kind: str, version: int) -> bytes:
    """One line for each key, and a digest of all of them."""
    whole = {"format": kind, "version": version, **contents}
    whole["digest"] = canonical_digest(whole)
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in whole.items()]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def unseal(raw: bytes, kind: str, version: int, *, source: str, otherwise: str) -> dict[str, Any]:
    """The contents of a whole record; `otherwise` ends the sentence about one of another format."""
    contents = parse_object(raw)
    if contents.get("format") != kind:
        raise SecateurError(f"{source} is {otherwise}.")
    if type(contents.get("version")) is not int or contents["version"] != version:
        raise SecateurError(
            f"{source} has version {str(contents.get('version'))[:20]!r}, but this secateur reads {version}; "
            "use the version of secateur that wrote it."
        )
    if contents.pop("digest", None) != canonical_digest(contents):
        raise ValueError("its digest does not fit its contents")
    del contents["format"], contents["version"]
    return contents
