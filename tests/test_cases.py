"""Keys of cases: every declared key can be parsed, and undeclared ones are derived or refused."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from warpwatch import Case, case
from warpwatch.contract.case import derive_case, parse_case

DECLARED = (
    case("f32", "fwd", batch=32, factors=(128, 128)),
    case("bf16", "bwd", batch=1, factors=(8,)),
    case("f32", "fwd", "transposed", batch=32, factors=(128, 128)),
)
KERNELS = [path.stem for path in (Path(__file__).parents[1] / "kernels").glob("[a-z]*.py")]


@pytest.mark.parametrize("name", KERNELS)
def test_every_declared_case_is_read_back_from_its_key(name: str) -> None:
    declared = importlib.import_module(f"kernels.{name}").operator.all_cases()
    assert all(parse_case(case.key).key == case.key for case in declared)
    assert [derive_case(case.key, declared) for case in declared] == list(declared)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("factors=4x4,batch=7", "batch=7,factors=4x4,f32,fwd"),
        ("batch=7, factors=4x4x4, bwd, bf16", "batch=7,factors=4x4x4,bf16,bwd"),
        ("batch=7,factors=9,transposed", "batch=7,factors=9,f32,fwd,transposed"),
    ],
)
def test_an_undeclared_case_has_the_sizes_of_a_declared_one(text: str, key: str) -> None:
    derived = derive_case(text, DECLARED)
    assert derived.key == key
    assert isinstance(derived["factors"], tuple), "an operator that takes lists gets a list"


@pytest.mark.parametrize(
    "text",
    [
        "batch=7",
        "batch=7,factors=9,rows=1",
        "batch=7x7,factors=9",
        "batch=7,factors=9,f64",
        "batch=-1,factors=9",
        "batch=7,factors=9x",
        "batch=" + "9" * 30 + ",factors=9",
        "",
    ],
)
def test_what_an_operator_cannot_have_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".{20}"):
        derive_case(text, DECLARED)


@pytest.mark.parametrize("key", ["", "f32,fwd", "n=1,f32", "n=1,fwd,f32", "n=1,f32,fwd,contiguous,more"])
def test_a_text_that_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="no case"):
        parse_case(key)


def test_an_operator_finds_cases_by_their_canonical_keys_alone() -> None:
    operator = importlib.import_module("kernels.square").operator
    declared = operator.all_cases()[0]
    assert operator.find_case(declared.key) is declared
    derived = operator.find_case(derive_case("size=77x3", operator.all_cases()).key)
    assert isinstance(derived, Case)
    assert derived["size"] == (77, 3)
    assert operator.find_case("size=77x3") is None, "a key names everything, so that it stands for one case"
