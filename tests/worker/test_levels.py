"""The isolation of a worker goes up alone: nothing that kernel code can bring about makes it weaker."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from warpwatch.settings import SettingError, load_settings
from warpwatch.worker import confine, levels, sandbox
from warpwatch.worker.levels import HostRefusal, IsolationError

Done = subprocess.CompletedProcess[str]
UNSHARE = "confine: unshare {code} namespaces\n"


class Probe:
    """Stands in for `run_confined`: how each level's child ended. A level that is not named works."""

    def __init__(self) -> None:
        self.ends: dict[str, Done | Exception] = {}
        self.tries: list[str] = []

    def __call__(self, confinement: sandbox.Confinement, _words: object) -> Done:
        self.tries.append(confinement.isolation)
        end = self.ends.get(confinement.isolation, Done([], 0, "", ""))
        if isinstance(end, Exception):
            raise end
        return end

    def refuse(self, *isolations: str, code: int = errno.EPERM, report: str = UNSHARE) -> None:
        for isolation in isolations:
            self.ends[isolation] = Done([], confine.REFUSED, "", report.format(code=code))


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Probe]:
    probe = Probe()
    monkeypatch.setattr(levels, "run_confined", probe)
    monkeypatch.setattr(levels, "PAUSE_SECONDS", 0.0)
    levels.strongest_isolation.cache_clear()
    yield probe
    levels.strongest_isolation.cache_clear()


@pytest.mark.parametrize("code", [errno.EPERM, errno.EINVAL, errno.ENOSYS])
def test_a_call_that_the_host_refuses_leads_to_the_next_level(probe: Probe, tmp_path: Path, code: int) -> None:
    probe.refuse("full", code=code)
    assert levels.strongest_isolation(tmp_path) == "user"
    assert probe.tries == ["full", "user"]


@pytest.mark.parametrize(
    "end",
    [
        OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.ENFILE, "Too many open files in system"),
        OSError(errno.EAGAIN, "Resource temporarily unavailable"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        subprocess.TimeoutExpired("confine.py", 60),
        Done([], 1, "", "OSError: [Errno 109] Too many references: cannot splice\n"),
        Done([], 1, "", "PermissionError: [Errno 1] Operation not permitted: of something else\n"),
        Done([], -9, "", ""),
        Done([], 127, "", "python: error while loading shared libraries: libpython3.11.so.1.0\n"),
        Done([], confine.REFUSED, "", UNSHARE.format(code=errno.ENOMEM)),
        Done([], confine.REFUSED, "", UNSHARE.format(code=errno.ENOSPC)),
        Done([], confine.REFUSED, "", f"confine: unshare {errno.EACCES} namespaces\n"),
    ],
)
def test_every_other_failure_is_tried_again_and_then_refuses(
    probe: Probe, tmp_path: Path, end: Done | Exception
) -> None:
    """Whoever uses up files, processes, memory or time would else choose how weakly the next worker isolates."""
    probe.ends["full"] = end
    with pytest.raises(IsolationError, match=r"WARPWATCH_VISIBLE.*WARPWATCH_ISOLATION"):
        levels.strongest_isolation(tmp_path)
    assert probe.tries == ["full"] * levels.TRIES
    del probe.ends["full"]
    assert levels.strongest_isolation(tmp_path) == "full", "a failure is not remembered"


def test_namespaces_that_are_all_in_use_are_not_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = HostRefusal("unshare", errno.ENOSPC, "namespaces")
    assert not refusal.is_final
    monkeypatch.setattr(levels, "_forbids_namespaces", lambda: True)
    assert refusal.is_final


@pytest.mark.parametrize(("call", "is_final"), [("mount", True), ("map", True), ("pivot_root", False)])
def test_a_security_module_refuses_with_another_number(call: str, is_final: bool) -> None:
    assert HostRefusal(call, errno.EACCES, "/").is_final is is_final


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_level_without_namespaces_must_be_written_down(probe: Probe, tmp_path: Path, kind: str) -> None:
    probe.refuse("full", "user")
    with pytest.raises(IsolationError, match="WARPWATCH_ISOLATION=none"):
        levels.confinement(tmp_path, None, device_kind=kind)
    assert set(probe.tries) <= {"full", "user"}
    chosen = load_settings({"WARPWATCH_ISOLATION": "none"}).isolation
    assert levels.confinement(tmp_path, None, isolation=chosen, device_kind=kind).isolation == "none"


def test_a_gpu_is_never_measured_on_with_the_hosts_proc(probe: Probe, tmp_path: Path) -> None:
    probe.refuse("full", report="confine: mount {code} proc /proc\n")
    with pytest.raises(IsolationError, match="mount proc /proc"):
        levels.strongest_isolation(tmp_path, "cuda")


def test_a_lower_level_than_before_needs_a_person(probe: Probe, tmp_path: Path) -> None:
    assert levels.strongest_isolation(tmp_path) == "full"
    levels.strongest_isolation.cache_clear()
    probe.refuse("full", report="confine: mount {code} proc /proc\n")
    with pytest.raises(IsolationError, match=r"had the isolation full.*mount proc /proc.*WARPWATCH_ISOLATION=user"):
        levels.strongest_isolation(tmp_path)
    assert levels.confinement(tmp_path, None, isolation="user").isolation == "user", "a person has chosen it"
    probe.ends.clear()
    assert levels.strongest_isolation(tmp_path) == "full"


def test_a_level_goes_up_by_itself(probe: Probe, tmp_path: Path) -> None:
    probe.refuse("full")
    assert levels.strongest_isolation(tmp_path) == "user"
    levels.strongest_isolation.cache_clear()
    probe.ends.clear()
    assert levels.strongest_isolation(tmp_path) == "full"
    assert (tmp_path / "isolation-cpu").read_text() == "full\n"


@pytest.mark.parametrize("text", ["", "strong\n", "\udcff"])
def test_a_record_that_was_damaged_is_no_permission(probe: Probe, tmp_path: Path, text: str) -> None:
    (tmp_path / "isolation-cpu").write_bytes(os.fsencode(text))
    with pytest.raises(IsolationError, match="isolation-cpu"):
        levels.strongest_isolation(tmp_path)


def test_the_record_is_out_of_reach_of_children(tmp_path: Path) -> None:
    if levels.strongest_isolation(tmp_path) != "full":
        pytest.skip("this host allows no full isolation")
    record = tmp_path / "isolation-cpu"
    code = f"""
import os
print(os.path.exists({str(record)!r}))
open({str(record)!r}, "w").write("none")
"""
    done = sandbox.run_confined(levels.confinement(tmp_path, None), [sys.executable, "-I", "-S", "-c", code])
    assert done.stdout == "False\n"
    assert "Read-only file system" in done.stderr
    assert record.read_text() == "full\n"


def test_a_refused_call_is_reported_by_its_name(tmp_path: Path) -> None:
    """Inside a child nothing can be unshared, so that a second confinement is refused there."""
    if levels.strongest_isolation(tmp_path) != "full":
        pytest.skip("this host allows no full isolation")
    code = f"""
import sys
sys.path.insert(0, {str(sandbox.PACKAGE.parent)!r})
import os
from pathlib import Path
from warpwatch.worker import levels
from dataclasses import replace
refusal = levels.find_refusal(replace(levels._least(Path(os.environ["TMPDIR"])), isolation="full"))
print(refusal.call, refusal.code, refusal.is_final)
"""
    confinement = levels.confinement(tmp_path, None)
    jail = sandbox.Jail(confinement)
    command = jail.command([sys.executable, "-c", code], Path("/"))
    environment = jail.environment()
    done = subprocess.run(
        command, pass_fds=jail.passed, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    jail.close()
    assert done.stdout == f"unshare {errno.EPERM} True\n", done.stderr


@pytest.mark.parametrize("value", ["/", "relative", "/nowhere/at/all", "/usr:/"])
def test_what_shall_be_visible_must_be_there(value: str) -> None:
    with pytest.raises(SettingError, match="WARPWATCH_VISIBLE"):
        load_settings({"WARPWATCH_VISIBLE": value})


def test_what_is_made_visible_is_seen(tmp_path: Path) -> None:
    models, home = tmp_path / "models", tmp_path / "home"
    models.mkdir()
    (models / "weights").write_text("1 2 3")
    if levels.strongest_isolation(home) != "full":
        pytest.skip("this host allows no full isolation")
    hidden = levels.confinement(home, None)
    words = [sys.executable, "-I", "-S", "-c", f"print(open({str(models / 'weights')!r}).read())"]
    assert "No such file" in sandbox.run_confined(hidden, words).stderr
    assert sandbox.run_confined(replace(hidden, shown=(models,)), words).stdout == "1 2 3\n"
