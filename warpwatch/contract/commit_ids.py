"""Ids of commits as people read them, on pages, in messages and in the terminal."""

from __future__ import annotations

SHORT_SHA = 8
"""Digits of a short id. Commands and names of files hold more of them, because git has to find the commit."""


def short_sha(sha: str) -> str:
    return sha[:SHORT_SHA]
