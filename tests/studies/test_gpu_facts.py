"""What others have published about GPUs: the table, its filters, the verdicts drawn from it, and the command."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import secateur
from secateur.commands.app import app
from secateur.pages.published_console import print_published
from secateur.studies.machine.claims import CAN_BE_SLOWER, COUNTS_MATTER, IN_ONE_LAYER, ONLY_TENSOR_CORES
from secateur.studies.published.gpu_facts import BATCHES, QUESTIONS
from secateur.studies.published.published_claims import published_claims


def test_every_fact_has_a_range_around_its_median_and_a_source() -> None:
    facts = secateur.gpu_facts()
    assert Counter(fact.question for fact in facts) == dict(zip(QUESTIONS, (12, 7, 21, 2, 1), strict=True))
    for fact in facts:
        assert 0 < fact.low <= fact.speedup <= fact.high
        assert fact.low < fact.high or fact.count == 1
        assert fact.source.startswith("https://")
        assert fact.batch in BATCHES
        assert all((fact.gpu, fact.kernel, fact.what, fact.zeros))


def test_a_range_that_reaches_across_one_is_no_answer() -> None:
    pays = {(fact.gpu, fact.batch): fact.pays for fact in secateur.gpu_facts("2:4") if fact.kernel == "cuSPARSELt bf16"}
    assert pays["A100", "wide batch"] == "yes"
    assert pays["GB10", "wide batch"] == pays["H100", "wide batch"] == "depends"
    assert {fact.pays for fact in secateur.gpu_facts("2:4") if fact.batch == "batch 1"} == {"no"}


def test_facts_are_chosen_by_question_and_by_a_part_of_the_name() -> None:
    ampere = secateur.gpu_facts("zeros anywhere", gpu="rtx 30")
    assert {(fact.question, fact.gpu) for fact in ampere} == {("zeros anywhere", "RTX 3090")}
    assert ampere.questions == ("zeros anywhere",)
    assert secateur.gpu_facts(gpu="4090").gpus == ("RTX 4090",)
    with pytest.raises(secateur.UsageError, match="Did you mean 'fewer channels'"):
        secateur.gpu_facts("fewer channel")
    with pytest.raises(secateur.UsageError, match="did you mean 'RTX 4090'"):
        secateur.gpu_facts(gpu="RTX-4O90")
    with pytest.raises(secateur.UsageError, match=r"'Voodoo' is known; choose from A100, B200, .*RTX 5080"):
        secateur.gpu_facts(gpu="Voodoo")


def test_the_answers_say_how_far_the_speedups_reach_and_who_says_so() -> None:
    facts = secateur.gpu_facts()
    assert facts.answers("zeros anywhere") == [
        "Batch 1: 0.11–4.34 × as fast as dense (6 faster, 2 slower, 1 either, by shape; one source).",
        "Small batch: 1.70 × as fast as dense (1 faster; one source).",
        "Wide batch: 0.40–1.17 × as fast as dense (1 faster, 1 slower; one source).",
    ]
    assert facts.answers("blocks")[-1].endswith("(5 faster, 1 slower; 3 sources).")


def test_the_claims_are_judged_by_the_facts() -> None:
    claims = published_claims()
    assert {text: claim.held for text, claim in claims.items()} == {
        CAN_BE_SLOWER: True,
        ONLY_TENSOR_CORES: False,
        IN_ONE_LAYER: True,
        COUNTS_MATTER: True,
    }
    for text, *numbers in (
        (CAN_BE_SLOWER, "0.40 (0.29–0.57) on RTX 3090", "2.06 (0.55–3.10)", "4.34"),
        (ONLY_TENSOR_CORES, "1.48 (1.29–2.18) on RTX 3090", "0.92 (0.47–1.68) on GB10", "1.66 (1.36–1.82) against"),
        (IN_ONE_LAYER, "2.00 (1.82–2.25) on six GPUs", "one source"),
        (COUNTS_MATTER, "1.78 × the time"),
    ):
        assert all(number in claims[text].because for number in numbers)


def test_the_console_fits_80_columns_but_for_addresses(capsys: pytest.CaptureFixture) -> None:
    print_published(secateur.gpu_facts(), Console(width=80))
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines if not line.startswith("[")) <= 80
    told = {int(number) for line in lines for number in re.findall(r"\[(\d+)\], ", line)}
    assert told == {int(line[1:].partition("]")[0]) for line in lines if line.startswith("[")}


def test_the_command_measures_nothing_and_loads_no_torch() -> None:
    code = (
        "import sys\nfrom secateur.commands.app import app\n"
        "try: app(['hardware', '--published', '--gpu', 'A100'])\n"
        "except SystemExit: assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "1.62 (1.17–1.88)  A100" in done.stdout
    assert "RTX" not in done.stdout


def test_the_command_writes_json_and_a_page_and_refuses_what_makes_no_sense(tmp_path: Path) -> None:
    page = tmp_path / "gpus.html"
    done = CliRunner().invoke(app, ["hardware", "--published", "--json", "--gpu", "MI300X", "-o", str(page)])
    assert [fact["speedup"] for fact in json.loads(done.stdout)["facts"]] == [1.16]
    assert "hipSPARSELt" in page.read_text()
    for options, sentence in (
        (["--gpu", "A100"], "--gpu is for --published"),
        (["--published", "--again"], "--published measures nothing"),
        (["--published", "--gpu", "A10O"], "did you mean 'A100'?"),
    ):
        refused = CliRunner().invoke(app, ["hardware", *options])
        assert (refused.exit_code, sentence in refused.stderr) == (2, True)
