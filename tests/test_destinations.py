"""Where the service connects to when somebody else names the address."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from warpwatch import git
from warpwatch.destinations import DestinationError, Destinations, UnknownHostError, host_of, parse_private_hosts
from warpwatch.settings import SettingError, load_settings

METADATA = ["169.254.169.254", "169.254.170.2", "fe80::1", "fd00:ec2::254", "100.100.100.200", "168.63.129.16"]
METADATA += ["::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::", "::a9fe:a9fe", "fe80::1%eth0"]
NOWHERE = ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "::ffff:0.0.0.0"]
PRIVATE = ["127.0.0.1", "127.9.9.9", "::1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "fd12::1", "100.64.0.1"]
PRIVATE += ["::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "::7f00:1"]


@pytest.mark.parametrize("address", [*METADATA, *NOWHERE])
def test_no_setting_allows_metadata(address: str) -> None:
    for destinations in (
        Destinations(),
        Destinations(is_private_allowed=True),
        Destinations(False, *parse_private_hosts("host.example,0.0.0.0/0,::/0")),
    ):
        with pytest.raises(DestinationError):
            destinations.check("host.example", address)


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_for_those_that_are_named(address: str) -> None:
    with pytest.raises(DestinationError):
        Destinations().check("host.example", address)
    Destinations(is_private_allowed=True).check("host.example", address)
    for text in ("host.example", "HOST.example", "0.0.0.0/0,::/0"):
        Destinations(False, *parse_private_hosts(text)).check("host.example", address)
    with pytest.raises(DestinationError):
        Destinations(False, *parse_private_hosts("other.example, 10.9.0.0/16")).check("host.example", address)


@pytest.mark.parametrize("address", ["140.82.121.4", "2606:50c0:8000::153", "::ffff:140.82.121.4"])
def test_public_addresses_are_open(address: str) -> None:
    Destinations().check("host.example", address)


def test_one_refused_address_refuses_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (text, 443)) for text in ("140.82.121.4", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: entries)
    with pytest.raises(DestinationError):
        Destinations().resolve("host.example", 443)
    assert Destinations(is_private_allowed=True).resolve("host.example", 443) == "140.82.121.4"


def test_a_name_without_address_is_told_from_a_refused_one() -> None:
    with pytest.raises(UnknownHostError):
        Destinations().resolve("no-such-host.invalid", 443)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://git.example/a.git", ("https", "git.example", 443)),
        ("http://user@git.example:8080/a", ("http", "git.example", 8080)),
        ("ssh://git@git.example:2222/a", ("ssh", "git.example", 2222)),
        ("git@git.example:a/b.git", ("ssh", "git.example", 22)),
        ("[::1]:a/b.git", ("ssh", "::1", 22)),
        ("git://git.example/a", ("git", "git.example", 9418)),
        ("/srv/kernels", None),
        ("./kernels:old", None),
        ("file:///srv/kernels", None),
    ],
)
def test_hosts_of_repositories(url: str, place: tuple[str, str, int] | None) -> None:
    assert host_of(url) == place


@pytest.mark.parametrize(
    "url", ["ftp://git.example/a", "gopher://x/1", "https:///x", "https://[::1/x", "http://h:port/"]
)
def test_addresses_of_no_repository(url: str) -> None:
    with pytest.raises(DestinationError):
        host_of(url)


@pytest.mark.parametrize("text", ["10.0.0.0/99", "a b", "-x", "http://git.internal", "*"])
def test_settings_that_name_no_host(text: str) -> None:
    with pytest.raises(SettingError, match="WARPWATCH_PRIVATE_HOSTS"):
        load_settings({"WARPWATCH_PRIVATE_HOSTS": text})


@pytest.mark.parametrize(
    ("environment", "allowed"),
    [
        ({}, True),
        ({"WARPWATCH_HOST": "::1"}, True),
        ({"WARPWATCH_TOKEN": "a-token-of-some-length"}, False),
        ({"WARPWATCH_HOST": "0.0.0.0", "WARPWATCH_TOKEN": "a-token-of-some-length"}, False),
        ({"WARPWATCH_TOKEN": "a-token-of-some-length", "WARPWATCH_PRIVATE_HOSTS": "10.1.0.0/16"}, True),
    ],
)
def test_only_servers_for_their_own_machine_reach_its_network(environment: dict[str, str], allowed: bool) -> None:
    destinations = load_settings(environment).destinations
    if allowed:
        destinations.check("git.internal", "10.1.2.3")
    else:
        with pytest.raises(DestinationError, match="WARPWATCH_PRIVATE_HOSTS"):
            destinations.check("git.internal", "10.1.2.3")


@pytest.fixture
def code_host() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """A host that sends every request on to another name; its address, and (host, path) of what it was asked."""
    requests: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append((self.headers["Host"], self.path))
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{server.server_port}/secret{self.path}")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://git.example:{server.server_port}/kernels.git", requests
    server.shutdown()
    server.server_close()
    thread.join()


def test_git_connects_to_the_checked_address_alone(
    code_host: tuple[str, list[tuple[str, str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """git neither looks the name up again nor follows a redirect."""
    url, requests = code_host
    entries = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: entries)
    with pytest.raises(git.GitError):
        git.update_mirror(url, tmp_path)
    assert requests, "git knows the address without a name server"
    assert {host.partition(":")[0] for host, _ in requests} == {"git.example"}
    assert not [path for _, path in requests if path.startswith("/secret")]
    requests.clear()
    with pytest.raises(git.GitError):
        git.update_mirror(url, tmp_path, Destinations())
    assert requests == []
