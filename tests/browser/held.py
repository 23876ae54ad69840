"""A commit with a baseline whose report has every kind of finding, and a code host that rejects statuses."""

from __future__ import annotations

import random

from tests.browser.operators import OPERATORS
from tests.browser.world import COMMITS, GPU_LATER, World, finish
from tests.builders import list_job_ids
from warpwatch.contract.outcome import Comparison, Finding, Outcome
from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import ForgeKind, ForgeState, Status
from warpwatch.db import callbacks, forge, submissions
from warpwatch.db.attempts import record_failure, record_sent
from warpwatch.db.reads.query import Session
from warpwatch.db.unjudged import mark_judged

RATIOS = {"v1": 1.0, "v2": 1.31, "v3": 1.04, "triton": 0.82}
URL = "https://api.github.com/repos/acme/kernels/statuses/{sha}"


def hold(world: World) -> None:
    """The newest commit but one, held against the one before it."""
    number, kron = COMMITS - 2, OPERATORS[0]
    head, base = world.commits[world.shas[number]], world.commits[world.shas[number - 1]]
    device = world.devices[GPU_LATER.device_key]
    jobs = [
        submissions.NewJob(
            kind, head, world.operators[operator], device, JobSpec(), base if kind == "compare" else None, same
        )
        for kind, operator, same in (
            ("check", "kron", None),
            ("bench", "kron", None),
            ("compare", "kron", None),
            ("compare", "square", world.shas[number - 1]),
        )
    ]
    asked = {"commits": world.shas[number], "base": "merge-base", "kinds": ["check", "bench"], "device": "all"}
    with world.database.session() as s:
        new = submissions.NewSubmission(world.repository, asked, jobs, "webhook", base_commit_id=base)
        made = submissions.create_submission(s, new)
        check, bench, compare, _ = list_job_ids(s, made)
        url = URL.replace("{sha}", world.shas[number])
        callbacks.tell(s, made, url, {"state": "pending", "description": "is being measured"}, is_final=False)
        first = callbacks.claim_due(s)
        assert first is not None
        record_sent(s, "callbacks", first.id)
    case = kron.cases[0][0]
    results = [
        Finding("v1", case, Status.OK),
        Finding("v3", case, Status.WRONG, "grad x is wrong: relative error 4.1e-02, allowed 2.3e-05"),
    ]
    finish(world, check, Outcome(GPU_LATER, findings=results))
    timed_out = Finding("v2", kron.cases[1][0], Status.TIMED_OUT, "took longer than 120 s")
    finish(world, bench, Outcome(GPU_LATER, findings=[Finding("v1", case, Status.OK), timed_out]))
    finish(
        world,
        compare,
        Outcome(GPU_LATER, comparisons=[_rounds(variant, case, ratio) for variant, ratio in RATIOS.items()]),
    )
    with world.database.session() as s:
        for job in (check, bench, compare):
            mark_judged(s, job)
        callbacks.tell(
            s,
            made,
            url,
            {"state": "failure", "description": "1 wrong, 2 slower, 1 failed, 1 faster, 4 compared, 1 unchanged"},
            is_final=True,
        )
        link_to_forge(s, world.repository, made)
        last = callbacks.claim_due(s)
        assert last is not None
        record_failure(s, "callbacks", last.id, "it was answered with 503", 3600)
    world.ids["held"] = made


def _rounds(variant: str, case: str, ratio: float) -> Comparison:
    rng = random.Random(variant)
    base = [21_000.0 * rng.gauss(1, 0.004) for _ in range(14)]
    return Comparison(
        variant, case, "graph", "1", Status.OK, "", base, [value * ratio * rng.gauss(1, 0.002) for value in base]
    )


def link_to_forge(s: Session, repository_id: int, submission_id: int) -> None:
    """A link that worked once, and is refused now."""
    forge.set_link(s, repository_id, forge.NewForgeLink(ForgeKind.GITHUB, "acme/kernels", files_issues=True))
    forge.queue_check_run(s, repository_id, submission_id, forge.PENDING)
    forge.queue_check_run(s, repository_id, submission_id, forge.FINAL)
    while (due := forge.claim_message(s)) is not None:
        record_sent(s, "forge_messages", due.id)
    change = forge.record_change(s, repository_id, 7, "a" * 40, None, is_fork=True)
    forge.queue_comment(s, repository_id, change)
    due = forge.claim_message(s)
    assert due is not None
    trouble = "POST /repos/acme/kernels/issues/7/comments was answered with 403"
    record_failure(s, "forge_messages", due.id, trouble, None)
    forge.set_link_state(s, repository_id, ForgeState.REFUSED, trouble)
    forge.queue_comment(s, repository_id, change)
