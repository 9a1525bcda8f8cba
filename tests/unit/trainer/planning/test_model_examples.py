"""The recipes of examples/models run on the GPU that they name, by the sizes of their models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lorarl_api.load import load_job
from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.planning.verdict import judge
from unit.trainer.models import test_gemma4 as gemma4
from unit.trainer.models import test_gpt_oss as gpt_oss
from unit.trainer.models.test_granite4 import GRANITE_4_H_1B
from unit.trainer.models.test_lfm2 import LFM_2
from unit.trainer.models.test_qwen3_5 import QWEN_3_5_35B
from unit.trainer.models.test_supported_models import QWEN_3_5_4B
from unit.trainer.planning.shapes import config
from unit.trainer.planning.test_choice import H200

RECIPES = Path(__file__).parents[4] / "examples/models"
QWEN_3_4B = config(
    "qwen3",
    hidden_size=2560,
    intermediate_size=9728,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=151_936,
    tie_word_embeddings=True,
)
MODELS: dict[str, dict[str, Any]] = {
    "qwen3-4b": QWEN_3_4B,
    "qwen3.5-4b": QWEN_3_5_4B,
    "qwen3.5-35b-a3b": QWEN_3_5_35B,
    "gemma4-e4b": gemma4.of(gemma4.E4B),
    "gpt-oss-20b": gpt_oss.CONFIG,
    "granite-4.0-h-1b": GRANITE_4_H_1B,
    "lfm2-1.2b": LFM_2,
}

GPUS = {"qwen3.5-35b-a3b": H200, "lfm2-1.2b": Gpu(total=24_000_000_000, free=23_000_000_000)}


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_recipe_fits_on_one_gpu(path: Path) -> None:
    spec = load_job(path).spec
    verdict = judge(spec, MODELS[path.stem], GPUS.get(path.stem, gpt_oss.H100))
    assert verdict.plan is not None and verdict.plan.fits
    assert (spec.cluster.nodes, spec.cluster.gpus_per_node) == (1, 1)
