"""The JSON API, version 1: one module per group of things."""

from __future__ import annotations

from fastapi import APIRouter

from server.api import code, devices, jobs, regressions, results, submissions, traces

router = APIRouter(prefix="/api/v1")
for module in (code, devices, submissions, jobs, results, regressions, traces):
    router.include_router(module.router)
