"""Rows that are made when a run starts: tasks of a package, and numbered episodes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from lorarl_api.v1alpha1.common import FREE_FORM, Model
from lorarl_api.v1alpha1.scoring import GymTask

TaskSettings = Annotated[dict[str, Any], Field(max_length=64, examples=[{"max_terms": 4}], json_schema_extra=FREE_FORM)]


class ReasoningGymData(Model):
    """Rows of a task of the package reasoning-gym, generated when the run starts. They need no network."""

    task: GymTask = Field(description="Name of the task.")
    size: int = Field(1000, ge=1, le=1_000_000, description="Number of rows.")
    seed: int = Field(
        0,
        ge=0,
        le=2**31 - 1,
        description="Seed of the first row; each later row has the next one. Rows of two sources differ if their seeds "
        "are at least size apart.",
    )
    config: TaskSettings | None = Field(
        None, description="The task's own settings, such as its difficulty. Default: the task's."
    )
    instruction: str | None = Field(
        None,
        min_length=1,
        max_length=8192,
        description="Text after each question, for example how to give the answer. Default: none.",
        examples=["Give the final answer between <answer> and </answer>."],
    )


class EpisodesData(Model):
    """Rows that only number the episodes of an environment, which makes its own tasks."""

    size: int = Field(1000, ge=1, le=1_000_000, description="Number of rows.")
    seed: int = Field(
        0,
        ge=0,
        le=2**31 - 1,
        description="Seed of the first row, which is its column seed; each later row has the next one. Rows of two "
        "sources differ if their seeds are at least size apart.",
    )
