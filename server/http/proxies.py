"""Who sent a request through the reverse proxies that WARPWATCH_PROXIES names."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import Scope

from warpwatch.destinations import Address, Network

_WITH_PORT = re.compile(r"\[([^\]]+)\](?::\d{1,5})?|([\d.]+):\d{1,5}")
_MOST_HOPS = 20
"""More than any chain of proxies has."""


def read_forwarded(scope: Scope, proxies: Sequence[Network]) -> None:
    """Puts the client and the scheme that a proxy reports into the scope; anybody else's X-Forwarded headers say
    nothing."""
    client = scope.get("client")
    address = _parse(client[0]) if client else None
    if address is None or not _is_in(address, proxies):
        return
    headers = Headers(scope=scope)
    hops = ",".join(headers.getlist("x-forwarded-for")).split(",")
    # Each proxy adds at the end whom it was asked by. Left of the first stranger stands the stranger's own claim.
    for hop in reversed(hops[-_MOST_HOPS:]):
        sender = _parse(hop.strip())
        if sender is None:
            break
        address = sender
        if not _is_in(address, proxies):
            break
    scope["client"] = (str(address), 0)
    scheme = (headers.getlist("x-forwarded-proto") or [""])[-1].strip().lower()
    if scheme in ("http", "https"):
        scope["scheme"] = scheme


def address_group(scope: Scope) -> str:
    """The address that a request came from, as one person has it: of IPv6, which gives each customer at least 2**64
    addresses, the network."""
    shown = scope["client"][0] if scope.get("client") else ""
    address = _parse(shown)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return shown if address is None else str(address)


def _parse(text: str) -> Address | None:
    """The address of a hop, with or without a port; an IPv4 address where IPv6 only carries it."""
    match = _WITH_PORT.fullmatch(text)
    try:
        address = ipaddress.ip_address(((match[1] or match[2]) if match else text).partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_in(address: Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)
