"""What may be the cause of a change: every part is told from both sides, and says plainly when nothing is known."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.builders import CASES, CPU, Lab, commit, make_repository, measurement, run_git
from tests.builders import bench as bench_reply
from tests.planted import plant
from tests.server.test_code import problem
from warpwatch import git
from warpwatch.contract.measurement import TensorError, TraceKernel
from warpwatch.contract.messages import BuildReply, CheckReply, KernelResources, ProfileReply
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import Status
from warpwatch.db.database import Database
from warpwatch.server.history.diffs import MOST_COLUMNS, MOST_LINES, compare_url
from warpwatch.settings import Settings

CELL = ("v3", CASES[0])


def cause(client: TestClient, number: int) -> Any:
    answer = client.get(f"/api/v1/regressions/{number}/cause")
    assert answer.status_code == 200, answer.text
    return answer.json()


def tabs(page: str) -> list[str]:
    """The tabs of the evidence."""
    (section,) = re.findall(r'<section id="evidence".*?</ul>', page, re.DOTALL)
    return re.findall(r">([^<>]+)</a>", section)


def opened(client: TestClient, number: int, *evidence: str) -> str:
    """Tabs of the evidence of a regression, one below the other."""
    pages = [client.get(f"/regressions/{number}", params={"evidence": tab}) for tab in evidence]
    assert all(page.status_code == 200 for page in pages)
    return "".join(page.text for page in pages).replace("\u2009", " ")


def test_nothing_known_is_said_plainly(client: TestClient, lab: Lab) -> None:
    lab.bench(5, {CELL: 1000.0})
    number = plant(lab, 0, 1, 1.3)
    told = cause(client, number)
    assert (told["code"], told["kernels"], told["bench"], told["errors"], told["circumstances"]) == (
        None,
        None,
        None,
        None,
        [],
    )
    assert told["sources"]["message"] == "the repository was not fetched here yet"
    page = client.get(f"/regressions/{number}").text
    assert "Unknown" not in page
    assert tabs(page) == ["Diff"], "what nothing is known of has no tab"
    assert "The diff is not known: the repository was not fetched here yet" in page
    assert "git diff" in page
    problem(client.get("/api/v1/regressions/999/cause"), 404)


def test_sources_that_differ(client: TestClient, database: Database, settings: Settings, tmp_path: Path) -> None:
    """Only what the operator is made from counts, over all commits of the range."""
    path = tmp_path / "kernels"
    shas = make_repository(path, commits=1, operators=("square", "cube"))
    (path / "csrc" / "square").mkdir(parents=True)
    (path / "csrc" / "square" / "[x].cu").write_text("a\nb\n")
    shas.append(commit(path, "Add a kernel", ("cube",)))
    shas.append(commit(path, "Touch the other one", ("cube",)))
    shas.append(commit(path, "Touch it", ("square",)))
    lab = Lab(database, path, shas, tmp_path)
    lab.bench(3, {CELL: 1000.0})
    number = plant(lab, 0, 3, 1.3)
    git.update_mirror(str(path), settings.home)
    diff = cause(client, number)["sources"]
    assert diff["files"] == [
        {"path": "csrc/square/[x].cu", "added": 2, "deleted": 0},
        {"path": "kernels/square.py", "added": 1, "deleted": 1},
    ]
    assert diff["commits"] == [shas[3], shas[1]]
    assert diff["url"] is None
    words = diff["command"].split()
    assert words[:3] == ["git", "diff", shas[0][:12]]
    assert "kernels/square.py" in run_git(path, *words[1:])
    assert "cube" not in run_git(path, *words[1:])
    lines = [(line["kind"], line["text"]) for line in diff["lines"]]
    assert lines == [
        ("file", "csrc/square/[x].cu"),
        ("hunk", "@@ -0,0 +1,2 @@"),
        ("added", "a"),
        ("added", "b"),
        ("file", "kernels/square.py"),
        ("hunk", "@@ -1 +1 @@"),
        ("removed", "NUMBER = 1"),
        ("added", "SUBJECT = 'Touch it'"),
    ]
    page = client.get(f"/regressions/{number}").text
    assert '<div class="removed"><span class="quiet">removed: </span>NUMBER = 1</div>' in page
    other = plant(lab, 2, 3, 1.3, operator="cube")
    assert "No source file of cube changed" in client.get(f"/regressions/{other}").text


def test_a_diff_is_shown_up_to_a_limit_and_escaped(
    client: TestClient, database: Database, settings: Settings, tmp_path: Path
) -> None:
    path = tmp_path / "kernels"
    shas = make_repository(path, commits=1)
    (path / "csrc" / "square").mkdir(parents=True)
    text = ["--- <script>alert(1)</script>", "+++ not a file", "x" * 5000, *map(str, range(2 * MOST_LINES))]
    (path / "csrc" / "square" / "square.cpp").write_text("\n".join(text))
    shas.append(commit(path, "Add much"))
    lab = Lab(database, path, shas, tmp_path)
    lab.bench(1, {CELL: 1000.0})
    number = plant(lab, 0, 1, 1.3)
    git.update_mirror(str(path), settings.home)
    diff = cause(client, number)["sources"]
    assert diff["is_cut"]
    assert len(diff["lines"]) == MOST_LINES
    assert [line["text"] for line in diff["lines"] if line["kind"] == "file"] == ["csrc/square/square.cpp"]
    assert ("added", "--- <script>alert(1)</script>") in [(line["kind"], line["text"]) for line in diff["lines"]]
    assert max(len(line["text"]) for line in diff["lines"]) == MOST_COLUMNS
    page = client.get(f"/regressions/{number}").text
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page


@pytest.mark.parametrize(
    ("url", "page"),
    [
        ("https://github.com/acme/kernels.git", "https://github.com/acme/kernels/compare/a...b"),
        ("https://someone:secret@github.com/acme/kernels", "https://github.com/acme/kernels/compare/a...b"),
        ("git@github.com:acme/kernels.git", "https://github.com/acme/kernels/compare/a...b"),
        (
            "ssh://git@gitlab.example.com:2222/group/sub/kernels.git",
            "https://gitlab.example.com/group/sub/kernels/-/compare/a...b",
        ),
        (
            "http://gitlab.example.com:8080/group/kernels/",
            "http://gitlab.example.com:8080/group/kernels/-/compare/a...b",
        ),
        ("https://codeberg.org/acme/kernels", "https://codeberg.org/acme/kernels/compare/a...b"),
        ("https://git.example.com/acme/kernels", None),
        ("https://notgithub.com/acme/kernels", None),
        ("https://github.com/acme/../kernels", None),
        ("https://github.com/acme/kernels?x=<script>", None),
        ("/srv/github.com/kernels", None),
        ("file:///srv/kernels", None),
    ],
)
def test_where_people_read_a_diff(url: str, page: str | None) -> None:
    assert compare_url(url, "a", "b") == page


def build(code: str, registers: int) -> BuildReply:
    kernel = KernelResources("fwd", "sm_90", registers, 1024, 0, 512, code)
    other = replace(kernel, name="bwd", code_hash="same", registers=40)
    return BuildReply(Status.OK, "", code, False, 1.0, "", [kernel, other], 1.0, code)


def check(lab: Lab, index: int, error: float, built: BuildReply, *, right: bool = True) -> None:
    tensors = [
        TensorError(name, right or name == "y", 1.0, 1.0, value, value, 1.0, None, 2e-5, [0])
        for name, value in (("y", 1e-7), ("grad x", error))
    ]
    status, message = (Status.OK, "") if right else (Status.WRONG, "grad x is wrong")
    row = Finding(*CELL, status, message, CheckReply(status, message, 0, tensors))
    lab.finish(lab.submit("check", index), replace(lab.outcome([row]), build=built))


def bench(lab: Lab, index: int, median: float, health: dict[str, Any]) -> int:
    row = Finding(*CELL, Status.OK, bench=bench_reply(measurement(median, "hot"), health=health))
    job = lab.submit("bench", index)
    lab.finish(job, lab.outcome([row]))
    return job


def test_every_part_is_told_from_both_sides(client: TestClient, lab: Lab) -> None:
    check(lab, 1, 1e-6, build("one", 64))
    check(lab, 2, 3e-6, build("two", 80))
    before = bench(
        lab, 1, 1000.0, {"before": {"sm_mhz": 1980, "throttle": []}, "after": {"sm_mhz": 1980, "throttle": []}}
    )
    lab.environment = replace(CPU, key="d" * 64, facts=CPU.facts | {"torch": "2.14.0"})
    after = bench(
        lab, 2, 1300.0, {"before": {"sm_mhz": 1980}, "after": {"sm_mhz": 1410, "throttle": ["software thermal"]}}
    )
    number = plant(lab, 1, 2, 1.3, [CELL])
    told = cause(client, number)
    assert [
        (one["name"], one["state"], one["before"]["registers"], one["after"]["registers"])
        for one in told["code"]["changes"]
    ] == [
        ("fwd", "changed", 64, 80),
    ]
    assert (told["bench"]["base"]["job_id"], told["bench"]["head"]["job_id"]) == (before, after)
    assert told["bench"]["differences"] == [{"name": "torch", "base": "2.13.0", "head": "2.14.0"}]
    assert told["circumstances"][0] == {
        "name": "sm_mhz",
        "base_before": 1980,
        "base_after": 1980,
        "head_before": 1980,
        "head_after": 1410,
    }
    assert told["errors"]["checked"] == 2
    (one,) = told["errors"]["changes"]
    assert (one["tensor"], one["base_relative"], one["head_relative"], one["base_right"]) == (
        "grad x",
        1e-6,
        3e-6,
        True,
    )
    assert tabs(client.get(f"/regressions/{number}").text) == ["Diff", "Machine code", "Numerical error", "Host"]
    page = opened(client, number, "code", "errors", "host")
    for words in ("software thermal", "2.13.0 → 2.14.0", "1 object changed", "3.0e−06"):
        assert words in page, words
    assert "software thermal" not in client.get(f"/regressions/{number}").text, "a tab is read when it is opened"
    assert 'id="diff"' in opened(client, number, "trace"), "a tab with nothing to say gives way to the diff"


def test_the_nearest_commits_stand_in_and_are_named(client: TestClient, lab: Lab) -> None:
    """After bisecting, neither end of the range was built and timed by itself."""
    check(lab, 0, 1e-6, build("one", 64))
    check(lab, 4, 1e-6, build("one", 64))
    bench(lab, 0, 1000.0, {})
    number = plant(lab, 1, 2, 1.3, [CELL])
    told = cause(client, number)
    assert (told["code"]["base_sha"], told["code"]["head_sha"], told["code"]["changes"]) == (
        lab.shas[0],
        lab.shas[4],
        [],
    )
    assert (told["bench"]["base"]["commit_sha"], told["bench"]["head"]) == (lab.shas[0], None)
    assert told["errors"] == {"checked": 2, "changes": []}
    page = opened(client, number, "code", "errors", "host")
    for words in (
        "Byte-identical between the nearest builds",
        "at head not benchmarked",
        "Bit-identical in all 2 checked outputs",
    ):
        assert words in page, words


def test_an_error_that_is_not_finite(client: TestClient, lab: Lab) -> None:
    check(lab, 1, 1e-6, build("one", 64))
    check(lab, 2, float("inf"), build("one", 64), right=False)
    number = plant(lab, 1, 2, None, [CELL])
    (one,) = cause(client, number)["errors"]["changes"]
    assert (one["head_right"], one["base_right"]) == (False, True)
    assert client.get(f"/regressions/{number}").status_code == 200


def test_kernels_that_came_and_went(client: TestClient, lab: Lab, tmp_path: Path) -> None:
    traces = []
    for index, names in ((1, ("fused", "copy")), (2, ("fused", "transpose"))):
        path = tmp_path / f"{index}.json.gz"
        path.write_bytes(gzip.compress(json.dumps({"traceEvents": []}).encode()))
        kernels = [TraceKernel(name, 2, 2000.0 * index * (place + 1), 1000.0, 0.5) for place, name in enumerate(names)]
        row = Finding(*CELL, Status.OK, profile=ProfileReply(Status.OK, "", str(path), 20, kernels, {}))
        job = lab.submit("profile", index)
        lab.finish(job, lab.outcome([row]))
        (result,) = client.get(f"/api/v1/jobs/{job}").json()["results"]
        traces.append(result["trace_id"])
    number = plant(lab, 1, 2, 1.3, [CELL], base_trace_id=traces[0], head_trace_id=traces[1])
    states = {row["b_name"] or row["a_name"]: row["state"] for row in cause(client, number)["kernels"]["rows"]}
    assert states == {"fused": "longer", "copy": "removed", "transpose": "added"}
    page = opened(client, number, "trace")
    assert f"/traces/compare?repository=kernels&amp;a={traces[0]}&amp;b={traces[1]}" in page or f"a={traces[0]}" in page
    half = plant(lab, 2, 3, 1.3, [CELL], base_trace_id=traces[0])
    assert "Trace" not in tabs(client.get(f"/regressions/{half}").text)
