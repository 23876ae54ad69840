"""Commands in comments of pull requests: of members alone, forks after a word, answers in the comment."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.builders import Lab
from tests.server.forges import (
    BOT,
    Forge,
)
from tests.server.test_code import problem
from tests.server.test_forge import (
    API,
    LATE,
    LINK,
    STRANGER,
    end,
    forge,
    lab,
    linked,
    notifier,
    open_pull,
    pull,
    say,
    sent,
    settings,
    submissions,
)
from tests.server.test_hooks import github as send
from warpwatch.server.intake.comment_commands import CommandVerb, parse_command
from warpwatch.server.threads.forge_notifier import ForgeNotifier

__all__ = ["forge", "lab", "linked", "notifier", "settings"]


@pytest.mark.usefixtures("linked")
def test_a_member_asks_for_an_operator(client: TestClient, lab: Lab, forge: Forge, notifier: ForgeNotifier) -> None:
    first = open_pull(client, forge, lab, 7, 3).json()["submission_id"]
    answer = say(client, "/warpwatch bench square\nplease")
    assert (answer.status_code, answer.json()["submission_id"]) == (200, None)
    say(client, "/warpwatch bench square\nplease")
    notifier.sweep()
    asked = submissions(client)[-1]
    assert (asked["id"] > first, asked["origin"]) == (True, "comment")
    assert len(submissions(client)) == 2, "the same event again makes nothing"
    assert asked["request"]["operators"] == ["square"]
    assert forge.reactions == [(1, "+1")]
    (entry,) = [row for row in client.get(f"{API}/audit").json()["items"] if row["caller"] == "github:ann"]
    assert entry["path"].endswith("/warpwatch bench square")
    end(client, lab, first)
    end(client, lab, asked["id"])
    notifier.sweep()
    names = sorted(run["name"] for run in forge.check_runs.values())
    assert names == ["warpwatch", "warpwatch: square"], "a part does not stand for the whole"
    (comment,) = forge.bodies_of(7)
    assert f"/runs/{first})" in comment
    assert f"[submission {asked['id']}]" in comment


@pytest.mark.usefixtures("linked")
@pytest.mark.parametrize(
    "user", [STRANGER, ("ann", 2), ("../../app", 1), ("ann?x=", 1), ("ann/permission#", 1)], ids=str
)
def test_who_is_no_member_only_gets_a_thumb_down(
    client: TestClient, lab: Lab, forge: Forge, notifier: ForgeNotifier, user: tuple[str, int]
) -> None:
    """The forge is asked; what the event says of its author, and a name with a path in it, decide nothing."""
    open_pull(client, forge, lab, 7, 3)
    notifier.sweep()
    before = forge.bodies_of(7)
    say(client, "/warpwatch bench square", user)
    notifier.sweep()
    assert len(submissions(client)) == 1
    assert forge.reactions == [(1, "-1")]
    assert forge.bodies_of(7) == before


@pytest.mark.usefixtures("linked")
@pytest.mark.parametrize(
    "words",
    [
        "/warpwatch",
        "/warpwatch help",
        "/warpwatch dance",
        "/warpwatch bench nothing",
        "/warpwatch bench <b>@everyone</b>](http://evil.example)",
    ],
)
def test_what_is_no_command_is_answered_in_the_comment(
    client: TestClient, lab: Lab, forge: Forge, notifier: ForgeNotifier, words: str
) -> None:
    open_pull(client, forge, lab, 7, 3)
    notifier.sweep()
    (before,) = forge.bodies_of(7)
    say(client, words)
    notifier.sweep()
    (after,) = forge.bodies_of(7)
    assert len(after) > len(before)
    assert parse_command(after) is None
    assert not any(part in after for part in ("<b>", "@everyone", "](http://evil"))
    assert len(submissions(client)) == 1
    assert forge.reactions == [(1, "+1" if parse_command(words).verb is CommandVerb.HELP else "-1")]  # type: ignore[union-attr]


@pytest.mark.usefixtures("linked")
def test_a_fork_waits_for_a_word_of_a_member(
    client: TestClient, lab: Lab, forge: Forge, notifier: ForgeNotifier
) -> None:
    open_pull(client, forge, lab, 7, 4, is_fork=True)
    notifier.sweep()
    (waiting,) = forge.bodies_of(7)
    assert f"/warpwatch allow {lab.shas[4]}" in waiting
    say(client, "/warpwatch bench square", comment=1)
    say(client, "/warpwatch allow", STRANGER, comment=2)
    notifier.sweep()
    assert submissions(client) == []
    say(client, "/warpwatch allow", comment=3)
    notifier.sweep()
    (row,) = submissions(client)
    assert (row["request"]["commits"], row["origin"]) == (lab.shas[4], "comment")
    assert forge.reactions == [(1, "-1"), (2, "-1"), (3, "+1")]
    say(client, "/warpwatch bench square", comment=4)
    notifier.sweep()
    assert len(submissions(client)) == 2
    end(client, lab, row["id"])
    notifier.sweep()
    (comment,) = forge.bodies_of(7)
    assert comment.startswith(client.get(f"{API}/submissions/{row['id']}/report.md").text)


@pytest.mark.usefixtures("linked")
def test_a_word_is_for_the_commit_that_the_member_saw(
    client: TestClient, lab: Lab, forge: Forge, notifier: ForgeNotifier
) -> None:
    """Whatever its author pushes meanwhile, and whether or not the event of that came."""
    open_pull(client, forge, lab, 7, 3, is_fork=True)
    forge.pulls[7] = pull(lab, 7, 4)["pull_request"] | {"head": {"sha": lab.shas[4], "repo": None}}
    say(client, "/warpwatch allow", comment=1)
    say(client, "/warpwatch allow", comment=2)
    say(client, f"/warpwatch allow {lab.shas[3]}", comment=3)
    notifier.sweep()
    assert submissions(client) == []
    # Pushed in the second of the comment.
    open_pull(client, forge, lab, 7, 4, at=LATE, is_fork=True)
    say(client, "/warpwatch allow", comment=4)
    notifier.sweep()
    assert submissions(client) == []
    say(client, f"/warpwatch allow {lab.shas[4]}", comment=5)
    notifier.sweep()
    (row,) = submissions(client)
    assert row["request"]["commits"] == lab.shas[4]
    assert forge.reactions == [(1, "-1"), (2, "-1"), (3, "-1"), (4, "-1"), (5, "+1")]


@pytest.mark.parametrize(
    "message",
    [
        {"action": "edited"},
        {"issue": {"number": 7}},
        {"comment": {"id": 1, "body": "/warpwatch bench", "created_at": LATE, "user": BOT}},
        {"comment": {"id": 1, "body": None, "created_at": LATE, "user": {"login": "ann", "id": 1}}},
        {"comment": {"id": 1, "body": "see /warpwatch bench", "created_at": LATE, "user": {"login": "ann", "id": 1}}},
    ],
)
@pytest.mark.usefixtures("linked")
def test_comments_that_command_nothing(client: TestClient, message: dict[str, Any]) -> None:
    user = {"login": "ann", "id": 1, "type": "User"}
    comment = {"id": 1, "body": "/warpwatch bench", "created_at": LATE, "user": user}
    usual = {"action": "created", "issue": {"number": 7, "pull_request": {}}, "comment": comment}
    answer = send(client, "issue_comment", usual | message)
    assert answer.status_code == 200, answer.text
    assert [row["kind"] for row in sent(client)] == ["link"]


@pytest.mark.usefixtures("linked")
@pytest.mark.parametrize(
    "part", [{"id": "1"}, {"id": -1}, {"created_at": "yesterday"}, {"user": {"login": 5, "id": 1}}]
)
def test_comments_in_an_unknown_form(client: TestClient, part: dict[str, Any]) -> None:
    user = {"login": "ann", "id": 1, "type": "User"}
    comment = {"id": 1, "body": "/warpwatch bench", "created_at": LATE, "user": user} | part
    message = {"action": "created", "issue": {"number": 7, "pull_request": {}}, "comment": comment}
    assert send(client, "issue_comment", message).status_code == 400


def test_without_a_link_comments_command_nothing(client: TestClient, lab: Lab) -> None:
    assert say(client, "/warpwatch bench").status_code == 200
    assert sent(client) == []
    problem(client.get(LINK), 404)


@pytest.mark.parametrize(
    ("words", "verb", "operators", "sha"),
    [
        ("/warpwatch bench a b a", CommandVerb.BENCH, ("a", "b"), None),
        ("  \n/warpwatch   allow\r\nyes", CommandVerb.ALLOW, (), None),
        (f"/warpwatch allow {'a' * 40}", CommandVerb.ALLOW, (), "a" * 40),
        ("/warpwatch allow aaaaaaa", CommandVerb.UNKNOWN, (), None),
        ("/warpwatch allow a b", CommandVerb.UNKNOWN, (), None),
        ("/warpwatch " + "x" * 2000, CommandVerb.UNKNOWN, (), None),
        ("/warpwatch bench " + "x " * 100, CommandVerb.BENCH, ("x",), None),
        ("/warpwatch bench " + "x " * 490, CommandVerb.UNKNOWN, (), None),
    ],
)
def test_commands(words: str, verb: CommandVerb, operators: tuple[str, ...], sha: str | None) -> None:
    parsed = parse_command(words)
    assert parsed is not None
    assert (parsed.verb, parsed.operators, parsed.sha) == (verb, operators, sha)


@pytest.mark.parametrize("words", ["", "\n", "/warpwatchbench", "hello\n/warpwatch bench", "> /warpwatch bench"])
def test_what_commands_nothing(words: str) -> None:
    assert parse_command(words) is None
