"""Compiles the sparse kernels into the package where there is a compiler; without one the package goes without.

HATCH_BUILD_NO_HOOKS=true leaves them out on purpose: the wheel is then the same for every machine.
"""

from __future__ import annotations

import itertools
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

KERNELS = Path("src/secateur/sparse/kernels")
LIBRARY = Path("src/secateur/sparse/kernels.so")
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-psabi"]
if sys.platform == "darwin":
    FLAGS += ["-arch", platform.machine()]
# By instruction set: floats to a vector, columns of a tile, and the compiler's flags.
BASELINE = {"baseline": (4, 32, [])}
X86 = {
    "avx2": (8, 64, ["-mavx2", "-mfma"]),
    "avx512": (16, 64, ["-mavx512f", "-mavx512vl", "-mavx512dq", "-mfma"]),
}


class PackagePage(MetadataHookInterface):
    """The README and the links of the package's page. A workflow of the repository knows the repository's address."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["urls"] = {}
        if "GITHUB_REPOSITORY" in os.environ:
            address = f"{os.environ['GITHUB_SERVER_URL']}/{os.environ['GITHUB_REPOSITORY']}"
            text = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1{address}/raw/HEAD/", text)
            text = re.sub(r"(?<=\]\()(?!https?:)", f"{address}/blob/HEAD/", text)
            pages = {"Issues": "issues", "Changelog": "blob/HEAD/CHANGELOG.md"}
            metadata["urls"] = {"Source": address} | {name: f"{address}/{page}" for name, page in pages.items()}
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


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
        build_data["tag"] = f"py3-none-{platform_tag()}"


def platform_tag() -> str:
    """Of this machine; on a Mac of one processor, also where Python itself is built for two."""
    if sys.platform != "darwin":
        return sysconfig.get_platform().replace("-", "_").replace(".", "_")
    oldest = os.environ.get("MACOSX_DEPLOYMENT_TARGET") or platform.mac_ver()[0]
    major, minor = f"{oldest}.0".split(".")[:2]
    return f"macosx_{major}_{minor if major == '10' else 0}_{platform.machine()}"


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
        _run([*compiler, *FLAGS, "-shared", *extra, "-pthread", *objects, "-o", str(linked)])
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
