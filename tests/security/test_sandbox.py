"""What hostile kernel code tries from inside the strongest isolation, as root and as an ordinary user."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.security.conftest import Intruder
from warpwatch.worker import levels, sandbox

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
LIBC = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
"""


# Files


@pytest.mark.parametrize("target", ["note", "warpwatch.toml", "{service}", "{python}", "/etc/hosts", "/tmp/jail-note"])
def test_nothing_but_the_temp_folder_is_written(kernel: Intruder, target: str) -> None:
    path = Path(target.format(service=sandbox.__file__, python=os.__file__))
    if not path.is_absolute():
        path = kernel.home / path
        path.write_text("before")
        path.chmod(0o666)
    before = path.read_bytes() if path.exists() else None
    refusals = ("Read-only file system", "Permission denied", "No such file or directory")
    assert kernel.attack(f"{WRITE}\nprint(attempt({str(path)!r}))") in refusals
    assert (path.read_bytes() if path.exists() else None) == before


@pytest.mark.parametrize(
    "name", ["worktrees", "mirrors", "libraries", "jit", "bytecode", "builds", "peaks", "logs", "database"]
)
def test_what_belongs_to_other_commits_is_not_seen(kernel: Intruder, name: str) -> None:
    secret = kernel.home / name / "other" / "file"
    secret.parent.mkdir(parents=True)
    secret.write_text("of another commit")
    code = f"import os; print(os.path.exists({str(kernel.home / name)!r}), os.path.exists({str(secret)!r}))"
    assert kernel.attack(code) == "False False"


def test_its_own_worktree_is_seen_and_nothing_beside_it(kernel: Intruder) -> None:
    """As head of a comparison it would edit the base's worktree. Its current folder leads under the cover as well."""
    worktrees = kernel.home / "worktrees"
    for name in ("head", "base"):
        (worktrees / name).mkdir(parents=True)
        (worktrees / name / "kernel.py").write_text(name)
        (worktrees / name / "kernel.py").chmod(0o666)
    code = f"""
    import os
    {textwrap.indent(WRITE, "    ").strip()}
    print(open("kernel.py").read(), attempt("kernel.py"), os.listdir(".."), os.listdir("/proc/self/cwd/.."))
    print(attempt({str(worktrees / "base" / "kernel.py")!r}), attempt("../new"))
    """
    own = str(worktrees / "head")
    printed = kernel.attack(code, visible=[own], folder=own)
    assert "base" not in printed
    assert "written" not in printed
    assert printed.startswith("head Read-only file system ['head'] ['head']")
    assert sorted(path.name for path in worktrees.iterdir()) == ["base", "head"]


@pytest.mark.parametrize(
    "path",
    [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/vm/drop_caches",
        "/proc/sysrq-trigger",
        "/proc/irq/default_smp_affinity",
        "/sys/kernel/profiling",
    ],
)
def test_the_hosts_kernel_is_not_configured(kernel: Intruder, path: str) -> None:
    """For a root the file modes of /proc/sys are no hindrance, and core_pattern names a program that the host runs."""
    code = f"""
    import os
    try:
        os.close(os.open({path!r}, os.O_WRONLY))
        print("opened")
    except OSError:
        print("refused")
    """
    assert kernel.attack(code) == "refused"


def test_a_process_can_name_its_threads(kernel: Intruder) -> None:
    """CUDA does, and does not start where it cannot."""
    code = """
    import threading
    thread = threading.Thread(target=lambda: open(f"/proc/self/task/{threading.get_native_id()}/comm", "w").write("x"))
    thread.start()
    thread.join()
    print("named")
    """
    assert kernel.attack(code) == "named"


def test_no_device_of_the_host_is_there(kernel: Intruder) -> None:
    """A read-only mount protects no device: to a root, a disk is a file that it may write."""
    code = """
    import os
    print(sorted(os.listdir("/dev")))
    with open("/dev/null", "w") as nothing, open("/dev/urandom", "rb") as noise:
        print(nothing.write("x"), len(noise.read(4)))
    """
    links = {"fd", "stdin", "stdout", "stderr"}
    names, works = kernel.attack(code).splitlines()
    assert set(eval(names)) - links == {"full", "null", "random", "shm", "urandom", "zero"}
    assert works == "1 4"


def test_a_device_node_made_by_itself_is_dead(kernel: Intruder) -> None:
    code = f"""{LIBC}
print(libc.mknod(os.path.expanduser({str(kernel.home / "scratch")!r} + "/disk").encode(), 0o60600, 0xfe00))
"""
    assert kernel.attack(code) == "-1"


CONNECT = """
import os, socket
def reach(path):
    try:
        socket.socket(socket.AF_UNIX).connect(path)
        return "connected"
    except OSError as error:
        return error.strerror
"""


@pytest.mark.parametrize(
    "place", ["{home}", "/tmp/jail-{pid}/a/b/c/d", "/var/tmp/jail-{pid}", "/run/jail-{pid}/e/f/g/h"]
)
@pytest.mark.parametrize("is_relative", [False, True])
def test_sockets_and_fifos_of_others_are_not_there(kernel: Intruder, place: str, is_relative: bool) -> None:
    """A read-only mount stops nobody from connecting to a socket or writing into a FIFO. The kernel lists a socket by
    the path that it was bound with."""
    folder = Path(place.format(home=kernel.home, pid=os.getpid()))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except PermissionError:
        pytest.skip(f"this user cannot write to {folder.parent}")
    listen = f"""
import os, socket
os.umask(0)
os.chdir({str(folder)!r})
os.mkfifo("fifo")
server = socket.socket(socket.AF_UNIX)
server.bind("socket" if {is_relative} else {str(folder / "socket")!r})
server.listen()
print(flush=True)
input()
"""
    command, pipe = [sys.executable, "-c", listen], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as service:
        assert service.stdin is not None
        assert service.stdout is not None
        service.stdout.readline()
        code = f"""{CONNECT}
print(reach({str(folder / "socket")!r}), os.path.lexists({str(folder / "fifo")!r}))
"""
        try:
            assert kernel.attack(code) == "No such file or directory False"
        finally:
            service.stdin.close()
            for name in ("socket", "fifo"):
                (folder / name).unlink()


def test_files_of_people_are_not_there(kernel: Intruder, tmp_path: Path) -> None:
    """Also those that everybody may read."""
    (tmp_path / "notes").write_text("private")
    places = ["/home", "/root/.profile", "/mnt", "/srv", "/var/log", "/etc/shadow", "/etc/ssh", str(tmp_path / "notes")]
    code = f"""
import os
print([path for path in {places!r} if os.path.isfile(path) or (os.path.isdir(path) and os.listdir(path))])
"""
    assert kernel.attack(code) == "[]"


def test_a_host_with_many_files_that_are_hidden_is_no_hindrance(kernel: Intruder) -> None:
    """The list of what is covered is longer than the arguments of a process may be."""
    shown = kernel.home.with_name(f"{kernel.home.name}-shown")
    shown.mkdir()
    try:
        hidden = [str(shown / f"{'long' * 40}-{number}") for number in range(1000)]
        for path in hidden:
            Path(path).touch()
        code = f"{WRITE}\nprint(attempt({hidden[0]!r}), attempt({hidden[-1]!r}))"
        assert kernel.attack(code, hidden=hidden, visible=[str(shown)]) == "Permission denied Permission denied"
        assert Path(hidden[-1]).read_text() == ""
    finally:
        shutil.rmtree(shown)


# What it takes of what all processes of a user share


def test_a_flood_of_descriptors_in_flight_stops_no_other_child(kernel: Intruder) -> None:
    """The kernel counts them for each user of the host, and refuses more to whoever has a limit below their number."""
    if kernel.user is not None:
        pytest.skip("test_self_attack.py tries it as an ordinary user")
    hold = """
import array, os, resource, socket, time
held = 0
pairs = []
try:
    while held < 30_000:
        pairs.append(socket.socketpair())
        file = os.open("/dev/null", os.O_RDONLY)
        for _ in range(40):
            pairs[-1][0].sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file] * 250))])
            held += 250
        os.close(file)
except OSError:
    pass
print(held, flush=True)
time.sleep(60)
"""
    other = sandbox.Jail(levels.confinement(kernel.home / "other", None))
    command = other.command([sys.executable, "-I", "-S", "-c", hold], Path("/"))
    with subprocess.Popen(command, pass_fds=other.passed, start_new_session=True, stdout=subprocess.PIPE) as process:
        other.launched()
        assert process.stdout is not None
        try:
            held = int(process.stdout.readline())
            assert sandbox.FILES // 4 <= held < resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            assert kernel.attack("print('started')") == "started"
            without_cache = levels.strongest_isolation.__wrapped__
            assert without_cache(kernel.home / "next") == "full"
        finally:
            other.kill(process.pid)
    other.close()


def test_limits_are_below_those_of_the_worker(kernel: Intruder) -> None:
    names = ("NOFILE", "NPROC", "SIGPENDING", "MSGQUEUE", "RTPRIO")
    code = f"import resource; print([resource.getrlimit(getattr(resource, 'RLIMIT_' + n)) for n in {names!r}])"
    for name, (soft, hard) in zip(names, eval(kernel.attack(code)), strict=True):
        most = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1]
        assert soft == hard
        assert hard == 0 or most == resource.RLIM_INFINITY or 0 < hard <= most // 2, name


def test_inotify_is_refused(kernel: Intruder) -> None:
    """All processes of a user share 128 instances."""
    code = f"{LIBC}\nprint(libc.inotify_init(), libc.inotify_init1(0), os.strerror(ctypes.get_errno()))"
    assert kernel.attack(code) == "-1 -1 Operation not permitted"


# Powers


@pytest.mark.parametrize(
    "call",
    [
        'libc.mount(None, b"/", None, 0x20 | 0x1000, None)',  # remount it writable
        'libc.mount(b"none", b"/mnt", b"tmpfs", 0, None)',
        'libc.umount2(b"/dev/shm", 2)',
        'libc.sethostname(b"x", 1)',
        "libc.setuid(1)",
        'libc.chroot(b"/tmp")',
        "libc.unshare(0x10000000)",  # a user namespace has all capabilities inside
        "libc.ptrace(0, 0, 0, 0)",
        "libc.ptrace(16, 1, 0, 0)",  # attach to the first process
        "libc.syscall(248, b'user', b'name', b'x', 1, -5)",  # add_key
        "libc.syscall(321, 0, 0, 0)",  # bpf
        "libc.syscall(323, 0)",  # userfaultfd
        "libc.syscall(425, 1, 0)",  # io_uring_setup
        "libc.syscall(304, 0, 0, 0)",  # open_by_handle_at
        "libc.syscall(0x40000000 + 39)",  # getpid in the second set of system calls
    ],
)
def test_no_power_is_left(kernel: Intruder, call: str) -> None:
    """Refused by the filter, or for a user who cannot."""
    code = f"{LIBC}\nprint({call}, os.strerror(ctypes.get_errno()))"
    refusals = ("-1 Operation not permitted", "-1 Function not implemented", "-1 Invalid argument")
    assert kernel.attack(code) in refusals


def test_new_namespaces_are_refused_by_the_filter(kernel: Intruder) -> None:
    code = f"{LIBC}\nprint(libc.unshare(0x10000000), libc.syscall(56, 0x10000011, 0, 0, 0, 0), ctypes.get_errno())"
    assert kernel.attack(code) == "-1 -1 1"
    assert "Seccomp:\t2" in kernel.attack("print(open('/proc/self/status').read())")


# Processes


def test_other_processes_are_neither_seen_nor_killed(kernel: Intruder) -> None:
    code = f"""
    import os, signal
    seen = [name for name in os.listdir("/proc") if name.isdigit()]
    try:
        os.kill({os.getpid()}, signal.SIGKILL)
    except ProcessLookupError:
        seen.append("none")
    print(len(seen), seen[-1])
    """
    assert kernel.attack(code) == "3 none" or kernel.attack(code) == "2 none"


def test_the_first_process_is_out_of_reach(kernel: Intruder) -> None:
    """The way to the host's files would lead through it. It has no capability that could be taken from it either."""
    code = """
    import os, signal
    os.kill(1, signal.SIGKILL)
    os.kill(1, signal.SIGSTOP)
    for name in ("root", "cwd", "exe", "fd/0", "environ", "mem", "maps"):
        try:
            path = "/proc/1/" + name
            os.readlink(path) if name in ("root", "cwd", "fd/0", "exe") else open(path, "rb").read(1)
            print("reached", name)
        except OSError:
            pass
    print("alive", {line.split()[1] for line in open("/proc/1/status") if line.startswith("Cap")})
    """
    assert kernel.attack(code) == "alive {'0000000000000000'}"


def test_daemons_end_with_their_child(kernel: Intruder) -> None:
    """Twice forked, in a session of their own, without an environment, deaf to every signal that can be ignored."""
    code = """
    import os, signal, time
    for number in set(range(1, 65)) - {9, 19, 32, 33}:
        signal.signal(number, signal.SIG_IGN)
    for _ in range(20):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execve("/bin/sleep", ["sleep", "86399"], {})
            os._exit(0)
    time.sleep(0.5)
    print("started")
    """
    assert kernel.attack(code) == "started"
    assert not _commands("sleep\0" + "86399\0")


def _commands(needle: str) -> list[str]:
    commands = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(entry.read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return [command for command in commands if needle in command]


def test_a_fork_bomb_ends(kernel: Intruder) -> None:
    """Root is exempt from the limit on processes, so its number is taken from the namespace's own count."""
    if kernel.user is None and os.getuid() == 0:
        pytest.skip("the kernel exempts user 0")
    code = """
    import os, resource, time
    resource.setrlimit(resource.RLIMIT_NPROC, (40, 40))
    children = 0
    try:
        while children < 200:
            if os.fork() == 0:
                time.sleep(60)
            children += 1
    except BlockingIOError:
        print("stopped")
    """
    assert kernel.attack(code) == "stopped"
    limit = kernel.attack("import resource; print(resource.getrlimit(resource.RLIMIT_NPROC)[1])")
    assert limit == str(sandbox.PROCESSES)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise SystemExit(7)", 7),
        ("import os; os.abort()", -signal.SIGABRT),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV),
    ],
)
def test_the_way_a_child_ended_is_told(kernel: Intruder, code: str, expected: int) -> None:
    assert kernel.run(code)["code"] == expected


# Memory between processes


def shared_memory() -> list[Path]:
    """What lies in shared memory, without what database servers of other tests put there and take away."""
    return sorted(path for path in Path("/dev/shm").iterdir() if not path.name.startswith("PostgreSQL."))


def test_shared_memory_is_gone_with_the_child(kernel: Intruder) -> None:
    before = shared_memory()
    code = f"""{LIBC}
with open("/dev/shm/left-behind", "wb") as file:
    file.write(bytes(2**20))
queue = libc.mq_open(b"/left-behind", 0o102, 0o600, None) if hasattr(libc, "mq_open") else 0
print(libc.shmget(0x77617270, 4096, 0o1600) >= 0, queue >= 0)
"""
    assert kernel.attack(code) == "True True"
    assert shared_memory() == before
    assert "77617270" not in Path("/proc/sysvipc/shm").read_text()
    assert kernel.attack(f"{LIBC}\nprint(libc.shmget(0x77617270, 4096, 0), os.listdir('/dev/shm'))") == "-1 []"


def test_no_descriptor_of_the_parent_is_left(kernel: Intruder) -> None:
    """Only standard input, output and error, and the listing's own."""
    assert kernel.attack("import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))") == "[0, 1, 2, 3]"


# Network


def test_no_network_answers(kernel: Intruder) -> None:
    code = """
    import socket
    for address in ("127.0.0.1", "169.254.169.254"):
        try:
            socket.create_connection((address, 80), timeout=2)
            print("connected")
        except OSError as error:
            print(error.strerror)
    for family in (17, 38, 40):  # raw packets, the kernel's ciphers, the hypervisor
        try:
            socket.socket(family, socket.SOCK_DGRAM)
            print("opened", family)
        except OSError:
            pass
    """
    assert set(kernel.attack(code).splitlines()) == {"Network is unreachable"}


def test_an_abstract_socket_of_the_host_is_not_reached(kernel: Intruder) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0warpwatch-test")
        server.listen()
        code = """
        import socket
        try:
            socket.socket(socket.AF_UNIX).connect("\\0warpwatch-test")
            print("connected")
        except OSError as error:
            print(error.strerror)
        """
        assert kernel.attack(code) == "Connection refused"


# Disk


@pytest.mark.parametrize("place", ["scratch", "/dev/shm"])
def test_a_flood_of_bytes_ends_at_the_limit(kernel: Intruder, place: str) -> None:
    """Also through files that were removed and are still open, which no walk over folders finds."""
    code = f"""
    import os
    files, written = [], 0
    try:
        while written < 2**40:
            files.append(open({str(kernel.home / place)!r} + "/bytes", "wb", buffering=0))
            os.unlink(files[-1].name)
            written += sum(files[-1].write(bytes(2**20)) for _ in range(8))
    except OSError as error:
        print(error.strerror, written <= 2**25)
    """
    changes = {"scratch_bytes": 2**25, "shared_bytes": 2**25}
    assert kernel.attack(code, changes=changes) == "No space left on device True"


def test_a_flood_of_files_ends_at_the_limit(kernel: Intruder) -> None:
    code = f"""
    import os
    os.chdir({str(kernel.home / "scratch")!r})
    with open("one", "w"):
        pass
    try:
        for number in range(2**19):
            os.mkdir(str(number)) if number % 2 else os.symlink("one", str(number))
    except OSError as error:
        print(error.strerror)
    """
    assert kernel.attack(code) == "No space left on device"
    assert not list((kernel.home / "scratch").iterdir()), "the folder on the host stays empty"


def test_the_temp_folder_is_empty_again_for_the_next_child(kernel: Intruder) -> None:
    place = str(kernel.home / "scratch" / "plant")
    assert kernel.attack(f"open({place!r}, 'w').write('x'); print('planted')") == "planted"
    assert kernel.attack(f"import os; print(os.path.exists({place!r}))") == "False"


# Time


def test_a_stopped_first_line_of_processes_is_killed(kernel: Intruder) -> None:
    """Whatever stops itself is killed with its namespace when the parent has had enough."""
    if kernel.user is not None:
        pytest.skip("the parent is this process")
    jail = sandbox.Jail(levels.confinement(kernel.home, None))
    code = "import os, signal; print('stopping', flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
    command = jail.command([os.path.realpath(sys.executable), "-c", code], Path("/"))
    with subprocess.Popen(command, pass_fds=jail.passed, start_new_session=True, stdout=subprocess.PIPE) as process:
        jail.launched()
        assert process.stdout is not None
        assert process.stdout.readline() == b"stopping\n"
        begin = time.monotonic()
        jail.kill(process.pid)
        assert time.monotonic() - begin < sandbox.KILL_SECONDS
    jail.close()


# Hosts that give less


@pytest.mark.parametrize("isolation", ["network", "none"])
def test_the_workers_environment_is_not_read_without_namespaces(kernel: Intruder, isolation: str) -> None:
    """Root without namespaces would read the database's password from /proc, were it not for its lost capabilities."""
    if isolation == "network" and (kernel.user is not None or os.getuid() != 0):
        pytest.skip("only root may leave the network without a user namespace")
    secretive = "import ctypes, sys, time; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); print(flush=True); time.sleep(60)"
    command = [sys.executable, "-c", secretive]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={"PASSWORD": "secret"}) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        code = f"""
        import ctypes
        for name in ("environ", "mem", "maps"):
            try:
                print(open("/proc/{worker.pid}/" + name, "rb").read(100))
            except OSError as error:
                print(error.strerror)
        print(ctypes.CDLL(None).ptrace(16, {worker.pid}, 0, 0))
        """
        try:
            printed = kernel.attack(code, changes={"isolation": isolation})
        finally:
            worker.kill()
    assert printed == "Permission denied\nPermission denied\nPermission denied\n-1"


def test_without_namespaces_the_filter_is_there(kernel: Intruder) -> None:
    code = f"{LIBC}\nprint(libc.unshare(0x10000000), libc.syscall(321, 0, 0, 0), ctypes.get_errno())"
    assert kernel.attack(code, changes={"isolation": "none"}) == "-1 -1 1"
