"""A tiny base model whose tokens are letters, with a chat template that shows tools."""

from __future__ import annotations

import json
from pathlib import Path

from run.make_base import main as make_base
from support.tiny_tokenizers import TOOLS_CHATML, write_tokenizer


def write_letters_with_tools(folder: Path) -> Path:
    """Write it. Descriptions of tools are long, so it has 1,024 positions."""
    make_base(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1024}))
    write_tokenizer(folder, template=TOOLS_CHATML, special=["<unk>", "<s>", "<|im_end|>", "<|im_start|>"])
    return folder
