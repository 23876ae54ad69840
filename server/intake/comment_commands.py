"""Parses what members say to Warpwatch in comments of pull and merge requests. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from warpwatch.contract.spec import MAX_NAMES

PREFIX = "/warpwatch"
_MAX_LINE = 1000
_SHA = re.compile(r"[0-9a-f]{40}")


class CommandVerb(StrEnum):
    """Verb of a comment command. unknown: any other word."""

    HELP = "help"
    BENCH = "bench"
    ALLOW = "allow"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class CommentCommand:
    """operators: of bench; empty for all. sha: of allow, the commit that the member looked at; None where none is
    named."""

    verb: CommandVerb
    operators: tuple[str, ...] = ()
    sha: str | None = None


def parse_command(comment: str) -> CommentCommand | None:
    """The command in the first line of a comment; None where it is none."""
    line = comment.lstrip().partition("\n")[0].strip()
    words = line[:_MAX_LINE].split()
    if not words or words[0] != PREFIX:
        return None
    verb, arguments = (words[1:2] or ["help"])[0], words[2:]
    if len(line) > _MAX_LINE:
        return CommentCommand(CommandVerb.UNKNOWN)
    if verb == CommandVerb.HELP:
        return CommentCommand(CommandVerb.HELP)
    if verb == CommandVerb.BENCH and len(arguments) <= MAX_NAMES:
        return CommentCommand(CommandVerb.BENCH, tuple(dict.fromkeys(arguments)))
    if verb == CommandVerb.ALLOW and not arguments:
        return CommentCommand(CommandVerb.ALLOW)
    if verb == CommandVerb.ALLOW and len(arguments) == 1 and _SHA.fullmatch(arguments[0]):
        return CommentCommand(CommandVerb.ALLOW, sha=arguments[0])
    return CommentCommand(CommandVerb.UNKNOWN)
