"""What a job asks the child for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.worker.conftest import Diary
from warpwatch.contract.messages import ProfileReply
from warpwatch.contract.spec import JobRequest, JobSpec
from warpwatch.contract.words import JobKind, Status
from warpwatch.worker.checkout import Checkout, OperatorSources
from warpwatch.worker.measurer import Measurer, Strikes
from warpwatch.worker.plan import JobPlan
from warpwatch.worker.plausibility import TimeLimits


@pytest.mark.parametrize(("kind", "is_measured"), [(JobKind.PROFILE, True), (JobKind.COMPARE, False)])
def test_energy_is_measured_where_no_verdict_waits_for_it(tmp_path: Path, kind: JobKind, is_measured: bool) -> None:
    asked: list[dict[str, Any]] = []

    def ask(_reply: type, _verb: str, _seconds: float, _reporter: object, **fields: Any) -> ProfileReply:
        asked.append(fields)
        return ProfileReply(Status.UNSUPPORTED)

    host = SimpleNamespace(kind="cuda")
    checkout = SimpleNamespace(
        host=host,
        sha="a" * 40,
        running=True,
        others_ran=lambda _: False,
        timeout_seconds=lambda _: 60.0,
        ask=ask,
    )
    request = JobRequest(kind, "/srv/kernels", "a" * 40, "square", JobSpec())
    plan = JobPlan(request, (cast(Checkout, checkout),), OperatorSources(), tmp_path)
    measurer = Measurer(plan, plan.checkouts[0], Diary(), TimeLimits(None, "cuda"), Strikes())
    assert measurer.measure("profile", "v1", "n=1").status is Status.UNSUPPORTED
    assert [fields["energy"] for fields in asked] == [is_measured]
