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
    """Load a model folder's tokenizer: the very one that vLLM and Transformers use for it.

    Importing Transformers imports torch: half a gigabyte that the driver does not need. So in a process that has not imported
    torch, Transformers is imported as if there were none; such a process can load tokenizers afterwards, but no models.

    Raises:
        InputError: The folder has no tokenizer that Transformers can load, or a config.json that it cannot.
    """
    with _torch_left_out():
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # Transformers raises nearly every type for a broken tokenizer
            _check_config(folder)
            raise InputError(
                "spec.model.uri",
                f"{folder}, whose tokenizer cannot be loaded ({in_one_line(error)})",
                "a model folder with a tokenizer in Hugging Face format",
                "Put tokenizer.json and tokenizer_config.json beside config.json.",
            ) from error


def _check_config(folder: Path) -> None:
    """See whether config.json is at fault, which Transformers reads before a tokenizer."""
    from transformers import AutoConfig

    try:
        AutoConfig.from_pretrained(folder, local_files_only=True)
    except (ValueError, OSError):
        pass  # as of an unknown model: AutoTokenizer goes on without it
    except Exception as error:  # what a model's own checks raise
        raise InputError(
            "spec.model.uri",
            f"{folder / 'config.json'}, which cannot be read as the configuration of a model ({in_one_line(error)})",
            "a configuration that Transformers can load",
            "Mend it, or copy the model anew.",
        ) from error


@contextmanager
def _torch_left_out() -> Iterator[None]:
    if "torch" in sys.modules or "transformers" in sys.modules:
        yield
        return
    advice = os.environ.get("TRANSFORMERS_NO_ADVISORY_WARNINGS")
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # it would print that PyTorch was not found
    sys.modules["torch"] = None  # type: ignore[assignment]  # Python's way to say: this module cannot be imported
    try:
        yield
    finally:
        del sys.modules["torch"]
        if advice is None:
            del os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"]
        else:
            os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = advice


def stop_token_ids(tokenizer: Any, generation_config: Mapping[str, Any]) -> list[int]:
    """Give the ids that end a completion: EOS of the tokenizer and of generation_config.json (one or several), ascending.

    Raises:
        InputError: There is none, so that a completion could never end.
    """
    configured = generation_config.get("eos_token_id")
    ids = set(configured if isinstance(configured, list) else [configured]) | {tokenizer.eos_token_id}
    ids.discard(None)
    if not ids:
        raise InputError(
            "spec.model.uri",
            "a model without an end-of-sequence token",
            "eos_token in tokenizer_config.json, or eos_token_id in generation_config.json",
            "Add it: without one a completion never ends.",
        )
    return sorted(ids)
