"""adapter_config.json says what PEFT's own would say of the same training."""

from __future__ import annotations

import pytest

from lorarl_trainer.lora.config import AdapterConfig
from lorarl_trainer.lora.peft_format import adapter_config

PLAIN = AdapterConfig(8, 16)
LAYERS = [f"model.layers.{layer}.mlp.{part}_proj" for layer in range(2) for part in ("gate", "up", "down")]


def config(adapted: list[str], adapter: AdapterConfig = PLAIN, **options: object) -> dict[str, object]:
    names = [f"{layer}.lora_{part}.weight" for layer in adapted for part in "AB"]
    return adapter_config(names, adapter, "org/base", LAYERS, **options)  # type: ignore[arg-type]


def test_the_commit_of_the_base_is_written() -> None:
    """AutoPeftModelForCausalLM loads the base with it; without it, a job of a pinned base loads onto main."""
    assert config(LAYERS, revision="a1b2c3")["revision"] == "a1b2c3"
    assert config(LAYERS)["revision"] is None


def test_the_dropout_of_the_training_is_written() -> None:
    assert config(LAYERS, dropout=0.1)["lora_dropout"] == 0.1


def test_what_was_excluded_is_written_as_short_as_it_can_be() -> None:
    kept = [layer for layer in LAYERS if not layer.endswith("gate_proj")]
    everywhere = config(kept, excluded=[layer for layer in LAYERS if layer.endswith("gate_proj")])
    assert (everywhere["target_modules"], everywhere["exclude_modules"]) == (["down_proj", "up_proj"], ["gate_proj"])
    in_one_layer = config(LAYERS[:3], excluded=LAYERS[3:])
    assert in_one_layer["target_modules"] == sorted(LAYERS[:3])
    assert in_one_layer["exclude_modules"] == sorted(LAYERS[3:])
    assert config(LAYERS)["exclude_modules"] is None


@pytest.mark.slow
def test_peft_knows_every_key_and_reads_the_values_back() -> None:
    from peft import LoraConfig

    written = config(LAYERS, revision="a1b2c3", dropout=0.1)
    read = LoraConfig(**{key: value for key, value in written.items() if key != "peft_type"}).to_dict()
    assert {key: read[key] for key in written if key not in ("target_modules", "peft_type")} == {
        key: value for key, value in written.items() if key not in ("target_modules", "peft_type")
    }
    assert set(read["target_modules"]) == set(written["target_modules"])  # type: ignore[call-overload]
