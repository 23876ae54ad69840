"""Sealed jobs: code that has seen a hidden case cannot tell it to a later job of the same code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.worker import probes
from tests.worker.conftest import Diary, Repository
from warpwatch.contract.codec import to_json
from warpwatch.contract.spec import JobRequest, JobSpec
from warpwatch.contract.words import JobKind, JobState, JudgementVerdict, Status
from warpwatch.db.judgements import JudgedJob
from warpwatch.server.judge.judgements import judge_cases
from warpwatch.worker.execution import execute
from warpwatch.worker.proving import BENCH_BUDGET_NS, FOLDER
from warpwatch.worker.tools import Tools

HIDDEN, PUBLIC = "n=8191,f32,fwd", "n=100,f32,fwd"
SPY = """
import os
import torch
from pathlib import Path

seen = []


@operator.variant("spy", idea="keeps what it saw wherever it may write")
def spy(x):
    places = [Path(os.environ[name]) for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TMPDIR", "HOME")
              if name in os.environ]
    places += [Path(torch.__file__).parent, Path(__file__).parent, Path("/tmp"), Path("/dev/shm")]
    found = list(seen)
    for place in places:
        try:
            found += [path.read_text() for path in place.glob("spy-*")]
            (place / f"spy-{len(x)}").write_text(f"saw {len(x)}")
        except OSError:
            continue
    seen.append(f"saw {len(x)}")
    if len(x) != 8191 and found:
        raise RuntimeError(f"it was told: {sorted(set(found))}")
    return x * 2
"""


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "open"])
def test_a_later_job_of_the_same_code_learns_nothing(
    repository: Repository, tools: Tools, tmp_path: Path, sealed: bool
) -> None:
    """The job before is sealed, or a usual one, of which the caches of compilers do tell."""
    files = probes.files()
    files["kernels/probe.py"] += SPY
    sha = repository.commit("spy", files)
    request = JobRequest(JobKind.CHECK, repository.url, sha, "probe", JobSpec(variants=["spy"], cases=[HIDDEN]))
    first = execute(replace(request, spec=replace(request.spec, sealed=sealed)), tools, Diary(), tmp_path)
    assert [finding.case for finding in first.findings] == [HIDDEN]
    (later,) = execute(replace(request, spec=replace(request.spec, cases=[PUBLIC])), tools, Diary(), tmp_path).findings
    assert ("8191" in later.message) is not sealed
    assert later.status is Status.CRASHED, "it found what it wrote itself"


EXAM = {
    "patches": ["honest", "timer", "comparison"],
    "prepared": ["in_a_global"],
    "spies": ["searches_memory", "knows_it_is_timed"],
}
"""Cheats of the exam, and one that computes."""


def test_cheats_of_the_exam_are_judged_as_cheats(repository: Repository, tools: Tools, tmp_path: Path) -> None:
    """On a case that none of them was made for, in sealed jobs as a judgement has them."""
    folder = FOLDER / "cheaters"
    paths = [folder / "warpwatch.toml", *folder.glob("kernels/*.py")]
    sha = repository.commit("cheats", {str(path.relative_to(folder)): path.read_text() for path in paths})
    verdicts: dict[str, JudgementVerdict | None] = {}
    for operator, variants in EXAM.items():
        spec = JobSpec(variants=variants, cases=["n=192,f32,fwd"], seed=7, budget_ns=BENCH_BUDGET_NS, sealed=True)
        for kind in (JobKind.CHECK, JobKind.BENCH):
            request = JobRequest(kind, repository.url, sha, operator, spec)
            outcome = to_json(execute(request, tools, Diary(), tmp_path))
            for name in variants:
                found = {**outcome, "findings": [row for row in outcome["findings"] if row["variant"] == name]}
                job = JudgedJob(
                    1, kind, JobState.DONE, None, replace(spec, variants=[name]), spec.cases, 7, found, 1.0, 1.0, None
                )
                if verdicts.get(name, JudgementVerdict.SAME) is JudgementVerdict.SAME:
                    verdicts[name] = judge_cases([job], "cpu").verdict
    assert verdicts.pop("honest") is JudgementVerdict.SAME
    # A check finds this one wrong before a bench sees what it does.
    assert verdicts.pop("searches_memory") is JudgementVerdict.WRONG
    assert set(verdicts.values()) == {JudgementVerdict.CHEATS}
