"""How the child starts, what it loads, and that it survives kernel code that fails."""

from __future__ import annotations

import os
import re
from functools import partial
from itertools import count, cycle
from pathlib import Path

import pytest
import torch

from tests.harness.child import Harness
from tests.harness.conftest import UNLOADABLE
from warpwatch.contract.catalogue import Catalogue
from warpwatch.contract.environment import Environment
from warpwatch.contract.messages import CeilingsReply, CheckReply
from warpwatch.contract.words import Status
from warpwatch.worker.harness.timers import ceilings
from warpwatch.worker.harness.timers.ceilings import measure_bounds


def test_greets_with_contract_and_torch(harness: Harness) -> None:
    assert harness.greeting == {"event": "ready", "contract": 1, "torch": torch.__version__}


def test_catalogue_holds_every_file(harness: Harness) -> None:
    catalogue = harness.ask(Catalogue, "catalogue")
    entries = {entry.name: entry for entry in catalogue.operators}
    assert set(entries) == {
        "scale",
        "pair",
        "probed",
        "unjudged",
        "native_scale",
        "native_broken",
        "rows",
        *(name[:-3] for name in UNLOADABLE),
    }
    scale = entries["scale"]
    assert scale.error is None
    cases = {entry.key: entry for entry in scale.cases}
    assert cases["n=1000,bf16,bwd"].suites == ["quick", "full"]
    assert cases["n=1000,f64,fwd"].suites == ["full"]
    assert (cases["n=1000,f64,fwd"].flops, cases["n=1000,f64,fwd"].bytes) == (2000, 16000)
    assert [v.native for v in entries["native_scale"].variants][:2] == [False, True]


def test_a_file_that_does_not_load_costs_its_own_entry_only(harness: Harness) -> None:
    errors = {
        entry.name: entry.error for entry in harness.ask(Catalogue, "catalogue").operators if entry.error is not None
    }
    assert set(errors) == {name[:-3] for name in UNLOADABLE}
    assert "SyntaxError" in errors["syntax"]
    assert "a_package_that_nobody_has" in errors["missing"]
    assert "SystemExit" in errors["leaves"]
    assert "defines no module-level `operator" in errors["nothing"]
    assert "an operator called 'scale'" in errors["misnamed"]
    reply = harness.ask(CheckReply, "check", operator="missing", variant="v1", case="n=1,f32,fwd")
    assert reply.status is Status.CRASHED
    assert "a_package_that_nobody_has" in reply.message


def test_what_a_commit_lacks_is_skipped(harness: Harness) -> None:
    for names in (
        ("unknown", "good", "n=1000,f32,fwd"),
        ("scale", "v9", "n=1000,f32,fwd"),
        ("scale", "good", "m=3,f32,fwd"),
    ):
        operator, variant, case = names
        reply = harness.ask(CheckReply, "check", operator=operator, variant=variant, case=case)
        assert reply.status is Status.SKIPPED
        assert (
            reply.message.startswith("This commit's operator scale has no") or "no operator 'unknown'" in reply.message
        )


def test_unsupported_says_why(harness: Harness) -> None:
    reasons = {"picky": "needs f64", "elsewhere": "elsewhere has no implementation for cpu"}
    for variant, reason in reasons.items():
        reply = harness.ask(CheckReply, "check", operator="scale", variant=variant, case="n=1000,f32,fwd")
        assert (reply.status, reply.message) == (Status.UNSUPPORTED, reason)
    reply = harness.ask(CheckReply, "check", operator="scale", variant="good", case="n=1000,i32,bwd")
    assert (reply.status, reply.message) == (Status.UNSUPPORTED, "scale has no gradients in i32")


def test_a_library_that_was_built_is_loaded(harness: Harness) -> None:
    for direction in ("fwd", "bwd"):
        reply = harness.ask(CheckReply, "check", operator="native_scale", variant="v3", case=f"n=1000,f32,{direction}")
        assert (reply.status, reply.message) == (Status.OK, "")


def test_a_build_that_fails_costs_native_variants_only(harness: Harness) -> None:
    check = harness.ask(CheckReply, "check", operator="native_broken", variant="v3", case="n=1000,f32,fwd")
    assert check.status is Status.BUILD_FAILED
    assert "this_line_is_wrong" in check.message
    assert (
        harness.ask(CheckReply, "check", operator="native_broken", variant="v1", case="n=1000,f32,fwd").status
        is Status.OK
    )


def test_ceilings_are_plausible(harness: Harness) -> None:
    most = {"copy": 0.0, "f32": 0.0, "f64": 0.0}
    # Other processes may take the cores during one product and not during the next. Each reply takes two seconds.
    for _ in range(4):
        reply = harness.ask(CeilingsReply, "ceilings")
        assert (reply.status, reply.peaks.keys()) == (Status.OK, most.keys())
        most = {name: max(peak, most[name]) for name, peak in reply.peaks.items()}
        if most["f32"] > 1.2 * most["f64"]:
            break
    assert most["f32"] > 1.2 * most["f64"] > 0
    assert most["copy"] > 1e8


def test_bounds_are_those_of_the_best_short_call_on_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other work interrupts nine of ten calls."""
    monkeypatch.setattr(ceilings, "perf_counter_ns", partial(next, count(0, 10_000_000)))
    times = cycle([*[0.1] * 9, 0.001])
    monkeypatch.setattr(ceilings, "_seconds", lambda _device, call: (call(), next(times))[1])
    threads, cores = torch.get_num_threads(), len(os.sched_getaffinity(0))
    rates = measure_bounds().peaks
    assert rates["copy"] == pytest.approx(cores * 2 * 2**20 / 0.001)
    assert rates["f32"] == rates["bf16"] == pytest.approx(cores * 2 * 256**3 / 0.001)
    assert torch.get_num_threads() == threads


def test_environment_is_the_same_at_every_start(harness: Harness, repository: Path, cache: Path) -> None:
    first = harness.ask(Environment, "environment")
    assert first.device_kind == "cpu"
    assert re.fullmatch(r"[a-z0-9-]+-cores?", first.device_key)
    assert first.facts["torch"] == torch.__version__
    assert first.facts["threads"] == 1
    other = Harness(repository, cache)
    assert other.ask(Environment, "environment") == first
    assert other.stop() == 0


def test_unknown_contract_is_fatal(repository: Path, cache: Path) -> None:
    child = Harness(repository, cache, contract=99)
    assert child.greeting["event"] == "fatal"
    assert "contract 99" in child.greeting["message"]
    assert child.stop() == 2


def test_missing_device_is_fatal(repository: Path, cache: Path) -> None:
    child = Harness(repository, cache, device="cuda:63")
    assert child.greeting["event"] == "fatal"
    assert "cuda:63 is not available" in child.greeting["message"]
    assert child.stop() == 2


def test_operators_elsewhere_leave_every_package_to_the_user(tmp_path: Path, cache: Path) -> None:
    """The operator folder has no __init__.py; packages named like the service's are in the worktree and installed."""
    installed = tmp_path / "installed"
    for name in ("source", "source/ops", "kernels"):
        (installed / name).mkdir(parents=True)
        (installed / name / "__init__.py").write_text("OWNER = 'somebody else'\n")
    folder = tmp_path / "source" / "ops"
    folder.mkdir(parents=True)
    for name in ("kernels", "warpwatch"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("OWNER = 'user'\n")
    (folder / "twice.py").write_text(
        "import kernels\n"
        "from warpwatch import Cost, Operator, case\n"
        "assert kernels.OWNER == 'user'\n"
        "operator = Operator('twice', 'Twice.', inputs=lambda c, make: {'x': make.normal(c['n'])},\n"
        "    reference=lambda x: 2 * x, cost=lambda c: Cost(1, 1), cases={'quick': (case(n=5),)})\n"
        "operator.variant('v1', idea='sum')(lambda x: x + x)\n"
    )
    child = Harness(tmp_path, cache, operators="source/ops", packages=str(installed))
    assert child.ask(CheckReply, "check", operator="twice", variant="v1", case="n=5,f32,fwd").status is Status.OK
    assert child.stop() == 0
