"""The tests pass anywhere: whatever the user has measured, set or installed, and however the run was started."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

import secateur
from secateur.base.caching import cache_folder
from secateur.bench.hardware_cache import read_hardware_file
from tests.support.surroundings import HOME

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def cache_of_the_session() -> Path:
    return cache_folder()


@pytest.fixture(scope="module")
def cache_of_the_module() -> Path:
    return cache_folder()


def test_tests_and_fixtures_have_caches_of_their_own(cache_of_the_session: Path, cache_of_the_module: Path) -> None:
    caches = {cache_of_the_session, cache_of_the_module, cache_folder()}
    assert len(caches) == 3
    for cache in caches:
        assert not cache.is_relative_to(HOME.path)
        assert not cache.is_relative_to(HOME.users_own / ".cache")


def test_the_home_folder_is_not_the_users() -> None:
    assert Path.home() == HOME.path
    assert HOME.path not in (HOME.users_own, Path(pwd.getpwuid(os.getuid()).pw_dir))


def test_what_reads_the_users_cache_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the tests that pass have not read it."""
    monkeypatch.delenv("SECATEUR_CACHE")
    with pytest.raises(secateur.SecateurWarning, match="are ignored"):
        read_hardware_file(lambda stored: stored)
    (trap,) = HOME.trap.iterdir()
    HOME.set_trap(trap.name)


def test_what_writes_into_the_users_cache_is_noticed() -> None:
    (HOME.trap / "layers.json").write_text("{}")
    with pytest.raises(AssertionError, match="the test left the cache of its own"):
        HOME.assert_untouched()
    (HOME.trap / "layers.json").unlink()


def test_a_program_imports_the_secateur_under_test(tmp_path: Path) -> None:
    """From any folder, and also where another one is installed."""
    code = "import secateur; print(secateur.__file__)"
    told = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(told.stdout.strip()).samefile(secateur.__file__)


def test_programs_can_be_interrupted_where_a_shell_started_the_tests_in_the_background() -> None:
    code = (
        "import subprocess, sys\n"
        "import tests.support.surroundings\n"
        "told = 'import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)'\n"
        "subprocess.run([sys.executable, '-c', told], check=True)\n"
    )
    shell = ["sh", "-c", 'trap \'\' INT; exec "$0" -c "$1"', sys.executable, code]
    assert subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "True\n"
