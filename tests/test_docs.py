"""Every block of code on every page works: Python runs, and commands run or are read by the program they call.

A block that cannot run here says why in a comment above it, `<!-- not run: … -->`, and has to compile all the same.
"""

import gc
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, wraps
from itertools import pairwise
from pathlib import Path

import pytest
import typer
from accelerate.commands.launch import launch_command_parser
from ray.scripts.scripts import start as ray_start
from safetensors.torch import save_model
from torch.distributed.run import get_args_parser
from typer.testing import CliRunner

import secateur
from scripts.write_command_tables import with_tables
from secateur.bench.machine import this_machine
from secateur.commands.app import app
from secateur.formats import quantising
from secateur.studies.pool import opening
from tests.commands.test_task_file import TASK
from tests.support.brief import SHORT_TIMINGS, write_few_images
from tests.support.forked import Interpreter, run_ranks
from tests.support.models import ConvNet
from tests.test_house import ROOMS

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "secateur"
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^(?:<!-- not run: ([^\n]+) -->\n)?```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND_LINE = ROOT / "docs" / "command-line.md"
MULTI_GPU = ROOT / "docs" / "multi-gpu.md"
TORCHVISION = ROOT / "docs" / "torchvision-timm.md"

STAND_INS = Path(__file__).parent / "stand_ins"
"""torchvision has no build for a CPU alone in every package index, and timm needs it. Where they are not installed,
their page runs with small models of the same names."""


@dataclass(frozen=True)
class Block:
    not_run: str | None
    language: str
    code: str


def blocks(page: Path, language: str) -> list[Block]:
    found = [Block(why, kind, code) for why, kind, code in BLOCK.findall(page.read_text(encoding="utf-8"))]
    return [block for block in found if block.language == language]


def commands(page: Path) -> list[tuple[Block, str]]:
    """The single commands of the console blocks, with the lines that a backslash breaks put together."""
    return [
        (block, command.strip())
        for block in blocks(page, "console")
        for line in block.code.replace("\\\n", " ").splitlines()
        for command in line.split("&&")
        if command.strip()
    ]


def run_python(*args: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *args],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_every_block_is_found_and_compiles() -> None:
    """One that is indented, or called by another name, would never run."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        languages = re.findall(r"^\s*(?:```|~~~)(\S*)", text, re.MULTILINE)[::2]
        assert set(languages) <= {"python", "console", "text"}, page.name
        assert len(languages) == len(BLOCK.findall(text)), f"{page.name} has a block that is indented"
        reasons = [block for language in ("python", "console") for block in blocks(page, language) if block.not_run]
        assert len(reasons) == text.count("<!-- not run"), f"{page.name} has a reason that stands above no block"
        for block in blocks(page, "python"):
            compile(block.code, page.name, "exec")


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    running = Interpreter()
    yield running
    running.end()


WITH_PYTHON = [page for page in PAGES if page != MULTI_GPU and blocks(page, "python")]
WITH_PYTHON.sort(key=lambda page: page == TORCHVISION)  # at the end, so that no other page meets the stand-ins


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
def test_the_python_blocks_of_a_page_run_in_order(page: Path, tmp_path: Path, interpreter: Interpreter) -> None:
    code = "\n".join(block.code for block in blocks(page, "python") if not block.not_run)
    needed = max([320, *map(int, re.findall(r"range\((\d+)\)", code))])  # a page may say of how many images it speaks
    images = write_few_images(tmp_path / "images", train=needed, test=needed)
    code = code.replace("load_fashion_mnist()", f"load_fashion_mnist(__import__('pathlib').Path({str(images)!r}))")
    if page == TORCHVISION:
        code = f"import sys\nsys.path += [{str(STAND_INS)!r}]\n{code}"
    script = tmp_path / "page.py"
    if page == README:  # once as a reader has it: in a Python that has imported nothing
        assert "import secateur\n" in code
        script.write_text(code.replace("import secateur\n", f"import secateur\n{SHORT_TIMINGS}", 1), encoding="utf-8")
        run_python(str(script), cwd=tmp_path)
    else:
        script.write_text(SHORT_TIMINGS + code, encoding="utf-8")
        interpreter.run(script)


@cache
def twin() -> typer.Typer:
    """Each command with all of its options, but without what it does."""
    made = typer.Typer()
    for command in app.registered_commands:
        assert command.callback
        made.command()(wraps(command.callback)(lambda *given, **options: None))
    return made


def reads_secateur(args: list[str]) -> None:
    read = CliRunner().invoke(twin(), args)
    assert read.exit_code == 0, read.output


def reads_pip(args: list[str]) -> None:
    assert args[0] == "install"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for named in re.findall(r"\[([\w,]+)\]", " ".join(args)):
        assert set(named.split(",")) <= set(extras), named
    for i, arg in enumerate(args):
        assert arg != "-c" or (ROOT / args[i + 1]).is_file()


def reads_pytest(args: list[str]) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    assert not args or (args[0] == "-m" and args[1] in {marker.split(":")[0] for marker in settings["markers"]})
    assert all((ROOT / file).is_file() for file in args[2:])


def reads_python(args: list[str]) -> None:
    script = (ROOT / args[0]).read_text(encoding="utf-8")
    assert all(f'"{option}"' in script for option in args[1::2])


READERS: dict[str, Callable[[list[str]], object]] = {
    "secateur": reads_secateur,
    "pip": reads_pip,
    "pytest": reads_pytest,
    "python": reads_python,
    "ray": lambda args: ray_start.make_context("ray start", args[1:], resilient_parsing=True),
    "torchrun": lambda args: get_args_parser().parse_args(args),
    "accelerate": lambda args: launch_command_parser().parse_args(args[1:]),
}
"""Programs that read their arguments without carrying them out."""


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "console")], ids=lambda page: page.name)
def test_commands_that_do_not_run_here_are_read_by_the_programs_they_call(page: Path) -> None:
    for block, command in commands(page):
        program, *args = shlex.split(re.sub(r"^RAY_ADDRESS=\S+ ", "", command))
        if block.not_run or program != "secateur":
            READERS[program](args)


def commands_to_run(page: Path) -> list[list[str]]:
    split = [shlex.split(command) for block, command in commands(page) if not block.not_run]
    return [args for program, *args in split if program == "secateur"]


@pytest.fixture(scope="module")
def finished_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs that pages speak of without making them: a folder for each."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "task.py").write_text(TASK)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path])  # a task file's folder joins it
        for run in ("channels-50", "channels-70", "sparsity-90"):
            what, amount = run.split("-")
            args = f"prune task.py --train 1 --finetune 0 --no-measure --{what} {amount}% -o runs/{run}"
            done = CliRunner().invoke(app, args.split())
            assert done.exit_code == 0, done.output
    (folder / "runs" / "sparsity-90").rename(folder / "runs" / "zeros-90")
    return folder


SEEN: set[str] = set()
"""Commands that ran from the start of a page: on another page they would do the same."""


@pytest.mark.parametrize("page", [page for page in PAGES if commands_to_run(page)], ids=lambda page: page.name)
def test_the_commands_of_a_page_run_in_order(
    page: Path, finished_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a task, weights and runs of the names that the pages use; those that a page makes itself are not there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # a task file's folder joins it
    monkeypatch.setattr(quantising, "TIMING_SECONDS", 0)
    monkeypatch.setattr(opening, "this_machine", lambda: replace(this_machine(), cores=1))  # Ray takes long to start
    todo = commands_to_run(page)
    prepare(todo, finished_runs)
    gc.collect()
    gc.freeze()  # what earlier pages imported is not looked through at every measurement of memory
    at_the_start = True
    for args in todo:
        command = shlex.join(args)
        at_the_start = at_the_start and args[0] not in ("init", "prune")
        if at_the_start and command in SEEN:
            continue
        done = CliRunner().invoke(app, args)
        assert done.exit_code == 0, f"secateur {command}\n{done.output}"
        for kind, name in pairwise(args):
            assert kind not in ("-o", "--html") or Path(name).exists(), f"{command} left no {name}"
        if args[0] == "init":  # from here on, a model and data that take no time
            for task in {*args[1:], "task.py"}:
                Path(task).write_text(TASK)
        SEEN.update([command] * at_the_start)


def prepare(todo: list[list[str]], finished_runs: Path) -> None:
    if todo[0][0] != "init":
        Path("task.py").write_text(TASK)
    for weights in ("trained", "model", "dense"):
        save_model(ConvNet(), f"{weights}.safetensors")
    for run in {arg for args in todo for arg in args if re.fullmatch(r"runs/[\w-]+", arg)}:
        if not any(["-o", run] == args[-2:] for args in todo):
            shutil.copytree(finished_runs / run, run)


def test_the_command_line_page_has_every_option() -> None:
    text = COMMAND_LINE.read_text(encoding="utf-8")
    assert with_tables(text) == text, "run python scripts/write_command_tables.py"


def test_the_script_of_the_multi_gpu_page_runs_in_two_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, *others = blocks(MULTI_GPU, "python")
    assert all(block.not_run for block in others)
    (tmp_path / "prune_ddp.py").write_text(script.code, encoding="utf-8")
    (_, launch), *_ = commands(MULTI_GPU)
    assert launch == "torchrun --standalone --nproc-per-node 2 prune_ddp.py"
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")  # without a GPU, accelerate joins the processes only when told so
    monkeypatch.chdir(tmp_path)
    told = run_ranks(tmp_path / "prune_ddp.py", processes=2, folder=tmp_path)
    ends = re.findall(r"process (\d) of 2 ended with (\S+)", told)
    assert sorted(process for process, _ in ends) == ["0", "1"]
    assert len({metric for _, metric in ends}) == 1


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_api_page_has_every_public_name() -> None:
    shown = re.findall(r"^::: secateur\.(\w+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(shown) == sorted(set(secateur.__all__) - {"__version__"})


def test_the_api_page_says_which_modules_below_the_top_are_public() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    expected = {"examples", *(f"integrations.{library}" for library in ("lightning", "transformers", "ultralytics"))}
    assert set(re.findall(r"^::: secateur\.([\w.]+)\.\w+$", text, re.MULTILINE)) == expected


def test_the_architecture_page_names_rooms_files_and_registries_that_are_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)/` \|", text, re.MULTILINE) == ROOMS
    for path in re.findall(r"`((?:\w+/)+(?:\w+\.\w+)?)`", text):
        assert (SOURCE / path).exists() or (ROOT / path).exists(), path
    for new, files, registry, _ in re.findall(r"^\| (.+) \| (`.+) \| (.+) \| (`tests/.+) \|$", text, re.MULTILINE):
        places = [SOURCE / path for path in re.findall(r"`([^`]+)`", files)]
        modules = [file for place in places for file in (place.rglob("*.py") if place.is_dir() else [place])]
        code = "".join(file.read_text(encoding="utf-8") for file in modules)
        assert all(name in code for name in re.findall(r"`@?([A-Za-z_]+)[`(]", registry)), f"{new}: {registry}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without a warning, from a copy: the builder leaves a cache and the site in the folder of its settings."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "zensical.toml", folder)
    shutil.copytree(ROOT / "docs", folder / "docs")
    (folder / "src").symlink_to(ROOT / "src")
    run_python("-m", "zensical", "build", "--strict", cwd=folder)
    return folder / "site"


def test_the_site_needs_no_network(site: Path) -> None:
    loaded = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^\s"'>]+""")
    for page in site.rglob("*.html"):
        assert not loaded.findall(page.read_text(encoding="utf-8")), page.name
    for style in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), style.name


def test_every_link_of_the_site_leads_to_a_file_in_it_and_the_menu_to_every_page(site: Path) -> None:
    """The builder checks links from page to page; not those of the menu, to pictures, or out of `docs/`."""
    pages = {page.name: page.read_text(encoding="utf-8") for page in site.glob("*.html")}
    del pages["404.html"]  # shown at any address, so its links start at the root of the server
    assert set(pages) == {page.with_suffix(".html").name for page in PAGES if page != README}
    for name, text in pages.items():
        dead = [link for link in re.findall(r'\b(?:src|href)="([^":#]+)["#]', text) if not (site / link).is_file()]
        assert not dead, f"{name} links to {dead}"
    assert set(re.findall(r'<a href="(?:\./)?([^"#]+)" class="md-nav__link', pages["api.html"])) == set(pages)


def test_the_api_page_shows_signatures_and_docstrings(site: Path) -> None:
    text = (site / "api.html").read_text(encoding="utf-8")
    for name in set(secateur.__all__) - {"__version__"}:
        assert f'id="secateur.{name}"' in text, name
    assert "Ranks the channels and heads of" in text
