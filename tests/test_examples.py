"""The example data shows the operators of kernels/, and the script that measures it."""

from __future__ import annotations

import importlib
import shlex
from collections import defaultdict
from pathlib import Path

import pytest

from bench.examples import SWEPT, TABLED, Part, choose_commits, join, measure
from warpwatch.bundle import BundleReader
from warpwatch.loading import operator_names

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "docs" / "example"
NOT_MEASURED = {"bpe_train": {"v1", "v2", "v3", "v4", "hf_tokenizers"}}
"""Variants that no example shows: they run on CPUs alone. `make examples` measures them on the host of a GPU, and
whoever commits its results empties this."""


def test_every_variant_is_in_an_example() -> None:
    shown: dict[str, set[str]] = defaultdict(set)
    with BundleReader(EXAMPLES / "h200.wwb") as reader:
        for run in reader.runs():
            shown[run.order.operator] |= {finding.variant for finding in run.outcome.findings}
    missing = {}
    for name in operator_names():
        if variants := {*importlib.import_module(f"kernels.{name}").operator.variants} - shown[name]:
            missing[name] = variants
    assert missing == NOT_MEASURED


def test_every_operator_has_cases_in_the_table() -> None:
    assert sorted(TABLED) == operator_names()
    for name, cases in TABLED.items():
        operator = importlib.import_module(f"kernels.{name}").operator
        assert {case.key for case in operator.all_cases()} >= {*cases, *SWEPT.get(name, ())}, name


def test_older_commits_are_those_that_changed_most_operators() -> None:
    changed = {"d": {"kron"}, "c": {"kron", "gru"}, "b": {"rope", "kron"}, "a": {"spmm"}}
    assert choose_commits(changed, ["kron", "gru", "rope"], 2) == ["b", "c"]
    assert choose_commits(changed, ["kron", "gru", "rope"], 9) == ["b", "c"]
    assert choose_commits(changed, ["spmm"], 1) == ["a"]


def test_an_interrupted_run_goes_on_with_the_parts_that_have_no_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [Part("a" * 40, name, ("n=8,f32,fwd",)) for name in ("kron", "gru", "rope")]
    words = " ".join(parts[0].command("cuda:1", tmp_path / "x.wwb")[1:])
    assert words.startswith(f"run --commits {'a' * 40} --operators kron --device cuda:1 --output")
    (tmp_path / parts[1].file).write_text("measured before")

    def command(part: Part, _device: str, output: Path) -> list[str]:
        # An interrupted run leaves a file as well.
        return ["sh", "-c", f"touch {shlex.quote(str(output))}; exit {2 if part.operator == 'rope' else 0}"]

    monkeypatch.setattr(Part, "command", command)
    measure(parts, ["cuda:0", "cuda:1"], tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 parts, 1 of them measured before"
    assert sorted("no results" in line for line in lines[1:]) == [False, True], "rope left no results"
    assert sorted(file.name for file in tmp_path.glob("*.wwb")) == sorted(part.file for part in parts[:2])
    assert (tmp_path / parts[1].file).read_text() == "measured before"


def test_a_joined_file_holds_the_jobs_and_traces_of_all(tmp_path: Path) -> None:
    join([EXAMPLES / "rows.wwb"] * 2, tmp_path / "joined.wwb")
    with BundleReader(EXAMPLES / "rows.wwb") as reader:
        expected = [(run.order, len(run.outcome.findings), run.started_at) for run in reader.runs()] * 2
        traces = 2 * sum("traces/" in member.name for member in reader.manifest.members)
    with BundleReader(tmp_path / "joined.wwb") as reader:
        runs = list(reader.runs())
        assert [(run.order, len(run.outcome.findings), run.started_at) for run in runs] == expected
        assert sum("traces/" in member.name for member in reader.manifest.members) == traces > 10
        ordinals = [commit.ordinal for commit in reader.manifest.commits]
        assert ordinals == sorted(ordinals)
