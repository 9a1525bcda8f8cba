"""The dashboard in a real browser: by keyboard, filtered, chosen and compared, narrow, dark, and without JavaScript."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.browser import Page, browser
from unit.trainer.dashboard.recorded import Client, recorded, served
from unit.trainer.progress.test_page import CONTRASTS, READABLE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def out(tmp_path: Path) -> Path:
    for number in range(4):
        recorded(tmp_path / "out" / f"sums-{number}", 5 + number, job=f"sums-{number}")
    for rank in (8, 32):
        recorded(tmp_path / "out" / "sweep" / f"rank={rank}", 3, job=f"rank-{rank}", algorithm="dapo")
    return tmp_path / "out"


@pytest.fixture
def client(out: Path, tmp_path: Path) -> Iterator[Client]:
    with served([out], tmp_path / "cache") as client:
        yield client


@pytest.fixture
def page(chromium: Page, client: Client) -> Iterator[Page]:
    chromium.call("Emulation.setScriptExecutionDisabled", value=False)
    chromium.prefer("light")
    chromium.resize(1280)
    chromium.open(client.url)
    chromium.wait_for("document.querySelector('#count')?.textContent === '6 runs'")
    chromium.errors.clear()
    yield chromium
    assert chromium.errors == []
    chromium.call("Emulation.setScriptExecutionDisabled", value=False)


def names(page: Page) -> list[str]:
    shown: list[str] = page.evaluate("[...document.querySelectorAll('tbody th a')].map((a) => a.textContent)")
    return shown


def test_a_filter_that_is_typed_and_a_heading_sort_without_a_new_page(page: Page) -> None:
    page.evaluate("window.same = true")
    page.focus("#filter input[type=search]")
    page.type("sums")
    page.wait_for("document.querySelectorAll('tbody tr').length === 4")
    page.focus("thead .c-step a")
    page.press("Enter")
    page.wait_for("document.querySelector('thead .c-step').getAttribute('aria-sort') === 'descending'")
    assert names(page) == ["sums-3", "sums-2", "sums-1", "sums-0"]
    assert page.evaluate("document.activeElement.textContent.trim().startsWith('Step')"), "the focus stays"
    page.evaluate("history.back()")
    page.wait_for("document.querySelector('thead .c-step').getAttribute('aria-sort') === 'none'")
    assert page.evaluate("window.same") is True


def test_a_folder_is_opened_and_left(page: Page) -> None:
    page.evaluate("document.querySelector('tr.group a').click()")
    page.wait_for("document.querySelector('.crumb')")
    assert sorted(names(page)) == ["rank-32", "rank-8"]
    page.evaluate("document.querySelector('.crumb a').click()")
    page.wait_for("document.querySelectorAll('tbody tr').length === 5")


def test_chosen_runs_of_several_views_are_compared(page: Page) -> None:
    page.focus("tbody input[name=run]")
    page.evaluate("document.activeElement.click()")
    assert page.evaluate("document.querySelector('#compare').disabled"), "one run is nothing to compare"
    page.focus("#filter input[type=search]")
    page.type("rank-8")
    page.wait_for("document.querySelectorAll('tbody tr').length === 1")
    page.evaluate("document.querySelector('tbody input[name=run]').click()")
    assert page.text("#compare") == "Compare 2 chosen runs"
    page.evaluate("document.querySelector('#compare').click()")
    page.wait_for("location.pathname === '/compare' && document.querySelector('.plot canvas')")
    page.wait_for("document.querySelector('#live').textContent === 'up to date'")
    assert "sweep/rank=8" in page.text("#results")


def test_a_page_that_is_open_follows_the_folder(page: Page, out: Path) -> None:
    page.evaluate("document.querySelector('tbody input[name=run]').click()")
    recorded(out / "later", 2, job="later")
    page.wait_for("document.querySelector('#count').textContent === '7 runs'")
    shutil.rmtree(out / "later")
    page.wait_for("document.querySelector('#count').textContent === '6 runs'")
    assert page.evaluate("document.querySelectorAll('tbody input:checked').length") == 1, "what is chosen stays"
    assert page.text("#live") == "live"


def test_a_runs_page_has_its_curves_then_its_samples(page: Page) -> None:
    page.evaluate("document.querySelector('tbody tr:not(.group) th a').click()")
    page.wait_for("location.pathname.startsWith('/run/') && document.querySelector('.plot canvas')")
    page.wait_for("!document.querySelector('#samples').hidden")
    assert "completion 0 of step 1" in page.text("#sample-list")
    page.evaluate("document.querySelector('nav a').click()")
    page.wait_for("document.querySelector('#count')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read(page: Page, scheme: str) -> None:
    page.prefer(scheme)
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0] < 60")
    assert dark == (scheme == "dark")
    assert page.evaluate(CONTRASTS % READABLE) == []


def test_a_narrow_window_scrolls_only_down(page: Page) -> None:
    page.resize(390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert (
        page.evaluate(
            "document.querySelector('.card.scroll').scrollWidth - document.querySelector('.card.scroll').clientWidth"
        )
        <= 0
    )


def test_list_and_figures_are_there_without_javascript(page: Page, client: Client) -> None:
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    for address in (client.url, page.evaluate("document.querySelector('tbody tr:not(.group) th a').href")):
        page.call("Page.navigate", url=address)  # not `open`, which waits for what a script does
        page.wait_for(f"location.href === '{address}' && document.readyState === 'complete'")
        shown = page.text("body")
    assert "held-out score, latest" in shown and "kind: LoRARLJob" in shown
    assert "Smoothing" not in shown, "what needs scripts is not shown"
