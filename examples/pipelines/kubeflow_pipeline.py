"""A component for Kubeflow Pipelines: it trains a LoRARLJob; its outputs are the adapter's URI, sha256 and score.

`python kubeflow_pipeline.py` writes train.yaml for Kubeflow. It needs kfp 2.17. docs/pipelines.md explains it.
"""

# Kubeflow reads the outputs from such annotations.
# mypy: disable-error-code="valid-type, name-match"
from typing import NamedTuple

from kfp import compiler, dsl

IMAGE = "REGISTRY/lorarl/python-client:0.1.0"  # of the Dockerfile beside this file


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def train_adapter(manifest: str, name: str) -> NamedTuple(
    "Trained", [("adapter", str), ("sha256", str), ("score", float)]
):
    """Train a job and wait for it.

    Args:
        manifest: the job in YAML. It has data.eval, which gives the score.
        name: the job's name. With the same name, a step that starts again waits for the same job.
    """
    from collections import namedtuple

    import lorarl

    job = lorarl.Client().submit(manifest, {"metadata.name": name})
    status = job.wait().status  # raises what the job says if it fails
    score = status.get("metrics", {}).get("evalScore")
    if score is None:
        raise ValueError(f"the job {name} has no score. Give its manifest held-out rows: spec.data.eval.")
    trained = namedtuple("Trained", ["adapter", "sha256", "score"])
    return trained(status["adapter"]["uri"], status["adapter"]["sha256"], score)


@dsl.pipeline(name="train")
def train(manifest: str) -> NamedTuple("Trained", [("adapter", str), ("sha256", str), ("score", float)]):
    """Train one job, whose name has the run's id: 42 characters, which is the most that a name may have."""
    from collections import namedtuple

    job = train_adapter(manifest=manifest, name=f"train-{dsl.PIPELINE_JOB_ID_PLACEHOLDER}")
    trained = namedtuple("Trained", ["adapter", "sha256", "score"])
    return trained(job.outputs["adapter"], job.outputs["sha256"], job.outputs["score"])


if __name__ == "__main__":
    compiler.Compiler().compile(train, "train.yaml")
