"""Writes the base model of the runs: 100,000 random parameters and a tokenizer of characters. Run with: FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from support.tiny_tokenizers import CHATML, write_tokenizer

VOCABULARY = 128  # the tokenizer has 101
END = 3  # <|im_end|>


SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,  # the smallest that vLLM's attention for CPUs has
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "eos_token_id": END,
    "bos_token_id": None,
    "pad_token_id": 0,
    "dtype": "float32",
}


def main(folder: Path) -> None:
    torch.manual_seed(0)
    config = Qwen3Config(**SIZES, intermediate_size=96, initializer_range=0.1)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    write_tokenizer(folder, template=CHATML)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
