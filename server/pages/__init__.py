"""The pages: one module per group; each page has its JSON below /api/v1."""

from __future__ import annotations

from fastapi import APIRouter

from warpwatch.server.pages import (
    access,
    accounts,
    alarms,
    branches,
    channels,
    ci_identities,
    commits,
    compare,
    deletion,
    devices,
    forge,
    history,
    jobs,
    keeping,
    muted,
    operators,
    overview,
    proofs,
    reference,
    regressions,
    repositories,
    saved_views,
    schedules,
    submissions,
    traces,
    verdicts,
    watches,
)
from warpwatch.server.pages.errors import problem_page as problem_page

router = APIRouter(include_in_schema=False)
for module in (
    overview,
    operators,
    history,
    commits,
    branches,
    compare,
    regressions,
    alarms,
    submissions,
    schedules,
    jobs,
    muted,
    traces,
    devices,
    repositories,
    saved_views,
    watches,
    channels,
    forge,
    proofs,
    reference,
    verdicts,
    keeping,
    access,
    accounts,
    ci_identities,
    deletion,
):
    router.include_router(module.router)
