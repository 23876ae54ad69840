"""Commands that do again what a job or a regression did."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any


def submit_command(
    repository: str,
    commit: str,
    kind: str,
    operator: str,
    device_key: str,
    *,
    base: str | None = None,
    variants: Iterable[str] = (),
    cases: Iterable[str] = (),
    suite: str | None = None,
    profile: dict[str, Any] | None = None,
    seed: int = 0,
    sanitize: str | None = None,
) -> str:
    """The `warpwatch submit` line for one operator at one commit, ready for a shell."""
    words = [
        "warpwatch",
        "submit",
        "--repository",
        repository,
        "--commit",
        commit,
        "--kinds",
        kind,
        "--operators",
        operator,
    ]
    if base is not None:
        words += ["--base", base]
    if suite is not None:
        words += ["--suite", suite]
    for variant in variants:
        words += ["--variants", variant]
    for case in cases:
        words += ["--cases", case]
    if profile:
        words += ["--profile", ",".join(str(profile[name]) for name in ("wait", "warm_up", "active", "repeat"))]
        words += ["--counters"] if profile["counters"] else []
    return shlex.join([*words, *_again(seed, sanitize), "--device", device_key, "--wait"])


def run_command(
    commit: str, kind: str, operator: str, variant: str, case: str, device_kind: str, spec: dict[str, Any] | None = None
) -> str:
    """The `warpwatch run` line for one variant on one case, ready for a shell in a checkout; `spec` is the job's."""
    words = ["warpwatch", "run", "--commits", commit, "--kinds", kind, "--operators", operator, "--variants", variant]
    again = _again((spec or {}).get("seed") or 0, (spec or {}).get("sanitize") if kind == "check" else None)
    return shlex.join([*words, "--cases", case, *again, "--device", device_kind, "--output", "replay.wwb"])


def _again(seed: int, sanitize: str | None) -> list[str]:
    """Options that make the same numbers and run under the same sanitizer."""
    return [*(["--seed", str(seed)] if seed else []), *(["--sanitize", sanitize] if sanitize else [])]
