"""The parent side of a child, against a scripted one: every way to fail has its status, and nothing is left of a child
that was closed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_until
from tests.worker.conftest import SCRIPTED, Diary, processes_with
from warpwatch.contract.words import Status
from warpwatch.settings import SettingError, load_settings
from warpwatch.worker import levels, sandbox
from warpwatch.worker.child import Child, ChildFailure, ChildSpec
from warpwatch.worker.reporter import BoundedReporter, CannotRunError, Stopped

GIB = 2**30
pytestmark = pytest.mark.usefixtures("no_leftovers", "bare_templates")


@pytest.fixture
def child(tmp_path: Path, diary: Diary) -> Iterator[Child]:
    child = start(tmp_path, diary)
    yield child
    child.close()


def start(root: Path, reporter: Diary, hidden: tuple[Path, ...] = (), bootstrap: Path = SCRIPTED) -> Child:
    spec = ChildSpec(root, "cpu", root / "cache", 1, bootstrap=bootstrap)
    child = Child(spec, levels.confinement(root / "home", GIB, hidden), reporter)
    child.wait_ready()
    return child


def ask(child: Child, reporter: Diary, variant: str, seconds: float = 20, **fields: object) -> dict[str, object]:
    child.send("check", variant=variant, **fields)
    return child.receive(seconds, reporter)


def test_answers(child: Child, diary: Diary) -> None:
    assert ask(child, diary, "good") == {"status": "ok"}
    assert ask(child, diary, "good") == {"status": "ok"}


@pytest.mark.parametrize(
    ("variant", "status", "words"),
    [
        ("segfault", Status.CRASHED, "SIGSEGV"),
        ("abort", Status.CRASHED, "SIGABRT"),
        ("exit", Status.CRASHED, "status 3"),
        ("close", Status.CRASHED, "closed its reply channel"),
        ("nonsense", Status.CRASHED, "nonsense"),
        ("kill", Status.OUT_OF_MEMORY, "killed by the system"),
        ("memory", Status.OUT_OF_MEMORY, "bad_alloc"),
        ("shim crash", Status.OUT_OF_MEMORY, "CUDA out of memory"),
        ("loop", Status.TIMED_OUT, "within 1.5 s"),
        ("sleep", Status.TIMED_OUT, "within 1.5 s"),
    ],
)
def test_every_way_to_fail_has_its_status(child: Child, diary: Diary, variant: str, status: Status, words: str) -> None:
    # On a busy machine a crash takes longer than that.
    seconds = 1.5 if status is Status.TIMED_OUT else 20
    with pytest.raises(ChildFailure, match=words) as caught:
        ask(child, diary, variant, seconds=seconds)
    assert caught.value.status == status


def test_a_crash_shows_the_last_words(child: Child, diary: Diary) -> None:
    with pytest.raises(ChildFailure, match=r"last words:\n.*Segmentation fault"):
        ask(child, diary, "segfault")
    assert any("Segmentation fault" in line for line in diary.lines)


def test_memory_is_limited(child: Child, diary: Diary) -> None:
    assert ask(child, diary, "hoard")["status"] == "out_of_memory"


def test_a_native_operator_may_lack_memory_without_knowing(child: Child, diary: Diary) -> None:
    assert ask(child, diary, "shim failure")["status"] == "out_of_memory"


def test_a_fork_bomb_ends(tmp_path: Path, diary: Diary, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.getuid() == 0 or levels.confinement(tmp_path, GIB).isolation not in ("full", "user"):
        pytest.skip("root is exempt, and without a user namespace there is no limit")
    monkeypatch.setattr(sandbox, "PROCESSES", 20)
    child = start(tmp_path, diary)
    message = ask(child, diary, "fork bomb")["message"]
    child.close()
    assert "temporarily unavailable" in str(message)


def test_a_stop_interrupts_a_request(child: Child) -> None:
    limit = 60.0
    begin = time.monotonic()
    with pytest.raises(Stopped, match="cancelled"):
        ask(child, Diary(stop_after=0.5), "loop", seconds=limit)
    assert time.monotonic() - begin < limit / 2, "the request was not interrupted, it ran into its own limit"


def test_closing_leaves_no_process(tmp_path: Path, diary: Diary) -> None:
    before = {*processes_with("sleep 1000"), *processes_with("sleep 1001")}

    def sleepers() -> set[int]:
        return {*processes_with("sleep 1000"), *processes_with("sleep 1001")} - before

    class UntilTwoSleep(Diary):
        """The scripted child starts one process in its group and one in a session of its own."""

        def should_stop(self) -> str | None:
            return "cancelled" if len(sleepers()) == 2 else None

    child = start(tmp_path, diary)
    with pytest.raises(Stopped):
        ask(child, UntilTwoSleep(), "sleep")
    processes = [child.pid, *sleepers()]
    child.close()
    assert not any(_alive(pid) for pid in processes if pid is not None)


def test_a_killed_parent_leaves_no_child(tmp_path: Path) -> None:
    script = textwrap.dedent(f"""
        from pathlib import Path
        from tests.worker.test_child import start
        from tests.worker.conftest import Diary
        class Told(Diary):
            def log(self, text):
                print(text, flush=True)
        child = start(Path({str(tmp_path)!r}), Told())
        print(child.pid, flush=True)
        child.send("check", variant="loop")
        child.receive(100, Told())
    """)
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert parent.stdout.readline() == "looping\n"
    assert _alive(child)
    parent.kill()
    parent.communicate()
    wait_until(lambda: not _alive(child), 10)
    sandbox.clear_leftovers()
    assert not list(Path(os.environ.get("TMPDIR", "/tmp")).glob(f"warpwatch-temp-{parent.pid}-*"))


def test_a_leftover_that_another_removes_meanwhile_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # Pids are below 2**22. A link to nowhere is listed and cannot be looked at, like a folder that is gone by then.
    (tmp_path / "warpwatch-temp-9999998-gone").symlink_to(tmp_path / "nowhere")
    left = tmp_path / "warpwatch-temp-9999999-left"
    left.mkdir()
    sandbox.clear_leftovers()
    assert not left.exists()


def test_the_environment_is_scrubbed(tmp_path: Path, diary: Diary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPWATCH_DATABASE_URL", "postgresql://secret")
    monkeypatch.setenv("MY_TOKEN", "secret")
    child = start(tmp_path, diary)
    seen = json.loads(str(ask(child, diary, "environment")["message"]))
    child.close()
    assert "secret" not in str(seen)
    assert seen["HOME"] == seen["TMPDIR"] != os.environ["HOME"]
    assert seen["GOMP_SPINCOUNT"] == "1000"
    left_behind = list(Path(seen["TMPDIR"]).glob("*"))
    assert not left_behind, "the temp folder goes with the child"


FAULTS = """
import resource, torch

def once():
    pair = [torch.ones(5 * 2**20) for _ in range(2)]

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(20):  # Rounding blocks up to their alignment, glibc may take nine rounds to have a free one for each.
    once()
before = faults()
for _ in range(5):
    once()
print(faults() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's own")
def test_freed_memory_is_taken_again_without_page_faults(tmp_path: Path) -> None:
    """Two blocks of 20 MiB, again and again, beside a process that gives back whatever it frees."""
    keeping = sandbox.environment(tmp_path)
    giving_back = keeping | dict.fromkeys(sandbox.KEEP_FREED_MEMORY, str(128 * 2**10))
    found = []
    for environment in (giving_back, keeping):
        done = subprocess.run(
            [sys.executable, "-c", FAULTS], env=environment, capture_output=True, text=True, check=True
        )
        found.append(int(done.stdout))
    assert 4 * found[1] < found[0]


def test_the_network_is_out_of_reach(tmp_path: Path, diary: Diary) -> None:
    if not levels.confinement(tmp_path, GIB).network_closed:
        pytest.skip("this host allows no network namespace")
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = start(tmp_path, diary)
        message = ask(child, diary, "network", seed=server.getsockname()[1])["message"]
        child.close()
    assert "unreachable" in str(message)


def test_isolation_can_be_chosen(tmp_path: Path, diary: Diary) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        spec = ChildSpec(tmp_path, "cpu", tmp_path, 1, bootstrap=SCRIPTED)
        child = Child(spec, levels.confinement(tmp_path, GIB, isolation="none"), diary)
        child.wait_ready()
        message = ask(child, diary, "network", seed=server.getsockname()[1])["message"]
        child.close()
    assert message == "connected"
    with pytest.raises(SettingError, match="WARPWATCH_ISOLATION"):
        load_settings({"WARPWATCH_ISOLATION": "total"})


def test_hidden_folders_look_empty(tmp_path: Path, diary: Diary) -> None:
    if levels.confinement(tmp_path, GIB).isolation not in ("full", "user"):
        pytest.skip("this host allows no user namespace")
    secret = tmp_path / "database" / "password"
    secret.parent.mkdir()
    secret.write_text("secret")
    for hidden, expected in (((), "secret"), ((secret.parent,), "not there")):
        child = start(tmp_path, diary, hidden)
        assert ask(child, diary, "look", case=str(secret))["message"] == expected
        child.close()


def test_a_flood_of_output_is_cut(child: Child) -> None:
    diary = Diary()
    with pytest.raises(ChildFailure) as caught:
        ask(child, BoundedReporter(diary), "chatter", seconds=2)  # type: ignore[arg-type]
    assert caught.value.status == Status.TIMED_OUT
    assert sum(map(len, diary.lines)) <= 2**20
    assert diary.lines[-1].startswith("log cut")


def test_a_child_that_cannot_start_says_why(tmp_path: Path, diary: Diary) -> None:
    bootstrap = tmp_path / "bootstrap.py"
    bootstrap.write_text("raise SystemExit('no torch here')")
    with pytest.raises(CannotRunError, match="no torch here"):
        start(tmp_path, diary, bootstrap=bootstrap)


def test_an_unknown_interpreter_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotRunError, match="no-such-python"):
        ChildSpec(tmp_path, "cpu", tmp_path, 1, interpreter="no-such-python").command()


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0] != "Z"
    except OSError:
        return False
