"""The arguments that a manifest gives to the chat template."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from lorarl_trainer.errors import InputError

_SET_HERE = frozenset(
    [
        "tools",
        *("messages", "conversation", "chat_template", "add_generation_prompt", "continue_final_message", "tokenize"),
        *("padding", "truncation", "max_length", "tokenizer_kwargs"),
        *("return_tensors", "return_dict", "return_assistant_tokens_mask"),
    ]
)
"""Arguments of `apply_chat_template` that a manifest may not set: they would change what comes back."""


def require_read(arguments: Mapping[str, Any], template: str) -> None:
    """Require that the template reads each argument: Jinja ignores those that it does not.

    Raises:
        InputError: naming one that it does not read, or that lorarl sets.
    """
    words = set(re.findall(r"[A-Za-z_]\w*", template))
    for name in arguments:
        field = f"spec.data.chatTemplateArguments.{name}"
        if name in _SET_HERE:
            raise InputError(field, "an argument that lorarl sets itself", "an argument of the template", "Remove it.")
        if name not in words:
            near = difflib.get_close_matches(name, words, n=1, cutoff=0.7)
            hint = f"Did you mean {near[0]}?" if near else "Remove it, or look it up in the template."
            raise InputError(
                field, "an argument that the model's chat template does not read", "a variable of the template", hint
            )
