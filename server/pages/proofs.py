"""Self-tests: every planted fault and what caught it, per device."""

from __future__ import annotations

from collections import Counter

from fastapi import APIRouter, Response

from warpwatch.db.reads.proofs import list_proofs
from warpwatch.server.pages.render import Page

router = APIRouter()
WHAT = {
    "mutants": "Kernels with one planted bug each, checked like users' kernels. Every bug must be caught by its check.",
    "cheaters": "Kernels that cheat in the benchmark, timed like users' kernels. Every cheat must be caught and named.",
}
_WORST_FIRST = {"survived": 0, "otherwise": 1, "caught": 2, "not_run": 3}


@router.get("/proofs")
def proofs(page: Page) -> Response:
    """The newest self-test of each device and kind."""
    proofs = [
        (
            proof,
            sorted(proof.exhibits, key=lambda exhibit: _WORST_FIRST[exhibit.outcome]),
            Counter(exhibit.outcome for exhibit in proof.exhibits),
        )
        for proof in list_proofs(page.session)
    ]
    return page.page("proofs.html", json="/proofs", proofs=proofs, what=WHAT)
