"""The files of a PEFT adapter's folder, and the manifest's field that names such a folder."""

INIT_FROM = "spec.adapter.initFrom"
CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
METADATA_FILE = "lorarl_metadata.json"
"""Only lorarl writes it."""
CARD_FILE = "README.md"
