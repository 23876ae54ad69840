"""Readers of other programs' results: what they take from real files, and what they refuse."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpwatch.contract.words import Status
from warpwatch.formats import FORMATS, FormatError, FormatFault, list_findings, read_results, strip_preamble

FILES = Path(__file__).parent / "foreign"
NAMES = {
    "google-benchmark": "google_benchmark.json",
    "pytest-benchmark": "pytest_benchmark.json",
    "nvbench": "nvbench.json",
}


def content(name: str) -> bytes:
    return (FILES / NAMES[name]).read_bytes()


def fault_of(name: str, data: bytes | dict[str, Any]) -> FormatFault:
    with pytest.raises(FormatError) as caught:
        read_results(name, data if isinstance(data, bytes) else json.dumps(data).encode())
    assert caught.value.message
    assert caught.value.remedy
    return caught.value.fault


def plain(*benchmarks: Any, version: Any = 1, **more: Any) -> dict[str, Any]:
    return {"warpwatch_results": version, "benchmarks": list(benchmarks), **more}


def test_google_benchmark_gives_a_sample_per_repetition_and_the_errors_of_benchmarks() -> None:
    results = read_results("google-benchmark", content("google-benchmark"))
    by_name = {item.name: item for item in results.benchmarks}
    assert list(by_name) == ["sum_range/8", "sum_range/64", "broken"]
    assert len(by_name["sum_range/8"].samples_ns) == 3
    assert by_name["sum_range/8"].sizes == {"arg1": 8}
    assert by_name["sum_range/64"].median_ns == pytest.approx(921.37, abs=0.01)
    assert by_name["broken"].error == "no input"
    assert results.facts["num_cpus"] == 2
    assert "load_avg" not in results.facts, "facts that differ from run to run would split every series"
    statuses = {finding.case: finding.status for finding in list_findings(results, "cpu")}
    assert statuses["broken"] is Status.CRASHED
    assert statuses["sum_range/8"] is Status.OK


def test_google_benchmark_with_aggregates_alone_gives_their_median_and_spread() -> None:
    values = json.loads(content("google-benchmark"))
    values["benchmarks"] = [row for row in values["benchmarks"] if row["run_type"] == "aggregate"]
    item = read_results("google-benchmark", json.dumps(values).encode()).benchmarks[0]
    assert item.name == "sum_range/8"
    assert item.median_ns == pytest.approx(443.74, abs=0.01)
    assert item.low_ns < item.median_ns < item.high_ns


def test_pytest_benchmark_gives_a_sample_per_round() -> None:
    results = read_results("pytest-benchmark", content("pytest-benchmark"))
    item = results.benchmarks[0]
    assert (item.name, item.sizes, len(item.samples_ns)) == ("test_sum[10]", {"n": 10}, 40)
    assert 100 < item.median_ns < 1000
    assert item.low_ns <= item.median_ns <= item.high_ns
    assert results.device_name == "Intel(R) Xeon(R) Processor"


def test_nvbench_gives_cold_gpu_times_with_their_axes() -> None:
    results = read_results("nvbench", content("nvbench"))
    first, second, skipped = results.benchmarks
    assert first.name == "copy,Elements=1048576,T=F32"
    assert first.sizes == {"Elements": 1048576}
    assert first.median_ns == pytest.approx(12_500)
    assert first.low_ns == first.high_ns, "without a deviation there is no interval"
    assert second.low_ns < second.median_ns < second.high_ns
    assert list_findings(results, "cuda")[2].status is Status.SKIPPED
    assert skipped.skipped
    assert (results.device_kind, results.device_name) == ("cuda", "NVIDIA H100 80GB HBM3")
    (measurement,) = list_findings(results, "cuda")[0].bench.measurements  # type: ignore[union-attr]
    assert (measurement.metric, measurement.protocol) == ("graph", "nvbench")


def test_nvbench_samples_lie_in_files_beside_the_json() -> None:
    samples = {"nvbench.json-bin/0.bin": struct.pack("<4f", 1e-5, 2e-5, 3e-5, 6e-5)}
    results = read_results("nvbench", content("nvbench"), samples.get)
    assert results.benchmarks[0].samples_ns == pytest.approx([10_000, 20_000, 30_000, 60_000])
    assert results.benchmarks[0].median_ns == pytest.approx(25_000)
    with pytest.raises(FormatError) as caught:
        read_results("nvbench", content("nvbench"), lambda _: b"\0\0\0")
    assert caught.value.fault is FormatFault.TRUNCATED


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/../../b", ".."])
def test_nvbench_cannot_name_files_outside_its_folder(name: str) -> None:
    values = json.loads(content("nvbench"))
    values["benchmarks"][0]["states"][0]["summaries"][3]["data"][0]["value"] = name
    asked: list[str] = []

    def fetch(path: str) -> None:
        asked.append(path)

    with suppress(FormatError):
        read_results("nvbench", json.dumps(values).encode(), fetch)
    assert not [path for path in asked if ".." in path or path.startswith("/")]


def test_plain_json_takes_a_value_or_samples_in_any_unit_of_time() -> None:
    benchmarks = [
        {"name": "a b", "value": 1.5, "unit": "us"},
        {"name": "c", "samples": [3, 1, 2], "unit": "ms", "sizes": {"n": 8, "t": "f32"}},
        {"name": "d", "error": "no input"},
    ]
    results = read_results("plain", json.dumps(plain(*benchmarks, device="Board 7", device_kind="cuda")).encode())
    first, second, third = results.benchmarks
    assert (first.name, first.median_ns) == ("a_b", 1500.0)
    assert (second.median_ns, second.low_ns, second.high_ns, second.sizes) == (2e6, 1e6, 3e6, {"n": 8})
    assert third.error == "no input"
    assert (results.device_kind, results.device_name) == ("cuda", "Board 7")


def test_a_benchmark_that_does_nothing_costs_only_itself() -> None:
    data = plain(TIME, {"name": "empty", "unit": "ns", "samples": [0, 2e-10]})
    statuses = {
        item.case: item.status for item in list_findings(read_results("plain", json.dumps(data).encode()), "cpu")
    }
    assert statuses == {"a": Status.OK, "empty": Status.SKIPPED}


def test_long_names_are_cut_and_stay_different() -> None:
    names = ["sort<" + "vector<" * 100 + last for last in "ab"]
    data = plain(*({"name": name, "value": 1, "unit": "us"} for name in names))
    cut = [item.name for item in read_results("plain", json.dumps(data).encode()).benchmarks]
    assert len(set(cut)) == 2
    assert max(map(len, cut)) <= 200


@pytest.mark.parametrize("name", NAMES)
def test_half_a_file_is_truncated(name: str) -> None:
    data = content(name)
    for share in (0.3, 0.5, 0.9):
        assert fault_of(name, data[: int(len(data) * share)]) is FormatFault.TRUNCATED
    assert fault_of(name, b"") is FormatFault.TRUNCATED


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("google-benchmark", ("context", "json_schema_version")),
        ("pytest-benchmark", ("version",)),
        ("nvbench", ("meta", "version", "json", "major")),
    ],
)
@pytest.mark.parametrize("version", [99, "99.1", "next", True])
def test_an_unknown_version_is_named_as_such(name: str, path: tuple[str, ...], version: Any) -> None:
    values = json.loads(content(name))
    place = values
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = str(version) if name == "pytest-benchmark" else version
    assert fault_of(name, values) is FormatFault.UNKNOWN_VERSION


TIME = {"name": "a", "value": 1, "unit": "us"}


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (plain(TIME, version=2), "unknown_version"),
        (plain(TIME, version="1"), "unknown_version"),
        (plain(), "empty"),
        ({"benchmarks": []}, "invalid"),
        (plain(TIME, TIME), "invalid"),
        (plain(TIME | {"unit": "bytes"}), "invalid"),
        (plain(TIME | {"value": -1}), "invalid"),
        (plain(TIME | {"value": 1e12}), "invalid"),
        (plain(TIME | {"value": "1"}), "invalid"),
        (plain(TIME | {"value": True}), "invalid"),
        (plain(TIME | {"value": float("nan")}), "invalid"),
        (plain(TIME | {"samples": [1, float("inf")]}), "invalid"),
        (plain(TIME | {"samples": {"a": 1}}), "invalid"),
        (plain(TIME | {"name": " "}), "invalid"),
        (plain(TIME | {"name": 7}), "invalid"),
        (plain(TIME | {"colour": "red"}), "invalid"),
        (plain(TIME, colour="red"), "invalid"),
        (plain(TIME, device_kind="tpu"), "invalid"),
        (plain(TIME, device=["a"]), "invalid"),
        (plain(TIME, facts=[1]), "invalid"),
        (plain("a"), "invalid"),
        (plain({"name": "a", "unit": "us"}), "invalid"),
        (plain(TIME | {"samples": [1] * 1_000_001}), "too_large"),
        (b"[1]", "invalid"),
        (b"nonsense", "invalid"),
        (b"\xff\xfe", "invalid"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "invalid"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "invalid"),
        (b'{"a":[' + b"[]," * 400_001 + b"[]]}", "too_large"),
        (b" " * (64 * 2**20 + 1), "too_large"),
    ],
    ids=lambda value: None if isinstance(value, str) else "data",
)
def test_what_cannot_be_used_has_a_fault(data: Any, fault: str) -> None:
    assert fault_of("plain", data) == fault


def test_there_is_no_format_of_another_name() -> None:
    assert fault_of("criterion", b"{}") is FormatFault.UNKNOWN_FORMAT


def test_what_is_printed_before_the_json_is_left_out() -> None:
    assert strip_preamble(b"loading {1}\nready\n{\n}") == b"{\n}"
    assert strip_preamble(b'{"a": 1}') == b'{"a": 1}'
    assert strip_preamble(b"nothing") == b"nothing"


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.data(), json_values)
@settings(max_examples=150, deadline=None)
def test_any_value_anywhere_ends_in_results_or_a_format_error(data: st.DataObject, value: Any) -> None:
    name = data.draw(st.sampled_from([*NAMES, "plain"]))
    root = plain(TIME | {"samples": [1, 2], "sizes": {"n": 1}}) if name == "plain" else json.loads(content(name))
    holder = {"root": root}
    place: Any = holder
    key: Any = "root"
    for _ in range(data.draw(st.integers(0, 8))):
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner:
            break
        place, key = inner, data.draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
    place[key] = value
    try:
        results = read_results(name, json.dumps(holder["root"]).encode(), lambda _: None)
    except FormatError:
        return
    list_findings(results, results.device_kind)


def test_every_format_is_tried_here() -> None:
    assert set(FORMATS) == {*NAMES, "plain"}
