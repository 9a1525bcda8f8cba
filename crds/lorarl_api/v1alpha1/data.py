"""What is trained on, and what is held out."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from lorarl_api.rules import Rule
from lorarl_api.v1alpha1.common import FieldName, Model, SecretName, Uri, uri_rules


def _only_hub(field: str) -> Rule:
    return Rule(
        field,
        f"!has(self.{field}) || self.uri.startsWith('hf://')",
        f"{field} only with an hf:// data set",
        f"remove {field}; a file has one set of rows",
    )


class DataSource(Model):
    """Rows of prompts and answers."""

    uri: Uri = Field(
        description="A .jsonl, .parquet or .csv file (s3://, gs://, az://, pvc://CLAIM/PATH, file:///PATH, file:PATH), or hf://ORG/NAME "
        "for a data set of the hub.",
        examples=["s3://team/gsm8k/train.jsonl"],
    )
    prompt_field: FieldName = Field(
        "prompt", description="Column with the prompt: a text, or a list of chat messages {role, content}."
    )
    answer_field: FieldName = Field(
        "answer", description="Column with the reference answer; for sft the text to learn."
    )
    subset: FieldName | None = Field(
        None, description="Configuration of an hf:// data set; its default when absent.", examples=["main"]
    )
    split: FieldName | None = Field(
        None,
        description="Split of an hf:// data set; train for data.train and test for data.eval when absent.",
        examples=["train"],
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        *uri_rules("uri", ["hf", "s3", "gs", "az", "pvc", "file"], secret="data.credentialsSecret"),
        Rule(
            "uri",
            "self.uri.startsWith('hf://') || self.uri.matches(r'[.](?i:jsonl|parquet|csv)$')",
            "uri to end in .jsonl, .parquet or .csv, or to be hf://ORG/NAME",
            "convert the data, or name the file within the folder",
        ),
        _only_hub("subset"),
        _only_hub("split"),
        Rule(
            "answerField",
            "self.promptField != self.answerField",
            "answerField to be another column than promptField",
            "name the column that holds the answer",
        ),
    )


class EvalSource(DataSource):
    """Held-out rows."""

    every: int = Field(
        20, ge=1, le=100_000, description="Evaluate after every so many steps, and at the start and the end."
    )


class DataSpec(Model):
    """What is trained on and what is held out."""

    train: DataSource = Field(description="Training rows.")
    eval: EvalSource | None = Field(
        None, description="Held-out rows: scored greedily (grpo) or by their loss (sft). No evaluation when absent."
    )
    chat_template: bool = Field(
        True,
        description="Format prompts with the tokenizer's chat template. Set to false for a base model without one: prompts are used as "
        "they are.",
    )
    credentials_secret: SecretName | None = Field(
        None,
        description="Name of a Secret whose keys give access to the data; the same names as model.credentialsSecret.",
    )
