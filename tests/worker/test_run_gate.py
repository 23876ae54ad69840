"""`warpwatch run` as a gate without a server: reports, exit codes, and a history in files or on a branch."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest
from typer.testing import CliRunner, Result

import warpwatch as warpwatch_package
from tests.builders import bench, catalogue, measurement
from tests.worker import probes
from tests.worker.conftest import Repository, identify
from tests.worker.test_run import CASE, start
from warpwatch.bundle import BundleReader, BundleWriter
from warpwatch.cli.app import app
from warpwatch.cli.results_history import HistoryFiles
from warpwatch.contract.environment import Card, Environment
from warpwatch.contract.outcome import Comparison, Finding, Outcome
from warpwatch.contract.spec import JobRequest
from warpwatch.contract.words import JobKind, Status
from warpwatch.git import describe
from warpwatch.server.reports.model import KINDS
from warpwatch.server.verdicts import changes
from warpwatch.server.verdicts.changes import Change
from warpwatch.server.verdicts.noise import Reading
from warpwatch.worker import ahead, execution
from warpwatch.worker.host import Host

FORMS = {"json": "r.json", "junit": "r.xml", "markdown": "r.md", "sarif": "r.sarif", "github": "check.json"}
QUICK = "def ok(x):\n    return x * 2"
SLOW = probes.OPERATOR.replace(QUICK, "def ok(x):\n    for _ in range(400):\n        x.sum()\n    return x * 2")
CARD = Card("cpu-1", {"host": "secret-host"})
HERE = Environment("env", "cpu", "cpu-2", "CPU, 2 cores", {}, CARD)


@dataclass
class PlantedTimes:
    """Results in place of measurements. times: of a commit, 10 µs where it is not named. noise: standard deviation of
    each round and run. environment: where they were taken. is_disturbed: whether rounds show 10 µs, whatever
    runs do. status, wrong: of checks, and the commits at which they are wrong."""

    times: dict[str, float] = field(default_factory=dict)
    noise: float = 0.002
    environment: Environment = HERE
    is_disturbed: bool = False
    status: Status = Status.OK
    wrong: set[str] = field(default_factory=set)
    asked: list[JobRequest] = field(default_factory=list)
    random: random.Random = field(default_factory=lambda: random.Random(7))

    def execute(self, request: JobRequest, *_: object) -> Outcome:
        self.asked.append(request)
        where = self.environment, {"copy": 1e10}, catalogue(("probe",), ("v1",))
        if request.kind == JobKind.COMPARE:
            base, head = (
                [self._time(sha, is_round=True) for _ in range(12)] for sha in (request.base_sha or "", request.sha)
            )
            return Outcome(*where, comparisons=[Comparison("v1", CASE, "hot", "1", Status.OK, "", base, head)])
        if request.kind == JobKind.BENCH:
            timed = bench(measurement(self._time(request.sha), "hot", self.noise))
            return Outcome(*where, findings=[Finding("v1", CASE, Status.OK, bench=timed)])
        status = Status.WRONG if request.sha in self.wrong else self.status
        return Outcome(*where, findings=[Finding("v1", CASE, status, "planted")])

    def _time(self, sha: str, *, is_round: bool = False) -> float:
        times = {} if is_round and self.is_disturbed else self.times
        return times.get(sha, 10_000.0) * self.random.lognormvariate(0, self.noise)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PlantedTimes:
    times = PlantedTimes()
    monkeypatch.setattr(execution, "execute", times.execute)
    monkeypatch.setattr(ahead.BuildAhead, "beside", lambda *_: nullcontext())
    monkeypatch.setattr(Host, "start_template", lambda *_: None)
    monkeypatch.setenv("WARPWATCH_HOME", str(tmp_path / "home"))
    for name in ("GITHUB_RUN_ID", "CI_JOB_URL"):
        monkeypatch.delenv(name, raising=False)
    return times


Gate = Callable[..., Result]


@pytest.fixture
def gate(repository: Repository, tmp_path: Path) -> Gate:
    def run(*words: str) -> Result:
        reports = [word for form, name in FORMS.items() for word in ("--report", f"{form}={tmp_path / name}")]
        command = ["run", "--repository", repository.url, "--device", "cpu", "--output", str(tmp_path / "now.wwb")]
        return CliRunner().invoke(app, [*command, *reports, *words])

    return run


def commits_of(repository: Repository, count: int) -> list[str]:
    return [repository.commit(f"commit {number}", probes.files() | {"note": str(number)}) for number in range(count)]


def read_reports(folder: Path) -> dict[str, Any]:
    return {form: (folder / name).read_text() for form, name in FORMS.items()}


def assert_all_say(folder: Path, words: str, level: str, conclusion: str) -> None:
    """All five forms name the finding in the same words, at their level."""
    texts = read_reports(folder)
    (case,) = [case for case in fromstring(texts["junit"]).iter("testcase") if case.find(level) is not None]
    assert words in (case.find(level).get("message") or "")  # type: ignore[union-attr]  # It was just found.
    assert f"**{words}**" in texts["markdown"]
    (result,) = json.loads(texts["sarif"])["runs"][0]["results"]
    assert words in result["message"]["text"]
    check = json.loads(texts["github"])
    assert (check["conclusion"], words in check["output"]["annotations"][0]["title"]) == (conclusion, True)
    assert words in json.loads(texts["json"])["summary"]


def test_a_slower_commit_fails_the_build_without_any_package_of_a_server(
    repository: Repository, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    identify(home)
    base = repository.commit("quick", probes.files())
    repository.commit("slow", {"kernels/probe.py": SLOW})
    words = [word for form, name in FORMS.items() for word in ("--report", f"{form}={tmp_path / name}")]
    command = ["run", "--repository", repository.url, "--commits", "HEAD", "--base", base, "--device", "cpu"]
    chosen = ["--variants", "ok", "--cases", CASE, "--kinds", "compare", "--budget-ms", "100"]
    run = start(home, *command, *chosen, "--output", str(tmp_path / "now.wwb"), *words, blocked=True)
    printed = run.communicate(timeout=280)[0]
    assert run.returncode == 1, printed
    assert "1 slower, 1 compared" in printed
    assert_all_say(tmp_path, "slower", "failure", "failure")


def test_unchanged_commits_pass(planted: PlantedTimes, gate: Gate, repository: Repository, tmp_path: Path) -> None:
    base, _ = commits_of(repository, 2)
    for _ in range(4):
        result = gate("--commits", "HEAD", "--base", base)
        assert (result.exit_code, "no slow-downs in 1 comparison" in result.output) == (0, True), result.output
    assert [job.kind for job in planted.asked[:3]] == [JobKind.CHECK, JobKind.BENCH, JobKind.COMPARE]
    texts = read_reports(tmp_path)
    assert json.loads(texts["json"])["conclusion"] == json.loads(texts["github"])["conclusion"] == "success"
    assert "details_url" not in json.loads(texts["github"])
    assert "measured without a server" in texts["markdown"]
    assert "]()" not in texts["markdown"]


def test_a_noisy_host_says_that_it_could_not_tell(
    planted: PlantedTimes, gate: Gate, repository: Repository, tmp_path: Path
) -> None:
    base, _ = commits_of(repository, 2)
    planted.noise = 0.2
    assert gate("--commits", "HEAD", "--base", base).exit_code == 0, "what is inconclusive fails nothing"
    result = gate("--commits", "HEAD", "--base", base, "--require-detectable", "5")
    assert result.exit_code == 2, result.output
    assert "would hide a slow-down of 5 %" in result.output
    assert_all_say(tmp_path, "could not tell", "error", "action_required")
    assert f'message="probe v1 {CASE}: could not tell on CPU, 2 cores at ' in (tmp_path / "r.xml").read_text()


@pytest.mark.parametrize(("status", "code"), [(Status.WRONG, 1), (Status.CRASHED, 2), (Status.UNSUPPORTED, 0)])
def test_exit_codes_are_those_of_a_server(
    planted: PlantedTimes, gate: Gate, repository: Repository, status: Status, code: int
) -> None:
    commits_of(repository, 1)
    planted.status = status
    assert gate("--commits", "HEAD", "--kinds", "check").exit_code == code


def test_a_range_ends_as_its_newest_commit(
    planted: PlantedTimes, gate: Gate, repository: Repository, tmp_path: Path
) -> None:
    base, older, newest = commits_of(repository, 3)
    planted.times, planted.wrong = {older: 13_000.0}, {older}
    assert gate("--commits", f"{base}..{newest}", "--base", base).exit_code == 0
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["conclusion"], report["counts"]) == ("success", {"fixed": 2})
    assert "Checks pass · no slow-downs in 1 comparison · 2 fixed later" in report["summary"]
    assert gate("--commits", older, "--base", base).exit_code == 1, "the range ends at what is wrong"


def test_a_commit_that_cannot_be_read_is_reported(
    planted: PlantedTimes, gate: Gate, repository: Repository, tmp_path: Path
) -> None:
    repository.commit("broken", probes.files() | {"warpwatch.toml": "contract = ["})
    result = gate("--commits", "HEAD", "--kinds", "check")
    assert result.exit_code == 2, result.output
    (row,) = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert (row["kind"], "warpwatch.toml" in row["message"]) == ("not_run", True)


def test_operators_with_the_sources_of_the_base_are_left_out(
    planted: PlantedTimes, gate: Gate, repository: Repository
) -> None:
    base, _ = commits_of(repository, 2)
    result = gate("--commits", "HEAD", "--base", base, "--skip-unchanged")
    assert (result.exit_code, planted.asked) == (0, []), result.output
    assert "1 unchanged" in result.output


def test_history_suspects_and_paired_rounds_decide(
    planted: PlantedTimes, gate: Gate, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change is looked for from the last commit of the old level on; what the rounds dismiss is no finding."""
    shas = commits_of(repository, 8)
    history = ("--history", f"{tmp_path / 'past'}/", "--record", "--kinds", "check,bench")
    assert gate("--commits", ",".join(shas[:6]), *history).exit_code == 0
    assert {job.kind for job in planted.asked} == {JobKind.CHECK, JobKind.BENCH}, "nothing stood out"
    planted.times = dict.fromkeys(shas[7:], 13_000.0)
    result = gate("--commits", shas[7], *history, "--require-detectable", "20")
    assert result.exit_code == 1, result.output
    assert [(job.base_sha, job.sha) for job in planted.asked if job.kind == JobKind.COMPARE] == [(shas[5], shas[7])]
    report = json.loads((tmp_path / "r.json").read_text())
    (row,) = report["rows"]
    assert (row["kind"], row["decided_by"]) == (
        "slower",
        "suspected from history, then 12 interleaved A/B rounds on one device",
    )
    assert report["sensitivity"]["missed"] == 0
    assert len(list((tmp_path / "past").iterdir())) == 2, "what is slower belongs to the history"

    # Where only the run was disturbed and not the rounds, nothing is found.
    planted.times = {shas[6]: 13_000.0}
    planted.is_disturbed = True
    looks: list[int] = []

    def find_changes(readings: list[Reading], device_kind: str) -> list[Change]:
        looks.append(len(readings))
        return changes.find_changes(readings, device_kind)

    monkeypatch.setattr("warpwatch.cli.gate.find_changes", find_changes)
    result = gate("--commits", shas[6], *history)
    assert result.exit_code == 0, result.output
    assert len(looks) == 1, "the one series is looked at once for trials and report"


def test_what_was_taken_elsewhere_teaches_nothing(
    planted: PlantedTimes, gate: Gate, repository: Repository, tmp_path: Path
) -> None:
    shas = commits_of(repository, 6)
    history = ("--history", f"{tmp_path / 'past'}/", "--record", "--kinds", "bench")
    gate("--commits", ",".join(shas[:5]), *history)
    required = ("--require-detectable", "30")
    assert gate("--commits", shas[5], *history, *required).exit_code == 0
    planted.environment = replace(HERE, card=Card("cpu-2"))
    assert gate("--commits", shas[5], *history, *required).exit_code == 2, "nothing is known of this card"


def test_runs_at_once_add_to_one_branch(repository: Repository, tmp_path: Path) -> None:
    """Each clone pushes on what the others pushed meanwhile; hosts are not named there."""
    commits_of(repository, 1)
    sha = repository.head()
    subprocess.run(["git", "clone", "--quiet", "--bare", repository.url, tmp_path / "origin.git"], check=True)
    clones = [tmp_path / f"clone{number}" for number in range(3)]
    for clone in clones:
        subprocess.run(["git", "clone", "--quiet", tmp_path / "origin.git", clone], check=True)
    assert HistoryFiles("results", clones[0]).read().files == 0
    file = tmp_path / "run.wwb"
    with BundleWriter(file, "r", "u", [describe(clones[0], sha)], "1") as bundle:
        assert bundle.runs == 0
    program = "import sys; from pathlib import Path; from warpwatch.cli.results_history import HistoryFiles\n"
    program += "HistoryFiles('results', Path(sys.argv[1])).record(Path(sys.argv[2]), sys.argv[3])"
    running = [subprocess.Popen([sys.executable, "-c", program, clone, file, sha]) for clone in clones]
    assert [process.wait(120) for process in running] == [0] * len(clones)
    for clone in clones:
        assert HistoryFiles("results", clone).read().files == len(clones)
        assert subprocess.run(["git", "status", "--porcelain"], cwd=clone, capture_output=True).stdout == b""


def test_a_recorded_file_holds_no_samples_and_no_host(
    planted: PlantedTimes, gate: Gate, repository: Repository, tmp_path: Path
) -> None:
    commits_of(repository, 1)
    assert gate("--commits", "HEAD", "--kinds", "check,bench", "--history", "results", "--record").exit_code == 0
    assert gate("--commits", "HEAD", "--kinds", "check,bench", "--history", "results").output.count("1 results file")
    names = subprocess.run(
        ["git", "ls-tree", "--name-only", "results"], cwd=repository.path, capture_output=True, text=True
    )
    (name,) = names.stdout.split()
    blob = subprocess.run(
        ["git", "show", f"results:{name}"], cwd=repository.path, capture_output=True, check=True
    ).stdout
    (tmp_path / "recorded.wwb").write_bytes(blob)
    with BundleReader(tmp_path / "recorded.wwb") as bundle:
        runs = list(bundle.runs())
    assert [done.order.kind for done in runs] == [JobKind.CHECK, JobKind.BENCH]
    assert runs[1].outcome.environment.card == Card(CARD.key)
    (finding,) = runs[1].outcome.findings
    assert finding.bench is not None
    assert len(finding.bench.measurements[0].samples_ns) == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--history", "main", "--record"), "holds the code that is measured"),
        (("--history", "../secret"), "no results file, folder or name of a branch"),
        (("--history", "a b"), "no results file, folder or name of a branch"),
        (("--history", "gone.wwb"), "there is no such file"),
        (("--record",), "name the folder or branch"),
        (("--report", "pdf=x"), "'pdf=x' is not FORMAT=FILE"),
        (("--skip-unchanged",), "--base"),
    ],
)
def test_bad_input_is_named(
    planted: PlantedTimes, gate: Gate, repository: Repository, words: tuple[str, ...], expected: str
) -> None:
    commits_of(repository, 1)
    result = gate("--commits", "HEAD", "--kinds", "check", *words)
    assert result.exit_code == 2, result.output
    assert expected in " ".join(result.output.split())


def test_a_damaged_file_of_a_history_is_left_out_and_named(
    planted: PlantedTimes, gate: Gate, repository: Repository, tmp_path: Path
) -> None:
    commits_of(repository, 1)
    (tmp_path / "past").mkdir()
    (tmp_path / "past" / "bad.wwb").write_text("no zip")
    result = gate("--commits", "HEAD", "--kinds", "check", "--history", str(tmp_path / "past"))
    assert result.exit_code == 0, result.output
    assert "left out: " in result.output
    result = gate("--commits", "HEAD", "--kinds", "check", "--history", str(tmp_path / "past" / "bad.wwb"))
    assert result.exit_code == 2


# --- the manuals for agents, word by word --------------------------------------------------------------------

MANUALS = Path(warpwatch_package.__file__).parent / "web" / "static" / "agents"


def follow(manual: Path) -> Iterator[tuple[str, int, str]]:
    """Runs every line of the manual's console blocks in the current folder; the line, its exit code and its output."""
    for block in re.findall(r"^( *)```console\n(.*?)```", manual.read_text(), re.DOTALL | re.MULTILINE):
        for line in textwrap.dedent(block[0] + block[1].lstrip()).strip().splitlines():
            program, *words = shlex.split(line)
            if program == "warpwatch":
                result = CliRunner().invoke(app, words)
                yield line, result.exit_code, result.output
            else:
                done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
                yield line, done.returncode, done.stdout + done.stderr


@pytest.fixture
def checkout(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> Repository:
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "Ann")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "ann@example.com")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    commits_of(repository, 2)
    identify(Path(os.environ["WARPWATCH_HOME"]))
    monkeypatch.chdir(repository.path)
    (repository.path / "kernels" / "probe.py").write_text(SLOW)
    return repository


def test_the_manual_that_init_writes_works_word_by_word(planted: PlantedTimes, checkout: Repository) -> None:
    planted.times = {checkout.head(): 13_000.0}
    (tried, code, output), *others = follow(MANUALS / "AGENTS.md")
    assert (tried, code) == ("warpwatch try --seconds 2", 0), output
    assert "faster" in output
    assert [code for _, code, _ in others] == [1, 0], others
    verdict = json.loads(others[1][2])
    assert (verdict["exit_code"], verdict["rows"][0]["kind"]) == (1, "slower")
    manual = (MANUALS / "AGENTS.md").read_text()
    assert [kind for kind in KINDS if f"`{kind}`" not in manual] == ["mismatch", "skipped", "accepted"]


def test_the_skill_works_word_by_word(planted: PlantedTimes, checkout: Repository) -> None:
    planted.times = {checkout.head(): 13_000.0}
    done = list(follow(MANUALS / "SKILL.md"))
    assert [(line.split()[1], code) for line, code, _ in done] == [
        ("doctor", 0),
        ("try", 0),
        ("commit", 0),
        ("run", 0),
    ], done
    verdict = json.loads((checkout.path / "verdict.json").read_text())
    assert (verdict["summary"], verdict["rows"][0]["kind"]) == ("1 compared, 1 faster", "faster")
