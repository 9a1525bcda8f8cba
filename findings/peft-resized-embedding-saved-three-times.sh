#!/usr/bin/env bash
# PEFT 0.21 writes a trained embedding three times into an adapter's file, if the vocabulary was resized.
#
# Who adds tokens calls `resize_token_embeddings`, and names `embed_tokens` and `lm_head` in `modules_to_save`, so that
# the new rows are trained. PEFT sees that the size has changed, warns that it saves the embedding layers, and collects
# all tensors below them: the trained one (`.modules_to_save.weight`), the one before training
# (`.original_module.weight`), and the name that an adapter without resizing has (`.weight`), which is the trained one
# again. With 151,936 rows of 3,584 in bf16, that is 4.4 GB too much for the pair. It loads in PEFT, with the right
# numbers. A reader that expects one tensor for each name of the model finds names that it does not know.
#
# Versions: peft 0.21.2, transformers 5.12.1, torch 2.11.0, Python 3.12, fp32 on a CPU; a tiny Llama.
# Seen: 2 tensors of embeddings and 17,896 bytes without resizing; 6 and 54,200 bytes with 4 more rows; loaded 0.0 off.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
uv venv -q --python "${PYTHON:-3.12}" env
uv pip install -q --python env/bin/python torch==2.11.0 numpy transformers==5.12.1 peft==0.21.2

cat > saved.py <<'EOF'
import os

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
TOKENS = torch.arange(1, 33)[None]
torch.manual_seed(0)
LlamaForCausalLM(LlamaConfig(**SIZES, num_attention_heads=2, num_key_value_heads=2)).save_pretrained("base")


def base(rows):
    model = LlamaForCausalLM.from_pretrained("base")
    torch.manual_seed(1)
    if rows:
        model.resize_token_embeddings(64 + rows, mean_resizing=False)
    return model


def scores(model):
    with torch.no_grad():
        return model.eval()(TOKENS).logits.log_softmax(-1)


found = {}
for rows in (0, 4):
    options = {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]}
    model = get_peft_model(base(rows), LoraConfig(r=4, **options))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn_like(parameter))
    model.save_pretrained(f"adapter-{rows}")
    tensors = load_file(f"adapter-{rows}/adapter_model.safetensors")
    embeddings = sorted(name for name in tensors if "embed_tokens" in name or "lm_head" in name)
    off = (scores(PeftModel.from_pretrained(base(rows), f"adapter-{rows}")) - scores(model)).abs().max().item()
    size = os.path.getsize(f"adapter-{rows}/adapter_model.safetensors")
    print(f"{rows} rows more: {len(embeddings)} tensors of embeddings, {size:,} bytes, loaded {off} off")
    print(*(f"  {name}" for name in embeddings), sep="\n")
    found[rows] = len(embeddings), off
    if rows:
        names = [f"base_model.model.lm_head{part}.weight" for part in (".modules_to_save", "", ".original_module")]
        trained, plain, before = (tensors[name] for name in names)
        assert torch.equal(trained, plain) and not torch.equal(trained, before)
assert found == {0: (2, 0.0), 4: (6, 0.0)}, found
EOF
env/bin/python saved.py 2> log || { cat log; exit 1; }
