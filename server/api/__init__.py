"""The JSON API, version 1: one module per group of things."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from warpwatch.server.api.access import router as access
from warpwatch.server.api.accounts import router as accounts
from warpwatch.server.api.alarms import router as alarms
from warpwatch.server.api.badges import router as badges
from warpwatch.server.api.branches import router as branches
from warpwatch.server.api.channels import router as channels
from warpwatch.server.api.ci_identities import router as ci_identities
from warpwatch.server.api.code import router as code
from warpwatch.server.api.devices import router as devices
from warpwatch.server.api.export import router as export
from warpwatch.server.api.forge import router as forge
from warpwatch.server.api.hooks import router as hooks
from warpwatch.server.api.imports import router as imports
from warpwatch.server.api.jobs import router as jobs
from warpwatch.server.api.keeping import router as keeping
from warpwatch.server.api.patches import router as patches
from warpwatch.server.api.proofs import router as proofs
from warpwatch.server.api.regressions import router as regressions
from warpwatch.server.api.reports import router as reports
from warpwatch.server.api.repositories import router as repositories
from warpwatch.server.api.results import router as results
from warpwatch.server.api.saved_views import router as saved_views
from warpwatch.server.api.schedules import router as schedules
from warpwatch.server.api.search import router as search
from warpwatch.server.api.submissions import router as submissions
from warpwatch.server.api.traces import router as traces
from warpwatch.server.api.verdicts import router as verdicts
from warpwatch.server.api.watches import router as watches
from warpwatch.server.api.worker import router as worker
from warpwatch.server.api.worker_keys import router as worker_keys
from warpwatch.server.http.parameters import PREFIX, refuse_unknown_parameters

router = APIRouter(prefix=PREFIX, dependencies=[Depends(refuse_unknown_parameters)])
# Routes are tried in this order, and a fleet of workers asks more often than everybody else together.
for part in (
    worker,
    code,
    search,
    branches,
    devices,
    submissions,
    jobs,
    results,
    imports,
    patches,
    export,
    regressions,
    traces,
    proofs,
    schedules,
    saved_views,
    watches,
    channels,
    forge,
    alarms,
    reports,
    hooks,
    keeping,
    access,
    accounts,
    ci_identities,
    badges,
    verdicts,
    worker_keys,
    # Names of old repositories may hold a slash, and would take what stands below others.
    repositories,
):
    router.include_router(part)
