"""A dry run plays one episode without the model: it shows what the model would see, and refuses what fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lorarl_api.load import load_job
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.rows import Row
from lorarl_trainer.data.tokenizer import load_tokenizer
from lorarl_trainer.dry_run.episode_trial import episode_lines, hasty_environment, try_episode
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch.inputs import Vocabulary
from lorarl_trainer.rewards.scorer import open_scorers
from support.tiny_tokenizers import CHATML, write_tokenizer
from unit.contract.manifests import manifest

CODE = """
import time

class Game:
    def reset(self, row):
        self.turns, self.row = 0, row
        return row["opening"]

    def step(self, text):
        self.turns += 1
        if self.row["how"] == "raises": raise ValueError(text)
        if self.row["how"] == "hangs": time.sleep(1e6)
        if self.row["how"] == "no reward": return {"done": True}
        return {"text": f"No, not {text!r}.", "reward": 0.25, "done": self.turns == self.row.get("turns")}
"""

AGENT = """
import json, urllib.request

def play(row, llm):
    messages, said = [{"role": "user", "content": row["opening"]}], {}
    for _ in range(0 if row["how"] == "never calls" else 2):
        model = "gpt-4o" if row["how"] == "calls another" else llm.model
        body, headers = {"model": model, "messages": messages}, {"Authorization": "Bearer " + llm.api_key}
        request = urllib.request.Request(llm.base_url + "/chat/completions", json.dumps(body).encode(), headers)
        [choice] = json.load(urllib.request.urlopen(request))["choices"]
        messages += [choice["message"], {"role": "user", "content": "Again."}]
        messages = messages[-1:] if row["how"] == "forgets" else messages
    return 0.75
"""

type Show = Callable[..., list[str]]


@pytest.fixture
def show(tmp_path: Path) -> Show:
    """What a dry run prints of an episode."""
    (tmp_path / "game.py").write_text(CODE)
    (tmp_path / "my_agent.py").write_text(AGENT)
    vocabulary = Vocabulary(load_tokenizer(write_tokenizer(tmp_path / "base", template=CHATML)), (3,))

    def shown(
        how: str,
        opening: str = "Guess.",
        timeout: float = 60.0,
        most: int = 512,
        kind: str = "function",
        **row: Any,
    ) -> list[str]:
        name = {"function": "game:Game", "agent": "my_agent:play"}[kind]
        environment = {kind: name, "maxTurns": 2, "timeoutSeconds": timeout}
        changes = {"spec.reward": None, "spec.environment": environment, "spec.rollout.maxResponseTokens": most}
        spec = hasty_environment(load_job(json.dumps(manifest(changes))).spec)
        raw = {"opening": opening, "how": how, **row}

        async def play() -> list[str]:
            with open_scorers(spec, tmp_path) as scorers:
                assert scorers.environment is not None
                trial = await try_episode(
                    spec, scorers.environment, EncodedRow(Row("p", None, raw, 7), [1], []), vocabulary
                )
                return list(episode_lines(spec, trial, vocabulary))

        return asyncio.run(play())

    return shown


def test_it_shows_the_episode_as_the_model_would_see_it(show: Show) -> None:
    assert show("plays") == [
        "episode  row 7, played without the model, which says 'I do not know.' at each turn:",
        "  | <|im_start|>user",
        "  | Guess.<|im_end|>",
        "  | <|im_start|>assistant",
        "  | I do not know.<|im_end|>",
        "  | <|im_start|>user",
        "  | No, not 'I do not know.'.<|im_end|>",
        "  | <|im_start|>assistant",
        "  | I do not know.<|im_end|>",
        "reward   0.5, in 2 turns; ended by spec.environment.maxTurns (2)",
    ]
    assert show("plays", turns=1)[-1] == "reward   0.25, in 1 turn; done"


def test_it_shows_the_episode_of_an_agent(show: Show) -> None:
    assert show("plays", kind="agent") == [
        "episode  row 7, played without the model, which says 'I do not know.' at each turn:",
        "  | <|im_start|>user",
        "  | Guess.<|im_end|>",
        "  | <|im_start|>assistant",
        "  | I do not know.<|im_end|>",
        "  | <|im_start|>user",
        "  | Again.<|im_end|>",
        "  | <|im_start|>assistant",
        "  | I do not know.<|im_end|>",
        "reward   0.75, in 2 turns; done",
    ]


def test_it_shows_each_sequence_of_an_agent(show: Show) -> None:
    shown = show("forgets", kind="agent")
    assert shown[4:] == [
        "  | I do not know.<|im_end|>",
        "sequence 2 of the episode:",
        "  | <|im_start|>user",
        "  | Again.<|im_end|>",
        "  | <|im_start|>assistant",
        "  | I do not know.<|im_end|>",
        "reward   0.75, in 2 turns; done",
    ]


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ("talks long", "too_long: .*Shorten what it says, or raise spec.rollout.maxPromptTokens"),
        ("never calls", "my_agent:play, which fails in an episode of row 7 .*no_turn: the agent returned a reward"),
        ("calls another", "refused: The model 'gpt-4o' does not exist; the model that is trained is 'lorarl'"),
    ],
)
def test_it_refuses_an_agent_that_calls_in_vain_or_never(show: Show, how: str, found: str) -> None:
    with pytest.raises(InputError, match=found):
        show(how, "x" * 600 if how == "talks long" else "Guess.", kind="agent")


def test_it_warns_of_an_episode_without_a_reward_or_without_room(show: Show) -> None:
    *_, reward, warning = show("no reward")
    assert reward == "reward   none, in 1 turn; done"
    assert warning.startswith("warning: the episode was done without a reward.")
    assert "spec.rollout.maxResponseTokens is 20. A run ends such an episode sooner." in show("plays", most=20)[-1]


@pytest.mark.parametrize(
    ("how", "opening", "found"),
    [
        ("raises", "Guess.", r"game:Game, which fails in an episode of row 7 .*exception: step: ValueError: I do not"),
        ("hangs", "Guess.", r"timeout: step took more than 3 s"),
        ("plays", "", r"wrong_type: reset returned ''"),
        ("plays", "x" * 2000, r"spec.rollout.maxPromptTokens: got 512, but reset opens the episode of row 7 with"),
    ],
)
def test_it_refuses_an_environment_that_fails(show: Show, how: str, opening: str, found: str) -> None:
    with pytest.raises(InputError, match=found):
        show(how, opening, timeout=3.0 if how == "hangs" else 60.0)
