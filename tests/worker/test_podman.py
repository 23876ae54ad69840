"""Images that podman gets: only those that the worker allows, written out once."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from tests.worker.conftest import Repository
from warpwatch.cli import doctor
from warpwatch.contract.words import Reason
from warpwatch.project import FILE_NAME, ProjectError, parse_project
from warpwatch.settings import Settings
from warpwatch.sources import Sources
from warpwatch.worker import images
from warpwatch.worker.images import open_image
from warpwatch.worker.reporter import CannotRunError
from warpwatch.worker.toolchains import ToolchainError, read_images, read_toolchains

DIGEST = "sha256:" + "a" * 64


NAME = f"localhost/kernels@{DIGEST}"


FAKE = """#!/bin/sh
echo "$*" >> {folder}/calls
case "$1 $2" in
  "image exists") exit {exists} ;;
  "pull --quiet") {pull} ;;
  "image inspect") cat {folder}/facts.json ;;
  "create --network") echo 123 ;;
  "export 123") cat {folder}/root.tar ;;
  "rm --force") ;;
  *) echo "unknown: $*" >&2; exit 125 ;;
esac
"""


class Podman:
    """A program called podman that hands out one image."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "podman"
        self.folder.mkdir()
        (self.folder / "facts.json").write_text(json.dumps([{"Size": 100, "Config": {"Env": ["PATH=/x", "A=b=c"]}}]))
        with tarfile.open(self.folder / "root.tar", "w") as archive:
            entry = tarfile.TarInfo("etc/name")
            entry.size, entry.mode = 9, 0o4755
            archive.addfile(entry, io.BytesIO(b"the image"))
            node = tarfile.TarInfo("dev/sda")
            node.type = tarfile.BLKTYPE
            archive.addfile(node)
        self.be()
        monkeypatch.setenv("PATH", f"{self.folder}:{os.environ['PATH']}")

    def be(self, exists: int = 0, pull: str = "exit 0") -> None:
        program = self.folder / "podman"
        program.write_text(FAKE.format(folder=self.folder, exists=exists, pull=pull))
        program.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Podman:
    return Podman(tmp_path, monkeypatch)


def allow(settings: Settings, *names: str) -> None:
    settings.home.mkdir(parents=True, exist_ok=True)
    (settings.home / "worker.toml").write_text(f"images = {json.dumps(names)}\n")


def refused(settings: Settings, name: str = NAME, isolation: str = "full") -> CannotRunError:
    with pytest.raises(CannotRunError) as failure:
        open_image(settings, name, isolation)
    assert list((settings.home / images.FOLDER).glob("*")) == []
    return failure.value


def test_an_image_is_written_out_once(settings: Settings, podman: Podman) -> None:
    allow(settings, NAME)
    image = open_image(settings, NAME, "full")
    assert (image.digest, dict(image.variables)) == (DIGEST, {"PATH": "/x", "A": "b=c"})
    assert (image.root / "etc/name").read_text() == "the image"
    assert (image.root / "etc/name").stat().st_mode & 0o7000 == 0
    assert not (image.root / "dev/sda").exists()
    assert podman.calls[-1] == "rm --force 123"
    asked = len(podman.calls)
    assert open_image(settings, NAME, "user") == image
    assert len(podman.calls) == asked


def test_an_image_that_is_not_here_is_pulled(settings: Settings, podman: Podman) -> None:
    allow(settings, NAME)
    podman.be(exists=1)
    open_image(settings, NAME, "full")
    assert f"pull --quiet {NAME}" in podman.calls


def test_images_that_cannot_be_used_say_why(
    settings: Settings, podman: Podman, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings.home.mkdir()
    assert refused(settings).reason is Reason.IMAGE_REFUSED, "what is not allowed"
    allow(settings, f"localhost/other@{DIGEST}")
    assert refused(settings).reason is Reason.IMAGE_REFUSED
    (settings.home / "worker.toml").write_text("images = [5]")
    assert refused(settings).reason is Reason.IMAGE_REFUSED
    assert podman.calls == []
    allow(settings, NAME)
    for isolation in ("network", "none"):
        assert refused(settings, isolation=isolation).reason is Reason.IMAGE_REFUSED
    podman.be(exists=1, pull="echo no such image >&2; exit 125")
    failure = refused(settings)
    assert (failure.reason, failure.retry) == (Reason.IMAGE_MISSING, True)
    podman.be()
    (podman.folder / "root.tar").write_bytes(b"no tar")
    assert refused(settings).reason is Reason.IMAGE_MISSING
    (podman.folder / "facts.json").write_text(json.dumps([{"Size": 2**60}]))
    assert refused(settings).reason is Reason.DISK_FULL
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert refused(settings).reason is Reason.IMAGE_MISSING


@pytest.mark.parametrize(
    "text",
    [
        "container = 5",
        "[container]",
        '[container]\nimage = "registry.example/cuda:12"',
        '[container]\nimage = "registry.example/cuda@sha256:abc"',
        f'[container]\nimage = "--privileged@{DIGEST}"',
        f'[container]\nimage = "a b@{DIGEST}"',
        f'[container]\nimage = "{NAME}"\nprivileged = true',
    ],
)
def test_images_that_no_project_may_ask_for(text: str) -> None:
    with pytest.raises(ProjectError):
        parse_project(text)


def test_a_project_in_an_image_is_another_one(tmp_path: Path) -> None:
    """Its sources are measured again when the image changes, and no comparison holds one against the other."""
    repository = Repository(tmp_path / "repository")
    program = '[[program]]\nname = "sums"\ncommand = "x"\nformat = "plain"\nsources = ["x"]\n'
    plain = repository.commit("plain", {FILE_NAME: program, "x": ""})
    inside = repository.commit("inside", {FILE_NAME: f'[container]\nimage = "{NAME}"\n{program}'})
    sources = Sources(repository.path)
    assert parse_project(f'[container]\nimage = "{NAME}"').image == NAME
    assert (sources.runtime(plain), sources.runtime(inside)) == (None, NAME)
    assert sources.of(plain, "sums") != sources.of(inside, "sums")


def test_the_file_of_the_worker(settings: Settings) -> None:
    settings.home.mkdir()
    (settings.home / "worker.toml").write_text(f'images = ["{NAME}"]\n[toolchain.o1]\nvariables = {{ A = "b" }}\n')
    assert read_images(settings.home) == (NAME,)
    assert list(read_toolchains(settings.home)) == ["o1"]
    (settings.home / "worker.toml").write_text("image = []")
    with pytest.raises(ToolchainError):
        read_images(settings.home)


def test_the_doctor_looks_for_podman(settings: Settings, podman: Podman, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.home.mkdir()
    assert list(doctor._images(settings.home)) == [], "a worker that allows no image needs none"
    allow(settings, NAME)
    (examination,) = doctor._images(settings.home)
    assert examination.remedy == ""
    monkeypatch.setenv("PATH", "/nonexistent")
    (examination,) = doctor._images(settings.home)
    assert examination.remedy
    (settings.home / "worker.toml").write_text("images = 5")
    (examination,) = doctor._images(settings.home)
    assert examination.remedy
