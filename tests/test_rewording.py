"""Nothing is decided by the words of a message: tests of every such decision pass with all messages replaced."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests import rewording
from warpwatch.contract.outcome import Comparison, Finding
from warpwatch.contract.words import Status

ROOT = Path(__file__).parent.parent
REPRESENTATIVE = (
    "tests/db/test_runs.py::test_a_failure_is_retried_only_as_often_as_allowed",
    "tests/pages/test_states.py::test_example_data_is_labelled_and_is_not_what_one_sees_first",
    "tests/server/test_alarms.py::test_an_unfit_device",
    "tests/server/test_alarms.py::test_an_operator_that_got_no_times_where_others_did",
    "tests/server/test_held.py::test_another_environment_fails_nothing",
    "tests/server/test_held.py::test_a_base_that_cannot_be_measured_is_no_fault_of_the_change",
    "tests/server/test_unchanged.py::test_an_unchanged_operator_is_done_and_says_since_when",
    "tests/server/test_unchanged.py::test_every_page_says_of_which_commit_an_unchanged_one_is",
    "tests/worker/test_comparison.py",
    "tests/worker/test_gate.py::test_the_job_waits_again_and_fails_after_its_last_attempt",
)


@pytest.mark.timeout(600)
def test_decisions_do_not_depend_on_words() -> None:
    plain = [
        f"-pno:{plugin}" for plugin in ("cacheprovider", "schemathesis", "playwright", "base_url", "hypothesispytest")
    ]
    command = [sys.executable, "-m", "pytest", "--reword", "-q", *plain, *REPRESENTATIVE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


def test_every_message_is_replaced_at_the_door(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from warpwatch.db import migrate

    with migrate.scratch_database(postgres_url) as url:
        migrate.upgrade(url)
        rewording.reword_database(url)
        with psycopg.connect(url) as connection:
            connection.execute("INSERT INTO repositories (name, url) VALUES ('kernels', '')")
            columns = "repository_id, name, kind, cron, request, budget_minutes, message"
            connection.execute(f"INSERT INTO schedules ({columns}) VALUES (1, 's', 'suite', '', '{{}}', 1, 'one turn')")
            (row,) = connection.execute("SELECT message FROM schedules").fetchall()
            tables = {name for (name,) in connection.execute(_MESSAGES)}
    assert row == (rewording.reworded("one turn"),)
    assert tables == set(rewording.TABLES)
    rewording.reword_contract(monkeypatch)
    assert Finding("v1", "n=1", Status.WRONG, "by 3 ulp").message == rewording.reworded("by 3 ulp")
    assert Comparison("v1", "n=1", "hot", "1", Status.OK).message == ""


_MESSAGES = (
    "SELECT table_name FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name)"
    " WHERE table_schema = 'public' AND column_name = 'message' AND table_type = 'BASE TABLE'"
)
