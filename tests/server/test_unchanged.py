"""Leaving out what did not change: which sources count, and what becomes of the jobs."""

from __future__ import annotations

import gc
import html
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.builders import CASES, Lab, commit, make_repository, run_git
from tests.server.test_submissions import ask, jobs
from warpwatch import git
from warpwatch.contract.words import Reason
from warpwatch.sources import Sources, parse_python, strip_comments


@pytest.fixture
def source(tmp_path: Path) -> tuple[Path, list[str]]:
    """A repository that a test may add commits to."""
    path = tmp_path / "source" / "kernels"
    return path, make_repository(path, operators=("square", "cube"))


MINE, OTHERS = "kernels/square.py", "kernels/cube.py"


def change(path: Path, file: str, text: str) -> str:
    """A commit that writes one file; its id."""
    (path / file).parent.mkdir(parents=True, exist_ok=True)
    (path / file).write_text(text)
    run_git(path, "add", "--all")
    run_git(path, "commit", "--quiet", "--message", f"Write {file}")
    return run_git(path, "rev-parse", "HEAD").strip()


@pytest.mark.parametrize(
    ("imports", "file", "same"),
    [
        ("import torch", "README.md", True),
        ("import torch", "helpers.py", True),
        ("import torch", OTHERS, True),
        ("import torch", "csrc/cube/cube.cpp", True),
        ("import torch", MINE, False),
        ("import torch", "csrc/square/square.cu", False),
        ("import torch", "csrc/common/tensor.h", False),
        ("import torch", "warpwatch.toml", False),
        ("from warpwatch import case", "warpwatch/operator.py", True),
        ("from kernels import cube", OTHERS, False),
        ("from . import cube", OTHERS, False),
        ("from kernels import cube", "csrc/cube/cube.cpp", False),
        ("from kernels import cube", "README.md", True),
        ("from kernels import cube", "kernels/sphere.py", True),
        ("from kernels.cube import side", OTHERS, False),
        ("from kernels._shared import side", "kernels/sphere.py", True),
        ("from kernels._shared import side", "kernels/_shared.py", False),
        ("from ._shared import side", "kernels/_deep.py", False),
        ("import torch", "kernels/_deep.py", True),
        ("import kernels", "README.md", False),
        ("from kernels import *", "README.md", False),
        ("from .. import helpers", "README.md", False),
        ("def f():\n    import helpers", "package/inner.py", False),
        ("this is no Python", "package/inner.py", False),
    ],
)
def test_what_an_operator_is_made_from(tmp_path: Path, imports: str, file: str, same: bool) -> None:
    run_git(tmp_path, "init", "--quiet")
    for name, text in (
        (OTHERS, ""),
        ("kernels/_shared.py", "from kernels import _deep"),
        ("kernels/_deep.py", ""),
        ("helpers.py", ""),
        ("package/__init__.py", ""),
        ("csrc/cube/cube.cpp", ""),
        ("warpwatch/a.py", ""),
    ):
        change(tmp_path, name, text + " #")
    before = change(tmp_path, MINE, imports)
    after = change(tmp_path, file, 'operators = "kernels"' if file.endswith(".toml") else f"{imports}\nchanged = True")
    sources = Sources(tmp_path)
    assert (sources.of(before, "square") == sources.of(after, "square")) is same
    assert sources.of(before, "sphere") is None


@pytest.mark.parametrize(
    ("square", "python", "file", "same"),
    [
        ('#include "common/tensor.h"', "", "csrc/common/other.h", True),
        ('#include "common/tensor.h"', "", "csrc/common/tensor.h", False),
        ("#include <common/tensor.h>", "", "csrc/common/tensor.h", False),
        ('#  include /* here */ "../common/tensor.h" // there', "", "csrc/common/tensor.h", False),
        ('#include "common/outer.h"', "", "csrc/common/tensor.h", False),
        ('// #include "common/tensor.h"', "", "csrc/common/tensor.h", True),
        ('#include "local.h"', "", "csrc/common/tensor.h", False),
        ('#define HEADER "common/tensor.h"\n#include HEADER', "", "csrc/common/tensor.h", False),
        ('#if __has_include("common/new.h")\n#endif', "", "csrc/common/new.h", False),
        ('%:include "common/tensor.h"', "", "csrc/common/tensor.h", False),
        ('auto code = R"(#include "common/tensor.h"\n)";', "", "csrc/common/tensor.h", False),
        ("", 'SOURCE = open("csrc/common/tensor.h").read()', "csrc/common/tensor.h", False),
        ("", 'SOURCE = Path("csrc", "common", name).read_text()', "csrc/common/tensor.h", False),
        ("", "SOURCE = Path(__file__).parents[1]", "csrc/common/tensor.h", False),
        ("", "", "csrc/cube/cube.cpp", True),
        ("", 'operator = Operator("square", uses=("square", "cube"))', "csrc/cube/cube.cpp", False),
        ("", 'operator = Operator("square", uses=("cube",))', "csrc/common/outer.h", False),
    ],
)
def test_headers_and_libraries_that_native_code_uses(
    tmp_path: Path, square: str, python: str, file: str, same: bool
) -> None:
    run_git(tmp_path, "init", "--quiet")
    files = {
        MINE: python,
        OTHERS: "",
        "csrc/square/square.cpp": square,
        "csrc/cube/cube.cpp": '#include "common/outer.h"',
    }
    files |= {"csrc/common/tensor.h": "", "csrc/common/outer.h": '#include "tensor.h"', "csrc/common/other.h": ""}
    if "local" in square:
        files["csrc/square/local.h"] = '#include "../common/tensor.h"'
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    before = change(tmp_path, "README.md", "")
    after = change(tmp_path, file, f"{files.get(file, '')}\nint changed;")
    sources = Sources(tmp_path)
    assert (sources.of(before, "square") == sources.of(after, "square")) is same


def test_the_diff_of_a_measured_package_shows_what_its_fingerprint_covers(tmp_path: Path) -> None:
    run_git(tmp_path, "init", "--quiet")
    change(tmp_path, MINE, "from lib import norms")
    change(tmp_path, "warpwatch.toml", 'contract = 1\noperators = "kernels"\n[measured]\npackages = ["lib"]')
    before = change(tmp_path, "lib/norms.py", "old = 1")
    after = change(tmp_path, "lib/norms.py", "new = 2")
    sources = Sources(tmp_path)
    assert sources.of(before, "square") != sources.of(after, "square")
    paths = sources.paths(after, "square")
    assert [file.path for file in git.changed_files(tmp_path, before, after, paths)] == ["lib/norms.py"]


OPERATOR = """
import torch
from warpwatch import Operator

operator = Operator("square", "x²", inputs=None)

@operator.variant("v1", idea="one product")
def v1(x):
    return x * x
"""


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("return x * x", "return x * x  # the product", True),
        ("return x * x", '"""x times itself."""\n    return x * x', True),
        ("return x * x", "return (x *\n            x)", True),
        ("\nimport torch", '"""Squares."""\nimport torch', True),
        ('idea="one product"', 'idea="a product", outcome="as fast as torch"', True),
        ('idea="one product"', 'idea="one product", devices=("cpu",)', False),
        ('"x²"', '"x times x"', False),
        ("x * x", "x * x * 1", False),
        ("return x * x", 'return x * x\n\nsource = "x * x"', False),
        ("import torch", "import torch, inspect", False),
    ],
)
def test_words_for_readers_are_no_change(tmp_path: Path, before: str, after: str, same: bool) -> None:
    run_git(tmp_path, "init", "--quiet")
    shas = [change(tmp_path, MINE, text) for text in (OPERATOR, OPERATOR.replace(before, after))]
    prints = [Sources(tmp_path).of(sha, "square") for sha in shas]
    assert (prints[0] == prints[1]) is same


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("x * x;", "x * x;  // the product", True),
        ("x * x;", "x *\n\n   /* by */ x;", False),
        ("x * x;", "x  * /* by\nitself */ x;", True),
        ("return", "\n\n  return", True),
        ("x + 1", "x + 1 \\\n", True),
        ('"// x"', '"// y"', False),
        ('"// x"', '"//  x"', False),
        ("'\"'", "'/'", False),
        ("/* in */", "/* out */", False),
        ("x + 1", "x + 2", False),
    ],
)
def test_comments_of_native_sources_are_no_change(tmp_path: Path, before: str, after: str, same: bool) -> None:
    code = '#define MORE(x) x + 1\nint f(int x) {\n  return x * x;\n}\nauto t = "// x", r = R"(/* in */)", c = \'"\';\n'
    assert before in code
    assert (strip_comments(code) == strip_comments(code.replace(before, after))) is same
    assert strip_comments("\ufffd") is None
    run_git(tmp_path, "init", "--quiet")
    change(tmp_path, MINE, OPERATOR)
    shas = [change(tmp_path, "csrc/square/square.cu", text) for text in (code, f"// {before}\n{code}")]
    assert len({Sources(tmp_path).of(sha, "square") for sha in shas}) == 1


@pytest.mark.parametrize("own", ["__doc__", "__file__", "inspect"])
def test_code_that_may_read_its_own_text_counts_by_it(tmp_path: Path, own: str) -> None:
    run_git(tmp_path, "init", "--quiet")
    shas = [change(tmp_path, MINE, f"import inspect as i\nsource = {own}\n{words}") for words in ("", "# changed\n")]
    assert Sources(tmp_path).of(shas[0], "square") != Sources(tmp_path).of(shas[1], "square")


def test_an_unchanged_operator_is_done_and_says_since_when(client: TestClient, lab: Lab) -> None:
    wanted: dict[str, Any] = {"kinds": ["bench"], "operators": ["square"], "skip_unchanged": True}
    first = ask(client, commits=lab.shas[-1], **wanted).json()
    assert first["counts"] == {"queued": 1}
    unchanged = change(lab.source, "README.md", "words")
    second = ask(client, commits=unchanged, **wanted).json()
    assert (second["state"], second["counts"]) == ("done", {"done": 1})
    (job,) = jobs(client, second["id"])
    detail = client.get(f"/api/v1/jobs/{job['id']}").json()
    assert (detail["job"]["state"], detail["runs"]) == ("done", [])
    assert (job["reason"], job["unchanged_since"]) == (Reason.UNCHANGED, lab.shas[-1])
    assert html.escape(detail["job"]["message"]) in client.get(f"/jobs/{job['id']}").text
    # What was left out is no measurement itself: the next one points to the same commit.
    third = ask(client, commits=change(lab.source, "README.md", "more words"), **wanted).json()
    assert jobs(client, third["id"])[0]["unchanged_since"] == lab.shas[-1]
    changed = commit(lab.source, "Change all", ("square", "cube"))
    assert ask(client, commits=changed, **wanted).json()["counts"] == {"queued": 1}


def test_every_page_says_of_which_commit_an_unchanged_one_is(client: TestClient, lab: Lab) -> None:
    measured = lab.shas[-1]
    ask(client, commits=measured, kinds=["bench"], skip_unchanged=True)
    same = change(lab.source, "README.md", "words")
    submission = ask(client, commits=same, kinds=["bench"], skip_unchanged=True).json()
    found = client.get(f"/api/v1/commits/{same}", params={"repository": "kernels"}).json()
    assert [(row["operator"], row["since"]) for row in found["unchanged"]] == [("cube", measured), ("square", measured)]
    assert found["commit"]["unchanged"] == 2
    short = measured[:8]
    for path, words in {
        "/commits": r">unchanged<",
        f"/commits/{same}": rf"the code is the same as in <a[^>]*>{short}</a>:.*cube</a>,.*square</a>",
        f"/runs/{submission['id']}": r"Not measured, because .* a measured commit: cube, square\.",
    }.items():
        page = client.get(path, params={"repository": "kernels"}).text
        assert re.search(words, page), path
        assert "No results yet" not in page
    assert client.get(f"/api/v1/submissions/{submission['id']}/report").json()["summary"] == "Nothing new · 2 unchanged"
    range_of_both = ask(client, commits=f"{measured}~1..{same}", kinds=["check"], skip_unchanged=True).json()["id"]
    report = client.get(f"/api/v1/submissions/{range_of_both}/report").json()
    assert "unchanged" not in report["summary"], "an operator that one commit of the range changed was measured"
    # Who wants it measured all the same is told what was found.
    lab.shas.append(same)
    lab.commits[same] = found["commit"]["id"]
    lab.bench(-1, {("v1", CASES[0]): 1000.0})
    found = client.get(f"/api/v1/commits/{same}", params={"repository": "kernels"}).json()
    assert [row["operator"] for row in found["unchanged"]] == ["cube"]


def test_an_unchanged_commit_is_compared_by_what_it_is_made_of(client: TestClient, lab: Lab) -> None:
    measured = lab.shas[-1]
    ask(client, commits=measured, kinds=["bench"], skip_unchanged=True)
    same = change(lab.source, "README.md", "words")
    ask(client, commits=same, kinds=["bench"], skip_unchanged=True)
    lab.bench(-1, {("v1", CASES[0]): 1000.0, ("v2", CASES[0]): 500.0})
    lab.shas.append(change(lab.source, MINE, "import torch"))
    ask(client, commits=lab.shas[-1], kinds=["bench"], skip_unchanged=True)
    lab.commits[lab.shas[-1]] = client.get(f"/api/v1/commits/{lab.shas[-1]}", params={"repository": "kernels"}).json()[
        "commit"
    ]["id"]
    lab.bench(-1, {("v1", CASES[0]): 3000.0})

    def ratios(**sides: str) -> list[tuple[str, float | None]]:
        found = client.get("/api/v1/compare", params={"repository": "kernels", "device": "test-cpu", **sides}).json()[
            "items"
        ]
        return [(row["left_variant"], row["ratio"]) for row in found]

    assert ratios(left=same, right=lab.shas[-1]) == [("v1", 3.0), ("v2", None)]
    assert ratios(left=measured, right=same) == []
    assert ratios(commit=same, left="v1", right="v2") == [("v1", 0.5)]
    page = client.get("/compare", params={"repository": "kernels", "base": same, "head": lab.shas[-1]}).text
    assert re.search(
        rf"{same[:8]}</a> has the same sources as <a[^>]*>{measured[:8]}</a>, whose times are shown: square\.", page
    )
    assert "Identical sources on both sides, not compared: cube." in page
    page = client.get("/compare", params={"repository": "kernels", "base": measured, "head": same}).text
    assert "Identical sources on both sides, not compared: cube, square." in page
    assert "Nothing to compare" not in page


def test_within_a_range_only_changes_are_measured(client: TestClient, lab: Lab) -> None:
    change(lab.source, "README.md", "words")
    body = ask(client, commits=f"{lab.shas[-2]}..main", kinds=["check"], skip_unchanged=True).json()
    made = [(job["commit_sha"] == lab.shas[-1], job["operator"], job["state"]) for job in jobs(client, body["id"])]
    assert made == [
        (True, "cube", "queued"),
        (True, "square", "queued"),
        (False, "cube", "done"),
        (False, "square", "done"),
    ]


def test_a_range_is_filled_up_and_one_commit_is_measured_again(client: TestClient, lab: Lab) -> None:
    wanted: dict[str, Any] = {"kinds": ["bench"], "operators": ["square"]}
    ask(client, commits=f"{lab.shas[-3]}..main", **wanted)
    filled = ask(client, commits=f"{lab.shas[-4]}..main", **wanted).json()
    assert [job["commit_sha"] for job in jobs(client, filled["id"])] == [lab.shas[-3]]
    again = {"commits": f"{lab.shas[-4]}..main"} | wanted
    empty = ask(client, **again).json()
    assert (empty["counts"], empty["state"]) == ({}, "done")
    assert "No jobs: the same was asked of each of these commits before." in client.get(f"/runs/{empty['id']}").text
    assert client.get(f"/api/v1/submissions/{empty['id']}/report").json()["exit_code"] == 0
    plan = client.post("/api/v1/submissions/preview", json={"repository": "kernels", "device": "cpu"} | again).json()
    left_out = {group["reason"]: group["count"] for group in plan["left_out"]}
    assert (plan["jobs"], left_out) == (0, {"range_start": 1, "requested": 3})
    assert ask(client, **again, skip_unchanged=False).json()["counts"] == {"queued": 3}
    assert ask(client, **again | {"suite": "full"}).json()["counts"] == {"queued": 3}
    assert ask(client, commits="main", **wanted).json()["counts"] == {"queued": 1}


def test_another_question_or_a_failure_is_no_answer(client: TestClient, lab: Lab) -> None:
    wanted: dict[str, Any] = {"kinds": ["bench"], "operators": ["square"], "skip_unchanged": True}
    first = ask(client, commits=lab.shas[-1], **wanted).json()
    unchanged = change(lab.source, "README.md", "words")
    assert ask(client, commits=unchanged, **wanted, suite="full").json()["counts"] == {"queued": 1}
    assert ask(client, commits=unchanged, **{**wanted, "kinds": ["check"]}).json()["counts"] == {"queued": 1}
    client.post(f"/api/v1/submissions/{first['id']}/cancel")
    assert ask(client, commits=unchanged, **wanted).json()["counts"] == {"queued": 1}


def test_what_was_left_out_can_be_measured_after_all(client: TestClient, lab: Lab) -> None:
    wanted: dict[str, Any] = {"kinds": ["bench"], "operators": ["square"], "skip_unchanged": True}
    ask(client, commits=lab.shas[-1], **wanted)
    body = ask(client, commits=change(lab.source, "README.md", "words"), **wanted).json()
    (job,) = jobs(client, body["id"])
    client.post(f"/api/v1/jobs/{job['id']}/retry")
    assert jobs(client, body["id"])[0]["state"] == "queued"


def test_another_branch_is_not_where_a_commit_was_measured(client: TestClient, lab: Lab) -> None:
    """A merge has the sources of the branch that it brought; its own branch needs a point all the same."""
    wanted: dict[str, Any] = {"kinds": ["bench"], "operators": ["square"], "skip_unchanged": True}
    run_git(lab.source, "checkout", "--quiet", "-b", "side")
    side = change(lab.source, MINE, "import torch")
    assert ask(client, commits=side, **wanted).json()["counts"] == {"queued": 1}
    run_git(lab.source, "checkout", "--quiet", "main")
    run_git(lab.source, "merge", "--quiet", "--no-ff", "--no-edit", "side")
    assert ask(client, commits="main", **wanted).json()["counts"] == {"queued": 1}
    change(lab.source, "README.md", "words")
    assert ask(client, commits="main", **wanted).json()["counts"] == {"done": 1}


def test_threads_that_read_sources_at_once_do_not_disturb_each_other() -> None:
    """Another thread may run in the garbage collections while Python makes a tree."""
    source = Path(__file__).read_text()
    others = [threading.Thread(target=parse_python, args=(source,))]

    def let_other_run(phase: str, _info: dict[str, int]) -> None:
        if phase == "start" and others:
            others.pop().start()
            time.sleep(0.2)

    threshold = gc.get_threshold()
    # Tests collect seldom, and a tree alone would bring about no collection.
    gc.set_threshold(100)
    gc.callbacks.append(let_other_run)
    try:
        assert parse_python(source).body
        assert not others
    finally:
        gc.callbacks.remove(let_other_run)
        gc.set_threshold(*threshold)
