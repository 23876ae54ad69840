"""The JSON API, version 1: one module per group of things."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from server.api.alarms import router as alarms
from server.api.badges import router as badges
from server.api.code import router as code
from server.api.devices import router as devices
from server.api.hooks import router as hooks
from server.api.jobs import router as jobs
from server.api.proofs import router as proofs
from server.api.regressions import router as regressions
from server.api.reports import router as reports
from server.api.repositories import router as repositories
from server.api.results import router as results
from server.api.schedules import router as schedules
from server.api.submissions import router as submissions
from server.api.traces import router as traces
from server.parameters import PREFIX, refuse_unknown_parameters

router = APIRouter(prefix=PREFIX, dependencies=[Depends(refuse_unknown_parameters)])
for part in (
    code,
    devices,
    submissions,
    jobs,
    results,
    regressions,
    traces,
    proofs,
    schedules,
    alarms,
    reports,
    hooks,
    repositories,
    badges,
):
    router.include_router(part)
