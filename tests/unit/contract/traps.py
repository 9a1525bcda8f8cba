"""Traps of YAML and of single fields. The unit tests and the API server's tests both use all of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Trap:
    """YAML, and whether it is a valid manifest."""

    name: str
    yaml: str
    good: bool


_KEYS = [f"k{number}" for number in range(65)]


def _with(spec_line: str, *, trainer: str = "", rank: str = "8") -> str:
    return f"""\
apiVersion: lorarl.io/v1alpha1
kind: LoRARLJob
metadata: {{name: trap}}
spec:
  model: {{uri: hf://a/b}}
  adapter: {{targetModules: [all-linear], rank: {rank}}}
  reward: {{type: exact}}
  data: {{train: {{uri: "file:a.jsonl"}}}}
  checkpoint: {{uri: s3://a/b}}
  {spec_line}
  trainer: {{{trainer}}}
"""


def _dpo(wrong_share: float) -> str:
    options = f"algorithm: {{type: dpo, dpo: {{labelSmoothing: {wrong_share}}}}}"
    return _with(options).replace("  reward: {type: exact}\n", "")


# Python and the API server agree about these.
TRAPS = [
    Trap("1e-5 without a point is a number", _with("", trainer="learningRate: 1e-5"), True),
    Trap("1e2 is an integer", _with("", trainer="steps: 1e2"), True),
    Trap("8.0 is an integer", _with("", rank="8.0"), True),
    Trap("8.5 is not an integer", _with("", rank="8.5"), False),
    Trap("010 is eight", _with("", rank="010"), True),
    Trap("an integer is a number", _with("", trainer="learningRate: 1"), True),
    Trap("a quoted number is a string", _with("", rank='"8"'), False),
    Trap("true is not a number", _with("", rank="true"), False),
    Trap("yes is a boolean", _with("suspend: yes"), True),
    Trap("off is a boolean", _with("suspend: off"), True),
    Trap("quoted true is not a boolean", _with('suspend: "true"'), False),
    Trap("no is not a string", _with("tracking: {wandb: {project: no}}"), False),
    Trap("a date is a string", _with("tracking: {wandb: {project: 2026-01-31}}"), True),
    Trap("12:30 is a string", _with("tracking: {wandb: {project: 12:30}}"), True),
    Trap("a number is not a string", _with("tracking: {wandb: {project: 7}}"), False),
    Trap("null means the default", _with("suspend: null", rank="null"), True),
    Trap("null in a group means the default", _with("cluster: ~"), True),
    Trap("null is not a value for a required field", _with("tracking: {wandb: {project: null}}"), False),
    Trap("null is not a module", _with("").replace("[all-linear]", "[q_proj, null]"), False),
    Trap("an unknown key", _with("suspended: true"), False),
    Trap("an unknown key deep inside", _with("", trainer="step: 3"), False),
    Trap("Python's spelling of a key", _with("", trainer="learning_rate: 0.1"), False),
    Trap("a mistyped key of the metadata", _with("").replace("name: trap", "name: trap, lables: {a: b}"), False),
    Trap(
        "labels and annotations",
        _with("").replace("name: trap", "name: trap, labels: {a: b}, annotations: {c: d}"),
        True,
    ),
    Trap("a label with a space in its key", _with("").replace("name: trap", 'name: trap, labels: {"a b": c}'), False),
    Trap("a label with a space in its value", _with("").replace("name: trap", "name: trap, labels: {a: b c}"), False),
    Trap(
        "an annotation with a space in its key",
        _with("").replace("name: trap", 'name: trap, annotations: {"a b": c}'),
        False,
    ),
    Trap("a label that is not a string", _with("").replace("name: trap", "name: trap, labels: {a: 1}"), False),
    Trap("a list instead of a group", _with("cluster: []"), False),
    Trap("a string instead of a list", _with("").replace("[all-linear]", "all-linear"), False),
    Trap("an empty list of modules", _with("").replace("[all-linear]", "[]"), False),
    Trap(
        "a merge of an anchor",
        _with("").replace(
            '{train: {uri: "file:a.jsonl"}}', '{train: &t {uri: "file:a.jsonl"}, eval: {<<: *t, every: 5}}'
        ),
        True,
    ),
    Trap("infinity", _with("", trainer="learningRate: .inf"), False),
    Trap("a rank above what vLLM serves", _with("", rank="513"), False),
    Trap("dropout 1", _with("").replace("rank: 8", "dropout: 1"), False),
    Trap("a learning rate of zero", _with("", trainer="learningRate: 0"), False),
    Trap("one completion per prompt", _with("algorithm: {groupSize: 1}"), False),
    Trap("a temperature of zero", _with("rollout: {temperature: 0}"), False),
    Trap("a temperature of one", _with("rollout: {temperature: 1}"), True),
    Trap("a temperature of two", _with("rollout: {temperature: 2}"), True),
    Trap("a temperature above two, which vLLM refuses", _with("rollout: {temperature: 2.1}"), False),
    Trap("half of the pairs the wrong way round", _dpo(0.5), False),
    Trap("no pair the wrong way round, as an integer", _dpo(0), True),
    Trap(
        "the value of a Secret instead of its name",
        _with("tracking: {wandb: {project: a, credentialsSecret: AKIA/1234}}"),
        False,
    ),
    Trap("whole CPUs without quotes", _with("cluster: {cpusPerNode: 8, head: {cpus: 2}}"), True),
    Trap("whole CPUs in quotes", _with('cluster: {cpusPerNode: "8", head: {cpus: 500m}}'), True),
    Trap("half a CPU in quotes", _with('cluster: {cpusPerNode: "0.5"}'), True),
    Trap("half a CPU without quotes", _with("cluster: {cpusPerNode: 0.5}"), False),
    Trap("no CPU", _with("cluster: {cpusPerNode: 0}"), False),
    Trap("negative CPUs", _with("cluster: {cpusPerNode: -1}"), False),
    Trap("a million CPUs", _with("cluster: {cpusPerNode: 1000000}"), False),
    Trap("CPUs that are a boolean", _with("cluster: {cpusPerNode: yes}"), False),
    Trap("CPUs with a unit of memory", _with("cluster: {cpusPerNode: 8Gi}"), False),
    Trap("memory", _with("cluster: {memoryPerNode: 512Gi, sharedMemory: 1.5Ti}"), True),
    Trap("memory without a unit", _with('cluster: {memoryPerNode: "512"}'), False),
    Trap("memory as a number", _with("cluster: {memoryPerNode: 512}"), False),
    Trap("memory with a space", _with("cluster: {memoryPerNode: 512 Gi}"), False),
    Trap("a node label that is a boolean", _with("cluster: {nodeSelector: {gpu: true}}"), False),
    Trap("a node label with a slash", _with("cluster: {nodeSelector: {gpu: a/b}}"), False),
    Trap("an image with a space", _with('cluster: {image: "a b"}'), False),
    Trap("an image with a digest", _with(f"cluster: {{image: r:5000/a/b:1@sha256:{'0' * 64}}}"), True),
    Trap("an image with half a digest", _with("cluster: {image: a@sha256:0}"), False),
    Trap("a resource that is not a name", _with("cluster: {gpuResource: nvidia.com/}"), False),
    Trap("an unknown effect", _with("cluster: {tolerations: [{operator: Exists, effect: NoScheduling}]}"), False),
    Trap("an unknown key of a toleration", _with("cluster: {tolerations: [{operator: Exists, keys: a}]}"), False),
    Trap(
        "an override of anything",
        _with("cluster: {podTemplateOverrides: {worker: {spec: {a: [1, {b: null}], if: 2}}}}"),
        True,
    ),
    Trap(
        "an override that is not below spec",
        _with("cluster: {podTemplateOverrides: {worker: {hostNetwork: true}}}"),
        False,
    ),
    Trap("an override that is a list", _with("cluster: {podTemplateOverrides: {head: {spec: []}}}"), False),
    Trap(
        "an override with too many keys",
        _with(f"cluster: {{podTemplateOverrides: {{head: {{spec: {dict.fromkeys(_KEYS, 1)}}}}}}}"),
        False,
    ),
    Trap("a grace period of zero", _with("cluster: {terminationGracePeriodSeconds: 0}"), False),
    Trap("a negative number of retries", _with("backoffLimit: -1"), False),
    Trap("a ttl of zero", _with("ttlSecondsAfterFinished: 0"), True),
    Trap("a deadline of zero", _with("activeDeadlineSeconds: 0"), False),
    Trap("a deadline in words", _with("startDeadlineSeconds: 1h"), False),
    Trap(
        "another deletion policy",
        _with("").replace("{uri: s3://a/b}", "{uri: s3://a/b, deletionPolicy: delete}"),
        False,
    ),
    Trap("a function without a colon", _with("").replace("type: exact", "function: my.reward"), False),
]

# kubectl or the API server drops these, and Python refuses them.
PYTHON_IS_STRICTER = [
    Trap("an unknown key with null", _with("suspends: null"), False),
    Trap("a node label that is null", _with("cluster: {nodeSelector: {gpu: null}}"), False),
    Trap("a key twice", _with("", trainer="steps: 3, steps: 4"), False),
    Trap("a pattern that Python cannot compile", _with("").replace("type: exact", "type: regex, pattern: '('"), False),
]

# Words of YAML about whose meaning parsers disagree.
_WORDS = """
    y n Y N yes No ON off true False TRUE ~ null Null NULL nuLL ''
    1 -1 +1 0 -0 007 010 -010 08 0_7 0o10 -0o7 0x1F -0x1F 0b101 1_000 1__0 _1 1,000 9223372036854775807
    1. .5 -.5 .1e1 5.0 -0.0 0.10 1e3 1E3 1e-5 1.0e5 1.5e+3 1e400
    12:30 1:2:3 2026-01-31 2026-01-31T12:00:00Z 1.2.3 0.0.0.0 . + = e5 0x 0b 1e <<
"""
SCALARS = _WORDS.split()
