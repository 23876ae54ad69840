"""What the build of a commit tries against the host: through links in its files, and in what it leaves."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.worker import defined
from tests.worker.conftest import Diary, Repository, identify
from tests.worker.conftest import repository as repository
from warpwatch.contract.outcome import Outcome
from warpwatch.contract.spec import DefinitionsVersion, JobRequest, JobSpec, KnownNames
from warpwatch.contract.words import JobKind, Status
from warpwatch.settings import Settings
from warpwatch.worker import levels, package_build
from warpwatch.worker.execution import execute
from warpwatch.worker.host import Host
from warpwatch.worker.reporter import CannotRunError
from warpwatch.worker.tools import Tools

SECRET = "SECRET = 'only the worker may read this'\n"
GOOD = {"torch": Status.OK, "lib": Status.OK}
FAILED = {"torch": Status.BUILD_FAILED, "lib": Status.BUILD_FAILED}
LIB = "src/lib"
PLACES = "own", "beside"
"""Definitions in the measured commit itself, and beside it."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A worker, a repository that is built, and a folder of the host that kernel code must neither read nor write."""

    tools: Tools
    measured: Repository
    beside: Repository | None
    victim: Path

    def commit(self, build: str, links: dict[str, str | Path], toml: str = defined.TOML) -> Callable[[], Outcome]:
        """A commit with links in it that is built by a command; what a check of it gives."""
        definitions = defined.definitions(toml=f"{toml}build = '''{build}'''\n")
        version = None
        if self.beside is not None:
            version = DefinitionsVersion(self.beside.url, self.beside.commit("define", definitions))
        else:
            self.measured.commit("define", definitions)
        # Links replace folders of the commit, so what lies in these is written first.
        self.measured.commit("files", defined.package())
        for name, target in links.items():
            link = self.measured.path / name
            link.parent.mkdir(parents=True, exist_ok=True)
            if link.is_dir():
                link.rename(link.with_name(f"{link.name}.before"))
            link.symlink_to(target)
        sha = self.measured.commit("links", {})
        spec = JobSpec(known=KnownNames(["torch", "lib"], [defined.CASE]))
        request = JobRequest(JobKind.CHECK, self.measured.url, sha, "twice", spec, definitions=version)
        return lambda: execute(request, self.tools, Diary(), self.tools.host.home / "traces")

    def stored(self) -> bytes:
        """Everything that builds have left."""
        files = (path for path in (self.tools.host.home / "builds").rglob("*") if not path.is_symlink())
        return b"".join(path.read_bytes() for path in files if path.is_file())


@pytest.fixture(params=PLACES)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    settings = Settings(home=tmp_path / "home", case_timeout_seconds=60, build_timeout_seconds=60)
    if levels.strongest_isolation(settings.home) != "full":
        pytest.skip("this host allows no full isolation")
    identify(settings.home)
    (settings.home / "traces").mkdir()
    victim = tmp_path / "victim"
    (victim / "deep").mkdir(parents=True)
    for folder in (victim, victim / "deep"):
        (folder / "file").write_text(SECRET)
    tools = Tools(Host(settings, "cpu", (victim,)))
    beside = Repository(tmp_path / "beside") if request.param == "beside" else None
    yield Scene(tools, Repository(tmp_path / "measured"), beside, victim)
    tools.close()


def in_every_run(*cases: tuple[Any, ...], name: str = "", values: Iterable[Any] = ()) -> pytest.MarkDecorator:
    """Parameters of a test whose builds take the same way with definitions in either place: every run has these cases,
    each (place,) or (place, value of the parameter `name`), and nightly all."""
    every = list(product(PLACES, values)) if name else [(place,) for place in PLACES]
    entries = [pytest.param(*case, marks=[] if case in cases else [pytest.mark.nightly]) for case in every]
    return pytest.mark.parametrize(["scene", name] if name else ["scene"], entries, indirect=["scene"])


def statuses(outcome: Outcome) -> dict[str, Status]:
    return {finding.variant: finding.status for finding in outcome.findings}


def state(folder: Path) -> list[tuple[str, int, bytes]]:
    return [
        (str(path.relative_to(folder)), path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    ]


@in_every_run(("own", "lib/out"), ("beside", "lib/a/b/c/out"), name="place", values=["out", "lib/out", "lib/a/b/c/out"])
def test_a_build_does_not_write_through_a_link_of_its_commit(scene: Scene, place: str) -> None:
    """The link leads to a folder of the host, and the build puts a folder with a file in its place."""
    before = state(scene.victim)
    name = f"src/{place}"
    run = scene.commit(
        f"rm {name} && mkdir -p {name}/deep && echo x > {name}/file && echo x > {name}/deep/file", {name: scene.victim}
    )
    assert statuses(run()) == GOOD
    # The second one finds its checkout and its build.
    assert statuses(run()) == GOOD
    scene.tools.close()
    assert statuses(run()) == GOOD
    assert state(scene.victim) == before


@in_every_run(("beside",))
def test_a_build_does_not_replace_a_file_through_a_folder(scene: Scene) -> None:
    """Every folder on the way to its files is a link of the commit, and becomes a folder in the build."""
    (scene.victim / "lib").mkdir()
    (scene.victim / "lib" / "__init__.py").write_text(SECRET)
    before = state(scene.victim)
    build = "rm src && cp -R src.before src && echo '# built' >> src/lib/__init__.py"
    assert statuses(scene.commit(build, {"src": scene.victim})()) == GOOD
    assert state(scene.victim) == before


@in_every_run(("own",))
def test_a_link_that_a_build_leaves_shows_nothing_of_the_host(scene: Scene) -> None:
    """Neither the worker nor a later child reads what it leads to."""
    build = f"rm -rf src/lib/__init__.py && ln -s {scene.victim}/file src/lib/__init__.py"
    assert statuses(scene.commit(build, {})())["lib"] is not Status.OK
    assert SECRET.encode() not in scene.stored()


@in_every_run(("own", 1), ("own", 2), ("beside", 4), name="depth", values=range(5))
def test_what_is_installed_is_not_read_through_links(scene: Scene, depth: int) -> None:
    """The environment of the build is replaced by a link to files of the host, at each depth."""
    parts = ["environment", "lib", f"python3.{sys.version_info.minor}", "site-packages", "secret"]
    target = scene.victim.joinpath(*parts[depth + 1 :])
    target.mkdir(parents=True, exist_ok=True)
    (target / "file").write_text(SECRET)
    link = "/".join(("$TMPDIR", *parts[: depth + 1]))
    run = scene.commit(f'rm -rf "{link}" && ln -s {scene.victim} "{link}"', {})
    # Without its folder, nothing counts as installed; a link among the packages stays a link.
    is_refused = parts[depth] in (parts[2], "site-packages")
    assert statuses(run()) == (FAILED if is_refused else GOOD)
    assert SECRET.encode() not in scene.stored()


def test_a_link_in_place_of_the_packages_shows_no_hidden_folder(scene: Scene) -> None:
    """The folder of the packages is one that a child gets to see although one above it is hidden."""
    hidden = scene.victim / "packages"
    (hidden / "lib").mkdir(parents=True)
    (hidden / "lib" / "__init__.py").write_text(defined.PACKAGE)
    for build in ("true", f"rm -rf src && ln -s {hidden} src"):
        run = scene.commit(build, {"src": hidden} if build == "true" else {})
        # In the commit itself a link leads to nothing that operators name, so its job may say so instead.
        with suppress(CannotRunError):
            assert statuses(run())["lib"] is not Status.OK


@in_every_run(("own",))
def test_what_is_no_file_is_left_behind(scene: Scene) -> None:
    build = "mkfifo src/lib/fifo && python -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"src/lib/socket\")'"
    assert statuses(scene.commit(build, {})()) == GOOD
    kinds = {stat.S_IFMT(path.lstat().st_mode) for path in (scene.tools.host.home / "builds").rglob("*")}
    assert kinds <= {stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK}


@in_every_run(("beside",))
def test_a_tracked_file_may_become_a_folder(scene: Scene) -> None:
    """And the other way round. The checkout still holds the commit, so the next job finds no difference."""
    scene.measured.commit("more", {"src/lib/data.txt": "data", "src/lib/folder/file": "file"})
    build = (
        "rm src/lib/data.txt && mkdir src/lib/data.txt && echo 1 > src/lib/data.txt/one && "
        "rm -r src/lib/folder && echo 1 > src/lib/folder && rm README.md"
    )
    run = scene.commit(build, {})
    assert [statuses(run()) for _ in range(2)] == [GOOD, GOOD]
    scene.tools.close()
    assert statuses(run()) == GOOD


@in_every_run(("own",))
def test_a_build_that_leaves_too_much_fails_every_time(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the warm checkout as well, where the unbuilt package must not be measured."""
    monkeypatch.setattr(package_build, "MOST", replace(package_build.MOST, files=50))
    run = scene.commit("mkdir many && cd many && touch $(seq 60)", {})
    outcomes = [run() for _ in range(2)]
    assert [statuses(outcome) for outcome in outcomes] == [FAILED, FAILED]
    assert "more than" in outcomes[0].findings[0].message
    assert list((scene.tools.host.home / "builds").iterdir()) == []


@in_every_run(("beside",))
def test_a_fault_of_the_machine_leaves_nothing_half_built(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = "from lib._made import FACTOR\n\n\ndef double(x):\n    return x * FACTOR\n"
    build = f"echo 'FACTOR = 2' > {LIB}/_made.py && printf '%s' '{needs}' > {LIB}/__init__.py"
    run = scene.commit(build, {})
    genuine = os.write

    def fail(descriptor: int, text: bytes) -> int:
        if b"FACTOR = 2" in text:
            raise OSError(errno.EMFILE, "Too many open files")
        return genuine(descriptor, text)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        with pytest.raises(OSError, match="Too many open files"):
            run()
    assert list((scene.tools.host.home / "builds").iterdir()) == []
    assert statuses(run()) == GOOD


@in_every_run(("own",))
def test_a_build_that_was_deleted_is_built_anew(scene: Scene) -> None:
    run = scene.commit(f"echo '# built' >> {LIB}/__init__.py", {})
    assert statuses(run()) == GOOD
    package_build.trim_builds(scene.tools.host.home / "builds", 0)
    for folder in (scene.tools.host.home / "builds").iterdir():
        os.utime(folder, (1, 1))
    package_build.trim_builds(scene.tools.host.home / "builds", 0)
    assert statuses(run()) == GOOD
