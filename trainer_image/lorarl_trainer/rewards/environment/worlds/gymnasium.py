"""Environments of the package gymnasium that can be read and answered in words. Each is a class of this module.

Observations are texts, or are drawn as text (`render_mode="ansi"`). Actions are texts, or numbers in the model's turns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from lorarl_trainer.rewards.environment.worlds import package, seeded
from lorarl_trainer.rewards.worker import RefusedError

_COLOURED = re.compile(r"\x1b\[[0-9;]*m(.*?)\x1b\[0m", re.DOTALL)


def __getattr__(name: str) -> type[_World]:
    """Return the class that plays an environment, by its id: `FrozenLake-v1`, or `my_module:Maze-v0` to import first.

    Raises:
        RefusedError: there is no such environment, or it is none of words.
    """
    if name.startswith("__"):
        raise AttributeError(name)
    gymnasium = package("gymnasium", name)
    try:
        made = gymnasium.make(name)
    except Exception as error:
        got = f"{name}, which gymnasium cannot make ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        hint = "Correct the name. One of your own is my_module:Name-v0, beside the manifest."
        raise RefusedError(got, hint) from error
    spaces, drawn = gymnasium.spaces, "ansi" in made.metadata.get("render_modes", ())
    if not (drawn or isinstance(made.observation_space, spaces.Text)):
        got = f"{name}, whose observations ({made.observation_space}) are no texts, and which draws none"
        raise RefusedError(got, 'Choose one with observations of spaces.Text, or with the render mode "ansi".')
    if not isinstance(made.action_space, spaces.Text | spaces.Discrete):
        got = f"{name}, whose actions ({made.action_space}) are neither texts nor numbers"
        raise RefusedError(got, "Choose one with actions of spaces.Text or spaces.Discrete.")
    return type(name, (_World,), {"name": name, "gym": gymnasium})


class _World:
    """Plays one environment. Each step has a reward. Component: invalid_moves, those that are no action."""

    name: ClassVar[str]
    gym: ClassVar[Any]

    def reset(self, row: Mapping[str, Any]) -> str:
        seed = seeded(row)
        spaces, made = self.gym.spaces, self.gym.make(self.name)
        self._drawn = not isinstance(made.observation_space, spaces.Text)
        self._world = self.gym.make(self.name, render_mode="ansi") if self._drawn else made
        space = self._world.action_space
        self._numbers = None
        if isinstance(space, spaces.Discrete):
            self._numbers = range(int(space.start), int(space.start + space.n))
        self._invalid = 0
        observation, _ = self._world.reset(seed=seed)
        return "\n".join(filter(None, [self._shown(observation), self._choice()]))

    def step(self, text: str) -> dict[str, Any]:
        action: str | int | None = text
        if self._numbers is not None:
            action = int(text) if re.fullmatch(r"\s*-?[0-9]{1,9}\s*", text) else None
            action = action if action in self._numbers else None
        if action is None:
            self._invalid += 1
            return {"text": self._choice(), "reward": 0.0, "invalid_moves": self._invalid}
        observation, reward, terminated, truncated, _ = self._world.step(action)
        return {
            "text": self._shown(observation),
            "reward": float(reward),
            "done": bool(terminated or truncated),
            "invalid_moves": self._invalid,
        }

    def _choice(self) -> str:
        numbers = self._numbers
        return f"Answer with a number from {numbers[0]} to {numbers[-1]}." if numbers else ""

    def _shown(self, observation: Any) -> str:
        """Return an observation in words; what is coloured in a drawing has brackets instead."""
        return _COLOURED.sub(r"[\1]", self._world.render()).strip("\n") if self._drawn else str(observation)
