"""Container images: the files in which a commit asks to be measured, in place of the host's.

podman gets an image and writes its files out, once for each digest; the sandbox then makes them a child's root, so that
a child in a container has the limits of every other child, and nothing lies between it and the device. Only images that
`worker.toml` lists are used.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from warpwatch.contract.words import Reason
from warpwatch.settings import Settings, free_bytes
from warpwatch.worker.reporter import CannotRunError
from warpwatch.worker.toolchains import FILE_NAME, ToolchainError, read_images

FOLDER = "images"
"""Folder of the home folder with one folder per image."""
DRIVERS = "/.warpwatch/driver"
"""Where a child finds the driver's libraries, which no image brings."""
PULL_SECONDS = 3600.0
_TOOL_SECONDS = 600.0
_DRIVER = re.compile(r"lib(cuda|cudadebugger|nvidia-[a-z0-9-]+|nvcuvid|nvoptix)\.so[.0-9]*")
_LINKS = 40
"""Links that may lead from one path to a file."""
_USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OF_HOST = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "LANG", "LC_ALL", "TZ")
"""Variables that choose a device or a language, and come from the host."""


@dataclass(frozen=True, slots=True)
class ContainerImage:
    """An image whose files lie in `root`. digest: sha256:… variables: of its environment."""

    digest: str
    root: Path
    variables: tuple[tuple[str, str], ...] = ()

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The variables that the environment of a child starts from."""
        own = dict(self.variables)
        libraries = ":".join(filter(None, (DRIVERS, own.get("LD_LIBRARY_PATH"))))
        chosen = {name: environ[name] for name in _OF_HOST if name in environ}
        return {"PATH": _USUAL_PATH, **own, **chosen, "LD_LIBRARY_PATH": libraries}

    def find_program(self, name: str) -> str | None:
        """The path of a program in the image; None where it has none of this name."""
        folders = dict(self.variables).get("PATH", _USUAL_PATH).split(":")
        for path in [name] if name.startswith("/") else [f"{folder}/{name}" for folder in folders if folder]:
            file = _resolve(self.root, path)
            if file is not None and file.is_file() and os.access(file, os.X_OK):
                return path
        return None


def open_image(settings: Settings, reference: str, isolation: str) -> ContainerImage:
    """The image of this name, whose files are written out unless they were before; CannotRunError where it cannot be
    used on this machine.

    isolation: of this worker's children; without a mount namespace they could not be shut into an image.
    """
    try:
        allowed = read_images(settings.home)
    except ToolchainError as error:
        raise CannotRunError(str(error), reason=Reason.IMAGE_REFUSED) from error
    if reference not in allowed:
        words = (
            f"this worker does not allow the image {reference}; list it under `images` in {settings.home / FILE_NAME}"
        )
        raise CannotRunError(words, reason=Reason.IMAGE_REFUSED)
    if isolation not in ("full", "user"):
        words = f"a container needs the isolation full or user, and this worker has {isolation}; see docs/security.md"
        raise CannotRunError(words, reason=Reason.IMAGE_REFUSED)
    digest = reference.partition("@")[2]
    folder = settings.home / FOLDER / digest.replace(":", "-")
    if not (folder / "image.json").is_file():
        _unpack(settings, reference, folder)
    description = json.loads((folder / "image.json").read_text(encoding="utf-8"))
    variables = tuple((str(name), str(value)) for name, value in description["variables"].items())
    return ContainerImage(digest, (folder / "root").resolve(), variables)


def _unpack(settings: Settings, reference: str, folder: Path) -> None:
    """Writes the files of an image; of two workers of this machine the first wins."""
    podman = shutil.which("podman")
    if podman is None:
        words = "this worker has no podman, which gets images: install it (Debian: apt install podman uidmap)"
        raise CannotRunError(words, reason=Reason.IMAGE_MISSING)
    if subprocess.run([podman, "image", "exists", reference], capture_output=True, check=False).returncode != 0:
        _run(reference, PULL_SECONDS, podman, "pull", "--quiet", reference)
    (facts,) = json.loads(_run(reference, _TOOL_SECONDS, podman, "image", "inspect", "--format", "json", reference))
    size = int(facts.get("Size") or 0)
    if free_bytes(settings.home) - size < settings.disk_reserve_bytes:
        words = f"the image {reference} of {size / 2**30:.1f} GiB does not fit on the disk of {settings.home}"
        raise CannotRunError(words, retry=True, reason=Reason.DISK_FULL)
    partial = folder.with_name(f"{folder.name}.{os.getpid()}-{time.monotonic_ns()}")
    container = _run(reference, _TOOL_SECONDS, podman, "create", "--network", "none", reference, "/nothing").strip()
    try:
        _export(podman, container, partial / "root", reference)
        config = facts.get("Config") or {}
        pairs = (str(entry).partition("=") for entry in config.get("Env") or [])
        description = {"reference": reference, "variables": {name: value for name, _, value in pairs if name}}
        (partial / "image.json").write_text(json.dumps(description), encoding="utf-8")
        if not folder.exists():
            partial.rename(folder)
    finally:
        subprocess.run([podman, "rm", "--force", container], capture_output=True, check=False)
        shutil.rmtree(partial, ignore_errors=True)


def _run(reference: str, seconds: float, *words: str) -> str:
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        message = f"podman {words[1]} of {reference} took longer than {seconds:g} s"
        raise CannotRunError(message, retry=True, reason=Reason.IMAGE_MISSING) from None
    if done.returncode != 0:
        message = f"podman {words[1]} of {reference} failed: {done.stderr.strip()[-500:]}"
        raise CannotRunError(message, retry=True, reason=Reason.IMAGE_MISSING)
    return done.stdout


def _export(podman: str, container: str, root: Path, reference: str) -> None:
    """Writes the files of a container without owners, devices and bits that would change a user."""
    root.mkdir(parents=True)
    options = ("--no-same-owner", "--no-same-permissions", "--delay-directory-restore", "--exclude=dev/*")
    with subprocess.Popen([podman, "export", container], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as export:
        words = ["tar", "--extract", "--directory", str(root), *options]
        try:
            done = subprocess.run(words, stdin=export.stdout, capture_output=True, timeout=PULL_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            export.kill()
            raise CannotRunError(
                f"writing the files of {reference} took longer than {PULL_SECONDS:g} s", reason=Reason.IMAGE_MISSING
            ) from None
    if export.returncode != 0 or done.returncode != 0:
        words_of_tar = done.stderr.decode(errors="replace").strip()[-500:]
        message = f"the files of {reference} cannot be written: {words_of_tar or 'podman export failed'}"
        raise CannotRunError(message, retry=True, reason=Reason.IMAGE_MISSING)


def _resolve(root: Path, path: str) -> Path | None:
    """The file that a path of the image names, with links that lead from the image's root; None where they do not
    end."""
    left = [part for part in PurePosixPath(path).parts if part != "/"]
    place: list[str] = []
    links = 0
    while left:
        part = left.pop(0)
        if part == "..":
            place = place[:-1]
            continue
        here = root.joinpath(*place, part)
        if not here.is_symlink():
            place.append(part)
            continue
        links += 1
        target = PurePosixPath(here.readlink())
        if links > _LINKS:
            return None
        place = [] if target.is_absolute() else place
        left = [*(name for name in target.parts if name != "/"), *left]
    return root.joinpath(*place)


@cache
def list_driver_files() -> list[str]:
    """The libraries of the GPU's driver, as the host's linker knows them: an image has none that fits its driver."""
    program = shutil.which("ldconfig") or "/sbin/ldconfig"
    try:
        done = subprocess.run([program, "-p"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    machine = os.uname().machine.replace("_", "-")
    lines = (line.strip() for line in done.stdout.splitlines() if machine in line.replace("_", "-"))
    paths = [line.rpartition("=> ")[2] for line in lines]
    return sorted({path for path in paths if _DRIVER.fullmatch(Path(path).name) and Path(path).is_file()})
