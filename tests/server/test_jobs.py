"""Jobs over REST: list, detail, log, live events, cancel and retry."""

from __future__ import annotations

import json
import shlex
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import make_url, text

from tests.builders import CASES, Lab
from tests.rewording import stored
from tests.server.test_code import problem
from tests.waiting import wait_until
from warpwatch.contract.codec import from_json, to_json
from warpwatch.contract.measurement import Curves, Probe
from warpwatch.contract.messages import CheckReply
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import Status
from warpwatch.db import runs
from warpwatch.db.reads.query import fetch_one
from warpwatch.server.threads import live
from warpwatch.settings import Settings


def test_jobs_are_filtered_and_paged(client: TestClient, lab: Lab) -> None:
    done = lab.bench(0, {("v1", CASES[0]): 1000.0})
    queued = [lab.submit("check", index) for index in range(3)]
    rows = client.get("/api/v1/jobs", params={"state": "queued", "device": "test-cpu"}).json()["items"]
    assert [row["id"] for row in rows] == queued[::-1]
    assert [row["position"] for row in rows] == [2, 1, 0]
    page = client.get("/api/v1/jobs", params={"limit": 2, "before": queued[1]}).json()
    assert [row["id"] for row in page["items"]] == [queued[0], done]
    assert client.get("/api/v1/jobs", params={"device": "test-gpu"}).json()["items"] == []
    problem(client.get("/api/v1/jobs", params={"state": "lost"}), 422)


def test_jobs_of_an_operator_a_kind_and_a_repository(client: TestClient, lab: Lab) -> None:
    lab.operators = ("square", "cube")
    lab.bench(0, {("v1", CASES[0]): 1000.0})
    cubed = lab.bench(0, {("v1", CASES[0]): 1000.0}, operator="cube")
    checked = lab.submit("check", 0)

    def ids(**params: str) -> list[int]:
        listed = [row["id"] for row in client.get("/api/v1/jobs", params=params).json()["items"]]
        written = client.get("/api/v1/jobs.csv", params=params).text.splitlines()[1:]
        assert [int(line.split(",")[0]) for line in written] == listed
        return listed

    assert ids(operator="cube") == ids(operator="cube", repository="kernels", kind="bench") == [cubed]
    assert ids(kind="check") == ids(operator="square", kind="check") == [checked]
    assert ids(operator="cube", kind="check") == ids(operator="sphere") == []
    assert len(ids(repository="kernels")) == 3
    problem(client.get("/api/v1/jobs", params={"repository": "elsewhere"}), 404)
    problem(client.get("/api/v1/jobs", params={"kind": "guess"}), 422)
    page = client.get(
        "/runs/jobs", params={"state": "all", "operator": "cube", "kind": "", "repository": "kernels"}
    ).text
    assert f"/jobs/{cubed}?" in page
    assert f"/jobs/{checked}?" not in page
    assert "/api/v1/jobs.csv?operator=cube&amp;repository=kernels" in page
    nothing = {"operator": "cube", "kind": "check", "state": "done", "repository": "kernels"}
    assert "No done check jobs of cube" in client.get("/runs/jobs", params=nothing).text


def test_job_detail(client: TestClient, lab: Lab) -> None:
    job = lab.submit("bench", 1, cases=[CASES[0]], variants=["v1", "v2"])
    first = lab.begin(job)
    with lab.database.session() as session:
        runs.fail_run(session, first, "the machine went away", retry=True)
    rows = [lab._timed("v1", CASES[0], 1234.0, 0.002), lab._timed("v2", CASES[0], Status.TIMED_OUT, 0)]
    lab.finish(job, lab.outcome(rows))
    detail = client.get(f"/api/v1/jobs/{job}").json()
    assert detail["repository"] == "kernels"
    assert [(run["attempt"], run["state"], run["message"]) for run in detail["runs"]] == [
        (1, "failed", stored("the machine went away")),
        (2, "done", ""),
    ]
    results = {result["variant"]: result for result in detail["results"]}
    assert (results["v1"]["status"], results["v1"]["median_ns"]) == ("ok", 1234.0)
    assert (results["v2"]["status"], results["v2"]["message"], results["v2"]["median_ns"]) == (
        "timed_out",
        stored("it was timed_out"),
        None,
    )
    assert shlex.split(detail["replay"]) == [
        "warpwatch",
        "submit",
        "--repository",
        "kernels",
        "--commit",
        lab.shas[1],
        "--kinds",
        "bench",
        "--operators",
        "square",
        "--variants",
        "v1",
        "--variants",
        "v2",
        "--cases",
        CASES[0],
        "--device",
        "test-cpu",
        "--all",
        "--wait",
    ]
    problem(client.get("/api/v1/jobs/999"), 404)


def test_every_result_comes_with_its_probes_and_a_command_that_needs_no_server(client: TestClient, lab: Lab) -> None:
    probe = Probe("guard bands", "wrong", "it writes beside memory that it allocated")
    job = lab.submit("check", 1, seed=7, sanitize="address")
    row = Finding("v1", CASES[0], Status.WRONG, "guard bands: …", CheckReply(Status.WRONG, "", 7, [], [probe]))
    lab.finish(job, lab.outcome([row]))
    (result,) = client.get(f"/api/v1/jobs/{job}").json()["results"]
    assert result["details"]["probes"] == [to_json(probe)]
    expected = [
        "warpwatch",
        "run",
        "--commits",
        lab.shas[1],
        "--kinds",
        "check",
        "--operators",
        "square",
        "--variants",
        "v1",
        "--cases",
        CASES[0],
        "--seed",
        "7",
        "--sanitize",
        "address",
        "--device",
        "cpu",
        "--output",
        "replay.wwb",
    ]
    assert shlex.split(result["replay"]) == expected
    (cell,) = client.get(f"/api/v1/commits/{lab.shas[1]}/cells", params={"repository": "kernels"}).json()["items"]
    assert shlex.split(cell["replay"]) == expected
    for page in (f"/jobs/{job}", f"/commits/{lab.shas[1]}"):
        text = client.get(page, headers={"accept": "text/html"}).text
        assert "--seed 7 --sanitize address" in text
    assert "it writes beside memory" in client.get(f"/jobs/{job}").text


def test_curves_of_a_result_are_kept_and_drawn(client: TestClient, lab: Lab) -> None:
    curves = Curves("weights left", "accuracy", [240.0, 23.0], {"winning <ticket>": [0.96, 0.75]})
    job = lab.submit("check", 1)
    lab.finish(job, lab.outcome([Finding("v1", CASES[0], Status.OK, "", CheckReply(Status.OK, "", 7, curves=curves))]))
    (result,) = client.get(f"/api/v1/jobs/{job}").json()["results"]
    assert from_json(Curves, result["details"]["curves"]) == curves
    page = client.get(f"/jobs/{job}", headers={"accept": "text/html"}).text
    assert "accuracy over weights left" in page
    assert "winning &lt;ticket&gt;: 0.96" in page
    lab.bench(1, {("v1", CASES[0]): 1000.0})
    page = client.get("/kernels/square").text
    assert "At 23 weights left: winning &lt;ticket&gt; 0.750" in page.replace("\N{THIN SPACE}", " ")
    assert "winning &lt;ticket&gt;: 0.96" in page


def test_log_of_every_attempt(client: TestClient, lab: Lab) -> None:
    job = lab.submit("check", 0)
    assert client.get(f"/api/v1/jobs/{job}/log").json()["items"] == []
    first = lab.begin(job)
    with lab.database.session() as session:
        runs.append_log(session, first, "one\n")
        runs.append_log(session, first, "two\n")
        runs.fail_run(session, first, "lost", retry=True)
    second = lab.begin(job)
    with lab.database.session() as session:
        runs.append_log(session, second, "again\n")

    def texts(**params: int) -> list[str]:
        return [piece["text"] for piece in client.get(f"/api/v1/jobs/{job}/log", params=params).json()["items"]]

    assert texts() == ["again\n"]
    assert texts(run=first) == ["one\n", "two\n"]
    piece = client.get(f"/api/v1/jobs/{job}/log", params={"run": first, "limit": 1}).json()["items"][0]
    assert texts(run=first, after=piece["id"]) == ["two\n"]
    other = lab.begin(lab.submit("check", 1))
    problem(client.get(f"/api/v1/jobs/{job}/log", params={"run": other}), 404)


def test_cancel_and_retry_a_job(client: TestClient, lab: Lab) -> None:
    job = lab.submit("check", 0)
    problem(client.post(f"/api/v1/jobs/{job}/retry"), 409)
    run = lab.begin(job)
    assert client.post(f"/api/v1/jobs/{job}/cancel").json()["job"]["state"] == "cancelled"
    with lab.database.session() as session:
        assert runs.heartbeat(session, run) == "cancel"
    assert client.post(f"/api/v1/jobs/{job}/cancel").json()["job"]["state"] == "cancelled"
    assert client.post(f"/api/v1/jobs/{job}/retry").json()["job"]["state"] == "queued"
    for verb in ("cancel", "retry"):
        problem(client.post(f"/api/v1/jobs/999/{verb}"), 404)


def events(settings: Settings, job: int, last_event_id: int | None = None) -> Iterator[tuple[str, Any, str | None]]:
    """(event, data, id) as a browser's EventSource reads them, as they come."""
    headers = {} if last_event_id is None else {"Last-Event-ID": str(last_event_id)}
    request = urllib.request.Request(f"{settings.server_url}/api/v1/jobs/{job}/events", headers=headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        event: dict[str, str] = {}
        for line in answer:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                event[name] = value
            elif "event" in event:
                yield event["event"], json.loads(event["data"]), event.get("id")
                event = {}


@pytest.mark.timeout(60)
def test_a_job_is_followed_live(served: Settings, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    # News must come by announcement.
    monkeypatch.setattr(live, "LOOK_AGAIN_SECONDS", 3600.0)
    job = lab.submit("check", 0)
    stream = events(served, job)
    kind, state, _ = next(stream)
    assert (kind, state["state"], state["position"]) == ("state", "queued", 0)
    run = lab.begin(job)
    kind, state, _ = next(stream)
    assert (kind, state["state"], state["run_id"]) == ("state", "running", run)
    with lab.database.session() as session:
        runs.append_log(session, run, "compiling\n")
    kind, piece, piece_id = next(stream)
    assert (kind, piece["text"], piece["run"]) == ("log", "compiling\n", run)
    with lab.database.session() as session:
        runs.set_progress(session, run, 1, 4, "v1")
    assert next(stream)[:2] == ("progress", {"done": 1, "total": 4, "text": "v1", "cell": None})
    with lab.database.session() as session:
        runs.append_log(session, run, "checking\n")
        runs.finish_run(session, run, lab.outcome([]))
    rest = list(stream)
    assert [(kind, data.get("state") or data.get("text")) for kind, data, _ in rest] == [
        ("state", "done"),
        ("log", "checking\n"),
        ("end", "done"),
    ]
    resumed = [data["text"] for kind, data, _ in events(served, job, int(piece_id or 0)) if kind == "log"]
    assert resumed == ["checking\n"]


@contextmanager
def unreachable(database: str) -> Iterator[None]:
    """The database of this URL refuses everybody."""
    url = make_url(database)
    with psycopg.connect(url.set(database="postgres").render_as_string(False), autocommit=True) as other:
        allow = f'ALTER DATABASE "{url.database}" ALLOW_CONNECTIONS '
        other.execute(allow + "false")
        try:
            other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [url.database])
            yield
        finally:
            other.execute(allow + "true")


def test_following_survives_an_outage_of_the_database(
    served: Settings, lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live, "LOOK_AGAIN_SECONDS", 0.1)
    caplog.set_level("INFO", live.__name__)
    job = lab.submit("check", 0)
    run = lab.begin(job)
    stream = events(served, job)
    assert next(stream)[0] == "state"
    with unreachable(lab.database.url):
        wait_until(lambda: f"job {job} is not followed for now" in caplog.text, 15, explain=lambda: caplog.text)
    # From now on only a server that listens again hears of news.
    monkeypatch.setattr(live, "LOOK_AGAIN_SECONDS", 3600.0)
    with lab.database.session() as session:
        runs.append_log(session, run, "still here\n")
        runs.finish_run(session, run, lab.outcome([]))
    assert [data["text"] for kind, data, _ in stream if kind == "log"] == ["still here\n"]
    # All tests share the connections that the outage ended.
    lab.database.close()


def test_following_an_unknown_job(client: TestClient) -> None:
    problem(client.get("/api/v1/jobs/999/events"), 404)


def test_a_job_that_is_deleted_while_it_is_read_is_unknown(
    client: TestClient, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = lab.submit("check", 0)

    def fetch_and_delete(*words: Any, **fields: Any) -> Any:
        found = fetch_one(*words, **fields)
        with lab.database.session() as other:
            other.execute(text("DELETE FROM jobs"))
        return found

    monkeypatch.setattr("warpwatch.db.reads.work.fetch_one", fetch_and_delete)
    assert client.get(f"/api/v1/jobs/{job}").status_code == 404
