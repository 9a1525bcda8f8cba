"""Server-side apply reads YAML, and JSON is nearly YAML."""

from __future__ import annotations

import json

import yaml
from hypothesis import given
from hypothesis import strategies as st

from lorarl_operator.kube.apply import apply_body

TEXTS = st.text() | st.text(alphabet="\\u0123dce\U0001f525\x7f\x85", max_size=20)

# YAML reads keys of at most 1,024 characters, and one character may become twelve here.
# Names in Kubernetes are shorter, and ASCII.
KEYS = TEXTS.map(lambda text: text[:80])


@given(value=st.dictionaries(KEYS, TEXTS | st.lists(TEXTS, max_size=2), max_size=3))
def test_json_and_yaml_read_the_same(value: dict[str, object]) -> None:
    body = apply_body(value).decode()
    assert json.loads(body) == value
    assert yaml.safe_load(body) == value


def test_json_within_json_stays_as_it_is() -> None:
    value = {"job.yaml": json.dumps({"a": "\U0001f525"})}
    assert yaml.safe_load(apply_body(value)) == value
