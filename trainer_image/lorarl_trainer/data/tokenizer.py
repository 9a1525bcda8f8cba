"""The model's tokenizer, loaded without torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lorarl_trainer.errors import InputError, in_one_line


def load_tokenizer(folder: Path) -> Any:
    """Load a model folder's tokenizer: the same one that vLLM and Transformers use.

    Importing Transformers imports torch: half a gigabyte that the driver does not need. So in a process that has not
    imported torch, Transformers is imported as if torch were not installed. Such a process can load tokenizers, but no
    models.

    Raises:
        InputError: Transformers cannot load the folder's tokenizer, or its config.json.
    """
    with _without_torch():
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # Transformers raises nearly every type for a broken tokenizer
            _check_config(folder)
            raise InputError(
                "spec.model.uri",
                f"{folder}, whose tokenizer cannot be loaded ({in_one_line(error)})",
                "a model folder with a tokenizer in Hugging Face format",
                "Put tokenizer.json and tokenizer_config.json into the folder of config.json.",
            ) from error


def _check_config(folder: Path) -> None:
    """Check config.json, which Transformers reads before a tokenizer."""
    from transformers import AutoConfig

    try:
        AutoConfig.from_pretrained(folder, local_files_only=True)
    except (ValueError, OSError):
        pass  # an unknown model, for example: AutoTokenizer works without it
    except Exception as error:  # a model's own checks may raise anything
        raise InputError(
            "spec.model.uri",
            f"{folder / 'config.json'}, which is not a readable model configuration ({in_one_line(error)})",
            "a configuration that Transformers can load",
            "Fix the file, or copy the model again.",
        ) from error


@contextmanager
def _without_torch() -> Iterator[None]:
    if "torch" in sys.modules or "transformers" in sys.modules:
        yield
        return
    advice = os.environ.get("TRANSFORMERS_NO_ADVISORY_WARNINGS")
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # otherwise it prints that PyTorch was not found
    sys.modules["torch"] = None  # type: ignore[assignment]  # makes the import fail
    try:
        yield
    finally:
        del sys.modules["torch"]
        if advice is None:
            del os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"]
        else:
            os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = advice


def stop_token_ids(tokenizer: Any, generation_config: Mapping[str, Any]) -> list[int]:
    """Return the ids that end a completion, ascending: EOS of the tokenizer and all of generation_config.json's.

    Raises:
        InputError: there is none, so a completion could never end.
    """
    configured = generation_config.get("eos_token_id")
    ids = set(configured if isinstance(configured, list) else [configured]) | {tokenizer.eos_token_id}
    ids.discard(None)
    if not ids:
        raise InputError(
            "spec.model.uri",
            "a model without an end-of-sequence token",
            "eos_token in tokenizer_config.json, or eos_token_id in generation_config.json",
            "Add one of them: without it a completion never ends.",
        )
    return sorted(ids)
