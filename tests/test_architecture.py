"""House rules as code: who may import whom, how large things may grow, and that closed lists agree."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from tests import costs
from warpwatch.contract.commit_ids import SHORT_SHA

ROOT = Path(__file__).parent.parent
FOLDERS = ("warpwatch", "worker", "db", "server", "kernels")
LINKED = ("worker", "db", "server")
"""Folders at the top of the repository that are packages inside `warpwatch`, by links, in a checkout as in the wheel.
"""
LEAVES = {
    "warpwatch._toolchain",
    "warpwatch.bundle",
    "warpwatch.byte_pairs",
    "warpwatch.definitions",
    "warpwatch.destinations",
    "warpwatch.formats",
    "warpwatch.git",
    "warpwatch.git_branches",
    "warpwatch.logs",
    "warpwatch.patches",
    "warpwatch.project",
    "warpwatch.reached_code",
    "warpwatch.settings",
    "warpwatch.sources",
    "warpwatch.telemetry",
    "warpwatch.variant_code",
}
PYTHON_LINES, FUNCTION_LINES, NATIVE_LINES, TEMPLATE_LINES = 800, 60, 650, 200


ROOMS = {
    "warpwatch.contract": "contract",
    "warpwatch": "sdk",
    "kernels": "kernels",
    **dict.fromkeys(LEAVES - {"warpwatch._toolchain"}, "repo"),
    "warpwatch.worker.harness": "harness",
    "warpwatch.worker": "worker",
    "warpwatch.db": "db",
    **dict.fromkeys([f"warpwatch.server.{name}" for name in ("verdicts", "judge", "history", "receipts")], "judge"),
    "warpwatch.server.http": "access",
    **dict.fromkeys([f"warpwatch.server.{name}" for name in ("intake", "reports")], "intake"),
    **dict.fromkeys([f"warpwatch.server.{name}" for name in ("forge", "threads")], "integrations"),
    "warpwatch.server": "web",
    **dict.fromkeys(("warpwatch.cli", "warpwatch.__main__"), "cli"),
}
"""The room of each module: that of the longest name that it begins with."""
BELOW = {
    "contract": set[str](),
    "sdk": {"contract"},
    "kernels": {"sdk"},
    "repo": {"contract"},
    "harness": {"sdk", "contract"},
    "worker": {"repo", "contract"},
    "db": {"contract"},
    "judge": {"repo", "db", "contract"},
    "access": {"repo", "db", "contract"},
    "intake": {"judge", "access", "repo", "db", "contract"},
    "integrations": {"intake", "judge", "access", "repo", "db", "contract"},
    "web": {"integrations", "intake", "judge", "access", "repo", "db", "contract"},
    "cli": {*ROOMS.values()},
}
"""The rooms that each room may import."""
UPWARD = {
    ("kernels.bpe_train", "warpwatch.byte_pairs"),
    ("warpwatch.loading", "warpwatch.settings"),
    ("warpwatch.server.history.commits", "warpwatch.server.http.problems"),
    ("warpwatch.server.history.definitions", "warpwatch.server.http.problems"),
    ("warpwatch.server.judge.interpreter", "warpwatch.server.threads.background"),
    ("warpwatch.server.http.metrics", "warpwatch.server.threads.background"),
    ("warpwatch.server.http.alarm_cache", "warpwatch.server.intake.space"),
    ("warpwatch.server.http.alarm_cache", "warpwatch.server.explanation.alarms"),
    ("warpwatch.server.intake.commands", "warpwatch.server.forge.client"),
    ("warpwatch.server.reports.notices", "warpwatch.server.explanation.alarms"),
}
"""Imports against that order, which the test holds to these: a leaf in the wrong room each."""


def python_files() -> list[Path]:
    # What lies under adversaries are users' repositories, which import nothing of ours but the SDK.
    skipped = {"versions", "adversaries"}
    return sorted(path for name in FOLDERS for path in (ROOT / name).rglob("*.py") if not skipped & set(path.parts))


@dataclass
class SourceFile:
    """What one reading of a Python file finds: parsing all of them takes two seconds, which several tests share."""

    imports: set[str] = field(default_factory=set)
    """Modules, relative imports made absolute; what only a type checker sees counts too."""
    first_imports: list[tuple[str | None, str]] = field(default_factory=list)
    """Packages and names that are imported from them outside functions and conditions."""
    long_functions: list[str] = field(default_factory=list)


@cache
def read_source(path: Path) -> SourceFile:
    package = list(path.relative_to(ROOT).with_suffix("").parts[:-1])
    if package[0] in LINKED:
        package.insert(0, "warpwatch")
    found, tree = SourceFile(), ast.parse(path.read_text())
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom):
            found.first_imports += [(statement.module, alias.name) for alias in statement.names]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.imports.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found.imports.add(module)
            found.imports.update(
                f"{module}.{alias.name}"
                for alias in node.names
                if (ROOT / module.replace(".", "/") / f"{alias.name}.py").exists()
            )
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[-1 if len(node.body) == 1 else 1].lineno
            if (node.end_lineno or 0) - first >= FUNCTION_LINES:
                found.long_functions.append(f"{path}:{node.name}")
    return found


def imports_of(path: Path) -> set[str]:
    return read_source(path).imports


def layer_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    if parts[:2] == ("warpwatch", "cli") or parts[-1] == "__main__.py":
        return "cli"
    if parts[:2] == ("warpwatch", "contract"):
        return "contract"
    return "harness" if parts[:2] == ("worker", "harness") else parts[0]


def owner_of(module: str) -> str:
    """The layer that a module of ours belongs to: "warpwatch.db.reads" to db, "warpwatch.operator" to warpwatch, the
    SDK."""
    parts = module.split(".")
    if parts[0] == "warpwatch" and len(parts) > 1 and parts[1] in (*LINKED, "cli", "contract"):
        return "harness" if parts[1:3] == ["worker", "harness"] else parts[1]
    return parts[0]


def module_of(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(["warpwatch", *parts] if parts[0] in LINKED else parts).removesuffix(".__init__")


def room_of(module: str) -> str:
    names = [name for name in ROOMS if f"{module}.".startswith(f"{name}.")]
    return ROOMS[max(names, key=len)]


def is_allowed(layer: str, module: str) -> bool:
    """Whether a file of `layer` may import `module`, one of ours."""
    owner = owner_of(module)
    leaf = owner == "contract" or module in LEAVES or module == "warpwatch"
    return {
        "cli": True,
        "contract": owner == "contract",
        "db": owner == "db" or owner == "contract",
        "warpwatch": owner in ("warpwatch", "contract"),
        "kernels": owner in ("kernels", "warpwatch"),
        "server": owner in ("server", "db") or leaf,
        "worker": owner == "worker" or leaf,
        "harness": owner in ("harness", "warpwatch", "contract") or module == "warpwatch.worker",
    }[layer]


def test_imports_follow_the_layers() -> None:
    forbidden = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in python_files()
        for module in imports_of(path)
        if module.split(".")[0] in ("warpwatch", "kernels") and not is_allowed(layer_of(path), module)
    ]
    assert forbidden == []


def test_rooms_import_downwards() -> None:
    upward = set()
    for path in python_files():
        module = module_of(path)
        for imported in imports_of(path):
            if imported.split(".")[0] in ("warpwatch", "kernels") and imported != "warpwatch":
                rooms = room_of(module), room_of(imported)
                if rooms[0] != rooms[1] and rooms[1] not in BELOW[rooms[0]]:
                    upward.add((module, imported))
    assert upward == UPWARD


def test_no_modules_import_each_other() -> None:
    """What is imported inside a function or for a type checker makes no circle and is left out."""
    modules = {module_of(path): path for path in python_files()}
    remaining: dict[str, set[str]] = {}
    for module, path in modules.items():
        pairs = read_source(path).first_imports
        names = {f"{package}.{name}" if f"{package}.{name}" in modules else package for package, name in pairs}
        remaining[module] = {name for name in names if name in modules and name != module}
    while free := {module for module, names in remaining.items() if not names & remaining.keys()}:
        remaining = {module: names for module, names in remaining.items() if module not in free}
    assert remaining == {}


@pytest.mark.parametrize(
    ("library", "owners"),
    [
        ("torch", {"kernels", "harness"}),
        ("sqlalchemy", {"db"}),
        ("psycopg", {"db"}),
        ("alembic", {"db"}),
        ("fastapi", {"server"}),
        ("starlette", {"server"}),
    ],
)
def test_libraries_have_one_owner(library: str, owners: set[str]) -> None:
    exempt = {ROOT / "warpwatch" / f"{name}.py" for name in ("native", "operator", "loading", "quantization")}
    for path in python_files():
        if layer_of(path) in {*owners, "cli"} or path in exempt:
            continue
        assert not [m for m in imports_of(path) if m.split(".")[0] == library], (
            f"{path.relative_to(ROOT)} imports {library}"
        )


def test_a_worker_needs_no_package_of_the_server_and_the_database() -> None:
    names = [f"warpwatch.worker.{path.stem}" for path in sorted((ROOT / "worker").glob("*.py"))]
    blocked = ("sqlalchemy", "psycopg", "alembic", "fastapi", "starlette", "torch", "warpwatch.db", "warpwatch.server")
    program = f"""
import importlib, sys
sys.modules.update(dict.fromkeys({blocked!r}))  # None there makes an import fail.
for name in {names!r}:
    importlib.import_module(name)
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_nothing_imports_the_folders_by_their_names_at_the_top() -> None:
    """`db` and `warpwatch.db` would be two packages with two sets of classes; installed, there is only the second."""
    for path in [*python_files(), *(ROOT / "bench").rglob("*.py"), *(ROOT / "tests").glob("**/*.py")]:
        if "repository" not in path.parts:
            assert not [name for name in imports_of(path) if name.split(".")[0] in LINKED], path


@pytest.mark.parametrize("name", LINKED)
def test_links_lead_to_the_folders_at_the_top(name: str) -> None:
    assert (ROOT / "warpwatch" / name).resolve() == ROOT / name


def test_python_files_and_functions_stay_small() -> None:
    files = python_files()
    assert [str(path) for path in files if len(path.read_text().splitlines()) > PYTHON_LINES] == []
    assert [name for path in files for name in read_source(path).long_functions] == []


def test_native_files_and_templates_stay_small() -> None:
    natives = [path for suffix in ("cu", "cuh", "cpp", "h") for path in (ROOT / "csrc").rglob(f"*.{suffix}")]
    assert natives
    assert [path.name for path in natives if len(path.read_text().splitlines()) > NATIVE_LINES] == []
    templates = list((ROOT / "web" / "templates").rglob("*.html"))
    assert templates
    assert [path.name for path in templates if len(path.read_text().splitlines()) > TEMPLATE_LINES] == []


def test_one_function_shortens_the_ids_of_commits() -> None:
    """Commands and names of files hold 12 digits, a refusal of what is no id more."""
    files = [*python_files(), *(ROOT / "web" / "templates").rglob("*.html")]
    cut = re.compile(r"sha(['\"]\])?\[:(?!12\]|80\])\d+\]")
    assert [path.name for path in files if cut.search(path.read_text())] == []
    assert f"const SHORT = {SHORT_SHA};" in (ROOT / "web" / "static" / "charts.js").read_text()


def test_cuda_files_need_no_torch() -> None:
    for path in [*(ROOT / "csrc").rglob("*.cu"), *(ROOT / "csrc").rglob("*.cuh")]:
        for line in path.read_text().splitlines():
            if line.lstrip().startswith("#include"):
                assert not any(word in line for word in ("torch", "ATen", "c10")), f"{path.name}: {line}"


def test_schema_document_names_every_table() -> None:
    from warpwatch.db.metadata import METADATA

    text = (ROOT / "docs" / "schema.md").read_text()
    assert [name for name in METADATA.tables if f"`{name}`" not in text] == []


def test_every_folder_of_tests_is_run() -> None:
    said = (ROOT / "Makefile").read_text(encoding="utf-8")
    folders = {f"tests/{path.parent.name}" for path in (ROOT / "tests").glob("*/test_*.py")}
    assert {folder for folder in folders if folder not in said} == set()


def test_every_part_of_ci_has_a_budget() -> None:
    parts = re.findall(r"^(\w+):[^\n]*\n\t\$\(PART\)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(parts) == sorted(costs.BUDGET)
