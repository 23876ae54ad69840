"""The action for GitHub and the component for GitLab run `warpwatch run` with options that exist."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from tests.builders import make_repository, run_git
from warpwatch.cli.app import app
from warpwatch.cli.plans import FORMS

DEPLOY = Path(__file__).parent.parent / "deploy"
ACTION: dict[str, Any] = yaml.safe_load((DEPLOY / "github" / "action.yml").read_text())
SPEC, COMPONENT_FILE = yaml.safe_load_all((DEPLOY / "gitlab" / "gate.yml").read_text())
COMPONENT: dict[str, Any] = COMPONENT_FILE["warpwatch-gate"]
MEASURE = next(step for step in ACTION["runs"]["steps"] if step.get("name") == "Measure")
EMPTY = {"BASE": "", "TARGET": "", "HISTORY": "", "RECORD": "false", "REQUIRED": "", "OPTIONS": ""}


@pytest.fixture
def checkout(tmp_path: Path) -> tuple[Path, list[str]]:
    """A clone of a repository, as CI checks it out, with its commits."""
    shas = make_repository(tmp_path / "origin", 3)
    run_git(tmp_path, "clone", "--quiet", "origin", "clone")
    return tmp_path / "clone", shas


def start(folder: Path, shell: str, script: str, **variables: str) -> tuple[int, list[str]]:
    """Runs the script as CI does; the exit code, and the words of the command that it started, which exits with 1."""
    programs = folder.parent / "programs"
    programs.mkdir(exist_ok=True)
    program = programs / "warpwatch"
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {folder.parent / 'words'}\nexit 1\n")
    program.chmod(0o755)
    values = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"} | variables
    done = subprocess.run([shell, "-e", "-c", script], cwd=folder, env=values, check=False, timeout=60)
    return done.returncode, (folder.parent / "words").read_text().splitlines()


def options(words: list[str]) -> dict[str, list[Any]]:
    """The values of the options of a command line; fails for an option that `warpwatch run` has not."""
    command: Any = typer.main.get_command(app)
    assert words[0] == "run"
    context = command.commands["run"].make_context("run", words[1:])
    return {name: value if isinstance(value, list) else [value] for name, value in context.params.items()}


def github(folder: Path, commit: str, **variables: str) -> tuple[int, dict[str, list[Any]]]:
    given = EMPTY | {"DEVICE": "cpu", "SUITE": "quick", "OUT": "out", "COMMIT": commit}
    given["GITHUB_OUTPUT"] = str(folder.parent / "outputs")
    code, words = start(folder, "bash", MEASURE["run"], **(given | variables))
    return code, options(words)


def test_the_action_compares_with_merge_base_parent_or_nothing(checkout: tuple[Path, list[str]]) -> None:
    folder, shas = checkout
    # The target went on since the pull request left it.
    run_git(folder.parent / "origin", "branch", "release", shas[0])
    code, given = github(folder, shas[2], TARGET="release")
    assert (code, given["base"], given["commits"]) == (1, [shas[0]], [shas[2]])
    assert (folder.parent / "outputs").read_text() == "exit-code=1\n"
    assert {text.partition("=")[0] for text in given["report"]} == set(FORMS)
    assert github(folder, shas[2])[1]["base"] == [f"{shas[2]}^"]
    _, given = github(folder, shas[2], BASE="none", HISTORY="past", RECORD="true", OPTIONS="--operators square")
    assert (given["base"], given["kinds"], given["history"]) == ([None], ["check,bench"], ["past"])
    assert (given["record"], given["operators"]) == ([True], ["square"])


def test_the_component_does_the_same(checkout: tuple[Path, list[str]]) -> None:
    folder, shas = checkout
    names = {name: value for name, value in COMPONENT["variables"].items() if "[[" in value}
    used = {value.removeprefix("$[[ inputs.").removesuffix(" ]]") for value in names.values()}
    assert used | {"stage", "image", "tags"} == set(SPEC["spec"]["inputs"])
    about = EMPTY | {"DEVICE": "cpu", "SUITE": "quick", "CI_COMMIT_SHA": shas[2], "CI_DEFAULT_BRANCH": "main"}
    script = COMPONENT["script"][1]
    code, words = start(folder, "sh", script, **about, CI_MERGE_REQUEST_DIFF_BASE_SHA=shas[0])
    assert (code, options(words)["base"]) == (1, [shas[0]])
    about |= {"HISTORY": "past", "RECORD": "true", "CI_COMMIT_BRANCH": "main", "REQUIRED": "5"}
    given = options(start(folder, "sh", script, **about)[1])
    assert (given["base"], given["record"], given["require_detectable"]) == ([f"{shas[2]}^"], [True], [5.0])
    about["CI_COMMIT_BRANCH"] = "topic"
    assert options(start(folder, "sh", script, **about)[1])["record"] == [False], "only the default branch records"


def test_no_input_becomes_part_of_a_script() -> None:
    """Whoever names a branch must not name a command."""
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", "")
    assert all("$[[" not in line for line in COMPONENT["script"])
    assert MEASURE["env"]["RECORD"].count("default_branch") == 1
