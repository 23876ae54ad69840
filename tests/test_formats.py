"""Readers of other programs' results: what they take from real files, and what they refuse."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpwatch.contract.words import Status
from warpwatch.formats import FORMATS, FormatError, FormatFault, list_findings, read_history, read_results
from warpwatch.formats.model import timed

FILES = Path(__file__).parent / "foreign"
NAMES = {
    "google-benchmark": "google_benchmark.json",
    "pytest-benchmark": "pytest_benchmark.json",
    "nvbench": "nvbench.json",
}

TIME: dict[str, Any] = {"name": "a", "value": 1, "unit": "us"}
SHA = "1a2b3c4d" * 5


def asv(results: dict[str, Any], **more: Any) -> dict[str, Any]:
    columns = ["result", "params", "version", "started_at", "duration", "stats_ci_99_a", "stats_ci_99_b"]
    machine = {"machine": "box", "cpu": "Intel Xeon", "os": "Linux 5.4.0-100", "python": "3.11"}
    stored = {"commit_hash": SHA, "env_name": "py3.11", "params": machine, "result_columns": columns}
    return stored | {"results": results, "version": 2} | more


def history(*entries: Any, suite: str = "Benchmark") -> dict[str, Any]:
    return {"lastUpdate": 1, "repoUrl": "https://git.example/a", "entries": {suite: list(entries)}}


def entry(*benches: Any, commit: str = SHA, date: int = 1_600_000_000_000) -> dict[str, Any]:
    return {"commit": {"id": commit}, "date": date, "tool": "googlecpp", "benches": list(benches)}


def trace(axis: int, latency: Any = 0.02, status: str = "PASSED", **more: Any) -> dict[str, Any]:
    environment = {"hardware": "NVIDIA B200", "libs": {"torch": "2.9.1"}}
    evaluation = {"status": status, "environment": environment, "performance": {"latency_ms": latency}}
    workload = {"axes": {"batch_size": axis}, "uuid": f"{axis:08}-3b37"}
    return {"definition": "rmsnorm", "solution": "tuned", "workload": workload, "evaluation": evaluation} | more


TABLE = [
    "#  Rank  0 Group  0 Pid   6899 on node-a device  0 [0000:04:00] NVIDIA H100 80GB HBM3",
    "#  Rank  1 Group  0 Pid   6733 on node-b device  0 [0000:04:00] NVIDIA H100 80GB HBM3",
    "#       size         count     type   redop    root    time   algbw   busbw #wrong    time   algbw   busbw #wrong",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
    "node-a:6899:6911 [0] NCCL INFO comm 0x55 rank 0 nranks 2 - Init COMPLETE",
    "           8             2    float     sum      -1   135.8    0.00    0.00      0   123.5    0.00    0.00      0",
    "[1,0]<stdout>: 16  4     float     sum      -1    123.2    0.00    0.00      0    122.3    0.00    0.00    N/A",
    "# Avg bus bandwidth    : 70.742",
]

MADE: dict[str, dict[str, Any]] = {
    "plain": {"warpwatch_results": 1, "benchmarks": [{"name": text, "value": 1, "unit": "us"} for text in "abc"]},
    "asv": asv({f"bench.time_{text}": [[1e-6], [], "1", 1_600_000_000_000, 1.0, [9e-7], [2e-6]] for text in "abc"}),
    "bencher": {text: {"latency": {"value": 88.0, "lower_value": 87.0, "upper_value": 89.0}} for text in "abc"},
    "github-action-benchmark": history(entry(*({"name": text, "value": 9.5, "unit": "ns/iter"} for text in "abc"))),
    "hf-kernels": {
        "results": [{"workload": text, "timingResults": {"mean_ms": 0.5, "std_ms": 0.1}} for text in "abc"],
        "machineInfo": {"gpu": "NVIDIA L4", "backend": "CUDA 12.8", "cpu": "x86_64"},
    },
    "flashinfer-bench": {"lines": [trace(1), trace(7), trace(34)]},
    "nccl-tests": {"lines": TABLE},
}
"""A file of each format that stands in no file of its own."""


def content(name: str) -> bytes:
    return (FILES / NAMES[name]).read_bytes() if name in NAMES else written(name, MADE[name])


def written(name: str, values: Any) -> bytes:
    """A file of the format `name`; its lines are objects or texts where it is no JSON object."""
    if name not in ("flashinfer-bench", "nccl-tests") or not isinstance(values, dict):
        return json.dumps(values).encode()
    lines = values["lines"] if isinstance(values.get("lines"), list) else []
    write = str if name == "nccl-tests" else json.dumps
    return "\n".join(map(write, lines)).encode("utf-8", "replace")


def values_of(name: str) -> dict[str, Any]:
    return json.loads(content(name)) if name in NAMES else deepcopy(MADE[name])


def rows_of(name: str, values: dict[str, Any]) -> Any:
    """The list or object of a file that holds a benchmark at each place."""
    places = {"nvbench": ("benchmarks", 0, "states"), "asv": ("results",), "bencher": ()}
    places["github-action-benchmark"] = ("entries", "Benchmark", 0, "benches")
    places |= {"hf-kernels": ("results",), "flashinfer-bench": ("lines",), "nccl-tests": ("lines",)}
    inner: Any = values
    for key in places.get(name, ("benchmarks",)):
        inner = inner[key]
    return inner


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
    assert (by_name["broken"].status, by_name["broken"].message) == (Status.CRASHED, "no input")
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
    assert skipped.status is Status.SKIPPED
    assert (results.device_kind, results.device_name) == ("cuda", "NVIDIA H100 80GB HBM3")
    (measurement,) = list_findings(results, "cuda")[0].bench.measurements  # type: ignore[union-attr]
    assert (measurement.metric, measurement.protocol) == ("graph", "nvbench")


@pytest.mark.parametrize(
    ("samples", "interval"),
    [([41.0] * 80 + [82.0] * 20, (20.5, 61.5)), ([12.0] * 80, (12.0, 12.0)), ([10.0, 12.0, 20.0, 30.0], (10.0, 30.0))],
)
def test_the_interval_of_a_coarse_clocks_samples_holds_its_tick(
    samples: list[float], interval: tuple[float, float]
) -> None:
    benchmark = timed("a", samples)
    assert (benchmark.low_ns, benchmark.high_ns) == interval


def test_nvbench_samples_lie_in_files_beside_the_json() -> None:
    samples = {"nvbench.json-bin/0.bin": struct.pack("<4f", 1e-5, 2e-5, 3e-5, 6e-5)}
    results = read_results("nvbench", content("nvbench"), samples.get)
    first = results.benchmarks[0]
    assert first.samples_ns == pytest.approx([10_000, 20_000, 30_000, 60_000])
    assert (first.low_ns, first.high_ns) == pytest.approx((10_000, 60_000))
    assert results.left_out == ["samples: 1 of 2 files are not there, such as nvbench.json-bin/1.bin"]
    damaged = read_results("nvbench", content("nvbench"), {"nvbench.json-bin/0.bin": b"\0"}.get).benchmarks
    assert [item.status for item in damaged] == [Status.UNREADABLE, Status.OK, Status.SKIPPED]


def test_nvbench_gives_the_same_time_with_and_without_its_samples() -> None:
    samples = {"nvbench.json-bin/0.bin": struct.pack("<4f", 1e-5, 2e-5, 3e-5, 6e-5)}
    values = json.loads(content("nvbench"))
    values["benchmarks"][0]["states"][0]["summaries"][3]["data"][0]["value"] = "C:\\run\\nvbench.json-bin\\0.bin"
    values["benchmarks"][0]["states"][0]["summaries"][2]["data"][0]["value"] = "0.1"
    with_samples = read_results("nvbench", json.dumps(values).encode(), samples.get)
    without = read_results("nvbench", json.dumps(values).encode())
    assert with_samples.benchmarks[0].median_ns == without.benchmarks[0].median_ns == pytest.approx(12_500)
    assert len(with_samples.benchmarks[0].samples_ns) == 4
    first, other = with_samples.benchmarks[0], without.benchmarks[0]
    assert (first.low_ns, first.high_ns, first.noise) == (other.low_ns, other.high_ns, other.noise), "that of the mean"
    assert without.left_out == ["samples: 2 of 2 files are not there, such as nvbench.json-bin/0.bin"]


def test_nvbench_writes_infinity_for_the_deviation_of_few_samples() -> None:
    values = json.loads(content("nvbench"))
    for summary in values["benchmarks"][0]["states"][1]["summaries"]:
        if summary["tag"].endswith("stdev/relative"):
            summary["data"][0]["value"] = "inf"
    second = read_results("nvbench", json.dumps(values).encode()).benchmarks[1]
    assert second.status is Status.OK
    assert second.low_ns == second.median_ns == second.high_ns


def test_nvbench_results_of_two_cards_and_of_two_models_are_told_apart() -> None:
    values = json.loads(content("nvbench"))
    state = values["benchmarks"][0]["states"][1]
    first = state["device"]
    model = values["devices"][0]
    values["devices"] += [model | {"id": first + 1}, model | {"id": first + 2, "name": "NVIDIA L4"}]
    unused = read_results("nvbench", json.dumps(values).encode())
    assert [item.name for item in unused.benchmarks] == [
        item.name for item in read_results("nvbench", content("nvbench")).benchmarks
    ], "another card of the host changes no name"
    values["benchmarks"][0]["states"] += [state | {"device": first + 1}, state | {"device": first + 2}]
    added = read_results("nvbench", json.dumps(values).encode()).benchmarks
    assert [item.name for item in added[:3]] == [item.name for item in unused.benchmarks]
    key = unused.benchmarks[1].name
    assert [(item.name, item.device) for item in added[3:]] == [(f"{key},device={first + 1}", ""), (key, "NVIDIA L4")]


GOOGLE_ROW = {"run_type": "iteration", "real_time": 10.0, "time_unit": "us", "family_index": 0}


def google(*rows: Any, **context: Any) -> bytes:
    return json.dumps({"context": {"json_schema_version": 1, **context}, "benchmarks": list(rows)}).encode()


def test_the_curve_of_a_family_is_no_benchmark() -> None:
    fitted = [
        {"name": f"sort_{word}", "run_name": "sort", "run_type": "aggregate", "aggregate_name": word, "rms": 0.1}
        for word in ("BigO", "RMS")
    ]
    rows = [GOOGLE_ROW | {"name": f"sort/{size}", "run_name": f"sort/{size}"} for size in (64, 128)]
    results = read_results("google-benchmark", google(*rows, *fitted))
    assert [(item.name, item.status) for item in results.benchmarks] == [("sort/64", "ok"), ("sort/128", "ok")]
    assert results.list_faults() == []


def test_two_families_of_one_name_are_unreadable_and_cost_no_other_benchmark() -> None:
    same = [GOOGLE_ROW | {"name": "copy", "run_name": "copy", "family_index": index} for index in (0, 1)]
    other = GOOGLE_ROW | {"name": "sort", "run_name": "sort", "family_index": 2}
    results = read_results("google-benchmark", google(*same, other))
    assert [(item.name, item.status) for item in results.benchmarks] == [("copy", "unreadable"), ("sort", "ok")]
    assert results.list_faults() == ["two benchmarks are called 'copy'; give each its own name"]


def test_names_that_differ_in_a_blank_stay_apart_whatever_stands_beside_them() -> None:
    rows = [GOOGLE_ROW | {"name": name, "family_index": index} for index, name in enumerate(["a b", "a_b", "c d"])]
    blank, exact, third = (item.name for item in read_results("google-benchmark", google(*rows)).benchmarks)
    assert (exact, third) == ("a_b", "c_d")
    assert blank.startswith("a_b~")
    assert [item.name for item in read_results("google-benchmark", google(rows[0])).benchmarks] == ["a_b"]


@pytest.mark.parametrize("spread", [None, float("nan"), float("inf"), "nan"])
def test_a_deviation_that_is_no_number_leaves_the_time_without_an_interval(spread: Any) -> None:
    rows = [
        {
            "name": f"sort_{word}",
            "run_name": "sort",
            "run_type": "aggregate",
            "aggregate_name": word,
            "aggregate_unit": "time",
            "real_time": value,
            "time_unit": "us",
        }
        for word, value in (("median", 10.0), ("stddev", spread))
    ]
    (item,) = read_results("google-benchmark", google(*rows)).benchmarks
    assert (item.low_ns, item.median_ns, item.high_ns) == (10_000, 10_000, 10_000)


@pytest.mark.parametrize(
    ("hosts", "device"),
    [
        (["fv-az1432-871", "runnervmwhb2z"], "GitHub-hosted runner"),
        (["4f1c0e9a7b2d", "0123456789ab"], "container"),
        (["ip-10-0-3-7", "ip-172-31-2-9.ec2.internal"], "EC2 host"),
        (["epyc-lab-3", "epyc-lab-3"], "epyc-lab-3"),
    ],
)
def test_hosts_that_each_job_gets_anew_are_one_device(hosts: list[str], device: str) -> None:
    row = GOOGLE_ROW | {"name": "sort"}
    names = [read_results("google-benchmark", google(row, host_name=host)).device_name for host in hosts]
    assert names == [device, device]


def test_tests_of_one_name_are_called_by_their_files_and_no_other_is() -> None:
    values = json.loads(content("pytest-benchmark"))
    first = values["benchmarks"][0]
    again = first | {"fullname": "tests/test_other.py::test_sum[10]"}
    alone = first | {"name": "test_sort", "fullname": "tests/test_sort.py::test_sort"}
    values["benchmarks"] = [first, again, alone]
    results = read_results("pytest-benchmark", json.dumps(values).encode())
    assert [item.name for item in results.benchmarks] == [first["fullname"], again["fullname"], "test_sort"]


def test_the_release_of_a_kernel_is_no_other_environment() -> None:
    values = json.loads(content("pytest-benchmark"))
    facts = read_results("pytest-benchmark", json.dumps(values).encode()).facts
    values["machine_info"]["release"] = "6.17.0-1"
    assert read_results("pytest-benchmark", json.dumps(values).encode()).facts == facts


def test_a_sample_below_the_tick_of_a_clock_costs_only_itself() -> None:
    data = json.dumps(plain({"name": "a", "unit": "us", "samples": [0, *[1.0] * 9]})).encode()
    (finding,) = list_findings(read_results("plain", data), "cpu")
    assert finding.bench is not None
    (measurement,) = finding.bench.measurements
    assert (measurement.median_ns, len(measurement.samples_ns), measurement.dropped) == (1000, 9, 1)


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
    assert (third.status, third.message) == (Status.CRASHED, "no input")
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
        (plain(TIME | {"samples": [1] * 1_000_001}), "invalid"),
        (b"[1]", "invalid"),
        (b"nonsense", "invalid"),
        (b"\xff\xff", "invalid"),
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


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_what_is_printed_before_the_json_is_left_out_in_any_encoding(encoding: str) -> None:
    text = "loading {1}\nready\n" + json.dumps(plain(TIME), indent=1)
    assert [item.name for item in read_results("plain", text.encode(encoding)).benchmarks] == ["a"]


DAMAGE: list[Any] = [None, "row", {}, 7, float("nan"), [], {"name": None}, {"name": "x"}]


@pytest.mark.parametrize("damage", DAMAGE, ids=repr)
@pytest.mark.parametrize("name", [*NAMES, "plain", "github-action-benchmark", "hf-kernels", "flashinfer-bench"])
def test_a_damaged_row_costs_only_itself(name: str, damage: Any) -> None:
    values = values_of(name)
    rows = rows_of(name, values)
    (whole,) = read_history(name, written(name, values))
    sound = list(rows)
    for place in range(len(sound) + 1):
        rows[:] = [*sound[:place], damage, *sound[place:]]
        (results,) = read_history(name, written(name, values))
        names = {item.name: item.status for item in results.benchmarks}
        assert all(names[item.name] is item.status for item in whole.benchmarks)
        assert len(results.list_faults()) == 1 + len(whole.list_faults())


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def damaged(data: st.DataObject, value: Any, holder: Any, key: Any) -> None:
    """Puts a value in the place of what lies at holder[key], or of a part of it."""
    place = holder
    for _ in range(data.draw(st.integers(0, 8))):
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner:
            break
        place, key = inner, data.draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
    place[key] = value


def read_damaged(name: str, data: st.DataObject, value: Any) -> None:
    holder = {"root": values_of(name)}
    damaged(data, value, holder, "root")
    with suppress(FormatError):
        for results in read_history(name, written(name, holder["root"])):
            list_findings(results, results.device_kind)


def damage_row(name: str, data: st.DataObject, value: Any) -> None:
    """All other rows of the file are read as before, whatever stands in one of them."""
    values = values_of(name)
    before = {item.name: item for results in read_history(name, content(name)) for item in results.benchmarks}
    rows = rows_of(name, values)
    key = data.draw(st.sampled_from(sorted(rows) if isinstance(rows, dict) else range(len(rows))))
    damaged(data, value, rows, key)
    # The row of columns is no row of the table.
    if name == "nccl-tests" and "size" not in str(rows[2]):
        return
    read = read_history(name, written(name, values))
    after = {item.name: item for results in read for item in results.benchmarks}
    # Repetitions of one benchmark are rows of their own in Google Benchmark's files.
    lost = [item for item in before if item not in after or after[item] != before[item]]
    assert len(lost) <= (2 if name == "nccl-tests" else 1), "a row of nccl-tests is two benchmarks"


@given(st.sampled_from(FORMATS), st.data(), json_values)
@settings(max_examples=150, deadline=None)
def test_any_value_anywhere_ends_in_results_or_a_format_error(name: str, data: st.DataObject, value: Any) -> None:
    read_damaged(name, data, value)


@given(st.sampled_from(FORMATS), st.data(), json_values)
@settings(max_examples=150, deadline=None)
def test_any_value_in_a_row_costs_no_other_row(name: str, data: st.DataObject, value: Any) -> None:
    damage_row(name, data, value)


@pytest.mark.nightly
@pytest.mark.parametrize("name", FORMATS)
@given(st.data(), json_values, st.booleans())
@settings(max_examples=3_000, deadline=None)
def test_three_thousand_damaged_files_of_each_format(name: str, data: st.DataObject, value: Any, is_row: bool) -> None:
    (damage_row if is_row else read_damaged)(name, data, value)


def test_every_format_is_tried_here() -> None:
    assert set(FORMATS) == {*NAMES, *MADE}


def test_asv_gives_a_benchmark_per_combination_of_parameters() -> None:
    stored = [[1e-6, None, float("nan"), 4e-6], [["1", "2"], ["'f32'", "'f 64'"]], "1", 1_600_000_000_000]
    ends = [[9e-7, None, None, float("-inf")], [1.2e-6, None, None, float("inf")]]
    values = asv({"bench.time_x": [*stored, 1.0, *ends], "bench.peakmem_x": [[1]], "bench.time_old": [[2e-3], []]})
    results = read_results("asv", json.dumps(values).encode())
    read = {item.name: (item.status, item.median_ns, item.low_ns, item.high_ns) for item in results.benchmarks}
    assert read == {
        "bench.time_x(1,'f32')": (Status.OK, 1000.0, pytest.approx(900), pytest.approx(1200)),
        "bench.time_x(1,'f_64')": (Status.CRASHED, 0.0, 0.0, 0.0),
        "bench.time_x(2,'f32')": (Status.SKIPPED, 0.0, 0.0, 0.0),
        "bench.time_x(2,'f_64')": (Status.OK, 4000.0, 4000.0, 4000.0),
        "bench.time_old": (Status.OK, 2e6, 2e6, 2e6),
    }
    assert (results.commit, results.device_name) == (SHA, "Intel Xeon")
    assert results.facts == {"python": "3.11", "env_name": "py3.11"}
    assert results.left_out == ["1 benchmarks measure no time: peakmem"]
    assert fault_of("asv", asv({"bench.time_x": [[1.0], []]}, version=3)) is FormatFault.UNKNOWN_VERSION


def test_a_short_file_that_names_millions_of_benchmarks_is_refused_at_once() -> None:
    axes = [["1"] * 100, ["2"] * 190]
    many = asv({f"m.time_{number}": [[1.0], axes] for number in range(500)})
    assert fault_of("asv", many) is FormatFault.TOO_LARGE
    # Every state names a card of its own, which the file does not know.
    states = [{"device": number} for number in range(19_000)]
    values = json.loads(content("nvbench")) | {"benchmarks": [{"name": "x", "states": states}]}
    assert fault_of("nvbench", values) is FormatFault.INVALID


def test_asv_databases_of_the_first_version_are_read() -> None:
    of_two = {"result": [1e-6, 2e-6], "params": [["'a'", "'b'"]], "stats": [{"ci_99": [9e-7, 3e-6]}, None]}
    values = asv({"m.time_x": of_two, "m.time_y": 2e-3, "m.time_z": None}, version=1) | {"result_columns": None}
    results = read_results("asv", json.dumps(values).encode())
    read = {item.name: (item.status, item.median_ns, item.high_ns) for item in results.benchmarks}
    assert read == {
        "m.time_x('a')": (Status.OK, 1000.0, pytest.approx(3000)),
        "m.time_x('b')": (Status.OK, 2000.0, 2000.0),
        "m.time_y": (Status.OK, 2e6, 2e6),
        "m.time_z": (Status.CRASHED, 0.0, 0.0),
    }


def test_bencher_gives_the_latency_with_its_bounds() -> None:
    values = {"a": {"latency": {"value": 88.0, "lower_value": 87.0}, "throughput": {"value": 5}}, "b": {"size": {}}}
    values["c"] = {"latency": {"value": 10, "lower_value": 9.5, "upper_value": 12}}
    results = read_results("bencher", json.dumps(values).encode())
    assert [(item.name, item.low_ns, item.high_ns) for item in results.benchmarks] == [("a", 88, 88), ("c", 9.5, 12)]
    assert results.left_out == ["2 measures other than latency are no times"]
    assert fault_of("bencher", {"a": 1}) is FormatFault.INVALID


def test_kernels_benchmark_gives_means_with_their_interval_and_the_commit() -> None:
    row = {"workload": "silu", "timingResults": {"mean_ms": 0.5, "std_ms": 0.1, "iterations": 100}, "verified": True}
    machine = {"gpu": "NVIDIA L4", "backend": "CUDA 12.8", "os": "Linux 6.8.0", "cpu": "x86_64"}
    values = {"results": [row, {"workload": "gelu"}], "machineInfo": machine, "kernelCommitSha": SHA[:7]}
    results = read_results("hf-kernels", json.dumps(values).encode())
    silu, gelu = results.benchmarks
    assert (silu.median_ns, round(silu.high_ns - silu.low_ns), gelu.status) == (5e5, 39_200, Status.UNREADABLE)
    assert (results.device_kind, results.device_name, results.commit) == ("cuda", "NVIDIA L4", SHA[:7])
    assert results.facts == {"backend": "CUDA 12.8", "cpu": "x86_64"}
    values["machineInfo"] = machine | {"gpu": "N/A"}
    assert read_results("hf-kernels", json.dumps(values).encode()).device_kind == "cpu"


def test_traces_of_flashinfer_bench_give_the_last_latency_of_each_solution_and_workload() -> None:
    late, unmeasured = trace(7, 0.03), trace(9, evaluation=None)
    wrong, slow = trace(1, None, "INCORRECT_NUMERICAL"), trace(2, None, "TIMEOUT")
    lines = [json.dumps(item) for item in (trace(7), wrong, slow, unmeasured, late)]
    results = read_results("flashinfer-bench", "\n".join([*lines, lines[0][:99]]).encode())
    read = {item.name: (item.status, item.median_ns, item.sizes) for item in results.benchmarks}
    assert read == {
        "rmsnorm/tuned/batch_size=7#00000007": (Status.OK, 30_000, {"batch_size": 7}),
        "rmsnorm/tuned/batch_size=1#00000001": (Status.WRONG, 0, {"batch_size": 1}),
        "rmsnorm/tuned/batch_size=2#00000002": (Status.TIMED_OUT, 0, {"batch_size": 2}),
    }
    assert {item.device for item in results.benchmarks} == {"NVIDIA B200"}
    assert results.facts == {"torch": "2.9.1"}
    assert results.left_out == ["line 6: it is not JSON", "1 workloads have no evaluation"]
    assert fault_of("flashinfer-bench", b"\n\n") is FormatFault.EMPTY
    assert fault_of("flashinfer-bench", b"x") is FormatFault.INVALID


def test_the_table_of_nccl_tests_gives_both_times_of_each_size() -> None:
    lines = [*TABLE[:-1], "32  8  float sum -1 1.5 0 0 3 2.5 0 0 0", "64 16 float sum -1 1.5", TABLE[6]]
    results = read_results("nccl-tests", "\n".join(lines).encode())
    read = {item.name: (item.status, item.median_ns, len(item.samples_ns)) for item in results.benchmarks}
    assert read == {
        "float,sum,size=8/out-of-place": (Status.OK, 135_800, 1),
        "float,sum,size=8/in-place": (Status.OK, 123_500, 1),
        "float,sum,size=16/out-of-place": (Status.OK, 123_200, 2),
        "float,sum,size=16/in-place": (Status.OK, 122_300, 2),
        "float,sum,size=32/out-of-place": (Status.WRONG, 0, 0),
        "float,sum,size=32/in-place": (Status.OK, 2_500, 1),
    }
    assert (results.device_kind, results.device_name) == ("cuda", "NVIDIA H100 80GB HBM3")
    assert results.facts == {"ranks": 2, "hosts": 2}
    assert len(results.left_out) == 2, "a short row, and a table without its end"
    assert fault_of("nccl-tests", b"no table") is FormatFault.INVALID


def test_a_history_of_github_action_benchmark_gives_the_results_of_each_commit() -> None:
    times = {"name": "f(1)", "value": 2.5, "unit": "us/iter", "range": "± 0.5"}
    rates = {"name": "g", "value": 1000.0, "unit": "iter/sec", "range": "stddev: 0.00001"}
    other = {"name": "h", "value": 7, "unit": "MB/s"}
    spread = {"name": "f(1)_stddev", "value": 1.0, "unit": "ns/iter"}
    first, second = entry(times, rates, other, spread), entry(times, commit="f" * 40, date=10**15)
    data = b"window.BENCHMARK_DATA = " + json.dumps(history(first, first, second, {"commit": {}})).encode()
    read = read_history("github-action-benchmark", data)
    assert [(item.commit, len(item.benchmarks)) for item in read] == [(SHA, 2), (SHA, 2), ("f" * 40, 1)]
    assert [item.measured_at is None for item in read] == [False, False, True], "a date that lies ahead is none"
    found = {item.name: (item.median_ns, round(item.high_ns - item.low_ns)) for item in read[0].benchmarks}
    assert found == {"f(1)": (2500.0, 1960), "g": (1e6, 39_200)}
    assert read[0].left_out == ["Benchmark: an entry without the id of a commit", "4 values are no times: MB/s, stddev"]
    (repeated,) = read_history("github-action-benchmark", json.dumps(history(entry(times, times, times))).encode())
    assert [len(item.samples_ns) for item in repeated.benchmarks] == [3]
    for tool, ends in {"cargo": (2250, 2750), "benchmarkjs": (2000, 3000), "go": (1520, 3480)}.items():
        (item,) = read_history("github-action-benchmark", json.dumps(history(entry(times) | {"tool": tool})).encode())
        assert [(benchmark.low_ns, benchmark.high_ns) for benchmark in item.benchmarks] == [ends], tool
    (named,) = read_history("github-action-benchmark", json.dumps(history(entry(times), suite="Rust")).encode())
    assert [item.name for item in named.benchmarks] == ["Rust/f(1)"]
    assert fault_of("github-action-benchmark", history(first)) is FormatFault.UNKNOWN_FORMAT, "a program writes none"


def test_pytest_benchmark_names_the_commit_and_whether_changes_lay_over_it() -> None:
    values = json.loads(content("pytest-benchmark"))
    values["commit_info"] = {"id": SHA, "dirty": True}
    results = read_results("pytest-benchmark", json.dumps(values).encode())
    assert (results.commit, results.is_dirty) == (SHA, True)
    values |= {"version": "2.5.0", "machine_info": {"node": "minibox", "system": "Linux"}}
    assert read_results("pytest-benchmark", json.dumps(values).encode()).device_name == "minibox"
    values["commit_info"] = {"id": "--upload-pack=x", "dirty": False}
    assert read_results("pytest-benchmark", json.dumps(values).encode()).commit == ""
