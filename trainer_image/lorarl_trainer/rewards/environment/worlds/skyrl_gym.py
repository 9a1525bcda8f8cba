"""Environments of the package skyrl-gym. Each is a class of this module, by the name that skyrl-gym has for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from lorarl_trainer.rewards.environment.worlds import package, require_listed, seeded
from lorarl_trainer.rewards.worker import RefusedError

_NEED_MORE = {"search": "a search server", "searchcode": "a search server", "text2sql": "databases"}
"""Those of the package that need what no package has."""


def __getattr__(name: str) -> type[_Task]:
    """Return the class that plays an environment.

    Raises:
        RefusedError: there is no such environment, or it needs more than rows.
    """
    if name.startswith("__"):
        raise AttributeError(name)
    skyrl_gym = package("skyrl_gym", name)
    require_listed(name, skyrl_gym.envs.registration.registry, "skyrl-gym")
    if needed := _NEED_MORE.get(name):
        hint = "Choose another, or make it in a class of yours: environment.function."
        raise RefusedError(f"{name}, which needs {needed}", hint)
    return type(name, (_Task,), {"name": name, "gym": skyrl_gym})


class _Task:
    """Plays one environment. Numbers of its metadata and metrics are components."""

    name: ClassVar[str]
    gym: ClassVar[Any]

    def reset(self, row: Mapping[str, Any]) -> list[dict[str, Any]]:
        if not {"answer", "reward_spec", "reward_model"} & set(row):
            raise ValueError("the row has neither answer nor reward_spec, so that no turn could be right")
        seeded(row)
        truth = {"method": "rule", "ground_truth": row.get("answer")}
        extras = {"reward_spec": truth, "reward_model": truth, "extra_info": {}, **row}
        prompt = row["prompt"]
        self._task = self.gym.make(self.name, extras=extras)
        opening, _ = self._task.init([{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt)
        return list(opening)

    def step(self, text: str) -> dict[str, Any]:
        output = self._task.step(text)
        metrics = {**(output.get("metadata") or {}), **self._task.get_metrics()}
        return {
            **{key: value for key, value in metrics.items() if isinstance(value, int | float)},
            "text": "\n".join(str(message["content"]) for message in output["observations"]),
            "done": bool(output["done"]),
            "reward": float(output["reward"]),
        }
