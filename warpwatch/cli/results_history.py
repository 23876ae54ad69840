"""The history of a repository without a database: results files in a folder, or on a branch of the repository.

Each run adds one file of its own name, so two runs never write the same one; a push that another run forestalls is
tried again on top of the other's.
"""

from __future__ import annotations

import random
import shutil
import tarfile
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from warpwatch import __version__, git
from warpwatch.bundle import BundledRun, BundleError, BundleReader, BundleWriter
from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.environment import Environment
from warpwatch.contract.measurement import JUDGED, Measurement
from warpwatch.contract.outcome import Finding, Outcome
from warpwatch.contract.spec import JobRequest
from warpwatch.contract.words import JobKind, Status

MOST_FILES = 500
"""Files of a history that are read, the newest by name."""
MOST_BYTES = 512 * 2**20
"""Of all files of a branch, so that a branch of code is not taken for a history."""
PUSHES = 12
"""Attempts to add a file to a branch that other runs add to."""
_LONGEST_PAUSE = 3.0
_ZEROS = "0" * 40
_IDENTITY = {
    f"GIT_{role}_{name}": value
    for role in ("AUTHOR", "COMMITTER")
    for name, value in (("NAME", "Warpwatch"), ("EMAIL", "warpwatch@localhost"))
}


class HistoryError(ValueError):
    """A history cannot be read or written; the message names the remedy."""


@dataclass(frozen=True, slots=True)
class HistoryKey:
    """One line of a history: times in another environment or of another card do not compare."""

    operator: str
    variant: str
    case: str
    metric: str
    environment: str
    card: str | None


@dataclass(slots=True)
class ResultsHistory:
    """times: commit with median, low and high (ns), by line. statuses: the newest status of a kind of job at a commit,
    by (commit, kind, operator, variant, case). left_out: files that cannot be read, and why."""

    times: defaultdict[HistoryKey, list[tuple[str, tuple[float, float, float]]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    statuses: dict[tuple[str | None, str, str, str, str], Status] = field(default_factory=dict)
    files: int = 0
    left_out: list[str] = field(default_factory=list)

    def add(self, request: JobRequest, outcome: Outcome) -> None:
        """Adds what one check or bench found."""
        for finding in outcome.findings if request.kind in (JobKind.CHECK, JobKind.BENCH) else ():
            place = request.sha, str(request.kind), request.operator, finding.variant, finding.case
            self.statuses[place] = finding.status
            measured = device_time(finding, outcome.environment.device_kind)
            if measured is not None:
                key = key_of(request, outcome.environment, finding, measured.metric)
                times = measured.median_ns, measured.low_ns, measured.high_ns
                self.times[key].append((request.sha, times))

    def read(self, file: Path) -> None:
        """Adds the results of a file; BundleError where it is none."""
        with BundleReader(file) as bundle:
            runs: list[BundledRun] = list(bundle.runs())
        for done in runs:
            self.add(done.order, done.outcome)
        self.files += 1


def device_time(finding: Finding, device_kind: str) -> Measurement | None:
    """The time of the device that verdicts are about; None where nothing right was timed."""
    if finding.status is not Status.OK or finding.bench is None:
        return None
    by_metric = {measured.metric: measured for measured in finding.bench.measurements}
    return by_metric.get(JUDGED[device_kind][0]) or by_metric.get("kernel")


def key_of(request: JobRequest, environment: Environment, finding: Finding, metric: str) -> HistoryKey:
    card = environment.card.key if environment.card is not None else None
    return HistoryKey(request.operator, finding.variant, finding.case, metric, environment.key, card)


class HistoryFiles:
    """Where --history says that results files lie: one file, a folder, or a branch of the checkout at `root`."""

    def __init__(self, text: str, root: Path) -> None:
        self._text, self._root = text, root
        path = Path(text)
        self._path = path if path.exists() or text.endswith(("/", ".wwb")) else None
        if self._path is None and not root.is_dir():
            raise HistoryError(f"--history {text}: a branch is read from a checkout; clone the repository and name it")
        if self._path is None:
            try:
                git.git("check-ref-format", f"refs/heads/{text}", cwd=root)
            except git.GitError:
                raise HistoryError(
                    f"--history {text!r} is no results file, folder or name of a branch; name one, such as "
                    "warpwatch-history"
                ) from None
        elif not path.exists() and text.endswith(".wwb"):
            raise HistoryError(f"--history {text}: there is no such file; name a results file, a folder or a branch")

    def read(self) -> ResultsHistory:
        """All results of the history. A damaged file among several is left out, one that is named is an error."""
        history = ResultsHistory()
        if self._path is not None and self._path.is_file():
            history.read(self._path)
            return history
        with self._files() as files:
            for file in sorted(files, key=lambda file: file.name)[-MOST_FILES:]:
                try:
                    history.read(file)
                except BundleError as error:
                    history.left_out.append(str(error))
        return history

    def record(self, file: Path, head_sha: str) -> str:
        """Adds a results file under a name of its own, and returns where it lies now."""
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{head_sha[:12]}-{uuid4().hex[:8]}.wwb"
        if self._path is None:
            self._push(file, name, head_sha)
            return f"{name} on branch {self._text}"
        if self._path.is_file():
            raise HistoryError(f"--record: {self._path} is one file; give --history a folder or a branch to add to")
        self._path.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, self._path / name)
        return str(self._path / name)

    @contextmanager
    def _files(self) -> Iterator[list[Path]]:
        if self._path is not None:
            yield list(self._path.glob("*.wwb"))
            return
        tip = self._tip()
        with tempfile.TemporaryDirectory(prefix="warpwatch-history-") as temporary:
            yield self._extract(tip, Path(temporary)) if tip is not None else []

    def _extract(self, tip: str, folder: Path) -> list[Path]:
        """The results files at the top of the branch's tree."""
        listing = git.git("ls-tree", "-l", "-z", tip, cwd=self._root).split("\0")[:-1]
        rows = [(about.split()[3], name) for about, _, name in (entry.partition("\t") for entry in listing)]
        names = sorted(name for size, name in rows if name.endswith(".wwb") and size.isdigit())[-MOST_FILES:]
        if sum(int(size) for size, name in rows if name in names) > MOST_BYTES:
            raise HistoryError(
                f"branch {self._text} holds more than {MOST_BYTES >> 20} MiB of results; delete its oldest files"
            )
        if not names:
            return []
        archive = folder / "history.tar"
        git.git("archive", "--format=tar", f"--output={archive}", tip, "--", *names, cwd=self._root)
        files: list[Path] = []
        with tarfile.open(archive) as opened:
            for member in opened:
                source = opened.extractfile(member) if member.isfile() and member.name in names else None
                if source is not None:
                    files.append(folder / f"{len(files):05}.wwb")
                    with source, files[-1].open("wb") as target:
                        shutil.copyfileobj(source, target)
        return files

    def _remote(self) -> str | None:
        names = git.git("remote", cwd=self._root).split()
        return "origin" if "origin" in names else names[0] if names else None

    def _tip(self) -> str | None:
        """The newest commit of the branch, fetched from the remote where there is one; None where there is none yet."""
        ref = f"refs/heads/{self._text}"
        remote = self._remote()
        if remote is None:
            listed = git.git("for-each-ref", "--format=%(objectname)", ref, cwd=self._root).split()
            return listed[0] if listed else None
        if not git.git("ls-remote", "--", remote, ref, cwd=self._root).strip():
            return None
        local = f"refs/warpwatch/{self._text}"
        git.git("fetch", "--no-tags", "--quiet", "--", remote, f"+{ref}:{local}", cwd=self._root, timeout=300)
        return git.git("rev-parse", "--verify", "--end-of-options", local, cwd=self._root).strip()

    def _push(self, file: Path, name: str, head_sha: str) -> None:
        blob = git.git("hash-object", "-w", "--no-filters", "--", str(file.absolute()), cwd=self._root).strip()
        for attempt in range(PUSHES):
            tip = self._tip()
            self._expect_own_branch(tip, head_sha)
            commit = self._commit(tip, blob, name, head_sha)
            try:
                self._move(tip, commit)
                return
            except git.GitError as error:
                # Another run was faster, unless the remote still has what this commit stands on.
                if attempt + 1 == PUSHES or self._tip() == tip:
                    raise HistoryError(
                        f"--record: branch {self._text} cannot be written: {error}; the job needs the permission to "
                        "push to it (GitHub: `contents: write`)"
                    ) from None
            time.sleep(random.uniform(0, min(_LONGEST_PAUSE, 0.1 * 2**attempt)))

    def _expect_own_branch(self, tip: str | None, head_sha: str) -> None:
        """Refuses a branch that shares commits with what is measured."""
        if tip is None:
            return
        try:
            git.git("merge-base", tip, head_sha, cwd=self._root)
        except git.GitError:
            return
        raise HistoryError(
            f"--record: branch {self._text} holds the code that is measured; name a branch of its own, such as "
            "warpwatch-history"
        )

    def _commit(self, tip: str | None, blob: str, name: str, head_sha: str) -> str:
        """A commit on top of the branch that adds the file; nothing of the checkout or its index is touched."""
        with tempfile.TemporaryDirectory(prefix="warpwatch-index-") as folder:
            index = Path(folder) / "index"
            if tip is not None:
                git.git("read-tree", tip, cwd=self._root, index=index)
            git.git("update-index", "--add", "--cacheinfo", f"100644,{blob},{name}", cwd=self._root, index=index)
            tree = git.git("write-tree", cwd=self._root, index=index).strip()
        parents = ["-p", tip] if tip is not None else []
        message = f"Add results of {short_sha(head_sha)}"
        made = git.git("commit-tree", tree, *parents, "-m", message, cwd=self._root, environment=_IDENTITY)
        return made.strip()

    def _move(self, tip: str | None, commit: str) -> None:
        ref, remote = f"refs/heads/{self._text}", self._remote()
        if remote is None:
            git.git("update-ref", ref, commit, tip or _ZEROS, cwd=self._root)
        else:
            git.git("push", "--quiet", "--", remote, f"{commit}:{ref}", cwd=self._root, timeout=300)


def without_samples(outcome: Outcome) -> Outcome:
    """The outcome with medians and intervals alone: samples are nine tenths of its bytes."""
    findings = []
    for finding in outcome.findings:
        bench = finding.bench
        if bench is not None:
            measurements = [
                replace(measured, samples_ns=[measured.median_ns], distribution=None) for measured in bench.measurements
            ]
            bench = replace(bench, measurements=measurements)
        findings.append(replace(finding, bench=bench))
    return replace(outcome, findings=findings)


def write_history_file(
    file: Path, repository: str, url: str, commits: list[git.CommitInfo], jobs: Sequence[tuple[JobRequest, Outcome]]
) -> None:
    """Writes the checks and benches of a run, which later runs read."""
    now = datetime.now(UTC)
    with BundleWriter(file, repository, url, commits, __version__) as bundle:
        for request, outcome in jobs:
            if request.kind in (JobKind.CHECK, JobKind.BENCH):
                # The branch may be public, and the facts of a card name the host.
                card = outcome.environment.card
                environment = replace(outcome.environment, card=replace(card, facts={}) if card is not None else None)
                bundle.add(request, replace(outcome, environment=environment), now, now)
