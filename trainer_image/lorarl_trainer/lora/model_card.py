"""The model card of a published adapter: README.md in the form that the Hugging Face hub reads.

Its front matter follows https://huggingface.co/docs/hub/model-cards. Everything in it comes from lorarl_metadata.json
and from the results so far, so the same training writes the same card.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lorarl_api.v1alpha1 import served_rank
from lorarl_api.v1alpha1.algorithm_types import FROM_DATA
from lorarl_api.yaml_writer import to_yaml
from lorarl_trainer.loading import ask_server, ask_with_peft, serve_command
from lorarl_trainer.lora.files import METADATA_FILE, QUANTIZATION

_HUB = "hf://"
_METHODS = {
    "grpo": "Group Relative Policy Optimization ([GRPO](https://arxiv.org/abs/2402.03300))",
    "distillation": "on-policy distillation ([arXiv:2306.13649](https://arxiv.org/abs/2306.13649))",
    "sft": "supervised fine-tuning",
    "dpo": "Direct Preference Optimization ([DPO](https://arxiv.org/abs/2305.18290))",
}


def model_card(
    metadata: Mapping[str, Any],
    config: Mapping[str, Any],
    results: Mapping[str, Mapping[str, float]],
    *,
    chat: bool = False,
) -> bytes:
    """Return the content of README.md.

    `metadata`: the content of lorarl_metadata.json, with or without what `launch.provenance` adds. `results`: columns
    of values by name, such as the step's mean reward. The ends of a value's 95% interval have its name and _low and
    _high. `chat`: it was trained with the chat template in its folder.
    """
    front = to_yaml(_front_matter(metadata))
    body = "\n\n".join(_sections(metadata, config, results, chat=chat))
    return f"---\n{front}---\n\n{body}\n".encode()


def _front_matter(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The hub accepts only its own names as base_model and datasets: others are in the text."""
    base, spec = str(metadata["baseModel"]), _spec(metadata)
    from_hub = str(spec.get("model", {}).get("uri", "")).startswith(_HUB)
    algorithm = _algorithm(spec)
    sources = _sources(spec)
    datasets = sorted({uri.removeprefix(_HUB) for uri in sources.values() if uri.startswith(_HUB)})
    return {
        **({"base_model": base, "base_model_relation": "adapter"} if from_hub else {}),
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        **({"datasets": datasets} if datasets else {}),
        "tags": ["lora", "lorarl", algorithm, *(["reinforcement-learning"] if algorithm not in FROM_DATA else [])],
    }


def _sections(
    metadata: Mapping[str, Any],
    config: Mapping[str, Any],
    results: Mapping[str, Mapping[str, float]],
    *,
    chat: bool,
) -> Iterator[str]:
    spec, base = _spec(metadata), metadata["baseModel"]
    yield f"# {metadata['job']}, step {metadata['step']}"
    yield (
        f"A {_kind(config)} adapter ({_numbers(config)}) for `{base}`, trained with "
        f"lorarl by {_METHODS.get(_algorithm(spec), _algorithm(spec))}."
    )
    if results:
        yield "## Results"
        names = dict.fromkeys(name for column in results.values() for name in column)
        shown = [name for name in names if not name.endswith(("_low", "_high"))]
        yield _table(["", *results], [[name, *(_cell(column, name) for column in results.values())] for name in shown])
        if len(shown) < len(names):
            yield "In brackets: 95% intervals. `eval_score` is of held-out rows."
    yield "## How to load it"
    merged, quantization = _is_served_merged(metadata, config), metadata.get(QUANTIZATION)
    yield _loading(str(base), config, merged=merged, chat=chat, quantization=quantization)
    yield "## Training"
    yield _table(["", ""], list(_facts(metadata, spec)))
    if versions := metadata.get("versions"):
        yield "## Versions"
        yield _table(["package", "version"], [[name, version] for name, version in versions.items()])
    if manifest := metadata.get("manifest"):
        yield "## Manifest"
        yield f"```yaml\n{to_yaml(manifest)}```"
    yield f"`{METADATA_FILE}` has the same for programs. Look at the base model's licence before you share the adapter."


def _is_served_merged(metadata: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Return whether vLLM serves base and adapter as they were trained only if they are merged."""
    return bool(config.get("use_dora") or metadata.get("servedMerged") or metadata.get(QUANTIZATION))


def _cell(column: Mapping[str, float], name: str) -> str:
    """Return a value with its interval."""
    if name not in column:
        return ""
    low, high = column.get(f"{name}_low"), column.get(f"{name}_high")
    return f"{column[name]:.4g}" + ("" if low is None or high is None else f" [{low:.4g}, {high:.4g}]")


def _kind(config: Mapping[str, Any]) -> str:
    return "DoRA" if config.get("use_dora") else "rsLoRA" if config.get("use_rslora") else "LoRA"


def _numbers(config: Mapping[str, Any]) -> str:
    """Return rank and alpha, also where experts have a smaller rank, which is `r` then."""
    rank, alpha = config["r"], config["lora_alpha"]
    if not (ranks := config.get("rank_pattern")):
        return f"rank {rank}, alpha {alpha}"
    others = next(iter(ranks))
    return (
        f"rank {ranks[others]}, alpha {config['alpha_pattern'][others]:g}; rank {rank}, alpha {alpha:g} on each expert"
    )


def _loading(base: str, config: Mapping[str, Any], *, merged: bool, chat: bool, quantization: str | None) -> str:
    """Return what asks the adapter a question.

    Args:
        base: the base model's name.
        config: the adapter's.
        merged: vLLM does not serve such an adapter beside its base.
        chat: it was trained with the chat template in its folder.
        quantization: how the base was held in the training, if not as its files are.
    """
    rank = served_rank(max(int(config["r"]), *(config.get("rank_pattern") or {"": 0}).values()))
    revision = config.get("revision")
    of = f" --revision {shlex.quote(revision)}" if revision else ""
    serve = f"{serve_command()} {shlex.quote(base)}{of} --enable-lora --max-lora-rank {rank} --lora-modules adapter=."
    if merged:
        serve = f"lorarl merge . --out merged\n{serve_command()} merged"
    modules = config.get("target_modules", ())
    python = "\n".join(ask_with_peft(base, ".", revision, modules=modules, quantization=quantization))
    asked = ask_server("merged" if merged else "adapter", chat=chat)
    return f"In this folder:\n\n```python\n{python}\n```\n\n```\n{serve}\n```\n\n```\n{asked}\n```"


def _facts(metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[list[str]]:
    data, algorithm = metadata.get("data", {}), _algorithm(spec)
    if commit := metadata.get("baseModelCommit"):
        yield ["base model's commit", f"`{commit}`"]
    yield ["base model's fingerprint", f"`{metadata['baseModelFingerprint']}`"]
    if quantization := metadata.get(QUANTIZATION):
        yield ["base model's quantization", f"{quantization}, in the training"]
    yield ["algorithm", algorithm]
    for name, uri in _sources(spec).items():
        found = data.get(name, {})
        digest = f", {found['rows']:,} rows, SHA-256 `{found['sha256']}`" if found else ""
        yield [f"data, {name}", f"`{uri}`{digest}"]
    for name in ("reward", "rewards"):
        if spec.get(name):
            yield [name, f"`{to_yaml(spec[name], flow=True)}`"]
    for name, digest in metadata.get("rewardCode", {}).items():
        yield [f"reward code `{name}`", f"SHA-256 `{digest}`"]


def _sources(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return where the data come from, by name: train, mixture/NAME, eval, and those of the list evals by theirs."""
    data = spec.get("data", {})
    named = {name: _origin(data[name]) for name in ("train", "eval") if data.get(name)}
    mixture = {f"mixture/{source['name']}": _origin(source) for source in data.get("mixture") or []}
    return mixture | named | {source["name"]: _origin(source) for source in data.get("evals", [])}


def _origin(source: Mapping[str, Any]) -> str:
    generated = source.get("reasoningGym")
    if (numbered := source.get("episodes")) is not None:
        return f"episodes:{numbered.get('seed', 0)}"
    return f"reasoning-gym:{generated['task']}" if generated else str(source["uri"])


def _spec(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return dict(metadata.get("manifest", {}).get("spec", {}))


def _algorithm(spec: Mapping[str, Any]) -> str:
    return str(spec.get("algorithm", {}).get("type", "grpo"))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
