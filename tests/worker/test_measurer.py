"""What a job asks the child for."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.worker.conftest import Diary
from warpwatch.contract.measurement import Measurement
from warpwatch.contract.messages import BenchReply, ProfileReply
from warpwatch.contract.spec import JobRequest, JobSpec
from warpwatch.contract.words import JobKind, Status
from warpwatch.worker.checkout import Checkout, OperatorSources
from warpwatch.worker.measurer import Measurer, Strikes
from warpwatch.worker.plan import JobPlan
from warpwatch.worker.plausibility import TimeLimits


def measurer(request: JobRequest, ask: Callable[..., Any], traces: Path, peaks: dict[str, float] | None) -> Measurer:
    """A measurer on a GPU whose child answers by `ask`."""
    checkout = SimpleNamespace(
        host=SimpleNamespace(kind="cuda"),
        sha="a" * 40,
        running=True,
        others_ran=lambda _: False,
        timeout_seconds=lambda _: 60.0,
        ask=ask,
    )
    plan = JobPlan(request, (cast(Checkout, checkout),), OperatorSources(), traces)
    return Measurer(plan, plan.checkouts[0], Diary(), TimeLimits(peaks, "cuda", lambda: peaks), Strikes())


@pytest.mark.parametrize(("metric", "status"), [("graph", Status.WRONG), ("launch", Status.OK)])
def test_a_call_may_return_before_the_device_could_be_done(tmp_path: Path, metric: str, status: Status) -> None:
    """A launch of a microsecond may queue a copy of a gigabyte."""

    def ask(*_names: Any, **_fields: Any) -> BenchReply:
        time.sleep(0.001)
        return BenchReply(
            Status.OK, bytes=2**30, measurements=[Measurement(metric, [1000.0], 1000.0, 1000.0, 1000.0, 0.0)]
        )

    request = JobRequest(JobKind.BENCH, "/srv/kernels", "a" * 40, "square", JobSpec())
    finding = measurer(request, ask, tmp_path, {"copy": 1e12}).measure("bench", "v1", "n=1")
    assert finding.status is status, finding.message


def test_samples_may_hold_the_time_of_prepare_which_was_measured_apart(tmp_path: Path) -> None:
    hours = Measurement("graph", [7.2e12, 7.2e12], 7.2e12, 7.2e12, 7.2e12, 0.0)
    setup = Measurement("setup", [1.0], 7.2e12, 7.2e12, 7.2e12, 0.0)
    request = JobRequest(JobKind.BENCH, "/srv/kernels", "a" * 40, "square", JobSpec())
    for measurements, subjects in (([hours, setup], []), ([hours], ["graph"])):
        reply = BenchReply(Status.OK, measurements=measurements)
        finding = measurer(request, lambda *_, reply=reply, **__: reply, tmp_path, None).measure("bench", "v1", "n=1")
        assert finding.subjects == subjects, finding.message


@pytest.mark.parametrize(("kind", "is_measured"), [(JobKind.PROFILE, True), (JobKind.COMPARE, False)])
def test_energy_is_measured_where_no_verdict_waits_for_it(tmp_path: Path, kind: JobKind, is_measured: bool) -> None:
    asked: list[dict[str, Any]] = []

    def ask(_reply: type, _verb: str, _seconds: float, _reporter: object, **fields: Any) -> ProfileReply:
        asked.append(fields)
        return ProfileReply(Status.UNSUPPORTED)

    request = JobRequest(kind, "/srv/kernels", "a" * 40, "square", JobSpec())
    measured = measurer(request, ask, tmp_path, None).measure("profile", "v1", "n=1")
    assert measured.status is Status.UNSUPPORTED
    assert [fields["energy"] for fields in asked] == [is_measured]
