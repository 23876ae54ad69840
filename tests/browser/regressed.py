"""What the seeded service knows besides single changes: an event over operators and devices, something broken, trials
of every answer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from tests.planted import plant, try_out
from warpwatch.db.database import Database
from warpwatch.db.triage import triage

if TYPE_CHECKING:
    from tests.browser.world import World

FORWARD = "batch=32,factors=128x128,f32,fwd"


@dataclass
class _Place:
    database: Database
    repository: int
    device: int
    shas: list[str]
    commits: dict[str, int]


def regress(world: World, slower: int, faster: int, gpu: str, cpu: str) -> None:
    """slower, faster: numbers of the commits where something happens; gpu, cpu: keys of the devices."""
    on_gpu, on_cpu = (
        _Place(world.database, world.repository, world.devices[key], world.shas, world.commits) for key in (gpu, cpu)
    )
    plant(on_cpu, slower - 1, slower, 1.12, [("v3", FORWARD)], operator="kron")
    plant(on_gpu, slower - 1, slower, 1.06, [("v3", "n=2048x2048,f32,fwd")], operator="square", state="accepted")
    plant(on_cpu, slower - 4, slower + 2, 1.1, [("v3", "n=2048x2048,f32,fwd")], operator="square", settled_at=None)
    world.ids["broken"] = plant(
        on_gpu, faster, len(world.shas) - 2, None, [("v3", "n=513,i32,fwd")], operator="vector_add", cause="status"
    )
    _try_out(world, on_gpu)
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    with world.database.session() as s:
        fields: dict[str, str | date | None] = {
            "assignee": "Third Author",
            "link": "https://example.com/kernels/issues/7",
            "due_on": yesterday,
        }
        triage(s, [world.ids["broken"]], author="First Author", note="The tail of odd lengths.", fields=fields)


def _try_out(world: World, place: _Place) -> None:
    """Jobs of other changes stand in for those of the trials."""
    from tests.browser.world import GPU, SLOWER, submit

    number = world.ids["slower"]
    steps = (
        ("confirm", SLOWER - 6, SLOWER + 3, "changed", 1.171, ""),
        ("bisect", SLOWER - 6, SLOWER - 2, "same", 1.002, ""),
        ("bisect", SLOWER - 2, SLOWER + 1, "skipped", None, "kron.cu(41): error: expected a ';'"),
        ("retry", SLOWER - 2, SLOWER, "unsure", 1.08, "14 rounds were too few"),
        ("prove", SLOWER - 1, SLOWER, "pending", None, ""),
    )
    for purpose, base, head, answer, ratio, message in steps:
        job = submit(world, "compare", head, "kron", GPU.device_key, base=base, origin="confirm")[0]
        values = {"ratio": ratio, "low": ratio and ratio * 0.99, "high": ratio and ratio * 1.01, "message": message}
        try_out(place, number, job, purpose, base, head, answer, **values)
