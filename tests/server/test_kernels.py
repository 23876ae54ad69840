"""The room of kernels: the list of operators, the tabs of one operator, and the old addresses that lead there."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import parse_qsl, urlsplit

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.builders import CASES, Lab
from tests.planted import plant
from tests.server.test_operator_page import LARGE, V1, figure, series_of
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import Status

V2 = ("v2", CASES[0])
COMMITS = "/kernels/square?tab=commits"


def target(location: str) -> tuple[str, dict[str, str]]:
    """(path, filters) of the address that a redirect leads to."""
    parts = urlsplit(location)
    return parts.path, dict(parse_qsl(parts.query))


def current(page: str) -> list[str]:
    """The text of the chosen tab, and of the chosen case."""
    found = re.findall(r'aria-current="(?:page|true)"[^>]*>(.*?)</a>', page, re.DOTALL)
    return [re.sub(r"<svg.*?</svg>|<[^>]+>|\s", "", item, flags=re.DOTALL) for item in found]


# --- the list -------------------------------------------------------------------------------------------------


def test_the_operator_that_needs_somebody_comes_first(lab: Lab, client: TestClient) -> None:
    for index in (0, 1):
        lab.bench(index, {V1: 200.0, V2: 100.0, LARGE: 400.0, ("v2", LARGE[1]): 200.0})
    page = client.get("/kernels").text
    (row,) = re.findall(r'<tr data-operator="square">.*?</tr>', page, re.DOTALL)
    words = re.sub(r"<[^>]+>|\s+", " ", row)
    assert "2.00× v1" in words, "the best variant with its speed-up"
    assert "open" not in words
    number = plant(lab, 0, 1, 1.3, [V1])
    lab.check(1, {V2: Status.WRONG})
    page = client.get("/kernels").text
    assert f'href="/regressions/{number}' in page
    assert "slower" in re.sub(r"<[^>]+>", "", page)
    assert "1 failing" in page
    assert 'class="share-bar"' in page


def test_lists_say_the_same_of_a_share_above_the_ceiling(lab: Lab, client: TestClient) -> None:
    lab.bench(0, {V1: 200.0, V2: 100.0})
    for stored, shown in ((1.25, "&gt;100 %"), (0.875, "88 %")):
        with lab.database.session() as s:
            s.execute(text("UPDATE points SET roofline_share = :share"), {"share": stored})
        pages = [client.get(path).text.replace("\u2009", " ") for path in ("/kernels", "/overview")]
        meters = [
            re.findall(r'<span class="meter"( title="125 % .*?")?>.*?<span>(.*?)</span></span>', page, re.DOTALL)
            for page in pages
        ]
        assert {text for found in meters for _, text in found} == {shown}
        assert all(bool(title) == (stored > 1) for found in meters for title, _ in found)


def test_a_device_without_results_has_an_empty_list(lab: Lab, client: TestClient) -> None:
    page = client.get("/kernels").text
    assert "Not measured on this device yet" in page


# --- tabs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tab", ["now", "commits", "sizes", "devices", "code"])
def test_every_tab_keeps_what_is_chosen(lab: Lab, client: TestClient, tab: str) -> None:
    lab.bench(0, {V1: 200.0, V2: 100.0, LARGE: 400.0})
    chosen = {"tab": tab, "case": LARGE[1], "variant": "v1", "device": "test-cpu", "metric": "hot"}
    page = client.get("/kernels/square", params=chosen).text
    assert current(page)[-1] == LARGE[1]
    links = [unescape(link) for link in re.findall(r'<li><a href="(/kernels/square\?[^"]+)"', page)]
    assert len(links) >= 5 + 2, "five tabs, and two cases"
    for link in links:
        filters = dict(parse_qsl(urlsplit(link).query))
        assert (filters["device"], filters["metric"], filters["variant"]) == ("test-cpu", "hot", "v1")
    tabs = [dict(parse_qsl(urlsplit(link).query)) for link in links[:5]]
    assert {filters["case"] for filters in tabs} == {LARGE[1]}
    assert [filters.get("tab", "now") for filters in tabs] == ["now", "commits", "sizes", "devices", "code"]


def test_only_tabs_with_a_chart_load_the_chart_library(lab: Lab, client: TestClient) -> None:
    lab.bench(0, {V1: 200.0})
    assert "plotly" not in client.get("/kernels/square").text
    assert "plotly" not in client.get("/kernels/square?tab=sizes").text, "one case has no size to be drawn over"
    assert "plotly" in client.get(COMMITS).text


def test_of_many_variants_the_best_four_come_first(lab: Lab, client: TestClient) -> None:
    lab.bench(0, {(f"v{number}", CASES[0]): 1000.0 - 100 * number for number in range(1, 9)})
    page = client.get("/kernels/square").text
    (head,) = re.findall(r'<table class="heat.*?</thead>', page, re.DOTALL)
    assert re.findall(r">(v\d)<", head) == ["v8", "v7", "v6", "v5", "v1", "v2", "v3", "v4"]
    table = client.get(COMMITS).text.split('id="points"')[1]
    assert re.findall(r'class="number">(v\d)<', table)[:4] == ["v8", "v7", "v6", "v5"]


def test_of_many_variants_six_are_coloured_until_others_are_ticked(lab: Lab, client: TestClient) -> None:
    lab.bench(0, {(f"v{number}", CASES[0]): 1000.0 - 100 * number for number in range(1, 9)})
    for address, coloured in ((COMMITS, 6), (f"{COMMITS}&variant=v1&variant=v2", 2)):
        page = client.get(address).text
        lines = [trace for trace in figure(page, "history-figure")["data"] if trace.get("meta")]
        assert sum(trace["line"]["color"] == trace["meta"]["own"] for trace in lines) == coloured
        assert page.count("data-submit checked") == coloured


def test_notes_are_computed_and_never_state_a_figure_by_hand(lab: Lab, client: TestClient) -> None:
    lab.bench(0, {V1: 208.0, V2: 200.0, LARGE: 400.0, ("v2", LARGE[1]): 900.0})
    with lab.database.session() as s:
        s.execute(
            text(
                'UPDATE commits SET catalogue = CAST(replace(CAST(catalogue AS text), \'"outcome": ""\','
                ' \'"outcome": "beats v1 on an H100: launches are the limit"\') AS jsonb)'
            )
        )
    page = client.get("/kernels/square").text
    assert "fastest in 1 of 2 cases, 1.04× the next" in page.replace("\N{THIN SPACE}", " ")
    assert "Why it won or lost" not in page
    assert "launches are the limit" not in page


# --- over commits ---------------------------------------------------------------------------------------------


def test_the_table_colours_what_a_trial_decided_and_nothing_else(lab: Lab, client: TestClient) -> None:
    """Medians of separate runs are numbers without a colour, however far apart they are."""
    for index, median in enumerate((100_000.0, 400_000.0, 120_000.0)):
        lab.bench(index, {V1: median, V2: median})
    address = f"{COMMITS}&case={CASES[0]}&variant=v1"
    table = client.get(address).text.split('id="points"')[1]
    assert "×4.00" in table
    assert re.findall(r"\b(?:slower|faster)\b|class=.(?:statement|delta) (?:slower|faster|good|bad)", table) == []
    number = plant(lab, 0, 1, 1.3, [V1])
    for page in (client.get(address).text, client.get(f"{COMMITS}&case={CASES[0]}").text):
        table = page.split('id="points"')[1]
        (cell,) = re.findall(r'<a class="statement slower" href="/regressions/(\d+)[^>]*>.*?([^<>]*)</a>', table)
        assert (int(cell[0]), cell[1].removeprefix("&#8239;")) == (number, "+30.0\N{THIN SPACE}% slower")
        assert "faster" not in table


def test_a_commit_without_a_time_says_why(lab: Lab, client: TestClient) -> None:
    lab.bench(0, {V1: 100.0})
    lab.check(1, {V1: Status.WRONG})
    lab.check(2, {V1: Status.CRASHED})
    lab.finish(lab.submit("bench", 2), lab.outcome([Finding(*V1, Status.CRASHED, "it fell")]))
    page = client.get(f"{COMMITS}&variant=v1").text
    assert "no time: wrong<" in page
    assert "no time: crashed<" in page, "the check and the bench crashed, and the word is said once"
    assert "not benchmarked" not in page


def test_a_series_of_an_older_protocol_keeps_its_address(lab: Lab, client: TestClient) -> None:
    lab.bench(0, {V1: 100.0})
    (old,) = series_of(lab)
    with lab.database.session() as s:
        s.execute(text("UPDATE series SET protocol = '0'"))
    lab.bench(1, {V1: 900.0})
    newest = max(series_of(lab))
    for number, protocol in ((old, "0"), (newest, None)):
        answer = client.get(f"/history/{number}", follow_redirects=False)
        assert target(answer.headers["location"])[1].get("protocol") == protocol
        assert f'href="/api/v1/history/{number}.csv"' in client.get(f"/history/{number}").text


# --- old addresses --------------------------------------------------------------------------------------------


def test_old_addresses_lead_to_the_tab_with_their_filters(lab: Lab, client: TestClient) -> None:
    lab.bench(0, {V1: 100.0, V2: 100.0})
    number = min(series_of(lab))
    answer = client.get(f"/history/{number}?y=first&from=12345678", follow_redirects=False)
    assert answer.status_code in (307, 308)
    chosen = {"repository": "kernels", "case": CASES[0], "variant": "v1", "device": "test-cpu", "metric": "hot"}
    expected = {"tab": "commits", **chosen, "y": "first", "from": "12345678"}
    assert target(answer.headers["location"]) == ("/kernels/square", expected)
    answer = client.get("/history?operator=square&case=a&variant=v1", follow_redirects=False)
    assert target(answer.headers["location"]) == ("/kernels/square", {"tab": "commits", "case": "a", "variant": "v1"})
    answer = client.get("/devices/compare?operator=sq%20u&against=share", follow_redirects=False)
    assert target(answer.headers["location"]) == ("/kernels/sq%20u", {"tab": "devices", "against": "share"})
    for query, tab in (("size=n&against=speedup", "sizes"), ("code=registers&arch=sm_90", "code")):
        answer = client.get(f"/kernels/square?{query}", follow_redirects=False)
        path, filters = target(answer.headers["location"])
        assert (path, filters.pop("tab"), filters) == ("/kernels/square", tab, dict(parse_qsl(query)))


@pytest.mark.parametrize("address", ["/history/999", "/history", "/devices/compare", "/kernels/unknown"])
def test_an_address_of_nothing_is_not_found(lab: Lab, client: TestClient, address: str) -> None:
    assert client.get(address).status_code == 404


# --- % of the best other variant ------------------------------------------------------------------------------


def test_a_variant_is_compared_with_the_best_other_right_one(lab: Lab, client: TestClient) -> None:
    lab.bench(0, {V1: 200.0, V2: 100.0, ("v3", CASES[0]): 50.0})
    lab.check(0, {("v3", CASES[0]): Status.WRONG})
    lab.bench(1, {V1: 200.0, V2: 160.0})
    lab.bench(2, {V2: 160.0})
    rows = client.get("/api/v1/series?repository=kernels&metric=hot").json()["items"]
    series = {row["variant"]: row["id"] for row in rows}

    def values_of(variant: str) -> list[float]:
        answer = client.get(f"/api/v1/history/{series[variant]}/quantities?quantity=best")
        return [row["value"] for row in answer.json()["items"]]

    values = {name: values_of(name) for name in ("v1", "v2")}
    assert values == {"v1": [0.5, 0.8], "v2": [2.0, 1.25]}, "a commit without another variant has no value"
    drawn = figure(client.get(f"/history/{series['v2']}?y=best").text, "history-figure")
    (line,) = [trace for trace in drawn["data"] if trace["name"] == "v2"]
    assert line["y"] == [200.0, 125.0]
    assert drawn["layout"]["shapes"][0]["y0"] == 100
