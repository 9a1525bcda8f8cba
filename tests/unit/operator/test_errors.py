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


def test_a_kind_that_is_not_served_is_no_missing_object():
    """Both answers are kube-apiserver's: for a group that it does not serve, and for a kind that the group lacks."""
    text = from_answer("POST /apis/resource.k8s.io/v1/x", 404, b"404 page not found\n", None)
    known_group = {"reason": "NotFound", "message": "the server could not find the requested resource"}
    status = from_answer("POST /x", 404, json.dumps(known_group).encode(), None)
    for error in (text, status):
        assert (error.kind_missing, error.refused) == (True, True)
    gone = from_answer(
        "POST /x", 404, json.dumps({"reason": "NotFound", "message": 'pods "x" not found'}).encode(), None
    )
    assert (gone.kind_missing, gone.refused, gone.not_found) == (False, False, True)
