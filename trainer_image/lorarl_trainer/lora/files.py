"""The files of a PEFT adapter's folder, and the manifest's field that names such a folder."""

INIT_FROM = "spec.adapter.initFrom"
CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
METADATA_FILE = "lorarl_metadata.json"
"""Only lorarl writes it."""
CARD_FILE = "README.md"
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("chat_template.json", "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "tekken.json"),
)
"""Those of a base model that an adapter's folder holds too: tokenizer and chat template come with the adapter."""
