"""Where things lie in the data folder that several processes use, and what of it kernel code must not see."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

SYSTEM_FOLDER = Path("/var/lib/warpwatch")
"""Where the embedded PostgreSQL keeps its files if it is started by root, as whom it does not run."""
_LONGEST_SOCKET_PATH = 100
"""Bytes; the kernel's limit is 104 on macOS and 108 on Linux."""


def data_folder(home: Path) -> Path:
    """Where the embedded PostgreSQL keeps its files."""
    if os.geteuid() == 0:
        return SYSTEM_FOLDER / _short_hash(home)
    return home.absolute() / "postgres"


def socket_folder(data: Path) -> Path:
    """Where the embedded PostgreSQL with the files `data` listens."""
    if len(os.fsencode(data / ".s.PGSQL.5432")) <= _LONGEST_SOCKET_PATH:
        return data
    return Path(tempfile.gettempdir()) / f"warpwatch-{os.geteuid()}-{_short_hash(data)}"


def folders(home: Path) -> tuple[Path, ...]:
    """Every folder of the embedded server of `home`: its data, and its socket where that lies elsewhere.

    Nobody else should see them.
    """
    data = data_folder(home)
    return data, socket_folder(data)


def worker_key_file(home: Path) -> Path:
    """The key with which workers of this machine speak to its server."""
    return home / "worker.key"


def undelivered_folder(home: Path) -> Path:
    """Folder of the ends of runs that workers could not deliver to their server yet."""
    return home / "undelivered"


def judgements_folder(home: Path) -> Path:
    """Folder of the hidden cases of judgements, and of the key that receipts are signed with."""
    return home / "judgements"


def secret_paths(home: Path) -> tuple[Path, ...]:
    """The files and folders of the data folder that kernel code must not see."""
    return *folders(home), worker_key_file(home), undelivered_folder(home), judgements_folder(home)


def _short_hash(path: Path) -> str:
    return hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:12]
