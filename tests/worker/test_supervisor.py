"""`warpwatch up` starts again what died, says so, and gives up on what dies again and again."""

from __future__ import annotations

import pytest

from warpwatch.cli import services
from warpwatch.cli.services import StartError, Supervisor


class Part:
    """A part that a test kills."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.starts: list[float] = []
        self.error: OSError | None = None

    def is_alive(self) -> bool:
        return self.alive

    def restart(self) -> None:
        self.starts.append(NOW[0])
        if self.error is not None:
            raise self.error
        self.alive = True

    def last_words(self) -> str:
        return "goodbye"


NOW = [0.0]


def run(supervisor: Supervisor, seconds: float) -> None:
    for _ in range(int(seconds * 10)):
        NOW[0] += 0.1
        supervisor.check()


def test_what_dies_is_started_again_and_the_others_are_left_alone() -> None:
    said: list[str] = []
    worker, server = Part("worker"), Part("server")
    supervisor = Supervisor([server, worker], said.append, clock=lambda: NOW[0])
    run(supervisor, 5)
    worker.alive = False
    run(supervisor, 5)
    assert (worker.alive, len(worker.starts), server.starts) == (True, 1, [])
    assert len(said) == 2


def test_pauses_grow_and_in_the_end_it_gives_up() -> None:
    part = Part("worker")
    part.error = OSError("no")
    part.alive = False
    supervisor = Supervisor([part], lambda _text: None, clock=lambda: NOW[0])
    with pytest.raises(StartError, match="goodbye"):
        run(supervisor, services.RESTART_WINDOW_SECONDS)
    pauses = [later - earlier for earlier, later in zip(part.starts, part.starts[1:], strict=False)]
    assert len(part.starts) == services.MOST_RESTARTS
    assert pauses == sorted(pauses)
    assert pauses[-1] > 4 * pauses[0]


def test_deaths_long_ago_do_not_count() -> None:
    part = Part("worker")
    supervisor = Supervisor([part], lambda _text: None, clock=lambda: NOW[0])
    for _ in range(2 * services.MOST_RESTARTS):
        part.alive = False
        run(supervisor, services.RESTART_WINDOW_SECONDS / 2)
    assert part.alive
