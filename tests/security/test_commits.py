"""What the code of one commit tries against another: its worktree, its libraries, its caches, its worker."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worker.conftest import Diary, Repository, processes_with
from tests.worker.conftest import bare_templates as bare_templates
from warpwatch.contract.messages import BuildReply
from warpwatch.contract.words import Status
from warpwatch.project import ProjectError
from warpwatch.settings import Settings
from warpwatch.worker import levels
from warpwatch.worker.building import LIBRARY
from warpwatch.worker.checkout import Checkout
from warpwatch.worker.child import ChildFailure
from warpwatch.worker.host import Host
from warpwatch.worker.tools import Tools

pytestmark = pytest.mark.usefixtures("bare_templates", "user_cache")
CHILD = Path(__file__).with_name("commit_child.py")
NATIVE = {"csrc/plain/plain.cpp": 'extern "C" int answer() { return 42; }'}
TRY = """
import os, pathlib
def attempt(path):
    try:
        with open(path, "ab") as file:
            file.write(b"#")
        return "written"
    except OSError as error:
        return error.strerror
"""


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[Tools]:
    settings = Settings(home=tmp_path / "home", case_timeout_seconds=30, build_timeout_seconds=120)
    if levels.strongest_isolation(settings.home) != "full":
        pytest.skip("this host allows no full isolation")
    tools = Tools(Host(settings, "cpu", bootstrap=CHILD))
    yield tools
    tools.close()
    assert processes_with(str(tmp_path)) == []


def commit(repository: Repository, attack: str) -> str:
    return repository.commit("attack", {"attack.py": TRY + attack} | NATIVE)


def ask(checkout: Checkout, seconds: float = 30) -> str:
    return checkout.ask(BuildReply, "check", seconds, Diary()).message


def alone(tools: Tools, repository: Repository, sha: str) -> Checkout:
    (checkout,) = tools.checkouts(repository.url, [sha], Diary())
    return checkout


def in_every_run(values: Iterable[str], *chosen: str) -> list[Any]:
    """Parameters of a test: every run has these, one for each reason to fail, and nightly all."""
    return [pytest.param(value, marks=[] if value in chosen else [pytest.mark.nightly]) for value in values]


PRELOADS = """
import ctypes, subprocess
temp = pathlib.Path(os.environ["TMPDIR"])
(temp / "planted.c").write_text("int planted(void) { return 1; }")
library = temp / "libplanted.so"
subprocess.run(["cc", "-shared", "-o", library, temp / "planted.c"], check=True)
ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
os.environ["LD_PRELOAD"] = os.environ["LD_LIBRARY_PATH"] = str(library)
ctypes.CDLL(None).shmget(0x5EED, 4096, 0o1666)
for folder in (temp / "jit", *map(pathlib.Path, ("/dev/shm", "/tmp", "/var/tmp", "/run"))):
    try:
        folder.mkdir(exist_ok=True)
        (folder / "libplanted.so").write_bytes(library.read_bytes())
    except OSError:
        pass
"""
SEES = """
import ctypes
libc = ctypes.CDLL(None)
folders = [pathlib.Path(os.environ["TMPDIR"], "jit"), *map(pathlib.Path, ("/dev/shm", "/tmp", "/var/tmp", "/run"))]
print([
    hasattr(libc, "planted"),
    "LD_PRELOAD" in os.environ,
    "planted" in os.environ.get("LD_LIBRARY_PATH", ""),
    "libplanted" in pathlib.Path("/proc/self/maps").read_text(),
    libc.shmget(0x5EED, 4096, 0) >= 0,
    any((folder / "libplanted.so").exists() for folder in folders),
])
"""


def test_nothing_that_the_base_preloads_or_shares_reaches_the_head(tools: Tools, repository: Repository) -> None:
    """A clock of the base's in place of the system's would make the head look slower."""
    base, head = commit(repository, PRELOADS + SEES), commit(repository, SEES)
    sides = tools.checkouts(repository.url, [base, head], Diary())
    own = ask(sides[0])
    assert own.startswith("[True, True, True, True, ")
    assert own.endswith("True]")
    assert ask(sides[1]) == str([False] * 6), "the base's child still runs"


def test_the_sides_of_a_comparison_do_not_see_each_other(tools: Tools, repository: Repository) -> None:
    """The head would make the base slower by editing its worktree, or its library, between two rounds."""
    base = commit(repository, "print('base')")
    head = commit(
        repository,
        """
home = pathlib.Path(os.environ["TMPDIR"]).parent
for path in sorted(home.rglob("*")):
    print(path.relative_to(home), attempt(path) if path.is_file() else "folder")
""",
    )
    sides = tools.checkouts(repository.url, [base, head], Diary())
    for side in sides:
        assert side.build(["plain"], Diary()).status is Status.OK
    assert ask(sides[0]) == "base"
    seen = ask(sides[1])
    assert sides[1].root.place.name in seen
    assert sides[0].root.place.name not in seen
    assert "written" not in seen
    assert ask(sides[0]) == "base"


def test_a_library_of_the_same_sources_is_not_overwritten(tools: Tools, repository: Repository) -> None:
    """A hostile commit that leaves csrc alone has the library that the good commit has."""
    good = commit(repository, "print('good')")
    assert alone(tools, repository, good).build(["plain"], Diary()).status is Status.OK
    (stored,) = (tools.host.home / "libraries").iterdir()
    before = (stored / LIBRARY).read_bytes()
    hostile = alone(
        tools,
        repository,
        commit(
            repository,
            """
path = pathlib.Path(libraries, "plain", "library.so")
print(path.stat().st_size > 0, attempt(path), attempt(path.with_name("record.json")))
for change in (lambda: path.unlink(), lambda: path.rename(path.with_name("old")), lambda: path.chmod(0o777),
               lambda: os.link(path, os.environ["TMPDIR"] + "/copy")):
    try:
        change()
        print("changed")
    except OSError:
        print("refused")
""",
        ),
    )
    reply = hostile.build(["plain"], Diary())
    assert (reply.status, reply.cached) == (Status.OK, True), "the sources are the same"
    lines = ask(hostile).splitlines()
    assert lines[0].startswith("True")
    assert "written" not in lines[0]
    assert lines[1:] == ["refused"] * 4
    assert (stored / LIBRARY).read_bytes() == before


@pytest.mark.parametrize("name", ["../../peaks", "/etc", "a/../..", "", ".", "..", "x" * 300, "a\0b"])
def test_the_name_of_a_library_is_no_path(tools: Tools, repository: Repository, name: str) -> None:
    """The names come from the commit's catalogue, and the parent makes and empties a folder for each."""
    (tools.host.home / "peaks").mkdir()
    (tools.host.home / "peaks" / "kept.json").write_text("{}")
    checkout = alone(tools, repository, commit(repository, ""))
    assert checkout.build([name], Diary()).status is Status.BUILD_FAILED
    assert (tools.host.home / "peaks" / "kept.json").exists()


PLANT = """
folder = pathlib.Path(os.environ[NAME])
folder.mkdir(parents=True, exist_ok=True)
print(sorted(path.name for path in folder.iterdir()))
(folder / "planted").write_text("machine code")
"""
CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH", "XDG_CACHE_HOME")


@pytest.mark.parametrize("name", in_every_run(CACHES, "TRITON_CACHE_DIR", "CUDA_CACHE_PATH"))
def test_machine_code_is_not_planted_for_another_commit(tools: Tools, repository: Repository, name: str) -> None:
    hostile = commit(repository, f"NAME = {name!r}" + PLANT)
    good = commit(repository, f"NAME = {name!r}" + PLANT + "# another commit")
    assert ask(alone(tools, repository, hostile)) == "[]"
    assert ask(alone(tools, repository, good)) == "[]", "what the hostile commit left must not be there"
    assert ask(alone(tools, repository, hostile)) == "['planted']", "the same code has its own"


def test_torch_finds_the_folder_for_kernels_that_it_compiles(tools: Tools, repository: Repository) -> None:
    sha = commit(repository, 'print(pathlib.Path(os.environ["XDG_CACHE_HOME"]).is_dir())')
    assert ask(alone(tools, repository, sha)) == "True"


def test_nothing_else_survives_a_child(tools: Tools, repository: Repository) -> None:
    sha = commit(
        repository,
        """
temp = pathlib.Path(os.environ["TMPDIR"])
shared = pathlib.Path("/dev/shm")
print(sorted(path.name for folder in (temp, shared) for path in folder.iterdir()))
(temp / "note").write_text("for the next child")
(shared / "note").write_text("for the next child")
""",
    )
    checkout = alone(tools, repository, sha)
    assert "note" not in ask(checkout)
    checkout.drop_child()
    assert "note" not in ask(checkout)


def test_the_worker_is_out_of_reach(tools: Tools, repository: Repository) -> None:
    sha = commit(
        repository,
        f"""
import signal
for pid in ({os.getpid()}, {os.getppid()}, os.getppid(), -1):
    try:
        os.kill(pid, signal.SIGTERM if pid != -1 else 0)
        print("reached", pid)
    except OSError as error:
        print(error.strerror)
print([name for name in ("WARPWATCH_DATABASE_URL", "WARPWATCH_TOKEN", "SSH_AUTH_SOCK") if name in os.environ])
""",
    )
    printed = ask(alone(tools, repository, sha))
    assert f"reached {os.getpid()}" not in printed
    assert printed.endswith("[]")


@pytest.mark.parametrize("way", ["os.fork() == 0 and os.setsid()", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
def test_time_is_up_for_everything_that_a_child_started(tools: Tools, repository: Repository, way: str) -> None:
    code = f"import signal, subprocess, time\n{way}\nsubprocess.Popen(['sleep', '86397'])\ntime.sleep(1000)"
    checkout = alone(tools, repository, commit(repository, code))
    with pytest.raises(ChildFailure) as failure:
        ask(checkout, seconds=1.5)
    assert failure.value.status is Status.TIMED_OUT
    assert processes_with("sleep 86397") == []


def test_a_full_temp_folder_costs_its_own_child_only(repository: Repository, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "small", scratch_bytes=2**22)
    tools = Tools(Host(settings, "cpu", bootstrap=CHILD))
    flood = """
with open(os.environ["TMPDIR"] + "/jit/flood", "wb", buffering=0) as file:
    while file.write(bytes(2**20)) == 2**20:
        pass
"""
    hostile = commit(repository, flood)
    try:
        assert ask(alone(tools, repository, hostile)) in ("No space left on device", "")
        good = commit(repository, "print(attempt(os.environ['TMPDIR'] + '/note'))")
        assert ask(alone(tools, repository, good)) == "written"
    finally:
        tools.close()


OPERATOR = {"kernels/op.py": "import attack\n", "kernels/other.py": "data = 'table'\n"}


UNREADABLE = ("README.md", "docs/notes.txt", "server/app.py", ".github/ci.yml", "warpwatch/operator.py")


@pytest.mark.parametrize("path", in_every_run(UNREADABLE, "README.md", "warpwatch/operator.py"))
def test_what_operators_cannot_read_changes_no_cache(tools: Tools, repository: Repository, path: str) -> None:
    """A commit that hides machine code in another file of the repository does not find the file."""
    # Spelled out, it would be one of their inputs.
    attack = f"print(pathlib.Path(bytes({list(path.encode())}).decode()).exists())\nNAME = {CACHES[0]!r}" + PLANT
    first = repository.commit("first", OPERATOR | {"attack.py": TRY + attack, path: "before"})
    second = repository.commit("second", {path: "planted"})
    assert ask(alone(tools, repository, first)) == "False\n[]"
    assert ask(alone(tools, repository, second)) == "False\n['planted']", "to the operators it is the same commit"


@pytest.mark.parametrize("place", in_every_run(["kernels", "elsewhere"], "kernels"))
def test_a_deep_folder_ends_no_worker(tools: Tools, repository: Repository, place: str) -> None:
    """Git stores a thousand folders in each other, which would end the recursion of whoever walks them."""
    deep = f"{place}/" + "d/" * 1200
    sha = repository.commit("deep", OPERATOR | {"attack.py": "print('right')"})
    blob = repository._git("rev-parse", f"{sha}:attack.py").strip()
    repository._git("update-index", "--add", "--cacheinfo", f"100644,{blob},{deep}x.py")
    repository._git("commit", "--quiet", "--message", "deep")
    assert ask(alone(tools, repository, repository.head())) == "right"


def test_a_name_that_cannot_be_decoded_hides_nothing(tools: Tools, repository: Repository) -> None:
    # They name it as far as it can be decoded.
    attack = f"print(sorted(os.listdir(b'.')))\nNAME = {CACHES[0]!r}\nFAR = '\N{REPLACEMENT CHARACTER}'" + PLANT
    repository.commit("first", OPERATOR | {"attack.py": TRY + attack})
    (repository.path / os.fsdecode(b"\xff")).write_text("planted")
    sha = repository.commit("second", {})
    assert "xff" not in ask(alone(tools, repository, sha))


def test_an_empty_folder_ends_no_worker(tools: Tools, repository: Repository) -> None:
    """Git commits none, but reads a tree that others have made."""
    repository.commit("plain", OPERATOR | {"attack.py": TRY + "print(sorted(os.listdir('.')))"})
    empty = repository._git("mktree", text="").strip()
    listing = repository._git("ls-tree", "HEAD") + f"040000 tree {empty}\tcsrc\n"
    tree = repository._git("mktree", text=listing).strip()
    sha = repository._git("commit-tree", tree, "-p", "HEAD", "-m", "empty").strip()
    repository._git("reset", "--quiet", "--soft", sha)
    assert ask(alone(tools, repository, sha)) == "['attack.py', 'kernels']"


READABLE = (
    *("kernels/other.py", "kernels/new.py", "kernels/data/new.bin", "csrc/new/new.cpp", "warpwatch.toml"),
    *("table.json", "table/of/values", "attack.py", ".gitattributes", "library/far.py", "weights/a.bin"),
)


@pytest.mark.parametrize(
    "path",
    in_every_run(READABLE, "kernels/new.py", "csrc/new/new.cpp", "table/of/values", "attack.py", "weights/a.bin"),
)
def test_what_operators_can_read_changes_the_cache(tools: Tools, repository: Repository, path: str) -> None:
    """Each file may hold what the operators compile: beside them, named by them, or named by what they name."""
    attack = TRY + f"NAME = {CACHES[0]!r}" + PLANT + "FAR = 'library/far.py'\n"
    files = OPERATOR | {"attack.py": attack, "library/far.py": "", "library/far.json": '{"at": "weights/a"}'}
    files |= {"warpwatch.toml": ""}
    first = repository.commit("first", files)
    text = attack + "# changed\n" if path == "attack.py" else "# changed\n"
    second = repository.commit("second", {path: text})
    assert ask(alone(tools, repository, first)) == "[]"
    assert ask(alone(tools, repository, second)) == "[]"
    assert ask(alone(tools, repository, first)) == "['planted']"


@pytest.mark.parametrize("name", ["warpwatch.toml", "kernels/op.py", "csrc/plain/plain.cpp", "attack.py"])
def test_a_link_in_a_commit_shows_nothing_of_the_worker(tools: Tools, repository: Repository, name: str) -> None:
    """The worker reads files of a commit outside the sandbox, and says in messages and logs what is wrong with them."""
    secret = tools.host.home / "peaks" / "secret"
    secret.parent.mkdir(parents=True)
    secret.write_text("password = hunter2")
    repository.commit("plain", OPERATOR | NATIVE | {"attack.py": TRY + "print(open('kernels/op.py').read())"})
    link = repository.path / name
    link.unlink(missing_ok=True)
    link.symlink_to(secret)
    diary = Diary()
    said = []
    try:
        (checkout,) = tools.checkouts(repository.url, [repository.commit("link", {})], diary)
        said += [repr(checkout.build(["plain"], diary)), ask(checkout)]
    except (ProjectError, ChildFailure) as error:
        said.append(str(error))
    assert said
    assert "hunter2" not in "\n".join(said + diary.lines)
    assert secret.read_text() == "password = hunter2"
