"""What an object has left of an earlier manifest of its job."""

from __future__ import annotations

from typing import Any

from lorarl_operator.control.owned import has, left_over


def account(annotations: dict[str, str], *written: str, manager: str = "lorarl-operator") -> dict[str, Any]:
    """A ServiceAccount, of whose annotations a manager has written some."""
    fields = {"f:metadata": {"f:annotations": {".": {}} | {f"f:{key}": {} for key in written}}}
    managed = [{"manager": "kubelet"}, {"manager": manager, "operation": "Update", "fieldsV1": fields}]
    return {"metadata": {"annotations": annotations, "managedFields": managed}}


def test_only_what_the_operator_wrote_and_the_job_gave_up_is_left_over() -> None:
    found = account({"role": "admin", "audience": "a", "others": "1"}, "role", "audience", "gone")
    wanted = {"metadata": {"annotations": {"audience": "b"}}}
    assert left_over(found, wanted) == {"role"}
    assert left_over(found, {"metadata": {}}) == {"role", "audience"}
    assert left_over(account({"role": "admin"}, "role", manager="helm"), {"metadata": {}}) == set()
    assert left_over({"metadata": {}}, wanted) == set()
    assert has(found, {"metadata": {"annotations": {"role": "admin"}}}) and not has(found, wanted)
