"""Timelines of traces: what the lanes hold, what hostile traces do to them, and the pages and files made of them."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from fastapi.testclient import TestClient

from tests.builders import CASES, Lab
from tests.server.test_code import problem
from warpwatch.contract.chrome_trace import CALL
from warpwatch.contract.messages import ProfileReply
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import Status
from warpwatch.server.explanation import trace_files
from warpwatch.server.explanation.timeline import Timeline, read_timeline
from warpwatch.server.figures.timelines import pair_svg, timeline_svg

MOST_BYTES = 20_000


def event(name: str, category: str, start: float, length: float, **more: Any) -> dict[str, Any]:
    thread = more.pop("tid", 7 if category in ("kernel", "gpu_memcpy") else 1)
    return {"ph": "X", "name": name, "cat": category, "ts": start, "dur": length, "pid": 1, "tid": thread, "args": more}


def two_calls(kernel_us: float = 10.0, origin: float = 5000.0) -> list[dict[str, Any]]:
    """Two recorded calls of 100 µs: two kernels each, the second of the first call while the second call runs."""
    events = []
    for call in (0, 1):
        start = origin + call * 200
        events += [
            event(CALL, "user_annotation", start, 100),
            event("aten::mm", "cpu_op", start + 1, 40),
            event("aten::empty", "cpu_op", start + 2, 5),
            event("cudaLaunchKernel", "cuda_runtime", start + 10, 4, correlation=f"{call}a"),
            event("cudaLaunchKernel", "cuda_runtime", start + 30, 4, correlation=f"{call}b"),
            event("gemm", "kernel", start + 20, kernel_us, correlation=f"{call}a"),
            event("reduce", "kernel", start + (210 if call == 0 else 70), kernel_us, correlation=f"{call}b"),
        ]
    return events


def store(lab: Lab, events: Any, index: int = 0, variant: str = "v1", **summary: Any) -> int:
    """Profiles one cell with a trace of these events; the id of its job."""
    text = json.dumps({"traceEvents": events})
    path = lab.folder / f"{index}-{variant}-{len(list(lab.folder.iterdir()))}.json.gz"
    path.write_bytes(gzip.compress(text.encode()))
    reply = ProfileReply(Status.OK, "", str(path), len(text), [], {"cudaLaunchKernel": 2.0}, {"calls": 2} | summary)
    job = lab.submit("profile", index)
    lab.finish(job, lab.outcome([Finding(variant, CASES[0], Status.OK, profile=reply)]))
    return job


def test_lanes_depths_and_gaps_of_a_call() -> None:
    timeline = read_timeline({"traceEvents": two_calls()})
    assert timeline is not None
    assert (timeline.call, timeline.calls, timeline.duration) == (1, 2, 99_000), "from its first event on"
    assert [(lane.name, lane.is_device, lane.depth) for lane in timeline.lanes] == [
        ("host thread 1", False, 2),
        ("CUDA calls", False, 1),
        ("stream 7", True, 1),
    ]
    assert [(piece.name, piece.start) for piece in timeline.work] == [("gemm", 19_000), ("reduce", 69_000)]
    assert timeline.gaps == {"1": [(29_000, 40_000)]}


def test_each_device_has_lanes_and_gaps_of_its_own(client: TestClient, lab: Lab) -> None:
    """While one device works the other waits: together they would look busy all the time."""
    events = [event(CALL, "user_annotation", 0, 100)]
    events += [event("a", "kernel", start, 20, device=0) for start in (10, 50)]
    events += [event("b", "kernel", start, 20, device=1, tid=8) for start in (30, 70)]
    timeline = read_timeline(events)
    assert timeline is not None
    assert [(lane.name, lane.device) for lane in timeline.lanes] == [("GPU 0 stream 7", "0"), ("GPU 1 stream 8", "1")]
    assert timeline.gaps == {"0": [(20_000, 20_000)], "1": [(40_000, 20_000)]}
    launch = {"host_ns": 9.0, "launch_ns": 5.0, "launches": 4.0, "device_ns": 40e3}
    gap = {"ns": 20e3, "after": "a", "before": "a", "operator": None, "device": "0"}
    gaps = {"window_ns": 120e3, "idle_ns": 40e3, "share": 1 / 3, "count": 2, "largest": [gap]}
    store(lab, events, launch=launch | {"devices_ns": {"0": 40e3, "1": 30e3}}, gaps=gaps)
    page = client.get("/traces/1").text.replace("\u2009", " ").replace("\u202f", " ")
    assert "per call on the busiest: GPU 0 40.0 µs, GPU 1 30.0 µs" in page
    assert '<th scope="col">GPU</th>' in page
    assert "GPU 0 idle 22 % in 1 notable gaps, GPU 1 idle 22 % in 1 notable gaps." in page


def test_work_belongs_to_the_call_that_launched_it() -> None:
    timeline = read_timeline({"traceEvents": two_calls()}, 0)
    assert timeline is not None
    assert [(piece.name, piece.start) for piece in timeline.work] == [("gemm", 19_000), ("reduce", 209_000)]
    assert timeline.duration == 219_000, "the call lasts until its last kernel has ended"


@pytest.mark.parametrize(
    "trace",
    [
        None,
        [],
        {"traceEvents": {}},
        {"traceEvents": [None, 3, "x", {"ph": "X"}, {"ph": "X", "name": 3, "cat": "kernel", "ts": 1, "dur": 1}]},
        {"traceEvents": [event("a", "kernel", float("nan"), 1), event("a", "kernel", 1, float("inf"))]},
        {"traceEvents": [event("a", "kernel", -1, 1), event("a", "kernel", 1, -1), event("a", "other", 1, 1)]},
    ],
)
def test_what_is_no_event_is_left_out(trace: Any) -> None:
    assert read_timeline(trace) is None


def test_a_timeline_begins_at_its_first_event() -> None:
    events = [event(CALL, "user_annotation", 5000, 200), event("aten::mm", "cpu_op", 5100, 50)]
    timeline = read_timeline({"traceEvents": events})
    assert timeline is not None
    assert (timeline.work[0].start, timeline.duration, timeline.origin) == (0, 100_000, 5_100_000)


def test_the_call_like_a_time_is_chosen() -> None:
    events = [
        item
        for call, length in enumerate((90, 30, 60))
        for item in (event(CALL, "user_annotation", call * 200, length), event("mm", "cpu_op", call * 200, length))
    ]
    chosen = [read_timeline({"traceEvents": events}, like_ns=ns) for ns in (28_000, 64_000, 1e9)]
    assert [timeline and timeline.call for timeline in chosen] == [1, 2, 0]
    assert read_timeline({"traceEvents": []}, like_ns=5.0) is None


def test_a_call_number_beyond_the_trace_is_its_last() -> None:
    timeline = read_timeline({"traceEvents": two_calls()}, 99)
    assert timeline is not None
    assert timeline.call == 1


@pytest.mark.parametrize("broken", [{"ts": 1.79e15}, {"dur": 4e13}, {"ts": 8e10, "dur": 5e7}])
def test_a_clock_that_broke_costs_its_events_and_not_the_picture(broken: dict[str, float]) -> None:
    events = two_calls()
    timeline = read_timeline({"traceEvents": [*events, events[1] | broken]})
    assert timeline is not None
    assert timeline.duration < 1e9
    assert ElementTree.fromstring(timeline_svg(timeline)).tag.endswith("svg")


@pytest.mark.parametrize("length", [0.0, 1e-3, 1.0, 8e9, 8.64e13])
def test_a_timeline_of_any_length_has_an_axis(length: float) -> None:
    assert "<text" in timeline_svg(Timeline(0, 1, 0.0, length, [], {}, 0))


def test_a_picture_is_small_well_formed_and_harmless() -> None:
    name = "<script>alert(1)</script>&\"'" * 40
    crowd = [event(f"{name}{n % 999}", "kernel", n * 2.5, 1 + n % 3, tid=n % 9) for n in range(8_000)]
    crowd += [event(f"{name}{n}", "cpu_op", n * 2.5, 30, tid=f"<b>{n % 9}") for n in range(8_000)]
    timeline = read_timeline({"traceEvents": crowd})
    assert timeline is not None
    assert timeline.hidden_lanes == 10
    picture = timeline_svg(timeline)
    assert len(picture.encode()) < MOST_BYTES
    root = ElementTree.fromstring(picture)
    assert {element.tag for element in root.iter()} <= {"svg", "defs", "pattern", "path", "g", "rect", "title", "text"}
    assert len(pair_svg(timeline, timeline).encode()) < 2.5 * MOST_BYTES


def test_a_pair_is_joined_at_matched_kernels() -> None:
    a, b = (read_timeline({"traceEvents": two_calls(length)}) for length in (10.0, 20.0))
    assert a is not None
    assert b is not None
    root = ElementTree.fromstring(pair_svg(a, b))
    (joined,) = [path for path in root.iter("path") if path.get("class") == "joined"]
    assert joined.get("d", "").count("M") == 2
    names = [text.text for text in root.iter("text") if text.get("class") == "lane"]
    assert names == [*names[:3], *names[2::-1]], "the lanes of B are mirrored: both streams are next to each other"
    widths = {
        float(rectangle.get("width", "0"))
        for group in root.iter("g")
        if group.get("class") == "k0"
        for rectangle in group.iter("rect")
    }
    assert max(widths) == pytest.approx(2 * min(widths), rel=0.02), "both have one scale"


def test_a_page_shows_its_trace_at_once(client: TestClient, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    store(lab, two_calls())
    page = client.get("/traces/1").text
    assert "<iframe" not in page, "the viewer is loaded on demand"
    assert 'class="timeline"' in page
    assert "call 2 of 2" in page
    assert "call 1 of 2" in client.get("/traces/1", params={"call": 1}).text
    monkeypatch.setattr(trace_files, "MOST_BYTES", 100)
    assert 'class="timeline"' not in client.get("/traces/1").text
    problem(client.get("/api/v1/traces/compare.json.gz", params={"a": 1, "b": 1}), 413)


def folded(page: str, words: str) -> bool:
    """Whether these words are the summary of a part that is folded."""
    return re.search(rf"<details(?![^>]* open)[^>]*><summary[^>]*>{words}", page) is not None


@pytest.mark.parametrize(("highest", "is_constant"), [(2**20, True), (2**21, False)])
def test_what_says_little_of_a_trace_is_folded(client: TestClient, lab: Lab, highest: int, is_constant: bool) -> None:
    memory = {
        "device": "cpu",
        "base_bytes": 2**20,
        "peak_bytes": highest,
        "allocations": 0,
        "allocated_bytes": 0,
        "points": [[0.0, 2**20], [1e5, highest], [2e5, highest]],
    }
    store(lab, two_calls(), memory=memory, table="Name  Self CPU", autograd_table="Name  CPU total")
    page = client.get("/traces/1").text.replace("\u2009", " ")
    assert folded(page, "Constant at 1.00 MiB") == is_constant
    assert folded(page, "torch.profiler table")
    assert folded(page, "torch.autograd.profiler table")
    assert folded(page, "Open in Perfetto")
    assert re.search(r'title="test-cpu">Test CPU<', page)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"traceEvents": 3}', "[" * 100_000])
def test_a_file_that_is_no_trace_has_a_page(client: TestClient, lab: Lab, text: str) -> None:
    path = lab.folder / "odd.json.gz"
    path.write_bytes(gzip.compress(text.encode()))
    reply = ProfileReply(Status.OK, "", str(path), 1, [], {})
    lab.finish(lab.submit("profile", 0), lab.outcome([Finding("v1", CASES[0], Status.OK, profile=reply)]))
    answer = client.get("/traces/1")
    assert answer.status_code == 200
    assert 'class="timeline"' not in answer.text


def test_a_merged_trace_has_both_calls_at_one_time(client: TestClient, lab: Lab) -> None:
    store(lab, two_calls(origin=5_000))
    store(lab, two_calls(origin=90_000), index=1)
    page = client.get("/traces/compare", params={"a": 1, "b": 2}).text
    assert 'class="joined"' in page
    answer = client.get("/api/v1/traces/compare.json.gz", params={"a": 1, "b": 2})
    events = json.loads(gzip.decompress(answer.content))["traceEvents"]
    calls = [one for one in events if one["name"] == CALL]
    sides: dict[int, list[float]] = {}
    for one in calls:
        sides.setdefault(one["pid"], []).append(one["ts"])
    assert list(sides.values()) == [[-201.0, -1.0], [-201.0, -1.0]], "their first events are at 0"
    names = [one["args"]["name"] for one in events if one["name"] == "process_name"]
    assert [name[:1] for name in names] == ["A", "B"]
    problem(client.get("/api/v1/traces/compare.json.gz", params={"a": 1, "b": 9}), 404)


def test_traces_are_listed_filtered_and_paged(client: TestClient, lab: Lab) -> None:
    for index, variant in ((0, "v1"), (0, "v2"), (1, "v1")):
        store(lab, two_calls(), index, variant, launch={"device_ns": 20_000.0}, gaps={"share": 0.4})

    def ids(**filters: Any) -> list[int]:
        answer = client.get("/api/v1/traces", params={"repository": "kernels", **filters})
        assert answer.status_code == 200, answer.text
        return [row["id"] for row in answer.json()["items"]]

    assert ids() == [3, 2, 1]
    assert ids(variant="v1") == [3, 1]
    assert ids(commit=lab.shas[0][:8]) == [2, 1]
    assert ids(submission=2, operator="square", device="test-cpu") == [2]
    assert ids(operator="cube") == []
    first = client.get("/api/v1/traces", params={"limit": 2}).json()
    assert ids(limit=2, before=first["next_before"]) == [1]
    assert first["items"][0]["idle_share"] == 0.4
    assert len(list(csv.DictReader(io.StringIO(client.get("/api/v1/traces.csv?variant=v1").text)))) == 2
    page = client.get("/runs/traces", params={"variant": "v2"}).text
    assert re.findall(r'href="/traces/(\d+)\?', page) == ["2"]
    assert client.get("/runs/traces", params={"commit": "no sha"}).status_code == 200
    problem(client.get("/api/v1/traces", params={"commit": "no sha"}), 422)


def test_the_survey_covers_every_trace_of_an_operator(client: TestClient, lab: Lab) -> None:
    launched = {"operator": "aten::mm", "shapes": [], "kernel": "gemm", "launches": 4, "total_ns": 8e3}
    more = {"grid": [8, 1, 1], "block": [128, 1, 1], "registers": 76, "shared_bytes": 0}
    for variant in ("v1", "v2"):
        store(lab, two_calls(), 0, variant, survey=[launched | more])
    answer = client.get("/api/v1/traces/survey.csv", params={"operator": "square", "commit": lab.shas[0]})
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [(row["variant"], row["kernel"], row["registers"]) for row in rows] == [
        ("v2", "gemm", "76"),
        ("v1", "gemm", "76"),
    ]


def test_the_traces_of_a_submission_come_as_zip(client: TestClient, lab: Lab, tmp_path: Path) -> None:
    store(lab, two_calls())
    answer = client.get("/api/v1/submissions/1/traces.zip")
    assert answer.headers["content-type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(answer.content)) as file:
        assert file.testzip() is None
        (name,) = file.namelist()
        assert name.startswith("square-v1-n=1024_f32_fwd-")
        assert file.read(name) == client.get("/api/v1/traces/1/download.json.gz").content
    problem(client.get("/api/v1/submissions/9/traces.zip"), 404)
