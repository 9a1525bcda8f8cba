"""No stored JSON makes `decide` raise: one bad object must not stop the others."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorarl_operator.decide.decide import decide
from lorarl_operator.decide.status import FIELDS, TRAINERS
from unit.operator.observed_world import SETTINGS, SPEC, START, observed, raw_job, raw_ray_job

pytestmark = pytest.mark.slow

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
SPECS = st.dictionaries(
    st.sampled_from(
        [*SPEC, "cluster", "trainer", "suspend", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"]
    ),
    JSON,
)
STATUSES = st.dictionaries(
    st.sampled_from([*FIELDS, *TRAINERS]), JSON | st.sampled_from(["Running", "Suspended", "Succeeded", "demo-3"])
)


@settings(max_examples=300, deadline=None)
@given(
    spec=SPECS,
    status=STATUSES,
    ray_status=st.dictionaries(st.sampled_from(["jobStatus", "jobDeploymentStatus", "endTime"]), JSON),
)
def test_no_stored_object_makes_decide_raise(spec, status, ray_status):
    for ray_jobs in ([], [raw_ray_job(**ray_status)], [raw_ray_job(3, jobDeploymentStatus="Failed")]):
        decide(observed(raw_job(spec, status), *ray_jobs), START, SETTINGS)
