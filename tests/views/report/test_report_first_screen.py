"""The first screen of the page answers; a link restores what was chosen; the heat map names its tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_up_report as made
import pytest
from page_in_browser import PHONE, WIDE, Opened, Seen, needs_browser, opener
from report_in_browser import value_of

from abbe.studies import HeadPattern, HeadVerdict, Report

pytestmark = needs_browser

PATTERNS = {(1, 2): (HeadPattern("induction head", "Induction <b>it is</b>.", "enough <i>weight</i>"),)}
HEALTHY = tuple(
    HeadVerdict(
        layer, head, "fading" if head == 3 and layer else "sharp", "s", "r", {}, PATTERNS.get((layer, head), ())
    )
    for layer, head in made.grid(3, 4)
)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plausible report with all three things to do."""
    manifest = made.MANIFEST | {"settings": made.MANIFEST["settings"] | {"windows": 4}}
    report = made.report(made.grid(3, 4), heads=HEALTHY, manifest=manifest)
    assert len(report.next_steps()) == 3
    return made.page_file(report, tmp_path_factory.mktemp("healthy"))


@pytest.fixture(scope="module")
def healthy_page(browser: Any, healthy: Path) -> Iterator[Seen]:
    with opener(browser, healthy) as open_page:
        yield open_page().ready()


def bottom(seen: Seen, place: str) -> float:
    seen.page.evaluate("window.scrollTo(0, 0)")
    return max(box["y"] + box["height"] for one in seen.page.locator(place).all() if (box := one.bounding_box()))


# -- The first screen -------------------------------------------------------------------------------------------------


def test_answer_things_to_do_and_numbers_are_on_the_first_screen(healthy_page: Seen) -> None:
    seen = healthy_page
    assert (
        " ".join(seen.text("#answer-sentence").split())
        == "Healthy: 10 of 12 heads select; 2 to look at: layer 1, head 3; layer 2, head 3."
    )
    assert seen.page.locator(".answer .sign").get_attribute("aria-label") == "good"
    assert seen.page.locator(".steps li").count() == 3
    assert seen.page.locator(".cards li").count() == 5
    assert bottom(seen, ".cards") < WIDE["height"]
    seen.quiet()


@pytest.mark.slow
def test_numbers_are_on_the_second_screen_of_a_phone(opened: Opened, healthy: Path) -> None:
    phone = opened("dark", PHONE, healthy).ready()
    assert bottom(phone, ".cards") < 2 * PHONE["height"]
    phone.page.locator(".cards summary").first.click()
    assert phone.page.get_by_text("So many tokens share the weight").is_visible()
    phone.quiet()


@pytest.mark.slow
def test_the_rule_is_one_click_away_and_heads_are_buttons(opened: Opened, healthy: Path) -> None:
    seen = opened(other=healthy).ready()
    rule = seen.page.locator(".answer details p")
    assert not rule.is_visible()
    seen.page.locator(".answer summary").click()
    assert rule.inner_text().startswith("At least 80 % of the heads are sharp, selective or sinks")
    seen.page.locator("#answer-sentence").get_by_role("button", name="layer 2, head 3").click()
    assert seen.text("#head-name") == "Layer 2, head 3"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "grade", "sign"), [("sharp", "good", "✓"), ("fading", "look", "!"), ("uniform", "bad", "✕")]
)
def test_grades_differ_without_colours(opened: Opened, tmp_path: Path, kind: str, grade: str, sign: str) -> None:
    heads = tuple(replace(head, kind=kind) for head in HEALTHY)
    seen = opened(other=made.page_file(made.report(made.grid(3, 4), heads=heads), tmp_path)).ready()
    assert seen.text(".answer .sign") == sign
    assert grade in str(seen.page.locator(".answer").get_attribute("class"))
    borders = {"good": "solid", "look": "dashed", "bad": "double"}
    assert seen.colour(seen.page.locator(".answer"), "borderTopStyle") == borders[grade]


@pytest.mark.slow
def test_a_command_can_be_copied(opened: Opened, healthy: Path) -> None:
    seen = opened(other=healthy, permissions=["clipboard-read", "clipboard-write"]).ready()
    button = seen.page.locator("button.copy").first
    button.click()
    seen.page.wait_for_function("document.querySelector('button.copy').textContent !== 'copy'")
    if button.inner_text() == "copied":
        assert seen.page.evaluate("navigator.clipboard.readText()") == seen.text(".steps code >> nth=0")
    else:
        assert seen.page.evaluate("getSelection().toString()") == seen.text(".steps code >> nth=0")


# -- Temperatures and columns -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_temperatures_have_a_selector_of_their_own(seen: Seen, report: Report) -> None:
    options = seen.page.locator("#map-measure option").evaluate_all("all => all.map(e => e.value)")
    assert not [name for name in options if "@" in name]
    assert len(options) == len(set(options))
    assert not seen.page.locator("#map-temperature").is_visible()
    seen.choose("measure", "sensitivity_worst_p95")
    assert seen.page.locator("#map-temperature option").all_inner_texts() == ["0.1", "0.5", "1", "2"]
    assert seen.page.locator("#map-temperature").input_value() == "1"
    seen.choose("temperature T", "0.5")
    want = value_of(report, "sensitivity_worst_p95@T=0.5", 1, 2)
    assert float(seen.cell(1, 2).inner_text()) == pytest.approx(want, rel=0.06)
    seen.choose("measure", "sensitivity_random_mean")
    assert seen.page.locator("#map-temperature").input_value() == "0.5"  # it is kept
    assert "head" in seen.text(".map-caption")
    seen.quiet()


# -- The address ------------------------------------------------------------------------------------------------------

LINK = "#head=1.2&measure=separability&length=256&N=5"


def chosen(seen: Seen) -> dict[str, Any]:
    names = "({layer, head, measure, length, size}) => ({layer, head, measure, length, size})"
    state: dict[str, Any] = seen.page.evaluate(f"({names})(window.abbe.choice)")
    return state


@pytest.mark.slow
def test_a_link_restores_the_choice_and_a_choice_changes_the_link(opened: Opened) -> None:
    seen = opened(link=LINK).ready()
    assert chosen(seen) == {"layer": 1, "head": 2, "measure": "separability", "length": 256, "size": 5}
    assert seen.text("#head-name") == "Layer 1, head 2"
    shown = [seen.page.locator(f"#map-{name}").input_value() for name in ("measure", "length", "size")]
    assert shown == ["separability", "256", "5"]
    seen.page.wait_for_function("() => document.getElementById('head').getBoundingClientRect().top < innerHeight")
    before = seen.page.evaluate("history.length")
    seen.cell(2, 0).click()
    seen.choose("measure", "sensitivity_worst_max")
    seen.choose("temperature T", "0.1")
    address = str(seen.page.evaluate("location.hash"))
    assert address == "#head=2.0&measure=sensitivity_worst_max&length=256&T=0.1"
    assert seen.page.evaluate("history.length") == before  # the way back is not blocked
    other = opened(link=address).ready()
    assert chosen(other) | {"size": 0} == chosen(seen) | {"size": 0}
    assert other.page.locator("#map-temperature").input_value() == "0.1"
    for one in (seen, other):
        one.quiet()


@pytest.mark.slow
@pytest.mark.parametrize(
    "link",
    [
        "#head=99.1", "#head=1", "#head=-1.2", "#head=1.2.3", "#head=%", "#measure=nothing", "#length=7", "#N=1e9",
        "#T=0.5", "#length=&N=&head=&measure=", "#growth", "#=&&==", "#measure=<script>alert(1)</script>", "#%ff%fe",
        "#measure=__proto__", "#measure=ks_statistic",
    ],
)  # fmt: skip
def test_what_is_unknown_in_a_link_is_left_out(opened: Opened, link: str) -> None:
    plain = chosen(opened().ready())
    seen = opened(link=link).ready()
    assert chosen(seen) == plain
    seen.quiet()


@pytest.mark.slow
def test_an_address_that_is_changed_by_hand_is_followed(seen: Seen) -> None:
    seen.page.evaluate("location.hash = 'head=0.3&measure=top_mass&N=50&length=64'")
    seen.page.wait_for_function("window.abbe.choice.head === 3")
    assert chosen(seen) == {"layer": 0, "head": 3, "measure": "top_mass", "length": 64, "size": 50}
    shown = [seen.page.locator(f"#map-{name}").input_value() for name in ("measure", "length", "size")]
    assert shown == ["top_mass", "64", "50"]
    seen.page.locator("nav a", has_text="Growth").click()
    assert chosen(seen)["head"] == 3
    seen.quiet()


# -- The heat map -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_heat_map_names_tokens_and_weight(seen: Seen, report: Report) -> None:
    sample = report.sample
    assert sample is not None
    assert sample.heat is not None
    heat = sample.heat
    seen.cell(1, 2).click()
    canvas = seen.page.locator("#heat-map")
    side = len(heat.queries)
    assert canvas.evaluate("e => [e.width, e.height]") == [side, side]
    canvas.focus()
    seen.page.keyboard.press("ArrowDown")  # starts at the last query and the first keys
    for _ in range(3):
        seen.page.keyboard.press("ArrowRight")
    seen.page.keyboard.press("ArrowUp")
    row, column = side - 2, 3
    words = seen.text("#heat-words")
    assert seen.page.locator("#heat-words bdi").count() == 2  # a token cannot turn the direction of the rest
    assert words.startswith(f"Query token {heat.queries[row]} “")
    assert f"→ token{'s' if heat.edges[column + 1] - heat.edges[column] > 1 else ''} {heat.edges[column]}" in words
    code = heat.heads[1, 2][row * side + column]
    weight = 0.0 if code == 0 else 1e-4 ** ((255 - code) / 254)
    shown = float(words.rpartition("weight ")[2]) if weight else 0.0
    assert shown == pytest.approx(weight, rel=0.06)
    seen.quiet()


@pytest.mark.slow
def test_the_heat_map_follows_head_theme_and_pointer(opened: Opened, healthy: Path) -> None:
    seen = opened(other=healthy).ready()
    canvas = seen.page.locator("#heat-map")
    pixels = "e => e.toDataURL()"
    seen.cell(0, 0).click()
    first = canvas.evaluate(pixels)
    seen.cell(2, 2).click()
    second = canvas.evaluate(pixels)
    seen.page.locator("#theme").click()
    assert len({first, second, canvas.evaluate(pixels)}) == 3
    box = canvas.bounding_box()
    canvas.hover(position={"x": box["width"] - 2, "y": 2})
    assert seen.text("#heat-words").endswith("comes later, no weight")
    canvas.click(position={"x": 3, "y": 3})
    assert seen.page.locator("#query-select").input_value() == seen.page.evaluate("String(abbe.sample.queries[0])")
    seen.quiet()


def test_a_head_names_its_patterns_and_its_heat_map_zooms_by_keys_buttons_and_drag(healthy_page: Seen) -> None:
    seen = healthy_page
    canvas, side = seen.page.locator("#heat-map"), seen.page.evaluate("abbe.sample.heat.queries.length")
    shown, pixels = "e => [e.width, e.height]", "e => e.toDataURL()"
    seen.cell(0, 0).click()
    assert seen.page.locator("#head-patterns .kind").count() == 0
    seen.cell(1, 2).click()
    assert seen.page.locator("#head-patterns .kind").all_inner_texts() == ["induction head"]
    assert seen.text("#head-sentence") == "s Induction <b>it is</b>."
    assert "induction head: enough <i>weight</i>" in seen.page.locator("#head-pattern-rules").text_content()
    whole = canvas.evaluate(pixels)
    assert seen.page.locator("#heat-out").is_disabled()
    assert seen.page.locator("#heat-whole").is_disabled()
    canvas.focus()
    seen.page.keyboard.press("ArrowDown")  # the last query and the first keys: the view stays within the map
    seen.page.keyboard.press("+")
    half = round(side / 2)
    assert canvas.evaluate(shown) == [half, half]
    first, last = seen.page.evaluate(f"[abbe.sample.heat.queries.at(-{half}), abbe.sample.heat.edges[{half}] - 1]")
    assert seen.text("#heat-range").startswith(f"Queries {first} to ")
    assert seen.text("#heat-range").endswith(f"keys 0 to {last}.")
    for _ in range(half):
        seen.page.keyboard.press("ArrowRight")  # one beyond the edge: the view follows
    edges = seen.page.evaluate(f"[abbe.sample.heat.edges[1], abbe.sample.heat.edges[{half} + 1] - 1]")
    assert seen.text("#heat-range").endswith(f"keys {edges[0]} to {edges[1]}.")
    assert seen.page.locator("#heat-cell").is_visible()
    for _ in range(9):
        seen.page.keyboard.press("+")
    assert canvas.evaluate(shown) == [4, 4]
    assert seen.page.locator("#heat-in").is_disabled()
    seen.page.locator("#heat-out").click()
    assert canvas.evaluate(shown) == [8, 8]
    seen.page.locator("#heat-whole").click()
    assert canvas.evaluate(shown) == [side, side]
    assert canvas.evaluate(pixels) == whole
    assert seen.text("#heat-range") == ""
    box, query = canvas.bounding_box(), seen.page.locator("#query-select").input_value()
    cell = box["width"] / side
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    seen.page.mouse.move(box["x"] + 2.5 * cell, box["y"] + 3.5 * cell)
    seen.page.mouse.down()
    seen.page.mouse.move(box["x"] + 11.5 * cell, box["y"] + 8.5 * cell, steps=3)
    assert seen.page.locator("#heat-drag").is_visible()
    seen.page.mouse.up()
    assert canvas.evaluate(shown) == [10, 10]
    edges = seen.page.evaluate("[abbe.sample.heat.edges[2], abbe.sample.heat.edges[12] - 1]")
    assert seen.text("#heat-range").endswith(f"keys {edges[0]} to {edges[1]}.")
    assert seen.page.locator("#query-select").input_value() == query  # a drag is no click
    canvas.focus()
    seen.page.keyboard.press("0")
    assert canvas.evaluate(pixels) == whole
    seen.quiet()


@pytest.mark.slow
def test_an_old_sample_has_no_heat_map(opened: Opened, report: Report, tmp_path: Path) -> None:
    assert report.sample is not None
    old = replace(report, sample=replace(report.sample, heat=None))
    seen = opened(other=made.page_file(old, tmp_path)).ready()
    assert not seen.page.locator("#heat").is_visible()
    assert seen.page.locator("#token-text").is_visible()
    seen.quiet()
