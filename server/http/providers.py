"""Verifies tokens that OpenID providers and code hosts signed, with the keys that they publish."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode, urlsplit

from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from warpwatch.destinations import Destinations, is_trustworthy
from warpwatch.server.http.outgoing import RequestError, request

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
"""Signatures by a key that only the provider has: neither `none`, nor a secret that is shared."""
KEPT_SECONDS = 3600.0
"""How long what a provider publishes is kept."""
RETRY_SECONDS = 30.0
"""How soon a provider is asked again after a failure, or for a key that it did not publish before."""
LEEWAY_SECONDS = 60
"""By how much clocks may differ."""
FETCH_SECONDS = 10.0
WAIT_SECONDS = 2.0
"""How long a request waits while another one asks the provider: a slow provider must not take all threads."""
MOST_KEYS = 100
"""Keys that a provider may publish."""
_MAX_BYTES = 1_000_000
_WELL_KNOWN = "/.well-known/openid-configuration"


class ProviderError(Exception):
    """A provider cannot be reached, or answers with nothing that can be used."""


class WrongTokenError(Exception):
    """A token that proves nothing: forged, expired, or made for somebody else."""


@dataclass(slots=True)
class _Published:
    """Metadata and keys that a provider publishes, or the reason why they are unknown."""

    metadata: dict[str, Any]
    keys: KeySet
    fetched_at: float
    trouble: str | None = None


class Providers:
    """Cache of the metadata and keys that identity providers publish. The server asks each provider at most every
    RETRY_SECONDS. Every method may wait for a provider, so no transaction may be open."""

    def __init__(self, destinations: Destinations) -> None:
        self._destinations = destinations
        self._published: dict[str, _Published] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def metadata(self, issuer: str, *, is_operators: bool = False) -> dict[str, Any]:
        """Metadata of a provider. is_operators: the operator of the service named the provider in a setting, so the
        provider may be at any address."""
        return self._read(issuer, is_operators, KEPT_SECONDS).metadata

    def reachable(self, issuer: str, *, is_operators: bool) -> Destinations:
        """Where the addresses that a provider publishes may lead: the operator named its host, and no other."""
        if not is_operators:
            return self._destinations
        host = (urlsplit(issuer).hostname or "").lower()
        return replace(self._destinations, hosts=self._destinations.hosts | {host})

    def verify(
        self,
        issuer: str,
        token: str,
        audience: str,
        *,
        nonce: str | None = None,
        access_token: str | None = None,
        is_operators: bool = False,
    ) -> dict[str, Any]:
        """The claims of a token that `issuer` signed for `audience`; WrongTokenError for any other."""
        published = self._read(issuer, is_operators, KEPT_SECONDS)
        try:
            decoded = _decode(token, published.keys)
            if decoded is None:
                # Providers replace their keys now and then.
                decoded = _decode(token, self._read(issuer, is_operators, RETRY_SECONDS).keys)
            if decoded is None:
                raise WrongTokenError("its key is not one of the provider's")
            options = {
                "iss": {"essential": True, "value": published.metadata["issuer"]},
                "aud": {"essential": True, "value": audience},
            }
            # The party that asked is another than the audience where CI jobs show tokens.
            params = {"nonce": nonce, "client_id": audience, "access_token": access_token} if nonce else {}
            claims = CodeIDToken(decoded.claims, decoded.header, options, params)
            claims.validate(leeway=LEEWAY_SECONDS)
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise WrongTokenError(f"{type(error).__name__}: {error}") from error
        if not isinstance(claims["sub"], str) or not claims["sub"]:
            raise WrongTokenError("it names nobody")
        return dict(claims)

    def _read(self, issuer: str, is_operators: bool, seconds: float) -> _Published:
        with self._lock:
            lock = self._locks.setdefault(issuer, threading.Lock())
        # Of many requests that need the same keys, one fetches them.
        if lock.acquire(timeout=WAIT_SECONDS):
            try:
                published = self._published.get(issuer)
                kept = RETRY_SECONDS if published is not None and published.trouble else seconds
                if published is None or published.fetched_at + kept < time.monotonic():
                    self._published[issuer] = self._fetch(issuer, is_operators, published)
            finally:
                lock.release()
        published = self._published.get(issuer)
        if published is None or not published.metadata:
            raise ProviderError((published.trouble if published else None) or f"{issuer} has not answered yet")
        return published

    def _fetch(self, issuer: str, is_operators: bool, before: _Published | None) -> _Published:
        destinations = self.reachable(issuer, is_operators=is_operators)
        now = time.monotonic()
        try:
            metadata = fetch_json(issuer.rstrip("/") + _WELL_KNOWN, destinations)
            if str(metadata.get("issuer", "")).rstrip("/") != issuer.rstrip("/"):
                raise ProviderError(f"{issuer} says that it is {str(metadata.get('issuer'))[:200]!r}")
            listed = fetch_json(str(metadata.get("jwks_uri", "")), destinations)
            if len(listed["keys"]) > MOST_KEYS:
                raise ProviderError(f"{issuer} publishes more than {MOST_KEYS} keys")
            keys = KeySet.import_key_set(listed)  # type: ignore[arg-type]
        except ProviderError as error:
            trouble = str(error)
        except (JoseError, ValueError, TypeError, KeyError, AttributeError) as error:
            trouble = f"the keys of {issuer} cannot be read: {type(error).__name__}"
        else:
            return _Published(metadata, keys, now)
        # What was published before is good for as long as the provider is away.
        return _Published(before.metadata if before else {}, before.keys if before else KeySet([]), now, trouble)


def fetch_json(
    url: str, destinations: Destinations, authorization: str | None = None, form: dict[str, str] | None = None
) -> dict[str, Any]:
    """The JSON object at `url`; ProviderError where there is none, or where the service may not connect to.

    form: sent as a POST; WrongTokenError where it is refused.
    """
    if not is_trustworthy(url):
        raise ProviderError(f"{url[:200]!r} is not reached by https")
    headers = {"Accept": "application/json"} | ({"Authorization": authorization} if authorization else {})
    method, content = "GET", None
    if form is not None:
        method, content = "POST", urlencode(form).encode()
        headers["Content-Type"] = "application/x-www-form-urlencoded"
    try:
        answer = request(
            method, url, headers, destinations, seconds=FETCH_SECONDS, content=content, max_bytes=_MAX_BYTES
        )
        if form is not None and 400 <= answer.status < 500:
            raise WrongTokenError(f"{url} answered {answer.status}: {answer.content[:200]!r}")
        if answer.status != 200:
            raise ProviderError(f"{url} was answered with {answer.status}")
        value = json.loads(answer.content)
    except (RequestError, ValueError, RecursionError) as error:
        raise ProviderError(f"{url} gave no answer that can be used: {error}") from None
    if not isinstance(value, dict):
        raise ProviderError(f"{url} is no JSON object")
    return value


def _decode(token: str, keys: KeySet) -> jwt.Token | None:
    """The token, whose signature is right; None where its key is unknown."""
    try:
        return jwt.decode(token, keys, algorithms=ALGORITHMS)
    except InvalidKeyIdError:
        return None
