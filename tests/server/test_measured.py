"""What a measurement says of itself, from the worker's reply to API and pages: modes, drift, counters, empty calls,
set-up."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

from fastapi.testclient import TestClient

from tests.builders import CASES, CPU, GPU, Lab
from tests.rewording import stored
from warpwatch.contract.measurement import Counter
from warpwatch.contract.messages import BenchReply
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import Fault, Status
from warpwatch.db import registry
from warpwatch.db.outcomes import list_exported_runs, read_outcome
from warpwatch.server.figures.result_curves import calls_to_pay
from warpwatch.server.reports.formats import shape
from warpwatch.worker.harness.timers.summary import summarize


def two_speeds(slow: float) -> list[float]:
    source = random.Random(3)
    return [source.gauss(slow if source.random() < 0.3 else 1000.0, 5.0) for _ in range(200)]


def bench_reply(hot: list[float], setup: list[float] | None = None) -> BenchReply:
    measurements = [summarize("hot", hot)] + ([summarize("setup", setup)] if setup else [])
    health = {"empty_ns": {"hot": 47.0}, "notes": ["nobody was asked for the time"]}
    counters = {"instructions": Counter("instructions per call", 1.25e6, 1.24e6, 1.26e6, 10)}
    return BenchReply(Status.OK, "", 1000, 8000, measurements, health, counters)


def record(lab: Lab, replies: dict[str, BenchReply]) -> int:
    """A bench job that found `replies`, by variant, on the first case; recorded as a worker records it."""
    job = lab.submit("bench", 0)
    findings = [Finding(variant, CASES[0], Status.OK, bench=reply) for variant, reply in replies.items()]
    lab.finish(job, replace(lab.outcome(findings), peaks=None))
    return job


def test_modes_reach_the_api_and_every_page_that_shows_the_measurement(client: TestClient, lab: Lab) -> None:
    job = record(lab, {"v1": bench_reply(two_speeds(1300.0))})
    (result,) = client.get(f"/api/v1/jobs/{job}").json()["results"]
    (metric,) = result["measured"]
    assert (metric["metric"], metric["count"]) == ("hot", 200)
    modes = metric["distribution"]["modes"]
    assert [round(mode["ns"], -1) for mode in modes] == [1000, 1300]
    samples = client.get(f"/api/v1/points/{metric['point_id']}/samples").json()
    (point,) = client.get(f"/api/v1/history/{metric['series_id']}").json()["points"]
    assert samples["distribution"] == point["distribution"] == metric["distribution"]
    page = client.get(f"/jobs/{job}").text
    for words in (
        "bimodal in hot",
        "bimodal: 1.00",
        "1.2500 M",
        "instructions per call",
        "47.0 ns",
        "nobody was asked for the time",
    ):
        assert words in page.replace("\u2009", " "), words
    assert "bimodal: 1.00" in client.get(f"/history/{metric['series_id']}").text


def test_a_steady_measurement_says_so_and_one_without_a_distribution_says_nothing(client: TestClient, lab: Lab) -> None:
    source = random.Random(5)
    job = record(lab, {"v1": bench_reply([source.gauss(1000, 5) for _ in range(100)])})
    assert "unimodal, steady" in client.get(f"/jobs/{job}").text
    old = lab.bench(1, {("v1", CASES[0]): 1000.0})
    (result,) = client.get(f"/api/v1/jobs/{old}").json()["results"]
    assert {metric["distribution"] for metric in result["measured"]} == {None}
    assert "too few samples" in client.get(f"/jobs/{old}").text


def test_a_variant_that_no_graph_can_hold_says_so_beside_its_status(client: TestClient, lab: Lab) -> None:
    reply = replace(bench_reply([1000.0] * 30), fault=Fault.NOT_CAPTURABLE, subjects=["graph", "hot"])
    job = record(lab, {"v1": reply, "v2": bench_reply([1000.0] * 30)})
    page = client.get(f"/jobs/{job}").text
    assert page.count('data-fault="not_capturable"') == 1
    assert "No CUDA graph can hold its launches: no graph, no hot." in page
    with lab.database.session() as session:
        (run,) = list_exported_runs(session, lab.repository)
        found = {finding.variant: finding.bench for finding in read_outcome(session, run, Path()).findings}
    faults = {name: (bench.fault, bench.subjects) for name, bench in found.items() if bench is not None}
    assert faults == {"v1": (Fault.NOT_CAPTURABLE, ["graph", "hot"]), "v2": (None, [])}


def test_a_set_up_is_held_against_the_fastest_other_variant(client: TestClient, lab: Lab) -> None:
    job = record(
        lab,
        {
            "v1": bench_reply([1000.0] * 20),
            "v2": bench_reply([900.0] * 20, setup=[10_000.0] * 20),
            "v3": bench_reply([950.0] * 20),
        },
    )
    assert "Set-up takes 10.0 µs and pays off after 200 calls compared with v3." in client.get(
        f"/jobs/{job}"
    ).text.replace("\u2009", " ")
    assert calls_to_pay(100, 10, 10) is None
    assert calls_to_pay(100, 9, 10) == 100
    assert calls_to_pay(-5, 9, 10) == 1


def test_only_what_is_notable_is_said() -> None:
    quiet = summarize("hot", [1000.0 + index % 5 for index in range(100)]).distribution
    assert quiet is not None
    told = {"modes": [], "drift": 0.0, "drift_chance": 1.0, "autocorrelation": 0.0, "outliers": 0.0, "effective": 100.0}
    assert shape(told) == []
    assert shape(told | {"drift": 0.012, "drift_chance": 0.001}) == ["drifts +1.2\u2009% over the run"]
    assert shape(told | {"drift": 0.012, "drift_chance": 0.2}) == []
    assert shape(told | {"drift": -0.012, "drift_chance": 0.001}) == ["drifts \u22121.2\u2009% over the run"]
    assert shape(told | {"autocorrelation": 0.8, "effective": 12.0})[0].endswith("n_eff 12)")
    assert shape(told | {"outliers": 0.08}) == ["8.0\u2009% outliers"]
    assert replace(quiet, drift=0.0).modes == []


def test_an_unfit_device_is_marked_where_devices_are_shown(client: TestClient, lab: Lab) -> None:
    with lab.database.session() as session:
        registry.set_trouble(session, lab.worker, "it is 91 °C hot")
    (worker,) = client.get("/api/v1/workers").json()["items"]
    assert worker["trouble"] == stored("it is 91 °C hot")
    page = client.get("/devices").text
    assert stored("it is 91 °C hot") in page
    assert "unfit" in page
    with lab.database.session() as session:
        registry.set_trouble(session, lab.worker, "")
    assert "unfit" not in client.get("/devices").text


def test_an_operator_is_shown_on_a_device_that_measured_it(client: TestClient, lab: Lab) -> None:
    lab.operators = ("square", "cube")
    lab.switch(GPU)
    lab.bench(0, {("v1", CASES[0]): 1000.0}, operator="cube")
    lab.switch(CPU)
    lab.bench(0, {("v1", CASES[0]): 2000.0})
    for page in ("/kernels/square", f"/history?operator=square&case={CASES[0]}"):
        assert client.get(page).text.count(f'<option value="{CPU.device_key}" selected') == 1
    assert f'<option value="{GPU.device_key}" selected' in client.get("/kernels/cube").text


def test_a_variant_that_stands_alone_has_times_and_no_speed_up(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {("v1", CASES[0]): 2000.0})
    page = client.get("/kernels/square").text
    assert '<h2 id="heat">Times</h2>' in page
    assert re.search(r">2(\.0+)?\s?µs<", page)
    assert "×<" not in page
    assert "speed-up over" not in page


def test_speed_ups_are_over_the_first_variant_that_has_a_time(client: TestClient, lab: Lab) -> None:
    lab.bench(
        0,
        {
            ("v1", CASES[0]): 3000.0,
            ("v2", CASES[0]): 1000.0,
            ("v1", CASES[1]): Status.TIMED_OUT,
            ("v2", CASES[1]): 5000.0,
        },
    )
    page = client.get("/kernels/square").text
    heat_map = page.split('id="variants"')[0]
    assert sorted(re.findall(r"<span[^>]*>([\d.]+)×</span>", heat_map)) == ["1.00", "1.00", "3.00"]
    assert "Speed-up over v1" in page
    assert "else the first timed variant" in page


def test_the_page_of_an_operator_sums_up_each_variant_s_speed_up(client: TestClient, lab: Lab) -> None:
    """v1 has no time in the second case, so v2 is its baseline there."""
    times: dict[tuple[str, str], float | Status] = {
        ("v1", CASES[0]): 3000.0,
        ("v2", CASES[0]): 1000.0,
        ("v1", CASES[1]): Status.TIMED_OUT,
        ("v2", CASES[1]): 5000.0,
    }
    lab.bench(0, times)
    summed = client.get(
        "/api/v1/operators/square/speedups", params={"repository": "kernels", "device": lab.environment.device_key}
    ).json()["items"]
    assert [(row["variant"], row["median"], row["cases"]) for row in summed] == [("v1", 1.0, 1), ("v2", 2.0, 2)]
    assert (summed[1]["lowest"], summed[1]["highest"]) == (1.0, 3.0)
    assert (summed[1]["lowest_case"], summed[1]["highest_case"]) == (CASES[1], CASES[0])
    assert {row["baseline"] for row in summed} == {"v1"}
    page = client.get("/kernels/square").text
    assert f"3.00× at {CASES[0]}" in page
    assert "1.00 to 3.00 in 2" in page
    assert "/api/v1/operators/square/speedups?" in page


def test_a_wrong_variant_has_no_speed_up(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {("v1", CASES[0]): 3000.0, ("v2", CASES[0]): 1000.0})
    lab.check(0, {("v1", CASES[0]): Status.OK, ("v2", CASES[0]): Status.WRONG})
    summed = client.get(
        "/api/v1/operators/square/speedups", params={"repository": "kernels", "device": lab.environment.device_key}
    ).json()["items"]
    assert [row["variant"] for row in summed] == ["v1"]
