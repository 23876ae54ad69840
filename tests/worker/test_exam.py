"""Other harnesses sit the exam: which cheats they catch, what times they believe, whom they accuse."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from warpwatch.cli.app import app
from warpwatch.worker import exam
from warpwatch.worker.exam import ExamResult, Sitting, as_markdown, candidates, sit
from warpwatch.worker.harness.exam import CandidateResult, _in_a_fork, _sit

TRUSTING = """
import time as clock

def check(reference, candidate, inputs):
    candidate(*inputs(0))
    return True

def time(candidate, inputs):
    tensors, begin = inputs(0), clock.perf_counter_ns()
    for _ in range(20):
        candidate(*tensors)
    return (clock.perf_counter_ns() - begin) / 20e9
"""
KERNELBENCH = """
import openai
from types import SimpleNamespace

def run_and_check_correctness(model, new_model, get_inputs_fn, metadata, num_correct_trials, seed, device):
    tensors = get_inputs_fn()
    return SimpleNamespace(correctness=model(*tensors).equal(new_model(*tensors)))
"""
TIMING = """
import torch

def get_timing_function(method):
    def times(model, tensors, num_trials, verbose, device):
        return [min(time(model, tensors, device) for _ in range(10))]
    return times

def time(model, tensors, device):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    model(*tensors)
    end.record()
    torch.cuda.synchronize(device=device)
    return start.elapsed_time(end)

def get_timing_stats(times, device):
    return {"mean": times[0]}
"""


def ask(adapter: str, *names: str, checkout: str = "") -> dict[str, Sitting]:
    """The sittings of these variants, given as `operator.variant`."""
    rows = [row for row in candidates() if f"{row[0]}.{row[1]}" in names]
    return {f"{s.operator}.{s.variant}": s for s in sit(adapter, checkout, "cpu", rows)}


def test_variants_with_steps_that_others_lack_are_left_out() -> None:
    rows = candidates()
    assert {operator for operator, _, _ in rows} >= {"kept", "patches", "phases", "guessed"}
    assert not {"prepared", "detached"} & {operator for operator, _, is_cheat in rows if is_cheat}
    assert sum(is_cheat for _, _, is_cheat in rows) >= 55
    assert candidates(["coarse"]) == [row for row in rows if row[0] == "coarse"]


def test_a_trusting_harness_is_deceived_and_warpwatch_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "trusting.py"
    file.write_text(TRUSTING)
    names = ("kept.honest", "kept.by_pointer", "meddling.honest", "meddling.returns_an_input")
    trusting = ExamResult("trusting", list(ask(str(file), *names).values()))
    assert {sitting.variant for sitting in trusting.deceived} == {"by_pointer", "returns_an_input"}
    assert (trusting.caught, trusting.accused, len(trusting.honest)) == ([], [], 2)
    # Its check and its bench take seconds of each; the tests of the harness show that it catches the others.
    monkeypatch.setattr(exam, "TWIN_SITTINGS", 1)
    strict = ExamResult("warpwatch_bench", list(ask("warpwatch_bench", *names[:2]).values()))
    assert (len(strict.caught), strict.accused, strict.deceived) == (1, [], [])
    text = as_markdown([trusting, strict])
    assert "| trusting | 2 | 0 | 0 | 2 | 2 | 0 |" in text
    assert "| warpwatch_bench | 1 | 1 | 0 | 0 | 1 | 0 |" in text


@pytest.mark.nightly
def test_a_script_checks_once_and_believes_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A package of the name of the exam's own is not taken for it.
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    found = ask("torch_benchmark", "kept.honest", "kept.by_version", "meddling.returns_an_input", "captured.honest")
    result = ExamResult("torch_benchmark", list(found.values()))
    assert found["kept.honest"].outcome == "believed"
    assert [sitting.variant for sitting in result.deceived] == ["by_version"]
    assert (found["meddling.returns_an_input"].outcome, found["meddling.returns_an_input"].by) == ("caught", "check")
    assert (found["captured.honest"].outcome, found["captured.honest"].message != "") == ("not_run", True)


def test_a_harness_in_a_checkout_is_asked_without_its_clients_and_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    folder = tmp_path / "src" / "kernelbench"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "eval.py").write_text(KERNELBENCH)
    (folder / "timing.py").write_text(TIMING)
    found = ask("kernelbench", "patches.honest", "patches.event", "coarse.bf16", checkout=str(tmp_path))
    assert found["patches.honest"].outcome == "believed", found["patches.honest"].message
    assert found["coarse.bf16"].outcome == "caught"
    # The reference is timed by the replaced function as well, so no speed-up looks excessive.
    result = ExamResult("kernelbench", list(found.values()))
    assert [sitting.variant for sitting in result.deceived] == ["event"]


def test_a_candidate_that_does_not_load_was_not_caught() -> None:
    result = _sit({"adapter": "torch_benchmark", "checkout": "", "device": "cpu"}, "missing", "v1")
    assert (result.outcome, "missing" in result.message) == ("not_run", True)


def hang() -> CandidateResult:
    time.sleep(60)
    return CandidateResult("a", "b", "believed")


def test_a_candidate_that_ends_its_process_or_hangs_is_caught() -> None:
    assert _in_a_fork(lambda: os._exit(3), 10) is None
    assert _in_a_fork(hang, 0.2) is None
    result = _in_a_fork(lambda: CandidateResult("a", "b", "believed", seconds=1.0), 10)
    assert result is not None
    assert (result["outcome"], result["seconds"]) == ("believed", 1.0)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["nobody"], "choose from do_bench, flashinfer_bench, kernelbench"),
        (["kernelbench"], "kernelbench=CHECKOUT"),
        (["kernelbot=/nowhere"], "/nowhere is not a folder"),
        (["torch_benchmark", "--operators", "nothing"], "no operator of the cheats"),
    ],
)
def test_the_command_refuses_what_it_cannot_ask(arguments: list[str], part: str) -> None:
    done = CliRunner().invoke(app, ["exam", *arguments])
    assert (done.exit_code, part in done.output) == (2, True), done.output


def test_the_command_prints_and_writes_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(_adapter: str, _checkout: str, _device: str, rows: list[tuple[str, str, bool]]) -> Iterator[Sitting]:
        for operator, variant, is_cheat in rows:
            if operator == "captured":
                yield Sitting(operator, variant, is_cheat, "not_run", "", None, f"{variant} has no implementation")
            elif is_cheat:
                yield Sitting(operator, variant, True, "caught", "check", None, "wrong")
            else:
                yield Sitting(operator, variant, False, "believed", "", 1e-3, "")

    monkeypatch.setattr("warpwatch.worker.exam.sit", answer)
    file = tmp_path / "table.md"
    command = ["exam", "torch_benchmark", "--operators", "coarse,captured", "--markdown", str(file)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "4 of 4 cheats caught" in done.output
    assert "0 of 2 honest variants accused" in done.output
    assert "1 not run: once_per_buffer has no implementation" in done.output
    assert "| torch_benchmark | 4 | 4 | 0 | 0 | 2 | 0 |" in file.read_text()
