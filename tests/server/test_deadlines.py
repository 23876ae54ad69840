"""Requests that arrive in part do not hold a connection for ever."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.types import Message

from warpwatch.server.http import deadlines
from warpwatch.server.http.deadlines import HttpConnection, with_deadline

LONG_SECONDS = 30.0
"""How long a test waits for what should take a fraction of a second."""
POST = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\n"


@pytest.fixture
def port(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a server that has little patience."""
    monkeypatch.setattr(deadlines, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(deadlines, "BODY_SECONDS", 0.3)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(app, http=HttpConnection, log_level="warning", timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join()


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=LONG_SECONDS) as client:
        yield client


def read_all(client: socket.socket) -> bytes:
    """Everything until the server closes; a test fails by the time-out of the socket when it does not."""
    return b"".join(iter(lambda: client.recv(65536), b""))


def is_cut_off(client: socket.socket, piece: bytes) -> bool:
    """Whether the server closes a connection on which a piece arrives every 50 ms."""
    for _ in range(int(LONG_SECONDS / 0.05)):
        try:
            client.sendall(piece)
        except OSError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHo"])
def test_half_a_head(port: int, sent: bytes) -> None:
    with connected(port) as client:
        client.sendall(sent)
        assert read_all(client) == b""


def test_a_head_that_dribbles(port: int) -> None:
    with connected(port) as client:
        client.sendall(b"GET / HTTP/1.1\r\n")
        assert is_cut_off(client, b"X: y\r\n")


def test_half_a_head_after_a_whole_request(port: int) -> None:
    with connected(port) as client:
        client.sendall(b"GET /static/tokens.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET")
        assert read_all(client).startswith(b"HTTP/1.1 200")


def test_half_a_body(port: int) -> None:
    with connected(port) as client:
        client.sendall(POST + b"Content-Length: 100\r\n\r\ntoken=")
        assert read_all(client).startswith(b"HTTP/1.1 408")


def test_a_body_that_nobody_reads(port: int) -> None:
    with connected(port) as client:
        client.sendall(b"GET /static/tokens.css HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 900000\r\n\r\n")
        assert is_cut_off(client, b"x")


LEGAL = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\n"
CHUNKED, SIZED = b"Transfer-Encoding: chunked\r\n", b"Content-Length: 7\r\n"
PIECE = b"7\r\ntoken=x\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /static/tokens.css HTTP/1.1\nHost: 127.0.0.1\n\n",
        b"GET /static/tokens.css HTTP/1.1\r\nHost: 127.0.0.1\nX: y\r\n\r\n",
        b"GET /static/tokens.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\n",
        b"\nGET /static/tokens.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /static/tokens.css HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\rb\r\n\r\n",
        LEGAL + SIZED + CHUNKED + b"\r\n" + PIECE,
        LEGAL + CHUNKED + SIZED + b"\r\n" + PIECE,
        LEGAL.replace(b"1.1", b"1.0") + CHUNKED + b"\r\n" + PIECE,
        LEGAL + SIZED + b"Content-Length: 8\r\n\r\ntoken=xy",
        LEGAL + CHUNKED + b"Transfer-Encoding: identity\r\n\r\n" + PIECE,
    ],
)
@pytest.mark.parametrize("is_split", [False, True])
def test_a_request_that_can_be_read_in_two_ways(port: int, sent: bytes, is_split: bool) -> None:
    with connected(port) as client:
        for piece in (sent[: len(sent) // 2], sent[len(sent) // 2 :]) if is_split else (sent,):
            client.sendall(piece)
            time.sleep(0.05 * is_split)
        answer = read_all(client)
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 501"))
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("sent", [LEGAL + CHUNKED + b"\r\n" + PIECE, LEGAL + SIZED + b"\r\ntoken=\n"])
def test_a_request_that_can_be_read_in_one_way(port: int, sent: bytes) -> None:
    with connected(port) as client:
        client.sendall(sent)
        client.sendall(b"GET /static/tokens.css HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        assert read_all(client).count(b"HTTP/1.1 ") == 2


def test_a_stream_outlasts_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the body, an application that streams waits for the end of the connection."""
    monkeypatch.setattr(deadlines, "BODY_SECONDS", 0.05)
    messages: list[Message] = [{"type": "http.request", "body": b""}, {"type": "http.disconnect"}]

    async def receive() -> Message:
        await asyncio.sleep(0.0 if len(messages) == 2 else 0.2)
        return messages.pop(0)

    async def read_both() -> list[str]:
        receive_in_time = with_deadline(receive)
        return [(await receive_in_time())["type"] for _ in range(2)]

    assert asyncio.run(read_both()) == ["http.request", "http.disconnect"]
