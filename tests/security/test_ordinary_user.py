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
TESTS = {
    "tests/security/test_builds.py": [
        "test_a_build_does_not_write_through_a_link_of_its_commit[own-lib/out]",
        "test_what_is_installed_is_not_read_through_links[beside-4]",
        "test_what_is_no_file_is_left_behind[own]",
    ],
    "tests/security/test_claims.py": [
        "test_what_lies_in_a_traces_place_is_not_opened",
        "test_a_trace_is_copied_out_of_the_childs_reach",
    ],
    "tests/security/test_commits.py": [
        "test_nothing_that_the_base_preloads_or_shares_reaches_the_head",
        "test_the_sides_of_a_comparison_do_not_see_each_other",
        "test_a_library_of_the_same_sources_is_not_overwritten",
        "test_machine_code_is_not_planted_for_another_commit[TRITON_CACHE_DIR]",
        "test_nothing_else_survives_a_child",
        "test_the_worker_is_out_of_reach",
        "test_time_is_up_for_everything_that_a_child_started[os.fork() == 0 and os.setsid()]",
        "test_a_full_temp_folder_costs_its_own_child_only",
    ],
    "tests/security/test_forged_replies.py": ["test_a_reply_before_the_harnesss_own_is_noticed"],
    "tests/test_git.py": ["test_hooks_and_secrets_stay_out", "test_files_are_checked_out_by_their_names_alone"],
    "tests/worker/test_building.py": [
        "test_a_compiler_that_hangs_is_stopped",
        "test_compilers_cannot_write_to_worktree_or_store",
        "test_a_library_in_the_store_is_not_writable",
    ],
    "tests/worker/test_caches.py": [
        "test_what_one_child_compiled_the_next_one_has",
        "test_a_link_in_place_of_the_folder_is_not_followed",
    ],
    "tests/worker/test_device_lock.py": ["test_a_second_worker_is_refused_and_a_second_job_waits"],
    "tests/worker/test_isolation.py": [
        "test_a_container_that_masks_proc_gives_all_but_a_view_of_processes",
        "test_each_isolation_has_its_gaps",
        "test_commits_of_forks_do_not_run_where_they_cannot_be_shut_in",
    ],
    "tests/worker/test_templates.py": [
        "test_a_fork_has_what_a_program_has",
        "test_nothing_of_an_earlier_child_is_in_memory",
        "test_a_template_is_not_read_by_others_of_its_user",
    ],
    "tests/worker/test_trees.py": [
        "test_links_that_are_swapped_meanwhile_lead_nowhere[remove]",
        "test_what_a_new_child_gets_is_not_written_through_its_links",
    ],
}
"""The files that run as an ordinary user at night, and the tests of each that every run has: where rights decide, such
as those of namespaces, of files that children leave, and of processes beside each other."""
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

    def expect_passed(self, tests: str, least: int) -> None:
        module = tests.removesuffix(".py").replace("/", ".")
        assert not self.failures[module], "\n".join(self.failures[module])[-5000:]
        assert self.passed[module] >= least, f"a run in which tests were skipped shows nothing: {self.output}"


@pytest.fixture(scope="module")
def report() -> Iterator[Report]:
    yield from run([f"{file}::{name}" for file, names in TESTS.items() for name in names] + [FLOOD])


@pytest.fixture(scope="module")
def whole_report() -> Iterator[Report]:
    yield from run(["-m", "", *(f"--deselect={test}" for test in SAME), *TESTS])


def run(words: list[str]) -> Iterator[Report]:
    """Runs pytest with these words as the ordinary user."""
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
        options += [f"--junit-xml={folder}/report.xml", *words]
        done = subprocess.run(
            [*command, "-m", "pytest", *options], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        report = Report(done.stdout[-5000:] + done.stderr[-1000:])
        if Path(folder, "report.xml").exists():
            report.read(Path(folder, "report.xml"))
        yield report


@pytest.mark.parametrize("tests", TESTS)
def test_as_an_ordinary_user(report: Report, tests: str) -> None:
    report.expect_passed(tests, len(TESTS[tests]))


@pytest.mark.nightly
@pytest.mark.parametrize("tests", TESTS)
def test_whole_files_as_an_ordinary_user(whole_report: Report, tests: str) -> None:
    whole_report.expect_passed(tests, 1)


def test_a_flood_of_descriptors_is_what_the_limit_stops(report: Report) -> None:
    assert report.failures["tests.security.test_self_attack"] == []
