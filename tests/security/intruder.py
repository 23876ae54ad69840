"""Runs hostile code in the strongest confinement of this host, also as a user who may do little.

Standard input is JSON: {"home": path, "code": Python, "hidden": [paths], "visible": [paths], "folder": path, "changes":
{…}}, with changes to the confinement. Prints {"isolation", "code", "out"}.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from warpwatch.worker import sandbox

GIB = 2**30


def intrude(order: dict[str, Any]) -> dict[str, Any]:
    home = Path(order["home"])
    confinement = sandbox.confinement(home, GIB, tuple(map(Path, order["hidden"])), scratch_bytes=32 * 2**20)
    words = [os.path.realpath(sys.executable), "-I", "-S", "-c", order["code"]]
    done = sandbox.run_confined(
        replace(confinement, **order["changes"]),
        words,
        Path(order["folder"]),
        [Path(path) for path in order["visible"]],
    )
    out = done.stdout.strip() or done.stderr.strip()
    return {"isolation": confinement.isolation, "code": done.returncode, "out": out}


if __name__ == "__main__":
    print(json.dumps(intrude(json.load(sys.stdin))))
