"""Benches projects that rewrite their own files while they are built, and says how they fare.

python -m bench.honest_builds [--budget 0.2]

Each project is built and benched, benched again on its checkout, and once more on a new checkout with the build that
was kept; with definitions in the commit itself, and beside it. Prints the statuses, the seconds of the build and of the
three jobs, and what is kept of the build. The goals are `ok` in every row, and one build per project.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from pathlib import Path

from tests.worker import honest_builds
from tests.worker.conftest import Diary, Repository, identify
from warpwatch.contract.spec import DefinitionsVersion, JobRequest, JobSpec
from warpwatch.contract.words import JobKind
from warpwatch.settings import Settings
from warpwatch.worker.execution import execute
from warpwatch.worker.host import Host
from warpwatch.worker.tools import Tools


def measure(tools: Tools, folder: Path, name: str, is_beside: bool, budget: float) -> str:
    """One row of the table: a project in one of the two modes."""
    folder.mkdir()
    measured, version = Repository(folder / "measured"), None
    files, definitions = honest_builds.FILES[name], honest_builds.definitions(name)
    if is_beside:
        beside = Repository(folder / "beside")
        version = DefinitionsVersion(beside.url, beside.commit("define", definitions))
    sha = measured.commit("build", files if is_beside else files | definitions)
    request = JobRequest(
        JobKind.BENCH, measured.url, sha, "twice", JobSpec(budget_ns=round(budget * 1e9)), definitions=version
    )
    diary, statuses, seconds = Diary(), set(), []
    for is_warm in (False, True, False):
        if not is_warm:
            tools.close()
        begin = time.monotonic()
        outcome = execute(request, tools, diary, tools.host.home / "traces")
        seconds.append(time.monotonic() - begin)
        statuses |= {str(finding.status) for finding in outcome.findings}
    builds = [float(taken) for line in diary.lines for taken in re.findall(r"build: done in ([\d.]+) s", line)]
    kept = [path for path in newest(tools.host.home / "builds").rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in kept)
    return (
        f"| {name} | {'beside' if is_beside else 'own'} | {', '.join(sorted(statuses))} "
        f"| {' + '.join(f'{taken:.1f}' for taken in builds)} | {' / '.join(f'{taken:.1f}' for taken in seconds)} "
        f"| {len(kept)} files, {size / 1000:.0f} kB |"
    )


def newest(builds: Path) -> Path:
    return max(builds.iterdir(), key=lambda folder: folder.stat().st_mtime)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--budget", type=float, default=0.2, help="seconds for each variant and case")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="honest-") as name:
        folder = Path(name)
        settings = Settings(home=folder / "home", case_timeout_seconds=60, build_timeout_seconds=300)
        identify(settings.home)
        (settings.home / "traces").mkdir()
        tools = Tools(Host(settings, "cpu"))
        print("| project | definitions | status | build, s | jobs: cold / warm / kept build, s | kept |")
        print("|---|---|---|---|---|---|")
        for project in honest_builds.NAMES:
            for is_beside in (False, True):
                print(measure(tools, folder / f"{project}-{is_beside}", project, is_beside, options.budget), flush=True)
        tools.close()


if __name__ == "__main__":
    main()
