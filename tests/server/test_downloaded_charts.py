"""Charts as files: what is in them, what a page answers, and that the browser's plotly.js is that of the package."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import plotly.offline
import pytest
from fastapi.testclient import TestClient

from tests.apps import create_app
from tests.builders import CASES, Lab
from warpwatch.db.database import Database
from warpwatch.server.figures.standalone import check_figure, standalone_html
from warpwatch.server.web.render import WEB
from warpwatch.settings import Settings

ROOT = Path(__file__).parents[2]
VENDOR = WEB / "static" / "vendor"
V1 = ("v1", CASES[0])


def drawn(html: str) -> list[dict[str, Any]]:
    """The traces of the chart in a file."""
    call = html[html.rindex("Plotly.newPlot(") :]
    traces: list[dict[str, Any]] = json.JSONDecoder().raw_decode(call[call.index("[") :])[0]
    return traces


def test_the_bundle_of_pages_has_the_version_of_plotly_js_that_the_package_brings() -> None:
    version = plotly.offline.get_plotlyjs_version()
    assert f"`plotly.js-cartesian-dist-min@{version}`" in (VENDOR / "README.md").read_text()
    assert f"plotly.js (cartesian - minified) v{version}\n" in (VENDOR / "plotly-cartesian.min.js").read_text()[:200]


def test_vendored_files_with_another_digest_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("vendor", ROOT / "packaging" / "vendor.py")
    assert spec is not None
    assert spec.loader is not None
    vendor = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(vendor)
    files = vendor.read_table((VENDOR / "README.md").read_text())
    assert {file.name for file in files} == {path.name for path in VENDOR.glob("*.js")}
    content = (VENDOR / files[0].name).read_bytes()

    def pack(command: list[str], **_: Any) -> None:
        import tarfile

        published = tmp_path / "package" / files[0].path
        published.parent.mkdir(parents=True, exist_ok=True)
        published.write_bytes(content)
        with tarfile.open(Path(command[command.index("--pack-destination") + 1]) / "it.tgz", "w:gz") as archive:
            archive.add(published, f"package/{files[0].path}")

    monkeypatch.setattr(vendor.subprocess, "run", pack)
    assert vendor.fetch(files[0]) == content
    content += b"// edited"
    with pytest.raises(ValueError, match="instead of"):
        vendor.fetch(files[0])


def test_the_file_of_a_history_has_what_the_page_adds() -> None:
    meta = {"commits": [[0, "a" * 40, "A subject", "Ann"]], "units": [[1e3, "µs"], [1, "ns"]]}
    own = {"commits": [0], "times": [[12_000.0, 11_500.0, 999.96]], "remark": [0], "remarks": [" (n)"]}
    band = {"type": "scatter", "y": [1]}
    line = {"type": "scatter", "x": [0], "y": [1], "name": "v1", "meta": own}
    figure = {"data": [band, dict(band), line], "layout": {"meta": meta}}
    low, high, shown = drawn(standalone_html(json.dumps(figure), "http://server"))
    assert low["x"] == high["x"] == [0]
    facts = ["", "aaaaaaaa", "A subject", "Ann", "12.00\u2009µs", "v1, 11.50\u2009µs to 1.000\u2009µs (n)"]
    assert shown["customdata"] == [facts]


def test_names_from_kernel_code_are_no_markup_of_the_file_and_links_lead_to_the_server() -> None:
    label = {"text": '<a href="/regressions/7">slower</a>'}
    figure = {"data": [{"type": "scatter", "name": "</script><script>alert(1)"}], "layout": {"annotations": [label]}}
    html = standalone_html(json.dumps(figure), "http://server:8321")
    own = html[html.rindex("Plotly.newPlot(") :]
    assert "<script>" not in own
    assert "\\u003cscript\\u003ealert(1)" in own
    assert "http:\\u002f\\u002fserver:8321\\u002fregressions\\u002f7" in own


def test_a_page_gives_each_of_its_charts_as_a_file(client: TestClient, lab: Lab) -> None:
    lab.bench(0, {V1: 10_000.0})
    lab.bench(1, {V1: 13_000.0})
    page = client.get("/history/1").text
    (link,) = re.findall(r'<a href="([^"]+)" download="history-figure.html"', page)
    answer = client.get(link.replace("&amp;", "&"))
    assert answer.headers["content-disposition"] == 'attachment; filename="history-figure.html"'
    assert answer.headers["content-type"].startswith("text/html")
    assert any(trace.get("name") == "v1" for trace in drawn(answer.text))
    assert not re.search(r"<(script|link)[^>]+(src|href)=", answer.text), "nothing is loaded"
    refused = client.get("/history/1?chart=other.html")
    assert refused.status_code == 404
    assert "this page has history-figure.html" in refused.text.replace("&#39;", "'")


def test_figures_are_checked_where_the_setting_says_so(
    settings: Settings, database: Database, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.bench(0, {V1: 10_000.0})
    app = create_app(replace(settings, check_figures=True), database, judge=False)
    checking = TestClient(app, base_url="http://127.0.0.1:8321")
    assert checking.get("/history/1").status_code == 200
    wrong = {"data": [{"type": "scatter", "colour": "red"}], "layout": {}}
    monkeypatch.setattr("warpwatch.server.web.history.history_figure", lambda *_: wrong)
    assert checking.get("/history/1").status_code == 500
    with pytest.raises(ValueError, match="colour"):
        check_figure(json.dumps(wrong))
