"""Which adapters a server can serve as they were trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from lorarl_trainer.trained_adapters.serving.fit import Terms, misfit
from lorarl_trainer.trained_adapters.serving.subject import terms_of
from lorarl_trainer.trained_adapters.source import Source

TERMS = Terms("org/base", "aa", 16)
PLAIN: dict[str, Any] = {"peft_type": "LORA", "r": 16, "lora_alpha": 32, "base_model_name_or_path": "org/base"}
TRAINED = {"baseModelFingerprint": "aa", "baseModel": "org/base"}
EXPERTS = {"r": 4, "lora_alpha": 8, "rank_pattern": {"q_proj": 16}, "alpha_pattern": {"q_proj": 32}}


@pytest.mark.parametrize("config", [{}, EXPERTS, {"use_rslora": True}, {"lora_dropout": 0.1, "target_modules": "all"}])
@pytest.mark.parametrize("metadata", [TRAINED, {}])
def test_plain_lora_of_the_servers_base_and_rank_is_served(config: dict[str, Any], metadata: dict[str, Any]) -> None:
    assert misfit(PLAIN | config, metadata, TERMS) is None


@pytest.mark.parametrize(
    ("config", "metadata", "reason"),
    [
        ({}, {"baseModelFingerprint": "bb", "baseModel": "org/other"}, "another base model than org/base: org/other"),
        ({"r": 32}, {}, "its rank is 32, and the server takes 16"),
        (EXPERTS | {"rank_pattern": {"q_proj": 64}, "alpha_pattern": {"q_proj": 128}}, {}, "its rank is 64"),
        ({"rank_pattern": {"q_proj": 8}}, {}, "several scales"),
        ({"peft_type": "IA3"}, {}, "peft_type is IA3"),
        ({"use_dora": True}, {}, "use_dora: True"),
        ({"alora_invocation_tokens": [5, 6]}, {}, r"alora_invocation_tokens: \[5, 6\]"),
        ({"lora_bias": True}, {}, "lora_bias: True"),
        ({"bias": "all"}, {}, "bias: 'all'"),
        ({"modules_to_save": ["lm_head"]}, {}, "modules_to_save"),
        ({"trainable_token_indices": [1]}, {}, "trainable_token_indices"),
        ({"init_lora_weights": "pissa"}, {}, "init_lora_weights: 'pissa'"),
        ({}, {"baseModelQuantization": "nf4"}, "trained on the base in nf4"),
        ({}, {"servedMerged": True}, "vLLM has other layers"),
    ],
)
def test_any_other_is_refused_with_the_reason(config: dict[str, Any], metadata: dict[str, Any], reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(misfit(PLAIN | config, metadata, TERMS))


def test_a_mixture_of_experts_on_a_cpu_is_refused_before_a_server_starts(tmp_path: Path) -> None:
    """vLLM's server would end while it starts, after a minute, with a traceback."""
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    base.mkdir()
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps(PLAIN))
    source = Source(name="run", adapter=adapter, base=str(base), revision=None, job=None, folder=tmp_path)
    for config, refused in (
        ({"num_experts": 8}, True),
        ({"num_local_experts": 4}, True),
        ({"text_config": {"num_experts": 8}}, True),
        ({"hidden_size": 8}, False),
    ):
        (base / "config.json").write_text(json.dumps({"model_type": "x"} | config))
        (base / "model.safetensors").write_bytes(safetensors.numpy.save({"a": np.zeros(1)}))
        on_cpu, on_gpu = (misfit(PLAIN, {}, terms_of(source, on_gpu=gpu)) for gpu in (False, True))
        assert (on_cpu or "").endswith("Serve it on a GPU, or merge it: lorarl merge.") is refused
        assert on_gpu is None
