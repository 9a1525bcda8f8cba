"""The report in a real browser: by keyboard, in a narrow window, in dark colours, and live."""

import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lorarl_trainer.errors import InputError
from lorarl_trainer.progress import EvalDone, Event, FurtherSequence, Progress, Sampled, write_report
from lorarl_trainer.progress.compare import compare_page, compare_runs
from lorarl_trainer.progress.metrics_file import MetricsFile, SummaryFile
from lorarl_trainer.progress.samples import SamplesFile
from lorarl_trainer.progress.serve import open_server
from support.browser import Page, browser
from unit.trainer.progress.runs import (
    grpo_step,
    run_finished,
    run_started,
    sampled,
    started_up,
    with_metrics,
)

pytestmark = pytest.mark.slow

STEPS = 12
READABLE = 4.5
"""WCAG 2.1 asks for this contrast of text (1.4.3)."""


def events(out_dir: Path) -> list[Event]:
    """Return a run with everything that a report can show."""
    made: list[Event] = [run_started(out_dir, STEPS), started_up(), EvalDone(step=0, rows=64, score=0.3)]
    for step in range(1, STEPS + 1):
        made += [
            branched(sampled(step, groups=2)),
            with_metrics(grpo_step(step, STEPS), signal_share=0.5, **{"reward/right": step / STEPS}),
        ]
        if step % 4 == 0:
            score, ends = step / 20, {"score_low": step / 20 - 0.1, "score_high": step / 20 + 0.1}
            hard = EvalDone(step=step, rows=8, name="hard", score=score / 2, metrics={"pass_at_4": score})
            made += [EvalDone(step=step, rows=64, score=score, metrics=ends), hard]
            made.append(sampled(step, groups=3, evaluation=True))
    return [*made, run_finished(out_dir, STEPS)]


def branched(samples: Sampled) -> Sampled:
    """Return samples of which the second is of an episode with two sequences."""
    first, second, *others = samples.samples
    further = FurtherSequence(model_prompt="shorter history", completion="said later", tokens=9, truncated=False)
    return replace(samples, samples=(first, replace(second, further=(further,)), *others))


def progress_into(out_dir: Path) -> Progress:
    return Progress([MetricsFile(out_dir), SamplesFile(out_dir), SummaryFile(out_dir)], [])


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    with progress_into(folder) as progress:
        for event in events(folder):
            progress.emit(event)
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(chromium: Page, run_folder: Path) -> Page:
    chromium.errors.clear()
    chromium.prefer("light")
    chromium.resize(1280)
    chromium.open((run_folder / "report.html").as_uri())
    return chromium


def test_the_page_shows_all_and_reports_no_errors(page: Page) -> None:
    page.wait_for("document.querySelectorAll('.plot canvas').length > 12")
    assert page.text("#job") == "addition"
    assert page.text("#state") == "succeeded"
    assert "0.300 → 0.600\n64 rows, 95% interval 0.500 to 0.700" in page.text("#tiles")
    titles = page.evaluate("[...document.querySelectorAll('figure h3')].map((h) => h.textContent)")
    assert {"Reward", "Parts of the reward", "Groups with signal", "Entropy", "Gradient norm", "Speed"} <= set(titles)
    assert {"Further held-out scores", "Solved in k tries"} <= set(titles)
    assert "held out 0.6 (0.5 to 0.7)" in page.text("figure .legend").replace("\n", " ")
    assert page.evaluate("document.querySelectorAll('figure .unit').length") == len(titles)
    assert page.errors == []


def test_the_slider_and_the_search_work_by_keyboard(page: Page) -> None:
    assert page.text("#sample-at") == f"step {STEPS}"
    page.focus("#sample-step")
    page.press("ArrowLeft")
    assert page.text("#sample-at") == f"step {STEPS - 1}"
    page.press("Home")
    assert page.text("#sample-at") == "step 1"
    assert "completion 0 of step 1: <b>1</b>" in page.text("#sample-list")
    page.focus("#sample-search")
    page.type("2 of step 5")
    assert page.text("#sample-list") == "No completion of this step matches."
    page.press("Enter")
    assert page.text("#sample-at") == "step 5"
    assert page.evaluate("document.querySelectorAll('.completions li').length") == 2, "one in each of two groups"
    assert page.text("mark") == "2 of step 5"
    assert page.errors == []


def test_the_sequences_of_an_episode_are_shown_and_searched_together(page: Page) -> None:
    rows = "[...document.querySelectorAll('.completions li')].map((li) => li.textContent)"
    page.focus("#sample-search")
    page.type("said later")
    [shown] = page.evaluate(rows)
    assert "sequence 2 of the episode" in shown and "shorter history" in shown and "completion 1 of step" in shown


def test_samples_are_sorted_and_the_first_is_put_against_the_last(page: Page) -> None:
    def choose(key: str) -> None:
        page.evaluate(f"document.querySelector('#sample-sort').value = '{key}'")
        page.evaluate("document.querySelector('#sample-sort').dispatchEvent(new Event('change'))")

    scores = "[...document.querySelectorAll('.sample:first-child .score b')].map((b) => b.textContent)"
    assert page.evaluate(scores) == ["0", "1", "0", "1"]
    choose("high")
    assert page.evaluate(scores) == ["1", "1", "0", "0"]
    page.evaluate("document.querySelector('#kind-held_out').click()")
    page.evaluate("document.querySelector('#sample-versus').click()")
    assert page.evaluate("document.querySelectorAll('.versus').length") == 3, "one for each held-out row"
    shown = page.text(".sample")
    assert "of step 4:" in shown and f"of step {STEPS}:" in shown
    assert "<|im_start|>user" in page.text(".prompt")


def test_a_chart_shows_its_values_by_keyboard(page: Page) -> None:
    page.wait_for("document.querySelector('.plot canvas')")
    page.focus(".plot")
    page.press("Home")
    assert "step 0" in page.text(".legend")
    page.press("ArrowRight")
    assert "step 1" in page.text(".legend")
    assert re.search(r"training\s*0\.\d", page.text(".legend"))
    page.press("Enter")
    assert page.text("#sample-at") == "step 1"


@pytest.mark.parametrize("width", [320, 390, 700, 1280])
def test_no_window_needs_to_scroll_sideways(page: Page, width: int) -> None:
    page.resize(width)
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


CONTRASTS = """(() => {
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const bright = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92
    : ((v + 0.055) / 1.055) ** 2.4).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = numbers(getComputedStyle(node).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
  };
  const bad = new Set();
  document.querySelectorAll('details').forEach((d) => { d.open = true; });
  for (const node of document.querySelectorAll('main *, header *, nav *')) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.offsetParent || node.disabled) continue;
    const [a, b] = [bright(numbers(getComputedStyle(node).color)), bright(behind(node))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < %s) bad.add(`${node.tagName}.${node.className} ${node.textContent.slice(0, 20)}`);
  }
  return [...bad];
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read(page: Page, scheme: str) -> None:
    page.prefer(scheme)
    page.focus("#sample-search")
    page.type("of step")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0] < 60")
    assert dark == (scheme == "dark")
    assert page.evaluate(CONTRASTS % READABLE) == []


def test_values_under_the_pointer_move_nothing(page: Page) -> None:
    page.wait_for("document.querySelectorAll('.plot canvas').length > 12")
    places = "[...document.querySelectorAll('figure')].map((f) => f.getBoundingClientRect().top)"
    before = page.evaluate(places)
    page.focus(".plot")
    page.press("Home")
    assert page.evaluate(places) == before


def test_a_comparison_overlays_the_runs(chromium: Page, run_folder: Path, tmp_path: Path) -> None:
    comparison = compare_runs([run_folder, run_folder])
    comparison["runs"][1]["name"] = "again"
    path = tmp_path / "compare.html"
    path.write_text(compare_page(comparison))
    chromium.errors.clear()
    chromium.resize(390)
    chromium.open(path.as_uri())
    chromium.wait_for("document.querySelector('.plot canvas')")
    assert "again" in chromium.text("figure .legend")
    assert "held-out score, best" in chromium.text("#results")
    assert chromium.evaluate("document.documentElement.scrollWidth") <= 390
    assert chromium.errors == []


@contextmanager
def served(out_dir: Path) -> Iterator[str]:
    server = open_server(out_dir, 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_an_open_page_follows_the_run_until_it_ends(chromium: Page, tmp_path: Path) -> None:
    made = events(tmp_path)
    chromium.errors.clear()
    with progress_into(tmp_path) as progress, served(tmp_path) as address:
        for event in made[:5]:
            progress.emit(event)
        chromium.open(address)
        assert chromium.text("#progress-text").startswith(f"step 1 of {STEPS}")
        assert chromium.text("#state") == "running"
        for event in made[5:9]:
            progress.emit(event)
        chromium.wait_for("document.querySelector('#sample-at').textContent === 'step 3'")
        chromium.focus("#sample-step")
        chromium.press("Home")
        for event in made[9:]:
            progress.emit(event)
        progress.close()
        chromium.wait_for("document.querySelector('#state').textContent === 'succeeded'")
        assert chromium.text("#progress-text") == f"step {STEPS} of {STEPS}"
        assert chromium.text("#sample-at") == "step 1", "the reader chose it"
        assert chromium.errors == []


def test_the_server_answers_only_this_machine_and_only_once(run_folder: Path) -> None:
    with served(run_folder) as address:

        def status(path: str = "data.json", **headers: str) -> int:
            try:
                request = urllib.request.Request(address + path, headers=headers)
                with urllib.request.urlopen(request) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                return error.code

        with urllib.request.urlopen(address + "data.json") as answer:
            etag = answer.headers["ETag"]
        assert status(**{"If-None-Match": etag}) == 304
        assert status(Host="evil.example") == 403
        assert status("metrics.jsonl") == 404
        port = int(address.rstrip("/").rpartition(":")[2])
        with pytest.raises(InputError, match=rf"--port: got {port}, which cannot be used"):
            open_server(run_folder, port)
