"""Home: how every repository stands, in one table and its JSON."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.builders import CASES, Lab, make_repository
from warpwatch.contract.words import Status, TradeKind
from warpwatch.db import registry
from warpwatch.db.reads.home import HomeVerdict
from warpwatch.db.reads.lines import ALL_COMMITS
from warpwatch.db.reads.trades import count_costs, count_watched_costs, list_trades_of_line
from warpwatch.server.figures.home_strip import verdict_strip
from warpwatch.server.verdicts.trades import LEFT, open_costs

V1 = ("v1", CASES[0])


def rows(client: TestClient) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in client.get("/api/v1/home").json()["items"]}


def row(client: TestClient, name: str = "kernels") -> dict[str, Any]:
    return rows(client)[name]


def change(lab: Lab, verdict: str, *, state: str = "new", direction: str = "slower", days: int = 3) -> None:
    """A change between the first two commits of the lab, whose newer one is so many days old."""
    with lab.database.session() as session:
        base, head = (lab.commits[lab.shas[number]] for number in (0, 1))
        at = datetime.now(UTC) - timedelta(days=days)
        session.execute(text("UPDATE commits SET authored_at = :at WHERE id = :id"), {"at": at, "id": head})
        session.execute(
            text(
                "INSERT INTO regressions (operator_id, device_id, base_commit_id, head_commit_id, direction, verdict,"
                " state, ratio, low, high, decided_at, settled_at) SELECT operators.id, devices.id, :base, :head,"
                " :direction, :verdict, :state, 1.4, 1.3, 1.5, :at, :at FROM operators, devices LIMIT 1"
            ),
            {"base": base, "head": head, "direction": direction, "verdict": verdict, "state": state, "at": at},
        )


def test_a_row_counts_what_is_confirmed_suspected_and_failing(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {V1: 10_000.0})
    assert (row(client)["open"], row(client)["suspected"], row(client)["failing"]) == (0, 0, None), (
        "nothing was checked"
    )
    page = client.get("/").text
    assert "No open regressions.</p>" in page
    assert '<span class="muted">–</span>' in page
    change(lab, "confirmed")
    change(lab, "suspected", direction="broken")
    lab.check(1, {("v1", CASES[0]): Status.WRONG, ("v2", CASES[0]): Status.OK, ("v3", CASES[0]): Status.CRASHED})
    found = row(client)
    assert (found["open"], found["suspected"], found["failing"]) == (1, 1, 2)
    page = client.get("/").text
    assert "kernels needs attention." in page
    assert 'aria-label="1 open in kernels"' in page
    assert 'aria-label="1 suspected in kernels"' in page
    page = client.get("/overview").text
    assert ">2 checks fail.</span>" in page


def test_the_overview_names_operators_that_were_not_checked(client: TestClient, lab: Lab) -> None:
    lab.operators = ("square", "cube")
    lab.bench(0, {V1: 10_000.0})
    lab.check(0, {V1: Status.OK})
    assert " All checks pass." in client.get("/overview").text
    lab.bench(0, {V1: 10_000.0}, operator="cube")
    page = client.get("/overview").text
    assert " No check fails; 1 operator was not checked." in page
    assert "All checks pass" not in page


def test_open_costs_are_counted_by_the_rule_that_lists_them(client: TestClient, lab: Lab) -> None:
    """Made-up trades of six commits: what was given back, accepted or is only suspected does not count."""
    lab.bench(0, {V1: 10_000.0})
    chance = random.Random(54)
    kinds = [kind for kind in TradeKind if kind != TradeKind.MOVED]
    trades: list[dict[str, Any]] = [
        {
            "commit_id": lab.commits[sha],
            "kind": kind,
            "is_worse": is_worse,
            "is_exact": chance.random() < 0.8,
            "before": 1.0,
            "after": chance.choice([1.04, 1.1, 1.5, 2.5]) ** (1 if is_worse else -1),
            "accepted_by": "ann" if chance.random() < 0.1 else None,
        }
        for sha in lab.shas
        for kind in kinds
        for is_worse in (True, False)
        if chance.random() < 0.6
    ]
    sql = """
    INSERT INTO trades (commit_id, operator_id, device_id, variant_id, kind, is_worse, is_exact, is_faster, tensor,
                        metric, before, after, cases, accepted_by)
    SELECT :commit_id, operators.id, devices.id, variants.id, :kind, :is_worse, :is_exact, false, '', '', :before,
           :after, 1, :accepted_by
    FROM operators, devices, variants LIMIT 1
    """
    with lab.database.session() as session:
        session.execute(text(sql), trades)
        costs = [
            cost for cost in open_costs(list_trades_of_line(session, lab.repository, ALL_COMMITS)) if cost.is_exact
        ]
        assert 5 < len(costs) < sum(trade["is_worse"] for trade in trades) / 2
        assert count_watched_costs(session, [lab.repository], LEFT) == {lab.repository: len(costs)}
        assert count_costs(session, lab.repository, ALL_COMMITS, LEFT, "square") == len(costs)
        assert count_costs(session, lab.repository, ALL_COMMITS, LEFT, "cube") == 0
    assert row(client)["costs"] == len(costs)


def test_what_is_suspected_is_never_called_nothing(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {V1: 10_000.0})
    assert "No open regressions" in client.get("/").text
    change(lab, "suspected")
    page = client.get("/").text
    assert "No open regressions" not in page
    assert "1 change suspected" in page


def test_a_closed_change_is_drawn_and_not_counted(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {V1: 10_000.0})
    change(lab, "confirmed", state="fixed")
    found = row(client)
    assert found["open"] == 0
    assert [verdict["phase"] for verdict in found["verdicts"]] == ["fixed"]


def test_the_strip_holds_ninety_days(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {V1: 10_000.0})
    change(lab, "confirmed", days=120)
    found = row(client)
    assert (found["open"], found["verdicts"]) == (1, [])
    assert "0 confirmed changes in 90 days" in client.get("/").text


def test_the_queue_has_an_end_where_a_worker_serves_it(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {V1: 10_000.0})
    assert row(client)["queue_end"] is None
    lab.submit("bench", 1)
    found = row(client)
    assert (found["queued"], found["running"]) == (1, 0)
    assert datetime.fromisoformat(found["queue_end"]) > datetime.now(UTC)
    assert "1 job" in client.get("/").text


def test_examples_come_last_and_pages_follow_one_another(client: TestClient, lab: Lab) -> None:
    with lab.database.session() as session:
        registry.ensure_repository(session, "another", "/srv/another", is_example=True)
        registry.ensure_repository(session, "zlib", "/srv/zlib")
    assert list(rows(client)) == ["kernels", "zlib", "another"]
    first = client.get("/api/v1/home", params={"limit": 2}).json()
    second = client.get("/api/v1/home", params={"limit": 2, "before": first["next_before"]}).json()
    assert [item["name"] for item in first["items"] + second["items"]] == ["kernels", "zlib", "another"]
    assert second["next_before"] is None


def test_what_lies_on_another_branch_is_not_counted(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {V1: 10_000.0})
    change(lab, "confirmed")
    with lab.database.session() as session:
        session.execute(
            text(
                "INSERT INTO branches (repository_id, name, kind, is_watched, head_sha)"
                " SELECT id, 'main', 'branch', true, '' FROM repositories"
            )
        )
    found = row(client)
    assert (found["open"], found["verdicts"], found["newest_sha"]) == (0, [], None)


def test_a_name_or_address_that_cannot_be_registered_comes_back(client: TestClient, lab: Lab, tmp_path: Any) -> None:
    make_repository(tmp_path / "mine", commits=1)
    answer = client.post("/repositories", data={"name": "bad name", "url": str(tmp_path / "mine")})
    assert answer.status_code == 422
    assert 'value="bad name"' in answer.text
    assert 'id="name-error"' in answer.text
    assert '<details class="adding" id="add" open>' in answer.text


def test_changes_of_one_day_stand_side_by_side() -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    rows = [HomeVerdict(number, "square", "slower", "culprit", 1.4, now) for number in range(3)]
    places = [float(x) for x in re.findall(r'transform="translate\(([\d.]+) ', verdict_strip(rows, now))]
    assert places == [198.0, 208.0, 218.0]
