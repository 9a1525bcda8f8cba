"""The tokenizer and chat template that an adapter was trained with: many programs save them with it."""

from __future__ import annotations

import sys
from typing import Any

from lorarl_trainer.checkpoint.contents import TOKENIZER_FILES
from lorarl_trainer.errors import InputError, in_one_line
from lorarl_trainer.launch.inputs import read_template_file
from lorarl_trainer.lora.chat_template import folder_chat_template, same_template
from lorarl_trainer.storage.secrets import read_named
from lorarl_trainer.trained_adapters.source import ARGUMENT, Source

_WITH_VOCABULARY = frozenset(TOKENIZER_FILES) - {
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "chat_template.json", "merges.txt"),
}


def load_own_tokenizer(source: Source) -> Any:
    """Return an adapter's own tokenizer, or the base's with the adapter's chat template, as far as these exist.

    An adapter without a template has the one of its job's chatTemplateFile. Where they are not the base model's, that
    is said on standard error.

    Raises:
        LorarlError: the adapter's tokenizer cannot be loaded, or the job's template.
    """
    from transformers import AutoTokenizer

    whole = any((source.adapter / name).is_file() for name in _WITH_VOCABULARY)
    try:
        base = AutoTokenizer.from_pretrained(source.base, revision=source.revision)
    except Exception:  # Transformers raises nearly every type
        if not whole:
            raise
        return _load_whole(source)
    template = base.chat_template
    own = _load_whole(source) if whole else base
    its_own = own_template(source)
    if its_own is not None:
        own.chat_template = its_own
    elif whole and own.chat_template is None:
        own.chat_template = template
    if not same_template(own.chat_template, template):
        _say("chat template")
    if whole and own.get_vocab() != base.get_vocab():
        _say("tokenizer")
    return own


def own_template(source: Source) -> Any:
    """Return an adapter's own chat template, or that of its job's chatTemplateFile; None without either.

    Raises:
        LorarlError: the job's template cannot be read.
    """
    its_own = folder_chat_template(source.adapter)
    if its_own is None and source.job and source.job.spec.data.chat_template_file:
        secret = source.job.spec.data.credentials_secret
        return read_template_file(source.job.spec, read_named(secret, "spec.data.credentialsSecret"))
    return its_own


def _load_whole(source: Source) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source.adapter)
    except Exception as error:
        raise InputError(
            ARGUMENT,
            f"{source.name}, whose tokenizer cannot be loaded ({in_one_line(error)})",
            "tokenizer files in Hugging Face format, or none",
            "Remove them from the adapter's folder to use the base model's.",
        ) from error


def _say(what: str) -> None:
    print(f"warning: the adapter's own {what} is used; the base model has another one", file=sys.stderr)
