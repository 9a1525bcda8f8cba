"""The model card: what the hub reads of it, and what a person finds."""

from __future__ import annotations

from typing import Any

import pytest
from huggingface_hub import ModelCard

from lorarl_trainer.loading import serve_command
from lorarl_trainer.lora.model_card import model_card

CONFIG = {"r": 12, "lora_alpha": 24}


def metadata(model: str = "hf://org/base", **spec: Any) -> dict[str, Any]:
    manifest = {
        "metadata": {"name": "sums"},
        "spec": {
            "model": {"uri": model},
            "reward": {"function": "sums:score"},
            "data": {"train": {"uri": "hf://org/sums"}, "eval": {"uri": "file:held|out.jsonl"}},
            **spec,
        },
    }
    return {
        "job": "sums",
        "step": 20,
        "baseModel": model.removeprefix("hf://"),
        "baseModelFingerprint": "abc",
        "manifest": manifest,
        "versions": {"lorarl": "0.1.0"},
        "data": {"train": {"rows": 1200, "sha256": "d1"}},
        "rewardCode": {"sums:score": "c0de"},
    }


def test_the_hub_finds_base_model_data_and_library() -> None:
    card = ModelCard(model_card(metadata(), CONFIG, {}).decode())
    assert card.data.base_model == "org/base"
    assert card.data.library_name == "peft"
    assert card.data.datasets == ["org/sums"]
    assert card.data.tags == ["lora", "lorarl", "grpo", "reinforcement-learning"]


def test_a_local_base_is_no_name_on_the_hub() -> None:
    card = ModelCard(model_card(metadata("file:/models/base"), CONFIG, {}).decode())
    assert card.data.base_model is None


def test_a_person_finds_results_data_reward_code_and_how_to_load_it() -> None:
    results = {
        "before training": {"eval_score": 0.25},
        "after this step": {"reward_mean": 0.71234, "eval_score": 0.5, "eval_score_low": 0.4, "eval_score_high": 0.6},
    }
    text = model_card(metadata(algorithm={"type": "grpo"}), CONFIG, results).decode()
    for part in (
        "# sums, step 20",
        "|  | before training | after this step |",
        "| reward_mean |  | 0.7123 |",
        "| eval_score | 0.25 | 0.5 [0.4, 0.6] |",
        "`hf://org/sums`, 1,200 rows, SHA-256 `d1`",
        "`file:held\\|out.jsonl`",
        "| reward code `sums:score` | SHA-256 `c0de` |",
        "PeftModel.from_pretrained(",
        f"{serve_command()} org/base --enable-lora --max-lora-rank 16",
        "function: sums:score",
        "| lorarl | 0.1.0 |",
    ):
        assert part in text, part


@pytest.mark.parametrize(
    ("config", "more"), [({"use_dora": True}, {}), ({}, {"servedMerged": True}), ({}, {"baseModelQuantization": "nf4"})]
)
def test_what_vllm_does_not_serve_is_merged(config: dict[str, Any], more: dict[str, Any]) -> None:
    text = model_card(metadata() | more, CONFIG | config, {}).decode()
    assert f"lorarl merge . --out merged\n{serve_command()} merged" in text
    assert "--enable-lora" not in text
    assert ("# The training had the base in nf4." in text) == ("baseModelQuantization" in more)


@pytest.mark.parametrize("chat", [True, False])
def test_the_server_is_asked_as_the_model_was_trained(chat: bool) -> None:
    text = model_card(metadata(), CONFIG, {}, chat=chat).decode()
    assert ("/v1/chat/completions" in text, "/v1/completions" in text) == (chat, not chat)


def test_every_source_of_a_mixture_is_named() -> None:
    sources = [
        {"name": "sums", "uri": "hf://org/sums"},
        {"name": "made", "weight": 2.0, "reasoningGym": {"task": "chain_sum"}},
        {"name": "played", "episodes": {}},
    ]
    found = metadata(data={"mixture": sources}) | {"data": {"mixture/sums": {"rows": 1200, "sha256": "d1"}}}
    card = model_card(found, CONFIG, {}).decode()
    assert "| data, mixture/sums | `hf://org/sums`, 1,200 rows, SHA-256 `d1` |" in card
    assert "| data, mixture/made | `reasoning-gym:chain_sum` |" in card
    assert "| data, mixture/played | `episodes:0` |" in card
    assert ModelCard(card).data.datasets == ["org/sums"]


def test_metadata_of_an_earlier_release_is_enough_for_a_card() -> None:
    earlier = {name: metadata()[name] for name in ("job", "step", "baseModel", "baseModelFingerprint")}
    assert b"# sums, step 20" in model_card(earlier, CONFIG, {})
