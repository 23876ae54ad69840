"""Children of one commit start, load, rehearse and end together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.worker.conftest import Diary, Repository
from warpwatch.contract.catalogue import Catalogue
from warpwatch.contract.environment import Environment
from warpwatch.contract.messages import SampleReply
from warpwatch.contract.words import Status
from warpwatch.worker import headers
from warpwatch.worker.child import ChildFailure
from warpwatch.worker.crowd import drop_at_once, drop_idle_at_once, load_at_once, rehearse_at_once
from warpwatch.worker.reporter import Stopped
from warpwatch.worker.sanitizers import Sanitizer
from warpwatch.worker.tools import Tools

CASE = "n=100,f32,fwd"


def test_children_start_and_load_at_once_and_serve_one_after_the_other(
    repository: Repository, good: str, tools: Tools, diary: Diary
) -> None:
    (checkout,) = tools.checkouts(str(repository.path), [good], diary)
    checkout.drop_child()
    checkout.start_spares(2, diary)
    assert len(checkout._spares) == 2
    load_at_once([checkout], "probe", diary)
    checkout.start_spares(1, diary)
    (spare,) = checkout._spares
    first = checkout.environment(diary)
    assert checkout._child is not spare
    checkout.drop_child()
    assert replace(checkout.ask(Environment, "environment", 60, diary), card=first.card) == first
    assert checkout._child is spare
    assert not checkout._spares
    checkout.drop_child()
    assert not spare.alive


def test_retired_children_live_until_all_idle_ones_end(
    repository: Repository, good: str, tools: Tools, diary: Diary
) -> None:
    (checkout,) = tools.checkouts(str(repository.path), [good], diary)
    checkout.drop_child()
    checkout.start_spares(3, diary)
    children = list(checkout._spares)
    for _ in range(2):
        checkout.await_children(diary)
        checkout.retire_child()
    checkout.await_children(diary)
    assert all(child.alive for child in children)
    drop_idle_at_once([checkout])
    assert [child.alive for child in children] == [False, False, True]
    drop_at_once([checkout])
    assert not any(child.alive for child in children)


def test_no_child_that_began_without_a_sanitizer_serves_one(
    repository: Repository, good: str, tools: Tools, diary: Diary
) -> None:
    (checkout,) = tools.checkouts(str(repository.path), [good], diary)
    checkout.start_spares(1, diary)
    (spare,) = checkout._spares
    checkout.await_spares(diary)
    checkout.sanitize(Sanitizer("memcheck"))
    assert not spare.alive
    assert not checkout._spares


def test_a_child_that_would_make_its_own_headers_ends_once_there_are_some(
    repository: Repository, good: str, tools: Tools, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Path | None] = [None]
    monkeypatch.setattr(headers, "find", lambda *_: found[0])
    (checkout,) = tools.checkouts(str(repository.path), [good], diary)
    (child,) = checkout.await_children(diary)
    checkout.renew_child()
    assert child.alive, "there are none"
    (repository.path / "headers" / headers._HEADERS).mkdir(parents=True)
    (repository.path / "headers" / headers._PROBES).mkdir(parents=True)
    found[0] = repository.path / "headers"
    checkout.renew_child()
    assert not child.alive
    (child,) = checkout.await_children(diary)
    checkout.renew_child()
    assert child.alive, "it uses them"


def test_children_that_cannot_rehearse_measure_all_the_same(
    repository: Repository, good: str, tools: Tools, diary: Diary
) -> None:
    """Without a GPU there is no CUDA graph to rehearse with."""
    (checkout,) = tools.checkouts(str(repository.path), [good], diary)
    checkout.start_spares(2, diary)
    load_at_once([checkout], "probe", diary)
    children = checkout.await_children(diary)
    rehearse_at_once([checkout], "probe", "ok", CASE, 0, diary)
    assert [*checkout.await_children(diary)] == children
    names = {"operator": "probe", "variant": "ok", "case": CASE}
    assert checkout.ask(SampleReply, "prepare", 60, diary, **names).status is Status.OK
    checkout.close()


def test_children_that_cannot_load_are_closed_and_the_next_says_why(
    repository: Repository, good: str, tools: Tools, diary: Diary
) -> None:
    sha = repository.commit("leaves", {"kernels/probe.py": "import os\nos._exit(3)\n"})
    (checkout,) = tools.checkouts(str(repository.path), [sha], diary)
    checkout.start_spares(2, diary)
    children = list(checkout._spares)
    load_at_once([checkout], "probe", diary)
    assert not any(child.alive for child in children)
    assert not checkout._spares
    with pytest.raises(ChildFailure) as failure:
        checkout.ask(Catalogue, "catalogue", 60, diary, operator="probe")
    assert failure.value.status is Status.CRASHED
    # Whoever is told to stop while children load leaves none behind.
    checkout.start_spares(2, diary)
    children = list(checkout._spares)
    with pytest.raises(Stopped):
        load_at_once([checkout], "probe", Diary(stop_after=0))
    assert not any(child.alive for child in children)
