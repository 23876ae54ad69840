"""A job's specification: what is stored of it, and a command line that loses nothing."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from warpwatch.cli import run as run_command
from warpwatch.cli import submit as submit_command
from warpwatch.cli.app import app
from warpwatch.contract.codec import from_json, to_json
from warpwatch.contract.rounds import StopRule
from warpwatch.contract.spec import JobSpec, KnownNames, ProfilePlan
from warpwatch.contract.words import JobKind

CASES = ["n=1024,f32,fwd", "n=4096,f32,bwd"]
PLAN = ProfilePlan(wait=3, warm_up=0, active=4, repeat=2, counters=True)
OTHER: dict[str, tuple[JobKind, Any]] = {
    "suite": (JobKind.BENCH, "full"),
    "variants": (JobKind.BENCH, ["v1", "v3"]),
    "cases": (JobKind.BENCH, CASES),
    "case_limit": (JobKind.BENCH, 2),
    "seed": (JobKind.CHECK, 7),
    "budget_ns": (JobKind.BENCH, 40_000_001),
    "rounds": (JobKind.COMPARE, 36),
    "stop": (JobKind.COMPARE, StopRule(6, 1.005, 2.5, 1.01, 6)),
    "pairs": (JobKind.COMPARE, [("v1", CASES[0]), ("v3", CASES[1])]),
    "profile": (JobKind.PROFILE, PLAN),
    "sanitize": (JobKind.CHECK, "racecheck"),
    "known": (JobKind.CHECK, KnownNames(["v1", "v2"], CASES)),
    "toolchains": (JobKind.COMPARE, ("triton-3.6", "triton-3.7")),
}
"""A value that is not the default for every field, and a kind of job that it means something to."""
OF_A_SERVER = {"sealed", "step_seconds"}
"""Fields that only the jobs of a server's judgements have, and no command."""


def parse_run(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> run_command.RunRequest:
    """The request that the real command line makes of the words."""
    requests: list[run_command.RunRequest] = []

    def remember(settings: object, request: run_command.RunRequest, *rest: object) -> int:
        requests.append(request)
        return 0

    monkeypatch.setattr(run_command, "_run", remember)
    result = CliRunner().invoke(app, words[1:])
    assert result.exit_code == 0, result.output
    return requests[0]


CHANGES: dict[str, tuple[JobKind, dict[str, Any]]] = {
    **{
        field.name: (OTHER[field.name][0], {field.name: OTHER[field.name][1]})
        for field in fields(JobSpec)
        if field.name not in OF_A_SERVER
    },
    **{
        f"profile.{field.name}": (
            JobKind.PROFILE,
            {"profile": ProfilePlan(**{field.name: getattr(PLAN, field.name)})},
        )
        for field in fields(ProfilePlan)
    },
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_run_command_keeps_every_field(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    kind, change = CHANGES[name]
    spec = replace(JobSpec(), **change)
    assert spec != JobSpec()
    if kind == JobKind.COMPARE and spec.pairs is None:
        spec = replace(spec, pairs=[("v1", CASES[0])])
    base = "b" * 40 if kind == JobKind.COMPARE else None
    request = parse_run(monkeypatch, spec.to_command(kind, "a" * 40, "square", "cpu", base))
    assert (request.operators, request.kinds, request.base) == (["square"], [kind], base)
    assert request.spec_of(kind) == spec


@pytest.mark.parametrize("kind", JobKind)
def test_a_run_command_keeps_all_fields_at_once(monkeypatch: pytest.MonkeyPatch, kind: JobKind) -> None:
    spec = JobSpec(**{name: value for name, (_, value) in OTHER.items()})
    if kind != JobKind.COMPARE:
        spec = replace(spec, rounds=None, stop=None, pairs=None, toolchains=None)
    if kind in (JobKind.CHECK, JobKind.BENCH):
        spec = replace(spec, profile=ProfilePlan())
    if kind != JobKind.CHECK:
        spec = replace(spec, sanitize=None)
    base = "b" * 40 if kind == JobKind.COMPARE else None
    request = parse_run(monkeypatch, spec.to_command(kind, "a" * 40, "square", "cpu", base))
    assert request.spec_of(kind) == spec


NOTHING_PLANNED: dict[str, Any] = {
    "jobs": 0,
    "unchanged": 0,
    "kinds": {},
    "operators": [],
    "commits": [],
    "devices": [],
    "left_out": [],
}


@pytest.mark.parametrize("name", ["suite", "variants", "cases", "seed", "profile", "sanitize"])
def test_a_submit_command_keeps_what_a_submission_can_ask_for(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    kind, value = OTHER[name]
    spec = replace(JobSpec(), **{name: value})
    bodies: list[dict[str, Any]] = []

    class Server:
        url = "http://localhost"

        def __enter__(self) -> Server:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def post(self, path: str, body: dict[str, Any], key: str | None = None) -> dict[str, Any]:
            bodies.append(body)
            return {"id": 1, "counts": {}} | NOTHING_PLANNED

    monkeypatch.setattr(submit_command, "asking", Server)
    monkeypatch.setattr(submit_command, "choose_repository", lambda client, name: ("kernels", None))
    words = spec.to_submit_command("kernels", kind, "a" * 40, "square", "test-cpu")
    result = CliRunner().invoke(app, [word for word in words[1:] if word != "--wait"])
    assert result.exit_code == 0, result.output
    expected = to_json(value) if name == "profile" else value
    assert bodies[0] == bodies[1], "the plan is of another request"
    assert (bodies[1][name], bodies[1]["kinds"], bodies[1]["skip_unchanged"]) == (expected, [kind], False)


def test_what_is_stored_is_read_again() -> None:
    assert JobSpec().to_stored() == {"suite": "quick", "variants": None, "cases": None, "seed": 0}
    full = JobSpec(**{name: value for name, (_, value) in OTHER.items()})
    assert JobSpec.from_stored(full.to_stored()) == full
    assert from_json(JobSpec, to_json(full)) == full


def test_what_earlier_services_know_is_stored_as_they_read_it() -> None:
    assert JobSpec(stop=StopRule(6, 1.005)).to_stored()["stop"] == {"earliest": 6, "ratio": 1.005}
    assert JobSpec(stop=StopRule(6, 1.005, 2.5)).to_stored()["stop"]["seconds"] == 2.5
    assert JobSpec(stop=StopRule(6, 1.005, suspected=1.01)).to_stored()["stop"]["suspected"] == 1.01


def test_old_rows_read_on() -> None:
    assert JobSpec.from_stored({}) == JobSpec()
    assert JobSpec.from_stored({"profile": {"wait": 3}}).profile == ProfilePlan(wait=3)
    assert JobSpec.from_stored({"pairs": [["v1", CASES[0]]], "seed": 0, "rounds": 12}).rounds == 12
    odd = {"seed": "seven", "suite": "full", "surprise": 1, "profile": None, "variants": "v1"}
    assert JobSpec.from_stored(odd) == JobSpec(suite="full")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--kinds", "compare"], "--base"),
        (["--kinds", "check", "--base", "HEAD"], "--base"),
        (["--kinds", "dance"], "there is no kind 'dance'"),
        (["--pairs", "v1"], "VARIANT:CASE"),
        (["--budget-ms", "0"], "positive"),
    ],
)
def test_bad_options_are_named(tmp_path: Path, words: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["run", "--commits", "HEAD", "--output", str(tmp_path / "x.wwb"), *words])
    assert result.exit_code == 2
    assert message in result.output
