"""The faults of a manifest: field, got, expected, hint, and never a secret."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from lorarl_api.load import ManifestError, faults, load_job
from lorarl_api.v1alpha1.algorithm_types import AlgorithmType
from lorarl_api.validate import validate_files
from unit.contract.manifests import SMALLEST, manifest
from unit.contract.traps import PYTHON_IS_STRICTER, TRAPS, Trap

FOLDER = Path(__file__).parents[3] / "examples"
EXAMPLES = sorted(
    set(FOLDER.rglob("*.yaml"))
    - {path for kind in ("sweeps", "schedules", "pipelines") for path in (FOLDER / kind).iterdir()}
)
GOOD = json.dumps(SMALLEST)
TYPES = get_args(AlgorithmType)


def fault_of(changes: dict[str, Any]) -> str:
    """The one fault of a manifest with `changes`."""
    (fault,) = faults(manifest(changes))
    return str(fault)


def errors(source: str | Path, *overrides: str) -> str:
    with pytest.raises(ManifestError) as caught:
        load_job(source, overrides)
    assert all(fault.got and fault.expected and fault.hint for fault in caught.value.faults)
    return str(caught.value)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_each_example_is_valid(path: Path) -> None:
    assert load_job(path).name
    assert len(EXAMPLES) >= 3


@pytest.mark.parametrize("trap", TRAPS + PYTHON_IS_STRICTER, ids=lambda trap: trap.name)
def test_yaml_is_read_as_kubernetes_reads_it(trap: Trap) -> None:
    if trap.good:
        load_job(trap.yaml)
    else:
        errors(trap.yaml)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"spec.adapter.rank": 0},
            "spec.adapter.rank: got 0, expected an integer from 1 to 512. "
            "Use a rank such as 32: lorarl trains adapters only.",
        ),
        (
            {"spec.cluster.cpusPerNode": 1.5},
            'spec.cluster.cpusPerNode: got 1.5, expected a Kubernetes CPU quantity: 8, "1.5" or 500m. '
            "Put it in quotes, so that YAML reads a string.",
        ),
        (
            {"spec.cluster.memoryPerNode": "64"},
            'spec.cluster.memoryPerNode: got "64", expected a memory quantity with a unit, such as 512Mi or 64Gi. '
            "Add a unit: 64Gi.",
        ),
        (
            {"spec.cluster.nodeSelector": {"gpu": True}},
            "spec.cluster.nodeSelector.gpu: got true, expected a label value: at most 63 letters, digits, dots, "
            "dashes and underscores, "
            "with a letter or digit at both ends. "
            "Put it in quotes: YAML reads an unquoted y, n, yes, no, on, off, true or false as a boolean.",
        ),
        (
            {"spec.cluster.tolerations": [{"operator": "Exists", "effect": "noschedule"}]},
            'spec.cluster.tolerations[0].effect: got "noschedule", expected NoSchedule, PreferNoSchedule or NoExecute. '
            "Did you mean NoSchedule?",
        ),
        (
            {"spec.cluster.podTemplateOverrides": {"worker": {"hostNetwork": True}}},
            "spec.cluster.podTemplateOverrides.worker.hostNetwork: got an unknown key, expected one of metadata, spec. "
            "Remove it.",
        ),
        (
            {"spec.adapter.rank": 513},
            "spec.adapter.rank: got 513, expected an integer from 1 to 512. "
            "Use a rank such as 32: lorarl trains adapters only.",
        ),
        (
            {"spec.adapter.rank": "16"},
            'spec.adapter.rank: got "16", expected an integer from 1 to 512. Remove the quotes.',
        ),
        (
            {"spec.adapter.alpha": 0},
            "spec.adapter.alpha: got 0, expected an integer from 1 to 8192. Use a value such as 64.",
        ),
        (
            {"spec.adapter.dropout": 1.5},
            "spec.adapter.dropout: got 1.5, expected a number of at least 0 and below 1. Use a value such as 0.0.",
        ),
        (
            {"spec.adapter.targetModules": None},
            "spec.adapter.targetModules: got nothing, expected a list of 1 to 64 entries. "
            "Add it, for example targetModules: [all-linear].",
        ),
        (
            {"spec.adapter.targetModules": "q_proj"},
            'spec.adapter.targetModules: got "q_proj", expected a list of 1 to 64 entries. Write a list: [q_proj].',
        ),
        (
            {"spec.adapter.targetModules": ["q proj"]},
            'spec.adapter.targetModules[0]: got "q proj", expected the name of a module or a wildcard: letters, '
            "digits, _ . - * ? [ ]. Use a value such as q_proj.",
        ),
        (
            {"spec.algorithm.groupSize": 0},
            "spec.algorithm.groupSize: got 0, expected an integer from 1 to 1024. Use a value such as 8.",
        ),
        (
            {"spec.algorithm.type": "GRPO"},
            f'spec.algorithm.type: got "GRPO", expected {", ".join(TYPES[:-1])} or {TYPES[-1]}. Did you mean grpo?',
        ),
        (
            {"spec.algorithm.type": "gpro"},
            f'spec.algorithm.type: got "gpro", expected {", ".join(TYPES[:-1])} or {TYPES[-1]}. Did you mean grpo?',
        ),
        ({"spec.suspend": "yes"}, 'spec.suspend: got "yes", expected true or false. Use a value such as false.'),
        (
            {"spec.reward": "my_reward:score"},
            'spec.reward: got "my_reward:score", expected a mapping with keys such as type, pattern, tolerance. '
            "Write {function: my_reward:score}.",
        ),
        (
            {"spec.reward": "exact"},
            'spec.reward: got "exact", expected a mapping with keys such as type, pattern, tolerance. '
            "Write {type: exact}.",
        ),
        (
            {"spec.cluster": 3},
            "spec.cluster: got 3, expected a mapping with keys such as nodes, minNodes, gpusPerNode. "
            "Use a value such as {}.",
        ),
        (
            {"spec.checkpoint": None},
            "spec.checkpoint: got nothing, expected a mapping with keys such as uri, every, everySeconds. "
            "Add it, for example checkpoint: {uri: s3://team/adapters}.",
        ),
        (
            {"spec.trainer.learning_rate": 1},
            "spec.trainer.learning_rate: got an unknown key, expected one of backend, steps, learningRate, "
            "warmupSteps, learningRateSchedule, minLearningRateShare, weightDecay, beta1, beta2, epsilon, maxGradNorm, "
            "tokensPerMicroBatch, recompute, routerReplay, tensorParallelSize, contextParallelSize, "
            "expertParallelSize, precision, seed. Did you mean learningRate?",
        ),
        (
            {"trainer": {}},
            "trainer: got an unknown key, expected one of apiVersion, kind, metadata, spec, status. "
            "Move it below spec: spec.trainer.",
        ),
        (
            {"metadata.lables": {}},
            "metadata.lables: got an unknown key, expected one of name, namespace, labels, annotations. "
            "Did you mean labels?",
        ),
        (
            {"metadata.annotations": {"a b": "c"}},
            'metadata.annotations: got the key "a b", expected [PREFIX/]NAME, of letters, digits, '
            "dots, dashes and underscores. "
            "Write a key such as example.com/name.",
        ),
        (
            {"metadata.labels": {"a": 1}},
            "metadata.labels.a: got 1, expected a label value: at most 63 letters, digits, dots, dashes and "
            "underscores, "
            "with a letter or digit at both ends. Put it in quotes, so that YAML reads a string.",
        ),
        (
            {"kind": "LoraRLJob"},
            'kind: got "LoraRLJob", expected LoRARLJob. Write kind: LoRARLJob, or name another file.',
        ),
        (
            {"apiVersion": None},
            "apiVersion: got nothing, expected lorarl.io/v1alpha1. Add apiVersion: lorarl.io/v1alpha1.",
        ),
        (
            {"spec.tracking.wandb": {"project": False}},
            "spec.tracking.wandb.project: got false, expected a string of 1 to 128 characters. "
            "Put it in quotes: YAML reads an unquoted y, n, yes, no, on, off, true or false as a boolean.",
        ),
        (
            {"spec.reward": {"type": "regex", "pattern": "("}},
            'spec.reward.pattern: got "(", expected a Python regular expression '
            "(missing ), unterminated subpattern at position 0). Correct the pattern, and put it in single quotes.",
        ),
        (
            {"spec.trainer.learningRate": float("nan")},
            "spec.trainer.learningRate: got NaN, expected a number above 0 and at most 1. Use a value such as 1.0e-05.",
        ),
        (
            {"spec.trainer.warmupSteps": 300},
            "spec.trainer.warmupSteps: got 300, must be at most trainer.steps. "
            "Lower warmupSteps, or raise trainer.steps.",
        ),
        (
            {"spec.data.chatTemplateArguments": {"since": [2**63]}},
            "spec.data.chatTemplateArguments.since[0]: got 9223372036854775808, expected an integer of at most "
            "64 bits. Put it in quotes, if it is a text.",
        ),
        (
            {"spec.cluster": {"podTemplateOverrides": {"worker": {"metadata": {"annotations": {"a": float("inf")}}}}}},
            "spec.cluster.podTemplateOverrides.worker.metadata.annotations.a: got Infinity, expected a finite number. "
            "Put it in quotes, if it is a text.",
        ),
    ],
)
def test_the_message_of_a_fault(changes: dict[str, Any], sentence: str) -> None:
    assert fault_of(changes) == sentence


def test_all_faults_are_reported_at_once() -> None:
    document = manifest({"spec.adapter.rank": 0, "spec.trainer.steps": 0, "spec.reward.tipe": 1})
    assert [fault.path for fault in faults(document)] == ["spec.adapter.rank", "spec.reward.tipe", "spec.trainer.steps"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "a: [1",
            "the manifest, line 1, column 6: "
            "got invalid YAML (expected ',' or ']', but got '<stream end>'), expected valid YAML",
        ),
        ("a:\n\tb: 1", "Indent with spaces, not tabs"),
        (
            "a: 1\nb: 2\na: 3",
            "the manifest, line 3, column 1: got the key a twice, expected each key once. Remove one of the two.",
        ),
        ("[a]: 1", "a list or mapping as a key"),
        ("a: &a [*a]", "an alias within its own anchor"),
        ("a: !!python/object:os.system x", "invalid YAML"),
        ("a: \x00", "the character #x0000"),
        ('a: "\\ud800"', "an unpaired surrogate"),
        ("a: !!binary aGk=", "got the tag !!binary, expected a text, a number, true, false or null. Remove the tag"),
        ("a: [!!timestamp 2026-01-31]", "got the tag !!timestamp"),
        ("[" * 3000, "nested too deeply"),
        ("", "the manifest: got nothing, expected a LoRARLJob. See examples/ for one to start from."),
        ("---\n---\n", "got nothing"),
        ("just words", 'the manifest: got "just words", expected a mapping with apiVersion, kind, metadata and spec'),
        ("- 1\n- 2", "the manifest: got a list with 2 entries"),
    ],
)
def test_an_unreadable_manifest_is_reported_with_its_place(text: str, sentence: str) -> None:
    assert sentence in errors(text)


def test_other_objects_may_be_beside_the_job() -> None:
    secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n"
    assert load_job(f"{secret}---\n{GOOD}\n---\n").name == "smallest"


def test_two_jobs_in_one_file_are_refused() -> None:
    assert "got 2 LoRARLJob objects, expected one" in errors(f"{GOOD}\n---\n{GOOD}")


def test_unreadable_files(tmp_path: Path) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("name: café".encode("latin-1"))
    assert "no such file or directory" in errors(tmp_path / "none.yaml")
    assert "is a directory" in errors(tmp_path)
    assert "not UTF-8" in errors(latin)


def test_overrides_change_one_field_each() -> None:
    job = load_job(
        GOOD,
        [
            "spec.trainer.steps=5",
            "spec.trainer.learningRate=1e-4",
            "spec.adapter.targetModules=[q_proj]",
            "metadata.name=other",
        ],
    )
    assert (job.spec.trainer.steps, job.spec.trainer.learning_rate, job.spec.adapter.target_modules, job.name) == (
        5,
        1e-4,
        ["q_proj"],
        "other",
    )


def test_an_override_does_not_change_an_aliased_field() -> None:
    document = json.loads(GOOD)
    rows = document["spec"]["data"]["train"]
    aliased = yaml.dump({**document, "spec": {**document["spec"], "data": {"train": rows, "eval": rows}}})
    assert "&" in aliased and "*" in aliased
    job = load_job(aliased, ["spec.data.train.uri=file:other.jsonl", "spec.data.eval.every=5"])
    assert job.spec.data.eval is not None
    assert (job.spec.data.train.uri, job.spec.data.eval.uri, job.spec.data.eval.every) == (
        "file:other.jsonl",
        rows["uri"],
        5,
    )


def test_an_override_with_null_removes_a_field() -> None:
    assert load_job(GOOD, ["spec.reward=null", "spec.algorithm.type=sft"]).spec.reward is None


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("spec.trainer.steps", '--set: got "spec.trainer.steps", expected PATH=VALUE'),
        ("spec..steps=1", "expected PATH=VALUE"),
        ("spec.trainer.stepz=5", "spec.trainer.stepz: got an unknown key"),
        ("trainer.steps=5", "Move it below spec: spec.trainer"),
        ("spec.model.uri.x=5", "--set spec.model.uri.x: got a path below spec.model.uri, which is not a mapping"),
        ("spec.trainer.steps=many", 'spec.trainer.steps: got "many", expected an integer from 1 to 10000000'),
        ("spec.trainer.steps=[", "--set spec.trainer.steps, line 1, column 2: got invalid YAML"),
        ("spec.trainer.steps=1\n---\n2", "2 YAML documents"),
    ],
)
def test_a_wrong_override_is_reported(assignment: str, sentence: str) -> None:
    assert sentence in errors(GOOD, assignment)


@pytest.mark.parametrize(
    "changes",
    [
        {"spec.model.uri": "https://me:hunter2@host/x"},
        {"spec.checkpoint.uri": "s3://b/p?AWSAccessKeyId=x&Signature=hunter2"},
        {"spec.data.train.uri": "az://c/d.jsonl?sv=1&sig=hunter2"},
        {"spec.model.credentialsSecret": "Hunter2/hunter2"},
        {"spec.model.token": "hunter2"},
        {"spec.model.revision": {"password": "hunter2"}},
        {"spec.adapter.type": "hf_hunter2hunter2"},
        {"spec.data.credentialsSecret": {"AWS_SECRET_ACCESS_KEY": "hunter2"}},
        {"spec.tracking.mlflow": {"trackingUri": "https://me:hunter2@mlflow", "experiment": "x"}},
    ],
    ids=str,
)
def test_a_secret_is_never_shown(changes: dict[str, Any]) -> None:
    found = faults(manifest(changes))
    assert found
    assert "hunter2" not in " ".join(str(fault).lower() for fault in found)


def test_a_long_value_is_cut() -> None:
    assert len(fault_of({"spec.model.uri": "x" * 5000})) < 300


def test_validate_prints_one_line_per_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(GOOD)
    bad.write_text(json.dumps(manifest({"spec.adapter.rank": 0, "spec.trainer.steps": 0})))
    assert validate_files([good]) == 0
    assert validate_files([good, bad, tmp_path / "none.yaml"]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"{good}: ok",
        f"{bad}: spec.adapter.rank: got 0, expected an integer from 1 to 512. "
        "Use a rank such as 32: lorarl trains adapters only.",
        f"{bad}: spec.trainer.steps: got 0, expected an integer from 1 to 10000000. Use a value such as 200.",
        f"{tmp_path / 'none.yaml'}: got no such file or directory, expected a readable file. Check the path.",
    ]


def test_validate_takes_overrides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.yaml").write_text(GOOD)
    assert validate_files([tmp_path / "job.yaml"], overrides=["spec.adapter.rank=8"]) == 0
    assert validate_files([tmp_path / "job.yaml"], overrides=["spec.adapter.rank=0"]) == 1
    assert validate_files([tmp_path / "job.yaml"], overrides=["spec.adapter.rank"]) == 1
    assert [line.partition(": ")[2].partition(". ")[0] for line in capsys.readouterr().out.splitlines()] == [
        "ok",
        "spec.adapter.rank: got 0, expected an integer from 1 to 512",
        '--set: got "spec.adapter.rank", expected PATH=VALUE',
    ]


def test_validation_loads_none_of_the_heavy_packages() -> None:
    program = (
        "import sys; from lorarl_api.validate import validate_files; validate_files(sys.argv[1:]); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(EXAMPLES[0])], capture_output=True, text=True, check=True)
    loaded = {module.partition(".")[0] for module in done.stdout.split()}
    assert "cel_expr_python" in loaded
    assert loaded.isdisjoint({"torch", "ray", "vllm", "transformers", "numpy", "kubernetes", "kopf"})


@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_value_is_no_way_to_say_default(text: str) -> None:
    """In a shell's loop it is a variable that is not set, and all runs would train alike."""
    with pytest.raises(ManifestError, match=r"--set spec.trainer.learningRate: got nothing, expected a value.*=null"):
        load_job(json.dumps(manifest()), [f"spec.trainer.learningRate={text}"])
    assert load_job(json.dumps(manifest()), ["spec.rollout.topK=null"]).spec.rollout.top_k is None
