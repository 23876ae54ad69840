"""The worker touches what others laid out through `trees.Tree` alone, so that no link of a commit leads it elsewhere.

A path does not say whose it is. So every function of the worker that touches files by their paths is listed here with
what it touches, which is always the worker's own or the machine's. Whoever writes another one finds this test: use a
Tree, or say here why none is needed.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

WORKER = Path(__file__).parents[2] / "worker"
TOUCHING = {
    *("access", "chmod", "chown", "copy2", "copyfile", "copytree", "disk_usage", "exists", "glob", "hardlink_to"),
    *("is_dir", "is_file", "is_symlink", "iterdir", "link", "listdir", "lstat", "makedirs", "mkdir", "mkfifo"),
    *("move", "open", "read_bytes", "read_text", "readlink", "rename", "rglob", "rmdir", "rmtree", "samefile"),
    *("scandir", "stat", "statvfs", "symlink", "symlink_to", "touch", "truncate", "unlink", "utime", "write_bytes"),
    "write_text",
}
"""Names of functions and methods that touch a file by its path."""
BEFORE_CHILDREN = {
    "confine.py",
    "levels.py",
    "root.py",
    "sandbox.py",
    "groups.py",
    "images.py",
    "template.py",
    "templates.py",
    "attacks.py",
}
"""Modules that set up or attack what children see, before any code of a commit runs; tests/security attacks them."""
OWN = {
    "building.py": {
        "find, remove, add": "libraries in the store, which no child sees",
        "lay_out": "libraries for a child, which sees them read-only",
    },
    "bytecode.py": {"prepare": "byte code that was copied out of a jail"},
    "caches.py": {"fill, keep": "the folder of a cache", "remove_unused": "folders of caches"},
    "cards.py": {"read_model, _read_machine, _cpu_fact": "/sys and /proc"},
    "checkout.py": {"_spec": "the folder of libraries", "__init__": "the folder of libraries"},
    "child.py": {"_start": "whether folders that the worker chose are there"},
    "devices.py": {
        "foreign_nodes, _cpu_model": "/dev and /proc",
        "_machine, lock_device": "the lock and the name of the machine",
    },
    "exam.py": {"candidates": "a folder that a person names"},
    "gate.py": {"_work_ns": "/proc"},
    "headers.py": {"find, make, _place, lay_out": "headers that were copied out of a jail"},
    "host.py": {"start_template, lone_child": "empty folders"},
    "http_coordinator.py": {"_results_file, _send, _inline": "results of this worker"},
    "jailed.py": {"keep": "a new folder of the worker"},
    "loop.py": {
        "_run": "the folder of traces, which children cannot see",
        "__init__": "the folder of undelivered results",
    },
    "outages.py": {"_disk_is_full": "the file systems of home and temporary folder"},
    "package_build.py": {
        "renew, trim_builds": "the folder of a build itself",
        "_keep": "a new folder of the worker",
    },
    "tools.py": {"read_peaks, store_peaks": "ceilings of this machine"},
    "proving.py": {"read_expectations, _as_repository": "repositories that ship with Warpwatch"},
    "sanitizers.py": {"_compute": "toolkits of this machine"},
    "self_attack.py": {"_targets": "files that this process plants for the attacks"},
    "undelivered.py": {"list, keep, drop, _read": "results of this worker, which children cannot see"},
    "toolchains.py": {"_read": "worker.toml"},
    "ahead.py": {"_descendants": "/proc"},
    "worktrees.py": {"clear_worktrees": "names of worktrees"},
}
"""What each function touches by paths, by module."""
PLACES = {
    "ahead.py": {"_build": "the command line of a child"},
    "checkout.py": {"build_package, program_spec, _spec, _build": "command lines of children"},
    "proving.py": {"folder, _as_repository": "a repository that ships with Warpwatch, which is no Tree"},
}
"""Where the place of a tree is used as a path."""


def functions(module: Path) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.FunctionDef)]


def modules() -> list[Path]:
    return [path for path in sorted(WORKER.glob("*.py")) if path.name not in {"trees.py", *BEFORE_CHILDREN}]


def listed(table: dict[str, dict[str, str]], module: Path) -> set[str]:
    return {name for names in table.get(module.name, {}) for name in names.split(", ")}


def is_touching(node: ast.AST) -> bool:
    """Whether it calls something that touches a file by its path; what a Tree is asked for has names of its own."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
            return name in TOUCHING
    return False


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_files_are_touched_by_path_where_it_is_listed(module: Path) -> None:
    touching = {function.name for function in functions(module) if any(map(is_touching, ast.walk(function)))}
    assert touching - listed(OWN, module) == set(), "touches files by path: use trees.Tree, or say above whose they are"


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_places_of_trees_become_paths_where_it_is_listed(module: Path) -> None:
    using = {
        function.name
        for function in functions(module)
        if any(isinstance(node, ast.Attribute) and node.attr == "place" for node in ast.walk(function))
    }
    assert using - listed(PLACES, module) == set(), "makes a path of a tree: its place is for command lines alone"


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_the_folder_of_a_jail_is_a_tree(module: Path) -> None:
    tree = ast.parse(module.read_text())
    wrapped = {
        id(argument)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Tree"
        for argument in node.args
    }
    bare = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "folder"
        and id(node) not in wrapped
    ]
    assert bare == []


@pytest.mark.parametrize(
    "code",
    [
        "(root / 'pkg' / 'file').read_text()",
        "os.link(source, root / 'file')",
        "shutil.copytree(root, copy)",
        "open(path)",
    ],
)
def test_new_uses_are_found(code: str) -> None:
    assert any(map(is_touching, ast.walk(ast.parse(code))))
