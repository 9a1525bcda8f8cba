"""The model's tokenizer, loaded without torch."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lorarl_trainer.errors import InputError, in_one_line

_GENERATION = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
"""Transformers' own tags, around what the assistant wrote."""


def load_tokenizer(folder: Path) -> Any:
    """Load a model folder's tokenizer: the same one that vLLM and Transformers use.

    Importing Transformers imports torch: half a gigabyte that the driver does not need. So in a process that has not
    imported torch, Transformers is imported as if torch were not installed. Such a process can load tokenizers, but no
    models.

    Raises:
        InputError: Transformers cannot load the folder's tokenizer, its config.json or its generation_config.json.
    """
    with _without_torch():
        from transformers import AutoTokenizer, logging

        logging.set_verbosity_error()  # its advice is for those who call it
        _check_generation_config(folder)
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


def read_template(file: Path, uri: str, field: str) -> str:
    """Return the chat template in a file. `uri`: where the file comes from; `field`: that names it.

    Raises:
        InputError: it cannot be read, has no messages, or is not Jinja.
    """
    from jinja2 import Environment, TemplateSyntaxError, meta
    from jinja2.ext import loopcontrols

    expected, hint = "a Jinja chat template that reads messages", "Name the file with the template."
    try:
        text = file.read_text(encoding="utf-8")
        plain = _GENERATION.sub("", text)
        names = meta.find_undeclared_variables(Environment(extensions=[loopcontrols]).parse(plain))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(field, f"{uri}, which cannot be read ({in_one_line(error)})", expected, hint) from error
    except TemplateSyntaxError as error:
        got = f"{uri}, whose line {error.lineno} is not Jinja ({in_one_line(error)})"
        raise InputError(field, got, expected, f"Fix line {error.lineno}.") from error
    if "messages" not in names:
        raise InputError(field, f"{uri}, which does not read messages", expected, hint)
    return text


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


def _check_generation_config(folder: Path) -> None:
    """Check generation_config.json, which Transformers reads with a model. A job samples as its manifest says."""
    from transformers import GenerationConfig

    try:
        GenerationConfig.from_pretrained(folder, local_files_only=True)
    except OSError:
        pass  # there is none, or it is no JSON: who reads it for the end tokens says so
    except Exception as error:  # it compares values of any type
        raise InputError(
            "spec.model.uri",
            f"{folder / 'generation_config.json'}, whose values cannot be used ({in_one_line(error)})",
            "a generation configuration that Transformers can load",
            "Fix the value, or remove all but the end tokens: sampling follows spec.rollout.",
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


def stop_token_ids(
    tokenizer: Any, generation_config: Mapping[str, Any], model_config: Mapping[str, Any] | None = None
) -> list[int]:
    """Return the ids that end a completion, ascending: EOS of the tokenizer and all of the model's.

    The model's are in generation_config.json, or else in config.json, as Transformers and vLLM read them.

    Raises:
        InputError: there is none that the model can generate, so a completion could never end.
    """
    model = model_config or {}
    text = model.get("text_config") or {}
    sources = (("generation_config.json", generation_config), ("config.json", model), ("config.json", text))
    name, configured = next(
        ((name, config["eos_token_id"]) for name, config in sources if config.get("eos_token_id") is not None),
        ("config.json", None),
    )
    listed = configured if isinstance(configured, list) else [configured]
    if wrong := [token for token in listed if token is not None and (type(token) is not int or token < 0)]:
        raise InputError(
            "spec.model.uri",
            f"a model whose {name} has the eos_token_id {wrong[0]!r}",
            "the number of a token, or a list of such numbers",
            f"Fix eos_token_id in {name}.",
        )
    ids = {token for token in (*listed, tokenizer.eos_token_id) if token is not None}
    size = vocabulary_size(model)
    if not (reachable := {token for token in ids if size is None or token < size}):
        got = (
            f"a model whose end-of-sequence tokens {sorted(ids)} are beyond its {size:,} tokens"
            if ids
            else "a model without an end-of-sequence token"
        )
        raise InputError(
            "spec.model.uri",
            got,
            "eos_token in tokenizer_config.json, or eos_token_id in generation_config.json or config.json",
            "Set one of them: without it a completion never ends.",
        )
    return sorted(reachable)


def vocabulary_size(model_config: Mapping[str, Any]) -> int | None:
    """Return the number of tokens that a model has an embedding for; None if its config.json does not say."""
    size = (model_config.get("text_config") or model_config).get("vocab_size")
    return size if isinstance(size, int) else None


def default_prefix(tokenizer: Any) -> list[int]:
    """Return the ids that the tokenizer puts before every text by default: [BOS] or nothing."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    full = tokenizer("a")["input_ids"]
    starts = (i for i in range(len(full)) if full[i : i + len(bare)] == bare)
    return list(full[: next(starts, 0)])
