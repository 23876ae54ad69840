"""Names of files that browsers store."""

from __future__ import annotations

import re
from urllib.parse import quote

_ELSEWHERE = re.compile(r"[/\\\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9._=,@+~ -]")


def content_disposition(name: str, kind: str = "attachment") -> dict[str, str]:
    """The header that names a file (RFC 6266). Data may hold any name: none leads to another folder, hides the file or
    adds to the header."""
    name = _ELSEWHERE.sub("_", name).lstrip(". ") or "file"
    plain = _NOT_PLAIN.sub("_", name)
    extended = "" if plain == name else f"; filename*=UTF-8''{quote(name, safe='')}"
    return {"Content-Disposition": f'{kind}; filename="{plain}"{extended}'}
