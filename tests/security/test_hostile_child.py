"""Kernel code that owns its process speaks to the parent in place of the harness: nothing that it says or leaves out
holds the parent, fills its memory or the database, ends a job, or steers the terminal of whoever reads the log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.conftest import Diary, processes_with
from tests.worker.conftest import bare_templates as bare_templates
from warpwatch.contract.codec import from_json
from warpwatch.contract.messages import BuildReply
from warpwatch.contract.words import Fault, Status
from warpwatch.settings import Settings
from warpwatch.worker import child as children
from warpwatch.worker import sandbox
from warpwatch.worker.child import Child, ChildFailure, ChildSpec, _parse
from warpwatch.worker.host import Host
from warpwatch.worker.line_reader import printable
from warpwatch.worker.reporter import CannotRunError, Stopped
from warpwatch.worker.turns import DeviceTurns, LaneTurns

pytestmark = pytest.mark.usefixtures("bare_templates")
PROGRAM = Path(__file__).with_name("hostile_child.py")
LONG = 60.0


def start(root: Path, turns: LaneTurns | None = None, program: Path = PROGRAM) -> Child:
    spec = ChildSpec(root, "cpu", root / "cache", 1, bootstrap=program, may_be_forked=False)
    confinement = Host(Settings(home=root, memory_bytes=2**30), "cpu").confinement()
    child = Child(spec, confinement, Diary(), turns)
    child.wait_ready()
    return child


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    child = start(tmp_path)
    yield child
    child.close()
    assert processes_with(str(tmp_path)) == []


def ask(child: Child, code: str, seconds: float = LONG, reporter: Diary | None = None) -> dict[str, object]:
    child.send("check", variant=code)
    return child.receive(seconds, reporter or Diary())


def fail(child: Child, code: str, seconds: float = LONG) -> ChildFailure:
    with pytest.raises(ChildFailure) as caught:
        ask(child, code, seconds)
    return caught.value


# Ends


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("os.kill(os.getpid(), 40)", "signal 40"),
        ("os._exit(168)", "signal 40"),
        ("os._exit(255)", "exited with status"),
        ("os.kill(1, 2); import time; time.sleep(0.2); os._exit(255)", "the child"),
        ("os.kill(0, 9)", "killed by the system"),
    ],
)
def test_whatever_ends_a_child_is_its_crash(child: Child, code: str, words: str) -> None:
    """Python has no names for most real-time signals, so the parent would fail where it explains the exit."""
    failure = fail(child, f"import os; {code}")
    assert failure.status in (Status.CRASHED, Status.OUT_OF_MEMORY)
    assert words in failure.message


def test_a_child_that_stops_itself_with_all_that_stand_around_it_is_killed(child: Child) -> None:
    """Its process group holds the processes that wait for it, which are in no namespace of its own."""
    failure = fail(child, "import os, signal; os.kill(0, signal.SIGSTOP); os.kill(os.getpid(), signal.SIGSTOP)", 0.5)
    assert failure.status is Status.TIMED_OUT
    begin = time.monotonic()
    child.close()
    assert time.monotonic() - begin < sandbox.KILL_SECONDS


def test_nothing_that_a_child_can_ignore_outlives_it(child: Child) -> None:
    """Neither a sibling that it made beside itself, nor one that asked not to die with its parent."""
    code = """
import ctypes, os, signal, time
libc = ctypes.CDLL(None)
for number in set(range(1, 65)) - {9, 19, 32, 33}:
    signal.signal(number, signal.SIG_IGN)
libc.prctl(1, 0, 0, 0, 0)
libc.prctl(36, 1, 0, 0, 0)
if libc.syscall(56, 0x8000 | 17, 0, 0, 0, 0) == 0:
    os.setsid()
    os.execv("/bin/sleep", ["sleep", "86393"])
while True:
    time.sleep(1)
"""
    assert fail(child, code, 1.0).status is Status.TIMED_OUT
    child.close()
    assert processes_with("sleep 86393") == []


# Replies


@pytest.mark.parametrize(
    "code",
    [
        'send({"id": id + 1, "reply": {"status": "ok"}})',
        'send({"id": str(id), "reply": {"status": "ok"}})',
        'send({"reply": {"status": "ok"}})',
        'send({"id": id, "reply": {"status": "ok"}}, {"id": id, "reply": {"status": "ok"}})',
        'send({"id": id, "reply": {"status": "ok"}}, *({"id": n, "reply": {}} for n in range(1000)))',
    ],
)
def test_answers_to_other_requests_are_noticed(child: Child, code: str) -> None:
    failure = fail(child, code)
    assert (failure.status, failure.fault) == (Status.WRONG, Fault.FORGED_REPLY)


def test_greetings_times_and_events_in_between_change_nothing(child: Child) -> None:
    claims: list[object] = [{"import_seconds": -1.0}, {"x": []}, 7, "a", [1e308], None, {"import_seconds": 1e308}]
    for times in claims:
        message = {"id": 0, "times": times, "compiles": "yes", "reply": {"status": "ok"}}
        code = f"""
send({{"event": "ready", "contract": 99}}, {{"event": "fatal", "message": "x"}}, {{"event": ["turn"], "use": {{}}}})
send({{"event": "turn", "use": "quiet"}}, {{"event": "progress", "text": [["x" * 10**6]]}}, {message!r} | {{"id": id}})
"""
        begin = time.monotonic()
        assert ask(child, code) == {"status": "ok"}
        spent = [value for value in vars_of(child.times) if isinstance(value, float)]
        assert sum(spent) <= time.monotonic() - begin
        assert min(spent, default=0.0) >= 0.0


def vars_of(times: object) -> list[object]:
    return [getattr(times, name) for name in type(times).__dataclass_fields__]  # type: ignore[attr-defined]


def test_a_reply_as_long_as_the_channel_allows_is_cut(child: Child) -> None:
    """Each variant and case would store it."""
    code = 'send({"id": id, "reply": {"status": "build_failed", "message": "m" * 9_000_000, "log": "l" * 9_000_000}})'
    child.send("check", variant=code)
    reply = child.answer(BuildReply, LONG, Diary())
    assert len(reply.message) < 70_000
    assert len(reply.log) < 1_100_000
    failure = fail(child, 'import os; os.write(reply_fd, b"x" * 70_000_000 + b"\\n")')
    assert failure.status is Status.CRASHED
    assert len(failure.message) < 1000


def test_a_greeting_that_refuses_to_work_is_cut(tmp_path: Path) -> None:
    program = tmp_path / "program" / "fatal.py"
    for folder in (program.parent, tmp_path / "root"):
        folder.mkdir()
    text = '{"event": "fatal", "message": "' + "x" * 5_000_000 + '"}\n'
    program.write_text(f"import os; os.write(int(os.environ['WARPWATCH_REPLY_FD']), {text!r}.encode()); input()")
    with pytest.raises(CannotRunError) as caught:
        start(tmp_path / "root", program=program)
    assert 60_000 < len(str(caught.value)) < 70_000


@pytest.mark.parametrize("piece", [b"[],", b"{},", b'{"":0},', b"1,", b"1e1,", b'"aa",'])
def test_small_replies_do_not_take_much_memory(piece: bytes) -> None:
    """64 MiB of empty lists would take 2 GB of the parent, and twice that while they are looked at."""
    number = children.REPLY_LIMIT // len(piece)
    with pytest.raises(ChildFailure) as caught:
        _parse(b'{"id": 1, "reply": [' + piece * (number - 10) + b"0]}")
    assert caught.value.status is Status.CRASHED


def test_the_last_of_two_equal_keys_counts_and_numbers_are_finite_or_refused() -> None:
    assert _parse(b'{"id": 1, "id": 2, "reply": {"status": "ok", "status": "wrong"}}')["reply"] == {"status": "wrong"}
    for seconds in (b"NaN", b"-Infinity", b"1e999", b"1" + b"0" * 400):
        with pytest.raises((ValueError, ChildFailure), match=r"seconds|10000"):
            from_json(BuildReply, _parse(b'{"status": "ok", "seconds": ' + seconds + b"}"))


# Silence and floods


def test_a_child_that_reads_nothing_does_not_hold_the_parent(
    child: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers requests before they come, until its pipe is full."""
    forge = 'send(*({"id": id + n, "reply": {"status": "wrong"}} for n in range(10_000)))'
    ask(child, f"{forge}\nimport time; time.sleep(1000)")

    def ask_on() -> None:
        for _ in range(9_000):
            ask(child, "x" * 100)

    monkeypatch.setattr(children, "SEND_SECONDS", 0.5)
    with pytest.raises(ChildFailure) as caught:
        ask_on()
    assert caught.value.status is Status.TIMED_OUT
    monkeypatch.setattr(children, "SEND_SECONDS", LONG)
    child.serve(Diary(stop_after=0.0), None)
    with pytest.raises(Stopped):
        child.send("check", variant="x" * 10**6)


def test_a_child_that_takes_none_of_its_turns_does_not_hold_the_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "SEND_SECONDS", 0.5)
    child = start(tmp_path, LaneTurns(DeviceTurns(2)))
    failure = fail(child, 'while True: send(*[{"event": "turn", "use": "host"}] * 400)')
    assert failure.status is Status.TIMED_OUT
    child.close()


@pytest.mark.parametrize(
    "code",
    [
        'while True: send(*[{"event": "progress", "text": "x"}] * 1000)',
        'while True: os.write(1, b"x\\n" * 30_000)',
        'while True: os.write(1, b"\\0" * 60_000)',
        'while True: os.write(reply_fd, b" " * 60_000)',
        'import fcntl; fcntl.fcntl(reply_fd, 1031, 2**20)\nwhile True: os.write(reply_fd, b"{")',
    ],
)
def test_a_flood_ends_with_its_time(child: Child, code: str) -> None:
    begin = time.monotonic()
    assert fail(child, f"import os\n{code}", 0.5).status in (Status.TIMED_OUT, Status.CRASHED)
    assert time.monotonic() - begin < LONG / 2


# Terminals


HIDDEN = ["\x1b]0;title\x07", "\x1b]52;c;cm0gLXJmIC8=\x07", "\x1b[2J\x1b[1;1H", "\x9b2J", "ok\rfailed", "\x08\x08"]


def test_what_a_child_says_does_not_steer_a_terminal(child: Child) -> None:
    """Clear it, retitle it, fill its clipboard, or write over lines that came before."""
    code = f"""
for text in {HIDDEN!r}:
    print(text, flush=True)
send({{"id": id, "reply": {{"status": "wrong", "message": "".join({HIDDEN!r})}}}})
"""
    diary = Diary()
    reply = ask(child, code, reporter=diary)
    child.close()
    text = "\n".join([str(reply["message"]), *diary.lines])
    assert "cm0gLXJmIC8=" in text
    assert all(character.isprintable() or character == "\n" for character in text)


def test_honest_output_stays_readable() -> None:
    assert printable("\x1b[1;31merror:\x1b[0m \tbad\r") == "error: \tbad"
    assert printable("one\r\ntwo \N{GREEK SMALL LETTER MU}s") == "one\ntwo \N{GREEK SMALL LETTER MU}s"
