"""Episodes of many turns: trainer and engine see the same tokens, and a rerun makes the same ones."""

from __future__ import annotations

import asyncio
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from lorarl_api.v1alpha1 import EnvironmentSpec
from lorarl_trainer.data.bridge import Bridge
from lorarl_trainer.data.encoder import PromptEncoder
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.rows import Row
from lorarl_trainer.data.tokenizer import load_tokenizer
from lorarl_trainer.rewards.environment.environment import Environment
from lorarl_trainer.rewards.process import CodeFolders
from lorarl_trainer.rollout.collect import ScoredRollouts
from lorarl_trainer.rollout.episodes import Episodes, episode_metrics
from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.sample import Sample
from lorarl_trainer.samples.wire import Samples
from run.make_base import main as make_base
from support.in_process import STOP, Colocated, OneWorker, update_request, worst
from support.tiny_tokenizers import CHATML, write_tokenizer
from trainer.test_delta_nets import LONG

ENVIRONMENT = """
import asyncio, random

class Talk:
    async def reset(self, row):
        self.row, self.turns = row, 0
        if row.get("fails") == "reset": raise ValueError("no")
        return f"{row['word']} {random.randrange(10)}"

    async def step(self, text):
        self.turns += 1
        await asyncio.sleep(random.random() * self.row["slow"])
        if self.row.get("fails") == "step" and self.turns == 2: raise ValueError("no")
        if self.row.get("fails") == "reward": return {"done": True}
        return {"text": f"TURN {self.turns}: {len(text)}", "reward": len(text), "done": self.turns == self.row["turns"]}
"""
WORDS = ["GO", "SAY IT", "A LONGER OPENING", "?"]
ENDS = tuple(range(112, 128))
"""An eighth of the tokens end a turn, so that a model of random weights makes several turns, and is cut off in some."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_base(folder)
    # The stop token of the tests' worker is the template's end of a turn.
    write_tokenizer(folder, template=CHATML, special=["<unk>", "<s>", "<|im_end|>", "<|im_start|>"])
    return folder


def start(model: Path, out: Path, scale: float = 0.1, **changes: object) -> Colocated:
    settings = {"maxTurns": 4, "maxTurnTokens": 12, "function": "talk:Talk"}
    lengths = {"rollout__maxPromptTokens": 64, "rollout__maxResponseTokens": 160}
    started = Colocated(model, out, reward="null", environment=settings, **lengths, **changes)
    started.randomise(scale=scale)
    started.sync()
    return started


@pytest.fixture(scope="module")
def worker(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Colocated]:
    started = start(model, tmp_path_factory.mktemp("job"))
    yield started
    started.close()


def rows(count: int, *, turns: int = 3, slow: float = 0.0, fails: str = "") -> list[EncodedRow]:
    raw = [{"word": WORDS[n % len(WORDS)], "turns": turns, "slow": slow, "fails": fails} for n in range(count)]
    return [EncodedRow(Row(str(one["word"]), None, one, n + 1), [5, 6, 7], []) for n, one in enumerate(raw)]


def play(
    worker: Colocated,
    folder: Path,
    played: list[EncodedRow],
    *,
    together: bool = True,
    greedy: bool = False,
    chat_template: bool = True,
    ends: tuple[int, ...] = ENDS,
    **changes: object,
) -> ScoredRollouts:
    (folder / "talk.py").write_text(ENVIRONMENT)
    tokenizer = load_tokenizer(worker.model)
    assert worker.spec.environment is not None
    settings: EnvironmentSpec = worker.spec.environment.model_copy(update=changes)
    environment = Environment(settings, CodeFolders((str(folder),)))
    episodes = Episodes(
        worker.spec.model_copy(update={"environment": settings}),
        environment,
        Bridge(PromptEncoder(tokenizer, chat_template=chat_template, stop_ids=STOP)),
        lambda tokens: tokenizer.batch_decode(tokens, skip_special_tokens=True),
        tokenizer.batch_decode,
        together=together,
    )
    requests = [
        GenerationRequest([1], "a test", None if greedy else 100 + n, stop_token_ids=ends, adapter=worker.version)
        for n in range(len(played))
    ]
    starts = [n // 4 for n in range(len(played))]
    try:
        return asyncio.run(episodes.play(OneWorker(worker.worker), played, requests, starts, worker.version))
    finally:
        environment.close()


def samples(made: ScoredRollouts) -> list[Sample]:
    return [Sample.of(row.prompt_ids, one) for row, one in zip(made.rows, made.completions, strict=True)]


def test_the_trainer_sees_what_the_engine_sampled_turn_by_turn(worker: Colocated, tmp_path: Path) -> None:
    made = play(worker, tmp_path, rows(12))
    assert {1, 3} <= {course.turns for course in made.courses}
    trained = samples(made)
    assert worst(worker.trainer_logprobs(trained), [one.rollout_logprobs for one in trained]) < 2e-5
    for sample in trained:
        assert sample.mask is not None and sample.mask[0] and sample.mask[-1], "the model has the first and last word"
        assert sample.rollout_logprobs is not None and len(sample.rollout_logprobs) == sample.mask.sum()
    result = worker.worker.update(
        update_request(trained, total_tokens=sum(sample.trained_length for sample in trained), learning_rate=0.0)
    )
    assert result.disagreement is None


def test_an_episode_reads_as_the_template_writes_it(worker: Colocated, tmp_path: Path) -> None:
    made = play(worker, tmp_path, rows(12))
    tokenizer = load_tokenizer(worker.model)
    longest = max(range(12), key=lambda n: made.courses[n].turns)
    sample = samples(made)[longest]
    assert sample.mask is not None
    told = tokenizer.decode(sample.tokens[sample.prompt_length :][~sample.mask])
    assert told.startswith("<|im_end|>\n<|im_start|>user\nTURN 1: ")
    assert told.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert told.count("<|im_start|>assistant\n") == made.courses[longest].turns - 1
    # The reward of each turn is the length of its text, and those of an episode add up.
    spans = np.split(sample.tokens[sample.prompt_length :], np.flatnonzero(np.diff(sample.mask)) + 1)
    said = [tokenizer.decode(span, skip_special_tokens=True) for span in spans[::2]]
    assert made.rewards[longest] == sum(map(len, said))


@pytest.mark.parametrize("changes", [{}, {"concurrency": 3}])
def test_a_rerun_makes_the_same_tokens_however_long_environments_take(
    worker: Colocated, tmp_path: Path, changes: dict[str, int]
) -> None:
    made, again = (play(worker, tmp_path, rows(8, slow=slow), **changes) for slow in (0.0, 0.05))
    for one, other in zip(made.completions, again.completions, strict=True):
        assert one.tokens.tobytes() == other.tokens.tobytes()
        assert one.logprobs.tobytes() == other.logprobs.tobytes()
    assert made.rewards.tolist() == again.rewards.tolist()


def test_others_generate_while_an_environment_answers(worker: Colocated, tmp_path: Path) -> None:
    made = play(worker, tmp_path, rows(8, slow=0.05), together=False)
    trained = samples(made)
    assert worst(worker.trainer_logprobs(trained), [one.rollout_logprobs for one in trained]) < 2e-5
    together = play(worker, tmp_path, rows(8))
    assert [one.tokens.tolist() for one in made.completions] == [one.tokens.tolist() for one in together.completions]


def test_a_greedy_episode_is_played_like_any_other(worker: Colocated, tmp_path: Path) -> None:
    made, again = (play(worker, tmp_path, rows(4), greedy=True) for _ in range(2))
    assert not any(len(one.logprobs) for one in made.completions)
    assert [one.tokens.tolist() for one in made.completions] == [one.tokens.tolist() for one in again.completions]


FAILURES = {
    "reset": ("exception", "reset: ValueError: no (talk.py, line "),
    "step": ("exception", "step: ValueError: no (talk.py, line "),
    "reward": ("wrong_type", "step ended the episode, and no turn of it had a reward"),
}


@pytest.mark.parametrize("fails", FAILURES)
def test_an_episode_that_fails_is_left_out_and_counted(worker: Colocated, tmp_path: Path, fails: str) -> None:
    failing = rows(2, fails=fails)
    made = play(worker, tmp_path, [*rows(6), *failing])
    assert np.isnan(made.rewards[6:]).any() and not np.isnan(made.rewards[:6]).any()
    metrics = episode_metrics(made.courses)
    count = int(np.isnan(made.rewards).sum())
    (cause, failure), *others = made.failures.items()
    assert others == [] and metrics[f"episode/ended_{cause}"] == count / 8 == failure.count / 8
    assert cause == FAILURES[fails][0] and failure.first_message.startswith(FAILURES[fails][1])
    # Such a sample may have nothing that is trained: the passes over all samples of a step take it.
    trained = samples(made)
    assert [len(found) for found in worker.trainer_logprobs(trained)] == [one.trained_length for one in trained]
    assert [len(found) for found in worker.trainer_logprobs(trained[6:])] == [one.trained_length for one in trained[6:]]


def test_limits_end_an_episode_which_keeps_its_rewards(worker: Colocated, tmp_path: Path) -> None:
    endless = rows(8, turns=10**6)
    made = play(worker, tmp_path, endless)
    ends = {course.ended for course in made.courses}
    assert ends == {"turns", "tokens"}
    for course, sample, completion in zip(made.courses, samples(made), made.completions, strict=True):
        assert course.turns <= 4 and sample.response_length <= 160
        assert completion.finished == (course.ended == "turns")
        assert sample.mask is not None and sample.mask[-1]
    assert not np.isnan(play(worker, tmp_path, endless, max_turns=1).rewards).any()


def test_an_episode_of_a_mixture_has_the_routing_of_all_its_tokens(
    model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(model_folder("qwen3_moe"), tmp_path / "model")
    write_tokenizer(folder, template=None)
    mixture = start(folder, tmp_path)
    made = play(mixture, tmp_path, rows(8), chat_template=False, ends=tuple(range(48, 64)))
    assert max(course.turns for course in made.courses) == 3
    trained = pickle.loads(pickle.dumps(Samples(samples(made))))  # refuses arrays of other lengths
    assert all(sample.routing is not None for sample in trained)
    assert worst(mixture.trainer_logprobs(trained), [one.rollout_logprobs for one in trained]) < 2e-5
    mixture.close()


@pytest.mark.parametrize("architecture", ["qwen3_5", "gemma4_text"])
def test_states_and_shared_keys_are_right_in_each_turn(
    model_folder: Callable[[str], Path], tmp_path: Path, architecture: str
) -> None:
    """With states, a turn begins with the prompt again; else it finds the keys of the turns before."""
    folder = shutil.copytree(model_folder(architecture), tmp_path / "model")
    write_tokenizer(folder, template=None)
    worker = start(folder, tmp_path)
    made = play(worker, tmp_path, rows(8), chat_template=False, ends=tuple(range(48, 64)))
    assert max(course.turns for course in made.courses) == 3
    trained = samples(made)
    assert worst(worker.trainer_logprobs(trained), [one.rollout_logprobs for one in trained]) < LONG
    worker.close()
