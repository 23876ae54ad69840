"""Every planted fault is caught by the intended check, right variants pass, and a checker that misses a fault fails."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.worker.conftest import Diary, identify
from warpwatch.cli.app import app
from warpwatch.settings import Settings
from warpwatch.worker import proving
from warpwatch.worker.host import Host
from warpwatch.worker.proving import KINDS, LONG_KINDS, Proof, busy_processes, prove, read_expectations, sources
from warpwatch.worker.tools import Tools

pytestmark = pytest.mark.timeout(900)
"""The mutants of all operators go through one fixture."""


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    settings = Settings(
        home=tmp_path_factory.mktemp("proving") / "home", case_timeout_seconds=60, build_timeout_seconds=60
    )
    identify(settings.home)
    tools = Tools(Host(settings, "cpu"))
    yield tools
    tools.close()
    assert list((settings.home / "mirrors").glob("*.git")) == []


@pytest.fixture(scope="module")
def log() -> Diary:
    """What the proof of mutants logs."""
    return Diary()


@pytest.fixture(scope="module")
def mutants(tools: Tools, log: Diary) -> Proof:
    """Of two operators that are caught by every check; nightly proves all."""
    return prove("mutants", tools, log, seeds=1, operators=["linear", "stencil"])


def test_an_operator_that_ships_is_proved_with_mutants_of_its_own(tools: Tools) -> None:
    proof = prove("mutants", tools, Diary(), seeds=1, operators=["vector_add"])
    assert len(proof.faults) >= 3
    assert {fault.outcome for fault in proof.faults} == {"caught"}
    assert proof.holds


def test_every_mutant_is_caught_by_what_it_was_planted_for(mutants: Proof) -> None:
    outcomes = {fault.variant: fault.outcome for fault in mutants.faults}
    assert set(outcomes.values()) == {"caught"}
    assert len(outcomes) >= 15
    by = {fault.variant: fault.caught_by for fault in mutants.faults}
    assert by["writes_past_end"] == "guard bands"
    assert by["ignores_strides"] == "strided inputs"
    assert by["misaligned_vectors"] == "offset inputs"
    assert by["spreads_nan"] == "special values"
    assert by["wrong_fake"] == by["wrong_schema"] == "opcheck"
    assert by["scratch_too_small"] == "address"
    assert by["transpose_dropped"] == "plain runs"


@pytest.mark.words
def test_a_sanitizer_names_the_line_at_fault(mutants: Proof, log: Diary) -> None:
    sanitized = next(fault for fault in mutants.faults if fault.variant == "scratch_too_small")
    assert "heap-buffer-overflow csrc/stencil/stencil.cpp" in sanitized.message
    lines = [line for line in log.lines if line.startswith("check scratch_too_small")]
    assert len(lines) == 1, "a fault that was caught needs no further case"


def test_what_is_right_is_left_in_peace(mutants: Proof) -> None:
    assert mutants.false_alarms == []
    assert mutants.clean_runs >= 15
    assert mutants.holds


def test_an_adversary_that_gets_away_is_found_out(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "adversaries"
    source = proving.FOLDER / "mutants"
    for name in ("warpwatch.toml", "kernels/linear.py"):
        (folder / "mutants" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "mutants" / name).write_text((source / name).read_text())
    text = (source / "kernels" / "linear.py").read_text()
    text = text.replace(
        '"spreads_nan": "probe special values"', '"spreads_nan": "probe opcheck", "addmm": "wrong_values"'
    )
    text = text.replace('    "bias_forgotten": "wrong_values y",\n', "")
    (folder / "mutants" / "kernels" / "linear.py").write_text(text)
    monkeypatch.setattr(proving, "FOLDER", folder)
    proof = prove("mutants", tools, Diary(), seeds=1, operators=["linear"])
    outcomes = {fault.variant: fault.outcome for fault in proof.faults}
    assert outcomes["spreads_nan"] == "otherwise"
    assert outcomes["addmm"] == "survived"
    assert outcomes["transpose_dropped"] == "caught"
    assert {alarm.variant for alarm in proof.false_alarms} == {"bias_forgotten"}
    assert not proof.holds


def test_expectations_are_read_without_running_the_files() -> None:
    for source in (source for kind in KINDS for source in sources(kind)):
        expectations = read_expectations(source.folder)
        assert expectations
        assert all(expected.caught_by for expected in expectations), source
        assert all(set(expected.sanitize) <= set(expected.caught_by) for expected in expectations)


def test_a_hundred_caches_are_planted_and_no_fault_among_honest_code() -> None:
    (caches,), (honest,) = sources("caches"), sources("honest")
    planted = [expectations.caught_by for expectations in read_expectations(caches.folder)]
    assert sum(map(len, planted)) >= 100
    assert {str(expected) for caught_by in planted for expected in caught_by.values()} == {"cached_result"}
    assert len(read_expectations(honest.folder)) >= 7
    assert all(not expectations.caught_by for expectations in read_expectations(honest.folder))
    assert set(LONG_KINDS) == {"caches", "honest"}


@pytest.mark.nightly
@pytest.mark.parametrize("operator", ["losing", "signs"])
def test_honest_code_that_looks_like_cheats_passes(tools: Tools, operator: str) -> None:
    proof = prove("honest", tools, Diary(), seeds=1, operators=[operator])
    assert proof.false_alarms == []
    assert proof.clean_runs >= 10


def test_the_command_prints_a_table_and_says_by_its_exit_code_whether_all_were_caught(tools: Tools) -> None:
    values = {"WARPWATCH_HOME": str(tools.host.home), "COLUMNS": "250"}
    command = ["prove", "mutants", "--device", "cpu", "--seeds", "1", "--operators", "softmax"]
    # In this process, whose template the command's children come from.
    done = CliRunner().invoke(app, command, env=values)
    assert done.exit_code == 0, done.output
    assert "5 of 5 mutants caught and named" in done.stdout
    assert re.search(r"^softmax +5 +5 *$", done.stdout, re.MULTILINE)
    assert "0 false alarms" in done.stdout
    assert "special values" in done.stdout


def test_the_command_refuses_what_it_cannot_prove_or_send(tools: Tools) -> None:
    wrong = CliRunner().invoke(app, ["prove", "angels"])
    assert (wrong.exit_code, "choose from mutants, cheaters, all, caches, honest" in wrong.output) == (2, True)
    command = ["prove", "mutants", "--device", "cpu", "--operators", "softmax", "--submit"]
    values = {"WARPWATCH_HOME": str(tools.host.home), "WARPWATCH_URL": "http://127.0.0.1:1"}
    unreachable = CliRunner().invoke(app, command, env=values)
    assert unreachable.exit_code == 2
    assert "no Warpwatch server at" in unreachable.output


def test_a_proof_is_plain_data(mutants: Proof) -> None:
    content = json.loads(json.dumps(mutants.to_json()))
    assert set(content) == {"kind", "seeds", "innocent", "exhibits", "accused"}
    assert len(content["exhibits"]) == len(mutants.faults)


@pytest.mark.nightly
def test_right_variants_run_as_often_as_asked_for_beside_busy_processes(tools: Tools) -> None:
    values = os.environ | {"WARPWATCH_HOME": str(tools.host.home), "COLUMNS": "250"}
    command = [sys.executable, "-m", "warpwatch", "prove", "cheaters", "--device", "cpu", "--seeds", "0"]
    # No variant of `captured` runs on a CPU, so the other one runs for it.
    command += ["--operators", "captured,meddling", "--load", "1"]
    done = subprocess.run([*command, "--honest", "3"], env=values, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = re.search(r"correct variants: (\d+) runs .* 0 false alarms", done.stdout)
    assert runs is not None
    assert 3 <= int(runs[1]) <= 6
    for words in (command, [*command[:4], "caches"]):
        both = subprocess.run([*words, "--submit"], env=values, capture_output=True, text=True)
        assert (both.returncode, "--submit" in both.stdout) == (2, True)


def test_busy_processes_end_with_their_block() -> None:
    with busy_processes(2) as started:
        assert [process.poll() for process in started] == [None, None]
    assert [process.poll() is not None for process in started] == [True, True]
