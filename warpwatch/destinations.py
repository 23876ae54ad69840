"""Decides which hosts the service may connect to when somebody else names the address.

Needs only the standard library, because `warpwatch run` fetches repositories without a server.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import urllib.request
from dataclasses import dataclass
from urllib.parse import urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_METADATA = tuple(
    ipaddress.ip_network(text)
    for text in (
        "169.254.0.0/16",
        "fe80::/10",
        "fd00:ec2::/32",
        "100.100.100.200/32",
        "192.0.0.192/32",
        "168.63.129.16/32",
    )
)
"""Link-local addresses, and those at which AWS, Alibaba, Oracle and Azure hand out credentials of the machine."""
_EMBEDDING = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("::/96"))
"""IPv6 networks whose last four bytes are an IPv4 address that the packet ends at."""
_SCP = re.compile(r"(?:[^@/:]+@)?(\[[^\]]+\]|[^/:\[\]]+):(?!//)")
_PORTS = {"http": 80, "https": 443, "ssh": 22, "git": 9418}


class DestinationError(ValueError):
    """The service may not connect to an address; the message names the setting that would allow it."""


class UnknownHostError(DestinationError):
    """A host name has no address at the moment."""


@dataclass(frozen=True, slots=True)
class Destinations:
    """Where the service may connect to.

    Metadata services of clouds, link-local and multicast addresses are always refused. Loopback and private addresses
    are allowed where `is_private_allowed`, by the name of a host, or as part of a network.
    """

    is_private_allowed: bool = False
    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    def check(self, host: str, address: str) -> None:
        """DestinationError unless the service may connect to `address`, which `host` has."""
        numeric = _unwrapped(ipaddress.ip_address(address.partition("%")[0]))
        is_one_host = not (numeric.is_multicast or numeric.is_unspecified or numeric.packed == b"\xff" * 4)
        if not is_one_host or any(numeric in network for network in _METADATA):
            raise DestinationError(f"{host} is {address}, which no repository and no commit status may be at")
        if self.is_private_allowed or numeric.is_global or host.lower().rstrip(".") in self.hosts:
            return
        if not any(numeric in network for network in self.networks):
            raise DestinationError(
                f"{host} is {address}, a private address; if it should be reached, "
                f"add {host} or its network to WARPWATCH_PRIVATE_HOSTS"
            )

    def check_literal(self, url: str) -> None:
        """DestinationError for a URL whose host is a refused address, or localhost. Asks no name server."""
        host = urlsplit(url).hostname or ""
        address = "127.0.0.1" if host == "localhost" or host.endswith(".localhost") else host
        if _is_address(address):
            self.check(host, address)

    def resolve(self, host: str, port: int) -> str:
        """The address to connect to for `host`; DestinationError when any address of it is refused."""
        try:
            entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise UnknownHostError(f"{host} has no address: {error}") from None
        addresses = [str(entry[4][0]) for entry in entries]
        for address in addresses:
            self.check(host, address)
        return addresses[0]


def parse_private_hosts(text: str) -> tuple[frozenset[str], tuple[Network, ...]]:
    """Host names and networks of a comma-separated list; ValueError for what is neither."""
    hosts: set[str] = set()
    networks: list[Network] = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        try:
            networks.append(ipaddress.ip_network(entry, strict=False))
        except ValueError:
            if not re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?", entry) or "/" in entry:
                raise ValueError(f"{entry!r} is neither a host nor a network") from None
            hosts.add(entry.lower())
    return frozenset(hosts), tuple(networks)


def host_of(url: str) -> tuple[str, str, int] | None:
    """(scheme, host, port) of a repository's address, `user@host:path` included; None for a path on this machine."""
    if "://" not in url:
        match = _SCP.match(url)
        return ("ssh", match[1].strip("[]"), _PORTS["ssh"]) if match and not url.startswith(("/", ".")) else None
    try:
        parts = urlsplit(url)
        place = parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError as error:
        raise DestinationError(f"{url[:200]!r} is no address: {error}") from None
    if parts.scheme == "file":
        return None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise DestinationError(f"{url[:200]!r} is no address of a repository; use https, ssh, git or a path")
    return place


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach what listens at `host`."""
    return host == "localhost" or (_is_address(host.strip("[]")) and ipaddress.ip_address(host.strip("[]")).is_loopback)


def is_trustworthy(url: str) -> bool:
    """Whether nobody in between can change what a server at `url` answers: it is reached by https, or on this
    machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))


def uses_proxy(scheme: str, host: str) -> bool:
    """Whether a proxy of the environment makes the connection, and so decides where it may lead."""
    return scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _unwrapped(address: Address) -> Address:
    """The IPv4 address at which a packet to an IPv6 address ends, where that is so."""
    if isinstance(address, ipaddress.IPv4Address) or address.is_loopback or address.is_unspecified:
        return address
    embedded = address.ipv4_mapped or address.sixtofour
    if embedded is None and any(address in network for network in _EMBEDDING):
        embedded = ipaddress.IPv4Address(address.packed[-4:])
    return embedded or address
