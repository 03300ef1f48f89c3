"""The command line as a person meets it: help, typos, the demo, interruption, and exit codes."""

import io
import json
import re
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

import secateur
from secateur.bench.size import ModelSize
from secateur.bench.timing import Timing
from secateur.commands.app import main
from secateur.commands.one_sentence import errors_in_one_sentence
from secateur.loop.result import Record, Result
from secateur.pages.curve import save_curve
from secateur.pages.demo_console import rule_of_thumb, speed_verdict
from secateur.plans.masks import Masks
from tests.support.brief import SHORT_TIMINGS, SMALL_NETWORK, write_few_images
from tests.support.forked import Program
from tests.support.terminal import seen_on_a_terminal

MAIN = "from secateur.commands.app import main; main()"
BRIEF = SHORT_TIMINGS + SMALL_NETWORK + MAIN


def run(*args: str, command: str = MAIN, **options: Any) -> subprocess.CompletedProcess[str]:
    return Program(command, *args, **options).wait()


def test_a_warning_is_told_once_whatever_filters_libraries_set(capsys: pytest.CaptureFixture[str]) -> None:
    with errors_in_one_sentence(False, ""):
        for sentence in ("It is read-only.", "It is read-only.", "It is large."):
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                warnings.warn(sentence, secateur.SecateurWarning, stacklevel=1)
    assert capsys.readouterr().err == "secateur: warning: It is read-only.\nsecateur: warning: It is large.\n"


def test_the_help_has_no_types_in_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["secateur", "--help"])
    with pytest.raises(SystemExit):
        main()
    shown = capsys.readouterr().out
    assert "--version" in shown
    assert "bool" not in shown


def test_the_help_of_every_command_has_an_example_and_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from secateur.commands.app import app\n"
        "for command in app.registered_commands:\n"
        "    name = command.callback.__name__\n"
        "    try: app([name, '--help'])\n"
        "    except SystemExit: pass\n"
        "    print('seen', name)\n"
        "heavy = {'torch', 'accelerate', 'numpy', 'plotly', 'safetensors', 'onnxruntime'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    commands = re.findall(r"^seen (\w+)$", done.stdout, re.MULTILINE)
    assert len(commands) == 10
    for command in commands:
        assert re.search(rf"Example: secateur {command}\b", done.stdout)


def test_the_package_itself_imports_nothing_heavy() -> None:
    code = "import sys, secateur; dir(secateur); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there_and_none_is_a_module() -> None:
    for name in secateur.__all__:
        assert not isinstance(getattr(secateur, name), type(sys)), f"secateur.{name} is hidden by a module"
    with pytest.raises(AttributeError, match="no attribute 'prunne'"):
        secateur.prunne  # noqa: B018


def test_typos_are_answered_with_what_was_meant() -> None:
    command = run("dmo")
    assert command.returncode == 2
    assert "demo" in command.stderr
    option = run("demo", "--sed", "1")
    assert option.returncode == 2
    assert "--seed" in option.stderr
    assert run("--version").stdout.strip() == f"secateur {secateur.__version__}"


@pytest.mark.parametrize("args", [["--data", "/nowhere"], ["--epochs", "-1"], ["--epochs", "many"], ["--seed", "-1"]])
def test_usage_errors_exit_with_2_and_no_traceback(args: list[str], tmp_path: Path) -> None:
    done = run("demo", *args, folder=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_a_file_in_the_way_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    done = run("demo", "--out", str(tmp_path / "out"), "--epochs", "0.01")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert (tmp_path / "out").read_text() == "mine"


def let_no_file_grow() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


def test_failures_exit_with_1_and_debug_shows_the_traceback(tmp_path: Path) -> None:
    few = write_few_images(tmp_path / "data")
    args = ["demo", "--out", str(tmp_path / "out"), "--epochs", "0.01"]
    smaller = f"from secateur.examples import fashion_mnist as own\nown.EMBEDDED_FOLDER = own.Path({str(few)!r})\n"
    done = run(*args, command=smaller + MAIN, before=let_no_file_grow)
    assert done.returncode == 1
    assert re.fullmatch(r"secateur: .* could not be written .*", done.stderr.splitlines()[-1])
    assert "Traceback" not in done.stderr
    debug = run(*args, "--data", str(few), "--debug", before=let_no_file_grow)
    assert debug.returncode == 1
    assert "Traceback" in debug.stderr


def test_the_demo_is_interrupted_resumed_and_reported(tmp_path: Path) -> None:
    data = write_few_images(tmp_path / "data", train=256, test=100)
    args = ["demo", "--epochs", "1", "--out", str(tmp_path / "demo"), "--seed", "5", "--data", str(data)]
    first = Program(BRIEF, *args)
    while not (tmp_path / "demo" / "zeros-90" / "run.json").exists():
        assert first.running, first.wait()
        time.sleep(0.01)
    first.interrupt()
    stopped = first.wait()
    assert stopped.returncode == 130
    assert "continues from the last finished epoch" in stopped.stderr
    assert "Traceback" not in stopped.stderr

    second = run(*args, "--json", command=BRIEF)
    assert second.returncode == 0, second.stderr
    assert "dense: train epoch" not in second.stderr, "the training is not repeated"
    outcome = json.loads(second.stdout)
    assert [version["name"] for version in outcome["versions"]] == [
        "dense",
        "90 % zeros",
        "2:4 pattern",
        "50 % channels",
    ]
    dense, zeros, two_of_four, channels = outcome["versions"]
    assert 0.2 < channels["parameters"] / dense["parameters"] < 0.3
    assert 0.2 < channels["macs"] / dense["macs"] < 0.3
    assert zeros["parameters"] == dense["parameters"]
    assert zeros["nonzeros"] < 0.11 * dense["parameters"]
    assert 0.45 < two_of_four["nonzeros"] / dense["parameters"] < 0.55
    assert zeros["accuracy_before"] == dense["accuracy_recovered"]
    assert dense["accuracy_repaired"] is None
    assert all(version["accuracy_repaired"] is not None for version in outcome["versions"][1:])
    assert json.loads((tmp_path / "demo" / "demo.json").read_text()) == outcome
    compared = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    assert "<h1>Accuracy against latency in eager, batch 32</h1>" in compared
    assert "Latency by runtime and batch" in (tmp_path / "demo" / "channels-50" / "report.html").read_text(
        encoding="utf-8"
    )
    masks = secateur.read_checkpoint(tmp_path / "demo" / "two-of-four").masks
    assert masks.pattern == "2:4"

    nowhere = run(*args, "--data", str(tmp_path))
    assert nowhere.returncode == 2
    assert (tmp_path / "demo" / "demo.json").exists(), "a call that cannot work does not cost the last outcome"

    third = run(*args, command=BRIEF, environment={"COLUMNS": "80"})
    assert third.returncode == 0, third.stderr
    assert "dense: train epoch 1/1" in third.stderr, "a finished demo is made anew"
    assert "…" not in third.stdout, "the table fits 80 columns"
    for words in (
        "90 % zeros",
        "2:4 pattern",
        "Did the rule of thumb hold here?",
        "Is it faster here?",
        "null control",
    ):
        assert words in third.stdout


def test_a_terminal_gets_a_live_bar(tmp_path: Path) -> None:
    code = (
        "import sys, secateur\n"
        "from torch.utils.data import DataLoader\n"
        "from tests.support.models import ConvNet, blobs\n"
        "data = dict(train_data=DataLoader(blobs(), 8), eval_data=DataLoader(blobs(), 64))\n"
        "secateur.prune(ConvNet(), 0.5, train=2, finetune=1, **data)\n"
    )
    text = seen_on_a_terminal(code)
    assert "━" in text
    assert "left" in text
    assert re.search(r"train epoch 2/2: accuracy [01]\.\d{4}", text)
    assert re.search(r"cut: accuracy [01]\.\d{4}, 50\.0% zeros", text)


def result_with(before: float, cut: float, after: float, repaired: float | None = None) -> Result:
    size = ModelSize(10, 10, 40)
    stops = [("before", "before", before), ("cut", "cut", cut), ("fine-tune epoch 1/1", "fine-tune", after)]
    if repaired is not None:
        stops.insert(2, ("repaired", "repair", repaired))
    records = tuple(Record(stop, phase, 0.0, metric, 0.9, size, 1.0) for stop, phase, metric in stops)
    return Result(records, 0.02, model=None, masks=Masks({}))  # type: ignore[arg-type]


def test_a_name_that_cannot_be_printed_ends_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="utf-8", write_through=True))
    monkeypatch.setattr(sys, "argv", ["secateur", "init", "\udcff.py"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert raw.getvalue().startswith(b"\\udcff.py is written")


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ((0.90, 0.80, 0.89), ["10.0 points lost at the cut (held)", "1.0 points short (held)"]),
        ((0.90, 0.20, 0.85), ["70.0 points lost at the cut (did not hold, it lost more)", "NOT recover"]),
        ((0.90, 0.89, 0.91), ["1.0 points lost at the cut (did not hold, it lost less)", "1.0 points above"]),
        ((0.90, 0.20, 0.89, 0.86), ["70.0 points lost at the cut", "4.0 after the repair; ended 1.0 points short"]),
        ((0.90, 0.20, 0.89, 0.91), ["1.0 above the dense model after the repair; ended"]),
    ],
)
def test_the_rule_of_thumb_is_judged_by_the_numbers(metrics: tuple[float, ...], words: list[str]) -> None:
    sentence = rule_of_thumb(result_with(*metrics))
    assert all(word in sentence for word in words), sentence


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((1.0, 0.99, 1.01), "no: "),
        ((0.5, 0.495, 0.505), "yes: "),
        ((2, 1.99, 2.01), "no: 2.00 [1.99, 2.01] × dense, takes 2.00 times as long."),
        ((1, 0.5, 1.5), "unclear: 1.00 [0.50, 1.50] × dense, too noisy for a verdict after 20 rounds."),
        ((0.4, 0.39, 0.41), "yes: "),  # wide for its size, and still far from no difference
        ((2, 1.5, 2.5), "no: 2.00 [1.50, 2.50] × dense, takes 2.00"),
    ],
)
def test_speed_is_judged_against_the_null_control(interval: tuple[float, float, float], verdict: str) -> None:
    assert speed_verdict(Timing(1.0, *interval, 20), Timing(1.0, 1.0, 0.99, 1.01, 20)).startswith(verdict)


def test_the_curve_is_one_self_contained_page(tmp_path: Path) -> None:
    save_curve({"90 % zeros": result_with(0.9, 0.2, 0.88)}, tmp_path / "curve.html")
    page = (tmp_path / "curve.html").read_text()
    assert not re.search(r'<(script|link|img)[^>]+(src|href)="http', page)
    assert "90 % zeros" in page
    assert "epochs from the cut" in page
