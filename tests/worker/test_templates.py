"""A child that a template forked is what a child is that was started as a program, and shares nothing with others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.waiting import wait_until
from tests.worker.conftest import Diary, processes_with
from warpwatch.cli.working_tree import _spare_compilers
from warpwatch.contract.catalogue import OperatorEntry, VariantEntry
from warpwatch.contract.environment import Environment
from warpwatch.contract.messages import CanaryReply
from warpwatch.settings import Settings
from warpwatch.worker import levels, templates
from warpwatch.worker.child import Child, ChildFailure, ChildSpec
from warpwatch.worker.host import Host

GIB = 2**30
SCRIPT = """
import contextlib, io, json, os, sys

reply_fd = int(os.environ["WARPWATCH_REPLY_FD"])

def send(message):
    os.write(reply_fd, json.dumps(message).encode() + b"\\n")

send({"event": "ready"})
for line in sys.stdin:
    request = json.loads(line)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(request.get("variant") or "", {})
    send({"id": request["id"], "reply": {"status": "ok", "message": printed.getvalue()}})
"""
"""Runs the code in a request's `variant` and replies with what it printed."""
IDENTITY = """
import ctypes, json, os, re, resource, signal, stat, sys

def number_free(path):
    return re.sub(r"[0-9]+", "N", os.readlink(path))

def read(name):
    return open("/proc/self/" + name).read()

def descriptors():
    # That of the listing itself is closed again.
    paths = ["/proc/self/fd/" + name for name in os.listdir("/proc/self/fd")]
    return [number_free(path) for path in paths if os.path.lexists(path)]

libc = ctypes.CDLL(None)
status = dict(line.split(":", 1) for line in read("status").splitlines())
alike = ("Umask", "Uid", "Gid", "Groups", "Threads", "SigBlk", "SigIgn", "SigCgt", "SigPnd", "CapInh", "CapPrm",
    "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters", "Cpus_allowed")
print(json.dumps({
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": list(sys.flags),
    "main": sys.modules["__main__"].__file__, "cwd": os.getcwd(), "pid": os.getpid() if os.getpid() < 9 else None,
    "environ": {name: value for name, value in os.environ.items() if name != "WARPWATCH_REPLY_FD"},
    "shown": [sorted(entry for entry in read(name).split("\\0") if entry and not entry.startswith("WARPWATCH_REPLY"))
              for name in ("cmdline", "environ")],
    "status": {name: status.get(name) for name in alike},
    "limits": [resource.getrlimit(kind) for kind in range(16)],
    "death": [libc.prctl(2, ctypes.byref(number := ctypes.c_int())), number.value],
    "dumpable": libc.prctl(3), "securebits": libc.prctl(27), "niceness": os.nice(0),
    "handlers": {number: str(signal.getsignal(number)) for number in range(1, 65) if number not in (32, 33)},
    "group": [os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid()],
    "mounts": [re.sub(r"\\S+ \\S+ \\S+ ", "", line, count=1) for line in read("mountinfo").splitlines()],
    "cgroup": read("cgroup"), "score": read("oom_score_adj"),
    "descriptors": descriptors(),
    "namespaces": {name: os.readlink("/proc/self/ns/" + name) for name in os.listdir("/proc/self/ns")},
}))
"""
SEEDS = """
import json, random, tempfile, uuid, numpy, torch
print(json.dumps({"python": random.random(), "numpy": numpy.random.rand(), "file": tempfile.mktemp(),
    "id": str(uuid.uuid4()), "torch": torch.rand(1, dtype=torch.float64).item(), "torch seed": torch.initial_seed()}))
"""
SEARCH = """
import re
# A pattern that the text of the pattern itself does not fit.
text = re.compile(rb"secret-[%s]%s")
count = 0
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
    for line in maps:
        span, rights = line.split()[:2]
        if rights.startswith("rw"):
            begin, end = (int(part, 16) for part in span.split("-"))
            memory.seek(begin)
            try:
                count += len(text.findall(memory.read(end - begin)))
            except OSError:
                continue
print(count)
"""
"""Prints how often a text lies in the memory of the process; the text is in two parts here."""
OBSTACLES = {
    "a thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
    "an open driver": "opened = open('/dev/zero')",
    "a torch that fails": "import sys\nsys.modules['torch'] = None",
}
"""Run at the start of a template, after which it must not fork or cannot import."""


@pytest.fixture(autouse=True, scope="module")
def _templates() -> Iterator[None]:
    """Tests share a template unless they change what one is started with."""
    if not templates.exist():
        pytest.skip("templates need Linux")
    yield
    templates.close()


@pytest.fixture
def _without_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Templates of this test alone that import nothing, for what processes do whatever is in them."""
    break_start(monkeypatch, tmp_path, OBSTACLES["a torch that fails"])
    templates.close()
    yield
    templates.close()


def break_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> None:
    """Has every Python that is started from now on run this code first."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))


class Starter:
    """Starts children that run code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "script.py"
        self.script.write_text(SCRIPT)
        self.children: list[Child] = []

    def launch(
        self,
        *,
        forked: bool = True,
        isolation: str = "auto",
        root: str = "root",
        device: str = "cpu",
        home: str = "home",
    ) -> Child:
        (self.folder / root).mkdir(exist_ok=True)
        spec = ChildSpec(self.folder / root, device, self.folder / root, 1, bootstrap=self.script, may_be_forked=forked)
        confinement = levels.confinement(self.folder / home, GIB, isolation=isolation)
        self.children.append(Child(spec, confinement, Diary()))
        return self.children[-1]

    def start(self, **options: Any) -> Child:
        child = self.launch(**options)
        child.wait_ready()
        return child


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[Starter]:
    starter = Starter(tmp_path)
    yield starter
    for child in starter.children:
        child.close()
    assert processes_with(str(tmp_path)) == []


def run(child: Child, code: str) -> str:
    child.send("check", variant=code)
    return str(child.receive(60, Diary())["message"]).strip()


def template_process() -> int:
    current = templates._templates._current
    assert current is not None
    return current.process.pid


def next_template() -> templates.Template:
    waiting = templates._templates._next
    assert waiting is not None
    return waiting


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("isolation", ["full", "user", "network", "none"])
def test_a_fork_has_what_a_program_has(starter: Starter, isolation: str) -> None:
    """Rights, limits, descriptors, signals, environment and place: nothing tells a fork from a program."""
    if isolation == "network" and os.getuid() != 0:
        pytest.skip("only root may leave the network without a user namespace")
    if isolation in ("full", "user") and levels.strongest_isolation(starter.folder / "home") != "full":
        pytest.skip("this host allows no full isolation")
    # The descriptors of a child that lives beside it would be among its own.
    starter.start(isolation=isolation)
    forked, started = (
        json.loads(run(starter.start(forked=forked, isolation=isolation), IDENTITY)) for forked in (True, False)
    )
    own = {path.name: str(path.readlink()) for path in Path("/proc/self/ns").iterdir()}
    for identity in (forked, started):
        spaces = identity.pop("namespaces")
        identity["left"] = sorted(name for name, space in spaces.items() if space != own[name])
        # Without namespaces every child has a temporary folder of its own.
        temp = identity["environ"]["TMPDIR"]
        text = json.dumps(identity).replace(temp, "TEMP")
        identity.clear()
        identity.update(json.loads(text))
    for name in started:
        assert forked[name] == started[name], name
    assert forked["descriptors"] == ["pipe:[N]"] * 4, "the standard ones, and that of replies"


def test_one_template_serves_every_folder(starter: Starter) -> None:
    """Its children have the temporary folder of their own worker, whatever another worker of this process had."""
    look = "import os, tempfile; print(tempfile.gettempdir(), os.environ['TRITON_CACHE_DIR'])"
    for home in ("home", "other"):
        child = starter.start(home=home)
        process = template_process()
        temp, cache = run(child, look).split()
        assert Path(temp) == child._jail.inside
        assert Path(cache).is_relative_to(temp)
    starter.start()
    assert template_process() == process


def test_compilers_are_there_once_a_child_has_used_them(starter: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "_compilers", templates._Compilers())
    is_there = "import sys; print('torch._dynamo' in sys.modules)"
    assert run(starter.start(), is_there) == "False"
    templates.learn(compiles=False)
    templates.learn(compiles=True)
    first = starter.start()
    if first._jail.shared_temp is None:
        pytest.skip("without namespaces every child has another temporary folder, which compilers would not know")
    assert run(first, is_there) == "True"
    places = "import tempfile, torch._inductor.codecache as cache; print(tempfile.gettempdir(), cache._HEADER_DIR)"
    temp, headers = run(first, places).split()
    assert Path(temp) == first._jail.inside
    assert Path(headers).is_relative_to(temp)
    assert list(first._jail.inside.iterdir()) == []


@pytest.mark.usefixtures("_without_torch")
@pytest.mark.parametrize(("variant", "are_used"), [("native", False), ("compiled", True)])
def test_native_variants_are_tried_without_compilers(
    starter: Starter, monkeypatch: pytest.MonkeyPatch, variant: str, are_used: bool
) -> None:
    """The check before has used them, in opcheck or in the variant itself."""
    monkeypatch.setattr(templates, "_compilers", templates._Compilers())
    starter.start()
    process = template_process()
    templates.learn(compiles=True)
    variants = [VariantEntry(name, "", "", ["cpu"], name == "native") for name in ("native", "compiled")]
    head: Any = SimpleNamespace(drop_child=lambda: None)
    _spare_compilers(head, OperatorEntry("square", "", variants, []), [(variant, "n=1")])
    assert templates._compilers.used is are_used
    if not are_used:
        starter.start()
        assert template_process() == process


def test_a_first_gradient_imports_nothing_in_a_fork(starter: Starter) -> None:
    gradient = (
        "import sys, torch; before = set(sys.modules); x = torch.ones(2, requires_grad=True)\n"
        "torch.autograd.grad(x * 2, x, torch.ones(2)); print('sympy' in sys.modules, sys.modules.keys() - before)"
    )
    assert run(starter.start(), gradient) == "True set()"


def test_a_template_may_start_before_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    templates.close()
    host = Host(Settings(home=tmp_path / "home"), "cpu")
    host.home.mkdir()
    with monkeypatch.context() as patch:
        # A child has its folder once torch is imported, and until then nobody waits.
        patch.setattr(Child, "temp", property(lambda _: pytest.fail("it waits")))
        host.start_template(Diary())
    process = template_process()
    child = host.start_child(host.empty_child(tmp_path), Diary())
    assert template_process() == process
    child.close()


def test_a_fork_may_be_forked(starter: Starter) -> None:
    look = "import sys; print('torch' in sys.modules, 'warpwatch.worker.harness.child.serve' in sys.modules)"
    assert run(starter.start(), look) == "True True"
    assert run(starter.start(forked=False), look) == "False False"


def test_every_child_has_seeds_of_its_own(starter: Starter) -> None:
    first, second, started = (json.loads(run(starter.start(forked=forked), SEEDS)) for forked in (True, True, False))
    assert all(len({first[name], second[name], started[name]}) == 3 for name in started), (first, second, started)


def test_nothing_of_an_earlier_child_is_in_memory(starter: Starter) -> None:
    first = starter.start(root="secret-a7f3b2")
    search = SEARCH % ("a", "7f3b2")
    assert int(run(first, search)) > 0, "the search finds what is there"
    first.close()
    process = template_process()
    second = starter.start()
    assert template_process() == process
    assert run(second, search) == "0"


def test_a_fork_that_measures_shares_no_memory(tmp_path: Path) -> None:
    """A page that is still shared would be copied within a measurement, by the first write to it."""
    if tuple(map(int, os.uname().release.split(".")[:2])) < (5, 14):
        pytest.skip("this kernel cannot copy pages ahead")
    host = Host(Settings(home=tmp_path / "home"), "cpu")
    host.home.mkdir()
    child = host.start_child(host.empty_child(tmp_path), Diary())
    try:
        for verb, reply, shares in (("environment", Environment, True), ("canary", CanaryReply, False)):
            child.ask(reply, verb, 60, Diary())
            sizes = []
            for pid in processes_with(str(tmp_path)):
                # Those between worker and child are nobody's to read.
                with suppress(PermissionError):
                    sizes.append(memory(pid))
            shared, own = max(sizes, key=sum)
            assert (shared > 0.5 * own) is shares, (verb, shared, own)
    finally:
        child.close()


def memory(pid: int) -> tuple[int, int]:
    """kB of the process that others have, too, and that are its own; what was read from files counts in neither."""
    lines = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.endswith("kB"))
    sizes = {fields[0]: int(fields[1]) for fields in lines}
    return sizes["Shared_Dirty:"], sizes["Private_Dirty:"]


@pytest.mark.usefixtures("_without_torch")
def test_addresses_change_with_the_template(starter: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    if Path("/proc/sys/kernel/randomize_va_space").read_text().strip() == "0":
        pytest.skip("this host places all processes alike")
    monkeypatch.setattr(templates, "CHILDREN", 2)
    look = "import ctypes; print(ctypes.cast(ctypes.CDLL(None).printf, ctypes.c_void_p).value, hash('text'))"
    places, processes = [], []
    for _ in range(3):
        places.append(run(starter.start(), look))
        processes.append(template_process())
    assert places[0] == places[1] != places[2]
    assert processes[0] == processes[1] != processes[2]
    assert not is_gone(processes[0]), "a template lives as long as its children"
    for child in starter.children[:2]:
        child.close()
    wait_until(lambda: is_gone(processes[0]))
    assert starter.children[2].alive


@pytest.mark.usefixtures("_without_torch")
def test_every_child_has_places_of_its_own_in_memory(starter: Starter) -> None:
    look = "import ctypes; malloc = ctypes.CDLL(None).malloc; malloc.restype = ctypes.c_void_p; print(malloc(30000))"
    places, processes = [], []
    for _ in range(4):
        places.append(int(run(starter.start(), look)))
        processes.append(template_process())
    assert len(set(processes)) == 1
    assert len({place % 4096 for place in places}) > 1


@pytest.mark.usefixtures("_without_torch")
def test_beside_a_gpu_the_next_template_is_ready_before_it_is_needed(
    starter: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "CHILDREN_BESIDE_GPU", 2)
    monkeypatch.setattr(templates, "_compilers", templates._Compilers())
    waiting = []
    for _ in range(4):
        starter.start(device="cuda")
        waiting.append(next_template())
        wait_until(lambda: waiting[-1].is_ready)
    # The first serves one child, because it has no compilers.
    assert waiting[0] != waiting[1] == waiting[2] != waiting[3]


@pytest.mark.usefixtures("_without_torch")
def test_beside_a_gpu_no_child_waits_for_compilers(starter: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "_compilers", templates._Compilers())
    with monkeypatch.context() as importing:
        importing.setattr(templates.Template, "is_ready", False)
        first = starter.start(device="cuda")
        if first._jail.shared_temp is None:
            pytest.skip("without namespaces no template has compilers")
        without, awaited = template_process(), next_template()
        starter.start(device="cuda")
        assert (template_process(), next_template()) == (without, awaited)
    wait_until(lambda: awaited.is_ready)
    starter.start(device="cuda")
    assert template_process() == awaited.process.pid


@pytest.mark.parametrize(
    ("obstacle", "compilers"),
    [*((obstacle, False) for obstacle in OBSTACLES), pytest.param("a thread", True, marks=pytest.mark.nightly)],
)
def test_no_fork_where_it_would_not_be_safe(
    starter: Starter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, obstacle: str, compilers: bool
) -> None:
    """An open device stands for CUDA: its driver opens some, and nothing of it works after a fork."""
    break_start(monkeypatch, tmp_path, OBSTACLES[obstacle])
    # One that imports compilers tries it without them first.
    monkeypatch.setattr(templates, "_compilers", templates._Compilers(used=compilers))
    child = starter.start()
    assert run(child, "import sys; print('warpwatch.worker.harness.child.serve' in sys.modules)") == "False"


def test_importing_the_harness_asks_for_no_device() -> None:
    """What a template imports calls nothing that would initialise CUDA, or make torch refuse it after a fork."""
    program = """
import argparse, sys
import torch

def refuse(*arguments):
    raise AssertionError("a device is asked for")

for name in ("_cuda_init", "_cuda_getDeviceCount", "_cuda_getDevice", "_cuda_getCurrentRawStream"):
    setattr(torch._C, name, refuse)
torch.cuda._lazy_init = torch.cuda.is_available = torch.cuda.device_count = refuse
sys.path.insert(0, sys.argv[1])
import bootstrap
bootstrap.load_harness(argparse.Namespace(threads=1))
bootstrap.load_modules(bootstrap.GRADIENTS)
bootstrap.load_modules(bootstrap.COMPILERS)
print(torch.cuda.is_initialized())
"""
    folder = Path(templates.__file__).parent / "harness" / "child"
    done = subprocess.run([sys.executable, "-P", "-c", program, folder], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr


@pytest.mark.usefixtures("_without_torch")
def test_children_die_with_their_template(starter: Starter) -> None:
    child = starter.start()
    process = template_process()
    os.kill(process, signal.SIGKILL)
    with pytest.raises(ChildFailure):
        run(child, "import time; time.sleep(100)")
    child.close()
    assert run(starter.start(), "print('again')") == "again"
    assert template_process() != process


def test_a_child_that_is_closed_before_it_was_forked_leaves_nothing(
    starter: Starter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slow = f"import time; time.sleep(1)\n{OBSTACLES['a torch that fails']}"
    break_start(monkeypatch, tmp_path, slow)
    # A program that would not end by itself.
    script, starter.script = starter.script, tmp_path / "sleep.py"
    starter.script.write_text("import time; time.sleep(1000)")
    # With namespaces it would end by itself, because nobody takes what it sends on its channel.
    child = starter.launch(isolation="none")
    assert child.pid is None
    child.close()
    starter.script = script
    # The template forks the next child after it.
    assert run(starter.start(), "print('here')") == "here"
    wait_until(lambda: len(children_of(template_process())) == 1)


@pytest.mark.usefixtures("_without_torch")
def test_a_child_that_ended_by_itself_is_not_mistaken_for_a_later_one(starter: Starter) -> None:
    """The template numbers descriptors anew, and hears late that the parent has closed the first child."""
    ended = [starter.start() for _ in range(2)]
    for child in ended:
        with pytest.raises(ChildFailure):
            run(child, "import os; os.abort()")
        wait_until(lambda child=child: not child.alive)  # type: ignore[misc]
    later = starter.start()
    for child in ended:
        child.close()
    assert run(later, "print('here')") == "here"
    os.kill(later.pid or 0, signal.SIGKILL)
    wait_until(lambda: not later.alive)


def children_of(process: int) -> list[int]:
    """Its living children."""
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [pid for pid in map(int, text.split()) if not is_gone(pid)]


def test_a_template_is_not_read_by_others_of_its_user(starter: Starter) -> None:
    """Its memory becomes that of every later child, and without namespaces a child may be of the same user."""
    if os.getuid() == 0:
        pytest.skip("root reads every process")
    starter.start()
    with pytest.raises(PermissionError):
        Path(f"/proc/{template_process()}/environ").read_bytes()
