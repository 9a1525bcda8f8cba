"""What a dry run says of a reward, by a real one in its own process."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import RewardSpec
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.rows import Row
from lorarl_trainer.dry_run import reward_trial
from lorarl_trainer.dry_run.reward_trial import Try, hasty, printed_lines, trial_lines, try_reward
from lorarl_trainer.errors import InputError, RewardServerError
from lorarl_trainer.rewards.output import Output
from lorarl_trainer.rewards.scorer import Scorers, make_job_scorer, make_scorer
from unit.trainer.launch.test_identity import MANIFEST
from unit.trainer.rewards.server.http_server import RunningServer, Server

pytestmark = pytest.mark.slow
ROWS = [EncodedRow(Row(f"prompt {number}", "7", {"level": 1}, number), [1], []) for number in (1, 2, 3)]
LONG = "x" * 500


@pytest.fixture
def server() -> Iterator[Server]:
    running = RunningServer()
    yield running.saw
    running.close()


def tried(folder: Path, body: str, rows: list[EncodedRow] = ROWS, limit: float = 5.0) -> list[Try]:
    (folder / "mine.py").write_text(f"def score(prompt, completion, answer, row):\n    {body}\n")
    spec = RewardSpec(function="mine:score", timeout_seconds=limit)
    scorer = make_scorer(spec, folder, processes=2, output=Output(folder / "rewards.log"))

    async def try_when_ready() -> list[Try]:
        await scorer.ready()  # as a dry run does: the start of the processes takes none of its patience
        return await try_reward(scorer, rows, len)

    try:
        return asyncio.run(try_when_ready())
    finally:
        scorer.close()


def test_each_row_shows_what_three_completions_score(tmp_path: Path) -> None:
    tries = tried(tmp_path, "return {'score': completion == answer, 'length': len(completion)}")
    lines = list(trial_lines(tries))
    assert lines[0] == "reward   3 rows, scored without the model, with completions that are made up here:"
    assert lines[1] == (
        "  row 1: its own answer '7' -> 1 (length 1);  'I do not know.' -> 0 (length 14);  '' -> 0 (length 0)"
    )
    assert len(lines) == 4, "nothing is wrong"
    assert next(trial_lines(tries, "hard")).startswith("reward   of hard: 3 rows")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("return float('nan')", "9 x non_finite: returned nan"),
        ("return '0.5'", "9 x wrong_type: returned str '0.5'"),
        ("return {'right': 1.0}", "9 x wrong_type: returned a mapping without 'score': {'right': 1.0}"),
        ("return {'score': 1.0, 'why': 'good'}", "9 x wrong_type: returned str 'good' as 'why'"),
        ("return [1.0] * 2", "9 x wrong_type: returned list [1.0, 1.0]; it is called for one completion at a time"),
        ("return row['gold']", "9 x exception: KeyError: 'gold' (mine.py, line 2)"),
        ("pass", "9 x wrong_type: returned None: some way through the function ends without a return"),
        ("import sys; sys.exit(3)", "9 x exception: SystemExit: 3 (mine.py, line 2)"),
        ("return float(input('score? '))", "9 x exception: EOFError: EOF when reading a line (mine.py, line 2)"),
    ],
)
def test_a_reward_that_scores_nothing_is_refused_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, why: str
) -> None:
    monkeypatch.setattr("lorarl_trainer.dry_run.reward_trial.PATIENCE_SECONDS", 60.0)  # a busy machine starts slowly
    with pytest.raises(InputError) as refused:
        tried(tmp_path, body)
    assert refused.value.field == "spec.reward.function"
    assert refused.value.got == f"no score for any of 9 completions that were made up to try it ({why})"
    assert ("sys.exit" if "SystemExit" in why else "Fix the reward or its data") in refused.value.hint


@pytest.mark.parametrize(
    ("body", "got", "hint"),
    [
        ("import os; completion or os._exit(3)", "ends its process for the completion '' of row 1 (the process exited "
         "with code 3)", "Return a number there"),
        ("import sys; completion or sys.exit(3)", "ends its process for the completion '' of row 1 (SystemExit: 3 "
         "(mine.py, line 2))", "Return a number there"),
        ("while not completion: pass", "does not return for the completion '' of row 1 (took more than 5 s, the "
         "reward's timeoutSeconds)", "Find the loop that does not end"),
    ],
)  # fmt: skip
def test_a_call_that_never_returns_is_refused(tmp_path: Path, body: str, got: str, hint: str) -> None:
    with pytest.raises(InputError) as refused:
        tried(tmp_path, f"{body}\n    return float(completion == answer)")
    assert refused.value.field == "spec.reward.function"
    assert refused.value.got == f"a function that {got}"
    assert refused.value.hint.startswith(hint)


@pytest.mark.parametrize(("wait", "hangs"), [("time.sleep(4)", False), ("time.sleep(60 * (not completion))", True)])
def test_a_slow_reward_is_told_from_one_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: str, hangs: bool
) -> None:
    monkeypatch.setattr("lorarl_trainer.dry_run.reward_trial.PATIENCE_SECONDS", 12.0)
    monkeypatch.setattr("lorarl_trainer.dry_run.reward_trial._HANGS_SECONDS", 6.0)
    body = f"import time; {wait}\n    return float(completion == answer)"
    began = time.monotonic()
    if hangs:
        with pytest.raises(InputError, match=r"does not return for the completion '' of row 1 \(no score within"):
            tried(tmp_path, body, limit=90.0)
    else:
        lines = list(trial_lines(tried(tmp_path, body, limit=90.0)))
        assert any("have no score" in line and "A run waits up to" in line for line in lines)
    assert time.monotonic() - began < 80


@pytest.mark.parametrize("body", ["return float(answer in completion)", "return float(answer.strip() == completion)"])
def test_a_reward_that_stumbles_over_a_missing_answer_is_told_so(tmp_path: Path, body: str) -> None:
    rows = [EncodedRow(Row("prompt", None, {}, 1), [1], [])]
    with pytest.raises(InputError) as refused:
        tried(tmp_path, body, rows)
    assert (
        "(mine.py, line 2); answer is None: the row has none, it is no text or number, or answerField"
        in refused.value.got
    )


def test_a_reward_that_stumbles_over_another_none_is_not(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        tried(tmp_path, "return row['level'].get(1)")
    assert "answer is None" not in refused.value.got


@pytest.mark.parametrize(
    ("body", "warning"),
    [
        (
            "return 1 / (prompt != 'prompt 2')",
            "warning: 3 of 9 completions have no score, first that of row 2 (exception: ZeroDivisionError: division by "
            "zero (mine.py, line 2)). A run leaves such completions out.",
        ),
        (
            "return 1.0 if completion else None",
            "warning: 3 of 9 completions have no score, first that of row 1 (wrong",
        ),
        ("return 1.0", "warning: every completion got 1. A reward without differences teaches nothing."),
        ("return completion != answer", "warning: a made-up completion scores higher than every row's own answer."),
        ("return bool(completion)", "warning: a made-up completion scores as high as every row's own answer."),
    ],
)
def test_what_looks_wrong_is_a_warning(tmp_path: Path, body: str, warning: str) -> None:
    assert any(line.startswith(warning) for line in trial_lines(tried(tmp_path, body)))


def test_rows_without_answers_leave_a_good_completion_to_the_user(tmp_path: Path) -> None:
    rows = [EncodedRow(Row("prompt", None, {"letter": "b"}, 1), [1], [])]
    *_, warning = trial_lines(tried(tmp_path, "return float(completion.startswith(row['letter']))", rows))
    assert warning.startswith("warning: every completion got 0. These rows have no answer, so only wrong completions")


def test_a_reward_that_hangs_is_given_up_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_trial, "PATIENCE_SECONDS", 0.5)
    began = time.monotonic()
    with pytest.raises(InputError, match=r"9 x timeout: no score within the \d+ s that a dry run waits\), ") as refused:
        tried(tmp_path, "import time; time.sleep(3600)", limit=3600.0)
    assert refused.value.hint.startswith("Find the loop that does not end, or what it waits for. If it needs that long")
    monkeypatch.setattr(reward_trial, "PATIENCE_SECONDS", 4.0)  # a busy machine calls the others late
    some = tried(tmp_path, "import time; time.sleep(3600 * (completion == ''))\n    return 1.0", limit=3600.0)
    assert not some[0].outcome.cause and some[2].outcome.cause == "timeout"
    assert any("A run waits up to the reward's timeoutSeconds for each" in line for line in trial_lines(some))
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("path", "hint"), [("/hang/v1", " took more than "), ("", "so try spec.reward.server.url http://")]
)
def test_a_server_without_a_score_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, server: Server, path: str, hint: str
) -> None:
    monkeypatch.setattr(reward_trial, "PATIENCE_SECONDS", 1.5)
    command = "hang" if path else "404"
    judge = {"url": f"{server.url}{path}", "model": "m", "instruction": f"judge:{command},{{completion}}"}
    spec = load_job(MANIFEST, [f"spec.reward={json.dumps({'server': judge})}"]).spec
    scorer = make_job_scorer(hasty(spec), Path())
    assert scorer is not None
    began = time.monotonic()
    with pytest.raises(RewardServerError, match=hint) as refused:
        asyncio.run(try_reward(scorer, ROWS[:1], len))
    assert time.monotonic() - began < 60
    assert "Check that the server runs, and its url in the manifest. A dry run asks once" in str(refused.value)
    assert len(server.requests) == 3, "no repeats"
    scorer.close()


def test_a_module_that_hangs_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import time; time.sleep(3600)\n")
    scorer = make_scorer(RewardSpec(function="mine:score"), tmp_path, processes=1, output=Output(tmp_path / "log"))
    try:
        with pytest.raises(
            InputError, match=r"^spec\.reward\.function: got a module that takes more than 0\.5 s to import"
        ):
            asyncio.run(Scorers(scorer, {}, patience=0.5).ready())
    finally:
        scorer.close()


def test_a_trace_is_of_the_users_own_code_and_floods_are_cut(tmp_path: Path) -> None:
    body = f"print({LONG!r})\n    for line in range(100): print(line)\n    return 1 / len(completion)"
    tried(tmp_path, body, ROWS[:1])
    text = (tmp_path / "rewards.log").read_text()
    assert "ZeroDivisionError: division by zero" in text
    assert "lorarl_trainer" not in text
    lines = list(printed_lines(tmp_path / "rewards.log"))
    assert lines[0] == "what the reward printed (a run keeps it in logs/rewards.log):"
    assert lines[1].startswith("  | ")
    assert len(lines) == 14 and lines[-1].startswith("  | and ") and max(map(len, lines)) <= 114
    assert list(printed_lines(tmp_path / "nothing.log")) == []
