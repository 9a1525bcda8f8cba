"""Cases of the rules for environments."""

from __future__ import annotations

from typing import Any

from unit.contract.manifests import TWO, Case

PLAYED: dict[str, Any] = {"spec.reward": None, "spec.environment": {"function": "my_env:Episode"}}
HELD_OUT = {"name": "held-out", "uri": "file:out/test.jsonl"}
GAME: dict[str, Any] = {"spec.reward": None, "spec.environment": {"textarena": "GuessTheNumber-v0"}}
SERVED: dict[str, Any] = {"spec.reward": None, "spec.environment": {"openEnv": "http://game:8000"}}
CALLED: dict[str, Any] = {"spec.environment": {"tools": ["my_tools:search"]}}
TASKS: dict[str, Any] = {"spec.reward": None, "spec.environment": {"verifiers": "my-taskset"}}
ASKED: dict[str, Any] = {"spec.reward": None, "spec.environment": {"agent": "my_agent:play"}}
ENVIRONMENT_CASES = [
    Case(
        "tools or a class",
        PLAYED | {"spec.environment.tools": ["my_tools:search"]},
        CALLED,
        "spec.environment",
        "Set tools to let the model call functions beside a reward",
    ),
    Case(
        "a class or a game",
        PLAYED | {"spec.environment.textarena": "GuessTheNumber-v0"},
        GAME,
        "spec.environment",
        "one of the others for an environment of a package",
    ),
    Case(
        "a server or a game",
        SERVED | {"spec.environment.textarena": "GuessTheNumber-v0"},
        SERVED | {"spec.data.train": {"episodes": {"size": 8}}},
        "spec.environment",
        "openEnv for a server",
    ),
    Case(
        "an address without a password",
        SERVED | {"spec.environment.openEnv": "http://me:secret@game:8000"},
        SERVED,
        "spec.environment.openEnv",
        "Remove what is before @",
    ),
    Case("a game rewards", GAME | {"spec.reward": {"type": "exact"}}, GAME, "spec.reward", "Remove reward"),
    Case(
        "episodes are opened",
        CALLED | {"spec.data.train": {"episodes": {"size": 8}}},
        GAME | {"spec.data.train": {"episodes": {"size": 8}}},
        "spec.data.train",
        "set environment.function, textarena, gymnasium, verifiers or openEnv",
    ),
    Case(
        "held-out episodes are opened",
        {"spec.environment": {"skyrlGym": "gsm8k"}, "spec.reward": None, "spec.data.eval": {"episodes": {}}},
        GAME | {"spec.data.eval": {"episodes": {}}},
        "spec.data.eval",
        "rows with prompts",
    ),
    Case(
        "episodes of a mixture are opened",
        {"spec.data.train": None, "spec.data.mixture": [{"name": "some", "episodes": {}}]},
        GAME | {"spec.data.train": None, "spec.data.mixture": [{"name": "some", "episodes": {}}]},
        "spec.data.mixture",
        "rows with prompts",
    ),
    Case(
        "named held-out episodes are opened",
        {"spec.data.evals": [{"name": "some", "episodes": {}}]},
        GAME | {"spec.data.evals": [{"name": "some", "episodes": {}}]},
        "spec.data.evals",
        "rows with prompts",
    ),
    Case(
        "rows or episodes",
        GAME | {"spec.data.train.episodes": {"size": 8}},
        GAME,
        "spec.data.train.uri",
        "episodes for seeds alone",
    ),
    Case("tools or a class, not neither", {"spec.environment": {"maxTurns": 2}}, CALLED, "spec.environment", "tools"),
    Case("tools need a reward", CALLED | {"spec.reward": None}, CALLED, "spec.reward", "Add a reward"),
    Case(
        "a format of tools",
        PLAYED | {"spec.environment.toolFormat": "hermes"},
        CALLED | {"spec.environment.toolFormat": "hermes"},
        "spec.environment.toolFormat",
        "set environment.tools",
    ),
    Case(
        "a game writes no calls",
        GAME | {"spec.environment.toolFormat": "hermes"},
        GAME,
        "spec.environment.toolFormat",
        "set environment.tools",
    ),
    Case(
        "an agent or a class",
        ASKED | {"spec.environment.function": "my_env:Episode"},
        ASKED | {"spec.environment.toolFormat": "hermes"},
        "spec.environment",
        "agent for a function that calls the model itself",
    ),
    Case(
        "an agent's sequences",
        PLAYED | {"spec.environment.maxSequences": 2},
        ASKED | {"spec.environment.maxSequences": 2},
        "spec.environment.maxSequences",
        "Remove maxSequences",
    ),
    Case(
        "a taskset or an agent",
        TASKS | {"spec.environment.agent": "my_agent:play"},
        TASKS | {"spec.environment.toolFormat": "hermes", "spec.environment.maxSequences": 2},
        "spec.environment",
        "one of the others for an environment of a package",
    ),
    Case(
        "a template writes a taskset's messages",
        TASKS | {"spec.data.chatTemplate": False},
        TASKS | {"spec.data.train": {"episodes": {"size": 8}}},
        "spec.environment.verifiers",
        "Remove data.chatTemplate",
    ),
    Case("a taskset rewards", TASKS | {"spec.reward": {"type": "exact"}}, TASKS, "spec.reward", "Remove reward"),
    Case("an agent rewards", ASKED | {"spec.reward": {"type": "exact"}}, ASKED, "spec.reward", "or from the agent"),
    Case(
        "a template writes messages",
        ASKED | {"spec.data.chatTemplate": False},
        ASKED,
        "spec.environment.agent",
        "Remove data.chatTemplate",
    ),
    Case(
        "a template shows tools",
        CALLED | {"spec.data.chatTemplate": False},
        CALLED,
        "spec.environment.tools",
        "Remove data.chatTemplate",
    ),
    Case("sft plays nothing", PLAYED | {"spec.algorithm.type": "sft"}, PLAYED, "spec.environment", "type to grpo"),
    Case("an environment rewards", PLAYED | {"spec.reward": {"type": "exact"}}, PLAYED, "spec.reward", "from step"),
    Case("an environment sums", PLAYED | {"spec.rewards": TWO}, PLAYED, "spec.rewards", "from step"),
    Case(
        "a critic knows one turn",
        PLAYED | {"spec.algorithm": {"type": "ppo"}},
        PLAYED | {"spec.algorithm": {"type": "rloo"}},
        "spec.environment",
        "Set algorithm.type to grpo.",
    ),
    Case(
        "lengths of the model's own",
        PLAYED | {"spec.algorithm": {"type": "dapo", "dapo": {"overlongBufferTokens": 8}}},
        PLAYED | {"spec.algorithm": {"type": "dapo"}},
        "spec.algorithm.dapo.overlongBufferTokens",
        "smaller reward for long turns",
    ),
    Case(
        "episodes end in their step",
        PLAYED
        | {"spec.rollout.partial": {"extraPrompts": 4}, "spec.algorithm.correction": {"preset": "decoupled_token_is"}},
        PLAYED,
        "spec.rollout.partial",
        "Remove rollout.partial.",
    ),
    Case(
        "evaluations are played",
        PLAYED | {"spec.data.evals": [HELD_OUT | {"reward": {"type": "exact"}}]},
        PLAYED | {"spec.data.evals": [HELD_OUT]},
        "spec.data.evals",
        "Remove the reward of each evaluation.",
    ),
    Case(
        "a turn fits its episode",
        PLAYED | {"spec.environment.maxTurnTokens": 9, "spec.rollout.maxResponseTokens": 8},
        PLAYED | {"spec.environment.maxTurnTokens": 8, "spec.rollout.maxResponseTokens": 8},
        "spec.environment.maxTurnTokens",
        "Lower maxTurnTokens",
    ),
    Case(
        "pods for an environment need one",
        {"spec.cluster.environments": {}},
        PLAYED | {"spec.cluster.environments": {}},
        "spec.cluster.environments",
        "Remove cluster.environments, or add environment.",
    ),
    Case(
        "pods for an environment have a CPU quantity",
        PLAYED | {"spec.cluster.environments": {"cpus": "eight"}},
        PLAYED | {"spec.cluster.environments": {"cpus": "500m"}},
        "spec.cluster.environments.cpus",
        "Write a quantity such as 8",
    ),
    Case(
        "nodes of pods for an environment have labels",
        PLAYED | {"spec.cluster.environments": {"nodeSelector": {"-": "a"}}},
        PLAYED | {"spec.cluster.environments": {"nodeSelector": {"pool": "a"}}},
        "spec.cluster.environments.nodeSelector",
        "Write a key such as example.com/name.",
    ),
    Case(
        "pods for an environment beside nodes that come and go",
        PLAYED | {"spec.cluster": {"nodes": 2, "minNodes": 1, "environments": {}}},
        PLAYED | {"spec.cluster": {"nodes": 2, "minNodes": 2, "environments": {}}},
        "spec.cluster.minNodes",
        "Remove cluster.minNodes or cluster.environments.",
    ),
]
