"""The page of a training run in a real browser, from disk and without a network."""

from __future__ import annotations

from pathlib import Path

import made_up_watch as made
import pytest
from page_in_browser import Opened, needs_browser

from abbe.views import page as page_of
from abbe.words.numbers import number

pytestmark = needs_browser
NASTY = "<script>document.title='x'</script>" + "very" * 40


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("watch") / "watch.html"
    made.training(model={"name": NASTY}, skipped=[NASTY]).to_html(path)
    return path


def test_slider_alerts_and_address(opened: Opened, file: Path) -> None:
    """The slider moves the map, a click on an alert chooses its head and step, and the address restores it all."""
    seen = opened().ready()
    page = seen.page
    assert page.title().startswith("abbe watch: <script>")
    assert page.locator("#curves .heads path").count() == 6
    assert page.locator("#curves path.alert").count() == 3
    assert not page.get_by_text("need JavaScript").is_visible()
    assert seen.text("#step-words") == "1,000 (the last)"
    seen.choose("measure", "entropy")
    before = seen.colour(seen.cell(0, 0))
    assert seen.text("#map button[data-layer='0'][data-head='0']") == number(made.value("entropy", 1000, 0, 0), 2)
    page.locator("#step").fill("6")
    assert seen.text("#map-step") == "300"
    assert seen.text("#map button[data-layer='0'][data-head='0']") == number(made.value("entropy", 300, 0, 0), 2)
    assert seen.colour(seen.cell(0, 0)) != before
    page.locator("#alerts button").last.click()
    assert page.evaluate("location.hash") == "#head=1.2&measure=entropy&step=350"
    assert seen.cell(1, 2).get_attribute("aria-selected") == "true"
    assert page.locator("#alerts button[aria-pressed=true]").count() == 1
    assert "entropy" in seen.text("#now")
    page.locator("#curves path.alert[data-step='400']").click()
    assert page.evaluate("location.hash") == "#head=0.1&measure=max_logit&step=400"
    seen.quiet()
    again = opened(link="#head=0.1&measure=max_weight&step=400").ready()
    assert again.cell(0, 1).get_attribute("aria-selected") == "true"
    assert again.text("#map-step") == "400"
    assert again.page.locator("#map-measure").input_value() == "max_weight"
    assert again.page.locator("#curves path.limit").count() == 1


@pytest.mark.slow
def test_what_is_unknown_in_an_address_is_left_out(opened: Opened) -> None:
    unknown = opened(link="#head=9.9&measure=nothing&step=x").ready()
    assert unknown.text("#map-step") == "1,000"
    unknown.quiet()


@pytest.mark.slow
def test_a_click_into_the_curves_chooses_step_and_head(opened: Opened) -> None:
    seen = opened(link="#head=0.0&measure=entropy").ready()
    chart, line = seen.page.locator("#curves svg"), seen.page.locator("#curves .heads path").nth(4)
    x, y = line.evaluate("path => { const { x, y } = path.getPointAtLength(0); return [x, y]; }")
    chart.click(position={"x": x + 1, "y": y})
    assert seen.page.evaluate("location.hash") == "#head=1.1&measure=entropy&step=1"
    seen.cell(1, 1).click()
    assert seen.page.evaluate("location.hash").startswith("#head=1.1&")
    seen.page.keyboard.press("ArrowLeft")
    seen.page.keyboard.press("Enter")
    assert seen.page.evaluate("location.hash").startswith("#head=1.0&")
    seen.quiet()


@pytest.mark.slow
def test_a_page_that_is_kept_fresh_loads_itself_again(opened: Opened, tmp_path: Path) -> None:
    path = tmp_path / "watch.html"
    path.write_text(page_of(made.training((1, 50)).view(reload=1)))
    seen = opened(other=path, link="#head=0.1&measure=entropy").ready()
    made.training((1, 50, 100)).to_html(path)
    seen.page.locator("#map-step", has_text="100").wait_for()
    assert seen.page.evaluate("location.hash") == "#head=0.1&measure=entropy"
    assert seen.cell(0, 1).get_attribute("aria-selected") == "true"


@pytest.mark.slow
@pytest.mark.parametrize("steps", [(1,), (1, 50)])
def test_runs_of_one_and_two_steps_are_drawn(opened: Opened, tmp_path: Path, steps: tuple[int, ...]) -> None:
    path = tmp_path / "watch.html"
    made.training(steps, alerts=()).to_html(path)
    seen = opened(other=path).ready()
    assert "NaN" not in seen.page.locator("#curves svg").inner_html()
    assert seen.messages == []
