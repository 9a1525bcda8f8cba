#!/usr/bin/env bash
# renderers 0.1.12 renders Qwen3's Instruct-2507 and Thinking-2507 models by the first Qwen3's template.
#
# prime-rl and the training client of verifiers make prompts and samples with this package. It finds a model's renderer
# by the exact name, because models of one architecture may have other templates, and otherwise takes the tokenizer's
# template. Its table has the 4B and 30B-A3B of 2507 as "qwen3" all the same:
# - Instruct-2507 has no thoughts. Supervised samples of it begin their last answer with an empty one, which is trained.
# - Thinking-2507's own template opens the thought in the prompt, as its model card says. The renderer does not.
# A copy of the model under another name gets the right text, by the default renderer.
#
# Versions: renderers 0.1.12, transformers 5.12.1, Python 3.12. The templates are those that trl 1.16.0 stores "as
# shipped"; the tokenizer has one token a byte, and Qwen3's special tokens.
# Seen (of user and assistant; what a sample trains; the end of a prompt):
#   Qwen/Qwen3-4B:                             as its template True
#   Qwen/Qwen3-4B-Instruct-2507:               as its template False, trained '<think>\n\n</think>\n\nYes.<|im_end|>'
#   a folder with Qwen3-4B-Instruct-2507:      as its template True
#   Qwen/Qwen3-4B-Thinking-2507: the prompt ends with '<|im_start|>assistant\n'
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
uv venv -q --python "${PYTHON:-3.12}" .venv
uv pip install -q --python .venv/bin/python renderers==0.1.12 transformers==5.12.1
uv pip install -q --python .venv/bin/python --no-deps trl==1.16.0

cat > render.py <<'EOF'
from importlib.metadata import distribution
from pathlib import Path

from renderers import create_renderer
from renderers.base import build_training_sample
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TEMPLATES = Path(distribution("trl").locate_file("trl/chat_templates"))
TAGS = ("think", "tool_call", "tool_response")
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", *(f"<{end}{tag}>" for tag in TAGS for end in ("", "/"))]
QUESTION, ANSWER = {"role": "user", "content": "Is it so?"}, {"role": "assistant", "content": "Yes."}


def tokenizer_of(name, template):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=(TEMPLATES / template).read_text())
    made.name_or_path = name
    return made


def compare(name, template):
    tokenizer = tokenizer_of(name, template)
    renderer, own = create_renderer(tokenizer), tokenizer.apply_chat_template([QUESTION, ANSWER], tokenize=False)
    print(f"{name}: as its template {tokenizer.decode(renderer.render_ids([QUESTION, ANSWER])) == own}", end="")
    if type(renderer).__name__ == "DefaultRenderer":
        print(", by the default renderer")
        return
    sample = build_training_sample(renderer, [QUESTION, ANSWER])
    trained = [token for token, learned in zip(sample.token_ids, sample.loss_mask, strict=True) if learned]
    print(f", trained {tokenizer.decode(trained)!r}")


compare("Qwen/Qwen3-4B", "qwen3.jinja")
compare("Qwen/Qwen3-4B-Instruct-2507", "qwen3_instruct_2507.jinja")
compare("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3_instruct_2507.jinja")
compare("/models/Qwen3-4B-Instruct-2507", "qwen3_instruct_2507.jinja")
for name in ("Qwen/Qwen3-4B-Thinking-2507", "Qwen/Qwen3-30B-A3B-Thinking-2507"):
    tokenizer = tokenizer_of(name, "qwen3.jinja")
    prompt = create_renderer(tokenizer).render_ids([QUESTION], add_generation_prompt=True)
    print(f"{name}: the prompt ends with {tokenizer.decode(prompt)[-22:]!r}")
EOF
export HF_HUB_OFFLINE=1
found=$(.venv/bin/python render.py 2> said.txt) || { tail -5 said.txt; exit 2; }
echo "$found"
thought="trained '<think>\n\n</think>\n\nYes.<|im_end|>'"
expected="Qwen/Qwen3-4B: as its template True, $thought
Qwen/Qwen3-4B-Instruct-2507: as its template False, $thought
Qwen/Qwen3-30B-A3B-Instruct-2507: as its template False, $thought
/models/Qwen3-4B-Instruct-2507: as its template True, by the default renderer
Qwen/Qwen3-4B-Thinking-2507: the prompt ends with '<|im_start|>assistant\n'
Qwen/Qwen3-30B-A3B-Thinking-2507: the prompt ends with '<|im_start|>assistant\n'"
[ "$found" = "$expected" ] || { echo "this has changed; expected: $expected"; exit 1; }
echo "as recorded"
