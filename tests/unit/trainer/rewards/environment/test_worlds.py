"""Environments of packages play as a class of the user's does, and say what they need where it is missing."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from lorarl_api.v1alpha1 import EnvironmentSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.install.install import installer
from lorarl_trainer.install.packages import installed as installed_packages
from lorarl_trainer.rewards.environment.environment import Answer, Environment, EpisodeFailedError
from lorarl_trainer.rewards.environment.worlds import MODULES, REQUIREMENTS, package, require_listed
from lorarl_trainer.rewards.process import CodeFolders
from lorarl_trainer.rewards.worker import RefusedError

pytestmark = pytest.mark.slow
OWN = """
import gymnasium
from gymnasium import spaces


class Parrot(gymnasium.Env):
    observation_space, action_space = spaces.Text(99), spaces.Text(99)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return f"say {self.np_random.integers(100)}", {}

    def step(self, action):
        return action.upper(), 0.5, action == "bye", False, {}


gymnasium.register("Parrot-v0", Parrot)
"""


def needs(module: str) -> pytest.MarkDecorator:
    """A test that is left out without a package."""
    return pytest.mark.skipif(find_spec(module) is None, reason=f"needs `lorarl env add {REQUIREMENTS[module]}`")


def played(
    named: dict[str, str], row: dict[str, Any], *texts: str, seed: int = 0, folder: Path = Path()
) -> tuple[Any, list[Answer]]:
    """Play one episode, and return what opened it and the answers."""
    environment = Environment(EnvironmentSpec(timeout_seconds=60.0, **named), CodeFolders((str(folder),)))

    async def play() -> tuple[Any, list[Answer]]:
        async with environment.episode(seed) as episode:
            return await episode.reset(row), [await episode.step(text) for text in texts]

    try:
        return asyncio.run(play())
    finally:
        environment.close()


@needs("textarena")
def test_a_game_says_piece_by_piece_what_is_new_and_counts_what_it_refuses() -> None:
    game = {"textarena": "GuessTheNumber-v0"}
    opening, answers = played(game, {"seed": 0}, "10", "no number [at all]", "[19]", "[0]", "[0]")
    assert "guess the number between 1 and 20" in opening
    assert answers[0] == Answer("The target number is higher.", False, None, {"won": 0.0, "invalid_moves": 0.0})
    assert answers[1].text.startswith("You attempted an invalid move.")
    assert answers[2] == Answer("The target number is lower.", False, None, {"won": 0.0, "invalid_moves": 1.0})
    assert answers[4].done and answers[4].components == {"won": 0.0, "invalid_moves": 3.0}
    assert answers[4].reward == pytest.approx(1 - 6 / 19)  # 13 was it


@needs("textarena")
def test_a_game_that_is_won_has_the_reward_1_and_a_rows_seed_is_its_game() -> None:
    game = {"textarena": "GuessTheNumber-v0"}
    _, answers = played(game, {"seed": 0}, "[13]", seed=1)
    assert answers == [Answer("", True, 1.0, {"won": 1.0, "invalid_moves": 0.0})]
    _, answers = played(game, {}, "[13]", seed=1)  # without a seed in the row, the step's own
    assert not answers[0].done


@needs("textarena")
def test_what_a_game_repeats_of_the_models_own_words_is_left_out() -> None:
    _, answers = played({"textarena": "TowerOfHanoi-v0"}, {"seed": 5}, "A C")
    assert answers[0].text.startswith("You moved disk 1 from A to C.")


@needs("textarena")
@pytest.mark.parametrize(
    ("game", "said"),
    [
        ("GuessTheNumbr-v0", r"none of the 712 environments of textarena, .* Did you mean GuessTheNumber-v0\?"),
        ("TicTacToe-v0", r"one player cannot begin here \(AssertionError: The number of players has to be 2"),
        ("QuantumTicTacToe-v0", "which is for several players"),
        ("TwentyQuestions-v0", r"cannot begin here \(ValueError: OpenRouter API key not found"),
    ],
)
def test_a_game_that_cannot_be_played_here_is_refused_with_the_reason(game: str, said: str) -> None:
    with pytest.raises(InputError, match=rf"^spec\.environment\.textarena: got {game}, .*{said}"):
        played({"textarena": game}, {})


@needs("textarena")
def test_a_game_with_words_downloads_none_and_says_which_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NLTK_DATA", os.devnull)
    monkeypatch.setenv("HOME", os.devnull)
    with pytest.raises(InputError, match=r"got Hangman-v0, .* needs data of nltk .*: python -m nltk\.downloader words"):
        played({"textarena": "Hangman-v0"}, {})


@needs("skyrl_gym")
def test_an_environment_of_skyrl_gym_takes_the_prompt_and_answer_of_a_row() -> None:
    task, row = {"skyrlGym": "gsm8k_multi_turn"}, {"prompt": "What is 1 + 1?", "answer": "2"}
    opening, answers = played(task, row, "#### 3", "#### 2")
    assert opening == [{"role": "user", "content": "What is 1 + 1?"}]
    assert answers[0].text.startswith("Please provide your step-by-step reasoning")
    assert answers[0].reward == pytest.approx(0.04)
    assert answers[1] == Answer("", True, 1.0, {"steps": 2.0})


@needs("skyrl_gym")
def test_a_row_that_no_turn_can_be_right_for_fails() -> None:
    with pytest.raises(EpisodeFailedError, match="the row has neither answer nor reward_spec"):
        played({"skyrlGym": "gsm8k"}, {"prompt": "What is 1 + 1?"})
    with pytest.raises(InputError, match=r"^spec\.environment\.skyrlGym: got search, which needs a search server"):
        played({"skyrlGym": "search"}, {})


@needs("gymnasium")
def test_a_world_is_drawn_without_colours_and_takes_numbers_as_actions() -> None:
    opening, answers = played({"gymnasium": "FrozenLake-v1"}, {"seed": 3}, "2", "left", "4")
    assert opening == "[S]FFF\nFHFH\nFFFH\nHFFG\nAnswer with a number from 0 to 3."
    assert "[F]HFH" in answers[0].text and answers[0].reward == 0.0
    assert [answer.text for answer in answers[1:]] == ["Answer with a number from 0 to 3."] * 2
    assert answers[2].components == {"invalid_moves": 2.0}


@needs("gymnasium")
def test_a_world_of_the_users_own_may_speak_in_texts(tmp_path: Path) -> None:
    (tmp_path / "my_worlds.py").write_text(OWN)
    named = {"gymnasium": "my_worlds:Parrot-v0"}
    opening, answers = played(named, {"seed": 3}, "hello", "bye", folder=tmp_path)
    assert re.fullmatch(r"say [0-9]+", opening)
    assert opening == played(named, {"seed": 3}, seed=9, folder=tmp_path)[0]
    assert answers == [
        Answer("HELLO", False, 0.5, {"invalid_moves": 0.0}),
        Answer("BYE", True, 0.5, {"invalid_moves": 0.0}),
    ]


@needs("gymnasium")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("CartPole-v1", "are no texts, and which draws none"),
        ("nowhere:Maze-v0", "ModuleNotFoundError: No module named"),
    ],
)
def test_a_world_that_has_no_words_is_refused(name: str, said: str) -> None:
    with pytest.raises(InputError, match=rf"^spec\.environment\.gymnasium: got {name}, .*{said}"):
        played({"gymnasium": name}, {})


@pytest.mark.parametrize("field", [field for field, module in MODULES.items() if module in REQUIREMENTS])
def test_without_the_package_the_error_says_how_to_install_it(field: str) -> None:
    if find_spec(MODULES[field]) is not None:
        pytest.skip("it is installed")
    requirement = REQUIREMENTS[MODULES[field]]
    with pytest.raises(InputError) as refused:
        played({field: "Some-v0"}, {})
    assert str(refused.value) == (
        f"spec.environment.{field}: got Some-v0, but the package {requirement.partition('==')[0]} is not installed, "
        f"expected an environment that can be played here. Install it: lorarl env add {requirement}. In a "
        "cluster, add it to the trainer's image."
    )


def test_a_package_that_lacks_another_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_a_package.py").write_text("import the_other_half")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(REQUIREMENTS, "half_a_package", "half-a-package==1")
    with pytest.raises(RefusedError) as refused:
        package("half_a_package", "Game-v0")
    assert refused.value.args[0] == "Game-v0, but half_a_package is installed without the_other_half"


def test_a_name_that_is_not_listed_is_told_the_nearest_or_some() -> None:
    require_listed("b", ["a", "b"], "games")
    with pytest.raises(RefusedError) as refused:
        require_listed("zebra", ["a", "b"], "games")
    assert refused.value.args[1] == "Name one of them, such as a, b."


def test_the_contract_names_the_versions_that_are_played() -> None:
    for field in (field for field, module in MODULES.items() if module in REQUIREMENTS):
        said = str(EnvironmentSpec.model_fields["skyrl_gym" if field == "skyrlGym" else field].description)
        assert f"lorarl env add {REQUIREMENTS[MODULES[field]]}" in said


@pytest.mark.long
def test_every_package_plays_as_it_is_installed(tmp_path: Path) -> None:
    """Without a skip: the packages come from the index, beside the versions that are installed here."""
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("".join(f"{line}\n" for line in installed_packages()))
    install = [*installer(), "--constraint", constraints, "--target", tmp_path / "packages", *REQUIREMENTS.values()]
    subprocess.run(install, check=True)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", __file__],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(tmp_path / "packages")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert "3 skipped" in ran.stdout, ran.stdout  # those of a missing package
