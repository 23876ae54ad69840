"""The checkout that commands without a server work on."""

from __future__ import annotations

from pathlib import Path

from warpwatch.project import FILE_NAME, Project, parse_project


def local_checkout() -> tuple[Path, Project]:
    """The nearest folder with a warpwatch.toml, from the current one upwards, else the operators that ship with the
    package."""
    here = Path.cwd()
    root = next(
        (folder for folder in (here, *here.parents) if (folder / FILE_NAME).is_file()),
        Path(__file__).parents[1] / "bundled",
    )
    description = root / FILE_NAME
    return root, parse_project(description.read_text(encoding="utf-8") if description.is_file() else None)
