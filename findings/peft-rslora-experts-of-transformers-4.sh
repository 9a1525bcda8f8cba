#!/usr/bin/env bash
# PEFT 0.21 applies an rsLoRA adapter on experts that Transformers 4 has trained 1.41 times too strongly to gate and up.
#
# Transformers 5 keeps gate and up of a layer's experts as one tensor, so PEFT makes one adapter of the two: of twice the
# rank, with twice the alpha so that alpha / r remains. rsLoRA's scale is alpha / sqrt(r), which grows by the square root
# of 2. PEFT warns that patterns of `gate_up_proj` were ignored, and does so as well where all is right, as without
# rsLoRA. Attention and down are as they were. vLLM and Megatron keep gate and up apart, so they serve and train another
# function than the one that PEFT merges. `scaling` of the layers `experts.base_layer` mends it after loading.
#
# Versions: trained and scored by peft 0.18.1 with transformers 4.57.6; loaded by peft 0.21.2 with transformers 5.12.1;
# torch 2.11.0, Python 3.12, fp32 on a CPU; a tiny Qwen3 with experts.
# Seen (largest difference of a token's log-probability, in nats; scales of gate and up, and of down):
#   LoRA:   the adapter moves 2.97; loaded 0.000 off, scales 2.00 and 2.00
#   rsLoRA: the adapter moves 3.76; loaded 2.196 off, scales 5.66 and 4.00; with 4.00 for both 0.000 off
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
environment() { # NAME PACKAGES
  uv venv -q --python "${PYTHON:-3.12}" "$1"
  uv pip install -q --python "$1/bin/python" torch==2.11.0 numpy "${@:2}"
}
environment four transformers==4.57.6 peft==0.18.1
environment five transformers==5.12.1 peft==0.21.2

cat > both.py <<'EOF'
import torch

TOKENS = torch.arange(1, 33)[None]


def scores(model):
    with torch.no_grad():
        return model.eval()(TOKENS).logits.log_softmax(-1)
EOF
cat > train.py <<'EOF'
import torch
from both import scores
from peft import LoraConfig, get_peft_model
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

torch.manual_seed(0)
config = Qwen3MoeConfig(
    vocab_size=64, hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=4, num_experts_per_tok=2,
    norm_topk_prob=True, initializer_range=0.1,
)
base = Qwen3MoeForCausalLM(config)
base.save_pretrained("base")
found = {"base": scores(base)}
for name in ("LoRA", "rsLoRA"):
    torch.manual_seed(1)
    options = LoraConfig(
        r=4, lora_alpha=8, use_rslora=name == "rsLoRA", init_lora_weights=False,
        target_modules=["q_proj", "gate_proj", "up_proj", "down_proj"],
    )
    adapted = get_peft_model(Qwen3MoeForCausalLM.from_pretrained("base"), options)
    adapted.save_pretrained(name)
    found[name] = scores(adapted)
torch.save(found, "scores.pt")
EOF
cat > load.py <<'EOF'
import torch
from both import scores
from peft import PeftModel
from transformers import AutoModelForCausalLM

trained = torch.load("scores.pt")


def off(model, name):
    return float((scores(model) - trained[name]).abs().max())


for name in ("LoRA", "rsLoRA"):
    model = AutoModelForCausalLM.from_pretrained("base", dtype=torch.float32)
    assert off(model, "base") < 1e-4
    model = PeftModel.from_pretrained(model, name)
    moves = float((trained[name] - trained["base"]).abs().max())
    experts = [layer.mlp.experts for layer in model.base_model.model.model.layers]
    down, both = experts[0].scaling["default"], experts[0].base_layer.scaling["default"]
    print(f"{name}: moves {moves:.2f}; loaded {off(model, name):.3f} off, scales {both:.2f} and {down:.2f}", end="")
    for part in experts:
        part.base_layer.scaling["default"] = down
    print(f"; with {down:.2f} for both {off(model, name):.3f} off")
EOF
four/bin/python train.py > train.log 2>&1 || { tail -5 train.log; exit 2; }
found=$(five/bin/python load.py 2> load.log) || { tail -5 load.log; exit 2; }
echo "$found"
expected="LoRA: moves 2.97; loaded 0.000 off, scales 2.00 and 2.00; with 2.00 for both 0.000 off
rsLoRA: moves 3.76; loaded 2.196 off, scales 5.66 and 4.00; with 4.00 for both 0.000 off"
[ "$found" = "$expected" ] || { echo "this has changed; expected: $expected"; exit 1; }
echo "as recorded"
