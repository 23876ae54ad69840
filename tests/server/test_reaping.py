"""Jobs of dead workers go back into the queue, whatever else the server has to do."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from sqlalchemy import select

from tests.builders import Lab
from tests.waiting import wait_until
from warpwatch.contract.words import JobState
from warpwatch.db.models import JobRecord
from warpwatch.server.app import create_app
from warpwatch.server.judge import Judge
from warpwatch.settings import Settings

LEASE = 0.5


def test_a_lost_job_is_given_back_while_the_judge_is_busy(
    lab: Lab, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, done = threading.Event(), threading.Event()

    def work(judge: Judge) -> None:
        busy.set()
        done.wait(30)

    monkeypatch.setattr(Judge, "sweep", work)
    job_id = lab.submit("bench", 0)
    lab.begin(job_id)
    app = create_app(replace(settings, lease_seconds=LEASE), lab.database)
    threads = {thread.name: thread for thread in app.state.threads}
    try:
        for name in ("judge", "reaper"):
            threads[name].start()
        assert busy.wait(10)
        # The judge is busy for 30 s.
        wait_until(lambda: state_of(lab, job_id) == JobState.QUEUED, 20)
    finally:
        done.set()
        for name in ("judge", "reaper"):
            threads[name].stop()


def state_of(lab: Lab, job_id: int) -> str:
    with lab.database.session() as session:
        return str(session.execute(select(JobRecord.state).where(JobRecord.id == job_id)).scalar_one())
