"""Runs requests that fetch from git hosts in threads of their own, so that a host that hangs stops nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import Request

from warpwatch.server.http.problems import Problem

P = ParamSpec("P")
T = TypeVar("T")
THREADS = 16
THREADS_PER_REPOSITORY = 2
MOST_WAITING = 50
"""Requests that may wait for the same repository."""
RETRY_SECONDS = 20


class GitThreads:
    """A bounded pool of threads. One repository gets few of them, so that its host keeps no other one waiting."""

    def __init__(self) -> None:
        self._all = CapacityLimiter(THREADS)
        self._lines: dict[str, CapacityLimiter] = {}

    async def run(self, repository: str, action: Callable[[], T]) -> T:
        """The result of `action`; Problem 503 when too many wait for the repository already."""
        line = self._lines.setdefault(repository, CapacityLimiter(THREADS_PER_REPOSITORY))
        if line.statistics().tasks_waiting >= MOST_WAITING:
            detail = f"{MOST_WAITING} requests wait for the git host of this repository already; retry later"
            raise Problem(503, detail, headers={"Retry-After": str(RETRY_SECONDS)})
        try:
            async with line:
                return await to_thread.run_sync(action, limiter=self._all)
        finally:
            statistics = line.statistics()
            if not statistics.borrowed_tokens and not statistics.tasks_waiting:
                self._lines.pop(repository, None)


def in_git_thread(key: Callable[[dict[str, Any]], object]) -> Callable[[Callable[P, T]], Callable[P, Awaitable[T]]]:
    """Makes an endpoint that may fetch run in a GitThreads of its application, instead of a request thread.

    key: the repository that an endpoint's arguments name. The endpoint takes the request as `request`.
    """

    def decorate(endpoint: Callable[P, T]) -> Callable[P, Awaitable[T]]:
        @wraps(endpoint)
        async def run(*args: P.args, **kwargs: P.kwargs) -> T:
            request: Any = kwargs["request"]
            assert isinstance(request, Request)
            threads: GitThreads = request.app.state.git_threads
            return await threads.run(str(key(kwargs)), partial(endpoint, *args, **kwargs))

        return run

    return decorate
