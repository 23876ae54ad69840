"""The root of a child: what a command needs is there, also where links lead to it, and what lies beside it is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from dataclasses import replace
from pathlib import Path

import pytest

from warpwatch.worker import levels, root, sandbox

REAL = os.path.realpath(sys.executable)


def plan(words: list[str], home: Path, *shown: Path, covered: tuple[Path, ...] = ()) -> dict[str, tuple[str, str]]:
    entries = root.plan_root(shown, covered, home, words, environ={"PATH": "/usr/bin"})
    return {path: (kind, source) for kind, path, source in entries}


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with keys."""
    home = tmp_path / "person"
    for name in (".ssh/id", ".netrc", ".config/gh/hosts.yml", ".local/share/keyrings/login"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("secret")
    monkeypatch.setenv("HOME", str(home))
    root._host_folders.cache_clear()
    return home


def make_python(prefix: Path) -> Path:
    """A folder that looks like one of a Python of its own."""
    for name in ("bin", "lib/python3.13/site-packages", "share"):
        (prefix / name).mkdir(parents=True)
    (prefix / "lib/python3.13/os.py").touch()
    program = prefix / "bin" / "python3"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return program


def test_a_python_below_home_shows_no_key(tmp_path: Path, person: Path) -> None:
    program = make_python(person / "miniconda3")
    entries = plan([str(program)], tmp_path / "data")
    assert entries[str(person / "miniconda3")] == ("bind", str(person / "miniconda3"))
    assert not [path for path in entries if path in (str(person), str(tmp_path)) and entries[path][0] == "bind"]


def test_a_home_folder_that_is_a_prefix_is_not_shown_as_a_whole(tmp_path: Path, person: Path) -> None:
    entries = plan([str(make_python(person))], tmp_path / "data")
    below = {path.removeprefix(f"{person}/") for path in entries if path.startswith(f"{person}/")}
    assert {"bin", "lib"} <= below <= {"bin", "lib", ".local/bin", ".local/lib"}


def test_a_home_folder_in_a_folder_that_is_shown_is_covered(tmp_path: Path, person: Path) -> None:
    """As of a service's user whose home folder lies in /opt, with the worker's folder and its interpreter in it."""
    program = make_python(person / "venv")
    data = person / "data"
    data.mkdir()
    entries = plan([str(program)], data, tmp_path, covered=(person,))
    kinds = [(path, kind) for path, (kind, _) in entries.items() if path.startswith(str(tmp_path))]
    assert kinds[:2] == [(str(tmp_path), "bind"), (str(person), "cover")]
    assert (str(person / "venv"), "bind") in kinds
    assert not [path for path, _ in kinds if "ssh" in path or "netrc" in path]


def test_links_on_the_way_to_an_interpreter_are_there(tmp_path: Path, person: Path) -> None:
    """As uv lays them out: a venv's python leads through a folder that is a link to the Python itself."""
    make_python(person / ".local/share/uv/python/cpython-3.13.1")
    (person / ".local/share/uv/python/cpython-3.13").symlink_to("cpython-3.13.1")
    venv_bin = tmp_path / "project/.venv/bin"
    venv_bin.mkdir(parents=True)
    (venv_bin / "python").symlink_to(person / ".local/share/uv/python/cpython-3.13/bin/python3")
    (tmp_path / "project/.venv/pyvenv.cfg").write_text(f"home = {person}/.local/share/uv/python/cpython-3.13/bin\n")
    entries = plan([str(venv_bin / "python")], tmp_path / "data")
    assert entries[str(tmp_path / "project/.venv")][0] == "bind"
    assert entries[str(person / ".local/share/uv/python/cpython-3.13")] == ("link", "cpython-3.13.1")
    assert entries[str(person / ".local/share/uv/python/cpython-3.13.1")][0] == "bind"
    assert str(person / ".local/share") not in entries


def test_packages_that_were_installed_from_elsewhere_are_there(tmp_path: Path, person: Path) -> None:
    site = make_python(tmp_path / "python").parents[1] / "lib/python3.13/site-packages"
    for name in ("flat", "src/mapped", "cache/archive-v0/x1/cached-1.dist-info"):
        (tmp_path / name).mkdir(parents=True)
    (site / "flat.pth").write_text(f"import os\n# {person}\n{tmp_path / 'flat'}\n")
    (site / "__editable___mapped_1_finder.py").write_text(
        f"MAPPING: dict[str, str] = {{'mapped': {str(tmp_path / 'src/mapped')!r}}}\nNAMESPACES = {{}}\n"
    )
    (tmp_path / "cache/archive-v0/x1/cached-1.dist-info/RECORD").touch()
    (site / "cached-1.dist-info").mkdir()
    (site / "cached-1.dist-info/RECORD").symlink_to(tmp_path / "cache/archive-v0/x1/cached-1.dist-info/RECORD")
    entries = plan([str(tmp_path / "python/bin/python3")], tmp_path / "data")
    for name in ("flat", "src/mapped", "cache/archive-v0"):
        assert entries[str(tmp_path / name)][0] == "bind", name
    assert str(person) not in entries


def test_a_path_file_of_somebody_else_is_not_believed(tmp_path: Path, person: Path) -> None:
    """A commit may name any interpreter of the machine, also one that its author laid there."""
    if os.getuid() != 0:
        pytest.skip("only root can give files away")
    site = make_python(tmp_path / "python").parents[1] / "lib/python3.13/site-packages"
    (tmp_path / "private").mkdir()
    (site / "evil.pth").write_text(f"{tmp_path / 'private'}\n")
    os.chown(site / "evil.pth", 65534, 65534)
    assert str(tmp_path / "private") not in plan([str(tmp_path / "python/bin/python3")], tmp_path / "data")


def test_a_program_that_is_no_python_shows_nothing(tmp_path: Path, person: Path) -> None:
    """A commit may name any program as its interpreter."""
    program = tmp_path / "private/bin/program"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert not [path for path in plan([str(program)], tmp_path / "data") if path.startswith(f"{tmp_path}/private")]


def test_an_interpreter_in_the_workers_folder_shows_nothing_of_it(tmp_path: Path, person: Path) -> None:
    program = make_python(tmp_path / "data/worktrees/of-another-commit")
    entries = plan([str(program)], tmp_path / "data")
    assert not [path for path in entries if path.startswith(f"{tmp_path}/data/")]


def test_the_hosts_files_that_hold_secrets_are_not_in_the_list() -> None:
    names = set(root.SYSTEM_FILES)
    assert not {"shadow", "gshadow", "ssh", "ssl", "ssl/private", "sudoers", "krb5.keytab", "machine-id"} & names


@pytest.mark.parametrize("way", ["symlinks", "copies"])
def test_a_venv_starts_in_its_root(tmp_path: Path, way: str) -> None:
    """Also one that links to the Python of another folder, with a package that is installed in editable mode."""
    home = tmp_path / "home"
    if levels.strongest_isolation(home) not in ("full", "user"):
        pytest.skip("this host gives no root of its own")
    place = tmp_path / "project/.venv"
    venv.create(place, symlinks=way == "symlinks", with_pip=False)
    package = tmp_path / "other/src/helper"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("answer = 42\n")
    (site,) = place.glob("lib/python3*/site-packages")
    (site / "helper.pth").write_text(f"{package.parent}\n")
    words = [str(place / "bin/python"), "-c", "import helper, ssl, sqlite3, sys; print(helper.answer, sys.prefix)"]
    done = sandbox.run_confined(levels.confinement(home, None), words)
    assert done.stdout.split() == ["42", str(place)], done.stderr


def test_a_worker_below_a_system_folder_keeps_its_data(tmp_path: Path) -> None:
    """Such as /opt/warpwatch, whose folder above is shown."""
    home = tmp_path / "opt/warpwatch"
    (home / "database").mkdir(parents=True)
    (home / "database/rows").write_text("secret")
    if levels.strongest_isolation(home) not in ("full", "user"):
        pytest.skip("this host gives no root of its own")
    confinement = replace(levels.confinement(home, None), shown=(tmp_path / "opt",))
    code = f"""
import os
print(sorted(os.listdir({str(home)!r})), os.path.exists({str(home / "database")!r}), os.environ.get("HOME"))
open({str(home / "scratch/file")!r}, "w").write("x")
"""
    done = sandbox.run_confined(confinement, [REAL, "-I", "-S", "-c", code])
    assert done.stdout.startswith("['scratch'] False"), done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compilers_locale_and_time_zone_work(tmp_path: Path) -> None:
    home = tmp_path / "home"
    if levels.strongest_isolation(home) not in ("full", "user"):
        pytest.skip("this host gives no root of its own")
    jail = sandbox.Jail(levels.confinement(home, None))
    script = (
        'cd "$TMPDIR" && echo "int main() { return 0; }" > a.cpp && g++ -O1 -o a a.cpp && ./a && id -un && date +%Z'
    )
    command = jail.command(["/bin/sh", "-c", script], jail.inside)
    done = subprocess.run(
        command, pass_fds=jail.passed, env=jail.environment(), capture_output=True, text=True, check=False, timeout=60
    )
    jail.close()
    user, zone = done.stdout.split()
    assert user == subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    assert zone == subprocess.run(["date", "+%Z"], capture_output=True, text=True, check=True).stdout.strip()
