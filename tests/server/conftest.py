"""A server on a fresh database, a real repository, and a client that talks to it as a browser on this machine would."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.apps import create_app
from tests.builders import Lab, make_repository
from warpwatch.cli.serve import listen
from warpwatch.db.database import Database
from warpwatch.server import app as application
from warpwatch.server import site
from warpwatch.settings import Settings


@pytest.fixture(scope="session", autouse=True)
def _prepared_routes_of_sites() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "create_app", create_app)
        # Beside every server that starts, a thread looks at every template.
        patch.setattr(application, "compile_templates", lambda: None)
        yield


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A repository of six commits with the operators square and cube, and their ids."""
    path = tmp_path_factory.mktemp("source") / "kernels"
    return path, make_repository(path, operators=("square", "cube"))


@pytest.fixture
def settings(tmp_path: Path, database_url: str) -> Settings:
    return Settings(home=tmp_path / "home", database_url=database_url)


@pytest.fixture
def lab(database: Database, source: tuple[Path, list[str]], tmp_path: Path) -> Lab:
    return Lab(database, *source, folder=tmp_path)


@pytest.fixture
def app(settings: Settings, database: Database) -> FastAPI:
    return create_app(settings, database, judge=False)


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, base_url="http://127.0.0.1:8321", raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def times(request: pytest.FixtureRequest) -> int:
    """How many times the usual requests are made up."""
    factor: int = request.config.getoption("--requests")
    return factor


@pytest.fixture
def lease() -> float:
    """Seconds that a silent worker keeps its job."""
    return 15.0


@pytest.fixture
def served(settings: Settings, database: Database, lease: float) -> Iterator[Settings]:
    """A server with its judge, on a port of its own; the settings to reach it with."""
    with listen(replace(settings, port=0)) as listener:
        port = listener.getsockname()[1]
        settings = replace(settings, port=port, server_url=f"http://127.0.0.1:{port}", lease_seconds=lease)
        config = uvicorn.Config(create_app(settings, database), log_level="warning", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield settings
        server.should_exit = True
        thread.join()
