"""What a test run keeps away from the person who starts it, and what of theirs it does not let in.

Importing it settles that: before torch is loaded, and for every program that a test starts.
"""

from __future__ import annotations

import os
import signal
import site
import tempfile
from pathlib import Path

__all__ = ["HOME", "lead_programs_to"]


def lead_programs_to(*folders: Path) -> None:
    """A program that a test starts imports from there, whichever secateur is installed and wherever it starts."""
    others = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, folders), *([others] if others else [])])


class Home:
    """A home folder for the tests alone, with a cache that nobody may read or write."""

    def __init__(self) -> None:
        self.users_own = Path.home()
        self._folder = tempfile.TemporaryDirectory(prefix="secateur-tests-", ignore_cleanup_errors=True)
        self.path = Path(self._folder.name, "home")
        self.caches = Path(self._folder.name, "caches")
        self.trap = self.path / ".cache" / "secateur"
        self.trap.mkdir(parents=True)
        self._armed: list[tuple[str, int, int]] = []

    def move_in(self) -> None:
        """For this process and all that it starts. Packages that the user has installed for themselves stay."""
        os.environ.setdefault("PYTHONUSERBASE", site.getuserbase())
        for variable in [name for name in os.environ if name.startswith("XDG_") and name.endswith("_HOME")]:
            del os.environ[variable]
        os.environ["HOME"] = str(self.path)
        os.environ["SECATEUR_CACHE"] = str(self.caches / "session")

    def set_trap(self, file: str) -> None:
        """A damaged file, which a test process would be warned of, and a program leaves the time when it read it."""
        (self.trap / file).write_text("damaged")
        os.utime(self.trap / file, (0, 0))
        self._armed = self._look()

    def assert_untouched(self) -> None:
        assert self._look() == self._armed, f"the test left the cache of its own and used {self.trap}"

    def _look(self) -> list[tuple[str, int, int]]:
        seen = sorted((entry.name, entry.stat()) for entry in os.scandir(self.trap))
        return [(name, int(stat.st_atime), stat.st_mtime_ns) for name, stat in seen]


HOME = Home()
HOME.move_in()

# A shell lets what it starts in the background ignore Ctrl-C, and so would every program that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Threads that wait for a busy core cost more than they bring, and two test processes share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
