"""Where the code of a reward function is, if it is not in the trainer's image or beside the manifest."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from lorarl_api.rules import Rule
from lorarl_api.v1alpha1.common import Model, ObjectName, SecretName, Uri, uri_rules
from lorarl_api.v1alpha1.stores import WRITABLE


class RewardSource(Model):
    """Python files and wheels. Set exactly one of configMap and uri."""

    config_map: ObjectName | None = Field(
        None,
        description="A ConfigMap of the job's namespace, each of whose keys is a file. `lorarl run` on one machine has "
        "none, and looks for the function beside the manifest instead.",
        examples=["my-rewards"],
    )
    uri: Uri | None = Field(
        None,
        description="A Python file (.py), a wheel (.whl), or a folder with such files and packages, in a store or at "
        "a path of the driver's machine.",
        examples=["s3://team/rewards/my_rewards.py"],
    )
    credentials_secret: SecretName | None = Field(
        None, description="Secret with the keys of the store. Without it, the pod's own identity is used."
    )
    sha256: str | None = Field(
        None,
        max_length=64,
        pattern=r"^[0-9a-f]{64}$",
        description="The SHA-256 that the file must have. Of several files, that of the lines that "
        "`sha256sum *` prints for them in the order of their names. Default: any. What a run used is in its record, "
        "and only the same resumes from a checkpoint.",
        examples=["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"],
        json_schema_extra={"expected": "64 digits 0-9 and a-f"},
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "configMap",
            "has(self.configMap) != has(self.uri)",
            "be set if uri is not, and only then",
            "Name a ConfigMap, or the URI of a file, a wheel or a folder.",
        ),
        *uri_rules("uri", WRITABLE, optional=True),
        Rule(
            "credentialsSecret",
            "!has(self.credentialsSecret) || has(self.uri)",
            "not be set beside configMap",
            "Remove credentialsSecret.",
        ),
    )

    def __str__(self) -> str:
        """The source, for messages."""
        return f"the ConfigMap {self.config_map}" if self.config_map else str(self.uri)
