"""Attacks on interfaces of Linux from inside the strongest isolation, as root and as an ordinary user; many in each
start of a child, each in a process of its own."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from pathlib import Path

import pytest

from tests.security.conftest import Intruder
from tests.worker.conftest import bare_templates as bare_templates

pytestmark = pytest.mark.usefixtures("bare_templates")

HARNESS = '''
import ctypes, errno, fcntl, json, mmap, os, resource, signal, socket, stat, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)

def call(*arguments):
    """A function of the C library; raises what the kernel refuses."""
    name, *rest = arguments
    ctypes.set_errno(0)
    result = getattr(libc, name)(*rest)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result

def system_call(*arguments):
    return call("syscall", *map(lambda a: ctypes.c_long(a) if isinstance(a, int) else a, arguments))

def writes(path):
    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    return True

def puts(path, text):
    return os.write(os.open(path, os.O_WRONLY), text)

def outcome(attack):
    """What became of it in a process of its own: "" where it was stopped."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)
        try:
            result = eval(attack, globals())
            os.write(writer, f"{attack}: {result!r}".encode()[:500] if result else b"")
        except (OSError, ValueError, MemoryError):
            pass
        except BaseException as error:
            os.write(writer, f"{attack}: broken: {error!r}".encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as text:
        worked = text.read().decode()
    os.waitpid(pid, 0)
    return worked
'''

OTHER_PROCESSES = [
    "system_call(101, 0x4206, 1, 0, 0)",  # PTRACE_SEIZE of the first process
    "system_call(101, 0x4206, os.getppid(), 0, 0)",
    "system_call(311, 1, ctypes.create_string_buffer(16), 0, ctypes.create_string_buffer(16), 1, 0)",  # write to memory
    "system_call(438, os.pidfd_open(1), 0, 0)",  # pidfd_getfd
    "system_call(440, os.pidfd_open(1), ctypes.create_string_buffer(16), 1, 4, 0)",  # process_madvise
    "system_call(448, os.pidfd_open(1), 0)",  # process_mrelease
    "signal.pidfd_send_signal(os.pidfd_open(1), signal.SIGKILL) or not time.sleep(0.2) and os.getppid() == 0",
    "[os.kill(1, number) for number in range(1, 65) if number != 2] and not time.sleep(0.1) and os.getppid() == 0",
    "os.listdir('/proc/1/root')",
    "os.listdir('/proc/1/cwd/..')",
    "os.open('/proc/1/fd/0', os.O_RDONLY)",
    "os.readlink('/proc/1/ns/net')",
    "system_call(308, os.open('/proc/1/ns/mnt', os.O_RDONLY), 0)",  # setns
    "system_call(272, 0x80)",  # unshare: a time namespace
    "system_call(272, 0x02000000)",  # unshare: a control group namespace
    "system_call(312, os.getpid(), 1, 0, 0, 0) >= 0",  # kcmp, which orders addresses of the kernel
    "open('/proc/1/mem', 'r+b').read(1)",
    "puts('/proc/1/oom_score_adj', b'-1000')",
    "puts('/proc/self/oom_score_adj', b'-1000')",
    "open('/proc/1/map_files/x')",
    "puts('/proc/self/uid_map', b'0 0 1')",
    "puts('/proc/self/setgroups', b'allow')",
    "[name for name in os.listdir('/proc') if name.isdigit() and int(name) > 10_000]",
    "system_call(298, struct.pack('II', 1, 112) + bytes(104), 1, -1, -1, 0)",  # count what the first process does
]

KERNEL = [
    # Families of sockets but UNIX, both internets and netlink: Bluetooth, CAN, RDS, TIPC, XDP, the hypervisor…
    "[n for n in range(64) if n not in (1, 2, 10, 16) and not isinstance(family(n), OSError)]",
    "bind_netlink(15, 1)",  # events of devices, which the host's daemons believe
    "bind_netlink(9, 0xffffffff)",  # audit
    "bring_up()",  # an interface
    "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)",
    "socket.create_connection(('10.0.0.1', 80), 0.5)",
    "socket.create_connection(('::1', 22), 0.5)",
    "system_call(425, 8, ctypes.create_string_buffer(120))",  # io_uring_setup
    "system_call(323, 1)",  # userfaultfd
    "os.open('/dev/userfaultfd', os.O_RDWR)",
    "system_call(321, 0, ctypes.create_string_buffer(128), 128)",  # bpf: a map
    "system_call(250, 0, -3, 1)",  # keyctl: the session's keyring, which the worker shares
    "system_call(249, b'user', b'x', 0, -3)",  # request_key, which starts a program of the host
    "system_call(303, -100, b'/etc/hostname', struct.pack('Ii', 0, 0) + bytes(128), bytes(4), 0) and False",
    "system_call(304, os.open('/', os.O_RDONLY), struct.pack('Ii', 8, 1) + bytes(8), 0)",  # open_by_handle_at
    "system_call(139, 0, 0, 0)",  # sysfs
    "system_call(180, 0)",  # nfsservctl
    "system_call(212, 0, bytes(8), 8)",  # lookup_dcookie
    "system_call(136, 0, 0) and False",  # ustat, which only tells
    "system_call(446, -1, 0)",  # landlock with nothing
    "system_call(175, b'x', 1, b'')",  # init_module
    "time.clock_settime(time.CLOCK_REALTIME, time.time() + 86_400) or True",
    "system_call(305, 0, struct.pack('I', 0x0100) + bytes(204))",  # clock_adjtime: set by an offset
    "system_call(222, 8, 0, bytes(4))",  # timer_create: a clock that wakes the machine
    "resource.setrlimit(resource.RLIMIT_NPROC, (2**20, 2**20)) or True",
    "resource.setrlimit(resource.RLIMIT_FSIZE, (2**62, 2**62)) or True",
    "resource.prlimit(1, resource.RLIMIT_CORE, (2**30, 2**30)) or True",
    "os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1)) or True",
    "call('prctl', 35, 1, 0x10000, 0, 0) >= 0",  # PR_SET_MM, another command line
    "call('prctl', 24, 0, 0, 0, 0) >= 0 and call('prctl', 47, 2, 21, 0, 0) == 0",  # an ambient capability
    "call('prctl', 28, 0, 0, 0, 0) == 0",  # securebits
    "call('setresuid', 0, 0, 0) == 0 and os.getuid() == 0 and capabilities()",
    "call('setgroups', 1, struct.pack('I', 0)) == 0",
    "copied_program()",  # from memory, without a file
    "set_user_id()",
]

FILES = [
    "[p for p in ('/dev/nvidia-caps', '/dev/nvidiactl', '/dev/dri', '/dev/kvm', '/dev/mem') if os.path.exists(p)]",
    "[p for p in ('/dev/fuse', '/dev/net/tun', '/dev/vhost-net', '/dev/kmsg', '/dev/mapper') if os.path.exists(p)]",
    "writes('/sys/fs/cgroup/cgroup.procs')",
    "os.mkdir('/sys/fs/cgroup/escape') or True",
    "settings('/proc/sys')",
    "settings('/sys')",
    "[name for name in ('sysrq-trigger', 'mtrr', 'kcore', 'kmsg') if writes('/proc/' + name)]",
    "open('/proc/kcore', 'rb').read(4096)",
    "open('/proc/kmsg', 'rb', buffering=0).read(16)",
    "open('/proc/self/pagemap', 'rb').read(8 * 2**20).strip(bytes(1)) and frames()",
    "[line for line in open('/proc/kallsyms') if int(line.split()[0], 16)][:1]",
    "[k for k in os.listdir('/proc/keys')]",
    "len(open('/proc/keys').read().splitlines()) > 50",
    "os.chmod(PATH, 0o777) or True",
    "os.utime(PATH, (4e9, 4e9)) or True",
    "os.setxattr(PATH, 'user.x', b'x') or True",
    "os.truncate(PATH, 0) or True",
    "os.rename(PATH, PATH + '2') or True",
    "os.link(PATH, SCRATCH + '/link') or True",
    "os.unlink(PATH) or True",
    "os.chown(PATH, os.getuid(), os.getgid()) or True",
    "fcntl.ioctl(os.open(PATH, os.O_RDONLY), 0x40086602, struct.pack('l', 0x10)) == 0",  # makes it immutable
    "os.open(f'/proc/self/fd/{os.open(PATH, os.O_RDONLY)}', os.O_RDWR)",
    "system_call(425, 0, 0)",
    "mmap.mmap(os.open(PATH, os.O_RDONLY), 1, mmap.MAP_SHARED, mmap.PROT_WRITE)",
    "[os.mkdir(FOLDER + '/' + n) for n in ('__pycache__', '.git', '.venv')]",
    "[open(FOLDER + '/' + n, 'w') for n in ('sitecustomize.py', 'x.pth', 'conftest.py', 'json.so', '.env')]",
    "[open(place + '/x.pth', 'w') for place in [*sys.path, os.path.expanduser('~/.local')] if os.path.isdir(place)]",
    "open('/etc/ld.so.preload', 'w') and True",
    "writes(sys.executable)",
    "writes(os.__file__)",
    "os.mkfifo('/tmp/pipe-of-a-child') or True",
    "os.symlink('/etc/passwd', '/var/tmp/link-of-a-child') or True",
    "os.mknod(SCRATCH + '/disk', 0o600 | stat.S_IFBLK, os.makedev(8, 0)) or True",
    "abstract()",
]

HELPERS = r'''
def family(number):
    try:
        return socket.socket(number, socket.SOCK_DGRAM)
    except OSError as error:
        return error

def bind_netlink(protocol, groups):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as channel:
        channel.bind((0, groups))
        # One may listen in a network of one's own; what counts is whether others believe what is sent.
        return channel.sendto(b"add@/devices/x\0ACTION=add\0", (0, groups)) and False

def bring_up():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, 0x8914, struct.pack("16sH14s", b"lo", 1, b""))
    return True

def capabilities():
    lines = dict(line.split(":\t") for line in open("/proc/self/status").read().splitlines())
    return [name for name in ("CapEff", "CapPrm", "CapInh", "CapAmb", "CapBnd") if int(lines[name], 16)]

def copied_program():
    """A copy of a program in memory has no more rights than the one that runs it."""
    file = os.memfd_create("program", 0)
    with open("/bin/cat", "rb") as original:
        os.write(file, original.read())
    os.fchmod(file, 0o6755)
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.dup2(writer, 1)
        os.execve(file, ["cat", "/proc/self/status"], {})
    os.close(writer)
    lines = dict(line.split(":\t") for line in os.fdopen(reader).read().splitlines() if ":\t" in line)
    return [n for n in ("CapEff", "CapPrm", "CapBnd") if int(lines[n], 16)] + [1] * (lines["NoNewPrivs"] != "1")

def set_user_id():
    """Programs that become root, or have capabilities of their own, as they are executed."""
    for name in ("/bin/su", "/usr/bin/passwd", "/usr/bin/mount", "/usr/bin/newuidmap", "/usr/bin/sudo"):
        if os.path.exists(name) and os.stat(name).st_mode & stat.S_ISUID:
            reader, writer = os.pipe()
            if os.fork() == 0:
                os.dup2(writer, 1)
                os.execv("/bin/sh", ["sh", "-c", f"{name} --version >/dev/null 2>&1; cat /proc/self/status"])
            os.close(writer)
            return "CapEff:\t0000000000000000" not in os.fdopen(reader).read()
    return False

def settings(folder):
    """What can be written below a folder of the kernel's."""
    found, pending, entries = [], [folder], 0
    while pending and entries < 6000:
        current = pending.pop(0)
        try:
            names = list(os.scandir(current))
        except OSError:
            continue
        for entry in names:
            entries += 1
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
            elif not entry.is_symlink() and os.access(entry.path, os.W_OK):
                found.append(entry.path)
    return found[:3]

def frames():
    """Numbers of physical pages, which tell where to hammer."""
    page = ctypes.create_string_buffer(b"x" * 8192)
    with open("/proc/self/pagemap", "rb", buffering=0) as map:
        map.seek(ctypes.addressof(page) // 4096 * 8)
        return struct.unpack("Q", map.read(8))[0] & (2**55 - 1)

def abstract():
    """Sockets of the host, by the names that it has listed."""
    for name in NAMES:
        with socket.socket(socket.AF_UNIX) as client:
            if client.connect_ex(name) == 0:
                return name
'''


def attacks(kernel: Intruder, listed: list[str], folder: Path, names: list[str]) -> list[str]:
    """Those that worked."""
    values = {
        "FOLDER": str(folder),
        "PATH": str(folder / "kernel.py"),
        "SCRATCH": str(kernel.home / "scratch"),
        "NAMES": names,
    }
    constants = "\n".join(f"{name} = {value!r}" for name, value in values.items())
    loop = f"worked = [outcome(attack) for attack in {listed!r}]\nprint(json.dumps([w for w in worked if w]))"
    printed = kernel.attack("\n".join([HARNESS, HELPERS, constants, loop]), folder=str(folder), visible=[str(folder)])
    found: list[str] = json.loads(printed)
    return found


@pytest.mark.parametrize("listed", [OTHER_PROCESSES, KERNEL, FILES], ids=["processes", "kernel", "files"])
def test_no_interface_of_the_kernel_leads_out(kernel: Intruder, listed: list[str]) -> None:
    folder = kernel.home / "worktrees" / "own"
    folder.mkdir(parents=True)
    (folder / "kernel.py").write_text("x")
    (folder / "kernel.py").chmod(0o666)
    folder.chmod(0o777)
    name = f"\0of-the-host-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        assert attacks(kernel, listed, folder, [name]) == []
    assert sorted(path.name for path in folder.iterdir()) == ["kernel.py"]
    assert (folder / "kernel.py").read_text() == "x"
    assert not Path(tempfile.gettempdir(), "pipe-of-a-child").exists()
