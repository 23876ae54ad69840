"""Sessions of browsers that logged in, and a limit on guessing the token."""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections import OrderedDict, deque

from itsdangerous import BadSignature, URLSafeTimedSerializer

SESSION_SECONDS = 7 * 24 * 3600
"""How long a browser stays logged in."""
GUESSES = 10
"""Wrong tokens that one address may show within GUESS_SECONDS."""
GUESS_SECONDS = 60.0
_ADDRESSES = 10_000


class Sessions:
    """Issues and checks the session cookies of one server. A cookie is signed with the token and does not hold it.

    All sessions end when the token changes; a session that was logged out is refused until its cookie expires.
    """

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._serializer = URLSafeTimedSerializer(token, salt="warpwatch session")
        self._ended: OrderedDict[str, float] = OrderedDict()

    def is_token(self, shown: str) -> bool:
        """Whether `shown` is the token, compared in constant time."""
        return hmac.compare_digest(shown.strip().encode(), self._token)

    def issue(self) -> str:
        """A new session, as the value of a cookie."""
        return self._serializer.dumps(secrets.token_urlsafe(16))

    def is_valid(self, cookie: str) -> bool:
        """Whether a cookie is a session that has neither expired nor been logged out."""
        name = self._read(cookie)
        return name is not None and name not in self._ended

    def end(self, cookie: str) -> None:
        """Logs a session out."""
        name = self._read(cookie)
        if name is None:
            return
        now = time.time()
        while self._ended and next(iter(self._ended.values())) < now:
            self._ended.popitem(last=False)
        self._ended[name] = now + SESSION_SECONDS

    def _read(self, cookie: str) -> str | None:
        try:
            return str(self._serializer.loads(cookie, max_age=SESSION_SECONDS))
        except BadSignature:
            return None


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
