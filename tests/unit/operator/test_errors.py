"""The meaning of the API server's refusals."""

from __future__ import annotations

import json

from lorarl_operator.kube.errors import from_answer


def test_a_terminating_namespace_differs_from_a_missing_permission():
    """The answer is that of kube-apiserver 1.34."""
    cause = {
        "reason": "NamespaceTerminating",
        "message": "namespace team is being terminated",
        "field": "metadata.namespace",
    }
    answer = {
        "kind": "Status",
        "reason": "Forbidden",
        "message": "forbidden",
        "details": {"name": "x", "causes": [cause]},
        "code": 403,
    }
    assert from_answer("POST /x", 403, json.dumps(answer).encode(), None).reason == "NamespaceTerminating"
    answer["details"] = {"name": "x"}
    assert from_answer("POST /x", 403, json.dumps(answer).encode(), None).reason == "Forbidden"


def test_an_answer_that_is_not_json_is_quoted():
    error = from_answer("GET /x", 502, b"<html>bad gateway", "3")
    assert (error.reason, error.message, error.retry_after, error.transient) == (
        "Unknown",
        "<html>bad gateway",
        3.0,
        True,
    )
