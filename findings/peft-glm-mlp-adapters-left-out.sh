#!/usr/bin/env bash
# PEFT 0.21 puts no adapter on the dense and shared MLPs of GLM-4.5 with experts, although the configuration names them.
#
# Transformers 5 keeps a layer's experts as two tensors. PEFT rewrites `gate_proj`, `up_proj` and `down_proj` of
# `target_modules` into parameters of those tensors. In this family the first layers have a plain MLP, and each other
# layer has a shared expert, whose linear layers still have the three names. They get nothing, and no message names them.
# What is said is that two patterns of ranks matched nothing.
#
# Versions: peft 0.21.2, transformers 5.12.1, torch 2.11.0, Python 3.12, on a CPU.
# Seen (linear layers with an adapter, of those with these names):
#   plain MLP of layer 0: 0 of 3
#   shared experts: 0 of 3
#   attention: 4 of 4; the experts' tensors: 2 of 2
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
uv venv -q --python "${PYTHON:-3.12}" .venv
uv pip install -q --python .venv/bin/python torch==2.11.0 transformers==5.12.1 peft==0.21.2 numpy

cat > adapted.py <<'EOF'
import torch
from peft import LoraConfig, get_peft_model
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

NAMES = ["q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
config = Glm4MoeConfig(
    vocab_size=64, hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16, n_routed_experts=4, num_experts_per_tok=2,
    n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1,
)
model = Glm4MoeForCausalLM(config)
named = [name for name, part in model.named_modules() if isinstance(part, torch.nn.Linear) and name.endswith(tuple(NAMES))]
adapted = get_peft_model(model, LoraConfig(r=4, target_modules=NAMES))
has = {
    name.removeprefix("base_model.model.").partition(".lora_A")[0]
    for name, _ in adapted.named_parameters()
    if ".lora_A" in name
}
for what, part in (("plain MLP", "layers.0.mlp."), ("shared experts", "shared_experts."), ("attention", "self_attn.")):
    asked = [name for name in named if part in name]
    print(f"{what}: {sum(name in has for name in asked)} of {len(asked)}")
print(f"experts' tensors: {sum('.mlp.experts' in name for name in has)} of 2")
EOF
found=$(.venv/bin/python adapted.py 2> said.txt)
echo "$found"
expected="plain MLP: 0 of 3
shared experts: 0 of 3
attention: 4 of 4
experts' tensors: 2 of 2"
[ "$found" = "$expected" ] || { echo "this has changed; expected: $expected"; exit 1; }
if grep -q "shared_experts\|mlp.gate_proj" said.txt; then echo "PEFT names the layers now"; exit 1; fi
echo "as recorded"
