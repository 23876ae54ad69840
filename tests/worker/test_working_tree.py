"""`warpwatch try`: the working tree as a commit, measured beside another one."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.builders import run_git
from tests.worker import defined, probes
from tests.worker.conftest import Repository, identify
from warpwatch import git
from warpwatch.cli.app import app
from warpwatch.cli.working_tree import WorkingTree, describe_code_changes
from warpwatch.contract.messages import KernelResources

RIGHT = "    return x * 2\n"
WRONG = "    return x * 2 + 1\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home folder of all tests, for which templates are started once."""
    folder = tmp_path_factory.mktemp("working-tree") / "home"
    identify(folder)
    return folder


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    repository = Repository(tmp_path / "repository")
    repository.commit("first", {"a.py": "1", "old.py": "2", ".gitignore": "*.log\n"})
    return repository


def names(repository: Repository, sha: str) -> dict[str, str]:
    return git.entries(repository.path, sha, "")


def test_a_snapshot_holds_what_the_checkout_holds(repository: Repository, tmp_path: Path) -> None:
    tree = WorkingTree(repository.path, tmp_path / "index")
    head = repository.head()
    assert names(repository, tree.tree()) == names(repository, head), "nothing changed yet"
    root = repository.path
    (root / "a.py").write_text("changed")
    (root / "new.py").write_text("new")
    (root / "noise.log").write_text("ignored")
    (root / "old.py").unlink()
    (root / "staged.py").write_text("staged")
    run_git(root, "add", "staged.py")
    before = run_git(root, "status", "--porcelain")
    sha = tree.commit()
    assert names(repository, sha).keys() == {".gitignore", "a.py", "new.py", "staged.py"}
    assert git.read_file(root, sha, "a.py") == "changed"
    assert git.first_parents(root, sha)[1] == head
    (root / "new.py").unlink()
    assert "new.py" not in names(repository, tree.tree()), "the kept index forgets what is gone"
    (root / "new.py").write_text("new")
    assert run_git(root, "status", "--porcelain") == before, "the checkout's own index is as it was"
    assert run_git(root, "for-each-ref", "--format=%(objectname)").split() == [head]


def test_a_subfolder_and_a_linked_worktree_are_snapshots_too(repository: Repository, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    run_git(repository.path, "worktree", "add", "--quiet", "--detach", str(linked))
    (linked / "a.py").write_text("there")
    sha = WorkingTree(linked, tmp_path / "index").commit()
    assert git.read_file(repository.path, sha, "a.py") == "there"


def test_a_file_saved_during_a_measurement_ends_the_next_wait_at_once(repository: Repository, tmp_path: Path) -> None:
    tree = WorkingTree(repository.path, tmp_path / "index")
    tree.commit()
    (repository.path / "a.py").write_text("saved while measured")
    tree.wait()
    assert git.read_file(repository.path, tree.commit(), "a.py") == "saved while measured"


def attempt(repository: Repository, home: Path, *words: str) -> Result:
    environment = {"WARPWATCH_HOME": str(home), "COLUMNS": "200"}
    arguments = ["try", *words, "--repository", repository.url, "--device", "cpu", "--budget-ms", "20"]
    return CliRunner().invoke(app, arguments, env=environment)


def test_uncommitted_code_is_checked_and_compared(home: Path, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "kernels")
    repository.commit("first", probes.files())
    (path,) = (path for path in repository.path.rglob("*.py") if RIGHT in path.read_text())
    clean = attempt(repository, home)
    assert clean.exit_code == 2, "nothing differs from HEAD"
    path.write_text(path.read_text().replace(RIGHT, WRONG, 1))
    wrong = attempt(repository, home, "--variants", "ok", "--shape", "n=77")
    assert wrong.exit_code == 1, wrong.output
    assert "n=77,f32,fwd  ok  wrong" in wrong.output
    right = attempt(repository, home, "probe", "--variants", "last,unsupported", "--case", "n=100,f32,fwd")
    assert right.exit_code in (0, 1), "a busy machine may make anything slower"
    (row,) = (line for line in right.output.splitlines() if line.startswith("n=100,f32,fwd  last  pass"))
    assert row.count("→") == 1
    assert "1 slower" in right.output if right.exit_code else "0 slower" in right.output
    blind = attempt(
        repository,
        home,
        "probe",
        *("--variants", "last", "--case", "n=100,f32,fwd", "--base", "HEAD", "--require-detectable", "0.1"),
    )
    assert "Finds with 95 % a slow-down of" in blind.output or "would be found is unknown" in blind.output
    if "0 slower" in blind.output and "faster" not in blind.output:
        assert blind.exit_code == 2, "no CPU shows 0.1 %"
        assert "could not tell: 1 of 1" in blind.output.replace("\u2009", " ")
    unknown = attempt(repository, home, "probe", "--shape", "rows=3")
    assert unknown.exit_code == 2
    assert "n=100" in unknown.output, "the message says which sizes there are"
    assert attempt(repository, home, "nothing").exit_code == 2
    assert attempt(repository, home, "probe", "--base", "nowhere").exit_code == 2


def test_variants_whose_code_is_the_same_are_left_out(home: Path, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "native")
    native = "csrc/probe/probe.cpp"
    files = {"warpwatch.toml": probes.TOML, "kernels/probe.py": probes.NATIVE_OPERATOR}
    repository.commit("first", files | {native: "int one;\n"})
    (repository.path / native).write_text("this does not compile\n")
    path = repository.path / "kernels/probe.py"
    path.write_text(path.read_text().replace("return x * 2 + 1", "return x * 2 + 2"))
    failed = attempt(repository, home, "--case", "n=100,f32,fwd")
    assert failed.exit_code == 1, failed.output
    rows = [line.split()[1] for line in failed.output.splitlines() if line.startswith("n=100")]
    assert sorted(rows) == ["native", "wrong"]
    left_out = [line for line in failed.output.splitlines() if "ok, raise, segfault, loop" in line]
    assert len(left_out) == 1
    named = attempt(repository, home, "--case", "n=100,f32,fwd", "--variants", "ok")
    assert [line.split()[1] for line in named.output.splitlines() if line.startswith("n=100")] == ["ok"]


def kernel(name: str, code_hash: str = "", registers: int = 32) -> KernelResources:
    return KernelResources(name, "sm_90", registers, 0, 0, code_hash=code_hash)


def test_changes_of_machine_code_are_told_by_kernel() -> None:
    base = [kernel("same", code_hash="a"), kernel("grown", code_hash="b"), kernel("gone")]
    head = [kernel("same", code_hash="a"), kernel("grown", code_hash="c", registers=40), kernel("added")]
    lines = describe_code_changes(base, head)
    assert [line.split()[0] for line in lines] == ["added", "gone", "grown"]
    assert "32 → 40" in lines[2]
    assert len(describe_code_changes(base, base)) == 1


def test_definitions_beside_the_checkout_measure_its_uncommitted_code(home: Path, tmp_path: Path) -> None:
    measured, beside = Repository(tmp_path / "measured"), tmp_path / "beside"
    measured.commit("first", defined.package())
    for name, content in defined.definitions().items():
        path = beside / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    clean = attempt(measured, home, "--definitions", str(beside))
    assert clean.exit_code == 2, "nothing differs from HEAD"
    for name, content in defined.package("def double(x):\n    return x * 3\n").items():
        (measured.path / name).write_text(content)
    wrong = attempt(measured, home, "--definitions", str(beside))
    assert wrong.exit_code == 1, wrong.output
    assert "1 wrong" in wrong.output
    assert attempt(measured, home, "--definitions", str(tmp_path / "nowhere")).exit_code == 2


def test_an_uncommitted_program_is_checked_and_compared(home: Path, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "programs")
    program = (
        "import json, os\n"
        "results = [{'name': 'sum', 'unit': 'us', 'samples': [FACTOR * (1 + i / 1000) for i in range(30)]}]\n"
        "document = {'warpwatch_results': 1, 'benchmarks': results}\n"
        "open(os.environ['WARPWATCH_OUTPUT'], 'w').write(json.dumps(document))\n"
    )
    toml = '[[program]]\nname = "sums"\ncommand = "python bench.py"\nformat = "plain"\nsources = ["bench.py"]\n'
    repository.commit("first", {"warpwatch.toml": toml, "bench.py": program.replace("FACTOR", "100")})
    (repository.path / "bench.py").write_text(program.replace("FACTOR", "150"))
    slower = attempt(repository, home)
    assert slower.exit_code == 1, slower.output
    assert "0 wrong, 1 slower" in slower.output
    (repository.path / "bench.py").write_text("raise SystemExit(3)\n")
    wrong = attempt(repository, home)
    assert wrong.exit_code == 1, wrong.output
    assert "1 wrong" in wrong.output
