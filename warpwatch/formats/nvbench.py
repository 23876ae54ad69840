"""Reads the JSON of nvbench: `--json FILE`, or `--jsonbin FILE`, which adds one file of samples per state.

The mean cold GPU time counts, with the interval that its standard deviation gives it. The files of samples hold float32
seconds, little endian.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from warpwatch.contract.words import Status
from warpwatch.formats.model import (
    MESSAGE_LIMIT,
    SAMPLE_LIMIT,
    ForeignBenchmark,
    ForeignResults,
    FormatError,
    FormatFault,
    bounded,
    commit_of,
    deviation,
    expect_version,
    invalid,
    name_of,
    number,
    objects,
    read_rows,
    spread_by,
    text_of,
    timed,
    whole,
)

VERSIONS = (1,)
_MEAN, _DEVIATION, _COUNT = "nv/cold/time/gpu/mean", "nv/cold/time/gpu/stdev/relative", "nv/cold/sample_size"
_SAMPLES = "nv/json/bin:nv/cold/sample_times"
EXPORT_TAG = "warpwatch/"
"""Begin of the tags of summaries that an export of Warpwatch adds: interval, commit, metric."""
_FACTS = ("name", "sm_version", "ptx_version", "sm_default_clock_rate", "number_of_sms", "global_memory_size")
_FACTS_OF_MEMORY = ("l2_cache_size", "ecc_state")


def read(values: dict[str, Any], sidecars: dict[str, bytes]) -> ForeignResults:
    version = _version(values)
    left_out: list[str] = []
    models = {whole(device.get("id")): device for device in objects(values, "devices", left_out)}
    states = list(_states(values, left_out))
    commit = _exported_commit(states)
    # Cards of the host that nothing ran on are none of the results'.
    used = list(dict.fromkeys(whole(state.get("device")) for _, state in states))
    # A state that names no known card says nothing of the others.
    device = next((models[ordinal] for ordinal in used if ordinal in models), {})
    name = str(device.get("name", ""))

    def model_of(ordinal: int | None) -> str:
        return str(models.get(ordinal, {}).get("name", ""))

    first_of: dict[str, int | None] = {}
    for ordinal in used:
        first_of.setdefault(model_of(ordinal), ordinal)

    def key(item: tuple[str, dict[str, Any]]) -> str:
        ordinal = whole(item[1].get("device"))
        return _key(item[0], item[1], None if ordinal == first_of[model_of(ordinal)] else ordinal)

    def read_state(key: str, item: tuple[str, dict[str, Any]]) -> ForeignBenchmark:
        model = model_of(whole(item[1].get("device")))
        return replace(_benchmark(key, item[1], sidecars), device="" if model in ("", name) else model)

    benchmarks = read_rows(states, key, read_state, left_out)
    named = sorted(set(sidecar_names(values)))
    missing = [path for path in named if path not in sidecars]
    if missing:
        left_out.append(f"samples: {len(missing)} of {len(named)} files are not there, such as {missing[0]}")
    facts = {name: device[name] for name in (*_FACTS, *_FACTS_OF_MEMORY) if name in device}
    facts["nvbench"] = str(version.get("nvbench", {}))[:200]
    return ForeignResults("nvbench", "cuda", name, facts, benchmarks, left_out, commit)


def _states(values: dict[str, Any], left_out: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of a benchmark and one of its states, for all of them."""
    for item in objects(values, "benchmarks", left_out):
        try:
            name = text_of(item.get("name"), "benchmarks: name")
            for state in objects(item, "states", left_out):
                yield name, state
        except FormatError as error:
            left_out.append(error.message)


def _exported_commit(states: list[tuple[str, dict[str, Any]]]) -> str:
    """The commit of a file that Warpwatch exported, "" for any other; FormatError where it holds several, or several
    metrics, whose times would be one benchmark's."""
    found: dict[str, set[str]] = {"commit": set(), "metric": set()}
    for _, state in states:
        with suppress(FormatError):
            summaries = _summaries(state)
            for name, values in found.items():
                values.add(str(summaries.get(EXPORT_TAG + name, {}).get("value", "")))
    for name, values in found.items():
        if len(values) > 1:
            raise invalid(f"it holds times of {len(values)} {name}s", f"export a single one by --{name}")
    return commit_of(next(iter(found["commit"]), ""))


def _version(values: dict[str, Any]) -> dict[str, Any]:
    """The versions that the file names; FormatError for a file that nvbench did not write, or wrote in another one."""
    meta = values.get("meta")
    version = meta.get("version") if isinstance(meta, dict) else None
    schema = version.get("json") if isinstance(version, dict) else None
    if not isinstance(version, dict) or not isinstance(schema, dict):
        fault = "it has no meta.version.json, so nvbench of 2022 or later did not write it"
        raise invalid(fault, "build the benchmark with a newer nvbench")
    expect_version(whole(schema.get("major")), VERSIONS, "the JSON of nvbench")
    return version


def sidecar_names(values: dict[str, Any]) -> list[str]:
    """The files of samples that the JSON names, as paths relative to it; FormatError for a path that leaves its
    folder."""
    _version(values)
    names = []
    for _, state in _states(values, []):
        with suppress(FormatError):
            filename = _summaries(state).get(_SAMPLES, {}).get("filename")
            names += [] if filename is None else [_relative(text_of(filename, "filename"))]
    return names


def _relative(name: str) -> str:
    # nvbench writes the path as it was given to --jsonbin; the samples lie beside the JSON, one folder down. On Windows
    # it writes backslashes.
    parts = PurePosixPath(name.replace("\\", "/")).parts[-2:]
    if ".." in parts or "\0" in name:
        raise invalid(f"{name[:60]!r} is no file of samples")
    return "/".join(part for part in parts if part != "/")


def _key(name: str, state: dict[str, Any], ordinal: int | None) -> str:
    """ordinal: of the card, where the benchmark ran on an earlier one of the same model as well."""
    axes = [f"{text_of(axis.get('name'), 'axis_values.name')}={axis.get('value')}" for axis in _axes(state)]
    return ",".join([name, *axes, *([] if ordinal is None else [f"device={ordinal}"])])


def _benchmark(key: str, state: dict[str, Any], sidecars: dict[str, bytes]) -> ForeignBenchmark:
    axes = ((name_of(str(axis.get("name"))), whole(axis.get("value"))) for axis in _axes(state))
    sizes = {axis: size for axis, size in axes if size is not None}
    if state.get("is_skipped"):
        message = str(state.get("skip_reason") or "nvbench skipped it")[:MESSAGE_LIMIT]
        return ForeignBenchmark(key, Status.SKIPPED, message, sizes=sizes)
    summaries = _summaries(state)
    if _MEAN not in summaries:
        raise invalid(f"{key}: no {_MEAN}", "let nvbench time the GPU: leave nvbench::exec_tag::timer's CPU-only mode")
    # The mean counts with and without samples: whether the folder of samples was copied changes no result.
    mean_ns = _value(summaries[_MEAN], f"{key}: {_MEAN}") * 1e9
    binary = summaries.get(_SAMPLES, {})
    filename = binary.get("filename")
    data = sidecars.get(_relative(text_of(filename, "filename"))) if filename is not None else None
    samples = [mean_ns] if data is None else _samples(key, data, whole(binary.get("size")))
    relative = deviation(summaries.get(_DEVIATION, {}).get("value"))
    count = whole(summaries.get(_COUNT, {}).get("value")) or 1
    # The interval of the samples' median need not hold their mean.
    benchmark = spread_by(timed(key, samples, sizes, mean_ns), None if relative is None else relative * mean_ns, count)
    if f"{EXPORT_TAG}low" not in summaries or f"{EXPORT_TAG}high" not in summaries:
        return benchmark
    ends = (_value(summaries[EXPORT_TAG + end], f"{key}: {end}") * 1e9 for end in ("low", "high"))
    return replace(bounded(benchmark, *ends), noise=benchmark.noise)


def _axes(state: dict[str, Any]) -> list[dict[str, Any]]:
    return objects(state, "axis_values") if "axis_values" in state else []


def _summaries(state: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The values of every summary, by its tag."""
    summaries: dict[str, dict[str, Any]] = {}
    for summary in objects(state, "summaries") if "summaries" in state else []:
        data = objects(summary, "data") if "data" in summary else []
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
