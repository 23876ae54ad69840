"""Jobs whose operators are defined beside the history that they measure."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from tests.worker import defined
from tests.worker.conftest import Diary, Repository, identify
from warpwatch import git
from warpwatch.contract.outcome import Outcome
from warpwatch.contract.spec import DefinitionsVersion, JobRequest, JobSpec, KnownNames
from warpwatch.contract.words import Fault, JobKind, Reason, Status
from warpwatch.definitions import DefinitionsError, DefinitionsSource, newest_version, parse_source
from warpwatch.settings import Settings
from warpwatch.sources import Sources, matches
from warpwatch.worker import comparison
from warpwatch.worker.execution import execute
from warpwatch.worker.host import Host
from warpwatch.worker.reporter import CannotRunError
from warpwatch.worker.toolchains import Toolchain
from warpwatch.worker.tools import Tools


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("definitions")


@pytest.fixture(scope="module")
def tools(folder: Path) -> Iterator[Tools]:
    settings = Settings(home=folder / "home", case_timeout_seconds=30, build_timeout_seconds=60)
    identify(settings.home)
    (settings.home / "traces").mkdir()
    tools = Tools(Host(settings, "cpu"))
    yield tools
    tools.close()
    assert list((settings.home / "worktrees").glob("*")) == []


@pytest.fixture(scope="module")
def measured(folder: Path) -> Repository:
    return Repository(folder / "measured")


@pytest.fixture(scope="module")
def beside(folder: Path) -> Repository:
    """The repository of the definitions."""
    return Repository(folder / "beside")


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def run(
    tools: Tools,
    measured: Repository,
    sha: str,
    version: DefinitionsVersion,
    kind: JobKind = JobKind.CHECK,
    **spec: object,
) -> Outcome:
    request = JobRequest(kind, measured.url, sha, "twice", JobSpec(**spec), definitions=version)  # type: ignore[arg-type]
    return execute(request, tools, Diary(), tools.host.home / "traces")


def statuses(outcome: Outcome) -> dict[str, Status]:
    return {finding.variant: finding.status for finding in outcome.findings}


def test_definitions_measure_a_package_that_does_not_know_them(
    tools: Tools, measured: Repository, beside: Repository
) -> None:
    right = measured.commit("right", defined.package())
    wrong = measured.commit("wrong", defined.package("def double(x):\n    return x * 3\n"))
    version = DefinitionsVersion(beside.url, beside.commit("define", defined.definitions()))
    good = run(tools, measured, right, version)
    assert statuses(good) == {"torch": Status.OK, "lib": Status.OK}
    assert statuses(run(tools, measured, wrong, version)) == {"torch": Status.OK, "lib": Status.WRONG}
    # Another definition is another environment, so that no line joins its times with the earlier ones.
    other = defined.OPERATOR.replace("x * 2", "x + x")
    changed = DefinitionsVersion(beside.url, beside.commit("define anew", defined.definitions(other)))
    again = run(tools, measured, right, changed)
    assert again.environment.key != good.environment.key
    assert again.environment.facts["definition"] != good.environment.facts["definition"]
    # What another operator is made from is not this one's definition.
    more = DefinitionsVersion(beside.url, beside.commit("define more", {"operators/other.py": "import torch\n"}))
    assert run(tools, measured, right, more).environment == again.environment


HOSTILE = """
import sys
import types

planted = types.ModuleType("operators._sizes")
planted.SIZE = 1
sys.modules["operators._sizes"] = planted


def double(x):
    return x * 2
"""
PATCHING = """
import sys


def double(x):
    module = sys.modules["operators.twice"]
    object.__setattr__(module.operator, "reference", lambda x: x * 3)
    module.reference.__code__ = (lambda x: x * 3).__code__
    return x * 3
"""


def test_a_commit_cannot_bring_modules_of_others(tools: Tools, measured: Repository, beside: Repository) -> None:
    shadows = {
        f"{folder}{name}": "raise SystemExit('a module of the commit was imported')\n"
        for folder in ("", "src/")
        for name in ("torch.py", "warpwatch/__init__.py", "operators/twice.py", "operators/_sizes.py", "json.py")
    }
    sha = measured.commit("shadow", defined.package() | shadows)
    version = DefinitionsVersion(beside.url, beside.commit("define", defined.definitions()))
    assert statuses(run(tools, measured, sha, version)) == {"torch": Status.OK, "lib": Status.OK}


def test_a_commit_cannot_replace_what_defines_it(tools: Tools, measured: Repository, beside: Repository) -> None:
    version = DefinitionsVersion(beside.url, beside.commit("define", defined.definitions()))
    known = KnownNames(["lib"], [defined.CASE])
    planted = run(tools, measured, measured.commit("plant", defined.package(HOSTILE)), version, known=known)
    assert statuses(planted) == {"lib": Status.BUILD_FAILED}
    assert "operators._sizes" in planted.findings[0].message
    patched = run(tools, measured, measured.commit("patch", defined.package(PATCHING)), version)
    finding = next(finding for finding in patched.findings if finding.variant == "lib")
    assert (finding.status, finding.fault) == (Status.WRONG, Fault.REPLACED_FUNCTION)
    assert set(finding.subjects) == {"twice.reference"}


def test_an_installed_package_never_stands_in_for_the_commit(
    tools: Tools, measured: Repository, beside: Repository
) -> None:
    """`rich` is installed beside Warpwatch, and the commit has none."""
    files = defined.definitions(
        defined.OPERATOR.replace("import lib", "import rich"), defined.TOML.replace('"lib"', '"rich"')
    )
    version = DefinitionsVersion(beside.url, beside.commit("define rich", files))
    sha = measured.commit("has no rich", defined.package() | {"src/rich.txt": ""})
    known = KnownNames(["lib"], [defined.CASE])
    outcome = run(tools, measured, sha, version, known=known)
    assert statuses(outcome) == {"lib": Status.UNSUPPORTED}


def test_a_missing_dependency_has_a_status_of_its_own(tools: Tools, measured: Repository, beside: Repository) -> None:
    version = DefinitionsVersion(beside.url, beside.commit("define", defined.definitions()))
    sha = measured.commit("needs more", defined.package("import no_such_package\n" + defined.PACKAGE))
    known = KnownNames(["lib"], [defined.CASE])
    outcome = run(tools, measured, sha, version, known=known)
    assert [(f.status, f.subjects) for f in outcome.findings] == [(Status.MISSING_DEPENDENCY, ["no_such_package"])]
    with pytest.raises(CannotRunError) as failure:
        run(tools, measured, sha, version)
    assert failure.value.reason is Reason.MISSING_DEPENDENCY


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("TABLE = lib.TABLE", Fault.BAD_DEFINITION),
        ("from lib import table", Fault.MISSING_MODULE),
        ("import lib.table", Fault.MISSING_MODULE),
    ],
)
def test_a_definition_that_fails_on_old_commits_costs_their_cells_alone(
    tools: Tools, measured: Repository, beside: Repository, line: str, fault: Fault
) -> None:
    """It needs what a later commit brings: that one is measured, and the old one's cells say what is wrong."""
    version = DefinitionsVersion(
        beside.url, beside.commit(line, defined.definitions(f"import lib\n{line}\n{defined.OPERATOR}"))
    )
    old = measured.commit("old", defined.package())
    new = measured.commit(
        "new", defined.package(f"TABLE = 1\n{defined.PACKAGE}") | {"src/lib/table.py": "from lib import TABLE\n"}
    )
    known = KnownNames(["torch", "lib"], [defined.CASE])
    status = Status.UNSUPPORTED if fault is Fault.MISSING_MODULE else Status.BUILD_FAILED
    outcome = run(tools, measured, old, version, known=known)
    assert [(f.variant, f.status, f.fault) for f in outcome.findings] == [
        ("torch", status, fault),
        ("lib", status, fault),
    ]
    for finding in outcome.findings:
        assert finding.subjects == ([] if fault is Fault.BAD_DEFINITION else ["lib.table"])
        assert finding.message.startswith("this commit has no lib.table, which") == (fault is Fault.MISSING_MODULE)
        assert f'operators/twice.py", line 2, in <module>\n    {line}' in finding.message
    assert statuses(run(tools, measured, new, version, known=known)) == {"torch": Status.OK, "lib": Status.OK}
    measured.reset(old)


@pytest.mark.parametrize(
    ("line", "files", "message"),
    [
        ("from lib.table import TABLE", {"src/lib/table.py": ""}, "cannot import name 'TABLE' from 'lib.table'"),
        ("from lib.table import TABLE", {}, "No module named 'lib.table'"),
        ("from . import deep", {"src/lib/deep.py": "import lib.table"}, "No module named 'lib.table'"),
    ],
)
def test_a_package_that_imports_what_it_lacks_itself_is_broken(
    tools: Tools, measured: Repository, beside: Repository, line: str, files: dict[str, str], message: str
) -> None:
    """The definition asks for nothing that is missing."""
    version = DefinitionsVersion(beside.url, beside.commit("define", defined.definitions()))
    before = measured.commit("whole", defined.package())
    sha = measured.commit("lacks something", defined.package(f"{line}\n") | files)
    known = KnownNames(["lib"], [defined.CASE])
    (finding,) = run(tools, measured, sha, version, known=known).findings
    assert finding.status is Status.BUILD_FAILED
    assert message in finding.message
    assert "this commit has no" not in finding.message
    measured.reset(before)


def test_a_variant_exists_since_a_commit(tools: Tools, measured: Repository, beside: Repository) -> None:
    before = measured.commit("before", defined.package())
    since = measured.commit("since", defined.package(defined.PACKAGE + "def other(x):\n    return x + x\n"))
    operator = defined.OPERATOR + (
        f'\n@operator.variant("other", idea="newer", since="{since}")\ndef other(x):\n    return lib.other(x)\n'
    )
    version = DefinitionsVersion(beside.url, beside.commit("define", defined.definitions(operator)))
    assert statuses(run(tools, measured, before, version)) == {"torch": Status.OK, "lib": Status.OK}
    assert statuses(run(tools, measured, since, version))["other"] == Status.OK


def test_a_toolchain_does_not_change_the_version_of_a_definition(
    tools: Tools, measured: Repository, beside: Repository
) -> None:
    sha = measured.commit("under two toolchains", defined.package())
    version = DefinitionsVersion(beside.url, beside.commit("define", defined.definitions()))
    sources = [
        tools.checkouts(measured.url, [sha], Diary(), version, toolchains)[0].sources_of("twice")
        for toolchains in ((), (Toolchain("named", sys.executable),))
    ]
    assert sources[0] == sources[1]
    assert sources[0].definition


def test_a_comparison_measures_both_commits_with_one_definition(
    tools: Tools, measured: Repository, beside: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "MIN_ROUNDS", 2)
    base = measured.commit("base", defined.package())
    head = measured.commit("slower", defined.package("def double(x):\n    return sum(x for _ in range(2))\n"))
    version = DefinitionsVersion(beside.url, beside.commit("define", defined.definitions()))
    spec = JobSpec(pairs=[("lib", defined.CASE)], rounds=2, budget_ns=50_000_000)
    request = JobRequest(JobKind.COMPARE, measured.url, head, "twice", spec, base, version)
    outcome = execute(request, tools, Diary(), tools.host.home / "traces")
    (compared,) = outcome.comparisons
    assert compared.status is Status.OK
    assert len(compared.ratios) == 2


def test_only_declared_sources_lie_in_the_worktree(tools: Tools, measured: Repository, beside: Repository) -> None:
    """What is no source cannot change a result, because the child cannot read it."""
    reading = "from pathlib import Path\n\nassert not (Path(__file__).parents[2] / 'README.md').exists()\n"
    sha = measured.commit("reads", defined.package(reading + defined.PACKAGE) | {"src/lib/table.txt": "2"})
    toml = defined.TOML + 'sources = ["src/lib/**/*.py"]\n'
    version = DefinitionsVersion(beside.url, beside.commit("define", defined.definitions(toml=toml)))
    assert statuses(run(tools, measured, sha, version))["lib"] == Status.OK
    (checkout,) = tools.checkouts(measured.url, [sha], Diary(), version)
    root = checkout.root.place.with_name(f"{checkout.root.place.name}-measured")
    files = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    assert files == {"src/lib/__init__.py"}


def test_the_installed_distributions_of_an_operator_are_part_of_its_environment(
    tools: Tools, measured: Repository, beside: Repository
) -> None:
    sha = measured.commit("any", defined.package())
    operator = defined.OPERATOR.replace("import lib", "import lib\nimport rich")
    version = DefinitionsVersion(beside.url, beside.commit("import rich", defined.definitions(operator)))
    outcome = run(tools, measured, sha, version)
    assert outcome.environment.facts["distributions"] == {"rich": metadata.version("rich")}
    plain = DefinitionsVersion(beside.url, beside.commit("import none", defined.definitions()))
    assert "distributions" not in run(tools, measured, sha, plain).environment.facts


def test_an_operator_may_count_its_own_file_alone(tools: Tools, measured: Repository, beside: Repository) -> None:
    toml = defined.TOML + '[measured.operators]\n"*" = ["src/lib/{operator}.py"]\nother = ["src/lib/__init__.py"]\n'
    files = defined.definitions(toml=toml) | {"operators/other.py": "import lib\n"}
    version = DefinitionsVersion(beside.url, beside.commit("define", files))
    first = measured.commit("first", defined.package() | {"src/lib/twice.py": ""})
    second = measured.commit("second", defined.package("new = 1\n" + defined.PACKAGE))
    third = measured.commit("third", {"src/lib/twice.py": "new = 1\n"})
    fourth = measured.commit("fourth", {"src/lib/twice.py": "# A word.\nnew = 1\n"})
    git.update_mirror(beside.url, tools.host.home)
    sources = Sources(git.update_mirror(measured.url, tools.host.home), version)
    assert sources.of(first, "twice") == sources.of(second, "twice") != sources.of(third, "twice")
    assert sources.of(first, "other") != sources.of(second, "other") == sources.of(third, "other")
    assert sources.of(third, "twice") == sources.of(fourth, "twice")
    assert statuses(run(tools, measured, third, version))["lib"] == Status.OK


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n"


@pytest.mark.parametrize("name", ["src/lib/table.bin", "src/lib/deep"])
def test_a_commit_that_lacks_files_is_refused_with_a_reason(
    tools: Tools, measured: Repository, beside: Repository, name: str
) -> None:
    version = DefinitionsVersion(beside.url, beside.commit("define", defined.definitions()))
    before = measured.commit("any", defined.package())
    if name.endswith(".bin"):
        sha = measured.commit("keeps a file elsewhere", defined.package() | {name: LFS})
    else:
        sha = measured.submodule_commit("has a submodule", name, before)
    with pytest.raises(CannotRunError) as failure:
        run(tools, measured, sha, version)
    assert failure.value.reason is Reason.INCOMPLETE_COMMIT
    outcome = run(tools, measured, sha, version, known=KnownNames(["lib"], [defined.CASE]))
    assert statuses(outcome) == {"lib": Status.UNSUPPORTED}
    measured.reset(before)


SETUP = """
from setuptools import setup
from setuptools.command.build_py import build_py

print("setting up")
setup(name="lib", version="1.2", package_dir={"": "src"}, packages=["lib"])
"""
BUILT = (
    defined.TOML
    + """
build = "mkdir -p made && echo FACTOR = 2 > src/lib/_made.py && {}"
inputs = ["setup.py", "src/**"]
"""
)


def built_by(command: str) -> str:
    return BUILT.replace("{}", command)


def test_a_build_adds_to_the_commit_and_is_kept_by_content(
    tools: Tools, measured: Repository, beside: Repository
) -> None:
    needs = "from lib._made import FACTOR\n\n\ndef double(x):\n    return x * FACTOR\n"
    sha = measured.commit("needs a build", defined.package(needs))
    # Where there is nvcc and no GPU, extensions of torch cannot be built without this variable.
    toml = built_by('test -n \\"$TORCH_CUDA_ARCH_LIST\\"')
    version = DefinitionsVersion(beside.url, beside.commit("build", defined.definitions(toml=toml)))
    diary = Diary()
    (checkout,) = tools.checkouts(measured.url, [sha], diary, version)
    assert checkout.build_failure is None
    assert statuses(run(tools, measured, sha, version))["lib"] == Status.OK
    stored = list((tools.host.home / "builds").iterdir())
    # What the build does not read starts none.
    other = measured.commit("other words", {"README.md": "other"})
    assert statuses(run(tools, measured, other, version))["lib"] == Status.OK
    assert list((tools.host.home / "builds").iterdir()) == stored
    # Nor does a definition that somebody is writing.
    files = defined.definitions(toml=toml)
    edited = beside.commit("edit", files | {name: f"{text}\n# Edited.\n" for name, text in files.items()})
    tools.checkouts(measured.url, [sha], diary, DefinitionsVersion(beside.url, edited))
    assert list((tools.host.home / "builds").iterdir()) == stored


def test_pip_installs_into_an_environment_of_the_commit(tools: Tools, measured: Repository, beside: Repository) -> None:
    toml = built_by("pip install --quiet --no-build-isolation --no-deps .")
    version = DefinitionsVersion(beside.url, beside.commit("pip", defined.definitions(toml=toml)))
    sha = measured.commit("has a setup.py", defined.package() | {"setup.py": SETUP})
    (checkout,) = tools.checkouts(measured.url, [sha], Diary(), version)
    assert checkout.build_failure is None
    (site,) = [folder for folder in (tools.host.home / "builds").glob("*/environment") if (folder / "lib").is_dir()]
    assert (site / "lib" / "__init__.py").read_text() == defined.PACKAGE
    assert statuses(run(tools, measured, sha, version))["lib"] == Status.OK


@pytest.mark.parametrize(
    ("command", "seconds", "fault"),
    [
        ("echo 'a.cpp:1: error: no such luck'; seq 50; exit 3", 60, None),
        ("sleep 600", 3, Fault.BUILD_TIMED_OUT),
        ("head -c 400M /dev/zero > big", 60, Fault.BUILD_FULL_DISK),
        ("no-such-program", 60, None),
    ],
)
def test_a_build_that_fails(
    folder: Path,
    tools: Tools,
    measured: Repository,
    beside: Repository,
    command: str,
    seconds: int,
    fault: Fault | None,
) -> None:
    version = DefinitionsVersion(beside.url, beside.commit(command, defined.definitions(toml=built_by(command))))
    sha = measured.commit("any", defined.package())
    limited = replace(tools.host.settings, build_timeout_seconds=seconds, scratch_bytes=200 * 2**20)
    hurried = Tools(replace(tools.host, settings=limited))
    try:
        outcome = run(hurried, measured, sha, version, known=KnownNames(["lib"], [defined.CASE]))
    finally:
        hurried.close()
    assert statuses(outcome) == {"lib": Status.BUILD_FAILED}
    if fault is Fault.BUILD_FULL_DISK and tools.host.confinement().isolation != "full":
        pytest.skip("without a file system of its own a build has no limit of room")
    assert [finding.fault for finding in outcome.findings] == [fault]
    if "no such luck" in command:
        assert outcome.findings[0].message.splitlines()[1] == "a.cpp:1: error: no such luck", "behind 50 other lines"


def test_a_build_that_needs_the_network(tools: Tools, measured: Repository, beside: Repository) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        port = server.getsockname()[1]
        fetch = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 5)\n"
        toml = built_by("python setup.py")
        version = DefinitionsVersion(beside.url, beside.commit("fetch", defined.definitions(toml=toml)))
        sha = measured.commit("needs the network", defined.package() | {"setup.py": fetch})
        outcome = run(tools, measured, sha, version, known=KnownNames(["lib"], [defined.CASE]))
        assert statuses(outcome) == {"lib": Status.BUILD_FAILED}
        assert "Error" in outcome.findings[0].message, "the last lines of the command stand in it"
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_build_that_fetches_from_a_host_is_said_to_need_the_network(
    tools: Tools, measured: Repository, beside: Repository
) -> None:
    version = DefinitionsVersion(
        beside.url, beside.commit("fetch", defined.definitions(toml=built_by("python setup.py")))
    )
    fetch = "import socket\nsocket.create_connection(('packages.invalid', 443), 5)\n"
    sha = measured.commit("fetches", defined.package() | {"setup.py": fetch})
    outcome = run(tools, measured, sha, version, known=KnownNames(["lib"], [defined.CASE]))
    assert [(f.status, f.fault) for f in outcome.findings] == [(Status.BUILD_FAILED, Fault.BUILD_OFFLINE)]


@pytest.mark.parametrize(
    ("file", "same"),
    [("README.md", True), ("src/other.py", True), ("src/lib/deep/more.py", False), ("src/lib/__init__.py", False)],
)
def test_what_counts_as_a_change_of_the_measured_code(
    tools: Tools, measured: Repository, beside: Repository, file: str, same: bool
) -> None:
    version = DefinitionsVersion(beside.url, beside.commit("define", defined.definitions()))
    before = measured.commit("before", defined.package())
    after = measured.commit("after", {file: f"FILE = {file!r}"})
    mirror = git.update_mirror(measured.url, tools.host.home)
    git.update_mirror(beside.url, tools.host.home)
    sources = Sources(mirror, version)
    assert (sources.of(before, "twice") == sources.of(after, "twice")) is same
    assert sources.of(before, "thrice") is None


def test_a_commit_without_the_sources_has_no_such_operator(
    tools: Tools, measured: Repository, beside: Repository
) -> None:
    toml = defined.TOML + '[measured.operators]\ntwice = ["src/lib/newer.py"]\n'
    version = DefinitionsVersion(beside.url, beside.commit("define", defined.definitions(toml=toml)))
    before = measured.commit("before", defined.package())
    after = measured.commit("after", {"src/lib/newer.py": ""})
    sources = Sources(git.update_mirror(measured.url, tools.host.home), version)
    git.update_mirror(beside.url, tools.host.home)
    assert "twice" not in sources.operators(before)
    assert "twice" in sources.operators(after)


def test_a_plain_folder_has_versions(tmp_path: Path) -> None:
    folder = write(tmp_path / "plain", defined.definitions())
    source = DefinitionsSource(str(folder))
    first = newest_version(source, tmp_path / "home")
    assert newest_version(source, tmp_path / "home") == first
    (folder / "operators/twice.py").write_text("changed = True\n")
    second = newest_version(source, tmp_path / "home")
    assert second.sha != first.sha
    mirror = git.mirror_path(first.url, tmp_path / "home")
    assert git.read_file(mirror, first.sha, "operators/twice.py") == defined.OPERATOR
    assert newest_version(DefinitionsSource(str(folder), first.sha), tmp_path / "home") == first


def test_a_version_of_a_folder_that_this_machine_never_saw(tools: Tools, measured: Repository, tmp_path: Path) -> None:
    folder = write(tmp_path / "plain", defined.definitions())
    sha = measured.commit("any", defined.package())
    with pytest.raises(CannotRunError) as failure:
        run(tools, measured, sha, DefinitionsVersion(str(folder), "f" * 40))
    assert failure.value.reason is Reason.UNUSABLE_DEFINITIONS
    assert statuses(run(tools, measured, sha, newest_version(DefinitionsSource(str(folder)), tools.host.home)))


@pytest.mark.parametrize(
    ("files", "ref"),
    [
        ({}, None),
        ({"operators/twice.py": ""}, None),
        ({"warpwatch.toml": "contract = 1\n"}, None),
        (defined.definitions(), "v1"),
        (defined.definitions() | {"data.bin": "x" * 17 * 2**20}, None),
    ],
)
def test_a_folder_that_holds_no_definitions(tmp_path: Path, files: dict[str, str], ref: str | None) -> None:
    (tmp_path / "plain").mkdir()
    with pytest.raises(DefinitionsError):
        newest_version(DefinitionsSource(str(write(tmp_path / "plain", files)), ref), tmp_path / "home")


@pytest.mark.parametrize(
    ("text", "url", "ref"),
    [
        ("/srv/definitions", "/srv/definitions", None),
        ("/srv/definitions@v2", "/srv/definitions", "v2"),
        ("https://example.org/a/b.git@feature/x", "https://example.org/a/b.git", "feature/x"),
        ("https://me@example.org/a/b.git", "https://me@example.org/a/b.git", None),
        ("git@example.org:a/b.git", "git@example.org:a/b.git", None),
        ("git@example.org:a/b.git@main", "git@example.org:a/b.git", "main"),
    ],
)
def test_a_ref_follows_the_address(text: str, url: str, ref: str | None) -> None:
    assert parse_source(text) == DefinitionsSource(url, ref)


def test_a_relative_folder_is_the_same_from_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "definitions").mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse_source("definitions") == DefinitionsSource(str(tmp_path / "definitions"))


@pytest.mark.parametrize(
    ("path", "glob", "expected"),
    [
        ("lib/a.py", "lib/**", True),
        ("lib/deep/a.py", "lib/**/*.py", True),
        ("lib/a.py", "lib/**/*.py", True),
        ("lib/deep/a.py", "lib/*.py", False),
        ("lib/deep/a.py", "lib", True),
        ("library/a.py", "lib", False),
        ("a.py", "**", True),
        ("setup.py", "setup.py", True),
        ("setup.pyc", "setup.py", False),
    ],
)
def test_globs(path: str, glob: str, expected: bool) -> None:
    assert matches(path, [glob]) is expected
