"""The identity of a training decides whether it may resume from a checkpoint."""

from __future__ import annotations

import pytest

from lorarl_api.load import load_job
from lorarl_trainer.checkpoint.identity import differences, other_inputs, require_same_training, training_identity
from lorarl_trainer.errors import InputError

MANIFEST = """
apiVersion: lorarl.io/v1alpha1
kind: LoRARLJob
metadata: {name: same}
spec:
  model: {uri: "file:base"}
  adapter: {targetModules: [all-linear]}
  reward: {type: exact}
  data: {train: {uri: "file:train.jsonl"}}
  checkpoint: {uri: "file:checkpoints"}
"""


def identity_with(*changes: str) -> dict[str, object]:
    return training_identity(load_job(MANIFEST, [f"spec.{change}" for change in changes]).spec, "fingerprint")


def test_writing_out_a_default_does_not_change_the_identity() -> None:
    defaults = ("groupSize=8", "clipRange=0.2", "klCoefficient=0", "updatesPerStep=1")
    assert identity_with(*(f"algorithm.{default}" for default in defaults)) == identity_with()
    assert identity_with("algorithm.clipRange=0.1") != identity_with()


def test_the_kind_of_adapter_belongs_to_the_identity() -> None:
    off = ("adapter.rslora=false", "adapter.dora=false", "adapter.experts=perExpert")
    assert identity_with(*off) == identity_with()
    assert differences(identity_with(), identity_with("adapter.experts=sharedOuter")) == [
        'adapter.experts was "perExpert", is "sharedOuter"'
    ]
    assert differences(identity_with(), identity_with("adapter.rslora=true")) == ["adapter.rslora was false, is true"]


def test_fields_that_may_change_are_not_part_of_the_identity() -> None:
    assert (
        identity_with("trainer.steps=5", "trainer.learningRate=1e-3", "checkpoint.every=7", "rollout.promptsPerStep=4")
        == identity_with()
    )


def test_a_critic_belongs_to_the_identity_and_its_rate_does_not() -> None:
    ppo = identity_with("algorithm.type=ppo")
    assert identity_with("algorithm.type=ppo", "algorithm.ppo.criticLearningRate=1e-3") == ppo
    other = identity_with("algorithm.type=ppo", "algorithm.ppo={gaeLambda: 0.9, criticLearningRate: 1e-3}")
    assert differences(ppo, other) == ['algorithm.ppo was null, is {"gaeLambda": 0.9}']


def test_what_scores_belongs_to_the_identity_and_how_patiently_does_not() -> None:
    two = "rewards=[{name: right, type: exact}, {name: tidy, weight: 0.5, function: 'm:f'}]"
    several = identity_with("reward=null", two)
    assert several["rewards.right"] == {"name": "right", "weight": 1.0, "type": "exact"}
    patient = two.replace("type: exact", "type: exact, maxFailedShare: 0.5, timeoutSeconds: 3")
    assert identity_with("reward=null", patient) == several
    heavier = identity_with("reward=null", two.replace("0.5", "0.7"))
    assert [change.partition(" was ")[0] for change in differences(several, heavier)] == ["rewards.tidy"]
    assert not [key for key in identity_with("reward.maxFailedShare=0.5") if key.startswith("rewards")]
    assert identity_with("reward.maxFailedShare=0.5") == identity_with()


def test_how_often_groups_are_replaced_belongs_to_the_identity() -> None:
    assert identity_with("algorithm.maxRefills=0") == identity_with()
    assert identity_with("algorithm.maxRefills=2") != identity_with()


def test_a_teacher_belongs_to_the_identity_and_its_address_does_not() -> None:
    def taught(teacher: str) -> dict[str, object]:
        return identity_with("reward=null", f"algorithm={{type: distillation, distillation: {{{teacher}}}}}")

    server = taught("server: {url: 'http://a/v1', model: big}")
    assert taught("server: {url: 'http://b/v1', model: big, retries: 9, maxFailedShare: 0.5}") == server
    assert taught("server: {url: 'http://a/v1', model: bigger}") != server
    assert taught("adapter: 's3://team/a'") != taught("adapter: 's3://team/b'")


def test_the_sources_and_weights_of_a_mixture_belong_to_the_identity() -> None:
    two = "[{name: a, uri: 'file:a.jsonl'}, {name: b, weight: 2, uri: 'file:b.jsonl'}]"
    mixed = identity_with("data.train=null", f"data.mixture={two}")
    assert "data.train.uri" not in mixed
    assert mixed == identity_with("data.train=null", f"data.mixture={two.replace('name: a,', 'name: a, weight: 1,')}")
    other = identity_with("data.train=null", f"data.mixture={two.replace('2', '3')}")
    assert [change.partition(" was ")[0] for change in differences(mixed, other)] == ["data.mixture"]


def test_where_a_reward_server_is_does_not_belong_to_the_identity() -> None:
    server = "reward={server: {url: 'http://a/v1', model: m}}"
    here = identity_with("reward=null", server)
    assert here == identity_with(
        "reward=null", server.replace("http://a/v1", "http://b/v1").replace("m}", "m, retries: 9}")
    )
    assert here != identity_with("reward=null", server.replace("model: m", "model: other"))


def test_limits_that_decide_which_rows_there_are_belong_to_the_identity() -> None:
    """With other rows, the order of each epoch is another: a resumed run would repeat rows and miss others."""
    assert differences(identity_with(), identity_with("rollout.maxPromptTokens=600")) == [
        "rollout.maxPromptTokens was 512, is 600"
    ]
    assert identity_with("rollout.maxResponseTokens=600") == identity_with()
    sft = ("algorithm.type=sft", "reward=null")
    assert differences(identity_with(*sft), identity_with(*sft, "rollout.maxResponseTokens=600")) == [
        "rollout.maxResponseTokens was 1024, is 600"
    ]


def test_a_checkpoint_of_another_base_is_refused() -> None:
    was, now = (identity_with() | {"model.fingerprint": digest} for digest in ("before", "merged"))
    assert differences(was, now) == ["model.uri has other weights or another config.json than then"]
    with pytest.raises(InputError, match=r"another training \(model\.uri has other weights or another config\.json"):
        require_same_training(was, now, "s3://a/iter_0000001")


def test_arguments_of_the_template_make_other_prompts_and_another_training() -> None:
    assert identity_with("data.chatTemplateArguments={}") == identity_with()
    assert differences(identity_with(), identity_with("data.chatTemplateArguments={enable_thinking: false}")) == [
        'data.chatTemplateArguments was null, is {"enable_thinking": false}'
    ]


def test_rows_and_reward_code_that_changed_are_named() -> None:
    was = {
        "data": {"train": {"rows": 5, "sha256": "a"}, "eval": {"rows": 2, "sha256": "b"}},
        "rewardCode": {"r:f": "c"},
    }
    assert other_inputs(was, was) == []
    now = was | {"data": was["data"] | {"eval": {"rows": 3, "sha256": "d"}}, "rewardCode": {"r:f": "e", "r:g": "f"}}
    (found,) = other_inputs(was, now)
    assert "but the rows of eval (had 2, has 3) and the code of r:f changed since" in found


def test_a_teacher_or_a_reference_that_changed_is_named() -> None:
    was = {"adapters": {"spec.adapter.initFrom": "a"}}
    assert other_inputs(was, was) == other_inputs({}, was) == other_inputs(was, {}) == []
    (found,) = other_inputs(was, {"adapters": {"spec.adapter.initFrom": "b"}})
    assert "but the adapter of spec.adapter.initFrom changed since the checkpoint was made" in found
