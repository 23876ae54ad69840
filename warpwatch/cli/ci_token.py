"""The ID token that GitHub Actions makes for a job, where it has no token of a person. Standard library only."""

from __future__ import annotations

import base64
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request

RENEW_SECONDS = 60.0
"""How long before its end a token is replaced; GitHub's last five minutes."""


class CiToken:
    """Asks GitHub for tokens whose audience is `audience`, again when one is about to expire."""

    def __init__(self, audience: str) -> None:
        self._audience = audience
        self._token: str | None = None
        self._expires_at = 0.0

    def read(self) -> str | None:
        """A valid token; None outside GitHub Actions, and where the job lacks the permission `id-token: write`."""
        address = os.environ.get("ACTIONS_ID_TOKEN_REQUEST_URL")
        secret = os.environ.get("ACTIONS_ID_TOKEN_REQUEST_TOKEN")
        if not address or not secret:
            return None
        if self._token is None or time.time() > self._expires_at - RENEW_SECONDS:
            query = urllib.parse.urlencode({"audience": self._audience})
            joined = f"{address}{'&' if '?' in address else '?'}{query}"
            request = urllib.request.Request(joined, headers={"Authorization": f"Bearer {secret}"})
            with urllib.request.urlopen(request, timeout=30) as answer:
                self._token = str(json.load(answer)["value"])
            self._expires_at = _expiry(self._token)
        return self._token


def _expiry(token: str) -> float:
    part = token.split(".")[1]
    return float(json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))["exp"])
