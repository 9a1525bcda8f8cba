"""Helpers for tests of the objects that the operator builds."""

from __future__ import annotations

from lorarl_operator.decide import parse
from lorarl_operator.decide.valid_spec import checked_spec
from lorarl_operator.manifests.rayjob import ray_job
from unit.operator.observed_world import SETTINGS, raw_job


def built(spec=None, *, queued=None, **metadata):
    job = parse.job(raw_job(spec, **metadata))
    return ray_job(job, checked_spec(job), 1, SETTINGS, queued=queued)


def head(rayjob):
    return rayjob["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]


def workers(rayjob):
    return rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
