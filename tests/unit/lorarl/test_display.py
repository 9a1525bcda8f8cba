"""What a notebook shows of a run, from its files."""

from __future__ import annotations

from pathlib import Path

import pytest

import lorarl
from lorarl.display import Live, html
from lorarl_api.v1alpha1 import TrackingSpec
from lorarl_trainer.progress import Warned, open_progress
from unit.trainer.progress.runs import grpo_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of three steps."""
    folder = tmp_path / "out" / "addition"
    with (
        (tmp_path / "console").open("w") as console,
        open_progress(folder, TrackingSpec(), {}, stream=console) as progress,
    ):
        for event in (*grpo_run(folder)[:-1], Warned("a <b>warning</b>"), grpo_run(folder)[-1]):
            progress.emit(event)
    return folder


def test_state_step_figure_warnings_and_curve_are_shown(run: Path) -> None:
    shown = lorarl.load(run)._repr_html_()
    assert "<b>addition</b>: succeeded" in shown and "step 3 of 3, held-out score" in shown
    assert "warning: a &lt;b&gt;warning&lt;/b&gt;" in shown
    assert shown.count("<svg") == 1 and "<?xml" not in shown


def test_a_run_that_starts_shows_its_output_alone(tmp_path: Path) -> None:
    assert html(tmp_path / "new", "starting", ["loading <model>"]) == (
        "<div><b>new</b>: starting<pre>loading &lt;model&gt;</pre></div>"
    )


def test_a_start_in_the_folder_of_another_shows_nothing_of_that(run: Path) -> None:
    assert "step" not in html(run, "starting")


def test_the_display_follows_until_the_end(run: Path) -> None:
    states, shown = iter(["running", "running", "running", "succeeded"]), list[str]()
    live = Live(run, lambda: next(states), shown.append)
    for text in ("step 1\n", "", "step 2\n", ""):
        live(text)
    assert len(shown) == 2, "at once, and at the end; in between too little time passed"
    assert "<pre>step 1</pre>" in shown[0] and "<pre>" not in shown[1]


def test_metrics_are_a_table_by_step(run: Path) -> None:
    table = lorarl.load(run).metrics
    assert list(table.index) == [0, 1, 2, 3]
    assert table.loc[3, "eval_score"] == pytest.approx(0.3 + 0.65 * (1 - 2.718281828**-4))
    assert table["seconds/generate"].notna().sum() == 3


def test_curves_of_columns_are_drawn_and_saved(run: Path, tmp_path: Path) -> None:
    loaded = lorarl.load(run)
    assert loaded.plot()._repr_png_().startswith(b"\x89PNG")
    loaded.plot("entropy", "kl").save(tmp_path / "two.svg")
    assert "entropy" in (tmp_path / "two.svg").read_text()
    with pytest.raises(lorarl.InputError, match=r"plot: got entropi, expected columns of metrics: .*entropy"):
        loaded.plot("entropi")


def test_a_run_is_found_by_its_name(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parents[1])
    assert repr(lorarl.load("addition")) == "<lorarl.Run out/addition: succeeded>"
    with pytest.raises(lorarl.InputError, match="Runs here: out/addition"):
        lorarl.load("additions")
