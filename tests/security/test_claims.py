"""A child and a results file may claim anything: what no device can show is refused at every door."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from tests.builders import CASES, Lab
from tests.worker.conftest import Diary
from tests.worker.test_child import start
from warpwatch.contract.codec import from_json, to_json
from warpwatch.contract.measurement import Measurement
from warpwatch.contract.messages import SampleReply
from warpwatch.contract.outcome import Comparison
from warpwatch.contract.words import Status

HONEST = Measurement("hot", [9.0, 10.0, 11.0], 10.0, 9.0, 11.0, 0.1)
IMPOSSIBLE = (0.0, -1.0, float("nan"), float("inf"), 1e300, 1e-300)


@pytest.mark.parametrize("value", IMPOSSIBLE)
@pytest.mark.parametrize("name", ["median_ns", "low_ns", "high_ns"])
def test_a_measurement_with_an_impossible_time_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        from_json(Measurement, to_json(HONEST) | {name: value})


@pytest.mark.parametrize("value", IMPOSSIBLE)
def test_samples_and_rounds_with_an_impossible_time_are_refused(value: float) -> None:
    comparison: dict[str, Any] = to_json(Comparison("v1", "n=1", "hot", "1", Status.OK, "", [1.0], [1.0]))
    with pytest.raises(ValueError, match="samples_ns"):
        from_json(Measurement, to_json(HONEST) | {"samples_ns": [10.0, value]})
    with pytest.raises(ValueError, match="samples_ns"):
        from_json(SampleReply, to_json(SampleReply(Status.OK)) | {"samples_ns": [value]})
    with pytest.raises(ValueError, match="head_ns"):
        from_json(Comparison, comparison | {"head_ns": [value]})
    with pytest.raises(ValueError, match="as many rounds"):
        from_json(Comparison, comparison | {"head_ns": [1.0, 2.0]})


@pytest.mark.parametrize("changes", [{"low_ns": 12.0}, {"noise": -1.0}, {"dropped": -1}, {"noise": float("nan")}])
def test_a_measurement_that_contradicts_itself_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="|".join(changes)):
        from_json(Measurement, to_json(HONEST) | changes)


@pytest.mark.parametrize("value", ["0", "-1", "'NaN'", "'Infinity'", "1e300", "1e-300"])
def test_the_database_refuses_them_too(lab: Lab, value: str) -> None:
    lab.bench(0, {("v1", CASES[0]): 1000.0})
    with pytest.raises(IntegrityError, match="times_possible"), lab.database.session() as s:
        s.execute(text(f"UPDATE points SET low_ns = {value}, median_ns = {value}, high_ns = {value}"))


@pytest.mark.parametrize("kind", ["fifo", "link", "huge", "folder"])
def test_what_lies_in_a_traces_place_is_not_opened(tmp_path: Path, kind: str) -> None:
    """A FIFO would block whoever opens it, and a link would store any file that the worker can read."""
    child = start(tmp_path, Diary())
    place, target = child.temp.place / "trace.json.gz", tmp_path / "copy"
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "link":
        place.symlink_to("/etc/passwd")
    elif kind == "folder":
        place.mkdir()
    else:
        place.write_bytes(bytes(101))
    with pytest.raises(OSError, match=r"regular file|symbolic link|directory|Too many levels"):
        child.collect(place.name, target, limit=100)
    child.close()
    assert not target.exists() or target.stat().st_size == 0


def test_a_trace_is_copied_out_of_the_childs_reach(tmp_path: Path) -> None:
    child = start(tmp_path, Diary())
    (child.temp.place / "trace.json.gz").write_bytes(b"trace")
    child.collect("trace.json.gz", tmp_path / "copy", limit=100)
    assert (tmp_path / "copy").read_bytes() == b"trace"
    assert not (child.temp.place / "trace.json.gz").exists()
    child.close()
