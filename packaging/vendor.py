"""Fetches the files of web/static/vendor from npm, and refuses those whose SHA-256 is not the noted one.

The table in web/static/vendor/README.md names package, version, path and digest of each. Needs npm.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

VENDOR = Path(__file__).parent.parent / "web" / "static" / "vendor"


class VendoredFile(NamedTuple):
    """A row of the table: a file, and where it comes from."""

    name: str
    package: str
    path: str
    sha256: str


def read_table(text: str) -> list[VendoredFile]:
    """The rows of the table in the README."""
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \| `([^`]+)` \| [^|]+ \| `([0-9a-f]{64})` \|$", text, re.MULTILINE)
    return [VendoredFile(*row) for row in rows]


def fetch(file: VendoredFile) -> bytes:
    """The content of a file in its published package; ValueError where its digest is not the noted one."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "--silent", "--pack-destination", folder, file.package], check=True)
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as package:
            member = package.extractfile(f"package/{file.path}")
            if member is None:
                raise ValueError(f"{file.package} has no file {file.path}; correct the path in {VENDOR / 'README.md'}")
            content = member.read()
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        raise ValueError(
            f"{file.name} of {file.package} has the SHA-256 {digest} instead of {file.sha256}; it was not written. "
            f"After an update, compare it with another source and note it in {VENDOR / 'README.md'}"
        )
    return content


def main() -> None:
    for file in read_table((VENDOR / "README.md").read_text(encoding="utf-8")):
        try:
            content = fetch(file)
        except (OSError, KeyError, ValueError, subprocess.CalledProcessError) as error:
            sys.exit(f"{file.name}: {error}")
        (VENDOR / file.name).write_bytes(content)
        print(f"{file.name}: {file.package}, {len(content)} bytes")


if __name__ == "__main__":
    main()
