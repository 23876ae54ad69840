"""Repositories that mean harm: mirrors that measured code wrote to, and commits whose authors may write anything. And
mirrors that are used by several workers at once."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from warpwatch import git


def run_git(folder: Path, *words: str, text: bytes | None = None) -> str:
    done = subprocess.run(["git", *words], cwd=folder, input=text, check=True, capture_output=True)
    return done.stdout.decode(errors="replace").strip()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    run_git(folder, "init", "--quiet", "--initial-branch", "main")
    commit(folder, b"first", b"First Author")
    return folder


def commit(folder: Path, subject: bytes, author: bytes, when: bytes = b"1700000000 +0000") -> str:
    """A commit whose subject, author and date are written as they are, past every check of `git commit`."""
    tree = run_git(folder, "mktree", text=b"")
    parents = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", "refs/heads/main"], cwd=folder, capture_output=True, text=True
    )
    parent = f"parent {parents.stdout.strip()}\n".encode() if parents.stdout else b""
    person = author + b" <a@example.com> " + when
    body = (
        f"tree {tree}\n".encode() + parent + b"author " + person + b"\ncommitter " + person + b"\n\n" + subject + b"\n"
    )
    sha = run_git(folder, "hash-object", "-t", "commit", "-w", "--stdin", "--literally", text=body)
    run_git(folder, "update-ref", "refs/heads/main", sha)
    return sha


@pytest.mark.parametrize(
    "attack",
    [
        '[remote "origin"]\n\turl = {url}\n\tuploadpack = {program}\n',
        "[core]\n\tfsmonitor = {program}\n\tsshCommand = {program}\n",
        "[include]\n\tpath = {include}\n",
    ],
)
def test_a_mirror_that_was_written_to_starts_no_program(source: Path, tmp_path: Path, attack: str) -> None:
    mirror = git.update_mirror(str(source), tmp_path)
    program, include, proof = tmp_path / "program", tmp_path / "include", tmp_path / "proof"
    program.write_text(f'#!/bin/sh\necho started > {proof}\nexec git-upload-pack "$@"\n')
    program.chmod(0o755)
    include.write_text(f'[remote "origin"]\n\tuploadpack = {program}\n')
    with (mirror / "config").open("a") as file:
        file.write(attack.format(url=source, program=program, include=include))
    newest = commit(source, b"second", b"First Author")
    assert git.update_mirror(str(source), tmp_path) == mirror
    assert git.resolve(mirror, "main") == newest
    assert not proof.exists()
    assert str(program) not in (mirror / "config").read_text()


def test_a_mirror_whose_configuration_is_redirected_is_restored(source: Path, tmp_path: Path) -> None:
    mirror = git.update_mirror(str(source), tmp_path)
    (mirror / "commondir").write_text(str(tmp_path))
    (mirror / "config").unlink()
    os.mkfifo(mirror / "config")
    assert git.last_commits(git.update_mirror(str(source), tmp_path), "main", 5) == [
        run_git(source, "rev-parse", "main")
    ]
    assert not (mirror / "commondir").exists()


def test_hooks_and_secrets_stay_out(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPWATCH_DATABASE_URL", "postgresql://user:secret@host/db")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    mirror = git.update_mirror(str(source), tmp_path)
    assert "secret" not in git.git("-c", "alias.show-env=!env", "show-env", cwd=mirror)


@pytest.mark.parametrize(
    ("subject", "author"),
    [
        ("line\u2028separator", "First Author"),
        ("next\u0085line", "First\u0085Author"),
        ("form\ffeed\vand\x1ctabs", "First\x1eAuthor"),
        ("carriage\rreturn", "First Author"),
    ],
)
def test_history_with_odd_characters_is_read(source: Path, tmp_path: Path, subject: str, author: str) -> None:
    sha = commit(source, subject.encode(), author.encode())
    mirror = git.update_mirror(str(source), tmp_path)
    first, second = git.describe_many(mirror, git.last_commits(mirror, "main", 2))
    assert (first.subject, second.sha, second.ordinal) == ("first", sha, 2)
    assert git.describe(mirror, sha) == second
    assert git.describe_many(mirror, []) == []
    assert second.author.replace(" ", "").startswith("First")


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        (b"1700000000 +0530", datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        (b"99999999999999 +0000", None),
        (b"-5 +0000", None),
        (b"1700000000 +9999", None),
        (b"soon", None),
    ],
)
def test_history_with_odd_dates_is_read(source: Path, tmp_path: Path, when: bytes, expected: datetime | None) -> None:
    sha = commit(source, b"odd", b"First Author", when)
    found = git.describe(git.update_mirror(str(source), tmp_path), sha)
    assert found.subject == "odd"
    assert expected is None or found.authored_at == expected


def test_commits_are_checked_out_while_others_come_and_go(source: Path, tmp_path: Path) -> None:
    """Git's own worktrees are entered in the mirror, and fetches failed that met an entry half written."""
    blob = run_git(source, "hash-object", "-w", "--stdin", text=b"as it was")
    tree = run_git(source, "mktree", text=f"100644 blob {blob}\tfile\n".encode())
    sha = run_git(source, "-c", "user.name=A", "-c", "user.email=a@example.com", "commit-tree", tree, "-m", "files")
    run_git(source, "update-ref", "refs/heads/files", sha)
    mirror = git.update_mirror(str(source), tmp_path)

    def check_out(worker: int) -> set[str]:
        found = set()
        for number in range(40):
            root = tmp_path / "worktrees" / f"{worker}-{number}"
            with git.empty_worktree(root):
                git.check_out(mirror, root, sha)
                found.add((root / "file").read_text())
        return found

    with ThreadPoolExecutor(3) as pool:
        found = pool.map(check_out, range(3))
        for number in range(20):
            later = commit(source, f"number {number}".encode(), b"First Author")
            assert git.resolve(git.update_mirror(str(source), tmp_path), "main") == later
        assert list(found) == [{"as it was"}] * 3
    assert list((tmp_path / "worktrees").iterdir()) == []


def test_files_are_checked_out_by_their_names_alone(source: Path, tmp_path: Path) -> None:
    """Nothing in a name is a pattern."""
    blob = run_git(source, "hash-object", "-w", "--stdin", text=b"as it was")
    names = ["*", ":(glob)x", "folder", "x", "y"]
    tree = run_git(source, "mktree", text="".join(f"100644 blob {blob}\t{name}\n" for name in names).encode())
    sha = run_git(source, "-c", "user.name=A", "-c", "user.email=a@example.com", "commit-tree", tree, "-m", "files")
    run_git(source, "update-ref", "refs/heads/files", sha)
    mirror, root = git.update_mirror(str(source), tmp_path), tmp_path / "worktrees" / "one"
    with git.empty_worktree(root):
        for wanted in ([], ["*"], [":(glob)x", "y"]):
            git.check_out(mirror, root, sha, wanted)
        assert {path.name for path in root.iterdir()} == {"*", ":(glob)x", "y"}
        git.check_out(mirror, root, sha)
        assert {path.name: path.read_text() for path in root.iterdir()} == dict.fromkeys(names, "as it was")


def test_what_a_killed_checkout_left_hinders_no_other(source: Path, tmp_path: Path) -> None:
    mirror = git.update_mirror(str(source), tmp_path)
    root = tmp_path / "worktrees" / "one"
    (root / "folder").mkdir(parents=True)
    for name in ("one.index", "one.index.lock"):
        (root.parent / name).write_text("half of it")
    with git.empty_worktree(root):
        git.check_out(mirror, root, git.resolve(mirror, "main"))
        assert list(root.iterdir()) == []
    assert list(root.parent.iterdir()) == []
