"""Games for one player of the package textarena. Each is a class of this module, by the name that textarena has for it.

The model sees what the game says, piece by piece: textarena's own wrappers would repeat all of it in every turn.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, ClassVar

from lorarl_trainer.rewards.environment.worlds import package, require_listed, seeded
from lorarl_trainer.rewards.worker import RefusedError

_TRIAL_SEED = 1
"""Of the game that shows whether one player can begin it here."""


def __getattr__(game: str) -> type[_Game]:
    """Return the class that plays a game, which was begun once.

    Raises:
        RefusedError: there is no such game, or it cannot be begun here by one player.
    """
    if game.startswith("__"):
        raise AttributeError(game)
    textarena = package("textarena", game)
    require_listed(game, textarena.envs.registration.ENV_REGISTRY, "textarena")
    asked = _without_downloads()
    try:
        state = _begun(game, _TRIAL_SEED).state
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())[:200]
        if asked:
            data = " ".join(dict.fromkeys(asked))
            got = f"{game}, which needs data of nltk that are not there ({data})"
            raise RefusedError(got, f"Download them before the run: python -m nltk.downloader {data}.") from error
        got = f"{game}, which one player cannot begin here ({type(error).__name__}: {said})"
        raise RefusedError(got, "Choose a game for one player that needs no network.") from error
    if not isinstance(state, textarena.SinglePlayerState):
        raise RefusedError(f"{game}, which is for several players", "Choose a game for one player.")
    return type(game, (_Game,), {"game": game})


class _Game:
    """Plays one game. Only the end of a game has a reward.

    Components: won, 1 after the full reward of 1; invalid_moves, those that the game refused.
    """

    game: ClassVar[str]

    def reset(self, row: Mapping[str, Any]) -> str:
        self._game, self._invalid = _begun(self.game, seeded(row)), 0
        return self._said()

    def step(self, text: str) -> dict[str, Any]:
        done, _ = self._game.step(text)
        state = self._game.state
        self._invalid += state.error_count > 0 or state.game_info[0]["invalid_move"]
        reward = float(state.rewards[0]) if done else None
        return {
            "text": self._said(),
            "done": bool(done),
            "reward": reward,
            "won": float(reward is not None and reward >= 1.0),
            "invalid_moves": self._invalid,
        }

    def _said(self) -> str:
        """Return what the game said since the last time, without the player's own words."""
        said = self._game.state.get_current_player_observation()
        return "\n".join(message for _, message, kind in said if kind.name != "PLAYER_ACTION")


def _begun(game: str, seed: int) -> Any:
    environment = sys.modules["textarena"].make(game)
    environment.reset(num_players=1, seed=seed)
    return environment


def _without_downloads() -> list[str]:
    """Have nltk download nothing; return a list of what it is asked to, which grows."""
    import nltk  # type: ignore[import-not-found, import-untyped, unused-ignore]

    asked: list[str] = []

    def download(what: Any = None, *_: Any, **__: Any) -> bool:
        asked.extend([what] if isinstance(what, str) else what or [])
        return False

    nltk.download = download
    return asked
