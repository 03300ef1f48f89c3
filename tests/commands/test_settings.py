"""Settings from a folder that anybody may have made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from secateur.base.errors import UsageError
from secateur.commands.settings import read_settings


def test_settings_are_a_regular_file_of_bounded_size(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    os.mkfifo(file)
    with pytest.raises(UsageError, match=r"no TOML that can be read \(it is not a regular file\); fix it there"):
        read_settings(file)
    file.unlink()
    file.write_bytes(b"#" * 1_100_000)
    with pytest.raises(UsageError, match=r"no TOML that can be read \(it has more than 1,048,576 bytes"):
        read_settings(file)
