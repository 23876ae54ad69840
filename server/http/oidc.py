"""Signs people in at an OpenID provider: authorization code with PKCE, by authlib."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterable
from typing import Any

from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
from authlib.oauth2.rfc7636 import create_s256_code_challenge

from warpwatch.contract.words import AccountRole
from warpwatch.db.accounts import Identity
from warpwatch.destinations import Destinations, is_trustworthy
from warpwatch.server.http.access import is_reserved
from warpwatch.server.http.permissions import ROLE_SCOPES, SCOPES
from warpwatch.server.http.providers import ProviderError, Providers, WrongTokenError, fetch_json
from warpwatch.server.http.sessions import ProviderVisit
from warpwatch.settings import ProviderSettings

CALLBACK = "/login/oidc/callback"
_MAX_NAME = 200


def start_visit(providers: Providers, settings: ProviderSettings, server_url: str) -> tuple[str, ProviderVisit]:
    """Where to send a browser, and what it must bring back; ProviderError while the provider is away."""
    metadata = providers.metadata(settings.issuer, is_operators=True)
    visit = ProviderVisit(secrets.token_urlsafe(24), secrets.token_urlsafe(24), secrets.token_urlsafe(48))
    endpoint = _endpoint(metadata, "authorization_endpoint")
    address = prepare_grant_uri(
        endpoint,
        settings.client_id,
        "code",
        redirect_uri=server_url + CALLBACK,
        scope=settings.scopes,
        state=visit.state,
        nonce=visit.nonce,
        code_challenge=create_s256_code_challenge(visit.verifier),
        code_challenge_method="S256",
    )
    return str(address), visit


def finish_visit(
    providers: Providers, settings: ProviderSettings, server_url: str, visit: ProviderVisit, code: str
) -> Identity:
    """Whom the provider signed in. WrongTokenError for what it did not sign for this visit, ProviderError while it is
    away."""
    metadata = providers.metadata(settings.issuer, is_operators=True)
    destinations = providers.reachable(settings.issuer, is_operators=True)
    answer = _exchange(metadata, settings, server_url, visit, code, destinations)
    id_token, access_token = answer.get("id_token"), answer.get("access_token")
    if not isinstance(id_token, str) or not isinstance(access_token, str):
        raise WrongTokenError("the provider sent no ID token")
    claims = providers.verify(
        settings.issuer, id_token, settings.client_id, nonce=visit.nonce, access_token=access_token, is_operators=True
    )
    if "userinfo_endpoint" in metadata:
        further = fetch_json(_endpoint(metadata, "userinfo_endpoint"), destinations, f"Bearer {access_token}")
        if further.get("sub") != claims["sub"]:
            raise WrongTokenError("userinfo is about somebody else than the ID token")
        # What is signed counts.
        claims = further | claims
    return _identity(settings, claims)


def strongest_role(
    roles: Iterable[tuple[str, AccountRole]], email: str | None, groups: list[str]
) -> AccountRole | None:
    """The strongest of the roles that are given to everybody, to a group, or to the domain of a verified address."""
    domain = f"@{email.rpartition('@')[2].lower()}" if email else None
    fitting = [role for who, role in roles if who == "*" or who in groups or (domain and who.lower() == domain)]
    return max(fitting, key=lambda role: SCOPES.index(ROLE_SCOPES[role]), default=None)


def _identity(settings: ProviderSettings, claims: dict[str, Any]) -> Identity:
    subject, email = claims["sub"], claims.get("email")
    is_verified = isinstance(email, str) and claims.get("email_verified") is True and "@" in email
    groups = claims.get("groups")
    named = [str(group) for group in groups] if isinstance(groups, list) else []
    # A group cannot pass for an e-mail domain or for everybody.
    role = strongest_role(
        settings.roles, email if is_verified else None, [name for name in named if name[:1] not in ("@", "*")]
    )
    name = claims.get("preferred_username") or claims.get("name") or subject
    name = str(name)[:_MAX_NAME]
    if is_reserved(name) or "@" in name:
        # Neither passes for another caller in the trail, nor for an address that nobody verified.
        name = subject[:_MAX_NAME] if "@" not in subject else f"{settings.issuer} {subject}"[:_MAX_NAME]
    return Identity(settings.issuer, subject, name, str(email)[:_MAX_NAME] if is_verified else None, role)


def _exchange(
    metadata: dict[str, Any],
    settings: ProviderSettings,
    server_url: str,
    visit: ProviderVisit,
    code: str,
    destinations: Destinations,
) -> dict[str, Any]:
    """Exchanges the code for the provider's token response."""
    secret = settings.client_secret
    methods = metadata.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
    in_body = secret is None or "client_secret_basic" not in methods
    shown = {"client_id": settings.client_id} | ({"client_secret": secret} if secret else {}) if in_body else {}
    basic = base64.b64encode(f"{settings.client_id}:{secret}".encode()).decode()
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "code_verifier": visit.verifier,
        "redirect_uri": server_url + CALLBACK,
        **shown,
    }
    endpoint = _endpoint(metadata, "token_endpoint")
    return fetch_json(endpoint, destinations, None if in_body else f"Basic {basic}", form)


def _endpoint(metadata: dict[str, Any], name: str) -> str:
    address = metadata.get(name)
    if not isinstance(address, str) or not is_trustworthy(address):
        raise ProviderError(f"the provider names no {name} that is reached by https")
    return address
