"""People are told once of each event, within seconds, by webhook and by mail; what is not taken is sent again."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from email.policy import default
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from fastapi.testclient import TestClient
from sqlalchemy import text
from typer.testing import CliRunner

from tests.builders import CASES, Lab
from tests.server.listener import Heard, listening
from tests.server.test_code import problem
from tests.server.test_judge import compare_jobs, judge, rounds
from tests.waiting import wait_until
from warpwatch.contract.words import NoticeKind, Status, Triage, Verdict
from warpwatch.db.channels import Listener, WeekSummary, claim_delivery
from warpwatch.db.closing import close_as
from warpwatch.db.database import Database
from warpwatch.db.regressions import decide
from warpwatch.db.triage import SERVICE, set_triage, triage
from warpwatch.server.explanation.alarms import AlarmRow
from warpwatch.server.http.alarm_cache import Alarms
from warpwatch.server.intake.hooks import sign
from warpwatch.server.judge import Judge
from warpwatch.server.reports.notices import alarm_notice, digest_due, digest_notice, end_of_quiet_hours
from warpwatch.server.threads import channel_notifier as threads
from warpwatch.server.threads.channel_notifier import SIGNATURE, ChannelNotifier
from warpwatch.settings import Settings

API = "/api/v1"
SECRET = "a-secret-that-nobody-may-read"
V1, V2 = ("v1", CASES[0]), ("v2", CASES[0])
MONDAY = datetime(2026, 11, 23, 7, 30, tzinfo=UTC)
__all__ = ["judge"]


@pytest.fixture
def heard() -> Iterator[Heard]:
    with listening() as heard:
        yield heard


class Mailbox:
    """Takes mail, and refuses as often as it is told to."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.refusals = 0

    async def handle_DATA(self, _server: object, _session: object, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name.
        if self.refusals:
            self.refusals -= 1
            return "451 try again"
        self.messages.append(message_from_bytes(envelope.content, policy=default))
        return "250 taken"


@pytest.fixture
def mailbox() -> Iterator[tuple[Mailbox, int]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    box = Mailbox()
    controller = Controller(box, hostname="127.0.0.1", port=port)
    controller.start()
    yield box, port
    controller.stop()


@pytest.fixture
def notifier(settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChannelNotifier]:
    """A round of it ends when nothing is due, and looks at alarms and digests every time."""
    monkeypatch.setattr(threads, "POLL_SECONDS", 60.0)
    monkeypatch.setattr(threads, "ROUND_SECONDS", 0.0)
    notifier = ChannelNotifier(settings, database, Alarms(settings), first_pause=0, clock=lambda: MONDAY)
    yield notifier
    notifier._pool.shutdown()


def add(client: TestClient, **fields: Any) -> dict[str, Any]:
    body = {"repository": "kernels", "name": "on-call", "secret": SECRET, **fields}
    answer = client.post(f"{API}/channels", json=body)
    assert answer.status_code == 201, answer.text
    row: dict[str, Any] = answer.json()
    return row


def deliveries(client: TestClient, channel: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.get(f"{API}/channels/{channel['id']}/deliveries").json()["items"]
    return rows[::-1]


@pytest.fixture
def confirm(client: TestClient, lab: Lab, judge: Judge) -> Callable[[], int]:
    """Confirms that an operator became slower at the second commit; returns the regression."""

    def confirm_slower(operator: str = "square") -> int:
        lab.operators = ("square", "cube", "fourth")
        for index, median in enumerate((10_000.0, 13_000.0)):
            lab.bench(index, {V1: median}, operator=operator)
        judge.sweep()
        lab.compare(compare_jobs(client)[-1]["id"], {V1: rounds(1.3)})
        judge.sweep()
        filters = {"repository": "kernels", "operator": operator}
        (row,) = client.get(f"{API}/regressions", params=filters).json()["items"]
        return int(row["id"])

    return confirm_slower


def test_a_confirmation_is_told_once_and_signed(
    client: TestClient, lab: Lab, heard: Heard, confirm: Callable[..., int], notifier: ChannelNotifier
) -> None:
    channel = add(client, url=f"{heard.url}/hook", kinds=["confirmed", "settled", "fixed"])
    assert SECRET not in json.dumps(channel)
    notifier.sweep()
    regression = confirm()
    for _ in range(3):
        notifier.sweep()
    ((path, headers, body),) = heard.messages
    assert path == "/hook"
    assert body["kind"] == NoticeKind.CONFIRMED
    assert (body["repository"], body["operator"], body["regression_id"]) == ("kernels", "square", regression)
    assert body["title"].startswith("kernels: square on Test CPU: ")
    assert body["device_key"] == "test-cpu", "programs get the key"
    assert body["commit"] == {"sha": lab.shas[1], "author": "Ann", "subject": "Change 2"}
    assert body["link"].endswith(f"/regressions/{regression}")
    assert body["ratio"] == pytest.approx(1.3, abs=0.01)
    assert headers[SIGNATURE.lower()] == sign(SECRET, json.dumps(body).encode())
    (row,) = deliveries(client, channel)
    assert (row["outcome"], row["attempts"]) == ("sent", 1)


def test_one_message_for_all_that_a_commit_did(
    client: TestClient, heard: Heard, confirm: Callable[..., int], notifier: ChannelNotifier
) -> None:
    channel = add(client, url=heard.url, kinds=["confirmed"])
    confirm("square")
    notifier.sweep()
    confirm("cube")
    notifier.sweep()
    assert [body["operator"] for _, _, body in heard.messages] == ["square"]
    assert len(deliveries(client, channel)) == 1
    late = add(client, name="later", url=heard.url, kinds=["confirmed"])
    notifier.sweep()
    assert deliveries(client, late) == [], "a channel tells of what happens after it was made"


def withdraw(database: Database, regression: int, note: str) -> None:
    with database.session() as session:
        decide(session, regression, Verdict.DISMISSED)
        triage(session, [regression], author=SERVICE, note=note, fields={})


def test_what_was_told_and_is_not_true_any_more_is_taken_back_once_where_it_was_told(
    client: TestClient,
    lab: Lab,
    heard: Heard,
    confirm: Callable[..., int],
    database: Database,
    notifier: ChannelNotifier,
) -> None:
    add(client, url=f"{heard.url}/told", kinds=["confirmed"])
    square, cube = confirm("square"), confirm("cube")
    notifier.sweep()
    late = confirm("fourth")
    notifier.sweep()
    add(client, name="later", url=f"{heard.url}/later")
    heard.messages.clear()
    for regression in (square, cube, late):
        withdraw(database, regression, "dismissed: +0.1 %")
    for _ in range(3):
        notifier.sweep()
    ((path, _, body),) = heard.messages
    assert path == "/told"
    assert body["title"] == "kernels: square on Test CPU: withdrawn: dismissed: +0.1 %"
    assert body["text"].splitlines() == [
        f"Commit {lab.shas[1][:8]} by Ann: Change 2",
        f"square on Test CPU, v1 {CASES[0]}: dismissed: +0.1 %",
        f"cube on Test CPU, v1 {CASES[0]}: dismissed: +0.1 %",
    ], "what joined the event later was not told"
    assert (body["kind"], body["operators"], body["withdrawn"]) == (
        NoticeKind.FIXED,
        ["cube", "square"],
        "dismissed: +0.1 %",
    )


@pytest.mark.parametrize("answer", [400, 201])
def test_what_somebody_calls_invalid_is_taken_back_where_it_arrived(
    client: TestClient,
    heard: Heard,
    confirm: Callable[..., int],
    database: Database,
    notifier: ChannelNotifier,
    answer: int,
) -> None:
    heard.answers = [answer]
    add(client, url=heard.url, kinds=["confirmed", "fixed"])
    square, cube = confirm("square"), confirm("cube")
    notifier.sweep()
    with database.session() as session:
        set_triage(session, square, "invalid", "ann", "the host was busy")
    notifier.sweep()
    withdrawn = [body["withdrawn"] for _, _, body in heard.messages[1:]]
    assert withdrawn == ["invalid by ann: the host was busy"] * (answer == 201)
    with database.session() as session:
        set_triage(session, cube, "fixed", "ann", "done")
    notifier.sweep()
    last = heard.messages[-1][2]
    assert (last["kind"], last["operator"]) == (NoticeKind.FIXED, "cube"), "the fix of another change is told as well"


def test_a_suspicion_that_a_later_commit_undid_is_taken_back(
    client: TestClient, heard: Heard, confirm: Callable[..., int], database: Database, notifier: ChannelNotifier
) -> None:
    add(client, url=heard.url, kinds=["confirmed", "fixed"])
    regression = confirm()
    with database.session() as session:
        session.execute(text("UPDATE regressions SET verdict = 'suspected', decided_at = NULL, settled_at = now()"))
    notifier.sweep()
    with database.session() as session:
        close_as(session, regression, Triage.FIXED, 1, "fixed by 12345678")
    for _ in range(2):
        notifier.sweep()
    told, withdrawn = (body["title"] for _, _, body in heard.messages)
    assert told.endswith("suspected, cannot be confirmed")
    assert withdrawn == "kernels: square on Test CPU: withdrawn: fixed by 12345678"


def test_a_suspicion_that_is_confirmed_later_is_told_once_more(
    client: TestClient, heard: Heard, confirm: Callable[..., int], database: Database, notifier: ChannelNotifier
) -> None:
    add(client, url=heard.url, kinds=["confirmed"])
    regression = confirm()
    with database.session() as session:
        session.execute(text("UPDATE regressions SET verdict = 'suspected', decided_at = NULL, settled_at = now()"))
    for _ in range(2):
        notifier.sweep()
    with database.session() as session:
        decide(session, regression, Verdict.CONFIRMED, ratio=1.3)
    for _ in range(2):
        notifier.sweep()
    told, confirmed = (body["title"] for _, _, body in heard.messages)
    assert told.endswith("suspected, cannot be confirmed")
    assert confirmed.endswith("slower, confirmed")


@pytest.mark.parametrize("ending", ["fixed", "reverted"])
def test_what_broke_and_what_was_fixed(
    client: TestClient,
    lab: Lab,
    heard: Heard,
    judge: Judge,
    database: Database,
    notifier: ChannelNotifier,
    ending: str,
) -> None:
    add(client, url=heard.url, kinds=["broken", "fixed"])
    for index, status in enumerate((Status.OK, Status.WRONG)):
        lab.check(index, {V1: status})
        judge.sweep()
    (trial,) = client.get(f"{API}/jobs", params={"state": "queued"}).json()["items"]
    lab.finish(trial["id"], lab.outcome([lab._timed(*V1, Status.WRONG, 0.002)]))
    judge.sweep()
    notifier.sweep()
    (row,) = client.get(f"{API}/regressions", params={"repository": "kernels"}).json()["items"]
    with database.session() as session:
        set_triage(session, row["id"], ending, "ann", "done")
    notifier.sweep()
    assert [body["kind"] for _, _, body in heard.messages] == [NoticeKind.BROKEN, NoticeKind.FIXED]
    assert heard.messages[1][2]["title"].endswith(f", {ending}")


def test_people_are_told_of_what_they_watch(
    client: TestClient, heard: Heard, confirm: Callable[..., int], notifier: ChannelNotifier, lab: Lab
) -> None:
    lab.operators = ("square", "cube")
    for operator in lab.operators:
        lab.bench(0, {V1: 10_000.0}, operator=operator)
    watch = {"repository": "kernels", "person": "ann", "operator": "cube"}
    assert client.post(f"{API}/watches", json=watch).status_code == 201
    add(client, url=heard.url, kinds=["confirmed"], person="ann")
    confirm("square")
    notifier.sweep()
    assert heard.messages == []
    confirm("cube")
    notifier.sweep()
    assert [body["operator"] for _, _, body in heard.messages] == ["cube"]


def test_what_is_not_taken_is_sent_again_and_shown(
    client: TestClient, heard: Heard, confirm: Callable[..., int], notifier: ChannelNotifier
) -> None:
    heard.answers = [503, 429, 200]
    channel = add(client, url=heard.url, kinds=["confirmed"])
    confirm()
    notifier.sweep()
    (row,) = deliveries(client, channel)
    assert (row["outcome"], row["attempts"], len(heard.messages)) == ("sent", 3, 3)
    heard.answers = [404]
    client.post(f"{API}/channels/{channel['id']}/test")
    notifier.sweep()
    row = deliveries(client, channel)[-1]
    assert (row["outcome"], row["attempts"], bool(row["error"])) == ("given up", 1, True)
    (shown,) = client.get(f"{API}/channels", params={"repository": "kernels"}).json()["items"]
    assert (shown["waiting"], shown["given_up"]) == (0, 1)
    page = client.get("/channels").text
    assert "given up" in page
    assert SECRET not in page
    assert 'warpwatch_notifications{channel="webhook",outcome="given_up"} 1.0' in client.get("/metrics").text


def test_mail_arrives_with_commit_and_author(
    client: TestClient,
    lab: Lab,
    mailbox: tuple[Mailbox, int],
    confirm: Callable[..., int],
    notifier: ChannelNotifier,
) -> None:
    box, port = mailbox
    box.refusals = 1
    address = f"mailto://127.0.0.1:{port}/?from=warpwatch@example.com&to=ann@example.com"
    channel = add(client, url=address, secret=None, kinds=["confirmed"])
    assert channel["service"] == "mailto"
    regression = confirm()
    notifier.sweep()
    (row,) = deliveries(client, channel)
    assert (row["outcome"], row["attempts"]) == ("sent", 2)
    (mail,) = box.messages
    content = mail.get_body(("plain",)).get_content()
    assert "ann@example.com" in mail["To"]
    for part in (lab.shas[1][:8], "Ann", "Change 2", f"/regressions/{regression}"):
        assert part in content


@pytest.mark.usefixtures("judge")
def test_a_confirmation_is_told_within_ten_seconds(
    served: Settings, client: TestClient, lab: Lab, heard: Heard, mailbox: tuple[Mailbox, int]
) -> None:
    """By a running server with its own judge: from the decision to the other side."""
    box, port = mailbox
    add(client, url=heard.url, kinds=["confirmed"])
    mail = f"mailto://127.0.0.1:{port}/?from=warpwatch@example.com&to=ann@example.com"
    add(client, name="mail", url=mail, secret=None, kinds=["confirmed"])
    lab.bench(0, {V1: 10_000.0})
    lab.bench(1, {V1: 13_000.0})

    job = wait_until(lambda: compare_jobs(client), pause=0.1)[0]
    lab.compare(job["id"], {V1: rounds(1.3)})
    wait_until(lambda: heard.messages and box.messages)
    sql = """
    SELECT max(extract(epoch FROM sent_at - decided_at)) FROM deliveries
    JOIN regressions ON regressions.id = regression_id
    """

    def longest() -> Any:
        with lab.database.session() as session:
            return session.scalar(text(sql))

    assert wait_until(longest) < 10


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"url": "file:///etc/passwd"}, "url"),
        ({"url": "syslog://"}, "url"),
        ({"url": "json://127.0.0.1/x"}, "url"),
        ({"url": "slack://x"}, "url"),
        ({"url": "https://user:pw@host.example/x"}, "url"),
        ({"url": "http://169.254.169.254/latest"}, "url"),
        ({"url": "mailto://169.254.169.254/?from=a@b.example&to=c@d.example"}, "url"),
        ({"url": "https://host.example/x", "secret": None}, "secret"),
        ({"url": "https://host.example/x", "secret": "short"}, "secret"),
        ({"url": "https://host.example/x", "time_zone": "Moon/Crater"}, "time_zone"),
        ({"url": "https://host.example/x", "quiet_from": 25, "quiet_until": 7}, "quiet_from"),
        ({"url": "https://host.example/x", "kinds": ["everything"]}, "kinds[0]"),
        ({"url": "https://host.example/x", "kinds": []}, "kinds"),
    ],
)
def test_what_cannot_be_used_is_named(client: TestClient, lab: Lab, fields: dict[str, Any], field: str) -> None:
    body = {"repository": "kernels", "name": "on-call", "secret": SECRET} | fields
    answer = problem(client.post(f"{API}/channels", json=body), 422)
    assert [error["field"] for error in answer["errors"]] == [field]


def test_addresses_are_checked_again_when_they_are_used(
    client: TestClient, settings: Settings, lab: Lab, database: Database, mailbox: tuple[Mailbox, int]
) -> None:
    """A server that others ask reaches no private address, whatever was stored before."""
    channel = add(client, url="http://localhost:9/x")
    mail = f"mailto://127.0.0.1:{mailbox[1]}/?from=a@example.com&to=b@example.com"
    other = add(client, name="mail", url=mail, secret=None)
    asked_by_others = ChannelNotifier(replace(settings, token="t" * 16), database, Alarms(settings))
    for row in (channel, other):
        client.post(f"{API}/channels/{row['id']}/test")
    asked_by_others.send_due()
    asked_by_others._pool.shutdown()
    assert [deliveries(client, row)[0]["outcome"] for row in (channel, other)] == ["given up", "given up"]
    assert mailbox[0].messages == []


def test_two_servers_send_a_message_once(client: TestClient, lab: Lab, heard: Heard, database: Database) -> None:
    channel = add(client, url=heard.url)
    client.post(f"{API}/channels/{channel['id']}/test")
    claims: list[Any] = []

    def claim() -> None:
        with database.session() as session:
            claims.append(claim_delivery(session))

    claimers = [threading.Thread(target=claim) for _ in range(4)]
    for thread in claimers:
        thread.start()
    for thread in claimers:
        thread.join()
    assert sum(row is not None for row in claims) == 1


LISTENER = Listener(1, 1, "kernels", [*NoticeKind], None, [], 22, 7, "Europe/Berlin", MONDAY - timedelta(days=3))


@pytest.mark.parametrize(
    ("hour", "end"),
    [(20, None), (21, (24, 6)), (23, (24, 6)), (5, (23, 6)), (6, None)],
)
def test_messages_wait_for_the_end_of_quiet_hours(hour: int, end: tuple[int, int] | None) -> None:
    """22 to 7 in Berlin is 21 to 6 in UTC in November."""
    now = datetime(2026, 11, 23, hour, 30, tzinfo=UTC)
    expected = datetime(2026, 11, end[0], end[1], tzinfo=UTC) if end else None
    assert end_of_quiet_hours(LISTENER, now) == expected
    assert end_of_quiet_hours(replace(LISTENER, quiet_from=None, quiet_until=None), now) is None


def test_a_quiet_channel_keeps_its_messages(
    client: TestClient, heard: Heard, confirm: Callable[..., int], notifier: ChannelNotifier, database: Database
) -> None:
    channel = add(client, url=heard.url, kinds=["confirmed"], quiet_from=MONDAY.hour, quiet_until=MONDAY.hour + 1)
    with database.session() as session:
        session.execute(text("UPDATE channels SET quiet_until = quiet_from + 1"))
    notifier._clock = lambda: datetime.now(UTC).replace(hour=MONDAY.hour) + timedelta(days=2)
    confirm()
    notifier.sweep()
    (row,) = deliveries(client, channel)
    assert (row["outcome"], heard.messages) == ("waiting", [])
    assert datetime.fromisoformat(row["next_at"]).hour == MONDAY.hour + 1


def test_the_digest_comes_on_monday(client: TestClient, lab: Lab, heard: Heard, notifier: ChannelNotifier) -> None:
    assert digest_due(LISTENER, MONDAY) == MONDAY.replace(hour=7, minute=0)
    assert digest_due(LISTENER, MONDAY.replace(hour=6)) is None
    assert digest_due(LISTENER, MONDAY + timedelta(days=2)) is None
    assert digest_due(replace(LISTENER, created_at=MONDAY), MONDAY) is None
    notice = digest_notice(LISTENER, MONDAY, WeekSummary(1, 2, 3, 4, 5, 6), "http://here")
    assert (notice.key, notice.fields["open"], notice.fields["results"]) == ("digest:2026-W48", 5, 6)

    channel = add(client, url=heard.url, kinds=["digest"], time_zone="Europe/Berlin")
    with lab.database.session() as session:
        session.execute(text("UPDATE channels SET created_at = '2026-11-01'"))
    for _ in range(2):
        notifier.sweep()
    ((_, _, body),) = heard.messages
    assert (body["kind"], body["confirmed"], len(deliveries(client, channel))) == (NoticeKind.DIGEST, 0, 1)


def test_alarms_are_told_once_a_day(
    client: TestClient, lab: Lab, heard: Heard, notifier: ChannelNotifier, database: Database
) -> None:
    add(client, url=heard.url, kinds=["alarm"])
    lab.submit("bench", 0)
    with database.session() as session:
        session.execute(text("UPDATE workers SET stopped_at = now(), heartbeat_at = now() - interval '1 hour'"))
        session.execute(text("UPDATE jobs SET created_at = now() - interval '1 hour'"))
    for _ in range(2):
        notifier.sweep()
    ((_, _, body),) = heard.messages
    assert (body["alarm"], bool(body["remedy"])) == ("stale_device", True)
    alarm = AlarmRow("unfit", MONDAY, "hot", "cool it", device_key="gpu")
    keys = {alarm_notice(LISTENER, alarm, "http://here", MONDAY + timedelta(hours=hours)).key for hours in (0, 1, 24)}
    assert len(keys) == 2


def test_the_page_adds_tests_and_removes(client: TestClient, lab: Lab, heard: Heard, notifier: ChannelNotifier) -> None:
    form: dict[str, Any] = {
        "repository": "kernels",
        "name": "on-call",
        "url": "nothing://x",
        "kinds": ["alarm", "fixed"],
    }
    answer = client.post("/channels", data=form)
    assert (answer.status_code, 'aria-describedby="url-error"' in answer.text) == (422, True)
    form |= {"url": heard.url, "secret": SECRET}
    assert client.post("/channels", data=form, follow_redirects=False).status_code == 303
    (row,) = client.get(f"{API}/channels", params={"repository": "kernels"}).json()["items"]
    assert row["kinds"] == ["alarm", "fixed"]
    problem(client.post(f"{API}/channels", json=form), 409)
    assert client.post(f"/channels/{row['id']}/test", follow_redirects=False).status_code == 303
    notifier.sweep()
    assert [body["kind"] for _, _, body in heard.messages] == ["test"]
    assert client.post(f"/channels/{row['id']}/remove", follow_redirects=False).status_code == 303
    problem(client.get(f"{API}/channels/{row['id']}"), 404)
    problem(client.delete(f"{API}/channels/{row['id']}"), 404)


def test_the_commands(served: Settings, lab: Lab, heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    from warpwatch.cli.app import app

    monkeypatch.setenv("WARPWATCH_URL", served.server_url)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["channel", *arguments])
        assert result.exit_code == 0, result.output
        return result.output

    more = ("--repository", "kernels", "--secret", SECRET, "--kinds", "alarm,fixed", "--quiet", "22-7")
    assert "webhook" in run("add", "on-call", heard.url, *more)
    run("test", "1")
    wait_until(lambda: heard.messages, 30)
    assert [body["kind"] for _, _, body in heard.messages] == ["test"]
    listed = run("list", "--repository", "kernels")
    assert "alarm,fixed" in listed
    assert SECRET not in listed
    run("remove", "1")
    assert run("list", "--repository", "kernels") == ""
