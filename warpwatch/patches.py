"""Uncommitted changes as a patch: made from a checkout, and applied to a mirror as a commit that no branch holds.

A patch is hostile. It is applied to an index and never to files, with an object store of its own until it was found to
hold regular files only, in reasonable number and size. The commit depends on the base and the patched files alone, so
a server and its workers make the same one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from warpwatch import git
from warpwatch.contract.commit_ids import short_sha

MAX_BYTES = 900_000
"""Size of a patch; a server takes requests of a megabyte."""
MAX_FILES = 1000
MAX_CONTENT_BYTES = 2**24
"""Size of all files that it changes together."""
SUBJECT = "Working tree"
_AUTHOR = "warpwatch"
_SECONDS = 60.0
_MEMORY_BYTES = 2**31
_CONFIG = ("core.protectHFS=true", "core.protectNTFS=true", "core.packedGitWindowSize=32m", "core.packedGitLimit=256m")
"""A path that some file system takes for .git is refused on all; and packs of any size are read within the limit."""
_REGULAR = ("100644", "100755")
_GONE = "000000"


class PatchError(ValueError):
    """A patch that cannot be applied, or that changes what it may not; the message is for people."""


@dataclass(frozen=True, slots=True)
class PatchedCommit:
    """The commit that a patch makes on its base, and the files that differ, by name."""

    sha: str
    files: list[str]


def make_patch(root: Path, base_sha: str, tree: str) -> bytes:
    """A patch from a commit to a tree of the same checkout; PatchError where the patch is too large to be sent."""
    with TemporaryDirectory(prefix="warpwatch-patch-") as folder:
        file = Path(folder) / "patch"
        words = ("diff-tree", "-p", "--binary", "--full-index", "--no-renames", "--no-color", "--no-ext-diff")
        git.git(*words, "--no-textconv", f"--output={file}", base_sha, tree, cwd=root)
        content = file.read_bytes()
    _expect_size(content)
    return content


def patch_of_files(mirror: Path, base_sha: str, files: Mapping[str, str]) -> bytes:
    """The patch that gives these files of a commit this content; PatchError for a name that git refuses."""
    with TemporaryDirectory(prefix="warpwatch-patch-") as folder:
        index, quarantine, patch = (Path(folder) / name for name in ("index", "objects", "patch"))
        quarantine.mkdir()
        objects = str(mirror.absolute() / "objects")
        apart = {"GIT_OBJECT_DIRECTORY": str(quarantine), "GIT_ALTERNATE_OBJECT_DIRECTORIES": objects}
        git.git("read-tree", base_sha, cwd=mirror, index=index, environment=apart)
        lines = ""
        for name, text in files.items():
            # git leaves out a path that leads elsewhere, instead of refusing it.
            is_inside = not {"", ".", ".."} & set(name.split("/")) and ".git" not in name.lower().split("/")
            if not is_inside or name != name.strip() or any(mark in name for mark in '\n\t\0"'):
                raise PatchError(f"{name!r} is no name of a file")
            blob = git.git("hash-object", "-w", "--stdin", cwd=mirror, environment=apart, text=text).strip()
            lines += f"100644 {blob}\t{name}\n"
        try:
            git.git("update-index", "--add", "--index-info", cwd=mirror, index=index, environment=apart, text=lines)
        except git.GitError as error:
            raise PatchError(f"the files are refused: {error}") from error
        tree = git.git("write-tree", cwd=mirror, index=index, environment=apart, config=_CONFIG).strip()
        words = ("diff-tree", "-p", "--binary", "--full-index", "--no-renames", "--no-color", "--no-ext-diff")
        git.git(*words, "--no-textconv", f"--output={patch}", base_sha, tree, cwd=mirror, environment=apart)
        content = patch.read_bytes()
    _expect_size(content)
    return content


def apply_patch(mirror: Path, base_sha: str, content: bytes) -> PatchedCommit:
    """Stores the patched commit in a mirror that holds the base; PatchError names what is wrong with the patch."""
    _expect_size(content)
    with TemporaryDirectory(prefix="warpwatch-patch-") as folder:
        patch, quarantine = Path(folder) / "patch", Path(folder) / "objects"
        patch.write_bytes(content)
        quarantine.mkdir()
        objects = mirror.absolute() / "objects"
        apart = {"GIT_OBJECT_DIRECTORY": str(quarantine), "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(objects)}
        tree = _write_tree(mirror, base_sha, patch, Path(folder) / "first", apart)
        files = _expect_allowed(mirror, base_sha, tree, apart)
        tree = _write_tree(mirror, base_sha, patch, Path(folder) / "second", {})
    return PatchedCommit(_commit(mirror, base_sha, tree), files)


def _expect_size(content: bytes) -> None:
    if len(content) > MAX_BYTES:
        raise PatchError(f"the patch has {len(content):,} bytes; at most {MAX_BYTES:,} are allowed")
    if not content.strip():
        raise PatchError("the patch changes nothing")


def _write_tree(mirror: Path, base_sha: str, patch: Path, index: Path, environment: dict[str, str]) -> str:
    """The id of the patched tree. environment: where git writes its objects."""
    git.git("read-tree", base_sha, cwd=mirror, index=index, environment=environment)
    words = ("apply", "--cached", "--whitespace=nowarn", str(patch))
    try:
        git.git(
            *words,
            cwd=mirror,
            index=index,
            environment=environment,
            config=_CONFIG,
            timeout=_SECONDS,
            memory_bytes=_MEMORY_BYTES,
        )
    except git.GitError as error:
        raise PatchError(f"the patch does not apply to {short_sha(base_sha)}: {error}") from error
    return git.git("write-tree", cwd=mirror, index=index, environment=environment, config=_CONFIG).strip()


def _expect_allowed(mirror: Path, base_sha: str, tree: str, environment: dict[str, str]) -> list[str]:
    """Names of the changed files; PatchError unless the new ones are regular files, of names and sizes that may be."""
    words = ("diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", base_sha, tree)
    fields = git.git(*words, cwd=mirror, environment=environment).split("\0")[:-1]
    entries = list(zip(fields[::2], fields[1::2], strict=True))
    if not entries:
        raise PatchError("the patch changes nothing")
    if len(entries) > MAX_FILES:
        raise PatchError(f"the patch changes {len(entries):,} files; at most {MAX_FILES:,} are allowed")
    blobs = []
    for entry, name in entries:
        _, new_mode, _, blob, _ = entry.split()
        if any(part.lower().rstrip(" .") in (".git", "..", "") for part in name.split("/")):
            raise PatchError(f"the patch changes {name!r}, which is no file of the repository")
        if new_mode not in (*_REGULAR, _GONE):
            what = {"120000": "a symbolic link", "160000": "a submodule"}.get(new_mode, "no regular file")
            raise PatchError(f"the patch makes {name!r} {what}; only regular files can be sent")
        blobs += [blob] if new_mode != _GONE else []
    sizes = git.git(
        "cat-file", "--batch-check=%(objectsize)", cwd=mirror, environment=environment, text="\n".join([*blobs, ""])
    )
    size = sum(map(int, sizes.split()))
    if size > MAX_CONTENT_BYTES:
        raise PatchError(f"the changed files have {size:,} bytes; at most {MAX_CONTENT_BYTES:,} are allowed")
    return [name for _, name in entries]


def _commit(mirror: Path, base_sha: str, tree: str) -> str:
    """A commit of the tree on the base, which is the same wherever it is made."""
    seconds = git.git("show", "--no-patch", "--format=%ct", base_sha, cwd=mirror).strip()
    # A commit may say any time, and git reads none before 1970.
    when = f"@{seconds if seconds.isdigit() else 0} +0000"
    people = {
        f"GIT_{role}_{field}": value
        for role in ("AUTHOR", "COMMITTER")
        for field, value in (("NAME", _AUTHOR), ("EMAIL", f"{_AUTHOR}@localhost"), ("DATE", when))
    }
    return git.git("commit-tree", tree, "-p", base_sha, "-m", SUBJECT, cwd=mirror, environment=people).strip()
