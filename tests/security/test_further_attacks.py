"""Further attacks from inside the strongest isolation, and on what the server reads, one of each class."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.security.conftest import Intruder
from tests.security.test_sandbox import LIBC
from tests.server.conftest import app as app
from tests.server.conftest import client as client
from tests.server.conftest import settings as settings
from warpwatch.db import embedded

# Time, processes, the kernel


CALLS = [
    "libc.syscall(227, 0, ctypes.create_string_buffer(16))",  # clock_settime: leases and times of others
    "libc.syscall(164, ctypes.create_string_buffer(16), 0)",  # settimeofday
    "libc.syscall(159, (ctypes.c_int * 64)(0x8000))",  # adjtimex, which makes the clock drift
    "libc.sched_setscheduler(0, 1, ctypes.byref(ctypes.c_int(50)))",  # run before everybody else
    "libc.setpriority(0, 0, -20)",
    "libc.syscall(251, 1, 0, 1 << 13)",  # ioprio_set, the same for the disk
    "libc.mlockall(3)",  # memory that nobody gets back
    "libc.reboot(0)",
    'libc.syscall(175, 0, 0, b"")',  # init_module
    'libc.syscall(313, 0, b"", 0)',  # finit_module
    "libc.syscall(246, 0, 0, 0, 0)",  # kexec_load
    'libc.swapon(b"/dev/null", 0)',
    'libc.acct(b"/tmp/acct")',  # a log of all processes of the host
    "libc.syscall(179, 0, 0, 0, 0)",  # quotactl
    "libc.setns(0, 0)",
    'libc.syscall(155, b"/", b"/")',  # pivot_root
    'libc.syscall(428, -100, b"/", 1)',  # open_tree, a copy of a mount that nothing covers
    'libc.syscall(430, b"tmpfs", 0)',  # fsopen
    "libc.syscall(442, 0, 0, 0, 0, 0)",  # mount_setattr
    "libc.syscall(300, 0, 0)",  # fanotify_init, which hears of every file that is opened
    r"libc.syscall(298, ctypes.create_string_buffer(b'\0\0\0\0\x70', 112), -1, 0, -1, 0)",  # count all processes
    "libc.process_vm_readv(1, 0, 0, 0, 0, 0)",  # memory of the first process
    "libc.syscall(438, libc.syscall(434, 1, 0), 0, 0)",  # pidfd_getfd, its open files
    "libc.syscall(312, 1, 1, 0, 0, 0)",  # kcmp
    "libc.syscall(256, 1, 0, 0, 0)",  # migrate_pages
    "libc.syscall(103, 3, 0, 0)",  # syslog, with addresses of the kernel
    "libc.iopl(3)",
    "libc.ioperm(0, 1, 1)",
    "libc.vhangup()",
]


def test_the_machine_is_not_steered(kernel: Intruder) -> None:
    code = f"""{LIBC}
for call in {CALLS!r}:
    ctypes.set_errno(0)
    if eval(call) != -1 or ctypes.get_errno() not in (1, 12, 13, 38):
        print(call, ctypes.get_errno())
print("done")
"""
    assert kernel.attack(code) == "done", "refused are EPERM, ENOMEM, EACCES and ENOSYS"


def test_a_crash_leaves_no_core_behind(kernel: Intruder) -> None:
    """The host's pattern for cores may name a program, which would run outside."""
    code = """
    import os, resource
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (2**20, 2**20))
        print("raised")
    except (OSError, ValueError):
        print(resource.getrlimit(resource.RLIMIT_CORE))
    """
    assert kernel.attack(code) == "(0, 0)"


def test_no_terminal_is_typed_into(kernel: Intruder) -> None:
    """TIOCSTI types for the person who started the worker."""
    code = """
    import fcntl, os
    for name in ("/dev/tty", "/proc/self/fd/0", "/proc/self/fd/1", "/proc/self/fd/2"):
        try:
            fcntl.ioctl(os.open(name, os.O_RDWR | os.O_NONBLOCK), 0x5412, b"x")
            print("typed into", name)
        except OSError:
            pass
    print("done")
    """
    assert kernel.attack(code) == "done"


# Disk


def test_space_is_not_reserved_without_writing(kernel: Intruder) -> None:
    code = f"""
    import os
    file = os.open({str(kernel.home / "scratch" / "large")!r}, os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(file, 0, 2**40)
        print("reserved")
    except OSError as error:
        print(error.strerror)
    """
    assert kernel.attack(code) in ("No space left on device", "File too large")


def test_links_lead_no_further_than_their_child(kernel: Intruder) -> None:
    """The parent takes files out of the temporary folder, and another child gets the folder's name."""
    secret = kernel.home / "peaks" / "secret"
    secret.parent.mkdir()
    secret.write_text("of the worker")
    code = f"""
    import os
    place = {str(kernel.home / "scratch" / "link")!r}
    os.symlink({str(secret)!r}, place)
    for act in (lambda: open(place).read(), lambda: os.link({str(secret)!r}, place + "2"), lambda: os.listdir(place)):
        try:
            print("reached", act())
        except OSError:
            pass
    print("done")
    """
    assert kernel.attack(code) == "done"
    assert not list((kernel.home / "scratch").iterdir())


# Database


def test_the_database_is_neither_asked_nor_read(kernel: Intruder, tmp_path: Path) -> None:
    """It listens on a socket that every user of the machine may open, and asks those for no password."""
    short = Path(f"/tmp/jail-db-{os.getpid()}")
    with embedded.running(short):
        folders = [str(folder) for folder in embedded.folders(short)]
        sockets = [str(path) for folder in folders for path in Path(folder).glob(".s.PGSQL.*[0-9]")]
        assert sockets
        code = f"""
        import os, socket
        for path in {sockets!r}:
            try:
                socket.socket(socket.AF_UNIX).connect(path)
                print("connected")
            except OSError:
                pass
        for folder in {folders!r}:
            try:
                print("seen", os.listdir(folder)[:3]) if os.listdir(folder) else None
            except OSError:
                pass
        print("done")
        """
        for path in sockets:
            with socket.socket(socket.AF_UNIX) as trusted:
                trusted.connect(path)
        assert kernel.attack(code, hidden=folders) == "done"
    shutil.rmtree(embedded.data_folder(short), ignore_errors=True)
    shutil.rmtree(short, ignore_errors=True)


# HTTP


@pytest.mark.parametrize(
    "path",
    [
        "/static/../../settings.py",
        "/static/..%2f..%2fsettings.py",
        "/static/%2e%2e/%2e%2e/settings.py",
        "/static/%00",
        "/perfetto/..%2f..%2f..%2fMETADATA",
        "/static//etc/passwd",
        "/history/99999999999999999999",
        "/history/1%00",
        "/commits/%ff%fe",
        "/jobs?before=-1&state=%00",
        "/?repository=%00&device=%ed%a0%80",
        "/kernels/" + "x" * 5000,
        "/?" + "&".join(f"variant=v{n}" for n in range(2000)),
    ],
)
def test_no_address_leads_out_or_breaks_a_page(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code in (200, 400, 404, 414, 422)
    assert "WARPWATCH_" not in answer.text
    assert "root:" not in answer.text


@pytest.mark.parametrize(
    "body",
    [b"[" * 100_000, b'{"commits": ' * 20_000, b'{"a": 1e999999}', b'{"repository": "\\ud800"}', b"\xff\xfe", b"NaN"],
)
def test_no_body_breaks_the_server(client: TestClient, body: bytes) -> None:
    answer = client.post("/api/v1/submissions", content=body, headers={"Content-Type": "application/json"})
    assert 400 <= answer.status_code < 500
    assert answer.headers["content-type"].startswith("application/problem+json")
    assert client.get("/api/v1/health").status_code == 200
