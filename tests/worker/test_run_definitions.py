"""`warpwatch run` with definitions beside the history, and the command that replays a job."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import Result

from tests.builders import run_git
from tests.worker import defined
from tests.worker.conftest import Repository, identify, warpwatch
from warpwatch import git
from warpwatch.bundle import BundleReader
from warpwatch.cli.run import describe_uncommitted, find_commits
from warpwatch.contract.spec import DefinitionsVersion, JobSpec
from warpwatch.definitions import DefinitionsError, newest_version, parse_source
from warpwatch.settings import Settings


def test_run_measures_with_definitions_as_typed(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, folder = tmp_path / "home", tmp_path / "definitions"
    identify(home)
    for name, text in defined.definitions().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    sha = repository.commit("right", defined.package())
    command = JobSpec().of_cell("lib", defined.CASE).to_command("check", sha, "twice", "cpu", output="a.wwb")
    monkeypatch.chdir(repository.path)
    run = warpwatch(home, *command[1:], "--definitions", str(folder))
    assert run.exit_code == 0, run.output
    with BundleReader(repository.path / "a.wwb") as bundle:
        (done,) = list(bundle.runs())
    assert done.order.definitions is not None
    assert done.order.definitions.url == str(folder)


def test_run_reads_a_repository_without_a_checkout(repository: Repository, tmp_path: Path) -> None:
    repository.commit("right", defined.package())
    bare = tmp_path / "bare"
    subprocess.run(["git", "clone", "--quiet", "--bare", repository.url, str(bare)], check=True)
    _, shas = find_commits(Settings(home=tmp_path / "home"), str(bare), "HEAD")
    assert shas == [repository.head()]


def test_a_replay_command_names_the_version() -> None:
    version = DefinitionsVersion("https://example.org/definitions.git", "f" * 40)
    words = JobSpec().to_command("check", "a" * 40, "twice", "cpu", definitions=version)
    assert words[words.index("--definitions") + 1] == f"https://example.org/definitions.git@{'f' * 40}"


def test_run_names_changed_files_that_it_does_not_measure(repository: Repository, tmp_path: Path) -> None:
    first = repository.commit("first", {"kernels/a.py": "x = 1\n", ".gitignore": "*.log\n"})
    head = repository.commit("second", {"kernels/b.py": "x = 1\n"})
    root, output = Path(repository.url), Path(repository.url) / "out.zip"
    output.write_bytes(b"a results file")
    for name in ("earlier.wwb", "ignored.log"):
        (root / name).touch()
    git.update_mirror(repository.url, root / ".warpwatch")
    assert describe_uncommitted(repository.url, [head], output) == ""
    (root / "kernels" / "a.py").write_text("x = 2\n")
    sentence = describe_uncommitted(repository.url, [first, head], output)
    assert f"{head[:8]} is measured without 1 changed file of the working tree: kernels/a.py;" in sentence
    assert "warpwatch try" in sentence
    assert describe_uncommitted(repository.url, [first], output) == "", "nobody expects the tree in an old commit"
    for number in range(7):
        (root / f"new{number}.py").touch()
    sentence = describe_uncommitted(repository.url, [head], output)
    assert "without 8 changed files of the working tree: kernels/a.py, new0.py" in sentence
    assert sentence.partition(";")[0].endswith("and 3 more")
    assert describe_uncommitted("https://example.org/a.git", [head], output) == ""


def test_run_prints_what_is_not_measured_before_and_after_the_results(repository: Repository, tmp_path: Path) -> None:
    for name, text in (defined.package() | defined.definitions()).items():
        (Path(repository.url) / name).parent.mkdir(parents=True, exist_ok=True)
        (Path(repository.url) / name).write_text(text)
    run_git(Path(repository.url), "add", "--all")
    run_git(Path(repository.url), "commit", "--quiet", "--message", "Define it")
    (Path(repository.url) / "new.py").touch()
    words = ["run", "--repository", repository.url, "--commits", "HEAD", "--kinds", "check", "--device", "cpu"]
    done = warpwatch(tmp_path / "home", *words, "--output", str(tmp_path / "a.wwb"))
    lines = [line for line in done.stdout.splitlines() if line]
    head = run_git(Path(repository.url), "rev-parse", "HEAD").strip()
    assert f"({head[:8]} Define it)" in lines[0]
    assert "without 1 changed file of the working tree: new.py" in lines[1]
    assert lines[-1] == lines[1]


@pytest.mark.parametrize("text", ["/nowhere/at/all", "nowhere-at-all", "/nowhere/at/all@main"])
def test_a_folder_of_definitions_that_does_not_exist_is_named(text: str, tmp_path: Path) -> None:
    with pytest.raises(DefinitionsError, match=r"^the folder \S*nowhere\S* does not exist"):
        newest_version(parse_source(text), tmp_path)


def test_doctor_says_which_definition_is_wrong_and_why(repository: Repository, tmp_path: Path) -> None:
    root, folder = Path(repository.url), tmp_path / "definitions"
    repository.commit("first", defined.package())
    broken = {
        "operators/needy.py": "import no_such_module\n" + defined.OPERATOR.replace('"twice"', '"needy"'),
        "operators/gappy.py": defined.OPERATOR.replace('"twice"', '"gappy"').replace(
            "return x * 2", 'return missing("y")'
        ),
        "operators/unfilled.py": 'from warpwatch import gap\n\n\ndef reference(x):\n    return gap("write it")\n',
        "operators/unreadable.py": "def (",
    }
    for name, text in (defined.definitions() | broken).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    # Files count as they are, committed or not.
    (root / "src" / "lib" / "__init__.py").write_text("def double(x):\n    return x * 3\n")
    (root / "src" / "lib" / "other.py").write_text("import no_such_module\n")

    def doctor(place: Path) -> Result:
        return warpwatch(tmp_path / "home", "doctor", str(place), "--repository", repository.url, "--device", "cpu")

    done = doctor(folder)
    assert done.exit_code == 1, done.output
    parts = re.split(r"^(gappy|needy|twice|unfilled|unreadable)$", done.stdout, flags=re.MULTILINE)
    said = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert parts[0].startswith("src/lib/other.py imports no_such_module"), "gaps hide that an import fails"
    assert "missing" in said["gappy"]
    assert "operators/unreadable.py, line 1: SyntaxError" in said["unreadable"]
    assert said["needy"].rstrip().endswith("-m pip install no_such_module")
    assert said["unfilled"].split("\n")[1:2] == ["  to fill: operators/unfilled.py, line 5: write it"], "it was run"
    assert "Traceback" not in done.stdout
    assert re.search(r"torch +pass", said["twice"])
    assert re.search(r"lib +wrong", said["twice"])
    for name in broken:
        (folder / name).unlink()
    (root / "src" / "lib" / "__init__.py").write_text(defined.PACKAGE)
    right = doctor(folder)
    assert (right.exit_code, "not installed" in right.stdout) == (0, False)
    (folder / "warpwatch.toml").write_text(defined.TOML + 'build = "echo no compiler; exit 3"\n')
    (folder / "operators" / "again.py").write_text(defined.OPERATOR.replace('"twice"', '"again"'))
    (root / "src" / "lib" / "__init__.py").write_text("import json\nimport no_such_module\n" + defined.PACKAGE)
    unbuilt = doctor(folder)
    assert unbuilt.exit_code == 1
    assert unbuilt.stdout.count("exited with status 3") == 1, "operators share the build, and its log is long"
    missing = "src/lib/__init__.py imports no_such_module, which is not installed"
    assert unbuilt.stdout.index(missing) < unbuilt.stdout.index("exited"), "a build may take half an hour"
    assert unbuilt.stdout.count("which is not installed") == 1
    assert unbuilt.stdout.count("fails as the operator above does") == 1
    nowhere = doctor(tmp_path / "nowhere")
    assert nowhere.exit_code == 2
    assert "does not exist" in nowhere.stdout
