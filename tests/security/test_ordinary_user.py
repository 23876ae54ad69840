"""What holds for a worker that runs as root holds for one that runs as an ordinary user: the same tests, as that user.

The tests of the sandbox take the user as a parameter of their fixture. Those below run a whole worker in their process,
so another process runs them, one for all of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.security.conftest import NOBODY, as_user

pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).parents[2]
SITE_PACKAGES = Path(pytest.__file__).parents[1]
TESTS = [
    "tests/security/test_builds.py",
    "tests/security/test_claims.py",
    "tests/security/test_commits.py",
    "tests/security/test_forged_replies.py",
    "tests/test_git.py",
    "tests/worker/test_building.py",
    "tests/worker/test_caches.py",
    "tests/worker/test_device_lock.py",
    "tests/worker/test_isolation.py",
    "tests/worker/test_templates.py",
    "tests/worker/test_trees.py",
]
FLOOD = "tests/security/test_self_attack.py::test_with_the_limit_of_the_worker_a_child_would_stop_the_next_one"
"""A test that stops every other child of its user. It is skipped where the user may have too many files open."""
SAME = ["tests/worker/test_templates.py::test_importing_the_harness_asks_for_no_device"]
"""Tests that import modules alone, which is the same for every user who may read them."""


def commands() -> list[list[str]]:
    """Python as the ordinary user: this one, and where that is closed to others, the system's of the same version."""
    command = as_user(NOBODY)
    return [[*command[:-1], sys.executable], command]


@dataclass(slots=True)
class Report:
    """What became of the tests of each module. failures: with what pytest says of them. output: of the whole run."""

    output: str
    passed: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    failures: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def read(self, path: Path) -> None:
        for case in ElementTree.parse(path).iter("testcase"):
            problems = [*case.iter("failure"), *case.iter("error")]
            self.failures[case.attrib["classname"]] += [f"{case.attrib['name']}\n{item.text}" for item in problems]
            self.passed[case.attrib["classname"]] += not problems and case.find("skipped") is None


@pytest.fixture(scope="module")
def report() -> Iterator[Report]:
    if os.getuid() != 0:
        pytest.skip("these tests run as an ordinary user anyway")
    with tempfile.TemporaryDirectory(prefix="user-") as folder:
        os.chown(folder, NOBODY, NOBODY)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": folder,
            "TMPDIR": folder,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{SITE_PACKAGES}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        # setpriv starts even a Python in a closed folder; the children of that Python would not start.
        look = (
            "import subprocess, sys, pytest, psycopg; subprocess.run([sys.executable, '-c', ''], check=True); "
            f"assert sys.version_info[:2] == {sys.version_info[:2]}"
        )
        for command in commands():
            if not subprocess.run([*command, "-c", look], env=environment, capture_output=True, check=False).returncode:
                break
        else:
            pytest.skip("an ordinary user cannot read this checkout, or has no Python of this version")
        options = ["-q", "-n", "0", "-p", "no:cacheprovider", "--basetemp", f"{folder}/pytest"]
        options += [f"--junit-xml={folder}/report.xml", *(f"--deselect={test}" for test in SAME), *TESTS, FLOOD]
        done = subprocess.run(
            [*command, "-m", "pytest", *options], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        report = Report(done.stdout[-5000:] + done.stderr[-1000:])
        if Path(folder, "report.xml").exists():
            report.read(Path(folder, "report.xml"))
        yield report


@pytest.mark.parametrize("tests", TESTS)
def test_as_an_ordinary_user(report: Report, tests: str) -> None:
    module = tests.removesuffix(".py").replace("/", ".")
    assert not report.failures[module], "\n".join(report.failures[module])[-5000:]
    assert report.passed[module], f"a run in which every test was skipped shows nothing: {report.output}"


def test_a_flood_of_descriptors_is_what_the_limit_stops(report: Report) -> None:
    assert report.failures["tests.security.test_self_attack"] == []
