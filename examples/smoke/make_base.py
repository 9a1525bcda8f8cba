"""Makes the base model of the smoke test in this folder: a Qwen3 of 40,000 random weights, one token a character.

It is small enough for a ConfigMap. Run it again only to change the model: python examples/smoke/make_base.py
"""

from __future__ import annotations

import string
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

HERE = Path(__file__).parent
TOKENS = {token: number for number, token in enumerate(["<|pad|>", "<|eos|>", "<|unk|>", *string.digits, *"+-*/= "])}


def main() -> None:
    """Write tokenizer, settings and weights."""
    characters = Tokenizer(models.WordLevel(TOKENS, unk_token="<|unk|>"))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    characters.decoder = decoders.Fuse()
    names = {"pad_token": "<|pad|>", "eos_token": "<|eos|>", "unk_token": "<|unk|>"}
    PreTrainedTokenizerFast(tokenizer_object=characters, bos_token=None, **names).save_pretrained(HERE)
    torch.manual_seed(0)
    Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(TOKENS),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=32,
            max_position_embeddings=64,
            tie_word_embeddings=True,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
            dtype="float32",
        )
    ).save_pretrained(HERE)


if __name__ == "__main__":
    main()
