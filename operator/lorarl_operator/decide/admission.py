"""Who refused an object: the API server by its own rules, or a policy or webhook of the cluster."""

from __future__ import annotations

import re

_BY_ADMISSION = re.compile(r"^admission webhook |ValidatingAdmissionPolicy '[^']*' with binding '[^']*' denied request")


def by_admission(message: str) -> bool:
    """Whether a policy or a webhook refused an object. It may accept the same object later.

    It may look at other objects too, and its administrator may change it. No code tells it from the API server's own
    validation: a policy answers 422 unless it says another, and Kyverno's webhook 400.
    """
    return _BY_ADMISSION.search(message) is not None
