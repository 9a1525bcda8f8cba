"""What the benchmark of the recipes makes of raw figures: curves over seeds, times to a score, the page."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import bench_recipes
from lorarl_api.load import load_job
from recipes import data, ours, report, reward
from recipes.curves import Curve, common_score, curve, drift, mean_start, mean_step, seconds_to
from recipes.tasks import RECIPES, Settings


def run(right: Sequence[float], system: str = "lorarl", seed: int = 0, seconds: float = 1.0) -> dict[str, Any]:
    """Return a run of 20 steps that was measured at 0, 10 and 20."""
    step = {"seconds": seconds, "reward": 0.5, **({"drift": 0.01} if system == "lorarl" else {})}
    return {
        "recipe": "products",
        "seed": seed,
        "system": system,
        "date": "2026-01-02T03:04:05Z",
        "device": "a GPU",
        "start_seconds": 20.0 + seed,
        "steps": [step] * 20,
        "held_out": [{"step": step, "right": share} for step, share in zip((0, 10, 20), right, strict=True)],
    }


OURS = [run((0.2, 0.5, 0.6), seed=0), run((0.2, 0.6, 0.8), seed=1)]
TRL = [run((0.2, 0.3, 0.6), "trl", seed, seconds=4.0) for seed in (0, 1)]


def test_a_curve_is_the_mean_over_the_seeds_with_their_range() -> None:
    found = curve(OURS)
    assert found.steps == (0, 10, 20)
    assert found.seconds == (0.0, 9.0, 19.0)
    assert found.right == pytest.approx((0.2, 0.55, 0.7))
    assert (found.least[-1], found.most[-1]) == (0.6, 0.8)
    assert (mean_start(OURS), mean_step(OURS)) == (21.5, 1.0)


def test_times_of_runs_that_share_a_gpu_do_not_count() -> None:
    shared = run((0.2, 0.6, 0.8), seed=1, seconds=9.0) | {"at_once": 4}
    found = curve([OURS[0], shared])
    assert found.seconds == (0.0, 9.0, 19.0)
    assert found.right == pytest.approx((0.2, 0.55, 0.7))
    assert curve([shared]).seconds == ()
    assert "not compared" in report.time_row("products", {("products", "lorarl"): [shared], ("products", "trl"): TRL})


def test_runs_measured_at_other_steps_make_no_curve() -> None:
    other = run((0.2, 0.5, 0.6))
    other["held_out"] = other["held_out"][:2]
    with pytest.raises(ValueError, match="same steps"):
        curve([*OURS, other])


def test_time_is_compared_at_a_score_that_both_reach() -> None:
    ours, trl = curve(OURS), curve(TRL)
    score = common_score(ours, trl)
    assert score == pytest.approx(0.2 + 0.9 * 0.4)
    assert seconds_to(ours, score) == pytest.approx(9 + 10 * 0.01 / 0.15)
    assert seconds_to(trl, score) == pytest.approx(36 + 40 * 0.26 / 0.3)


@pytest.mark.parametrize(("score", "seconds"), [(0.1, 0.0), (0.2, 0.0), (0.3, 5.0), (0.9, None)])
def test_the_time_to_a_score(score: float, seconds: float | None) -> None:
    falls = Curve((0, 10, 20), (0.0, 10.0, 20.0), (0.2, 0.4, 0.3), (0.2, 0.4, 0.3), (0.2, 0.4, 0.3))
    assert seconds_to(falls, score) == (None if seconds is None else pytest.approx(seconds))


def test_drift_is_shown_only_where_it_is_reported() -> None:
    assert drift(OURS) == (0.01, 0.01)
    assert drift(TRL) is None


def test_the_page_has_tables_and_pictures(tmp_path: Path) -> None:
    page = tmp_path / report.DOCUMENT
    page.parent.mkdir()
    page.write_text(f"Before.\n{report.BEGIN}\nold\n{report.END}\nAfter.\n")
    raw = tmp_path / "raw.json"
    raw.write_text(json.dumps({"settings": {"prompts": 64, "learning_rate": 1e-4}, "runs": [*OURS, *TRL]}))
    report.render(tmp_path, raw)
    text = page.read_text()
    assert text.startswith("Before.\n") and text.endswith("After.\n") and "old" not in text
    title = RECIPES["products"].title
    assert f"| {title} | 0, 1 | 20.0% | 70.0% (60.0 to 80.0) | 60.0% (60.0 to 60.0) | +10.0 |" in text
    assert f"| {title} | 56.0% | 9.7 | 70.7 | 0.14 | 1.00 s | 4.00 s | 22 s | 24 s |" in text
    assert f"| {title} | lorarl | 1.0e-02 | 1.0e-02 |" in text
    for picture in (report.BY_TIME, report.BY_STEP):
        assert (tmp_path / picture).read_text().startswith("<?xml")


def test_scores_are_compared_on_the_seeds_that_both_systems_ran() -> None:
    row = report.score_row("products", {("products", "lorarl"): OURS, ("products", "trl"): TRL[1:]}, report.COMPARED)
    assert row.endswith("| 1 | 20.0% | 80.0% (80.0 to 80.0) | 60.0% (60.0 to 60.0) | +20.0 |")
    row = report.score_row("products", {("products", "trl"): TRL}, report.COMPARED)
    assert row.endswith("| not run | 60.0% (60.0 to 60.0) |  |")


def test_the_backends_are_compared_where_both_ran() -> None:
    fsdp = [run((0.2, 0.5, 0.7), "lorarl-fsdp", seed) for seed in (0, 1)]
    grouped = {("products", "lorarl"): OURS, ("products", "lorarl-fsdp"): fsdp}
    *_, row, _ = report.backend_rows(grouped)
    assert row.endswith("| 0, 1 | 20.0% | 70.0% (60.0 to 80.0) | 70.0% (70.0 to 70.0) | +0.0 |")
    assert report.backend_rows({("products", "lorarl"): OURS}) == []


def test_other_algorithms_are_shown_step_by_step() -> None:
    rloo = [run((0.2, 0.4, 0.6), "lorarl-rloo")]
    head, _, *rows, _ = report.algorithm_rows({("products", "lorarl"): OURS, ("products", "lorarl-rloo"): rloo})
    assert head == "| recipe | algorithm | seeds | base | step 10 | step 20 |"
    assert [row.partition("| ")[2].partition("| ")[2] for row in rows] == [
        "grpo | 0, 1 | 20.0% | 55.0% | 70.0% |",
        "rloo | 0 | 20.0% | 40.0% | 60.0% |",
    ]
    assert report.algorithm_rows({("products", "lorarl"): OURS}) == []


def test_a_system_is_a_backend_or_an_algorithm() -> None:
    rows = Path("/rows")
    assert ours.changes("lorarl", rows) == []
    assert ours.changes("lorarl-fsdp", rows) == ["spec.trainer.backend=fsdp"]
    assert ours.changes("lorarl-gspo", rows) == ["spec.algorithm.type=gspo", "spec.algorithm.updatesPerStep=2"]
    assert "spec.algorithm.distillation={adapter: 'file:/teacher'}" in ours.changes(
        "lorarl-distillation", rows, Path("/teacher")
    )
    assert "spec.data.train={uri: 'file:/rows/pairs.jsonl'}" in ours.changes("lorarl-dpo", rows)


def test_single_runs_are_named_by_recipe_seed_and_system() -> None:
    assert bench_recipes.key("sums:1:lorarl-ppo") == ("sums", 1, "lorarl-ppo")
    for wrong in ("sums", "sum:1:trl", "sums:one:trl", "sums:1:ppo"):
        with pytest.raises(ValueError):
            bench_recipes.key(wrong)


@pytest.mark.parametrize("system", ours.SYSTEMS)
def test_every_systems_manifest_is_a_job(system: str, tmp_path: Path) -> None:
    job = ours.manifest(RECIPES["products"], Settings(), tmp_path, tmp_path, tmp_path, seed=0, gpus=1)
    for shared in ((), ours.SHARED_GPU):
        load_job(json.dumps(job), [*shared, *ours.changes(system, tmp_path, tmp_path)])


def test_the_repositorys_page_has_a_place_for_figures() -> None:
    text = (Path(__file__).parents[3] / report.DOCUMENT).read_text()
    assert text.index(report.BEGIN) < text.index(report.END)


def test_no_question_of_the_sums_comes_twice() -> None:
    rows = list(data.distinct(data.sums()))
    assert len({row["prompt"] for row in rows}) == len(rows) > RECIPES["sums"].train_rows + data.HELD_OUT
    assert list(islice(data.sums(), 5)) == rows[:5]


@pytest.mark.parametrize(
    ("name", "prompt", "answer", "wrong"),
    [("sums", "What is 3 plus 4?", "7", r"-?\d+"), ("needle_haystack", "Ann likes tea. Bob likes ale.", "Ann", "Bob")],
)
def test_a_pair_has_the_right_answer_and_a_wrong_one_that_is_near(
    name: str, prompt: str, answer: str, wrong: str
) -> None:
    (pair,) = data.preferences(RECIPES[name], [{"prompt": prompt, "answer": answer}])
    assert [pair[part][0]["content"] for part in ("prompt", "chosen")] == [prompt, answer]
    rejected = pair["rejected"][0]["content"]
    assert re.fullmatch(wrong, rejected)
    assert rejected != answer


def test_the_sums_are_scored_by_the_last_number() -> None:
    row = {"recipe": "sums", "entry": ""}
    assert reward.score("", "29 + 62 = 91", "91", row) == 1.0
    assert reward.score("", "91 is 29 + 62", "91", row) == 0.0
    assert reward.score("", "no idea", "91", row) == 0.0


def test_a_task_that_one_answer_wins_is_no_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"prompt": str(index), "answer": "1" if index % 4 else "2", "entry": ""} for index in range(2000)]
    monkeypatch.setattr(data, "questions", lambda _: iter(rows))
    with pytest.raises(ValueError, match=r"products: '1' is right 75% of the time, expected at most 15%"):
        data.write(tmp_path, RECIPES["products"])


def test_held_out_rows_are_drawn_like_training_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"prompt": str(index), "answer": str(index), "entry": ""} for index in range(4000)]
    monkeypatch.setattr(data, "questions", lambda _: iter(rows))
    data.write(tmp_path, RECIPES["products"])
    found = [int(row["answer"]) for row in data.read(tmp_path, "held_out")]
    drawn = RECIPES["products"].train_rows + data.HELD_OUT
    assert 0.4 < sum(found) / len(found) / drawn < 0.6, "not the first ones"


def test_reasoning_gyms_scorers_judge_what_a_completion_ends_with() -> None:
    pytest.importorskip("reasoning_gym", reason="the recipes' package reasoning-gym is not installed")
    for name, wrong in (("products", "The answer is 7777."), ("needle_haystack", "It is Nobody.")):
        row = next(data.questions(RECIPES[name]))
        asked = {"recipe": name, **row}
        assert reward.score("", f"It is {row['answer']}.", row["answer"], asked) >= reward.RIGHT
        assert reward.score("", wrong, row["answer"], asked) < reward.RIGHT
