"""What one child leaves where a later one, or another tool, would take it for its own: modules, settings, precompiled
headers, files of an image. A commit may also bring them."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.security.test_commits import alone, ask, commit
from tests.security.test_commits import tools as tools
from tests.worker.conftest import Repository
from tests.worker.conftest import bare_templates as bare_templates
from tests.worker.conftest import repository as repository
from tests.worker.conftest import user_cache as user_cache
from warpwatch.worker import headers, images
from warpwatch.worker.reporter import CannotRunError
from warpwatch.worker.tools import Tools

pytestmark = pytest.mark.usefixtures("bare_templates", "user_cache")
NAMES = (
    *(
        "sitecustomize.py",
        "usercustomize.py",
        "conftest.py",
        "evil.pth",
        "json.py",
        "json.so",
        "argparse.py",
        "_ctypes.so",
    ),
    *("__pycache__/json.cpython-311.pyc", "kernels/__pycache__/op.pyc", "torch/__init__.py", "pyvenv.cfg", ".gdbinit"),
    *(".git/config", ".git/hooks/post-checkout", ".ninja_log", "libc.so.6", "setup.cfg", ".pypirc", ".python-version"),
)
LEAVE = f"""
import site, sys, sysconfig, time
worktree, temp = pathlib.Path.cwd(), pathlib.Path(os.environ["TMPDIR"])
places = [worktree, pathlib.Path(site.getusersitepackages()), pathlib.Path(sysconfig.get_path("purelib"))]
places += [pathlib.Path(entry) for entry in sys.path if entry and os.path.isdir(entry)]
places += map(pathlib.Path, (os.path.dirname(os.__file__), os.path.dirname(sys.executable), "/tmp", "/"))
for place in dict.fromkeys(places):
    for name in {NAMES!r}:
        path = place / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"planted")
            print("left", path)
        except OSError:
            pass
own = [temp, temp / {str(headers._HEADERS)!r}, temp / ".config/git", temp / ".local/lib", pathlib.Path("/dev/shm")]
print(sorted(str(path) for folder in own for path in folder.rglob("planted*")))
for folder in own:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "planted.h").write_bytes(b"precompiled")
    os.utime(folder / "planted.h", (4e9, 4e9))
"""


def test_nothing_is_left_where_a_later_child_or_tool_looks(tools: Tools, repository: Repository) -> None:
    """Not in the worktree, which the next child of the commit uses, nor where Python, git and compilers look."""
    checkout = alone(tools, repository, commit(repository, LEAVE))
    assert ask(checkout) == "[]"
    checkout.drop_child()
    assert ask(checkout) == "[]", "a precompiled header of tomorrow would be newer than every source"
    assert sorted(path.name for path in checkout.root.place.iterdir()) == ["attack.py", "csrc"]


def test_what_a_commit_brings_is_not_imported_before_the_harness(tools: Tools, repository: Repository) -> None:
    """A program starts in the worktree, and its own modules lie beside those of the commit."""
    shadows = {
        name: "print('of the commit', flush=True); raise SystemExit(3)" for name in NAMES if name.endswith(".py")
    }
    operators = {
        "kernels/op.py": "".join(f"import {Path(name).stem}\n" for name in ["attack.py", *shadows] if "/" not in name)
    }
    attack = {"attack.py": "import os; print(sorted(os.listdir()))"}
    checkout = alone(tools, repository, repository.commit("shadows", shadows | operators | attack))
    assert "sitecustomize.py" in ask(checkout)


# Images


FILES: dict[str, dict[str, Any]] = {
    "/etc/absolute": {},
    "../../escaped": {},
    "usr/../../../escaped": {},
    "bin/su": {"mode": 0o6755},
    "link": {"type": tarfile.SYMTYPE, "linkname": "{outside}"},
    "link/through": {},
    "hard": {"type": tarfile.LNKTYPE, "linkname": "{outside}/secret"},
    "../image.json": {},
    "dev/disk": {"type": tarfile.BLKTYPE, "mode": 0o666},
    "pipe": {"type": tarfile.FIFOTYPE},
    ".wh.deleted": {},
    "open": {"mode": 0o777, "uid": 12345, "gid": 12345},
    "honest": {},
}


def test_files_of_an_image_lie_below_its_root_without_rights(tmp_path: Path) -> None:
    """Names that lead out, files through links, links to files of the host, devices, and bits that change a user."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, facts in FILES.items():
            info = tarfile.TarInfo(name)
            for field, value in facts.items():
                setattr(
                    info, field, value.format(outside=outside) if isinstance(value, str) and "{" in value else value
                )
            info.size = 4 if info.isfile() else 0
            archive.addfile(info, io.BytesIO(b"evil") if info.size else None)
    (tmp_path / "image.tar").write_bytes(packed.getvalue())
    podman = tmp_path / "podman"
    podman.write_text(f"#!/bin/sh\ncat {tmp_path}/image.tar\n")
    podman.chmod(0o755)
    root = tmp_path / "images" / "partial" / "root"
    # It is refused as a whole, or laid out as far as it is harmless.
    with contextlib.suppress(CannotRunError):
        images._export(str(podman), "container", root, "image")
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]
    assert (outside / "secret").read_text() == "secret"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image.tar", "images", "outside", "podman"]
    assert [path.name for path in root.parent.iterdir()] == ["root"]
    assert not Path("/etc/absolute").exists()
    for path in root.rglob("*"):
        status = path.lstat()
        assert status.st_mode & (stat.S_ISUID | stat.S_ISGID) == 0, path
        assert not stat.S_ISBLK(status.st_mode)
        assert status.st_uid == os.getuid()
        assert not (stat.S_ISREG(status.st_mode) and path.read_bytes() == b"secret")
