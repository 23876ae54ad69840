"""A team that only imports results: a slow-down shows everywhere that a measured one does, as suspected."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.builders import CASES, Lab, make_repository
from tests.server.forges import Forge
from tests.server.listener import listening
from tests.server.test_foreign import SUSPECTED, post, results
from tests.server.test_forge import forge, linked, notifier, settings
from warpwatch import git
from warpwatch.contract.words import Triage, Verdict
from warpwatch.db import regressions
from warpwatch.db.database import Database
from warpwatch.db.regressions import SeriesDecision
from warpwatch.server.history.mirror import Mirrors
from warpwatch.server.history.sources import SourceCache
from warpwatch.server.http.alarm_cache import Alarms
from warpwatch.server.judge import Judge
from warpwatch.server.judge.closing import close_changes
from warpwatch.server.threads import channel_notifier as threads
from warpwatch.server.threads.channel_notifier import ChannelNotifier
from warpwatch.server.threads.forge_notifier import ForgeNotifier
from warpwatch.server.verdicts.changes import AFTER
from warpwatch.settings import Settings

__all__ = ["forge", "linked", "notifier", "settings"]
COMMITS, STEP = 22, 10
"""Of the repository, and the index of the first slower one."""


@pytest.fixture
def lab(database: Database, tmp_path: Path) -> Lab:
    source = tmp_path / "source"
    return Lab(database, source, make_repository(source, COMMITS), tmp_path)


@pytest.mark.usefixtures("linked")
def test_a_step_at_the_eleventh_of_14_files_is_told_everywhere(
    client: TestClient, lab: Lab, settings: Settings, database: Database, forge: Forge, notifier: ForgeNotifier
) -> None:
    git.update_mirror(str(lab.source), settings.home)
    judge, people = Judge(settings, database), ChannelNotifier(settings, database, Alarms(settings), first_pause=0)
    imported: list[int] = []
    with listening() as heard:
        channel = {
            "repository": "kernels",
            "name": "on-call",
            "url": heard.url,
            "kinds": ["confirmed"],
            "secret": 20 * "s",
        }
        assert client.post("/api/v1/channels", json=channel).status_code == 201
        for index, sha in enumerate(lab.shas[:14]):
            microseconds = (130.0 if index >= STEP else 100.0) + 0.1 * (index % 3)
            answer = post(client, sha, results(microseconds))
            assert answer.status_code == 201, answer.text
            imported.append(answer.json()["submission_id"])
            if index >= STEP - 1:
                judge.sweep()
                notifier.sweep()
        people.sweep()
        people._pool.shutdown()
        titles = [body["title"] for _, _, body in heard.messages]
    (row,) = client.get("/api/v1/regressions", params=SUSPECTED).json()["items"]
    assert (row["phase"], row["base_sha"], row["head_sha"]) == ("unpaired", lab.shas[STEP - 1], lab.shas[STEP])
    assert len(titles) == 1
    assert "sums on Test CPU" in titles[0]
    assert titles[0].endswith("suspected, cannot be confirmed")
    kernels = {"repository": "kernels"}
    overview = client.get("/", params=kernels).text
    assert f"/regressions/{row['id']}" in overview
    assert "cannot be confirmed" in client.get("/regressions", params=kernels | {"tab": "suspected"}).text
    assert "1 suspected" in client.get("/api/v1/badges/kernels.svg").text
    report = client.get(f"/api/v1/submissions/{imported[STEP]}/report").json()
    assert [item["kind"] for item in report["rows"]] == ["suspected"]
    runs = {run["head_sha"]: run for run in forge.check_runs.values()}
    assert set(runs) == set(lab.shas[:14])
    shown = [lab.shas.index(sha) for sha, run in runs.items() if "suspected" in run["output"]["title"]]
    assert shown == [STEP], "the commit itself, as soon as its file is there"


@pytest.mark.usefixtures("linked")
@pytest.mark.parametrize("is_step", [pytest.param(False, marks=pytest.mark.nightly), True], ids=["nothing", "step"])
def test_an_outlier_of_a_busy_host_is_withdrawn_and_hides_no_step(
    client: TestClient,
    lab: Lab,
    settings: Settings,
    database: Database,
    forge: Forge,
    notifier: ForgeNotifier,
    is_step: bool,
) -> None:
    git.update_mirror(str(lab.source), settings.home)
    judge, behind = Judge(settings, database), 130.0 if is_step else 100.0
    people = ChannelNotifier(settings, database, Alarms(settings), first_pause=0)
    channel = {"repository": "kernels", "name": "on-call", "kinds": ["confirmed"], "secret": 20 * "s"}
    times = [100.0, 100.3, 99.8, 100.1, 100.2, 99.9, 100.0, 100.1, 230.0, behind, behind + 0.2, behind + 0.1]
    with listening() as heard:
        assert client.post("/api/v1/channels", json=channel | {"url": heard.url}).status_code == 201
        for sha, microseconds in zip(lab.shas, times, strict=False):
            assert post(client, sha, results(microseconds)).status_code == 201
            if microseconds == 230.0:
                judge.sweep()
                (row,) = client.get("/api/v1/regressions", params=SUSPECTED).json()["items"]
                assert (row["base_sha"], row["head_sha"]) == (lab.shas[7], lab.shas[8])
                notifier.sweep()
                people.sweep()
        judge.sweep()
        notifier.sweep()
        for _ in range(2):
            people._looked_at = -threads.ROUND_SECONDS
            people.sweep()
        people._pool.shutdown()
        messages = [body for _, _, body in heard.messages if body["regression_id"] == row["id"]]
    told, withdrawn = messages
    assert told["title"].endswith("suspected, cannot be confirmed")
    assert withdrawn["title"] == "kernels: sums on Test CPU: withdrawn: later readings show no such change"
    assert withdrawn["text"].splitlines() == [
        told["text"].splitlines()[0],
        "sums on Test CPU, program sum/n=8: later readings show no such change",
    ]
    assert (withdrawn["kind"], withdrawn["phase"], withdrawn["commit"]) == ("fixed", "dismissed", told["commit"])
    assert len(heard.messages) == 2 + is_step
    titles = {run["head_sha"]: run["output"]["title"] for run in forge.check_runs.values()}
    assert [lab.shas.index(sha) for sha, title in titles.items() if "suspected" in title] == [9] * is_step
    shown = client.get("/api/v1/regressions", params=SUSPECTED).json()["items"]
    assert [(item["base_sha"], item["head_sha"]) for item in shown] == [(lab.shas[7], lab.shas[9])] * is_step
    assert [item["ratio"] for item in shown] == pytest.approx([1.3] * is_step, abs=0.01)
    page = client.get(f"/regressions/{row['id']}").text
    assert "later readings show no such change" in page
    assert "1 suspected" in client.get("/api/v1/badges/kernels.svg").text or not is_step


@pytest.mark.parametrize("moved", [9, 6])
def test_a_step_of_nearly_all_series_is_said_to_be_rather_the_machines(
    client: TestClient, lab: Lab, settings: Settings, database: Database, moved: int
) -> None:
    git.update_mirror(str(lab.source), settings.home)
    for index, sha in enumerate(lab.shas[:8]):
        one = results(100.0 + 0.1 * (index % 3))
        step = [1.3 + number / 100 if index == 7 and number < moved else 1.0 for number in range(9)]
        one["benchmarks"] = [
            row | {"name": f"sum/{number}", "samples": [factor * sample for sample in row["samples"]]}
            for number, factor in enumerate(step)
            for row in one["benchmarks"]
        ]
        assert post(client, sha, one).status_code == 201
    Judge(settings, database).sweep()
    (row,) = client.get("/api/v1/regressions", params=SUSPECTED).json()["items"]
    page = client.get(f"/regressions/{row['id']}").text
    assert ("nearly all series moved alike here, by +34.0" in page) is (moved == 9)


def test_an_import_is_judged_beside_the_longer_one_of_another_repository(
    lab: Lab, settings: Settings, database: Database
) -> None:
    """Until its first verdict the branches of a repository lack the imported commits, so no page shows their points."""
    git.update_mirror(str(lab.source), settings.home)
    longer, other = lab, replace(lab, name="beside")
    cell = {("v1", CASES[0]): 20_000.0}
    first, second, third = (longer.bench(index, cell, origin="bundle") for index in range(3))
    alone = other.bench(0, cell, origin="bundle")
    Judge(settings, database).sweep()
    with database.session() as session:
        judged = list(session.scalars(text("SELECT id FROM jobs ORDER BY judged_at")))
    assert judged == [first, alone, second, third]


@pytest.mark.parametrize("behind", [pytest.param(7, marks=pytest.mark.nightly), 10], ids=["too early to tell", "over"])
def test_a_slow_down_that_later_readings_undo_is_open_nowhere(
    client: TestClient, lab: Lab, settings: Settings, database: Database, behind: int
) -> None:
    git.update_mirror(str(lab.source), settings.home)
    times = [20_000.0] * 6 + [26_000.0] * 6 + [20_000.0] * behind
    jobs = [lab.bench(at, {("v1", CASES[0]): ns + at % 3}, origin="bundle") for at, ns in enumerate(times)]
    near = [jobs[7], jobs[13]]
    with database.session() as session:
        session.execute(text("UPDATE jobs SET judged_at = now() WHERE id <> ALL(:near)"), {"near": near})
    Judge(settings, database).sweep()
    kernels = {"repository": "kernels"}
    rows = {row["direction"]: row for row in client.get("/api/v1/regressions", params=SUSPECTED).json()["items"]}
    slower, faster = rows["slower"], rows["faster"]
    assert (slower["head_sha"], faster["head_sha"]) == (lab.shas[6], lab.shas[12])
    is_over = behind >= AFTER
    ended = ("fixed", lab.shas[12]) if is_over else ("new", None)
    assert (slower["state"], slower["fixed_by_sha"], faster["state"]) == (*ended, "new")
    tabs = {
        tab: [row["id"] for row in client.get("/api/v1/regressions", params=kernels | {"tab": tab}).json()["items"]]
        for tab in ("open", "suspected", "closed")
    }
    assert tabs["open"] == []
    assert sorted(tabs["suspected"]) == sorted([faster["id"]] + [slower["id"]] * (not is_over))
    assert tabs["closed"] == [slower["id"]] * is_over
    suspected = 1 if is_over else 2
    assert client.get("/api/v1/home").json()["items"][0]["suspected"] == suspected
    assert f"{suspected} suspected" in client.get("/api/v1/badges/kernels.svg").text
    brief = client.get("/api/v1/regressions", params=kernels | {"tab": "suspected", "brief": "true"}).json()
    assert len(brief["items"]) == suspected
    for page in ("/", "/kernels/square"):
        shown = client.get(page, params=kernels).text
        assert f"/regressions/{faster['id']}" in shown
        assert (f"/regressions/{slower['id']}" in shown) != is_over, page
    submission = client.get(f"/api/v1/jobs/{jobs[6]}").json()["job"]["submission_id"]
    report = client.get(f"/api/v1/submissions/{submission}/report").json()
    assert [row["kind"] for row in report["rows"]] == ["suspected"] * (not is_over)


@pytest.mark.parametrize("is_tried_here", [False, True])
def test_history_ends_only_what_no_trial_here_confirmed(
    lab: Lab, settings: Settings, database: Database, is_tried_here: bool
) -> None:
    git.update_mirror(str(lab.source), settings.home)
    for at in range(3 + AFTER):
        lab.bench(at, {("v1", CASES[0]): 26_000.0 if at == 1 else 20_000.0}, origin="bundle")
    slower, _ = lab.confirm(0, 1)
    with database.session() as session:
        decision = SeriesDecision(1, Verdict.CONFIRMED, 1.3, 1.28, 1.32)
        regressions.decide(session, slower, Verdict.CONFIRMED, ratio=1.3, low=1.28, high=1.32, series=[decision])
        if not is_tried_here:
            session.execute(text("UPDATE submissions SET origin = 'bundle'"))
        faster = regressions.open_suspicion(
            session,
            operator_id=1,
            device_id=lab.device,
            direction="faster",
            ratio=1 / 1.3,
            series=[(1, 1 / 1.3)],
            base_commit_id=lab.commits[lab.shas[1]],
            head_commit_id=lab.commits[lab.shas[2]],
        )
        assert faster is not None
        for number in (slower, faster):
            regressions.settle(session, number)
    close_changes(database, Mirrors(settings, SourceCache()), 1, lab.device)
    with database.session() as session:
        state = session.scalar(text("SELECT state FROM regressions WHERE id = :id"), {"id": slower})
    assert state == (Triage.NEW if is_tried_here else Triage.FIXED)
