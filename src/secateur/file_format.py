"""The first look at JSON that a file may hold: is it what we wrote, in a version that we read?"""

from __future__ import annotations

from typing import Any

from secateur.errors import SecateurError

__all__ = ["require_format"]


def require_format(stored: Any, format_name: str, version: int, what: str, written_by: str) -> None:
    if not isinstance(stored, dict) or stored.get("format") != format_name:
        raise SecateurError(f"This is not the {what}; give what {written_by} wrote.")
    if stored.get("version") != version:
        raise SecateurError(
            f"The {what} has version {stored.get('version')!r}, but this secateur reads {version}; "
            "use the version of secateur that wrote it."
        )
