"""A service that has been in use for a while: three operators, forty commits, two devices, and everything that can go
wrong.

Written through the engine's own functions, the way a worker and the judge write it.
"""

from __future__ import annotations

import random
import subprocess
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.browser.operators import OPERATORS, Op, catalogue
from tests.browser.proved import prove
from tests.browser.regressed import regress
from tests.browser.scheduled import plan
from tests.browser.traces import real_trace
from tests.builders import list_job_ids
from warpwatch import git
from warpwatch.contract.environment import Environment
from warpwatch.contract.measurement import Counter, Measurement, TensorError
from warpwatch.contract.messages import BenchReply, BuildReply, CheckReply, KernelResources, ProfileReply
from warpwatch.contract.outcome import Comparison, Finding, Outcome
from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import Status, Triage, Verdict
from warpwatch.db import registry, regressions, runs, submissions, triage
from warpwatch.db.database import Database
from warpwatch.db.reads.history import find_series

COMMITS = 40
SLOWER, WRONG, CRASHED, UNBUILT, FASTER, NEW_DRIVER = 31, 18, 24, 12, 36, 22
"""Numbers of the commits where something happens, counted from 0."""
EVENTS = (8, 9, UNBUILT, SLOWER - 1, SLOWER, FASTER - 1, FASTER, COMMITS - 2, COMMITS - 1)

_FACTS = {
    "gpu": "NVIDIA H100 80GB HBM3",
    "driver": "570.86.15",
    "cuda": "13.0",
    "torch": "2.13.0+cu130",
    "compiler": "nvcc 13.0.48",
    "python": "3.11.9",
    "kernel": "6.8.0-51-generic",
    "cpu": "AMD EPYC 9454, 16 cores",
    "threads": 16,
}
_GPU_PEAKS = {"copy": 3.0e12, "f32": 51.7e12, "tf32": 367e12, "bf16": 798e12}
GPU = Environment("a" * 64, "cuda", "nvidia-h100-80gb-hbm3", "NVIDIA H100 80GB HBM3", _FACTS)
GPU_LATER = Environment("b" * 64, *(GPU.device_kind, GPU.device_key, GPU.device_name), _FACTS | {"driver": "580.65.06"})
CPU_FACTS = {"cpu": "AMD EPYC, 2 cores", "torch": "2.13.0", "compiler": "g++ 12.2.0", "threads": 2, "python": "3.11.9"}
CPU = Environment("c" * 64, "cpu", "amd-epyc-2-cores", "AMD EPYC, 2 cores", CPU_FACTS)
_PEAKS = {"cuda": _GPU_PEAKS, "cpu": {"copy": 2.1e11, "f32": 1.6e12, "f64": 8e11}}

_SUBJECTS = (
    "kron: Keep both layers of a row in shared memory",
    "square: Read four elements per thread",
    "vector_add: Launch one block per multiprocessor",
    "Say in the docs how the factors are packed",
    "kron: Swap the factor loops, so that stores are coalesced",
    "Raise the alignment of packed weights to 16 bytes",
    "square: Drop the bounds check for multiples of the tile",
    "kron: Fold the closing transpose into the last product",
)
_AUTHORS = ("First Author", "Second Author", "Third Author", "Fourth Author")


@dataclass
class World:
    """The seeded database, and ids that tests ask for."""

    database: Database
    source: Path
    folder: Path
    shas: list[str] = field(default_factory=list)
    repository: int = 0
    commits: dict[str, int] = field(default_factory=dict)
    operators: dict[str, int] = field(default_factory=dict)
    workers: dict[str, int] = field(default_factory=dict)
    devices: dict[str, int] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)


def make_source(path: Path) -> list[str]:
    """A git repository with COMMITS commits by several people, made in one go; ids, oldest first."""
    path.mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet", "--initial-branch", "main", str(path)], check=True)
    lines: list[str] = []
    first = int(time.time()) - COMMITS * 86_400 // 2
    for number in range(COMMITS):
        author = _AUTHORS[number % len(_AUTHORS)]
        when = f"{author} <a@example.com> {first + number * 86_400 // 2} +0000"
        subject = _SUBJECTS[number % len(_SUBJECTS)]
        lines += ["commit refs/heads/main", f"mark :{number + 1}", f"author {when}", f"committer {when}"]
        lines += [f"data {len(subject.encode())}", subject]
        if number:
            lines.append(f"from :{number}")
        for op in OPERATORS:
            text = f"SUBJECT = {subject!r}, {number}\n"
            lines += [f"M 644 inline kernels/{op.name}.py", f"data {len(text.encode())}", text]
    subprocess.run(["git", "fast-import", "--quiet"], cwd=path, input="\n".join(lines).encode() + b"\n", check=True)
    listed = subprocess.run(
        ["git", "rev-list", "--reverse", "main"], cwd=path, check=True, capture_output=True, text=True
    )
    return listed.stdout.split()


def build(world: World) -> World:
    """Fills the database."""
    from tests.browser.held import hold

    trace = real_trace()
    _register(world)
    for number in range(COMMITS):
        for op in OPERATORS:
            # Every commit of the operator that tests look at; of the others, those where something happens.
            if op.name == "kron" or number in EVENTS or number % 6 == 0:
                _measure(world, op, number, GPU_LATER if number >= NEW_DRIVER else GPU)
            if number >= COMMITS - 2:
                _measure(world, op, number, CPU)
    _profile(world, trace)
    _judge(world, trace)
    regress(world, SLOWER, FASTER, GPU.device_key, CPU.device_key)
    hold(world)
    _queue(world)
    prove(world.database, GPU, CPU)
    plan(world)
    return world


def _register(world: World) -> None:
    rows = git.describe_many(world.source, world.shas)
    with world.database.session() as s:
        world.repository = registry.ensure_repository(s, "kernels", str(world.source))
        world.commits = registry.record_commits(s, world.repository, rows)
        for environment in (GPU, CPU):
            device = registry.ensure_device(s, environment.device_key, environment.device_kind, environment.device_name)
            world.devices[environment.device_key] = device
            name = f"node7-{4242 + device}-{environment.device_kind}"
            world.workers[environment.device_key] = registry.register_worker(s, name, device, "0.1.0", {})
        registry.record_catalogue(s, world.commits[world.shas[0]], catalogue())
        world.operators = registry.ensure_operators(s, world.repository, [op.name for op in OPERATORS])


def submit(
    world: World,
    kind: str,
    number: int,
    op: str,
    device: str,
    *,
    base: int | None = None,
    origin: str = "api",
    jobs: int = 1,
) -> list[int]:
    """Ids of new jobs for the commit with that number."""
    base_id = None if base is None else world.commits[world.shas[base]]
    job = submissions.NewJob(
        kind,
        world.commits[world.shas[number]],
        world.operators[op],
        world.devices[device],
        JobSpec(),
        base_id,
    )
    asked = {"commits": world.shas[number][:10], "kinds": [kind], "operators": [op], "device": device, "suite": "quick"}
    with world.database.session() as s:
        new = submissions.NewSubmission(world.repository, asked, [job] * jobs, origin)
        return list_job_ids(s, submissions.create_submission(s, new))


def finish(world: World, job: int, outcome: Outcome, log: str = "") -> None:
    with world.database.session() as s:
        order = runs.begin_run(s, job, world.workers[outcome.environment.device_key])
        assert order is not None
        if log:
            runs.append_log(s, order.run_id, log)
        runs.finish_run(s, order.run_id, replace(outcome, peaks=_PEAKS[outcome.environment.device_kind]))


def _measure(world: World, op: Op, number: int, environment: Environment) -> None:
    """A check and a bench of one operator at one commit."""
    benched, checked = [], []
    for variant, _, _, factor in op.variants:
        for key, _, _, base in op.cases:
            status, message = _fate(op.name, variant, key, number, environment.device_kind)
            checked.append(Finding(variant, key, status, message, _checked(number, status)))
            ok = status in (Status.OK, Status.WRONG)
            timed = measurements(op, variant, key, base * factor, number, environment) if ok else []
            flops, size = next((flops, size) for name, flops, size, _ in op.cases if name == key)
            memory = size * (1.25 if number >= SLOWER else 1.0)
            counters = {"memory": Counter("bytes", memory, memory, memory, 1)}
            if environment.device_kind == "cuda":
                joules = 450e-9 * base * factor * (0.9 if number >= SLOWER else 1.0) * (1 + 0.01 * (number % 3))
                counters["energy"] = Counter("joules per call", joules, 0.98 * joules, 1.02 * joules, 5)
                counters["power"] = Counter("W", 450.0, 441.0, 459.0, 5)
            bench = BenchReply(Status.OK, "", flops, size, timed, counters=counters)
            benched.append(Finding(variant, key, Status.OK if ok else status, "" if ok else message, bench=bench))
    device = environment.device_key
    build = None
    if op.name != "vector_add":
        broken = op.name == "square" and number == UNBUILT
        build = BuildReply(
            Status.BUILD_FAILED if broken else Status.OK,
            "",
            f"{op.name}-{number // 4}",
            not broken and number % 4 != 0,
            0.04 if number % 4 else 6.3,
            "square.cu(41): error: expected a ';'\n1 error detected in the compilation of \"square.cu\"."
            if broken
            else "[1/2] nvcc\n[2/2] link\n",
            [] if broken else _machine_code(op.name, number),
            6.3,
            "" if broken else f"{op.name}-{number // 4}",
        )
    log = f"checking out {world.shas[number][:10]}\nbuilding {op.name}\n" + "".join(
        f"{row.variant} {row.case}: {row.status}\n" for row in checked
    )
    if number in (*EVENTS, WRONG, CRASHED, CRASHED + 1):
        finish(
            world,
            submit(world, "check", number, op.name, device)[0],
            Outcome(environment, build=build, findings=checked),
            log,
        )
    finish(world, submit(world, "bench", number, op.name, device)[0], Outcome(environment, findings=benched), log)


def _machine_code(op: str, number: int) -> list[KernelResources]:
    """Kernels of a build: every fourth commit changes the machine code of one, and SLOWER needs more registers."""
    slower = number >= SLOWER
    rows = [
        ("fwd<float, 4>", "sm_90", 80 if slower else 64, 49152, 0),
        ("bwd<float, 4>", "sm_90", 255, 65536, 96 * (op == "kron")),
        ("fwd<float, 4>", "sm_80", 72, 49152, 0),
        (".cu", "x86-64", 0, 0, 0),
    ]
    return [
        KernelResources(
            f"{op}_{name}" if name[0] != "." else f"{op}{name}",
            arch,
            registers,
            shared,
            spills,
            4096 + 128 * (number // 4 if place == 0 else 0),
            f"{op}{place}{number // 4 if place == 0 else 0}",
        )
        for place, (name, arch, registers, shared, spills) in enumerate(rows)
    ]


def _fate(op: str, variant: str, key: str, number: int, kind: str) -> tuple[Status, str]:
    if variant in ("cublas", "triton") and kind == "cpu":
        return Status.UNSUPPORTED, f"{variant} has no implementation for cpu"
    if variant == "cublas" and "f64" in key:
        return Status.UNSUPPORTED, "unsupported: only f32"
    if op == "kron" and variant == "v3" and number == WRONG and "bwd" in key:
        return (
            Status.WRONG,
            "grad x is wrong: relative error 4.1e-02, allowed 2.3e-05\nworst at [3, 127, 0]\nreplay with --seed 7",
        )
    if op == "kron" and variant == "v3" and number == CRASHED:
        return (
            Status.CRASHED,
            'Traceback (most recent call last):\n  File "kernels/kron.py", line 88, in v3\n'
            "RuntimeError: CUDA error: an illegal memory access",
        )
    if op == "kron" and variant == "v3" and number == CRASHED + 1 and "1024" in key:
        return Status.TIMED_OUT, "took longer than 120 s"
    if op == "vector_add" and variant == "v3" and number >= COMMITS - 2 and "16777216" in key and kind == "cuda":
        return Status.OUT_OF_MEMORY, "CUDA out of memory. Tried to allocate 64.00 MiB"
    if op == "vector_add" and variant == "v3" and number >= COMMITS - 3 and "513" in key:
        return Status.WRONG, "y is wrong: 1 of 513 elements differs\nworst at [512]"
    if op == "square" and variant == "v3" and number == UNBUILT:
        return Status.BUILD_FAILED, "square.cu(41): error: expected a ';'"
    return Status.OK, ""


def _checked(number: int, status: Status) -> CheckReply | None:
    if status not in (Status.OK, Status.WRONG):
        return None
    is_wrong = status == Status.WRONG
    tensors = [
        TensorError(name, right, 181.2, 181.2, relative, 3.1e-6, 3.0, 8.1e-8, 2.3e-5, worst)
        for name, right, relative, worst in (
            ("y", True, 9.4e-8, [3, 17]),
            ("grad x", not is_wrong, 4.1e-2 if is_wrong else 1.2e-7, [3, 127, 0]),
        )
    ]
    return CheckReply(status, "", number, tensors)


def measurements(
    op: Op, variant: str, key: str, base: float, number: int, environment: Environment
) -> list[Measurement]:
    """Every metric of one cell, with the noise of its kind; the same numbers every time."""
    rng = random.Random(f"{op.name}{variant}{key}{number}{environment.key}")
    level = base * (1.0 if environment.device_kind == "cuda" else 38.0)
    if op.name == "kron" and variant == "v3" and number >= SLOWER:
        level *= 1.17
    if op.name == "square" and variant == "v2" and number >= FASTER:
        level *= 0.9
    if environment is GPU_LATER:
        level *= 0.985
    found = []
    for metric, extra in (
        (("graph", 1.0), ("call", 1.9)) if environment.device_kind == "cuda" else (("hot", 1.0), ("cold", 1.4))
    ):
        median = level * extra * rng.gauss(1.0, 0.006)
        spread = abs(rng.gauss(0.004, 0.002)) + 0.001
        samples = [median * rng.gauss(1.0, spread) for _ in range(9)]
        found.append(Measurement(metric, samples, median, median * (1 - spread), median * (1 + spread), 2 * spread))
    return found


def _profile(world: World, trace: ProfileReply) -> None:
    job = submit(world, "profile", COMMITS - 1, "kron", GPU.device_key)[0]
    row = Finding("v3", OPERATORS[0].cases[0][0], Status.OK, profile=trace)
    finish(world, job, Outcome(GPU_LATER, findings=[row]), "profiled 3 steps\n")
    world.ids["profile_job"] = job


def _judge(world: World, trace: ProfileReply) -> None:
    """One confirmed slow-down, one confirmed speed-up, one dismissed and one suspected change."""
    world.ids["slower"] = _change(world, "kron", "v3", SLOWER, 1.17, Verdict.CONFIRMED, trace)
    world.ids["faster"] = _change(world, "square", "v2", FASTER, 0.9, Verdict.CONFIRMED, trace)
    world.ids["dismissed"] = _change(world, "vector_add", "v1", 9, 1.04, Verdict.DISMISSED, trace)
    world.ids["suspected"] = _change(world, "vector_add", "v2", COMMITS - 1, 1.06, None, trace)
    with world.database.session() as s:
        note = "The second buffer halves the occupancy. A smaller tile follows.\nUntil then v2 serves."
        triage.set_triage(s, world.ids["slower"], Triage.ACKNOWLEDGED, "First Author", note)
        triage.set_triage(
            s, world.ids["slower"], Triage.NEW, "Second Author", "Open again: it also hits the backward pass."
        )


def _change(
    world: World, operator: str, variant: str, number: int, ratio: float, verdict: Verdict | None, trace: ProfileReply
) -> int:
    op = next(one for one in OPERATORS if one.name == operator)
    direction = "slower" if ratio > 1 else "faster"
    with world.database.session() as s:
        series = [
            find_series(s, world.repository, operator, key, variant, GPU.device_key, "graph")
            for key, *_ in op.cases[:2]
        ]
        members = [(one.id, ratio * (1 - 0.01 * place)) for place, one in enumerate(series) if one]
        found = regressions.open_suspicion(
            s,
            operator_id=world.operators[operator],
            device_id=world.devices[GPU.device_key],
            base_commit_id=world.commits[world.shas[number - 1]],
            head_commit_id=world.commits[world.shas[number]],
            direction=direction,
            ratio=ratio,
            series=members,
        )
    assert found is not None
    job = submit(world, "compare", number, operator, GPU.device_key, base=number - 1, origin="confirm")[0]
    with world.database.session() as s:
        regressions.attach_compare_job(s, found, job)
    if verdict is None:
        return found
    real = ratio if verdict == Verdict.CONFIRMED else 1.002
    rng = random.Random(number)
    rounds = []
    for key, _, _, base in op.cases[:2]:
        drift = [base * 0.41 * rng.gauss(1.0, 0.008) for _ in range(14)]
        rounds.append(
            Comparison(
                variant,
                key,
                "graph",
                "1",
                Status.OK,
                "",
                drift,
                [value * real * rng.gauss(1.0, 0.003) for value in drift],
            )
        )
    traced = [Finding(variant, op.cases[0][0], Status.OK, profile=trace)]
    finish(
        world,
        job,
        Outcome(GPU_LATER, findings=traced, base_findings=traced, comparisons=rounds),
        "14 rounds, order swapped each time\n",
    )
    with world.database.session() as s:
        decisions = [regressions.SeriesDecision(id_, verdict, real, real * 0.994, real * 1.005) for id_, _ in members]
        latest = trace_ids(s)
        regressions.decide(
            s,
            found,
            verdict,
            ratio=real,
            low=real * 0.994,
            high=real * 1.005,
            series=decisions,
            base_trace_id=latest[1],
            head_trace_id=latest[0],
        )
    return found


def trace_ids(s: Any) -> list[int]:
    """Ids of all traces, newest first."""
    from sqlalchemy import text

    return list(s.execute(text("SELECT id FROM traces ORDER BY id DESC")).scalars())


def _queue(world: World) -> None:
    """A job that runs, some that wait, one that failed, one that was cancelled."""
    running, *waiting = submit(world, "bench", COMMITS - 1, "square", CPU.device_key, origin="form", jobs=4)
    with world.database.session() as s:
        order = runs.begin_run(s, running, world.workers[CPU.device_key])
        assert order is not None
        runs.append_log(s, order.run_id, "building square\n[1/1] g++ square.cpp\nv1 n=2048x2048,f32,fwd: 512.4 µs\n")
        runs.set_progress(s, order.run_id, 3, 8, "v2 n=2048x2048,f32,fwd")
        submissions.cancel_job(s, waiting[-1])
    failed = submit(world, "check", COMMITS - 1, "kron", CPU.device_key)[0]
    with world.database.session() as s:
        lost = runs.begin_run(s, failed, world.workers[CPU.device_key])
        assert lost is not None
        runs.append_log(s, lost.run_id, "git worktree add failed: no space left on device\n")
        runs.fail_run(
            s, lost.run_id, "git worktree add failed: no space left on device; free some and run it again", retry=False
        )
    world.ids |= {"running_job": running, "running_run": order.run_id, "queued_job": waiting[0], "failed_job": failed}
