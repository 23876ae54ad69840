"""Reads the JSON of nvbench: `--json FILE`, or `--jsonbin FILE`, which adds one file of samples per state.

The cold GPU time counts. The files of samples hold float32 seconds, little endian.
"""

from __future__ import annotations

from array import array
from pathlib import PurePosixPath
from typing import Any

from warpwatch.formats.model import (
    SAMPLE_LIMIT,
    ForeignBenchmark,
    ForeignResults,
    FormatError,
    FormatFault,
    expect_version,
    invalid,
    name_of,
    number,
    objects,
    spread_by,
    text_of,
    timed,
    whole,
)

VERSIONS = (1,)
_MEAN, _DEVIATION, _COUNT = "nv/cold/time/gpu/mean", "nv/cold/time/gpu/stdev/relative", "nv/cold/sample_size"
_SAMPLES = "nv/json/bin:nv/cold/sample_times"
_FACTS = ("name", "sm_version", "ptx_version", "sm_default_clock_rate", "number_of_sms", "global_memory_size")
_FACTS_OF_MEMORY = ("l2_cache_size", "ecc_state")


def read(values: dict[str, Any], sidecars: dict[str, bytes]) -> ForeignResults:
    version = _version(values)
    devices = objects(values, "devices")
    if len({str(device.get("name")) for device in devices}) > 1:
        raise invalid("it holds results of several models of GPU", "run nvbench with --devices ID, once per model")
    benchmarks = []
    for item in objects(values, "benchmarks"):
        name = text_of(item.get("name"), "benchmarks.name")
        devices_of = item.get("devices")
        many = isinstance(devices_of, list) and len(devices_of) > 1
        benchmarks += [_benchmark(name, state, sidecars, many) for state in objects(item, "states")]
    device = devices[0] if devices else {}
    facts = {name: device[name] for name in (*_FACTS, *_FACTS_OF_MEMORY) if name in device}
    facts["nvbench"] = str(version.get("nvbench", {}))[:200]
    return ForeignResults("nvbench", "cuda", str(device.get("name", "")), facts, benchmarks)


def _version(values: dict[str, Any]) -> dict[str, Any]:
    """The versions that the file names; FormatError for a file that nvbench did not write, or wrote in another one."""
    meta = values.get("meta")
    version = meta.get("version") if isinstance(meta, dict) else None
    schema = version.get("json") if isinstance(version, dict) else None
    if not isinstance(version, dict) or not isinstance(schema, dict):
        raise invalid("it has no meta.version.json, so nvbench of 2022 or later did not write it")
    expect_version(whole(schema.get("major")), VERSIONS, "the JSON of nvbench")
    return version


def sidecar_names(values: dict[str, Any]) -> list[str]:
    """The files of samples that the JSON names, as paths relative to it; FormatError for a path that leaves its
    folder."""
    _version(values)
    names = []
    for item in objects(values, "benchmarks"):
        for state in objects(item, "states"):
            summary = _summaries(state).get(_SAMPLES)
            if summary is not None:
                names.append(_relative(text_of(summary.get("filename"), "filename")))
    return names


def _relative(name: str) -> str:
    # nvbench writes the path as it was given to --jsonbin; the samples lie beside the JSON, one folder down.
    parts = PurePosixPath(name).parts[-2:]
    if ".." in parts or "\0" in name:
        raise invalid(f"{name[:60]!r} is no file of samples")
    return "/".join(part for part in parts if part != "/")


def _benchmark(name: str, state: dict[str, Any], sidecars: dict[str, bytes], many: bool) -> ForeignBenchmark:
    axes = [(text_of(axis.get("name"), "axis_values.name"), axis.get("value")) for axis in _axes(state)]
    parts = [name, *(f"{key}={value}" for key, value in axes)]
    parts += [f"device={state.get('device')}"] if many else []
    key = name_of(",".join(parts))
    sizes = {name_of(axis): size for axis, value in axes if (size := whole(value)) is not None}
    if state.get("is_skipped"):
        message = str(state.get("skip_reason") or "nvbench skipped it")[:2000]
        return ForeignBenchmark(key, sizes=sizes, error=message, skipped=True)
    summaries = _summaries(state)
    binary = summaries.get(_SAMPLES)
    if (
        binary is not None
        and (data := sidecars.get(_relative(text_of(binary.get("filename"), "filename")))) is not None
    ):
        return timed(key, _samples(key, data, whole(binary.get("size"))), sizes)
    if _MEAN not in summaries:
        raise invalid(f"{key}: no {_MEAN}", "let nvbench time the GPU: leave nvbench::exec_tag::timer's CPU-only mode")
    benchmark = timed(key, [_value(summaries[_MEAN], f"{key}: {_MEAN}") * 1e9], sizes)
    deviation = summaries.get(_DEVIATION, {}).get("value")
    if deviation is None:
        # Too few samples: nvbench writes infinity, which JSON has not.
        return benchmark
    relative = _value(summaries[_DEVIATION], f"{key}: {_DEVIATION}")
    count = whole(summaries.get(_COUNT, {}).get("value")) or 1
    return spread_by(benchmark, relative * benchmark.median_ns, count)


def _axes(state: dict[str, Any]) -> list[dict[str, Any]]:
    return objects(state, "axis_values") if state.get("axis_values") else []


def _summaries(state: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The values of every summary, by its tag."""
    summaries: dict[str, dict[str, Any]] = {}
    for summary in objects(state, "summaries") if state.get("summaries") else []:
        data = objects(summary, "data") if summary.get("data") else []
        summaries[str(summary.get("tag"))] = {str(value.get("name")): value.get("value") for value in data}
    return summaries


def _value(summary: dict[str, Any], where: str) -> float:
    # nvbench writes 64-bit numbers as texts, because JSON's are not exact.
    value = summary.get("value")
    try:
        return number(float(value) if isinstance(value, str) else value, where)
    except ValueError as error:
        raise error if isinstance(error, FormatError) else invalid(f"{where}: expected a number") from None


def _samples(name: str, data: bytes, count: int | None) -> list[float]:
    if len(data) > 4 * SAMPLE_LIMIT:
        remedy = "let nvbench take fewer samples"
        raise FormatError(FormatFault.TOO_LARGE, f"{name}: more than {SAMPLE_LIMIT} samples", remedy)
    if count is None or len(data) != 4 * count:
        remedy = "copy the folder of samples again with its JSON"
        raise FormatError(FormatFault.TRUNCATED, f"{name}: the file of samples has another length", remedy)
    seconds = array("f")
    seconds.frombytes(data)
    return [number(value, f"{name}: samples") * 1e9 for value in seconds]
