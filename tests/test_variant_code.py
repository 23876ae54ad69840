"""Which variants of an operator's file a change can reach."""

from __future__ import annotations

import ast

import pytest

from warpwatch.variant_code import changed_definition, variant_digests

FILE = """
import torch
from ._launch import launch

SCALE = 2
UNUSED = 3

def reference(a):
    return a * SCALE

def helper(a):
    return launch(a)

operator = Operator("square", reference=reference)

@operator.variant("v1", unsupported=None)
def v1(a):
    return a * a

@operator.variant("v2")
def v2(a):
    return helper(a)

@operator.variant("v3")
def v3(a):
    return v1(a) + 0
"""
ALL = {"v1", "v2", "v3"}


def changed(old: str, new: str, text: str = FILE) -> set[str] | None:
    """Variants whose code differs once `old` is replaced."""
    assert text.count(old) == 1
    before, after = variant_digests(ast.parse(text)), variant_digests(ast.parse(text.replace(old, new)))
    if before is None or after is None:
        return None
    return {name for name in {*before, *after} if before.get(name) != after.get(name)}


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("return helper(a)", "return helper(a) * 1", {"v2"}),
        ("return launch(a)", "return launch(a, 2)", {"v2"}),
        ("return a * a", "return a.square()", {"v1", "v3"}),
        ("unsupported=None", "unsupported=broken", {"v1", "v3"}),
        ("UNUSED = 3", "UNUSED = 4", set()),
        ("UNUSED = 3", "UNUSED = 3\n\ndef other():\n    return 1", set()),
        ("SCALE = 2", "SCALE = 4", ALL),
        ("import torch\n", "import torch\nimport triton\n", ALL),
        ("UNUSED = 3", "torch.backends.cudnn.benchmark = True", ALL),
        ("UNUSED = 3", "torch.set_num_threads(1)", ALL),
        ("UNUSED = 3", "UNUSED = torch.set_num_threads(1)", ALL),
        ("UNUSED = 3", "@torch.library.register_fake('a')\ndef fake(a):\n    return a", ALL),
        ("UNUSED = 3", "def other():\n    global SCALE\n    SCALE = 1", ALL),
        ("UNUSED = 3", "def other(a=torch.set_num_threads(1)):\n    return a", ALL),
        ("UNUSED = 3", "class Other(torch.nn.Module):\n    torch.set_num_threads(1)", ALL),
        ("UNUSED = 3", "class Other(torch.nn.Module):\n    def forward(self):\n        return f()", set()),
        ('@operator.variant("v2")', '@operator.variant("v4")', {"v2", "v4"}),
        ("return v1(a) + 0", "return globals()['helper'](a)", None),
        ("import launch", "import *", None),
        ('@operator.variant("v3")', '@operator.variant("v2")', None),
        ("UNUSED = 3", "for name in 'ab':\n    operator.variant(name)(reference)", None),
        ("UNUSED = 3", "operator.variants['v4'] = reference", None),
    ],
)
def test_a_change_reaches_these_variants(old: str, new: str, names: set[str] | None) -> None:
    assert changed(old, new) == names


def test_a_file_without_variants_tells_nothing() -> None:
    assert variant_digests(ast.parse("NUMBER = 1")) is None


HELPER = "def helper(a):"


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("return launch(a)", "return launch(a) + 0", None),
        ("return v1(a) + 0", "return v1(a)", None),
        (HELPER, "def other(a, b=1):\n    return a\n\ndef helper(a, b=2):", None),
        (HELPER, "@functools.cache\ndef other():\n    return v2\n\ndef helper(a):", None),
        (HELPER, "@triton.jit\ndef other(a):\n    return a\n\ndef helper(a):", None),
        (
            HELPER,
            "@triton.autotune(configs=[triton.Config({'a': 1})])\n@triton.jit\ndef b(a):\n    1\n\ndef helper(a):",
            None,
        ),
        (
            HELPER,
            "@triton.autotune(configs=[triton.Config({'a': evil()})])\ndef other(a):\n    1\n\ndef helper(a):",
            "decorator",
        ),
        ("return a * SCALE", "return a", "reference, which the definition uses"),
        (HELPER, "def Operator(*a, **k):\n    return None\n\ndef helper(a):", "Operator, which the definition uses"),
        ("SCALE = 2", "SCALE = 3", "line 5"),
        ("UNUSED = 3", "", "line"),
        ("unsupported=None", "unsupported=len", "a decorator of v1"),
        ('@operator.variant("v2")\ndef v2(a):\n    return helper(a)\n', "", "v2, which is gone"),
        (HELPER, "@print\ndef helper(a):", "line"),
        (HELPER, "def helper(a, b=print(1)):", "a call in the arguments of helper"),
        (HELPER, "def helper(a: print(1)):", "a call in the arguments of helper"),
        (HELPER, "def helper(a) -> print(1):", "a call in the arguments of helper"),
        (HELPER, "def helper(a):\n    global reference", "a global variable in helper"),
        (HELPER, "def helper(a):\n    return 1\n\ndef helper(a):", "helper, which is defined twice"),
        ("import torch", "import os\nimport torch", "line 2"),
        ("reference=reference", "reference=helper", "line"),
    ],
)
def test_a_patch_of_variants_leaves_the_definition_as_it_is(old: str, new: str, named: str | None) -> None:
    assert FILE.count(old) == 1
    changed = changed_definition(ast.parse(FILE), ast.parse(FILE.replace(old, new)))
    assert changed is None if named is None else changed is not None and named in changed
