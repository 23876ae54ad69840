"""What a patch may change of an operator's file without changing what is measured."""

from __future__ import annotations

import ast

import pytest

from warpwatch.variant_code import changed_definition

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
