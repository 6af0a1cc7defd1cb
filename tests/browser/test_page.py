"""The page in a real browser."""

from __future__ import annotations

import io
import json
import signal
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from pages import CURVES, ENDED, MAPPED, free_port, go, heard, holds, hooked, serving, typed, until
from PIL import Image
from playwright.sync_api import expect

from flatmin.lab.engine import follow, ground_of
from flatmin.lab.scenes import SCENES
from flatmin.lab.settings import address, from_address, setting_of
from flatmin.lab.tables import Tables
from lab_settings import EDGE, PLAIN, like

TABLE = Path(__file__).parents[2] / "examples" / "gaussian.csv"


def ink(page, hook):
    """The share of a plot's pixels that are not its most frequent colour, and its colours."""
    box = hooked(page, hook)
    picture = np.asarray(Image.open(io.BytesIO(box.screenshot())).convert("RGB")).reshape(-1, 3)
    _, counts = np.unique(picture, axis=0, return_counts=True)
    return 1.0 - counts.max() / len(picture), len(counts)


def drawn(page, *hooks):
    """Wait until plots are more than empty axes."""
    for hook in hooks:
        holds(lambda hook=hook: ink(page, hook)[0] > 0.01 and ink(page, hook)[1] > 10, hook)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_every_scene_plays_to_its_end(page, scene):
    hooked(page, f"scene-{scene.name}").click()
    until(page, f"window.lab.state.view.scene === '{scene.name}' && !window.lab.waiting.a")
    until(page, ENDED)
    until(page, MAPPED)
    tables = Tables()
    pieces = list(follow(ground_of(setting_of(scene.settings), tables)))
    tables.close()
    shown = json.loads(page.evaluate(CURVES))
    assert shown["sharpness"] == [v for p in pieces for v in p.columns["sharpness"].tolist()]
    drawn(page, "sharpness-plot", "risk-plot", "map", "panel-plot")
    assert hooked(page, "status").inner_text().startswith(("Learned", "Did not learn"))


def test_slider_to_map_to_click_to_run(page):
    before = page.evaluate(CURVES)
    first = page.evaluate("window.lab.mapId")
    rate = hooked(page, "rate")
    rate.focus()
    for _ in range(20):
        rate.press("ArrowLeft")
    until(page, f"window.lab.mapId > {first}")
    until(page, MAPPED)
    assert page.evaluate(CURVES) != before
    box = hooked(page, "map").bounding_box()
    number = page.evaluate("window.lab.run.id")
    page.mouse.click(box["x"] + 0.4 * box["width"], box["y"] + 0.5 * box["height"])
    until(page, f"window.lab.run.id > {number} && !window.lab.waiting.a")
    until(page, f"{ENDED} && {MAPPED}")
    found = page.evaluate(
        "(() => { const { map, settings, run } = window.lab;"
        "const i = map.plan.rates.indexOf(settings.method.learning_rate);"
        "const j = map.plan.values.indexOf(settings.initialisation.scale);"
        "return [i, j, map.plan.states[map.pixels.state[j][i]], run.end.state] })()"
    )
    assert found[0] >= 0
    assert found[1] >= 0
    assert found[2] == found[3]  # the pixel's colour is how the run ends


def test_dragging_a_slider_shows_the_run_at_every_place(page):
    box = hooked(page, "depth").bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.25 * box["width"], y)
    page.mouse.down()
    frames = page.evaluate("window.lab.frames")
    for place in range(25, 10, -1):
        page.mouse.move(box["x"] + place / 100 * box["width"], y)
    page.mouse.up()
    until(page, f"window.lab.frames > {frames} && !window.lab.waiting.a")
    depth = page.evaluate("window.lab.settings.architecture.depth")
    assert 1 <= depth < 10
    assert page.evaluate("window.lab.run.facts.depth") == depth


def test_a_shared_address_shows_the_same_numbers_elsewhere(page, opened):
    hooked(page, "scene-catapult").click()
    until(page, "window.lab.state.view.scene === 'catapult'")
    until(page, ENDED)
    hooked(page, "share").click()
    shared = page.evaluate("navigator.clipboard.readText()")
    assert unquote(shared).count("changes=[[40,0.08]]") == 1
    other = opened(shared)
    until(other, ENDED)
    assert other.evaluate(CURVES) == page.evaluate(CURVES)
    assert hooked(other, "status").inner_text() == hooked(page, "status").inner_text()
    assert other.evaluate("window.lab.state.view") == page.evaluate("window.lab.state.view")


def test_addresses_are_the_same_in_the_page_and_in_python(page):
    content = EDGE | {"problem": {"file": "ab-my data.csv", "target": "7", "drop": ["a&b", "ü"]}}
    text = page.evaluate(
        "async (content) => (await import('/static/state.js')).address(content)", content
    )
    back = page.evaluate(
        "async (text) => (await import('/static/state.js')).fromAddress(text)", address(content)
    )
    assert from_address(text) == content
    assert back == content


@pytest.mark.parametrize("damaged", ["seed=%E0%A4%A&problem.paper=linear", "problem=5"])
def test_a_damaged_address_is_told_and_the_page_opens(opened, damaged):
    page = opened(f"{opened.lab}#{damaged}")
    assert page.locator("#toast").text_content().startswith("The address is damaged: ")
    until(page, ENDED)
    assert page.evaluate("window.lab.state.view.scene") == "edge"


def test_pause_step_and_a_new_rate_in_the_middle(page):
    hooked(page, "scene-edge").click()
    until(page, "window.lab.state.view.scene === 'edge' && !window.lab.waiting.a")
    page.evaluate("window.lab.faster(-4)")
    hooked(page, "run").click()
    until(page, "!window.lab.waiting.a && window.lab.run.count > 20 && window.lab.playing")
    hooked(page, "pause").click()
    until(page, "!window.lab.playing")
    heard(page)
    count = page.evaluate("window.lab.run.count")
    assert count < 400
    hooked(page, "step").click()
    until(page, f"window.lab.run.count === {count + 1}")
    before = page.evaluate(CURVES)
    typed(page, "rate-number", "0.1")
    until(page, "window.lab.settings.changes?.length === 1 && !window.lab.playing")
    heard(page)
    until(page, f"window.lab.run.count === {count + 1}")
    page.evaluate("window.lab.faster(9)")
    hooked(page, "pause").click()
    until(page, ENDED)
    after, held = json.loads(page.evaluate(CURVES)), json.loads(before)
    step = page.evaluate("window.lab.settings.changes[0][0]")
    assert step == count
    assert after["sharpness"][: count + 1] == held["sharpness"]
    assert after["edge"][count] == pytest.approx(2 / 0.07)
    assert after["edge"][count + 1] == pytest.approx(2 / 0.1)


def test_fork_compares_two_rates(page):
    scrub = hooked(page, "scrub")
    scrub.evaluate("(e) => { e.value = 31; e.dispatchEvent(new Event('input')) }")
    hooked(page, "fork").click()
    until(page, "window.lab.runs.b?.end")
    typed(page, "rate-number", "0.1")
    until(page, "window.lab.runs.b.end && window.lab.state.b.changes?.[0][0] === 30")
    until(page, "!window.lab.waiting.b && window.lab.runs.b.columns.edge.at(-1) < 21")
    runs = json.loads(page.evaluate("JSON.stringify(window.lab.runs)"))
    a, b = (runs[slot]["columns"]["sharpness"] for slot in "ab")
    assert a[:31] == b[:31]
    assert a[50] != b[50]
    page.locator("#close-b").click()
    until(page, "!window.lab.runs.b")


def test_undo_and_redo(page):
    for value in ("0.05", "0.03"):
        typed(page, "rate-number", value)
        until(page, f"window.lab.settings.method.learning_rate === {value}")
        until(page, "!window.lab.waiting.a")
    rates = []
    for button in ("undo", "undo", "redo"):
        page.locator(f"#{button}").click()
        until(page, "!window.lab.waiting.a")
        rates.append(page.evaluate("window.lab.settings.method.learning_rate"))
    assert rates == [0.05, 0.07, 0.05]
    expect(page.locator("#rate-number")).to_have_value("0.05")


def test_python_and_command_are_copied(page):
    copied = "navigator.clipboard.readText()"
    for hook, begin in (("copy-python", "import flatmin"), ("copy-command", "flatmin train ")):
        page.locator("#take summary").click()
        hooked(page, hook).click()
        holds(lambda begin=begin: page.evaluate(copied).startswith(begin), begin)


@pytest.mark.parametrize(
    ("hook", "begin"), [("save-png", b"\x89PNG"), ("save-svg", b"<svg"), ("save-csv", b"step,")]
)
def test_what_is_on_the_screen_can_be_saved(page, hook, begin):
    page.locator("#take summary").click()
    with page.expect_download() as download:
        hooked(page, hook).click()
    content = Path(download.value.path()).read_bytes()
    assert content.startswith(begin)
    assert len(content) > 10_000
    if hook == "save-png":
        picture = np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).reshape(-1, 3)
        assert len(np.unique(picture, axis=0)) > 100


def test_good_and_bad_tables(page, tmp_path):
    hooked(page, "file").set_input_files(TABLE)
    until(page, "window.lab.run.facts.n === 50 && window.lab.settings.problem.target === 'y'")
    until(page, ENDED)
    assert hooked(page, "target").locator("option").count() == 6
    bad = tmp_path / "bad.csv"
    bad.write_text("x,y\n1,dog\n2,cat\n")
    hooked(page, "file").set_input_files(bad)
    until(page, "document.querySelector('#status').textContent.startsWith('bad.csv: ')")
    wrong = tmp_path / "picture.png"
    wrong.write_bytes(b"\x89PNG")
    with page.expect_response("**/api/table*") as answer:
        hooked(page, "file").set_input_files(wrong)
    assert answer.value.status == 422
    until(page, "/unsupported suffix/.test(document.querySelector('#status').textContent)")
    hooked(page, "scene-edge").click()
    until(page, ENDED)


def test_a_wrong_number_is_answered_in_words(page):
    typed(page, "steps", "0")
    words = "the page: method.steps must be a whole number of at least 1, got 0"
    until(page, f"document.querySelector('#status').textContent === {words!r}")


def test_two_tabs_do_not_disturb_each_other(opened):
    first, second = opened(), opened()
    hooked(first, "scene-above").click()
    hooked(second, "scene-sharpening").click()
    for page, name in ((first, "above"), (second, "sharpening")):
        until(page, f"window.lab.state.view.scene === '{name}'")
        until(page, ENDED)
        until(page, MAPPED)
    assert "Oscillates" in hooked(first, "status").inner_text()
    assert "Settled" in hooked(second, "status").inner_text()


def test_the_page_comes_back_when_the_server_does(opened):
    port = free_port()
    with serving(port) as server:
        page = opened(f"http://127.0.0.1:{port}/", errors=False)
        until(page, ENDED)
        before = page.evaluate(CURVES)
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=30) == 130
    until(page, "document.body.dataset.connected === 'false'")
    with serving(port):
        until(page, "document.body.dataset.connected === 'true'")
        until(page, "!window.lab.waiting.a")
        until(page, ENDED)
        assert page.evaluate(CURVES) == before


def test_a_table_of_the_command_line_opens_the_page(opened):
    port = free_port()
    with serving(port, TABLE, "--target", "y", "--intercept"):
        page = opened(f"http://127.0.0.1:{port}/")
        until(page, ENDED)
        facts = page.evaluate("window.lab.run.facts")
        assert (facts["n"], facts["d"]) == (50, 5)
        assert page.evaluate("window.lab.settings.problem.intercept") is True


def test_the_map_by_keyboard(page):
    hooked(page, "map").focus()
    for key in ("ArrowLeft", "ArrowLeft", "ArrowDown"):
        hooked(page, "map").press(key)
    assert hooked(page, "map-text").inner_text().startswith("η ")
    rate = page.evaluate("window.lab.map.xs[window.lab.map.cursor.i]")
    hooked(page, "map").press("Enter")
    until(page, f"window.lab.settings.method.learning_rate === {rate}")
    until(page, ENDED)


def test_panels(page):
    for tab in ("eigenvalues", "layers", "orbits"):
        hooked(page, f"tab-{tab}").click()
        until(page, "document.querySelector('#panel-plot').data?.length > 0")
        drawn(page, "panel-plot")
    hooked(page, "tab-orbits").focus()
    page.keyboard.press("ArrowLeft")
    until(page, "document.querySelectorAll('#panel-table tbody tr').length > 15")
    link = page.locator("#panel-table a").first
    place = link.get_attribute("href")
    assert place.startswith("/statements/")
    answer = page.request.get(page.evaluate(f"new URL('{place}', location.href).href"))
    assert link.inner_text() in answer.text()


@pytest.mark.parametrize(
    "content",
    [
        like(PLAIN, repetitions=100),
        like(PLAIN, architecture__activation="tanh", architecture__biases=True, method__steps=20),
        like(PLAIN, problem={"generator": "gaussian", "targets": 2, "n": 30, "d": 4}),
        like(PLAIN, method__name="heavy-ball", method__momentum=0.5),
        like(PLAIN, method={"name": "flow", "steps": 200}),
    ],
    ids=["ensemble", "activation", "outputs", "momentum", "flow"],
)
def test_every_kind_of_run_by_its_address(page, content):
    """What the form can ask for, it shows; and the page shows the numbers of the engine."""
    go(page, address(content))
    until(page, ENDED)
    tables = Tables()
    pieces = list(follow(ground_of(setting_of(content), tables)))
    tables.close()
    shown = json.loads(page.evaluate(CURVES))
    for name in ("excess_risk", "sharpness"):
        values = [v for p in pieces for v in p.columns[name].tolist()]
        assert shown[name] == [v if np.isfinite(v) else None for v in values]
    drawn(page, "sharpness-plot", "risk-plot")


def test_settings_by_the_form(page):
    """Fields that no other test touches, each through the page's own controls."""
    hooked(page, "init").select_option("gaussian")
    until(page, "window.lab.settings.architecture.kind === 'mlp'")
    hooked(page, "activation").select_option("tanh")
    hooked(page, "biases").check()
    until(page, f"window.lab.settings.architecture.biases && {ENDED}")
    assert page.evaluate("window.lab.run.facts.ceiling") is None
    hooked(page, "biases").uncheck()
    hooked(page, "activation").select_option("linear")
    hooked(page, "data").select_option("gaussian")
    typed(page, "n", "40")
    typed(page, "targets", "2")
    until(page, f"window.lab.run.facts.targets === 2 && window.lab.run.facts.n === 40 && {ENDED}")
    hooked(page, "data").select_option("spectrum")
    typed(page, "condition", "7")
    until(page, f"Math.abs(window.lab.run.facts.condition_number - 7) < 1e-6 && {ENDED}")
    hooked(page, "method").select_option("nesterov")
    hooked(page, "networks").select_option("20")
    until(page, f"window.lab.run.columns.sharpness_high && {ENDED}")
    until(page, MAPPED)
    for axis in ("depth", "condition_number"):
        hooked(page, "map-axis").select_option(axis)
        until(page, f"window.lab.map.plan.axis === '{axis}' && {MAPPED}")
    hooked(page, "map-colour").select_option("ratio")
    drawn(page, "map")
    # A plan of other rows has come, and its pixels have not: nothing to draw, and no error.
    page.evaluate("window.lab.map.begin({ ...window.lab.map.plan, values: [] })")
    page.evaluate("window.lab.map.draw()")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling(opened, scheme):
    page = opened(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= 390
    for hook in ("sharpness-plot", "risk-plot", "map"):
        box = hooked(page, hook).bounding_box()
        assert box["height"] > 150
        assert box["width"] > 300
    dark = page.evaluate("document.documentElement.dataset.theme")
    assert dark == scheme


def test_everything_can_be_reached_and_named(page):
    """Every control has a name for those who hear the page."""
    nameless = page.evaluate(
        "[...document.querySelectorAll('button, input, select')].filter((one) => "
        "!(one.textContent.trim() || one.labels?.length || one.getAttribute('aria-label')))"
        ".map((one) => one.id)"
    )
    assert nameless == []
