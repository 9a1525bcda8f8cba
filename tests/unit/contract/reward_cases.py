"""Cases of the rules for rewards and data."""

from __future__ import annotations

from unit.contract.manifests import SFT, TWO, Case

SERVER = {"url": "http://judge/v1", "model": "m"}
SOURCES = [{"name": "sums", "uri": "s3://a/sums.jsonl"}, {"name": "logic", "weight": 0.5, "uri": "s3://a/logic.csv"}]
PENALTY = {"name": "short", "weight": 0.5, "repetition": {}}
REWARD_CASES = [
    Case(
        "sft has no rewards",
        SFT | {"spec.rewards": TWO},
        {"spec.reward": None, "spec.rewards": TWO},
        "spec.rewards",
        "Remove rewards, or set",
    ),
    Case(
        "a reward or rewards",
        {"spec.rewards": TWO},
        {"spec.reward": None, "spec.rewards": TWO},
        "spec.rewards",
        "Move reward into the list",
    ),
    Case(
        "rewards have names of their own",
        {"spec.reward": None, "spec.rewards": [TWO[0], TWO[0]]},
        {"spec.reward": None, "spec.rewards": [TWO[0], TWO[0] | {"name": "again"}]},
        "spec.rewards",
        "Rename a reward",
    ),
    Case(
        "rewards that count",
        {"spec.reward": None, "spec.rewards": [TWO[0] | {"weight": 0.0}]},
        {"spec.reward": None, "spec.rewards": [TWO[0] | {"weight": -1.0}]},
        "spec.rewards",
        "Set the weight of a reward",
    ),
    Case(
        "a penalty stays one",
        {"spec.reward": None, "spec.rewards": [TWO[0], PENALTY | {"weight": -1.0}]},
        {"spec.reward": None, "spec.rewards": [TWO[0], PENALTY]},
        "spec.rewards[1].weight",
        "Remove the minus sign",
    ),
    Case(
        "one of several rewards, not none",
        {"spec.reward": None, "spec.rewards": [{"name": "a"}]},
        {"spec.reward": None, "spec.rewards": [{"name": "a", "function": "m:f"}]},
        "spec.rewards[0].type",
        "Set type",
    ),
    Case(
        "a source is that of a function",
        {"spec.reward": {"type": "exact", "source": {"configMap": "code"}}},
        {"spec.reward": {"function": "m:f", "source": {"configMap": "code"}}},
        "spec.reward.source",
        "Remove source, or name the function",
    ),
    Case(
        "a source is one thing",
        {"spec.reward": {"function": "m:f", "source": {"configMap": "code", "uri": "s3://team/code.py"}}},
        {"spec.reward": {"function": "m:f", "source": {"uri": "s3://team/code.py"}}},
        "spec.reward.source.configMap",
        "Name a ConfigMap, or the URI",
    ),
    Case(
        "a ConfigMap needs no keys",
        {"spec.reward": {"function": "m:f", "source": {"configMap": "code", "credentialsSecret": "keys"}}},
        {"spec.reward": {"function": "m:f", "source": {"uri": "s3://team/code", "credentialsSecret": "keys"}}},
        "spec.reward.source.credentialsSecret",
        "Remove credentialsSecret",
    ),
    Case(
        "one way to score",
        {"spec.reward": {"type": "exact", "code": {}}},
        {"spec.reward": {"code": {"testsField": "checks", "score": "share", "memoryMiB": 128}}},
        "spec.reward.type",
        "Keep one of them",
    ),
    Case(
        "a format has a pattern",
        {"spec.reward": {"type": "format"}},
        {"spec.reward": {"type": "format", "pattern": "<b>.*</b>"}},
        "spec.reward.pattern",
        "Add a pattern",
    ),
    Case(
        "a length that can be reached",
        {"spec.reward": {"length": {"freeTokens": 100_000, "maxTokens": 100_001}}},
        {"spec.reward": {"length": {"freeTokens": 10, "maxTokens": 100_001}}},
        "spec.reward.length.freeTokens",
        "Lower freeTokens, or raise rollout",
    ),
    Case(
        "lengths that can be reached",
        {
            "spec.reward": None,
            "spec.rewards": [TWO[0], {"name": "long", "length": {"freeTokens": 100_000, "maxTokens": 100_001}}],
        },
        {
            "spec.reward": None,
            "spec.rewards": [TWO[0], {"name": "long", "length": {"freeTokens": 10, "maxTokens": 100_001}}],
        },
        "spec.rewards",
        "Lower length.freeTokens, or raise rollout",
    ),
    Case(
        "a length that falls",
        {"spec.reward": {"length": {"freeTokens": 10, "maxTokens": 10}}},
        {"spec.reward": {"length": {"freeTokens": 10, "maxTokens": 11}}},
        "spec.reward.length.maxTokens",
        "Raise maxTokens",
    ),
    Case(
        "one source of rows",
        {"spec.data.train.reasoningGym": {"task": "chain_sum"}},
        {"spec.data.train": {"reasoningGym": {"task": "chain_sum", "config": {"max_terms": 3}}}},
        "spec.data.train.uri",
        "or reasoningGym for generated ones",
    ),
    *(
        Case(
            f"only judges have {field}",
            {"spec.reward": {"server": SERVER | {"api": "classify", field: value}}},
            {"spec.reward": {"server": SERVER | {field: value}}},
            f"spec.reward.server.{field}",
            f"Remove {field}: a model",
        )
        for field, value in (("instruction", "{completion}?"), ("highest", 5.0), ("maxTokens", 9))
    ),
    Case(
        "a judge sees the completion",
        {"spec.reward": {"server": SERVER | {"instruction": "Is it good?"}}},
        {"spec.reward": {"server": SERVER | {"instruction": "Is {completion} good?"}}},
        "spec.reward.server.instruction",
        "Write {completion}",
    ),
    Case(
        "a judge's address",
        {"spec.reward": {"server": SERVER | {"url": "judge:8000"}}},
        {"spec.reward": {"server": SERVER | {"url": "https://judge:8000/v1", "credentialsSecret": "judge-key"}}},
        "spec.reward.server.url",
        "Write it as http://HOST:PORT/v1",
    ),
    Case(
        "no key in a judge's address",
        {"spec.reward": {"server": SERVER | {"url": "https://user:key@judge/v1"}}},
        {"spec.reward": {"server": SERVER}},
        "spec.reward.server.url",
        "store them in credentialsSecret",
    ),
    Case(
        "rows for training",
        {"spec.data.train": None},
        {"spec.data.train": None, "spec.data.mixture": SOURCES},
        "spec.data.train",
        "or data.mixture for those of several",
    ),
    Case(
        "sources have names of their own",
        {"spec.data.train": None, "spec.data.mixture": [SOURCES[0], SOURCES[1] | {"name": "sums"}]},
        {"spec.data.train": None, "spec.data.mixture": SOURCES},
        "spec.data.mixture",
        "Rename one of the two",
    ),
]
