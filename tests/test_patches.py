"""Patches of working trees: the same commit everywhere, and nothing but regular files of the repository."""

from __future__ import annotations

import zlib
from base64 import b85encode
from pathlib import Path

import pytest

from tests.builders import run_git
from warpwatch import git, patches
from warpwatch.patches import PatchError, apply_patch, make_patch

HEADER = "diff --git a/{name} b/{name}\nnew file mode {mode}\nindex 0000000..1111111\n"
TEXT = "--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+{line}\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A checkout with two files and a mirror beside it, as a server has one."""
    source = tmp_path / "source"
    (source / "folder").mkdir(parents=True)
    run_git(source, "init", "--quiet", "--initial-branch", "main")
    (source / "a.py").write_text("first\n")
    (source / "folder" / "b.bin").write_bytes(bytes(range(256)))
    run_git(source, "add", "--all")
    run_git(source, "commit", "--quiet", "--message", "First")
    return source


def head_of(source: Path) -> str:
    return git.resolve(source, "HEAD")


def mirror_of(source: Path, home: Path) -> Path:
    return git.update_mirror(str(source), home)


def snapshot(source: Path) -> str:
    run_git(source, "add", "--all")
    return run_git(source, "write-tree").strip()


def added(name: str, line: str = "new", mode: str = "100644") -> bytes:
    return (HEADER + TEXT).format(name=name, line=line, mode=mode).encode()


def test_every_machine_makes_the_same_commit_of_a_patch(source: Path, tmp_path: Path) -> None:
    base = head_of(source)
    (source / "a.py").write_bytes(b"caf\xe9\r\nsecond\n")
    (source / "folder" / "b.bin").write_bytes(bytes(range(255, -1, -1)))
    (source / "new name.py").write_text("new\n")
    tree = snapshot(source)
    content = make_patch(source, base, tree)
    mirrors = [mirror_of(source, tmp_path / name) for name in ("server", "worker")]
    commits = [apply_patch(mirror, base, content) for mirror in mirrors]
    assert commits[0] == commits[1]
    assert commits[0].files == ["a.py", "folder/b.bin", "new name.py"]
    assert run_git(mirrors[0], "rev-parse", f"{commits[0].sha}^{{tree}}").strip() == tree
    assert git.describe(mirrors[0], commits[0].sha).parent_sha == base
    assert run_git(mirrors[0], "for-each-ref", f"--contains={commits[0].sha}") == ""


def test_a_deleted_file_is_sent(source: Path, tmp_path: Path) -> None:
    base = head_of(source)
    (source / "a.py").unlink()
    commit = apply_patch(mirror_of(source, tmp_path), base, make_patch(source, base, snapshot(source)))
    assert list(git.entries(mirror_of(source, tmp_path), commit.sha, "")) == ["folder"]


SUBMODULE = (HEADER + "--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+Subproject commit {line}\n").format(
    name="module", mode="160000", line="a" * 40
)
HOSTILE = {
    "outside": added("../outside.py"),
    "outside in the middle": added("folder/../../outside.py"),
    "absolute": added("/etc/passwd"),
    "git folder": added(".git/hooks/post-checkout"),
    "git folder below": added("folder/.git/config"),
    "git folder in capitals": added(".GIT/config"),
    "git folder of NTFS": added("git~1/config"),
    "symbolic link": added("link", "/etc/passwd", "120000"),
    "submodule": SUBMODULE.encode(),
    "no patch": b"hello\n",
    "empty": b"",
    "blank": b" \n\n",
    "cut off": added("new.py")[:-5],
    "other content": b"--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-other\n+new\n",
    "too large": b"x" * (patches.MAX_BYTES + 1),
    "too many files": b"".join(added(f"{number}.py") for number in range(patches.MAX_FILES + 1)),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_no_patch_of_regular_files_is_refused(source: Path, tmp_path: Path, content: bytes) -> None:
    mirror = mirror_of(source, tmp_path / "home")
    before = run_git(mirror, "count-objects")
    with pytest.raises(PatchError):
        apply_patch(mirror, head_of(source), content)
    assert run_git(mirror, "count-objects") == before, "what is refused leaves nothing behind"
    assert {path.name for path in tmp_path.iterdir()} == {"source", "home"}


def bomb(size: int) -> bytes:
    """A binary patch that unpacks to so many zeros."""
    packed = zlib.compress(bytes(size), 9)
    lines = []
    for start in range(0, len(packed), 52):
        piece = packed[start : start + 52]
        letter = chr(ord("A") + len(piece) - 1) if len(piece) <= 26 else chr(ord("a") + len(piece) - 27)
        lines.append(letter + b85encode(piece + bytes(-len(piece) % 4)).decode())
    head = f"diff --git a/zeros b/zeros\nnew file mode 100644\nindex {'0' * 40}..{'1' * 40}\n"
    return (head + f"GIT binary patch\nliteral {size}\n" + "\n".join(lines) + "\n\nliteral 0\nHcmV?d00001\n\n").encode()


def test_a_patch_that_unpacks_to_more_than_is_allowed_is_refused(source: Path, tmp_path: Path) -> None:
    mirror = mirror_of(source, tmp_path)
    content = bomb(patches.MAX_CONTENT_BYTES + 1)
    assert len(content) < patches.MAX_BYTES
    with pytest.raises(PatchError):
        apply_patch(mirror, head_of(source), content)


def test_a_working_tree_that_is_too_large_is_not_sent(source: Path) -> None:
    base = head_of(source)
    (source / "large.py").write_text("".join(f"{number}\n" for number in range(300_000)))
    with pytest.raises(PatchError):
        make_patch(source, base, snapshot(source))
