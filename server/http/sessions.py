"""Sessions of browsers that logged in, and a limit on guessing the token."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict, deque
from contextlib import suppress
from typing import NamedTuple

from itsdangerous import BadSignature, URLSafeTimedSerializer

SESSION_SECONDS = 7 * 24 * 3600
"""How long a browser stays logged in."""
VISIT_SECONDS = 600
"""How long a sign-in at a provider may take."""
GUESSES = 10
"""Wrong tokens that one address may show within LIMIT_SECONDS."""
TOTAL_GUESSES = 300
"""The same of all addresses together."""
LIMIT_SECONDS = 60.0
_ADDRESSES = 10_000


class SessionSubject(NamedTuple):
    """A session, and the account or the personal token that it was opened with; neither for WARPWATCH_TOKEN."""

    name: str
    token_id: int | None = None
    account_id: int | None = None


class ProviderVisit(NamedTuple):
    """A browser that was sent to an OpenID provider: the secrets that its way back must show."""

    state: str
    nonce: str
    verifier: str


class Sessions:
    """Issues and reads the session cookies of all servers with one token. A cookie is signed with it and does not hold
    it, so all sessions end when it changes."""

    def __init__(self, token: str) -> None:
        self._token = hashlib.sha256(token.encode()).digest()
        self._serializer = URLSafeTimedSerializer(token, salt="warpwatch session")
        # Apart, so that a server of the release before takes the cookie for none.
        self._accounts = URLSafeTimedSerializer(token, salt="warpwatch session of an account")
        self._visits = URLSafeTimedSerializer(token, salt="warpwatch visit to a provider")

    def is_token(self, shown: str) -> bool:
        """Whether `shown` is the token, compared in constant time."""
        return hmac.compare_digest(hashlib.sha256(shown.strip().encode()).digest(), self._token)

    def issue(self, token_id: int | None = None, account_id: int | None = None) -> str:
        """A new session, as the value of a cookie."""
        name = secrets.token_urlsafe(16)
        return (
            self._serializer.dumps([name, token_id]) if account_id is None else self._accounts.dumps([name, account_id])
        )

    def read(self, cookie: str) -> SessionSubject | None:
        """The session of a cookie that is signed and has not expired."""
        with suppress(BadSignature):
            name, account_id = self._accounts.loads(cookie, max_age=SESSION_SECONDS)
            return SessionSubject(name, account_id=account_id)
        with suppress(BadSignature):
            value = self._serializer.loads(cookie, max_age=SESSION_SECONDS)
            # Cookies of earlier versions hold the name alone.
            return SessionSubject(value) if isinstance(value, str) else SessionSubject(*value)
        return None

    def sign_visit(self, visit: ProviderVisit) -> str:
        """Signs a visit as the value of a cookie, which a browser keeps while its user signs in at a provider."""
        return self._visits.dumps(visit)

    def read_visit(self, cookie: str) -> ProviderVisit | None:
        """The visit of a cookie that is signed and not too old."""
        try:
            return ProviderVisit(*self._visits.loads(cookie, max_age=VISIT_SECONDS))
        except BadSignature:
            return None


class RequestLimit:
    """Counts requests of a kind, such as wrong tokens: by the address that they come from, and in total."""

    def __init__(self, most: int, most_in_total: int) -> None:
        self._most = most
        self._times: OrderedDict[str, deque[float]] = OrderedDict()
        self._all: deque[float] = deque(maxlen=most_in_total)
        self._lock = threading.Lock()

    def count(self, address: str) -> float:
        """Notes one request; the seconds until another is worth a try, 0 while there were few."""
        now = time.monotonic()
        with self._lock:
            times = self._times.setdefault(address, deque(maxlen=self._most))
            seconds = max(
                others[0] + LIMIT_SECONDS - now if len(others) == others.maxlen else 0.0
                for others in (times, self._all)
            )
            times.append(now)
            self._all.append(now)
            self._times.move_to_end(address)
            while len(self._times) > _ADDRESSES:
                self._times.popitem(last=False)
        return max(0.0, seconds)
