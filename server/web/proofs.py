"""Self-tests: every planted fault and what caught it, per device."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from warpwatch.db.proofs import NewProof, ProofView, list_proofs, record_proof
from warpwatch.db.reads.query import Page
from warpwatch.server.http.problems import documented
from warpwatch.server.http.service import Db
from warpwatch.server.web.render import Scope

WHAT = {
    "mutants": "Kernels with one planted bug each, checked like users' kernels. Every bug must be caught by its check.",
    "cheaters": "Kernels that cheat in the benchmark, timed like users' kernels. Every cheat must be caught and named.",
}
_WORST_FIRST = {"survived": 0, "otherwise": 1, "caught": 2, "not_run": 3}


def show(page: Scope) -> Response:
    """The newest self-test of each device and kind."""
    proofs = [
        (
            proof,
            sorted(proof.exhibits, key=lambda exhibit: _WORST_FIRST[exhibit.outcome]),
            Counter(exhibit.outcome for exhibit in proof.exhibits),
        )
        for proof in list_proofs(page.session)
    ]
    return page.page("settings/self_tests.html", json="/proofs", proofs=proofs, what=WHAT)


api = APIRouter(tags=["proofs"])
MOST = 2000
"""The most planted faults, or false alarms, of one self-test."""


class ProvedDevice(BaseModel):
    model_config = ConfigDict(extra="forbid")
    key: str = Field(min_length=1, max_length=200, pattern="^[a-z0-9][a-z0-9-]*$")
    kind: Literal["cpu", "cuda"]
    name: str = Field(min_length=1, max_length=200)


class PlantedFaultIn(BaseModel):
    """The outcome of one planted fault."""

    model_config = ConfigDict(extra="forbid")
    operator: str = Field(max_length=200)
    variant: str = Field(max_length=200)
    fault: str = Field(max_length=1000)
    expected: str = Field(max_length=1000)
    outcome: Literal["caught", "otherwise", "survived", "not_run"]
    caught_by: str = Field(max_length=200)
    case: str = Field(max_length=500)
    message: str = Field(max_length=4000)


class FalseAlarmIn(BaseModel):
    """A correct variant that was reported as wrong."""

    model_config = ConfigDict(extra="forbid")
    operator: str = Field(max_length=200)
    variant: str = Field(max_length=200)
    case: str = Field(max_length=500)
    seed: int = Field(ge=0, lt=2**31)
    message: str = Field(max_length=4000)


class ProofIn(BaseModel):
    """One run of all planted faults of a kind, as `warpwatch prove --submit` sends it."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["mutants", "cheaters"]
    device: ProvedDevice
    version: str = Field(min_length=1, max_length=50)
    seeds: int = Field(ge=0, lt=2**31)
    innocent: int = Field(ge=0, lt=2**31, description="Runs of correct variants that raised no alarm.")
    exhibits: list[PlantedFaultIn] = Field(max_length=MOST)
    accused: list[FalseAlarmIn] = Field(max_length=MOST)


class ProofId(BaseModel):
    id: int


@api.get("/proofs", responses=documented())
def get_proofs(session: Db) -> Page[ProofView]:
    """The newest self-test of each kind and device, with the check that caught each fault."""
    return Page(list_proofs(session), None)


@api.post("/proofs", status_code=201, responses=documented(422))
def post_proof(session: Db, proof: ProofIn) -> ProofId:
    """Store a self-test; the newest of its device and kind is shown."""
    content = proof.model_dump(include={"seeds", "innocent", "exhibits", "accused"})
    device = proof.device
    return ProofId(
        id=record_proof(session, NewProof(proof.kind, proof.version, device.key, device.kind, device.name, content))
    )
