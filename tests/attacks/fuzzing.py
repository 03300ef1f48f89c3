"""Mutated files of every kind: each is refused in one sentence, or makes something that works.

`python scripts/fuzz.py` runs this for as long as one likes, and the suite for a moment. The files are real ones, a
mutation is an accident or the work of somebody who knows the format and seals it again, and whatever is read is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from typer.testing import CliRunner

import secateur
from secateur.channels.sensitivity_curves import Sensitivity
from secateur.commands.app import app
from secateur.loop.run_folder import load_run
from secateur.pages.run_report import RunReport
from tests.attacks.damage import damaged, tampered
from tests.attacks.make import sealed_record
from tests.support.checkpoints import Language, masked, words
from tests.support.cutting import Heads, sequence
from tests.support.report_runs import EXAMPLE, loaders
from tests.test_earlier_files import FILES, dense, network

Files = Mapping[str, bytes]

SECONDS = 30
"""More than any of the files takes, even on a busy machine."""
LONGEST = 1600
"""Letters of a refusal, so that it fits on a screen."""


@dataclass(frozen=True)
class Kind:
    files: Callable[[], Files]
    """As they were written, by their paths in the folder."""
    use: Callable[[Path, random.Random], None]
    """Raises a SecateurError where the folder is refused, and nothing else."""


class Wrong(AssertionError):
    """What no file may bring about."""


def attack(kind: str, seed: str, folder: Path) -> str:
    """Writes the mutated files into the folder and uses them. Returns the refusal; empty where there was none."""
    require_intact_works(kind)
    chance = random.Random(f"{kind} {seed}")
    write(forged(KINDS[kind].files(), chance), folder)
    torch.manual_seed(0)
    with watched(folder):
        try:
            KINDS[kind].use(folder, chance)
        except secateur.SecateurError as error:
            refusal = str(error)
            require_on_a_screen(refusal)
            return refusal
    return ""


@cache
def require_intact_works(kind: str) -> None:
    """Otherwise all would be refused for another reason. Libraries fill their caches here, where nobody watches."""
    with tempfile.TemporaryDirectory() as folder:
        write(KINDS[kind].files(), Path(folder))
        KINDS[kind].use(Path(folder), random.Random(0))


def require_on_a_screen(refusal: str) -> None:
    if not refusal.isprintable() or not 0 < len(refusal) <= LONGEST:
        raise Wrong(f"no refusal for a screen: {refusal[: 2 * LONGEST]!r}")


def require_printable(text: str) -> None:
    if not all(line.isprintable() for line in text.split("\n")):
        raise Wrong(f"not fit for a terminal: {text[:LONGEST]!r}")


def write(files: Files, folder: Path) -> None:
    for name, raw in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(raw)


# How files are mutated


def forged(files: Files, chance: random.Random) -> Files:
    name = chance.choice(list(files))
    changed = {**files, name: _mutated(Path(name).suffix, files[name], chance)}
    return _sealed(changed) if chance.random() < 0.9 else changed


def _mutated(suffix: str, raw: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.2:
        return damaged(raw, chance)
    if suffix == ".json":
        return json.dumps(_tampered(json.loads(raw), chance)).encode()
    if suffix == ".toml":
        settings = _tampered(tomllib.loads(raw.decode()), chance)
        return "\n".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in settings.items()).encode()
    if suffix == ".safetensors":
        return _mutated_tensors(raw, chance)
    return damaged(raw, chance)


def _tampered(tree: Any, chance: random.Random) -> Any:
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        tree = tampered(tree, chance)
        if not isinstance(tree, dict):
            return {}
    return tree


def _mutated_tensors(raw: bytes, chance: random.Random) -> bytes:
    begin = 8 + int.from_bytes(raw[:8], "little")
    if chance.random() < 0.4:
        return raw[:begin] + damaged(raw[begin:], chance)
    header = json.loads(raw[8:begin])
    described = header.get("__metadata__", {}).get("masks")
    if described is not None and chance.random() < 0.7:
        header["__metadata__"]["masks"] = json.dumps(_tampered(json.loads(described), chance))
    else:
        header = _tampered(header, chance)
    head = json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + raw[begin:]


def _sealed(files: Files) -> Files:
    """With the sizes and digests that fit, as an attacker would write them."""
    sealed = dict(files)
    for manifest in sealed.keys() & {"secateur.json", "engine.json"}:
        try:
            record = json.loads(sealed[manifest])
        except ValueError:
            continue
        stored = {
            name: {"bytes": len(raw), "digest": hashlib.sha256(raw).hexdigest()}
            for name, raw in sealed.items()
            if name.endswith(".safetensors")
        }
        if isinstance(record, dict) and isinstance(record.get("files"), dict):
            record["files"] |= {name: stored[name] for name in record["files"].keys() & stored}
        elif isinstance(record, dict) and isinstance(record.get("tensors"), dict):
            record["tensors"] = stored["engine.safetensors"]
        if isinstance(record, dict):
            sealed[manifest] = sealed_record(record)
    return sealed


# What is watched while files are used

_allowed: list[Path] = []
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@contextmanager
def watched(folder: Path) -> Iterator[None]:
    """Ends what takes too long, and what writes, deletes or starts anything outside the folder."""
    _install_hook()

    def too_long(*_: object) -> None:
        raise Wrong(f"it took longer than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS)
    _allowed.append(folder.resolve())
    try:
        yield
    finally:
        _allowed.pop()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@cache
def _install_hook() -> None:
    sys.addaudithook(_watch)


def _watch(event: str, args: tuple[Any, ...]) -> None:
    if not _allowed:
        return
    if event == "open" and isinstance(args[0], str | bytes | os.PathLike) and args[2] & _WRITING:
        _require_inside(args[0])
    elif event in ("os.remove", "os.rmdir", "os.mkdir"):
        _require_inside(args[0], args[-1])
    elif event in ("os.rename", "os.link", "os.symlink"):
        _require_inside(args[1], args[-1])
    elif event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect"):
        raise Wrong(f"it called {event} {args!r}"[:LONGEST])


def _require_inside(path: str | bytes | os.PathLike[str], folder: int = -1) -> None:
    """The path may be relative to an open folder."""
    begin = Path.cwd() if folder == -1 else Path(f"/proc/self/fd/{folder}")
    place = Path(os.path.realpath(begin / os.fsdecode(path)))
    own = place.is_relative_to(_allowed[-1]) or place.is_relative_to("/dev") or place.is_relative_to("/proc/self")
    if not own and "__pycache__" not in place.parts:
        raise Wrong(f"it wrote to {place}")


# How each kind is used


def runs_forward(model: nn.Module, inputs: Any = EXAMPLE) -> None:
    with torch.no_grad():
        model.eval()(inputs)


def use_plan(folder: Path, chance: random.Random, example_inputs: Any = None) -> None:
    plan = secateur.Plan.load(folder / "plan.json")
    require_printable(str(plan))
    json.dumps(plan.to_json())
    runs_forward(secateur.apply(dense(), plan, example_inputs=example_inputs))


def use_plan_of_an_earlier_version(folder: Path, chance: random.Random) -> None:
    use_plan(folder, chance, EXAMPLE)


def use_plan_of_heads(folder: Path, chance: random.Random) -> None:
    plan = secateur.Plan.load(folder / "plan.json")
    require_printable(str(plan))
    runs_forward(secateur.apply(Heads(), plan), sequence())


def use_masks(folder: Path, chance: random.Random) -> None:
    masks = secateur.Masks.load(folder / "masks.safetensors")
    require_printable(str(masks))
    masks.save(folder / "again.safetensors")
    runs_forward(secateur.apply(dense(), masks))


def use_checkpoint(folder: Path, chance: random.Random) -> None:
    told = secateur.read_checkpoint(folder)
    require_printable(f"{told.plan}\n{told.masks}")
    runs_forward(secateur.load(folder, network))


def use_checkpoint_of_heads(folder: Path, chance: random.Random) -> None:
    """Without the form of the inputs, as earlier versions wrote it, a wrong size shows when the model runs."""
    model, plan = secateur.load(folder, Heads), secateur.read_checkpoint(folder).plan
    if plan is not None and plan.example_form is not None:
        runs_forward(model, sequence())


def use_extras(folder: Path, chance: random.Random) -> None:
    runs_forward(secateur.load(folder, Language), words())


def use_engine(folder: Path, chance: random.Random) -> None:
    engine = secateur.load_engine(folder, network)
    require_printable(str(engine))
    runs_forward(engine)
    secateur.save_engine(engine, folder)


def use_finished_run(folder: Path, chance: random.Random) -> None:
    match chance.randrange(4):
        case 0:
            result = load_run(folder, network())
            require_printable(str(result))
            runs_forward(result.model)
        case 1:
            secateur.report(folder)
        case 2:  # as `secateur measure` does
            secateur.report(folder, sheet=measured().sheet, name="pruned")
        case 3:
            options: dict[str, Any] = {"channels": 0.5, "finetune": 1, **loaders()}
            require_printable(str(secateur.prune(dense(), run_dir=folder, **options)))


def use_unfinished_run(folder: Path, chance: random.Random) -> None:
    recipe = secateur.Recipe(optimizer="sgd", lr=0.01)
    runs_forward(secateur.prune(dense(), 0.8, finetune=1, recipe=recipe, run_dir=folder, **loaders()).model)


def use_report(folder: Path, chance: random.Random) -> None:
    if chance.random() < 0.5:
        secateur.report(folder)
    else:
        write(files_of("report.json"), folder / "other")
        secateur.report(folder, folder / "other", out=folder / "together.html")


def use_sensitivity(folder: Path, chance: random.Random) -> None:
    curves = Sensitivity.load(folder / "sensitivity.json")
    require_printable(str(curves))
    curves.amounts(0.01)
    for group in curves.groups:
        curves.loss(group.members[0], 0.9) if group.members else None
    if chance.random() < 0.5:
        secateur.report(curves, out=folder / "page.html")
    else:
        secateur.plan_channels(dense(), EXAMPLE, target="macs=50%", sensitivity=curves)


def use_settings(folder: Path, chance: random.Random) -> None:
    """The task ends every command, once it is found."""
    command = chance.choice((["prune", "--settings", "run/settings.toml"], ["measure", "run"], ["export", "run"]))
    back = Path.cwd()
    os.chdir(folder)
    try:
        done = CliRunner().invoke(app, command)
    finally:
        os.chdir(back)
        sys.path[:] = [entry for entry in sys.path if not entry.startswith(str(folder))]
    require_printable(done.output)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    if done.exit_code not in (1, 2):
        raise Wrong(f"exit code {done.exit_code}: {done.output[:LONGEST]}")
    said = " ".join(done.stderr.split())
    if "its end" not in said:
        raise secateur.SecateurError(said)


# Where the files come from


@cache
def files_of(name: str, called: str = "") -> Files:
    """Of an earlier version: a single file, or a folder."""
    place = FILES / name
    if place.is_file():
        return {called or name: place.read_bytes()}
    return {str(file.relative_to(place)): file.read_bytes() for file in place.rglob("*") if file.is_file()}


@cache
def measured() -> RunReport:
    return RunReport.from_json(json.loads((FILES / "report.json").read_bytes()))


def saved(save: Callable[[Path], Any]) -> Files:
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder))
        return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


@cache
def plan() -> Files:
    return saved(lambda folder: secateur.plan_channels(dense(), EXAMPLE, 0.5).save(folder / "plan.json"))


@cache
def plan_of_heads() -> Files:
    torch.manual_seed(0)
    return saved(lambda folder: secateur.plan_channels(Heads(), sequence(), 0.5).save(folder / "plan.json"))


@cache
def checkpoint_of_heads() -> Files:
    """Its plan changes sizes that modules hold."""
    torch.manual_seed(0)
    model = Heads()
    cut = secateur.plan_channels(model, sequence(), 0.5)
    return saved(lambda folder: secateur.save(secateur.apply(model, cut), cut, folder))


@cache
def extras() -> Files:
    torch.manual_seed(0)
    model, masks = masked(Language())
    return saved(lambda folder: secateur.save(model, masks, folder, dense=True))


@cache
def settings() -> Files:
    text = """
        task = "task.py"
        channels = "50%"
        finetune = "0"
        runtime = "eager"
        out = "out"
        keep = ["output"]
        per-layer = ["conv=25%"]
        multiple-of = 2
        lr = 0.01
        sensitivity = "s.json"
        seed = 0
        measure = false
        dense = false
    """
    return {"run/settings.toml": text.encode(), "run/run.json": b"{}", "task.py": b"raise ValueError('its end')"}


KINDS: Mapping[str, Kind] = {
    "plan": Kind(plan, use_plan),
    "plan that met a target": Kind(lambda: files_of("plan-met.json", "plan.json"), use_plan_of_an_earlier_version),
    "plan of heads": Kind(plan_of_heads, use_plan_of_heads),
    "masks": Kind(lambda: files_of("masks.safetensors"), use_masks),
    "cut checkpoint": Kind(lambda: files_of("channels"), use_checkpoint),
    "checkpoint of heads": Kind(checkpoint_of_heads, use_checkpoint_of_heads),
    "masked checkpoint": Kind(lambda: files_of("zeros"), use_checkpoint),
    "checkpoint with extras": Kind(extras, use_extras),
    "engine": Kind(lambda: files_of("engine"), use_engine),
    "finished run": Kind(lambda: files_of("run-finished"), use_finished_run),
    "unfinished run": Kind(lambda: files_of("run-unfinished"), use_unfinished_run),
    "report": Kind(lambda: files_of("report.json"), use_report),
    "sensitivity": Kind(lambda: files_of("sensitivity.json"), use_sensitivity),
    "settings": Kind(settings, use_settings),
}


def attack_in_a_folder(kind: str, seed: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        return attack(kind, seed, Path(folder))


def keep_failure(kind: str, seed: str, place: Path) -> Path:
    """The files that did it, to look at."""
    folder = place / f"{kind} {seed}".replace(" ", "-")
    shutil.rmtree(folder, ignore_errors=True)
    write(forged(KINDS[kind].files(), random.Random(f"{kind} {seed}")), folder)
    return folder
