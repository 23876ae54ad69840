"""Which variants of an operator a change can reach, in its file and in those that it imports."""

from __future__ import annotations

import ast
from collections.abc import Mapping

import pytest

from warpwatch.reached_code import read_code, variant_digests

FILES = {
    "kernels.square": """
from __future__ import annotations
import functools
import torch
from torch import Tensor
from ._launch import launch, tile
from kernels._case import CASES, Config

SCALE = 2
UNUSED = 3
TABLE = [1, 2]

class Base(torch.autograd.Function):
    factor = 3

    @staticmethod
    @functools.cache
    def forward(ctx, a):
        return a * SCALE

class Product(Base):
    pass

def inputs(case, make):
    return make(case)

def reference(a):
    return a * SCALE

def helper(a):
    return launch(a)

operator = Operator("square", inputs=inputs, reference=reference, cases=CASES, tolerance=1e-3)

def register(name, version, **options):
    def run(a):
        return launch(a, version)

    operator.variant(name, **options)(run)

@operator.variant("v1", unsupported=None)
def v1(a):
    return a * a

@operator.variant("v2")
def v2(a):
    return helper(a)

@operator.variant("v3")
def v3(a):
    return v1(a) + 0

register("v4", 4)
register("v5", 5, prepare=functools.partial(tile, size=8))

@operator.variant("v6")
def v6(a, alpha=SCALE):
    return Product.apply(a)
""",
    "kernels._launch": """
import functools
import torch
import triton
from ._case import Config

SIZE = 4

@functools.cache
def config():
    return Config()

@triton.jit
def kernel(a, BLOCK: tl.constexpr):
    tl.store(a, tl.load(a))

def launch(a, version=1):
    return kernel[config()](a, BLOCK=SIZE)

def tile(a, size):
    return a.tile(size)

def other():
    return SIZE
""",
    "kernels._case": """
from typing import NamedTuple

CASES = {"quick": [1]}

class Config(NamedTuple):
    warps: int = 4
""",
}
LAUNCH, CASE = "kernels._launch", "kernels._case"
LAUNCHED = {"v2", "v4", "v5"}
ALL = {"v1", "v2", "v3", "v4", "v5", "v6"}
UNKNOWN = None
DEFINE = "UNUSED = 3"


def digests(files: Mapping[str, str]) -> dict[str, str | None]:
    return variant_digests({name: read_code(ast.parse(text)) for name, text in files.items()}, "kernels.square")


def changed(old: str, new: str, file: str = "kernels.square") -> set[str] | None:
    """Variants whose code may differ once `old` is replaced; None where nothing is known."""
    assert FILES[file].count(old) == 1
    before, after = digests(FILES), digests({**FILES, file: FILES[file].replace(old, new)})
    assert before.keys() == ALL
    assert None not in before.values()
    same = {name for name, digest in before.items() if after.get(name) == digest}
    return {*before, *after} - same if after else None


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        # What a variant names, and what that names.
        ("return helper(a)", "return helper(a) * 1", {"v2"}),
        ("return a * a", "return a.square()", {"v1", "v3"}),
        ("return a * a", "return (lambda: a.square())()", {"v1", "v3"}),
        ("return a * a", "return eval_(f'{a}')", {"v1", "v3"}),
        ("return launch(a)\n", "return functools.partial(launch, a)()\n", {"v2"}),
        ("unsupported=None", "unsupported=broken", {"v1", "v3"}),
        ("alpha=SCALE", "alpha=1", {"v6"}),
        ("factor = 3", "factor = 4", {"v6"}),
        ("class Product(Base)", "class Product(torch.autograd.Function)", {"v6"}),
        ("return launch(a, version)", "return launch(a, version) * 1", {"v4", "v5"}),
        ('"v4", 4', '"v4", 6', {"v4"}),
        ("size=8", "size=16", {"v5"}),
        (DEFINE, "UNUSED = 4", set()),
        (DEFINE, "UNUSED = 3\n\ndef other():\n    a = SCALE\n    return a", set()),
        (DEFINE, "import math\n\ndef other(a=math.pi):\n    return a", set()),
        (DEFINE, "class Other(torch.nn.Module):\n    def forward(self):\n        return f()", set()),
        (DEFINE, "@functools.cache\ndef other(a):\n    return f(a)", set()),
        (DEFINE, "def plain(f):\n    return f\n\n@plain\ndef other(a):\n    return f(a)", set()),
        ('"v4", 4', '"v7", 4', {"v4", "v7"}),
        ("def helper(a)", "def helper(a):\n    return 1\n\ndef helper(a)", {"v2"}),
        # The definition of the operator, and what is measured.
        ("return make(case)", "return make(case, 1)", ALL),
        ("def reference(a):\n    return a", "def reference(a):\n    return 1 * a", ALL),
        ("tolerance=1e-3", "tolerance=1e-2", ALL),
        ("SCALE = 2", "SCALE = 4", ALL),
        # What runs when the file is imported.
        ("import torch\n", "import torch\nimport triton.testing\n", ALL),
        ("from __future__ import annotations\n", "", ALL),
        (DEFINE, "torch.backends.cudnn.benchmark = True", ALL),
        (DEFINE, "torch.set_num_threads(1)", ALL),
        (DEFINE, "os.environ['TILE'] = '8'", ALL),
        (DEFINE, "UNUSED = torch.set_num_threads(1)", ALL),
        (DEFINE, "Product.forward = helper", ALL),
        (DEFINE, "TABLE += [3]", ALL),
        (DEFINE, "if torch.cuda.is_available():\n    SCALE = 5", ALL),
        (DEFINE, "try:\n    import helper\nexcept ImportError:\n    pass", ALL),
        (DEFINE, "del TABLE", ALL),
        (DEFINE, "@torch.library.register_fake('a')\ndef fake(a):\n    return a", ALL),
        (DEFINE, "def effect(f):\n    f()\n    return f\n\n@effect\ndef other(a):\n    return a", ALL),
        (DEFINE, "def effect(f):\n    a = f()\n    return a\n\n@effect\ndef other(a):\n    return a", ALL),
        (DEFINE, "def plain(f):\n    return f\n\nplain = patch\n\n@plain\ndef other(a):\n    return a", ALL),
        (DEFINE, "UNUSED = list.append(TABLE, 3)", ALL),
        (DEFINE, "def factory(n):\n    return n\n\n@factory(1)\ndef other(a):\n    return a", ALL),
        (DEFINE, "@functools.partial(patch, 1)\ndef other(a):\n    return a", ALL),
        (DEFINE, "def plain(list):\n    return list()\n\nUNUSED = plain(patch)", ALL),
        (DEFINE, "import patches as triton\n\n@triton.jit\ndef other(a):\n    return a", ALL),
        (DEFINE, "def other(a=torch.set_num_threads(1)):\n    return a", ALL),
        (DEFINE, "def other(a: torch.set_num_threads(1)):\n    return a", ALL),
        (DEFINE, "class Other:\n    torch.set_num_threads(1)", ALL),
        (DEFINE, "class Other:\n    @patch('torch')\n    def other(self):\n        pass", ALL),
        (DEFINE, "class Other:\n    def other(self, a=patch('torch')):\n        pass", ALL),
        (DEFINE, "class Other(metaclass=Meta):\n    pass", ALL),
        (DEFINE, "class Other(make_base()):\n    pass", ALL),
        (DEFINE, "UNUSED = [f() for f in TABLE]", ALL),
        (DEFINE, "UNUSED = (lambda a=f(): a)", ALL),
        (DEFINE, "UNUSED = f()()", ALL),
        ('@operator.variant("v2")', '@operator.variant("v2", unsupported=patch())', ALL),
        ('"v4", 4', '"v4", patch()', ALL),
        # What changes what others read.
        (DEFINE, "def other():\n    global SCALE\n    SCALE = 1", ALL),
        (DEFINE, "def other():\n    torch.backends.cudnn.benchmark = True", ALL),
        (DEFINE, "def other():\n    TABLE[0] = 1", ALL),
        ("return helper(a)", "Base.factor = 4\n    return helper(a)", ALL),
        # What changes names that it does not write.
        ("return v1(a) + 0", "return globals()['helper'](a)", UNKNOWN),
        ("return v1(a) + 0", "exec(f'SCALE = {a}')", UNKNOWN),
        ("return v1(a) + 0", "return setattr(Base, 'factor', a)", UNKNOWN),
        ("from torch import Tensor", "from torch import *", UNKNOWN),
        ("from ._launch import launch, tile", "from ._launch import *", UNKNOWN),
        (DEFINE, "class Other:\n    def __init_subclass__(cls):\n        torch.set_num_threads(1)", UNKNOWN),
        # Variants that are not told apart.
        ('@operator.variant("v3")', '@operator.variant("v2")', UNKNOWN),
        ('register("v4", 4)', 'for name in "ab":\n    register(name, 4)', UNKNOWN),
        ("    operator.variant(name, **options)(run)", "    operator.variant('x' + name, **options)(run)", UNKNOWN),
        ("    operator.variant(name, **options)(run)", "    operator.variant(name)(run)\n    patch()", UNKNOWN),
        (DEFINE, "for name in 'ab':\n    operator.variant(name)(reference)", UNKNOWN),
        (DEFINE, "operator.variants['v4'] = reference", UNKNOWN),
        (DEFINE, "make = operator.variant", UNKNOWN),
        ("operator = Operator", "from ._launch import operator\nother = Operator", UNKNOWN),
        ("operator = Operator", "from ._launch import other\noperator = other\noperation = Operator", UNKNOWN),
    ],
)
def test_a_change_of_the_operators_file_reaches_these_variants(old: str, new: str, names: set[str] | None) -> None:
    assert changed(old, new) == names


@pytest.mark.parametrize(
    ("file", "old", "new", "names"),
    [
        (LAUNCH, "BLOCK=SIZE", "BLOCK=2 * SIZE", LAUNCHED),
        (LAUNCH, "SIZE = 4", "SIZE = 8", LAUNCHED),
        (LAUNCH, "tl.store(a, tl.load(a))", "tl.store(a, 1 + tl.load(a))", LAUNCHED),
        (LAUNCH, "version=1", "version=2", LAUNCHED),
        (LAUNCH, "@triton.jit", "@triton.autotune(configs=[triton.Config({}, num_warps=8)])\n@triton.jit", LAUNCHED),
        (LAUNCH, "return a.tile(size)", "return a.tile(size, 1)", {"v5"}),
        (LAUNCH, "return SIZE", "return 2 * SIZE", set()),
        (LAUNCH, "import functools\n", "import functools\nimport os\n", set()),
        (LAUNCH, "import functools\n", "import functools\nfrom warpwatch.operator import Case\n", set()),
        (LAUNCH, "import functools\n", "import functools\nimport numpy\n", ALL),
        (LAUNCH, "return SIZE", "return SIZE\n\ntorch.set_num_threads(SIZE)", ALL),
        (LAUNCH, "return SIZE", "return SIZE\n\ntry:\n    import triton\nexcept ImportError:\n    pass", ALL),
        (LAUNCH, "return Config()", "return Config(8)", LAUNCHED),
        (LAUNCH, "def launch(a", "def __getattr__(name):\n    return other\n\ndef launch(a", UNKNOWN),
        (LAUNCH, "def launch(a", "def launched(a", LAUNCHED),
        (LAUNCH, "return SIZE", "return SIZE\n\ndef register(operator):\n    operator.variant('v9')(tile)", UNKNOWN),
        (CASE, "warps: int = 4", "warps: int = 8", LAUNCHED),
        (CASE, "[1]", "[1, 2]", ALL),
    ],
)
def test_a_change_of_an_imported_file_reaches_these_variants(
    file: str, old: str, new: str, names: set[str] | None
) -> None:
    assert changed(old, new, file) == names


@pytest.mark.parametrize(
    ("file", "old", "new", "names"),
    [
        ("kernels.square", "return helper(a)", "return getattr(a, TABLE[0])()", {"v2"}),
        ("kernels.square", "return helper(a)", "return helper(a, open('tile.json').read())", {"v2"}),
        ("kernels.square", "return helper(a)", "return helper(a, torch.load('tile.pt'))", {"v2"}),
        ("kernels.square", "return v1(a) + 0", "return importlib.import_module('kernels._launch').other()", {"v3"}),
        ("kernels.square", "UNUSED = 3", "UNUSED = json.load(open('tile.json'))", ALL),
        (LAUNCH, "def launch(a", "def launched(a", LAUNCHED),
        (LAUNCH, "return SIZE", "return vars()", set()),
    ],
)
def test_what_may_reach_more_than_is_written_is_unknown(file: str, old: str, new: str, names: set[str]) -> None:
    known = digests({**FILES, file: FILES[file].replace(old, new)})
    assert {name for name, digest in known.items() if digest is None} == names
    assert known.keys() == ALL


def test_the_order_of_variants_is_none_of_their_code_but_that_of_effects_is() -> None:
    text = FILES["kernels.square"]
    v2 = '@operator.variant("v2")\ndef v2(a):\n    return helper(a)\n'
    moved = {**FILES, "kernels.square": text.replace(v2, "") + v2}
    assert digests(moved) == digests(FILES)
    patched, late = (
        {**FILES, "kernels.square": text.replace("SCALE = 2", order)} for order in ("SCALE = 2\nf()", "f()\nSCALE = 2")
    )
    assert not digests(patched).items() & digests(late).items()


def test_the_order_of_imports_counts_where_files_do_more_than_define() -> None:
    first, second = "from ._launch import launch, tile", "from kernels._case import CASES, Config"
    swapped = FILES["kernels.square"].replace(f"{first}\n{second}", f"{second}\n{first}")
    same = digests(FILES).items() & digests({**FILES, "kernels.square": swapped}).items()
    assert {name for name, _ in same} == {"v1", "v3", "v6"}
    patched = {**FILES, LAUNCH: "patch(1)\n" + FILES[LAUNCH].replace("from ._case import Config", "Config = int")}
    patched[CASE] = "patch(2)\n" + FILES[CASE]
    assert not digests(patched).items() & digests({**patched, "kernels.square": swapped}).items()


def test_a_file_that_is_not_imported_by_name_counts_as_a_whole() -> None:
    before = digests({**FILES, "package.inner": "def other():\n    return 1"})
    assert not before.items() & digests({**FILES, "package.inner": "def other():\n    return 2"}).items()
    assert variant_digests({"kernels.square": read_code(ast.parse(FILES["kernels.square"])), LAUNCH: None}, "x") == {}


def test_a_file_without_variants_tells_nothing() -> None:
    assert variant_digests({"kernels.square": read_code(ast.parse("NUMBER = 1"))}, "kernels.square") == {}
