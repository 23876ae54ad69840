"""What hostile kernel code tries from inside the strongest isolation that this host allows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from warpwatch.worker import sandbox

PYTHON = os.path.realpath(sys.executable)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    if sandbox.strongest_isolation(tmp_path) != "full":
        pytest.skip("this host allows no user namespace with a process namespace of its own")
    return tmp_path


def attack(home: Path, code: str, *, seconds: float = 30) -> str:
    """What `code` prints as a confined child whose temp folder is home/temp and whose build cache is home/builds."""
    temp, cache = home / "temp", home / "builds"
    temp.mkdir(exist_ok=True)
    cache.mkdir(exist_ok=True)
    confinement = sandbox.confinement(home, 2**31)
    command = confinement.wrap([PYTHON, "-I", "-S", "-c", textwrap.dedent(code)], [temp, cache])
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, cwd=home)
    return done.stdout.strip() or done.stderr.strip()


WRITE = """
import os
def attempt(path):
    try:
        with open(path, "a") as file:
            file.write("#")
        return "written"
    except OSError as error:
        return error.strerror
"""


@pytest.mark.parametrize(
    "target",
    [
        "mirrors/0.git/config",
        "worktrees/job/kernels/square.py",
        "warpwatch.toml",
        "{service}",
        "{python}",
        "/etc/hosts",
    ],
)
def test_nothing_but_temp_folder_and_cache_is_written(home: Path, target: str) -> None:
    path = Path(target.format(service=sandbox.__file__, python=os.__file__))
    if not path.is_absolute():
        path = home / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("before")
    before = path.read_bytes()
    assert attack(home, f"{WRITE}\nprint(attempt({str(path)!r}))") == "Read-only file system"
    assert path.read_bytes() == before


@pytest.mark.parametrize("folder", ["temp", "builds"])
def test_temp_folder_and_cache_are_written(home: Path, folder: str) -> None:
    assert attack(home, f"{WRITE}\nprint(attempt({str(home / folder / 'note')!r}))") == "written"
    assert (home / folder / "note").read_text() == "#"


@pytest.mark.parametrize(
    "call",
    [
        'libc.mount(None, b"/", None, 0x20 | 0x1000, None)',  # remount it writable
        'libc.mount(b"none", b"/mnt", b"tmpfs", 0, None)',
        'libc.umount2(b"/dev/shm", 2)',
        'libc.sethostname(b"x", 1)',
        "libc.setuid(1)",
        'libc.chroot(b"/tmp")',
    ],
)
def test_no_power_is_left_to_undo_it(home: Path, call: str) -> None:
    code = f"""
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    print({call} == -1)
    """
    assert attack(home, code) == "True"


def test_a_nested_namespace_cannot_undo_it_either(home: Path) -> None:
    code = f"""
    import ctypes, os
    libc = ctypes.CDLL(None, use_errno=True)
    user = os.getuid()
    if libc.unshare(0x10000000 | 0x20000) == 0:
        open("/proc/self/setgroups", "w").write("deny")
        open("/proc/self/uid_map", "w").write(f"0 {{user}} 1")
        libc.mount(None, b"/", None, 0x20 | 0x1000, None)
    {textwrap.indent(WRITE, "    ").strip()}
    print(attempt({str(home / "outside")!r}))
    """
    assert attack(home, code) == "Read-only file system"


def test_other_processes_are_neither_seen_nor_killed(home: Path) -> None:
    code = f"""
    import os, signal
    seen = [name for name in os.listdir("/proc") if name.isdigit()]
    try:
        os.kill({os.getpid()}, signal.SIGKILL)
    except ProcessLookupError:
        seen.append("none")
    print(len(seen), seen[-1])
    """
    assert attack(home, code) == "3 none", "the first process of the namespace, this one, and no other"


def test_daemons_end_with_their_child(home: Path) -> None:
    code = """
    import os, time
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve("/bin/sleep", ["sleep", "86399"], {})
        os._exit(0)
    time.sleep(0.5)
    print("started")
    """
    assert attack(home, code) == "started"
    deadline = time.monotonic() + 5
    while (found := _commands("sleep\0" + "86399\0")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not found


def _commands(needle: str) -> list[str]:
    commands = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(entry.read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return [command for command in commands if needle in command]


def test_shared_memory_is_gone_with_the_child(home: Path) -> None:
    before = sorted(Path("/dev/shm").iterdir())
    code = """
    with open("/dev/shm/left-behind", "wb") as file:
        file.write(bytes(2**20))
    import ctypes
    libc = ctypes.CDLL(None)
    print(libc.shmget(0x77617270, 4096, 0o1600) >= 0)
    """
    assert attack(home, code) == "True"
    assert sorted(Path("/dev/shm").iterdir()) == before
    assert "77617270" not in Path("/proc/sysvipc/shm").read_text()


def test_sockets_of_others_do_not_answer(home: Path) -> None:
    code = """
    import socket
    for address in ("127.0.0.1", "169.254.169.254"):
        try:
            socket.create_connection((address, 80), timeout=2)
            print("connected")
        except OSError as error:
            print(error.strerror)
    """
    assert set(attack(home, code).splitlines()) == {"Network is unreachable"}


@pytest.mark.parametrize("folder", [".ssh", ".aws", ".config/gcloud"])
def test_keys_are_hidden(home: Path, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(home / "person"))
    secret = home / "person" / folder / "key"
    secret.parent.mkdir(parents=True)
    secret.write_text("secret")
    assert "secret" not in attack(home, f"print(open({str(secret)!r}).read())")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise SystemExit(7)", 7),
        ("import os; os.abort()", -6),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("import ctypes; ctypes.string_at(0)", -11),
    ],
)
def test_the_way_a_child_ended_is_told(home: Path, code: str, expected: int) -> None:
    command = sandbox.confinement(home, 2**31).wrap([PYTHON, "-I", "-S", "-c", code], [home])
    assert subprocess.run(command, capture_output=True, check=False).returncode == expected


def test_what_is_confined_reads_no_plan_of_its_own(home: Path) -> None:
    plan = json.loads(sandbox.confinement(home, 2**31).wrap([PYTHON], [home])[4])
    assert plan["isolation"] == "full"
    assert plan["parent"] == os.getpid()
