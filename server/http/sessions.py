"""Sessions of browsers that logged in, and a limit on guessing the token."""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections import OrderedDict, deque
from typing import NamedTuple

from itsdangerous import BadSignature, URLSafeTimedSerializer

SESSION_SECONDS = 7 * 24 * 3600
"""How long a browser stays logged in."""
GUESSES = 10
"""Wrong tokens that one address may show within GUESS_SECONDS."""
GUESS_SECONDS = 60.0
_ADDRESSES = 10_000


class SessionSubject(NamedTuple):
    """A session, and the personal token that it was opened with; None for WARPWATCH_TOKEN."""

    name: str
    token_id: int | None


class Sessions:
    """Issues and reads the session cookies of all servers with one token. A cookie is signed with it and does not hold
    it, so all sessions end when it changes."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._serializer = URLSafeTimedSerializer(token, salt="warpwatch session")

    def is_token(self, shown: str) -> bool:
        """Whether `shown` is the token, compared in constant time."""
        return hmac.compare_digest(shown.strip().encode(), self._token)

    def issue(self, token_id: int | None = None) -> str:
        """A new session, as the value of a cookie."""
        return self._serializer.dumps([secrets.token_urlsafe(16), token_id])

    def read(self, cookie: str) -> SessionSubject | None:
        """The session of a cookie that is signed and has not expired."""
        try:
            value = self._serializer.loads(cookie, max_age=SESSION_SECONDS)
        except BadSignature:
            return None
        # Cookies of earlier versions hold the name alone.
        return SessionSubject(value, None) if isinstance(value, str) else SessionSubject(*value)


class GuessLimit:
    """Counts wrong tokens by the address that showed them."""

    def __init__(self) -> None:
        self._guesses: OrderedDict[str, deque[float]] = OrderedDict()
        self._lock = threading.Lock()

    def wait_seconds(self, address: str) -> float:
        """Seconds until `address` may try again; 0 when it may at once."""
        with self._lock:
            guesses = self._guesses.get(address)
            if guesses is None or len(guesses) < GUESSES:
                return 0.0
            return max(0.0, guesses[0] + GUESS_SECONDS - time.monotonic())

    def count(self, address: str) -> None:
        """Notes one wrong token."""
        with self._lock:
            guesses = self._guesses.setdefault(address, deque(maxlen=GUESSES))
            guesses.append(time.monotonic())
            self._guesses.move_to_end(address)
            while len(self._guesses) > _ADDRESSES:
                self._guesses.popitem(last=False)
