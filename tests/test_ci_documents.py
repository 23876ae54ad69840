"""The workflows in examples/ci call commands, options and forms that exist, and docs/ci.md is true."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from warpwatch.cli.app import app
from warpwatch.cli.plans import FORMS
from warpwatch.server.reports.model import ERRORS, FAILURES, KINDS
from warpwatch.server.threads.notifier import FIRST_PAUSE_SECONDS, MAX_ATTEMPTS
from warpwatch.server.verdicts.thresholds import THRESHOLDS

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples" / "ci"
PAGE = (ROOT / "docs" / "ci.md").read_text()
WORKFLOWS: dict[str, Any] = {path.name: yaml.safe_load(path.read_text()) for path in sorted(EXAMPLES.glob("*.yml"))}


def scripts() -> list[str]:
    """Every shell line of the workflows and of the page."""
    steps = WORKFLOWS["github.yml"]["jobs"]["warpwatch"]["steps"]
    lines = [step["run"] for step in steps if "run" in step] + WORKFLOWS["gitlab.yml"]["kernels"]["script"]
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    return [line for text in [*lines, *blocks] for line in text.strip().splitlines() if line.startswith("warpwatch ")]


def test_both_are_there_and_linked() -> None:
    assert set(WORKFLOWS) == {"github.yml", "gitlab.yml"}
    for name in WORKFLOWS:
        assert f"(../examples/ci/{name})" in PAGE


@pytest.mark.parametrize("line", scripts())
def test_commands_and_options_exist(line: str) -> None:
    words = shlex.split(line.replace("$(", "(").replace("{sha}", "sha"))[1:]
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    options = {option for parameter in command.params for option in parameter.opts}
    assert [word for word in words if word.startswith("--") and word not in options] == []
    for form in re.findall(r"--report (\w+)=", line):
        assert form in FORMS


def test_workflows_hold_the_commit_against_its_base_and_keep_the_report() -> None:
    for text in ((EXAMPLES / name).read_text() for name in WORKFLOWS):
        for word in ("--base merge-base", "--wait", "--report junit=", "--idempotency-key"):
            assert word in text
        assert "secrets." not in text, "the code host says who asks"
    assert WORKFLOWS["github.yml"]["permissions"]["id-token"] == "write"
    assert WORKFLOWS["gitlab.yml"]["kernels"]["id_tokens"] == {"WARPWATCH_TOKEN": {"aud": "$WARPWATCH_URL"}}
    steps = WORKFLOWS["github.yml"]["jobs"]["warpwatch"]["steps"]
    measured = next(number for number, step in enumerate(steps) if step.get("name") == "Measure")
    assert all("always()" in step["if"] for step in steps[measured + 1 :]), (
        "a report is shown above all when the exit code is not 0"
    )


def test_the_page_names_every_kind_form_and_number() -> None:
    for kind, name in KINDS.items():
        code = "1" if kind in FAILURES else "2" if kind in ERRORS else "–"
        assert kind == "accepted" or f"| {name} | {code} |" in PAGE
    assert all(f"`{form}`" in PAGE for form in FORMS)
    said = [
        f"{100 * (THRESHOLDS['cuda'].confirm_ratio - 1):.1f} % (GPU)",
        f"{100 * (THRESHOLDS['cpu'].confirm_ratio - 1):.0f} % (CPU)",
        f"{THRESHOLDS['cuda'].least_ns:.0f} ns",
    ]
    gpu, cpu = (100 * (THRESHOLDS[kind].same_ratio - 1) for kind in ("cuda", "cpu"))
    said += [f"{gpu:.0f} % on a GPU, {cpu:.0f} % on a CPU"]
    said += [f"after {FIRST_PAUSE_SECONDS:.0f} s", f"{MAX_ATTEMPTS} times"]
    assert [words for words in said if words not in PAGE] == []
