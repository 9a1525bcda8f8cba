"""The training rows and the held-out rows."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from lorarl_api.rules import Rule
from lorarl_api.v1alpha1.common import FREE_FORM, EvalName, FieldName, Model, SecretName, Uri, uri_rules
from lorarl_api.v1alpha1.generated_data import EpisodesData, ReasoningGymData
from lorarl_api.v1alpha1.reward import RewardSpec
from lorarl_api.v1alpha1.stores import READABLE, WRITABLE


def _only_hub(field: str) -> Rule:
    return Rule(
        field,
        f"!has(self.{field}) || (has(self.uri) && self.uri.startsWith('hf://'))",
        "not be set unless uri is an hf:// data set",
        f"Remove {field}: a file has only one set of rows.",
    )


TemplateArguments = Annotated[
    dict[str, Any], Field(max_length=64, examples=[{"enable_thinking": False}], json_schema_extra=FREE_FORM)
]


class DataSource(Model):
    """Rows of prompts and answers. Set exactly one of uri, reasoningGym and episodes."""

    uri: Uri | None = Field(
        None,
        description="A .jsonl, .parquet or .csv file (s3://, gs://, az://, pvc://CLAIM/PATH, file:///PATH, "
        "file:PATH), or hf://ORG/NAME for a data set on the hub.",
        examples=["s3://team/gsm8k/train.jsonl"],
    )
    reasoning_gym: ReasoningGymData | None = Field(
        None,
        description="Rows of a task of reasoning-gym, with the columns prompt, question, answer and metadata. The "
        "package has to be installed: lorarl env add reasoning-gym.",
    )
    episodes: EpisodesData | None = Field(
        None,
        description="Rows with only a seed each, for an environment that makes its tasks from them.",
        examples=[{"size": 500}],
    )
    prompt_field: FieldName = Field(
        "prompt", description="Column with the prompt: a string, or a list of chat messages {role, content}."
    )
    answer_field: FieldName = Field(
        "answer", description="Column with the reference answer. For sft it is the text to learn."
    )
    system_field: FieldName | None = Field(
        None,
        description="Column with a system message, a string, which comes before the prompt or the conversation. Rows "
        "without one have none. Default: no column.",
        examples=["system"],
    )
    tools_field: FieldName | None = Field(
        None,
        description="Column with the tools that the chat template writes into the prompt: a list of JSON schemas, or "
        "JSON text of one. Default: no column.",
        examples=["tools"],
    )
    chosen_field: FieldName | None = Field(
        None,
        description="For dpo, the column with the preferred answer: a string, or chat messages that end with it. "
        "Default: chosen.",
        examples=["chosen"],
    )
    rejected_field: FieldName | None = Field(
        None,
        description="For dpo, the column with the other answer, in the same form. Default: rejected.",
        examples=["rejected"],
    )
    messages_field: FieldName | None = Field(
        None,
        description="For sft, the column with a whole conversation, a list of chat messages {role, content}, in place "
        "of prompt and answer. Every message of the assistant is learned, except those with weight: 0 or train: false.",
        examples=["messages"],
    )
    tokens_field: FieldName | None = Field(
        None,
        description="For sft, the column with the token ids of a sequence, in place of prompt and answer. Needs "
        "lossMaskField.",
        examples=["input_ids"],
    )
    loss_mask_field: FieldName | None = Field(
        None,
        description="The column with 0 or 1 for each token of tokensField: tokens with 1 are learned.",
        examples=["loss_mask"],
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
        Rule(
            "uri",
            "[has(self.uri), has(self.reasoningGym), has(self.episodes)].exists_one(one, one)",
            "be set if neither reasoningGym nor episodes is, and only then",
            "Set uri for rows of a file or the hub, or reasoningGym for generated ones, or episodes for seeds alone.",
        ),
        *uri_rules("uri", READABLE, optional=True, secret="data.credentialsSecret"),
        Rule(
            "uri",
            "!has(self.uri) || self.uri.startsWith('hf://') || self.uri.matches(r'[.](?i:jsonl|parquet|csv)$')",
            "end in .jsonl, .parquet or .csv, or be hf://ORG/NAME",
            "Convert the data, decompress it, or name the file within the folder.",
        ),
        _only_hub("subset"),
        _only_hub("split"),
        Rule(
            "answerField",
            "self.promptField != self.answerField",
            "differ from promptField",
            "Name the column with the answer.",
        ),
        Rule(
            "lossMaskField",
            "has(self.lossMaskField) == has(self.tokensField)",
            "be set if tokensField is, and only then",
            "Name both columns, or use messagesField.",
        ),
        Rule(
            "tokensField",
            "!has(self.tokensField) || !(has(self.systemField) || has(self.toolsField))",
            "not be set beside systemField or toolsField",
            "Remove systemField and toolsField: tokens are whole sequences already.",
        ),
        Rule(
            "messagesField",
            "!has(self.messagesField) || !has(self.tokensField)",
            "not be set beside tokensField",
            "Remove one of the two: a row is either messages or tokens.",
        ),
        Rule(
            "rejectedField",
            "(has(self.rejectedField) ? self.rejectedField : 'rejected') != "
            "(has(self.chosenField) ? self.chosenField : 'chosen')",
            "differ from chosenField",
            "Name the columns with the preferred answer and with the other one.",
        ),
        *(
            Rule(
                answer,
                f"!has(self.{answer}) || self.{answer} != self.promptField",
                "differ from promptField",
                "Name the columns with the prompt and with each answer. Answers that are conversations need no prompt.",
            )
            for answer in ("chosenField", "rejectedField")
        ),
    )

    @property
    def has_lessons(self) -> bool:
        """Whether a row is a conversation, or tokens with a mask."""
        return self.messages_field is not None or self.tokens_field is not None

    @property
    def pair_fields(self) -> tuple[str, str]:
        """The columns of a pair: the chosen and the rejected answer."""
        return self.chosen_field or "chosen", self.rejected_field or "rejected"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read, if the rows have them."""
        named = (self.messages_field, self.tokens_field, self.loss_mask_field, self.system_field, self.tools_field)
        own = () if self.has_lessons else (self.prompt_field, self.answer_field, *self.pair_fields)
        return (*own, *(name for name in named if name is not None))

    @property
    def origin(self) -> str:
        """Where the rows come from, for people."""
        if self.episodes:
            return f"episodes:{self.episodes.seed}"
        return self.uri or f"reasoning-gym:{self.reasoning_gym.task if self.reasoning_gym else ''}"


class MixtureSource(DataSource):
    """One of several sources of training rows."""

    name: EvalName = Field(description="Name of the source, for people.")
    weight: float = Field(
        1.0,
        gt=0.0,
        le=1e6,
        description="Share of this source's rows among all rows that are trained on, in proportion to the other "
        "sources' weights. A source that has fewer rows repeats them more often.",
        examples=[2.0],
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
        le=2.0,  # vLLM's
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
    pass_reward: float = Field(
        1.0,
        description="Least reward of a completion that passes, for passAtK, but for rounding.",
    )

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


class CurriculumSpec(Model):
    """How often a row is drawn, by its pass rate: the share of its completions that pass, in its past groups.

    A row with the pass rate p takes 4 p (1 - p) of its turns: all of them where half of its completions pass, and fewer
    the closer p is to 0 or 1. A row that was not drawn before takes its turn.
    """

    pass_reward: float = Field(1.0, description="Least reward of a completion that passes, but for rounding.")
    least_share: float = Field(
        0.1,
        ge=0.01,
        le=1.0,
        description="Share of its turns that every row takes at least, so that rows which the policy has learned, or "
        "cannot do yet, are tried again.",
    )


class DataSpec(Model):
    """The training rows and the held-out rows."""

    train: DataSource | None = Field(None, description="Training rows. Required unless there is a mixture.")
    mixture: list[MixtureSource] | None = Field(
        None,
        min_length=1,
        max_length=16,
        description="Several sources of training rows in place of train. Every step takes rows of each in proportion "
        "to the weights.",
        examples=[
            [{"name": "sums", "uri": "file:sums.jsonl"}, {"name": "logic", "weight": 0.5, "uri": "file:logic.jsonl"}]
        ],
    )
    curriculum: CurriculumSpec | None = Field(
        None,
        description="Draw a row more often the closer its pass rate is to one half. Needs a reward, and groups of "
        "several completions. Default: each row once per epoch.",
        examples=[{"leastShare": 0.1}],
    )
    eval: EvalSource | None = Field(
        None,
        description="Held-out rows: scored with greedy sampling, for sft by their loss, for dpo by the share of pairs "
        "in the right order. Default: no evaluation.",
    )
    evals: list[EvalSpec] = Field(
        default_factory=list,
        max_length=16,
        description="More evaluations, each with a name and, if needed, its own reward and sampling.",
    )
    chat_template: bool = Field(
        True,
        description="Format prompts with the tokenizer's chat template, or that of chatTemplateFile. Set it to false "
        "for a base model without a template: then prompts are used unchanged.",
        json_schema_extra={"hint": "Use true or false. A template of your own goes into data.chatTemplateFile."},
    )
    chat_template_file: Uri | None = Field(
        None,
        description="A file with a Jinja chat template in place of the model's own (s3://, gs://, az://, "
        "pvc://CLAIM/PATH, file:///PATH, file:PATH). Adapters are published with it. Default: the model's.",
        examples=["file:chat_template.jinja"],
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
            "train",
            "has(self.train) != has(self.mixture)",
            "be set if there is no mixture, and only then",
            "Set data.train for rows of one source, or data.mixture for those of several.",
        ),
        Rule(
            "mixture",
            "!has(self.mixture) || self.mixture.all(one, self.mixture.exists_one(other, other.name == one.name))",
            "have a different name for each source",
            "Rename one of the two with the same name.",
        ),
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
        *uri_rules("chatTemplateFile", WRITABLE, optional=True, secret="data.credentialsSecret"),
        Rule(
            "chatTemplateFile",
            "self.chatTemplate || !has(self.chatTemplateFile)",
            "be absent if chatTemplate is false, because then no template is used",
            "Remove chatTemplateFile, or chatTemplate: false.",
        ),
    )

    @property
    def evaluations(self) -> list[tuple[str, EvalSource]]:
        """All evaluations by name, in order: `eval`, whose name is empty, and those of `evals`."""
        first: list[tuple[str, EvalSource]] = [("", self.eval)] if self.eval else []
        return [*first, *((source.name, source) for source in self.evals)]

    @property
    def sources(self) -> dict[str, DataSource]:
        """The source or sources of the training rows, by their paths (`spec.data.mixture[0]`)."""
        if self.train is not None:
            return {"spec.data.train": self.train}
        return {f"spec.data.mixture[{number}]": source for number, source in enumerate(self.mixture or [])}

    @property
    def origin(self) -> str:
        """Where the training rows come from, for people."""
        return ", ".join(source.origin for source in self.sources.values())
