"""The report in a real browser: time to open, no errors, no requests, filters, comparison, keyboard; text stays text."""

import json
import re
import time

import pytest
from playwright.sync_api import expect

from omnirl.runtime.report import write_report
from tests.media.corpus_video import encode
from tests.track.synthetic_run import make_run

pytestmark = pytest.mark.engines

CHROMIUM = "/usr/bin/chromium"
EVIL = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>\ud800"


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser):
    """Open a file: the page, and what it asked for or complained about."""
    contexts = []

    def open_(path, **options):
        contexts.append(browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options}))
        page = contexts[-1].new_page()
        page.problems = []
        page.on("console", lambda message: page.problems.append(message.text))
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on("request", lambda request: page.problems.append(request.url) if not request.url.startswith("data:") else None)
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]")
        assert page.problems.pop(0) == path.as_uri()
        return page

    yield open_
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write_report(make_run(tmp_path_factory.mktemp("page") / "run", steps=40, samples_every=10))


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    return write_report(*(make_run(folder / name, steps=30, samples_every=10, seed=i) for i, name in enumerate("ab")))


def test_a_long_run_is_small_and_opens_quickly(tmp_path, open_page):
    """500 steps × 64 samples."""
    path = write_report(make_run(tmp_path / "run", steps=500, samples_every=1, groups=8, group_size=8, pictures=64))
    assert path.stat().st_size <= 15e6
    open_page(path)  # the browser's own start
    start = time.perf_counter()
    page = open_page(path)
    page.locator("#filter-text").fill("crimson")
    seconds = time.perf_counter() - start
    interactive = page.evaluate("performance.getEntriesByType('navigation')[0].domInteractive")
    print(f"{path.stat().st_size / 1e6:.1f} MB, interactive after {interactive:.0f} ms, typed after {seconds:.2f} s")
    assert interactive <= 2000
    assert page.locator("#browser > p").inner_text().endswith("of 32,000 completions")
    assert page.problems == []


@pytest.mark.parametrize(("width", "height", "scheme"), [(1400, 900, "light"), (390, 844, "dark")])
def test_nothing_is_wider_than_the_screen(report, open_page, width, height, scheme):
    page = open_page(report, viewport={"width": width, "height": height}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    for chart in page.locator(".plot").all()[:3]:
        chart.scroll_into_view_if_needed()
    page.wait_for_selector(".plot svg path.line")
    assert page.problems == []


def test_a_clip_is_shown_with_its_times(tmp_path, open_page):
    run = make_run(tmp_path / "run", steps=2, samples_every=1, groups=1)
    encode(tmp_path / "clip.mp4")
    medium = {"path": str(tmp_path / "clip.mp4"), "kind": "video", "height": 48, "width": 64, "tokens": 60}
    medium |= {"frames": list(range(0, 30, 2)), "times_ms": list(range(0, 3000, 200))}
    for file in (run / "samples").iterdir():
        file.write_text("".join(json.dumps(json.loads(line) | {"media": [medium]}) + "\n" for line in file.open()))
    page = open_page(write_report(run))
    film = page.locator("figure.film").first
    film.scroll_into_view_if_needed()
    expect(film.locator("img")).to_have_js_property("naturalWidth", 8 * 98 - 2)
    assert film.locator(".times").inner_text().split() == ["0.00", "0.40", "0.80", "1.20", "1.60", "2.00", "2.40", "2.80"]
    assert film.locator("figcaption").inner_text() == "8 of 15 frames, times in seconds · 64×48, 60 tokens"
    film.locator("button").click()
    expect(page.locator("#viewer p")).to_contain_text("0.00 s, 0.40 s")
    assert page.problems == []


def test_filters(report, open_page):
    page = open_page(report)
    count = page.locator("#browser > p")
    assert count.inner_text() == "8 groups, 32 of 32 completions"
    page.locator("#filter-step").select_option("10")
    assert count.inner_text() == "2 groups, 8 of 32 completions"
    page.locator("#filter-step").select_option("")
    page.locator("#filter-min").fill("1")
    expect(count).not_to_contain_text("32 of 32")
    assert set(page.locator("#browser .chip").all_inner_texts()) == {"1"}
    page.locator("#filter-min").fill("")
    page.locator("#filter-text").fill("CRIMSON")
    page.wait_for_selector("#browser mark")
    assert {text.lower() for text in page.locator("#browser mark").all_inner_texts()} == {"crimson"}
    page.locator("#filter-prompt").fill("no such prompt")
    expect(count).to_contain_text("0 groups")
    assert page.problems == []


def test_curves(report, open_page):
    page = open_page(report)
    plot = page.locator('figure[data-metrics="rollout/reward_mean"] .plot')
    plot.scroll_into_view_if_needed()
    plot.locator("path.line").first.wait_for()
    plot.hover()
    assert re.search(r"step [12]\d\s*rollout/reward_mean\s*0\.\d+", plot.locator(".tip").inner_text())
    plot.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert "step 2" in plot.locator(".tip").inner_text()
    page.keyboard.press("+")
    assert page.get_by_role("button", name="Reset zoom").is_enabled()
    page.get_by_role("button", name="Reset zoom").click()
    assert page.get_by_role("button", name="Reset zoom").is_disabled()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 90)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 90)
    page.mouse.up()
    assert page.get_by_role("button", name="Reset zoom").is_enabled()
    page.get_by_label("Smoothing").fill("0.6")
    assert plot.locator("path.faint").count() == 1
    page.get_by_label("Log scale").check()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    lines = download.value.path().read_text().splitlines()
    assert lines[0] == "run,phase,metric,step,value"
    assert [line for line in lines if line.startswith('"run",policy,"eval/accuracy",40,')]
    page.get_by_role("button", name="Light or dark").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert [text for text in page.problems if not text.startswith("blob:")] == []


def test_a_comparison(comparison, open_page):
    page = open_page(comparison)
    table = page.locator("#comparison table").inner_text()
    assert "trainer.lr" in table
    assert "recipe_name" not in table
    plot = page.locator('figure[data-metrics="rollout/reward_mean"] .plot')
    plot.scroll_into_view_if_needed()
    plot.locator("path.line").first.wait_for()
    assert plot.locator("path.line").count() == 2
    assert plot.locator("path.dash").count() == 1
    assert "prompts that both runs have" in page.locator("#browser > p").inner_text()
    assert page.locator("#browser .pair").first.locator("> div").count() == 2
    page.locator("#filter-run").select_option("1")
    assert page.locator("#browser .group").first.inner_text().find("B · step") >= 0
    assert page.problems == []


def test_what_a_model_wrote_does_not_run(tmp_path, open_page):
    run = make_run(tmp_path / "run", steps=4, samples_every=2, warmup=2)
    for file in (run / "samples").iterdir():
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            row |= {"prompt_id": EVIL, "answer": EVIL, "rendered": EVIL, "messages": [{"role": EVIL, "parts": [0, EVIL]}]}
            row["media"][0]["path"] = EVIL
            row["completions"] = [
                {**c, "text": EVIL, "stop_reason": EVIL, "error": EVIL, "parts": {EVIL: 1.0}} for c in row["completions"]
            ]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"state": "failed", "error": EVIL, "command": [EVIL]}))
    page = open_page(write_report(run))
    page.locator("#filter-text").fill("<script>")
    page.wait_for_selector("#browser mark")
    page.locator("details summary").first.click()
    assert page.evaluate("window.hacked") is None
    assert page.locator("#browser img, #browser script").count() == 0
    assert "cannot read" in page.locator(".absent").first.inner_text()
    assert page.problems == []


def test_values_that_are_not_finite_are_marked(tmp_path, open_page):
    run = make_run(tmp_path / "run", steps=10, samples_every=5, warmup=2)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    lines[4] = json.dumps(json.loads(lines[4]) | {"train/loss": None})
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    page = open_page(write_report(run))
    figure = page.locator('figure[data-metrics^="train/loss"]')
    figure.scroll_into_view_if_needed()
    figure.locator("path.line").first.wait_for()
    assert figure.locator("text.hole title").text_content() == "train/loss is not finite at step 4"
    assert figure.locator("path.line").first.get_attribute("d").count("M") == 2
    assert page.problems == []
