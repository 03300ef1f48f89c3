"""Compiles the sparse kernels into the package where there is a compiler; without one the package goes without."""

from __future__ import annotations

import itertools
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS = Path("src/secateur/sparse/kernels")
LIBRARY = Path("src/secateur/sparse/kernels.so")
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-psabi"]
# By instruction set: floats to a vector, columns of a tile, and the compiler's flags.
BASELINE = {"baseline": (4, 32, [])}
X86 = {
    "avx2": (8, 64, ["-mavx2", "-mfma"]),
    "avx512": (16, 64, ["-mavx512f", "-mavx512vl", "-mavx512dq", "-mfma"]),
}


class KernelBuilder(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        (root / LIBRARY).unlink(missing_ok=True)
        compiler = find_compiler()
        if compiler is None:
            self.app.display_warning("There is no C++ compiler, so the sparse kernels are left out.")
            return
        try:
            compile_kernels(compiler, root / KERNELS, root / LIBRARY)
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", "") or error
            self.app.display_warning(f"The sparse kernels do not compile, and are left out: {said}")
            return
        build_data["artifacts"].append(LIBRARY.as_posix())
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def find_compiler() -> list[str] | None:
    """The user's CXX, or what the system has."""
    if os.name != "posix":
        return None
    named = os.environ.get("CXX")
    if named:
        return shlex.split(named)
    found = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    return [found] if found else None


def compile_kernels(compiler: list[str], sources: Path, library: Path, extra: tuple[str, ...] = ()) -> None:
    """One source for every instruction set, all of them in one library, which chooses when it is loaded."""
    sets = BASELINE | (X86 if platform.machine() in ("x86_64", "AMD64") else {})
    with TemporaryDirectory() as folder:
        objects = []
        for (name, (lanes, tile, flags)), source in itertools.product(sets.items(), ("tile", "planes")):
            objects.append(f"{folder}/{source}-{name}.o")
            chosen = [f"-DISA={name}", f"-DLANES={lanes}", f"-DTILE={tile}", *flags]
            _run([*compiler, *FLAGS, *extra, *chosen, "-c", str(sources / f"{source}.cpp"), "-o", objects[-1]])
        for name in ("threads", "library"):
            objects.append(f"{folder}/{name}.o")
            _run([*compiler, *FLAGS, *extra, "-c", str(sources / f"{name}.cpp"), "-o", objects[-1]])
        linked = Path(folder) / "kernels.so"
        _run([*compiler, "-shared", *extra, "-pthread", *objects, "-o", str(linked)])
        library.unlink(missing_ok=True)  # a program that has it open keeps the old file
        shutil.copyfile(linked, library)


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


if __name__ == "__main__":  # python hatch_build.py LIBRARY [FLAG …]
    found = find_compiler()
    if found is None:
        sys.exit("There is no C++ compiler; set CXX.")
    here = Path(__file__).parent
    compile_kernels(found, here / KERNELS, Path(sys.argv[1]), tuple(sys.argv[2:]))
