"""Machine code over REST: what changed against the commit before, since when nothing did, and its history."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.builders import CPU, GPU, Lab
from tests.pages.test_figures import accepted
from warpwatch.contract.messages import BuildReply, KernelResources
from warpwatch.contract.words import Status
from warpwatch.db.reads.builds import KernelCode, code_changes
from warpwatch.server.figures.code_charts import QUANTITIES, code_figure


def kernel(name: str, code: str, registers: int = 32, arch: str = "sm_90", size: int = 640) -> KernelResources:
    return KernelResources(name, arch, registers, 0, 0, size, code)


def build(lab: Lab, index: int, kernels: list[KernelResources], seconds: float = 2.0) -> None:
    """A build whose machine code is these kernels, at the commit number `index`."""
    whole = "" if any(not one.code_hash for one in kernels) else "-".join(one.code_hash for one in kernels)
    row = BuildReply(Status.OK, "", f"key {index}", False, 9.0, "", kernels, seconds, whole)
    lab.finish(lab.submit("check", index), replace(lab.outcome([]), build=row))


def shown(client: TestClient, lab: Lab, index: int) -> dict[str, Any]:
    found: list[dict[str, Any]] = client.get(
        f"/api/v1/commits/{lab.shas[index]}", params={"repository": "kernels"}
    ).json()["builds"]
    return found[-1]


def test_a_commit_says_which_kernels_changed(client: TestClient, lab: Lab) -> None:
    build(lab, 0, [kernel("one", "a"), kernel("two", "b")])
    build(lab, 2, [kernel("one", "a"), kernel("two", "c", registers=40), kernel("three", "d")])
    found = shown(client, lab, 2)
    assert found["base_sha"] == lab.shas[0]
    assert [(change["name"], change["state"]) for change in found["changes"]] == [
        ("two", "changed"),
        ("three", "added"),
    ]
    assert (found["changes"][0]["before"]["registers"], found["changes"][0]["after"]["registers"]) == (32, 40)
    page = client.get(f"/commits/{lab.shas[2]}").text
    assert "2 kernels changed since" in page
    (table,) = re.findall(r'<table class="machine">.*?</table>', page, re.DOTALL)
    changed, same = re.findall(r"<tbody>.*?</tbody>", table, re.DOTALL)
    assert (re.findall(r'<th scope="row">(\w+)', changed), re.findall(r'<th scope="row">(\w+)', same)) == (
        ["three", "two"],
        ["one"],
    )
    assert '<td>40 <span class="sub bad">+8</span></td>' in changed
    first = shown(client, lab, 0)
    assert (first["base_sha"], first["changes"]) == (None, None)


def test_a_kernel_is_named_once_and_a_library_of_several_operators_listed_once(client: TestClient, lab: Lab) -> None:
    """Three architectures of 343 kernels, twice, made a page of a megabyte."""
    kernels = [kernel("one", arch, arch=arch) for arch in ("sm_80", "sm_90", "sm_100")] + [kernel("one", "overload")]
    build(lab, 0, kernels)
    with lab.database.session() as s:
        s.execute(
            text("INSERT INTO operators (repository_id, name) SELECT repository_id, 'user' FROM operators LIMIT 1")
        )
        s.execute(
            text(
                "INSERT INTO builds (commit_id, operator_id, environment_id, status, key, cached, seconds, log,"
                " resources, code_hash) SELECT commit_id, (SELECT max(id) FROM operators), environment_id, status, key,"
                " cached, seconds, log, resources, code_hash FROM builds"
            )
        )
    page = client.get(f"/commits/{lab.shas[0]}").text
    (table,) = re.findall(r'<table class="machine">.*?</table>', page, re.DOTALL)
    assert re.findall(r'<th scope="row"[^>]*>one</th>', table) == ['<th scope="row" rowspan="4">one</th>']
    assert [table.count(f"<td>{arch}</td>") for arch in ("sm_80", "sm_90", "sm_100")] == [1, 2, 1]
    assert '<a href="#library-0">those of square</a>' in page


def test_unchanged_code_says_since_when(client: TestClient, lab: Lab) -> None:
    for index, code in enumerate(("a", "b", "b", "b")):
        build(lab, index, [kernel("one", code)])
    found = shown(client, lab, 3)
    assert (found["changes"], found["unchanged_since"]) == ([], lab.shas[1])
    assert "unchanged since" in client.get(f"/commits/{lab.shas[3]}").text


def test_code_that_was_changed_and_changed_back_is_unchanged_since_then_only(client: TestClient, lab: Lab) -> None:
    for index, code in enumerate(("a", "b", "a", "a", "")):
        build(lab, index, [kernel("one", code)])
    since = [shown(client, lab, index)["unchanged_since"] for index in range(5)]
    assert since == [None, lab.shas[1], lab.shas[2], lab.shas[2], None]


def test_devices_are_not_held_against_each_other(client: TestClient, lab: Lab) -> None:
    build(lab, 0, [kernel("one", "a")])
    lab.switch(GPU)
    build(lab, 1, [kernel("one", "b")])
    assert shown(client, lab, 1)["base_sha"] is None
    lab.switch(CPU)
    build(lab, 1, [kernel("one", "c")])
    assert {
        one["device_key"]: one["base_sha"]
        for one in client.get(f"/api/v1/commits/{lab.shas[1]}", params={"repository": "kernels"}).json()["builds"]
    } == {
        "test-cpu": lab.shas[0],
        "test-gpu": None,
    }


@pytest.mark.parametrize(
    ("before", "after", "states"),
    [
        ([("k", "a", 32)], [("k", "a", 32)], []),
        ([("k", "a", 32)], [("k", "", 32)], ["unknown"]),
        ([("k", "", 32)], [("k", "", 40)], ["changed"]),
        ([("k", "a", 32), ("k", "b", 32)], [("k", "a", 32), ("k", "c", 32)], ["changed"]),
        ([("k", "a", 32)], [], ["removed"]),
    ],
)
def test_states_of_a_change(before: list[Any], after: list[Any], states: list[str]) -> None:
    old, new = (
        [KernelCode(name, "sm_90", registers, code_hash=code) for name, code, registers in side]
        for side in (before, after)
    )
    assert [change.state for change in code_changes(old, new)] == states


def test_history_of_one_architecture(client: TestClient, lab: Lab) -> None:
    lab.switch(replace(GPU, facts={**GPU.facts, "capability": "9.0"}))
    build(lab, 0, [kernel("one", "a", arch="sm_80"), kernel("one", "a")], seconds=3.0)
    build(lab, 2, [kernel("one", "b", 40, arch="sm_80"), kernel("one", "b", 48), kernel("two", "c")], seconds=4.0)
    lab.switch(CPU)
    build(lab, 1, [kernel("one", "elsewhere", 99)])
    url = "/api/v1/operators/square/code"
    found = client.get(url, params={"repository": "kernels", "device": "test-gpu"}).json()
    assert (found["arch"], found["archs"]) == ("sm_90", ["sm_80", "sm_90"])
    assert [(one["sha"], one["compile_seconds"]) for one in found["commits"]] == [
        (lab.shas[0], 3.0),
        (lab.shas[2], 4.0),
    ]
    assert {one["name"]: [code and code["registers"] for code in one["values"]] for one in found["kernels"]} == {
        "one": [32, 48],
        "two": [None, 32],
    }
    other = client.get(url, params={"repository": "kernels", "device": "test-gpu", "arch": "sm_80"}).json()
    assert [code["registers"] for code in other["kernels"][0]["values"]] == [32, 40]
    for quantity in QUANTITIES:
        page = client.get("/kernels/square", params={"repository": "kernels", "device": "test-gpu", "code": quantity})
        assert page.status_code == 200
        assert "Machine code" in page.text
        assert f'per commit · <a href="{url}?' in page.text


def test_the_chart_draws_what_changed_first(lab: Lab) -> None:
    from warpwatch.db.reads.builds import CodeCommit, CodeHistory, CodeSeries

    commits = [CodeCommit(f"{n:040}", n, "subject", "", None) for n in range(2)]
    codes = [
        CodeSeries(f"k{n}", [KernelCode(f"k{n}", "sm_90", 32 + n), KernelCode(f"k{n}", "sm_90", 32 + n + (n == 3))])
        for n in range(20)
    ]
    figure, left_out = code_figure(
        CodeHistory("square", "gpu", "sm_90", ["sm_90"], commits, codes), "registers", "kernels"
    )
    accepted(figure)
    assert left_out == 4
    assert [line["name"] for line in figure["data"][:2]] == ["k3", "k19"]
    assert figure["data"][0]["y"] == [35.0, 36.0]
