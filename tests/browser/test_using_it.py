"""What people do: click a point, switch what is shown, submit, follow a job, write a note, open a trace."""

from __future__ import annotations

import gzip
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from sqlalchemy import text

from tests.browser.conftest import Visit, wait_until
from tests.browser.operators import OPERATORS
from tests.browser.world import COMMITS, CPU, GPU, World, submit
from tests.rewording import stored
from warpwatch.contract.outcome import Finding, Outcome
from warpwatch.contract.words import Status
from warpwatch.db import runs
from warpwatch.db.reads.work import read_job

pytestmark = pytest.mark.browser
KRON_BACKWARD = OPERATORS[0].cases[1][0]
HISTORY = f"/history?operator=kron&case={KRON_BACKWARD}&variant=v3&device={GPU.device_key}"


def points(page: Page) -> Locator:
    """The drawn points of a chart, in the order of history."""
    return page.locator(".scatterlayer .points path.point")


def drag(page: Page, start: float, end: float) -> None:
    """Drags the mouse across the chart. start, end: shares of its width."""
    box = page.locator(".nsewdrag").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * start, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * end, box["y"] + 62, steps=4)
    page.mouse.up()


def figure(page: Page) -> Any:
    """Data and layout as Plotly holds them."""
    return page.evaluate("(({ data, layout }) => ({ data, layout }))(document.querySelector('[data-figure]'))")


# --- charts ---------------------------------------------------------------------------------------------------


def test_every_link_of_a_chart_has_a_name(visit: Visit) -> None:
    """The chart library puts a second link, without a name, around a label that is a link and nothing else."""
    page = visit.open(HISTORY)
    links = page.locator(".plot svg a")
    assert links.count() >= 1, "the band of a change leads to its regression"
    assert all(link.text_content() for link in links.all())


def test_named_commits_follow_the_shown_range(visit: Visit) -> None:
    page = visit.open(HISTORY)
    ticks = page.locator(".xtick text")

    def names() -> list[str]:
        return [name.strip() for name in ticks.all_text_contents()]

    shas = [commit[1][:8] for commit in figure(page)["layout"]["meta"]["commits"]]
    whole = names()
    assert 1 < len(whole) < len(shas)
    assert whole[-1] == shas[-1], "the newest commit is named"
    boxes = [box for tick in ticks.all() if (box := tick.bounding_box())]
    assert all(a["x"] + a["width"] <= b["x"] for a, b in pairwise(boxes)), "no name covers another"
    drag(page, 0.4, 0.6)
    page.wait_for_url(re.compile("from="))
    wait_until(page, f"document.querySelectorAll('.xtick text').length !== {len(whole)}")
    low, high = figure(page)["layout"]["xaxis"]["range"]
    shown = [sha for place, sha in enumerate(shas) if low <= place <= high]
    assert names() == shown, "of a short range every commit is named"


def test_a_grey_variant_is_coloured_while_the_reader_points_at_its_name(visit: Visit) -> None:
    page = visit.open("/kernels/kron?tab=commits&variant=v3")
    page.evaluate("""async () => {
        const place = document.querySelector("[data-figure]");
        const index = place.data.findIndex((trace) => trace.meta?.own);
        await Plotly.restyle(place, { "line.color": "#9aa1a9", showlegend: true }, [index]);
    }""")
    stroke = "[...document.querySelectorAll('.js-line')].map((line) => line.style.stroke).join()"
    own = page.evaluate("document.querySelector('[data-figure]').data.find((trace) => trace.meta?.own).meta.own")
    rgb = f"rgb({', '.join(str(int(own[at : at + 2], 16)) for at in (1, 3, 5))})"
    count = f"{stroke}.split('{rgb}').length"
    before = page.evaluate(count)
    page.locator(".legend .traces").first.hover()
    wait_until(page, f"{count} > {before}")
    page.mouse.move(5, 5)
    wait_until(page, f"{count} === {before}")


def test_one_commit_is_shown_in_all_small_histories(visit: Visit) -> None:
    page = visit.open("/kernels/kron")
    pictures = page.locator("svg.multiple")
    assert pictures.count() > 1
    pictures.first.hover()
    expect(page.locator("[data-commit-at]")).to_have_text(re.compile("^[0-9a-f]{8}$"))
    places = {line.get_attribute("d") for line in page.locator("svg.multiple .cross").all()}
    assert len(places) == 1
    assert places != {""}


def test_a_click_on_a_point_goes_to_its_commit(visit: Visit, world: World) -> None:
    page = visit.open(HISTORY)
    box = points(page).nth(5).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tip = page.locator(".hoverlayer .hovertext")
    expect(tip).to_contain_text(world.shas[5][:8])
    expect(tip).to_contain_text("Raise the alignment of packed weights")
    expect(tip).to_contain_text("Second Author")
    expect(tip).to_contain_text("µs")
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_url(re.compile(f"/commits/{world.shas[5]}"))
    expect(page.locator("h1")).to_contain_text("Raise the alignment")


def test_lines_never_join_two_environments(visit: Visit) -> None:
    drawn = figure(visit.open(HISTORY))
    lines = [set(trace["x"]) for trace in drawn["data"] if trace["mode"] == "lines+markers"]
    assert len(lines) == 2
    assert max(lines[0]) < min(lines[1])
    notes = [note["text"] for note in drawn["layout"]["annotations"]]
    # The other note belongs to the band of the regression.
    assert [text for text in notes if "/regressions/" not in text] == ["driver 580.65.06"]
    names = {trace["name"] for trace in drawn["data"] if trace["mode"] == "markers"}
    assert {"wrong", "crashed", "timed out"} >= names >= {"wrong", "crashed"}


def test_a_chart_cannot_be_uploaded_and_can_be_saved_as_png(visit: Visit) -> None:
    page = visit.open(HISTORY)
    page.locator(".js-plotly-plot").hover()
    names = page.evaluate("[...document.querySelectorAll('.modebar-btn')].map((button) => button.dataset.title)")
    assert not [name for name in names if re.search("share|cloud|edit|upload|plotly", name, re.IGNORECASE)]
    assert page.evaluate("document.querySelector('[data-figure]')._context.plotlyServerURL") == ""
    with page.expect_download() as download:
        page.locator(".modebar-btn[data-title^='Download plot as a PNG']").click()
    assert download.value.suggested_filename == "warpwatch.png"
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")


def test_a_downloaded_chart_draws_from_its_file_without_network(
    visit: Visit, browser: Browser, tmp_path: Path, world: World
) -> None:
    page = visit.open(HISTORY)
    drawn = figure(page)
    with page.expect_download() as download:
        page.get_by_role("link", name="Download chart").click()
    assert download.value.suggested_filename == "history-figure.html"
    file = tmp_path / "history-figure.html"
    download.value.save_as(file)
    with browser.new_context(offline=True) as context:
        alone, requests, errors = context.new_page(), list[str](), list[str]()
        alone.on("request", lambda request: requests.append(request.url))
        alone.on("pageerror", lambda error: errors.append(str(error)))
        alone.goto(file.as_uri())
        expect(points(alone)).to_have_count(points(page).count())
        chart = "document.querySelector('.js-plotly-plot')"
        assert alone.evaluate(f"{chart}.data.map(({{ name, x, y }}) => [name, x, y])") == [
            [trace.get("name"), trace["x"], trace["y"]] for trace in drawn["data"]
        ]
        hover = alone.evaluate(f"{chart}.data.flatMap(({{ customdata }}) => customdata ?? []).map(String).join()")
        assert world.shas[5][:8] in hover
        alone.locator(".js-plotly-plot").hover()
        names = alone.evaluate("[...document.querySelectorAll('.modebar-btn')].map((button) => button.dataset.title)")
        assert [name.split()[0] for name in names] == ["Download", "Reset"], "none of them uploads the chart"
        assert (requests, errors) == ([file.as_uri()], [])


def test_switches_keep_each_other(visit: Visit) -> None:
    page = visit.open(HISTORY)
    page.get_by_label("log scale").check()
    page.wait_for_url(re.compile("scale=log"))
    visit.wait_for_charts()
    assert figure(page)["layout"]["yaxis"]["type"] == "log"
    page.get_by_label("v1", exact=True).check()
    page.wait_for_url(re.compile("variant=v1"))
    visit.wait_for_charts()
    assert {trace.get("name") for trace in figure(page)["data"]} >= {"v1", "v3"}
    assert "scale=log" in page.url
    page.get_by_label("Metric").select_option("call")
    page.wait_for_url(re.compile("metric=call"))
    visit.wait_for_charts()
    assert "variant=v1" in page.url


def test_the_shown_range_is_in_the_address_and_outlives_switches(visit: Visit) -> None:
    page = visit.open(HISTORY)
    whole = len(figure(page)["layout"]["meta"]["commits"])
    drag(page, 0.4, 0.7)
    page.wait_for_url(re.compile("from=[0-9a-f]{8}&to=[0-9a-f]{8}"))
    page.get_by_label("samples").check()
    page.wait_for_url(re.compile("samples=true"))
    visit.wait_for_charts()
    assert re.search("from=[0-9a-f]{8}&to=[0-9a-f]{8}", page.url)
    drawn = figure(page)
    low, high = drawn["layout"]["xaxis"]["range"]
    assert whole * 0.2 < high - low < whole * 0.4
    shown = [sha[:8] for place, sha, *_ in drawn["layout"]["meta"]["commits"] if low <= place <= high]
    rows = page.locator("section[aria-labelledby=points] tbody th").all_inner_texts()
    assert rows == shown[::-1]
    (strip,) = [trace for trace in drawn["data"] if trace.get("name") == "samples of v3"]
    assert all(low <= x <= high for x in strip["x"])
    page.locator(".nsewdrag").first.dblclick()
    page.wait_for_url(re.compile("^[^?]*[?](?!.*from=)"))


def test_a_view_is_saved_with_the_range_that_is_shown(visit: Visit) -> None:
    page = visit.open(HISTORY)
    drag(page, 0.5, 0.8)
    page.wait_for_url(re.compile("from="))
    shown = re.search("from=[0-9a-f]{8}&to=[0-9a-f]{8}", page.url)
    assert shown is not None
    page.get_by_text("Save view", exact=True).click()
    page.get_by_label("Name", exact=True).fill("the step of v3")
    page.get_by_role("button", name="Save", exact=True).click()
    page.wait_for_url(re.compile(shown[0]))
    visit.open("/overview")
    page.get_by_role("link", name="the step of v3").click()
    page.wait_for_url(re.compile(shown[0]))
    visit.open("/settings/repository?tab=views")
    page.get_by_role("button", name="Delete view the step of v3").click()
    expect(page.locator("main")).not_to_contain_text("the step of v3")


def test_heights_and_dates_are_chosen(visit: Visit) -> None:
    page = visit.open(HISTORY)
    page.get_by_label("Y axis").select_option("first")
    page.wait_for_url(re.compile("y=first"))
    visit.wait_for_charts()
    first = next(trace for trace in figure(page)["data"] if trace["mode"] == "lines+markers")
    assert first["y"][0] == 1.0
    page.get_by_label("X axis").select_option("date")
    page.wait_for_url(re.compile("x=date"))
    visit.wait_for_charts()
    assert "y=first" in page.url
    assert figure(page)["layout"]["xaxis"]["type"] == "date"


def test_the_theme_can_be_switched_and_is_kept(visit: Visit) -> None:
    page = visit.open(HISTORY)
    html, button = page.locator("html"), page.get_by_role("button", name="Theme")
    expect(html).to_have_attribute("data-theme-choice", "system")
    before = figure(page)["layout"]["font"]["color"]
    button.click()
    expect(html).to_have_attribute("data-theme-choice", "light")
    button.click()
    expect(html).to_have_attribute("data-theme", "dark")
    wait_until(page, f"document.querySelector('[data-figure]').layout.font.color !== '{before}'")
    page.reload()
    expect(html).to_have_attribute("data-theme", "dark")
    page.get_by_role("button", name="Theme: dark").click()
    expect(html).to_have_attribute("data-theme-choice", "system")
    page.emulate_media(color_scheme="dark")
    expect(html).to_have_attribute("data-theme", "dark")
    page.emulate_media(color_scheme="light")
    expect(html).to_have_attribute("data-theme", "light")


def test_the_overview_leads_to_history_and_operator(visit: Visit) -> None:
    page = visit.open("/overview?suite=quick")
    kron = page.locator("[data-operator=kron]")
    expect(page.locator("table.grid")).to_have_count(0)
    kron.locator("summary").click()
    expect(page.locator("table.grid tbody tr")).to_have_count(3)
    page.locator("table.grid td .cell-change a[data-regression]").first.click()
    page.wait_for_url(re.compile("/regressions/"))
    visit.open("/overview?suite=quick")
    kron.locator("a.statement").first.click()
    page.wait_for_url(re.compile("/regressions/"))
    visit.open("/overview?suite=quick")
    page.locator("details.shifts > summary").click()
    page.locator(".heat-map td a").last.click()
    page.wait_for_url(re.compile("/kernels/.*tab=commits"))
    visit.open("/overview?suite=quick")
    page.locator("select[name=device]").select_option(CPU.device_key)
    page.wait_for_url(re.compile(f"device={CPU.device_key}"))
    assert "suite=quick" in page.url
    kron.get_by_role("link", name="kron").click()
    expect(page.locator("table.heat")).to_contain_text("2.")


def test_the_overview_follows_what_is_measured(visit: Visit, world: World) -> None:
    """The seeded job runs on; when another job ends, the results are fetched again."""
    page = visit.open("/overview")
    expect(page.locator("#progress")).to_contain_text("bench square")
    page.evaluate("document.getElementById('results').dataset.old = 'yes'")
    job = submit(world, "check", COMMITS - 1, "kron", CPU.device_key)[0]
    with world.database.session() as s:
        order = runs.begin_run(s, job, world.workers[CPU.device_key])
        assert order is not None
        runs.finish_run(s, order.run_id, Outcome(CPU))
    expect(page.locator("#results:not([data-old])")).to_be_visible()


def test_the_keyboard_reaches_the_content(visit: Visit) -> None:
    page = visit.open("/overview")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()


# --- submitting -----------------------------------------------------------------------------------------------


def test_the_form_says_by_the_field_what_is_wrong_and_keeps_the_rest(visit: Visit, world: World) -> None:
    page = visit.open("/runs/new")
    page.get_by_label("Commit, branch or range").fill("no-such-branch")
    page.get_by_text("Operators, cases and further options").click()
    page.get_by_label("square").check()
    page.get_by_label("Variants").fill("v9")
    page.get_by_label("Priority").fill("77")
    page.get_by_role("button", name="Submit").click()
    expect(page.locator("#priority-error")).to_be_visible()
    expect(page.get_by_label("Commit, branch or range")).to_have_value("no-such-branch")
    page.get_by_label("Priority").fill("3")
    page.get_by_role("button", name="Submit").click()
    expect(page.locator("#commits-error")).to_contain_text("no-such-branch")
    expect(page.get_by_label("Commit, branch or range")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("square")).to_be_checked()
    expect(page.get_by_label("Variants")).to_have_value("v9")
    page.get_by_label("Commit, branch or range").fill("main~1..main")
    page.get_by_label("Variants").fill("v1\nv2")
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url(re.compile(r"/runs/\d+$"))
    # Three kinds on two devices, at the one commit of the range.
    expect(page.locator("section[aria-labelledby=jobs] tbody tr")).to_have_count(6)
    expect(page.locator("main")).to_contain_text(world.shas[COMMITS - 1][:8])
    visit.complaints = [line for line in visit.complaints if "422" not in line]


def test_a_commit_is_picked_and_its_jobs_are_counted(visit: Visit, world: World) -> None:
    page = visit.open("/runs/new")
    preview = page.locator("#preview")
    page.locator(".pick", has_text="main").click()
    expect(page.get_by_label("Commit, branch or range")).to_have_value("main")
    # Three kinds of three operators on two devices.
    expect(preview.locator("strong")).to_have_text("18 jobs")
    page.locator(".choice", has_text="Profile").click()
    expect(preview.locator("strong")).to_have_text("12 jobs")
    page.get_by_text("Operators, cases and further options").click()
    page.get_by_label("Variants").fill("v9")
    page.get_by_label("Cases").click()
    expect(preview).to_contain_text("v9")
    page.locator(".pick", has_text=world.shas[30][:8]).click()
    expect(page.get_by_label("Commit, branch or range")).to_have_value(world.shas[30])


def test_a_repository_is_registered_and_configured_on_the_web(visit: Visit, reader: httpx.Client, world: World) -> None:
    page = visit.open("/")
    page.get_by_text("Add repository").click()
    page.get_by_label("Name").fill("a copy")
    page.get_by_label("Path or URL").fill(str(world.source))
    page.get_by_role("button", name="Register").click()
    expect(page.locator("#name-error")).to_be_visible()
    expect(page.get_by_label("Path or URL")).to_have_value(str(world.source))
    page.get_by_label("Name").fill("copy")
    page.get_by_role("button", name="Register").click()
    page.wait_for_url(re.compile("/runs/new"))
    expect(page.locator(".pick", has_text="main")).to_be_visible()
    page = visit.open("/settings/repository?repository=copy")
    form = page.locator("form[action='/repositories/copy']")
    expect(form.get_by_label("Watched branch")).to_have_value("main")
    form.get_by_label("Webhook secret").fill("short")
    form.get_by_role("button", name="Save").click()
    expect(page.locator("#webhook_secret-error")).to_be_visible()
    page.locator("form[action='/repositories/copy']").get_by_label("Webhook secret").fill("0123456789abcdef")
    page.locator("form[action='/repositories/copy']").get_by_role("button", name="Save").click()
    page.wait_for_url(re.compile("/settings/repository"))
    row = next(row for row in reader.get("/api/v1/repositories").json()["items"] if row["name"] == "copy")
    assert (row["branch"], row["has_webhook_secret"]) == ("main", True)
    visit.complaints = [line for line in visit.complaints if "422" not in line]
    # Other tests look at a service of one repository.
    with world.database.session() as session:
        session.execute(text("DELETE FROM repositories WHERE name = 'copy'"))


def test_a_form_sent_twice_is_one_submission(reader: httpx.Client) -> None:
    form = {
        "nonce": "0123",
        "repository": "kernels",
        "commits": "main",
        "kinds": "check",
        "operators": "square",
        "device": "cpu",
    }
    first = reader.post("/runs/new", data=form)
    again = reader.post("/runs/new", data=form)
    other = reader.post("/runs/new", data=form | {"kinds": "bench"})
    assert first.status_code == again.status_code == other.status_code == 303
    assert first.headers["location"] == again.headers["location"] != other.headers["location"]


def test_a_submission_can_be_cancelled_and_retried(visit: Visit, world: World) -> None:
    job = submit(world, "check", 3, "kron", GPU.device_key)[0]
    with world.database.session() as s:
        found = read_job(s, job)
    assert found is not None
    page = visit.open(f"/runs/{found.job.submission_id}")
    jobs = page.locator("section[aria-labelledby=jobs] tbody")
    page.get_by_role("button", name="Cancel remaining").click()
    expect(jobs).to_contain_text("cancelled")
    page.get_by_role("button", name="Measure failed and cancelled again").click()
    expect(jobs).to_contain_text("queued")


# --- jobs -----------------------------------------------------------------------------------------------------


def test_a_job_is_followed_live(visit: Visit, world: World) -> None:
    job = submit(world, "bench", 5, "square", GPU.device_key)[0]
    page = visit.open(f"/jobs/{job}")
    expect(page.locator("#state .badge").first).to_have_text("queued")
    page.evaluate("window.stays = true")
    with world.database.session() as s:
        order = runs.begin_run(s, job, world.workers[GPU.device_key])
        assert order is not None
        runs.append_log(s, order.run_id, "building square <1/2>\n")
    expect(page.locator("[data-log]")).to_contain_text("building square <1/2>")
    with world.database.session() as s:
        runs.append_log(s, order.run_id, "v1: 13.4 µs\n")
        runs.set_progress(s, order.run_id, 1, 4, "v1 n=512x512,f32,fwd")
    expect(page.locator("[data-log]")).to_have_text("building square <1/2>\nv1: 13.4 µs\n")
    expect(page.locator("#state progress")).to_have_attribute("value", "1")
    case = OPERATORS[1].cases[1][0]
    with world.database.session() as s:
        runs.finish_run(s, order.run_id, Outcome(GPU, findings=[Finding("v1", case, Status.CRASHED, "it fell over")]))
    expect(page.locator("#state .badge").first).to_have_text("could not run")
    expect(page.locator("#state tbody")).to_contain_text(stored("it fell over"))
    assert page.evaluate("window.stays"), "the page was loaded again"
    assert page.locator("[data-log]").inner_text().count("v1: 13.4 µs") == 1


def test_a_log_that_the_server_tells_again_is_not_written_twice(visit: Visit, world: World) -> None:
    page = visit.open(f"/jobs/{world.ids['running_job']}")
    with world.database.session() as s:
        runs.append_log(s, world.ids["running_run"], "v2 n=512x512,f32,fwd: 86.6 µs\n")
    expect(page.locator("[data-log]")).to_contain_text("86.6 µs")
    assert page.locator("[data-log]").inner_text().count("building square") == 1


def test_a_job_can_be_cancelled_and_run_again(visit: Visit, world: World) -> None:
    job = submit(world, "check", 4, "kron", GPU.device_key)[0]
    page = visit.open(f"/jobs/{job}")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#state .badge").first).to_have_text("cancelled")
    page.get_by_role("button", name="Measure again").click()
    expect(page.locator("#state .badge").first).to_have_text("queued")
    with world.database.session() as s:
        found = read_job(s, job)
    assert found is not None
    assert found.job.state == "queued"


def test_the_queue_follows_by_itself(visit: Visit, world: World) -> None:
    page = visit.open("/runs/jobs?state=queued")
    job = submit(world, "check", 6, "kron", GPU.device_key)[0]
    expect(page.get_by_role("link", name=f"#{job}", exact=True).first).to_be_visible()
    expect(page.locator("tbody tr:not(.group)").first).to_contain_text("ahead")


def test_a_table_that_is_fetched_anew_stays_where_it_was_moved(visit: Visit) -> None:
    visit.page.set_viewport_size({"width": 390, "height": 844})
    page = visit.open("/runs/jobs")
    page.locator(".scroll").last.evaluate("table => { table.scrollLeft = 120; table.dataset.old = 'yes'; }")
    expect(page.locator(".scroll[data-old]")).to_have_count(0)
    wait_until(page, "[...document.querySelectorAll('.scroll')].at(-1).scrollLeft === 120")


# --- regressions and traces -----------------------------------------------------------------------------------


def test_what_people_make_of_a_regression_is_kept(visit: Visit, world: World) -> None:
    page = visit.open(f"/regressions/{world.ids['slower']}")
    expect(page.locator("[data-figure='regression-history']")).to_have_count(1)
    page.get_by_role("form", name="Triage").locator("summary").click()
    page.get_by_label("Note").fill("Correctness <first>.")
    page.get_by_role("button", name="Accept").click()
    expect(page.locator("#author-error")).to_contain_text("Enter your name")
    expect(page.get_by_label("Note")).to_have_value("Correctness <first>.")
    visit.complaints.clear()
    page.get_by_role("form", name="Triage").get_by_label("Sign as").fill("Fourth Author")
    page.get_by_role("button", name="Accept").click()
    expect(page.locator("ol.list li").first).to_contain_text("Correctness <first>.")
    expect(page.locator(".head .badge").first).to_have_text("accepted")


def test_a_whole_event_is_given_to_somebody(visit: Visit, world: World, reader: httpx.Client) -> None:
    page = visit.open("/regressions?operator=kron&state=any")
    row = page.locator("tbody tr", has_text="kron, square")
    # The list stands before what is common is told.
    expect(page.locator("#whole[hx-get]")).to_have_count(0)
    row.locator("summary").click()
    row.get_by_role("link", name="kron", exact=True).last.click()
    page.wait_for_url(re.compile(r"/regressions/\d+"))
    visit.wait_for_charts()
    page.get_by_role("form", name="Triage").locator("summary").click()
    boxes = page.get_by_role("group", name="Apply to other regressions of this event").get_by_role("checkbox")
    assert boxes.count() == 3
    for box in boxes.all():
        box.check()
    page.get_by_label("Assignee").fill("Fifth Author")
    page.get_by_label("Due").fill("2031-03-31")
    page.get_by_role("form", name="Triage").get_by_label("Sign as").fill("Fourth Author")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("ol.list li").first).to_contain_text("assignee: none → Fifth Author")
    page = visit.open("/regressions?state=any&assignee=Fifth+Author")
    expect(page.locator("tbody tr").first).to_contain_text("due 2031-03-31")
    found = reader.get("/api/v1/regressions?repository=kernels&assignee=Fifth+Author").json()["items"]
    assert len(found) == 4


def test_a_command_can_be_copied(visit: Visit, world: World) -> None:
    visit.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = visit.open(f"/regressions/{world.ids['slower']}")
    page.get_by_role("button", name="Copy replay command").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()").startswith("warpwatch submit --repository kernels --commit ")


def test_a_trace_opens_in_the_embedded_viewer(visit: Visit) -> None:
    refused: list[str | None] = []
    visit.page.on(
        "requestfailed",
        lambda request: refused.append(request.failure) if "perfetto-ui-internal" in request.url else None,
    )
    page = visit.open("/traces/1")
    expect(page.locator("svg.timeline")).to_be_visible()
    assert page.locator("iframe").count() == 0
    page.get_by_text("Open in Perfetto").click()
    viewer = page.frame_locator("iframe.viewer")
    expect(viewer.locator(".pf-track__title", has_text="python").first).to_be_visible(timeout=60_000)
    assert refused == ["csp"], "the viewer's outside script is stopped before it is asked for"
    frame = next(frame for frame in page.frames if "/perfetto/" in frame.url)
    counted = frame.evaluate(
        "app.trace.engine.query(\"select count(*) as n from slice where name = 'aten::square'\")"
        ".then(r => r.firstRow({n: 0}).n)"
    )
    assert counted == 3


def test_a_downloaded_trace_is_a_chrome_trace(visit: Visit) -> None:
    page = visit.open("/traces/1")
    texts = []
    for name, unpack in ((re.compile(r"Download \.json"), bytes), (re.compile(r"^\.json\.gz"), gzip.decompress)):
        with page.expect_download() as download:
            page.get_by_role("link", name=name).click()
        texts.append(unpack(Path(download.value.path()).read_bytes()))
    assert texts[0] == texts[1]
    events = json.loads(texts[0])["traceEvents"]
    assert {event["ph"] for event in events} >= {"X", "M"}
    assert sum(event.get("name") == "aten::square" for event in events) == 3
