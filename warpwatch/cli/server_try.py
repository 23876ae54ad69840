"""`warpwatch try --server`: sends the working tree to a server, waits in line, and prints what its device found."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from uuid import uuid4

from rich.console import Console

from warpwatch.cli.client import ApiError, Client, submission_bars
from warpwatch.cli.repository import choose_repository
from warpwatch.contract.codec import from_json
from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.environment import Environment
from warpwatch.contract.messages import BuildReply
from warpwatch.contract.outcome import Comparison, Finding, Outcome
from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import JobKind, JobState, Status
from warpwatch.patches import make_patch
from warpwatch.settings import load_settings

if TYPE_CHECKING:
    from warpwatch.cli.working_tree import OperatorResult, WorkingTree, WorkingTreeRequest

POLL_SECONDS = 0.5
_LOCAL = re.compile(r"auto|cpu|cuda(:\d+)?")
_ENDED = (JobState.DONE, JobState.FAILED, JobState.CANCELLED)
console = Console(stderr=True, highlight=False)


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """Where a working tree is measured. url: None means WARPWATCH_URL. device: a key of the server's, or cpu, cuda or
    auto where the server has one such. name: of the repository there; None means that of the checkout."""

    url: str | None
    device: str
    name: str | None


def is_remote(server: str | None, device: str) -> bool:
    """Whether a server is asked: it is named, or the device has a name that none here has."""
    return server is not None or _LOCAL.fullmatch(device) is None


def try_on_server(
    request: WorkingTreeRequest, tree: WorkingTree, base_sha: str, target: ServerTarget
) -> list[tuple[str, OperatorResult]]:
    """The results of the server's device, by operator; ApiError where the device could not measure."""
    client = Client(target.url or load_settings().server_url)
    name, _ = choose_repository(client, target.name, tree.root)
    device = _choose_device(client, target.device)
    content = make_patch(tree.root, base_sha, tree.take())
    stored = client.send(f"/patches?{urlencode({'repository': name, 'base': base_sha})}", content)
    operators = request.operators or stored["operators"]
    if not operators:
        raise ValueError(f"no operator differs from {short_sha(base_sha)}; name one, or another --base")
    spec = request.spec
    body = {
        "repository": name,
        "commits": stored["sha"],
        "base": stored["base_sha"],
        "kinds": [JobKind.CHECK, JobKind.COMPARE],
        "operators": operators,
        "variants": spec.variants or [],
        "cases": [*request.cases, *request.shapes],
        "suite": spec.suite,
        "case_limit": spec.case_limit,
        "device": device["key"],
        "seed": spec.seed,
        "budget_ms": None if spec.budget_ns is None else max(1, round(spec.budget_ns / 1e6)),
    }
    if request.required is not None:
        body["require_detectable"] = request.required
    submission = client.post("/submissions", body, f"try-{uuid4()}")
    console.print(f"submission {submission['id']}: {client.url}/runs/{submission['id']}")
    jobs = _follow(client, submission["id"], device["name"])
    return [(operator, _result(client, device["kind"], operator, jobs)) for operator in operators]


def _choose_device(client: Client, wanted: str) -> dict[str, Any]:
    """The one device of the server that is meant."""
    rows: list[dict[str, Any]] = client.get("/devices")["items"]
    kind = wanted.partition(":")[0]
    chosen = [row for row in rows if wanted == row["key"]] or [
        row for row in rows if row["workers"] and (kind == row["kind"] or wanted == "auto")
    ]
    if len(chosen) != 1:
        known = ", ".join(row["key"] for row in rows) or "none; start a worker"
        raise ApiError(f"choose a device of the server with --device; it has {known}")
    return chosen[0]


def _follow(client: Client, number: int, device: str) -> list[dict[str, Any]]:
    """The jobs of the submission once all have ended; they are cancelled when somebody stops waiting."""
    with submission_bars(console, transient=True) as progress:
        bar = progress.add_task(device, total=None, note="")
        try:
            while True:
                jobs: list[dict[str, Any]] = client.get("/jobs", submission=number, limit=200)["items"]
                ended = [job for job in jobs if job["state"] in _ENDED]
                progress.update(bar, total=len(jobs), completed=len(ended), note=_note(jobs))
                if len(ended) == len(jobs):
                    return jobs
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            with suppress(ApiError):
                client.post(f"/submissions/{number}/cancel")
            raise


def _note(jobs: Sequence[dict[str, Any]]) -> str:
    """The step of the running job; before a job runs, the number of jobs that come first."""
    for job in jobs:
        if job["state"] == JobState.RUNNING:
            step = (job["progress"] or {}).get("text", "")
            return f"{job['kind']} {job['operator']} {step}".rstrip()
    positions = [job["position"] for job in jobs if job["position"] is not None]
    return f"{min(positions)} before it in line" if positions else ""


def _result(client: Client, device_kind: str, operator: str, jobs: Sequence[dict[str, Any]]) -> OperatorResult:
    from warpwatch.cli.result_table import ResultTable
    from warpwatch.cli.working_tree import OperatorResult, describe_code_changes

    table = ResultTable(device_kind)
    code: list[str] = []
    for job in sorted((job for job in jobs if job["operator"] == operator), key=lambda job: int(job["id"])):
        if job["state"] != JobState.DONE:
            raise ApiError(f"job {job['id']} {job['state']}: {job['message']}")
        stored = client.get(f"/jobs/{job['id']}/outcome")["outcome"]
        # The part of the outcome that is printed.
        outcome = Outcome(
            from_json(Environment, stored["environment"]),
            findings=[
                Finding(row["variant"], row["case"], Status(row["status"]), row["message"])
                for row in stored["findings"]
            ],
            comparisons=[from_json(Comparison, row) for row in stored["comparisons"]],
            build=_build(stored["build"]),
            base_build=_build(stored["base_build"]),
        )
        spec = JobSpec.from_stored(client.get(f"/jobs/{job['id']}")["spec"])
        table.add(JobKind(job["kind"]), outcome, spec.stop)
        if outcome.build is not None and outcome.base_build is not None:
            code = describe_code_changes(outcome.base_build.resources, outcome.build.resources)
    return OperatorResult(table, code)


def _build(stored: dict[str, Any] | None) -> BuildReply | None:
    return from_json(BuildReply, stored) if stored is not None else None
