"""What to do about a path or a folder that is not what a manifest says: hints for errors."""

from __future__ import annotations

import json
from pathlib import Path


def missing_hint(path: Path) -> str:
    """Return what to do about a path that does not exist."""
    if "$" in str(path):
        return "Write the path itself: variables such as $HOME are not replaced in a manifest."
    if "%20" in str(path):
        return "Write spaces as they are: a path is no URL, so %20 stays as it is."
    if path.absolute().is_relative_to(Path.cwd() / "out"):  # where examples have what their commands make
        return f"Check the path {path}. For an example, the comment at the top of its manifest says how to make it."
    return f"Check the path {path}."


def no_config_hint(folder: Path) -> str:
    """Return what to do about a folder without a model's config.json."""
    if (base := _base_of_adapter(folder)) is not None:
        return (
            f"This is an adapter: set spec.adapter.initFrom to it, and spec.model.uri to its base model{base}. "
            "`lorarl merge` makes one model of both."
        )
    within = sorted(path.parent for path in folder.glob("*/config.json"))
    if len(within) == 1:
        return f"Set spec.model.uri to file:{within[0]}."
    return "Set spec.model.uri to the folder that contains it."


def _base_of_adapter(folder: Path) -> str | None:
    """Return the name of an adapter's base in brackets, empty if it names none; None if this is no adapter."""
    try:
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    base = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    return f" ({base})" if base else ""


def no_weights_hint(folder: Path) -> str:
    """Return what to do about a model's folder without weights in safetensors files."""
    if list(folder.glob("*.gguf")) and not list(folder.glob("*.bin")):
        return "Use the model in Hugging Face format: a .gguf file is a quantized copy for llama.cpp."
    if list(folder.glob("*.bin")):
        return "Convert pytorch_model.bin with save_pretrained(safe_serialization=True)."
    return "Copy or download its *.safetensors files too."
