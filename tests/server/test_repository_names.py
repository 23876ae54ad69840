"""Names of repositories that would lead elsewhere: refused at every door, and harmless where they are stored."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from tests.builders import Lab
from tests.server.test_code import problem
from tests.worker.test_bundle import bundle as bundle
from tests.worker.test_bundle import edit, rewrite
from warpwatch.bundle import BundleError
from warpwatch.db import registry
from warpwatch.db.database import Database
from warpwatch.server.http.downloads import content_disposition
from warpwatch.server.intake.bundles import import_bundle

API = "/api/v1"
ODD = (
    '../../x"><img src=x>',
    "a/b",
    "..",
    ".hidden",
    "a\r\nSet-Cookie: x=y",
    "\u540d",
    "a\u202egnp.exe",
    "",
    "a" * 101,
    "-a",
)


@pytest.mark.parametrize("name", ODD)
def test_they_are_refused(client: TestClient, bundle: Path, database: Database, name: str) -> None:
    problem(client.post(f"{API}/repositories", json={"name": name, "url": "/nowhere"}), 422)
    answer = client.post("/repositories", data={"name": name, "url": "/nowhere"}, follow_redirects=False)
    assert answer.status_code in (404, 405, 422)
    forged = rewrite(bundle, edit("manifest.json", "repository", value=name))
    with pytest.raises(BundleError, match="no name of a repository"):
        import_bundle(database, forged)
    assert client.get(f"{API}/repositories").json()["items"] == []
    if name:
        with pytest.raises(BundleError, match="no name of a repository"):
            import_bundle(database, bundle, repository=name)


def test_a_results_file_is_imported_under_another_name(bundle: Path, database: Database, client: TestClient) -> None:
    odd = rewrite(bundle, edit("manifest.json", "repository", value="../x"))
    assert import_bundle(database, odd, repository="x").new
    assert [row["name"] for row in client.get(f"{API}/repositories").json()["items"]] == ["x"]


@pytest.mark.parametrize("name", [name for name in ODD if name not in ("", "..")])
def test_those_of_earlier_versions_can_be_deleted(client: TestClient, lab: Lab, name: str) -> None:
    with lab.database.session() as session:
        registry.ensure_repository(session, name, "/nowhere")
    address = f"{API}/repositories/{quote(name, safe='')}"
    assert client.get(address).json()["name"] == name
    if len(name) <= 100:
        export = client.get(f"{API}/export.csv", params={"repository": name})
        shown = export.headers["content-disposition"]
        assert not set(shown.partition("filename=")[2]) & set("/\\<>\r\n\u202e")
    assert client.delete(address).status_code == 204
    assert [row["name"] for row in client.get(f"{API}/repositories").json()["items"]] == [lab.name]


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("kernels.csv", 'attachment; filename="kernels.csv"'),
        (
            'a"; filename=b.exe',
            "attachment; filename=\"a__ filename=b.exe\"; filename*=UTF-8''a%22%3B%20filename%3Db.exe",
        ),
        ("../../x", 'attachment; filename="_.._x"'),
        ("..", 'attachment; filename="file"'),
        ("a\r\nX: y", "attachment; filename=\"a__X_ y\"; filename*=UTF-8''a__X%3A%20y"),
        ("\u00e9.csv", "attachment; filename=\"_.csv\"; filename*=UTF-8''%C3%A9.csv"),
    ],
)
def test_names_of_files(name: str, header: str) -> None:
    assert content_disposition(name) == {"Content-Disposition": header}
