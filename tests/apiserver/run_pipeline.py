"""Runs examples/pipelines/kubeflow_pipeline.py on this machine, with kfp's own runner: MANIFEST [NAME].

It prints the outputs as JSON in its last line. With a name it runs the component alone.
"""

import json
import sys
from pathlib import Path

from kfp import local

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/pipelines"))
from kubeflow_pipeline import train, train_adapter

local.init(local.SubprocessRunner(use_venv=False), pipeline_root="kfp")
manifest, *name = sys.argv[1:]
text = Path(manifest).read_text()
task = train_adapter(manifest=text, name=name[0]) if name else train(manifest=text)
print(json.dumps({name: task.outputs[name] for name in ("adapter", "sha256", "score")}))
