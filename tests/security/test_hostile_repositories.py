"""A repository that is hostile in everything starts no program of the service's user, and reaches no address."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from warpwatch import git
from warpwatch.cli.init_files import RepositoryFiles
from warpwatch.cli.working_tree import WorkingTree
from warpwatch.contract.spec import DefinitionsVersion
from warpwatch.definitions import bring, newest_version, parse_source
from warpwatch.git import changed_files, diff, message_body
from warpwatch.patches import apply_patch, make_patch
from warpwatch.project import FILE_NAME, Project
from warpwatch.worker.mirrors import MirroredCommit
from warpwatch.worker.worktrees import lay_out

DRIVERS = "filter=lfs diff=lfs merge=lfs -text"


@dataclass
class Trap:
    """A user's git configuration whose every program leaves a mark and connects to a listener, as git-lfs would."""

    folder: Path
    marks: Path
    listener: socket.socket

    def git(self, *words: str, cwd: Path, text: str | None = None) -> str:
        return subprocess.run(["git", *words], cwd=cwd, input=text, check=True, capture_output=True, text=True).stdout

    def sprang(self) -> list[str]:
        """The programs that ran since the last call."""
        lines = self.marks.read_text().splitlines() if self.marks.exists() else []
        self.marks.unlink(missing_ok=True)
        with pytest.raises(BlockingIOError):
            self.listener.accept()
        return lines


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trap]:
    home, marks = tmp_path / "user", tmp_path / "marks"
    (home / "templates" / "hooks").mkdir(parents=True)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        program = home / "program"
        program.write_text(
            f'#!/bin/bash\necho "$0 $*" >> {marks}\necho x > /dev/tcp/127.0.0.1/{listener.getsockname()[1]}\n'
        )
        program.chmod(0o755)
        for hook in ("post-checkout", "reference-transaction", "post-index-change"):
            (home / "templates" / "hooks" / hook).symlink_to(program)
        attributes = home / "attributes"
        attributes.write_text(f"* {DRIVERS}\n")
        (home / "excludes").write_text("*.ignored\n")
        (home / ".gitconfig").write_text(
            f'[filter "lfs"]\n\tsmudge = {program} smudge\n\tclean = {program} clean\n\tprocess = {program} process\n'
            f"\trequired = true\n"
            f'[diff "lfs"]\n\tcommand = {program} diff\n\ttextconv = {program} textconv\n'
            f'[merge "lfs"]\n\tdriver = {program} merge\n'
            f"[diff]\n\texternal = {program} external\n"
            f"[core]\n\tattributesFile = {attributes}\n\texcludesFile = {home}/excludes\n"
            f"\tfsmonitor = {program} fsmonitor\n\tpager = {program} pager\n\thooksPath = {home}/templates/hooks\n"
            f"[gpg]\n\tprogram = {program} gpg\n[commit]\n\tgpgSign = true\n[log]\n\tshowSignature = true\n"
            f"[init]\n\ttemplateDir = {home}/templates\n[user]\n\tname = A\n\temail = a@example.com\n"
        )
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
        for name in [name for name in os.environ if name.startswith("GIT_")]:
            monkeypatch.delenv(name)
        yield Trap(tmp_path, marks, listener)


@pytest.fixture
def source(trap: Trap, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two commits with every driver on every file, made without the traps."""
    root = trap.folder / "source"
    (root / "kernels").mkdir(parents=True)
    with monkeypatch.context() as without:
        without.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        trap.git("init", "--quiet", "--initial-branch", "main", cwd=root)
        (root / ".gitattributes").write_text(f"* {DRIVERS}\n*.utf working-tree-encoding=UTF-16\n")
        (root / ".lfsconfig").write_text("[lfs]\n\turl = http://169.254.169.254/latest\n")
        (root / FILE_NAME).write_text("")
        for number in range(2):
            (root / "kernels" / "square.py").write_text(f"NUMBER = {number}\n")
            (root / "names.utf").write_text(f"{number}\n", encoding="utf-16")
            trap.git("add", "--all", cwd=root)
            person = ("-c", "user.name=A", "-c", "user.email=a@example.com")
            trap.git(*person, "commit", "--quiet", "--message", str(number), cwd=root)
    assert trap.sprang() == []
    return root


def test_the_traps_spring_for_others(trap: Trap, source: Path) -> None:
    (source / "kernels" / "square.py").write_text("NUMBER = 2\n")
    subprocess.run(["git", "diff"], cwd=source, capture_output=True, check=False)
    subprocess.run(["git", "add", "--all"], cwd=source, capture_output=True, check=False)
    for _ in range(2):
        trap.listener.setblocking(True)
        trap.listener.accept()[0].close()
    assert {"process", "fsmonitor"} <= {line.split()[1] for line in trap.marks.read_text().splitlines()}


def test_no_command_starts_a_program(trap: Trap, source: Path) -> None:
    mirror = git.update_mirror(str(source), trap.folder)
    assert git.update_mirror(str(source), trap.folder) == mirror
    base, head = git.last_commits(mirror, "main", 2)
    with lay_out(MirroredCommit(mirror, head, Project()), trap.folder / "tree") as trees:
        assert (trees.root.place / "kernels" / "square.py").read_text() == "NUMBER = 1\n"
        assert trees.differences() == []
        (trees.root.place / "kernels" / "square.py").write_text("NUMBER = 7\n")
        assert trees.differences() == ["kernels/square.py"]
    with git.empty_worktree(trap.folder / "whole"):
        git.check_out(mirror, trap.folder / "whole", head)
        assert (trap.folder / "whole" / "names.utf").read_bytes() == b"1\n", "the bytes of the commit"
    assert {change.path for change in changed_files(mirror, base, head)} == {"kernels/square.py", "names.utf"}
    assert "-NUMBER = 0\n+NUMBER = 1\n" in diff(mirror, base, head)
    assert message_body(mirror, head) == ""
    assert git.describe(mirror, head).subject == "1"
    assert git.read_file(mirror, head, "kernels/square.py") == "NUMBER = 1\n"
    assert trap.sprang() == []


@pytest.mark.parametrize("place", ["user", "checkout"])
def test_no_command_on_a_checkout_starts_a_program(trap: Trap, source: Path, place: str) -> None:
    if place == "checkout":
        with (source / ".git" / "config").open("a") as file:
            file.write((trap.folder / "user" / ".gitconfig").read_text())
        (source / ".git" / "info" / "attributes").write_text(f"* {DRIVERS}\n")
    mirror = git.update_mirror(str(source), trap.folder)
    head = git.resolve(source, "HEAD")
    (source / "kernels" / "square.py").write_text("NUMBER = 2\n")
    (source / "editor.ignored").write_text("")
    tree = WorkingTree(source, trap.folder / "index")
    content = make_patch(source, head, tree.take())
    assert apply_patch(mirror, head, content).files == ["kernels/square.py"]
    assert git.resolve(source, tree.commit()) != head
    assert "kernels/square.py" in RepositoryFiles(source).names
    assert trap.sprang() == []


def test_no_definitions_start_a_program(trap: Trap) -> None:
    folder = trap.folder / "definitions"
    folder.mkdir()
    (folder / ".gitattributes").write_text(f"* {DRIVERS}\n")
    (folder / FILE_NAME).write_text('[measured]\npackages = ["fast"]\n')
    version: DefinitionsVersion = newest_version(parse_source(str(folder)), trap.folder)
    assert git.read_file(bring(version, trap.folder), version.sha, ".gitattributes") == f"* {DRIVERS}\n"
    assert trap.sprang() == []


def test_the_users_configuration_reaches_hosts_and_nothing_else(trap: Trap, source: Path) -> None:
    with (trap.folder / "user" / ".gitconfig").open("a") as file:
        file.write(f'[url "{source}"]\n\tinsteadOf = https://git.example/kernels\n')
    mirror = git.mirror_path("https://git.example/kernels", trap.folder)
    git.git("clone", "--quiet", "--mirror", "--", "https://git.example/kernels", str(mirror))
    assert git.resolve(mirror, "main") == git.resolve(source, "main")
    assert "insteadof" not in git.git("-c", "alias.all=!git config --list", "all", cwd=mirror)


def test_a_ref_does_not_replace_a_commit(trap: Trap, source: Path) -> None:
    base, head = git.last_commits(source, "main", 2)
    trap.git("update-ref", f"refs/replace/{base}", head, cwd=source)
    mirror = git.update_mirror(str(source), trap.folder)
    assert git.read_file(mirror, base, "kernels/square.py") == "NUMBER = 0\n"


def test_an_address_names_no_program(trap: Trap) -> None:
    helper = trap.folder / "git-remote-trap"
    helper.symlink_to(trap.folder / "user" / "program")
    with pytest.MonkeyPatch.context() as path:
        path.setenv("PATH", str(trap.folder), prepend=os.pathsep)
        for url in ("trap::x", "trap://x/y", "ext::sh -c x", "fd::0"):
            with pytest.raises(git.GitError):
                git.update_mirror(url, trap.folder)
    assert trap.sprang() == []


def test_a_mirror_holds_all_its_files(trap: Trap, source: Path) -> None:
    """A local clone would share files with the source, and name the folders that the source borrows from."""
    borrower = trap.folder / "borrower"
    trap.git("clone", "--quiet", "--shared", "--bare", "--template=", str(source), str(borrower), cwd=trap.folder)
    trap.marks.unlink(missing_ok=True)
    mirror = git.update_mirror(str(borrower), trap.folder)
    assert not (mirror / "objects" / "info" / "alternates").exists()
    assert {path.stat().st_nlink for path in mirror.rglob("*") if path.is_file()} == {1}


def test_attributes_of_a_mirror_are_restored(trap: Trap, source: Path) -> None:
    mirror = git.update_mirror(str(source), trap.folder)
    (mirror / "info" / "attributes").unlink()
    (mirror / "info" / "attributes").symlink_to(trap.folder / "user" / "attributes")
    git.resolve(mirror, "main")
    assert "!working-tree-encoding" in (mirror / "info" / "attributes").read_text()
    assert not (mirror / "info" / "attributes").is_symlink()
