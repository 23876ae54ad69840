"""The self-tests that the seeded service shows."""

from __future__ import annotations

from warpwatch.contract.environment import Environment
from warpwatch.db import proofs
from warpwatch.db.database import Database


def prove(database: Database, whole: Environment, faulty: Environment) -> None:
    """Mutants on two devices: all caught on one, one that survived and one false accusation on the other."""
    caught = {
        "operator": "stencil",
        "variant": "writes_past_end",
        "fault": "one element too many",
        "expected": "guard bands",
        "outcome": "caught",
        "caught_by": "guard bands",
        "case": "n=1001,f32,fwd",
        "message": "guard bands: it writes beside memory that it allocated: 4 bytes, "
        "the first 0 past the end of (1001,) float32",
    }
    missed = caught | {"variant": "skips_last_tile", "outcome": "survived", "caught_by": "", "message": ""}
    absent = caught | {
        "variant": "missing_barrier",
        "outcome": "not_run",
        "caught_by": "",
        "message": "racecheck looks at CUDA code",
    }
    accused = {
        "operator": "stencil",
        "variant": "tiles",
        "case": "n=65,f32,bwd",
        "seed": 7,
        "message": "y: relative error 1e-6",
    }
    with database.session() as s:
        for device, exhibits, wrongly in ((whole, [caught], []), (faulty, [caught, absent, missed], [accused])):
            content = {"seeds": 200, "innocent": 8400, "exhibits": exhibits, "accused": wrongly}
            names = (device.device_key, device.device_kind, device.device_name)
            proofs.record_proof(s, proofs.NewProof("mutants", "0.1.0", *names, content))
