"""Tiny tokenizers in the shapes that models come in, made on the spot."""

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

SPECIAL = ["<unk>", "<s>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tokenizer(
    folder: Path,
    *,
    template: str | None,
    bos: bool = False,
    eos: str | None = "<|im_end|>",
    special: Sequence[str] = SPECIAL,
    splits: str = "\n\n|\n|.",
) -> Path:
    """One token a character; two line breaks in a row are one token, as in real vocabularies.

    `splits` says which characters stay together: GPT-2's pattern parts two line breaks before a letter.
    """
    pieces = [*special, *(chr(i) for i in range(32, 127)), "\n", "\n\n"]
    tokenizer = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(splits), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(special))
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "clean_up_tokenization_spaces": False}
    config |= {"bos_token": "<s>"} if bos else {}
    config |= {"eos_token": eos} if eos else {}
    config |= {"chat_template": template} if template else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
