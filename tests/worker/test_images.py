"""Container images: a child in one is no weaker shut in than on the host."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.security.conftest import NOBODY, as_user
from tests.worker.conftest import SCRIPTED, Diary, Repository, identify
from tests.worker.test_podman import DIGEST, NAME, Podman, allow, podman
from warpwatch.contract.spec import JobRequest, JobSpec
from warpwatch.contract.words import JobKind, Reason, Status
from warpwatch.project import FILE_NAME
from warpwatch.settings import Settings
from warpwatch.worker import images, levels, sandbox
from warpwatch.worker.execution import execute
from warpwatch.worker.host import Host
from warpwatch.worker.images import ContainerImage
from warpwatch.worker.reporter import CannotRunError
from warpwatch.worker.tools import Tools

__all__ = ["podman"]
BIN = "/opt/python/bin"


def copy_program(program: Path, root: Path) -> None:
    """A program of this machine with the libraries that it loads."""
    done = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False)
    for word in [str(program), *done.stdout.split()]:
        if word.startswith("/") and Path(word).is_file():
            target = root / word.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(word, target)


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of an image: a shell, and this Python's standard library at a place of its own."""
    root = tmp_path_factory.mktemp("image") / "root"
    for name in ("proc", "sys", "dev", "tmp", "etc"):
        (root / name).mkdir(parents=True)
    (root / "etc" / "name").write_text("the image")
    for program in ("sh", "cat", "ls"):
        copy_program(Path(shutil.which(program) or "").resolve(), root)
        link = root / "bin" / program
        if not link.exists():
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(Path(shutil.which(program) or "").resolve())
    python = Path(sys.executable).resolve()
    copy_program(python, root)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    source = Path(sysconfig.get_path("stdlib"))
    skipped = shutil.ignore_patterns("site-packages", "test", "idlelib", "tkinter", "ensurepip", "*.a", "config-*")
    shutil.copytree(source, root / "opt/python/lib" / version, ignore=skipped)
    for library in (root / "opt/python/lib" / version / "lib-dynload").glob("*.so"):
        done = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=False)
        for word in done.stdout.split():
            if word.startswith("/") and Path(word).is_file() and not (root / word.lstrip("/")).exists():
                (root / word.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(word, root / word.lstrip("/"))
    (root / BIN.lstrip("/")).mkdir()
    shutil.copy2(python, root / BIN.lstrip("/") / version)
    (root / BIN.lstrip("/") / "python3").symlink_to(f"{BIN}/{version}")
    return root


@pytest.fixture
def image(root: Path) -> ContainerImage:
    return ContainerImage(DIGEST, root, (("PATH", f"{BIN}:/bin"), ("IN_IMAGE", "1"), ("CXX", "/image/c++")))


@pytest.fixture
def confined(settings: Settings, image: ContainerImage) -> sandbox.Confinement:
    confinement = levels.confinement(settings.home, 2**30, scratch_bytes=2**24)
    if not confinement.has_namespaces:
        pytest.skip("this host has no namespaces, without which no container runs")
    return replace(confinement, image=image)


def run(confined: sandbox.Confinement, code: str, folder: Path = Path("/"), visible: tuple[Path, ...] = ()) -> str:
    done = sandbox.run_confined(confined, [f"{BIN}/python3", "-I", "-S", "-c", code], folder, visible)
    return done.stdout.strip() or done.stderr.strip()


def test_a_child_sees_the_image_and_its_own_folders_alone(
    confined: sandbox.Confinement, root: Path, tmp_path: Path, settings: Settings
) -> None:
    worktree = settings.home / "worktrees" / "mine"
    other, outside = settings.home / "worktrees" / "other", tmp_path / "outside"
    for folder in (worktree, other, outside):
        folder.mkdir(parents=True)
        (folder / "file").write_text("here")
    paths = (other, outside, "/etc/passwd", "/var/log", Path.home() / ".profile", Path(__file__))
    code = f"""
import os
from pathlib import Path
print(open("/etc/name").read(), Path("file").read_text(), sorted(os.listdir("/")))
for path in {[str(path) for path in paths]}:
    print(os.path.exists(path))
"""
    lines = run(confined, code, worktree, (worktree,)).splitlines()
    expected = {path.name for path in root.iterdir()} | {settings.home.parts[1], Path(sandbox.PACKAGE).parts[1]}
    assert lines[0].startswith("the image here ")
    assert set(json.loads(lines[0].partition("here ")[2].replace("'", '"'))) <= expected | {".warpwatch"}
    assert lines[1:] == ["False"] * len(paths)


@pytest.mark.parametrize(
    "place",
    [
        *("/new", "/etc/new", "/opt/python/new", "/dev/new", "/sys/new", "/.warpwatch/driver/new"),
        *("{home}/new", "{worktree}/new", "{package}/new"),
    ],
)
def test_nothing_but_the_temporary_folder_is_writable(
    confined: sandbox.Confinement, settings: Settings, place: str
) -> None:
    worktree = settings.home / "worktrees" / "mine"
    worktree.mkdir(parents=True)
    place = place.format(home=settings.home, worktree=worktree, package=sandbox.PACKAGE)
    assert "Read-only file system" in run(confined, f"open({place!r}, 'w')", worktree, (worktree,))


@pytest.mark.parametrize("isolation", ["full", "user"])
def test_settings_of_the_kernel_stay_as_they_are(confined: sandbox.Confinement, isolation: str) -> None:
    """Whether /proc is the child's own or the host's."""
    chosen = replace(confined, isolation=isolation)
    assert "Read-only file system" in run(chosen, "open('/proc/sys/kernel/core_pattern', 'w')")


ORDINARY = """
import sys
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, {repository!r})
from warpwatch.worker import levels, sandbox
from warpwatch.worker.images import ContainerImage
image = ContainerImage("sha256:0", Path({folder!r}, "root"), ())
confined = replace(levels.confinement(Path({folder!r}, "home"), 2**30), image=image)
code = "import os; print(open('/etc/name').read(), os.getuid(), os.path.exists('/etc/passwd'))"
done = sandbox.run_confined(confined, [{program!r}, "-I", "-S", "-c", code])
print(confined.isolation, done.stdout.strip(), done.stderr.strip())
"""


def test_a_worker_without_rights_confines_as_well(root: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("the other tests run as an ordinary user")
    folder = Path(tempfile.mkdtemp())
    try:
        shutil.copytree(root, folder / "root", symlinks=True)
        (folder / "home").mkdir()
        for path in [folder, *folder.rglob("*")]:
            os.lchown(path, NOBODY, NOBODY)
        code = ORDINARY.format(repository=str(Path(__file__).parents[2]), folder=str(folder), program=f"{BIN}/python3")
        done = subprocess.run([*as_user(NOBODY), "-c", code], capture_output=True, text=True, check=False)
        isolation, _, printed = done.stdout.strip().partition(" ")
        if isolation not in ("full", "user"):
            pytest.skip(f"this host gives an ordinary user no namespaces: {done.stdout}{done.stderr}")
        assert printed == f"the image {NOBODY} False"
    finally:
        shutil.rmtree(folder)


def test_limits_are_those_of_every_child(confined: sandbox.Confinement, settings: Settings) -> None:
    """Memory, processes, size of files and of the temporary folder, network, privileges, filtered calls."""
    outside = replace(confined, image=None)
    code = """
import os, resource
print([resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in ("CORE", "FSIZE", "DATA", "NPROC")])
status = open("/proc/self/status").read()
print([line for line in status.splitlines() if line.startswith(("Cap", "NoNewPrivs", "Seccomp:"))])
print(sorted(os.listdir("/sys/class/net")) if os.path.isdir("/sys/class/net") else "", os.getpid())
"""
    python = os.path.realpath(sys.executable)
    on_host = sandbox.run_confined(outside, [python, "-I", "-S", "-c", code]).stdout.strip().splitlines()
    inside = run(confined, code).splitlines()
    assert inside[:2] == on_host[:2]
    assert inside[2].split()[-1] == on_host[2].split()[-1] == "2"
    scratch = settings.home / "scratch"
    assert "No space left" in run(confined, f"open('{scratch}/big', 'wb').write(bytes(2 ** 25))")
    connect = "import socket; socket.create_connection(('127.0.0.1', 1))"
    assert "Connection refused" in run(confined, connect) or "unreachable" in run(confined, connect)
    assert "MemoryError" in run(confined, "bytes(2 ** 31)")


def test_the_root_of_the_host_is_out_of_reach(confined: sandbox.Confinement) -> None:
    code = """
import os
seen = []
for start in ("/proc/1/root", "/proc/self/root", "/proc/self/cwd/../../../..", "/sys/../.."):
    try:
        seen.append(sorted(os.listdir(start)) == sorted(os.listdir("/")))
    except OSError:
        seen.append(True)
print(all(seen), [line.split()[4] for line in open("/proc/self/mountinfo") if line.split()[4] == "/"])
"""
    assert run(confined, code) == "True ['/']"


def test_the_environment_is_that_of_the_image(confined: sandbox.Confinement, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "VIRTUAL_ENV", "CUDA_HOME", "CC", "SECRET"):
        monkeypatch.setenv(name, "/of/the/host")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    jail = sandbox.Jail(confined)
    variables = jail.environment()
    jail.close()
    assert "/of/the/host" not in variables.values()
    assert (variables["PATH"], variables["CXX"]) == (f"{BIN}:/bin", "/image/c++")
    assert variables["LD_LIBRARY_PATH"] == images.DRIVERS
    assert variables["CUDA_VISIBLE_DEVICES"] == "1"


def test_a_link_of_an_image_leads_nowhere_else(
    confined: sandbox.Confinement, root: Path, tmp_path: Path, settings: Settings
) -> None:
    """Folders of the host are mounted in the image, never behind a link of it."""
    hostile, outside = tmp_path / "hostile", tmp_path / "outside"
    shutil.copytree(root, hostile, symlinks=True)
    outside.mkdir()
    first = settings.home.parts[1]
    shutil.rmtree(hostile / first, ignore_errors=True)
    (hostile / first).symlink_to(outside)
    assert confined.image is not None
    linked = replace(confined, image=replace(confined.image, root=hostile))
    assert sandbox.run_confined(linked, [f"{BIN}/python3", "-I", "-S", "-c", ""]).returncode != 0
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "target", "found"),
    [
        ("/opt/python/bin/python3", None, True),
        ("/a/link", "/etc/name", True),
        ("/a/link", "../etc/name", True),
        ("/a/link", "../../../../../etc/name", True),
        ("/a/link", "/a/link", False),
        ("/a/link", "/nothing", False),
    ],
)
def test_programs_are_found_in_the_image(
    root: Path, tmp_path: Path, path: str, target: str | None, found: bool
) -> None:
    copy = tmp_path / "root"
    shutil.copytree(root, copy, symlinks=True)
    (copy / "etc" / "name").chmod(0o755)
    if target is not None:
        (copy / "a").mkdir()
        (copy / "a" / "link").symlink_to(target)
    image = ContainerImage(DIGEST, copy, (("PATH", f"/nothing:{BIN}"),))
    assert (image.find_program(path) is not None) == found
    assert image.find_program("python3") == f"{BIN}/python3"
    assert image.find_program("python2") is None


PROGRAM = """
import json, os
benchmark = {"name": open("/etc/name").read(), "value": 50, "unit": "us"}
print(json.dumps({"warpwatch_results": 1, "benchmarks": [benchmark]}))
"""


def in_container(repository: Repository, name: str) -> str:
    program = '[[program]]\nname = "sums"\ncommand = "python3 bench.py"\nformat = "plain"\n'
    files = {FILE_NAME: f'[container]\nimage = "{name}"\n{program}', "bench.py": PROGRAM}
    return repository.commit("in a container", files)


def measure(settings: Settings, repository: Repository, sha: str, path: Path) -> Any:
    identify(settings.home)
    tools = Tools(Host(settings, "cpu"))
    path.mkdir(exist_ok=True)
    request = JobRequest(JobKind("bench"), repository.url, sha, "sums", JobSpec())
    try:
        return execute(request, tools, Diary(), path)
    finally:
        tools.close()


def test_a_commit_is_measured_in_its_image(
    settings: Settings, confined: sandbox.Confinement, root: Path, tmp_path: Path, podman: Podman
) -> None:
    subprocess.run(["tar", "-C", str(root), "-cf", str(podman.folder / "root.tar"), "."], check=True)
    facts = [{"Size": 100, "Config": {"Env": [f"PATH={BIN}:/bin"]}}]
    (podman.folder / "facts.json").write_text(json.dumps(facts))
    allow(settings, NAME)
    repository = Repository(tmp_path / "repository")
    outcome = measure(settings, repository, in_container(repository, NAME), tmp_path / "traces")
    (finding,) = outcome.findings
    assert (finding.case, finding.status) == ("the_image", Status.OK), finding
    assert DIGEST in outcome.environment.facts["program_interpreter"]


def test_a_child_in_an_image_names_it(
    settings: Settings, confined: sandbox.Confinement, image: ContainerImage, tmp_path: Path
) -> None:
    """A harness that needs nothing but Python answers from inside; a template on the host forks no such child."""
    host = Host(settings, "cpu", bootstrap=SCRIPTED, image=image)
    assert host.installed(None).startswith(f"{DIGEST} ")
    spec = host.empty_child(tmp_path)
    assert spec.command(image)[0] == f"{BIN}/python3"


def test_a_commit_whose_image_is_not_allowed_fails_with_a_reason(
    settings: Settings, confined: sandbox.Confinement, tmp_path: Path
) -> None:
    repository = Repository(tmp_path / "repository")
    with pytest.raises(CannotRunError) as failure:
        measure(settings, repository, in_container(repository, NAME), tmp_path / "traces")
    assert failure.value.reason is Reason.IMAGE_REFUSED


def test_podman_itself(settings: Settings, root: Path, tmp_path: Path, confined: sandbox.Confinement) -> None:
    """With the real podman: an image that was imported from a folder is measured in by its digest."""
    program = shutil.which("podman")
    if program is None:
        pytest.skip("podman is not installed")
    archive, name = tmp_path / "root.tar", f"localhost/warpwatch-{hashlib.sha256(os.urandom(8)).hexdigest()[:12]}"
    subprocess.run(["tar", "-C", str(root), "-cf", str(archive), "."], check=True)
    words = [program, "import", "--quiet", "--change", f"ENV PATH={BIN}:/bin", str(archive), f"{name}:1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"podman does not work on this machine: {done.stderr[-200:]}")
    try:
        words = [program, "image", "inspect", "--format", "{{.Digest}}", f"{name}:1"]
        digest = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
        allow(settings, f"{name}@{digest}")
        repository = Repository(tmp_path / "repository")
        sha = in_container(repository, f"{name}@{digest}")
        outcome = measure(settings, repository, sha, tmp_path / "traces")
        assert [finding.case for finding in outcome.findings] == ["the_image"]
        assert digest in outcome.environment.facts["program_interpreter"]
    finally:
        subprocess.run([program, "rmi", "--force", f"{name}:1"], capture_output=True, check=False)
