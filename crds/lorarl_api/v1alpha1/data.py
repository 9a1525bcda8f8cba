"""The training rows and the held-out rows."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from lorarl_api.rules import Rule
from lorarl_api.v1alpha1.algorithm import RewardSpec
from lorarl_api.v1alpha1.common import EvalName, FieldName, Model, SecretName, Uri, uri_rules


def _only_hub(field: str) -> Rule:
    return Rule(
        field,
        f"!has(self.{field}) || self.uri.startsWith('hf://')",
        "not be set unless uri is an hf:// data set",
        f"Remove {field}: a file has only one set of rows.",
    )


class DataSource(Model):
    """Rows of prompts and answers."""

    uri: Uri = Field(
        description="A .jsonl, .parquet or .csv file (s3://, gs://, az://, pvc://CLAIM/PATH, file:///PATH, "
        "file:PATH), or hf://ORG/NAME for a data set on the hub.",
        examples=["s3://team/gsm8k/train.jsonl"],
    )
    prompt_field: FieldName = Field(
        "prompt", description="Column with the prompt: a string, or a list of chat messages {role, content}."
    )
    answer_field: FieldName = Field(
        "answer", description="Column with the reference answer. For sft it is the text to learn."
    )
    subset: FieldName | None = Field(
        None, description="Configuration of an hf:// data set. Default: the data set's own.", examples=["main"]
    )
    split: FieldName | None = Field(
        None,
        description="Split of an hf:// data set. Default: train for data.train and test for data.eval.",
        examples=["train"],
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        *uri_rules("uri", ["hf", "s3", "gs", "az", "pvc", "file"], secret="data.credentialsSecret"),
        Rule(
            "uri",
            "self.uri.startsWith('hf://') || self.uri.matches(r'[.](?i:jsonl|parquet|csv)$')",
            "end in .jsonl, .parquet or .csv, or be hf://ORG/NAME",
            "Convert the data, or name the file within the folder.",
        ),
        _only_hub("subset"),
        _only_hub("split"),
        Rule(
            "answerField",
            "self.promptField != self.answerField",
            "differ from promptField",
            "Name the column with the answer.",
        ),
    )


PassAt = Annotated[int, Field(ge=1, le=1024, examples=[4])]


class EvalSource(DataSource):
    """Held-out rows."""

    every: int = Field(
        20, ge=1, le=100_000, description="Steps between evaluations. The start and the end are evaluated too."
    )


class EvalSpec(EvalSource):
    """Held-out rows with a name, their scorer and their sampling."""

    name: EvalName = Field(
        description="Name in metrics: the columns are eval_NAME/score, eval_NAME/pass_at_4 and so on."
    )
    reward: RewardSpec | None = Field(
        None,
        description="How a completion is scored here, for example without shaping. Default: as the job scores it.",
    )
    temperature: float = Field(
        0.0,
        ge=0.0,
        le=10.0,
        description="Sampling temperature. 0 takes the most probable token everywhere. Above 0, rollout.topP, topK and "
        "minP hold here too, and each evaluation draws with the same random numbers.",
    )
    samples: int = Field(1, ge=1, le=1024, description="Completions of each row. The score is the mean over all.")
    pass_at_k: list[PassAt] = Field(
        default_factory=list,
        max_length=8,
        description="Values of k, at most samples: pass@k is the unbiased estimate that at least one of k completions "
        "passes (arXiv:2107.03374).",
    )
    pass_reward: float = Field(1.0, description="Least reward of a completion that passes, for passAtK.")

    rules: ClassVar[tuple[Rule, ...]] = (
        *EvalSource.rules,
        Rule(
            "samples",
            "self.samples == 1 || self.temperature > 0.0",
            "be 1 if temperature is 0, because greedy completions of one prompt are the same",
            "Set temperature, for example to 1, or remove samples.",
        ),
        Rule(
            "passAtK",
            "self.passAtK.all(k, k <= self.samples)",
            "be at most samples",
            "Raise samples, or lower passAtK.",
        ),
    )


TemplateArguments = Annotated[
    dict[str, Any],
    Field(
        max_length=64,
        examples=[{"enable_thinking": False}],
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    ),
]


class DataSpec(Model):
    """The training rows and the held-out rows."""

    train: DataSource = Field(description="Training rows.")
    eval: EvalSource | None = Field(
        None,
        description="Held-out rows, scored with greedy sampling (grpo) or by their loss (sft). Default: no evaluation.",
    )
    evals: list[EvalSpec] = Field(
        default_factory=list,
        max_length=16,
        description="More evaluations, each with a name and, if needed, its own reward and sampling.",
    )
    chat_template: bool = Field(
        True,
        description="Format prompts with the tokenizer's chat template. Set it to false for a base model without a "
        "template: then prompts are used unchanged.",
    )
    chat_template_arguments: TemplateArguments | None = Field(
        None,
        description="Arguments of the chat template, such as enable_thinking: false for Qwen3. The template must read "
        "each of them. Default: none.",
    )
    credentials_secret: SecretName | None = Field(
        None,
        description="Name of a Secret whose keys give access to the data, with the same key names as "
        "model.credentialsSecret.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "evals",
            "self.evals.all(e, self.evals.exists_one(other, other.name == e.name))",
            "have a different name for each evaluation",
            "Rename one of the two with the same name.",
        ),
        Rule(
            "chatTemplateArguments",
            "self.chatTemplate || !has(self.chatTemplateArguments)",
            "be absent if chatTemplate is false, because then no template is used",
            "Remove chatTemplateArguments, or chatTemplate: false.",
        ),
    )

    @property
    def evaluations(self) -> list[tuple[str, EvalSource]]:
        """All evaluations by name, in order: `eval`, whose name is empty, and those of `evals`."""
        first: list[tuple[str, EvalSource]] = [("", self.eval)] if self.eval else []
        return [*first, *((source.name, source) for source in self.evals)]
