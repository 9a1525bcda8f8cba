"""Every reason that the operator gives: why a job waits, why an attempt ended, and what else its Events report.

To add a reason, add its line to a table, here or in `news_reasons.py`, and use the member:
`Blocker(Waiting.QUEUED, message)`, `ended(Ended.HEAD_LOST, message)`, `Event("Normal", News.RECOVERED, message)`. Then
run `make generate`, which writes the tables of docs/jobs.md. mypy refuses a reason that is a plain string.

A reason that another component gave is `Foreign`, and `foreign` makes it one.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NewType

from lorarl_operator.decide.news_reasons import News
from lorarl_operator.decide.publish_reasons import Publishing
from lorarl_operator.decide.reason_row import Row
from lorarl_operator.decide.schedule_reasons import Scheduling
from lorarl_operator.decide.sweep_reasons import Sweeping

Foreign = NewType("Foreign", str)
"""A reason that others gave: Kubernetes for a pod, KubeRay for a RayJob, the trainer, or an older status."""
_LONGEST_REASON = 128


def foreign(reason: str) -> Foreign:
    """A reason in the form that a condition may have; node-maintenance becomes NodeMaintenance.

    Nothing holds the conditions of pods to that form, and the API server would refuse the whole status.
    """
    words = re.split(r"[^A-Za-z0-9_]+", reason)
    found = "".join(f"{word[0].upper()}{word[1:]}" for word in words if word)[:_LONGEST_REASON]
    return Foreign(found.lstrip("0123456789_").rstrip("_") or "Unknown")


class Counts(StrEnum):
    """What the end of an attempt counts as."""

    FAILURE = "a failure"
    PREEMPTION = "a preemption"
    JOB_FAILS = "the job fails"


class Waiting(Row):
    """Why a job does not train: the condition Running is False. What follows is what the user can do about it."""

    STARTING = "Starting", "KubeRay starts the pods, or the training process starts in them.", "Wait."
    QUEUED = (
        "Queued",
        "Kueue has no quota for the job now. The message is Kueue's.",
        "Wait, or see `kubectl get localqueues`.",
    )
    QUEUE_STOPPED = (
        "QueueStopped",
        "An administrator stopped the job's Workload, or its queue. The job keeps its checkpoint.",
        "Ask for what the message names: `kueuectl resume workload NAME`. A change of the job does not end it.",
    )
    UNSCHEDULABLE = (
        "Unschedulable",
        "No node has room, or none fits.",
        "Free or add nodes, or ask for less in `cluster`.",
    )
    SCALING_UP = "ScalingUp", "No node has room, and the cluster autoscaler or Karpenter adds one.", "Wait."
    IMAGE_PULL = (
        "ImagePull",
        "An image cannot be pulled.",
        "Correct `cluster.image`, or name a Secret in `cluster.imagePullSecrets`.",
    )
    SECRET_MISSING = (
        "SecretMissing",
        "A pod needs a Secret that does not exist.",
        "Create it. The job then continues by itself.",
    )
    CONFIG_MAP_MISSING = (
        "ConfigMapMissing",
        "A pod needs a ConfigMap that does not exist.",
        "Create it. lorarl creates the job's own again.",
    )
    SERVICE_ACCOUNT_MISSING = (
        "ServiceAccountMissing",
        "`cluster.serviceAccountName` names an account that does not exist.",
        "Create it, or remove the field.",
    )
    VOLUME_NOT_MOUNTED = (
        "VolumeNotMounted",
        "The kubelet cannot mount a volume that a pod needs.",
        "Fix what the message names. The job then continues by itself.",
    )
    TEMPLATE_MISSING = (
        "TemplateMissing",
        "`spec.templateRef` names a template that does not exist, or that the operator may not read.",
        "Create it, or correct the name. The job then continues within 30 s.",
    )
    TEMPLATE_FORBIDS = (
        "TemplateForbids",
        "The job sets a field that its [template](templates.md) locks. The message names it.",
        "Remove the field from the job.",
    )
    TEMPLATE_BREAKS_POLICY = (
        "TemplateBreaksPolicy",
        "With its template's values the job breaks a policy of the cluster, such as the chart's `jobPolicy`. "
        "The message is the policy's.",
        "Name another template, or ask who maintains it.",
    )
    QUOTA_EXCEEDED = (
        "QuotaExceeded",
        "A ResourceQuota of the namespace is full.",
        "Ask for less, or wait (`kubectl describe quota`).",
    )
    POD_REFUSED = (
        "PodRefused",
        "The API server refuses a pod: pod security, a missing PriorityClass, a webhook. "
        "Or a node's kubelet refuses it: `TopologyAffinityError`, `UnexpectedAdmissionError`, `OutOfcpu`.",
        "Fix what the message names. For pod security see [below](#namespaces-that-enforce-restricted). "
        "After a node's third refusal the next attempt follows.",
    )
    INIT_FAILED = (
        "InitFailed",
        "An init container of `cluster.podTemplateOverrides` failed. The message has the end of its log.",
        "Fix what the log says. The third failure ends the attempt.",
    )
    WORKER_EXITED = (
        "WorkerExited",
        "Ray exited in the pod of a worker or a separate engine before the attempt ran.",
        "Wait: KubeRay replaces the pod. The third exit ends the attempt.",
    )
    CONTAINER_REFUSED = (
        "ContainerRefused",
        "A container cannot be created.",
        "Correct the image or `cluster.podTemplateOverrides`.",
    )
    SCHEDULING_GATED = (
        "SchedulingGated",
        "A scheduling gate blocks a pod.",
        "Check the queue that set the gate.",
    )
    NODE_NOT_READY = (
        "NodeNotReady",
        "A node cannot start a pod. The message is the kubelet's.",
        "Check the node that the message names.",
    )
    RAY_JOB_REFUSED = (
        "RayJobRefused",
        "KubeRay or a webhook refuses the RayJob.",
        "Usually correct `cluster.podTemplateOverrides`, and apply the job again.",
    )
    RAY_JOB_SUSPENDED = (
        "RayJobSuspended",
        "Something other than a queue suspended the RayJob, and KubeRay will not resume it.",
        "Delete the RayJob. lorarl recreates it.",
    )
    RAY_JOB_STAYS = (
        "RayJobStays",
        "The previous RayJob is being deleted and does not disappear. The message names its finalizers.",
        "For `ray.io/...`, check KubeRay's operator; otherwise contact the owner of the finalizer.",
    )
    NO_KUBERAY = "NoKubeRay", "KubeRay does not start the RayJob.", "Check KubeRay's operator."
    NAME_TAKEN = (
        "NameTaken",
        "An object of another owner has the name that the job needs. lorarl never takes it over.",
        "Delete the object, or choose another name.",
    )
    OBJECT_REFUSED = (
        "ObjectRefused",
        "The API server refuses the ServiceAccount, Role, RoleBinding or ConfigMap.",
        "Check the operator's permissions.",
    )
    NAMESPACE_TERMINATING = (
        "NamespaceTerminating",
        "The namespace is being deleted, and the job with it.",
        "Nothing.",
    )
    INVALID = (
        "Invalid",
        "The checkpoints would be deleted with the pods (`file:`), or an older definition admitted a spec that this "
        "operator cannot read.",
        "Correct it. Fields that cannot be changed need a new job.",
    )
    BACKING_OFF = (
        "BackingOff",
        "The last attempt failed. The message says how.",
        "Nothing: the next attempt follows.",
    )
    RESTARTING = (
        "Restarting",
        "The last attempt was preempted. The message says how.",
        "Nothing: the next attempt follows.",
    )
    PREEMPTED_AGAIN = (
        "PreemptedAgain",
        "Attempts were preempted in a row soon after they began, and made no further step.",
        "Nothing: the next attempt follows.",
    )
    FEWER_NODES = (
        "FewerNodes",
        "A queue had no quota for all nodes of a job with `cluster.minNodes`. The next attempt asks for half of them.",
        "Wait.",
    )
    PARTLY_PLACED = (
        "PartlyPlaced",
        "Some pods of workers or engines had nodes, and for 15 to 22 minutes no node had room for the others. The "
        "attempt gave its machines back, so that jobs which block each other can run in turn. "
        "It does not count as a failure or preemption.",
        "Nothing: the next attempt follows after a minute. A queue of Kueue or a gang scheduler places all pods "
        "together.",
    )
    CHANGED = (
        "Changed",
        "`cluster`, `tracking` or the labels of the queue changed while the RayJob waited.",
        "Nothing: the next attempt takes its place.",
    )
    RECOVERING = (
        "Recovering",
        "The attempt lost a worker and waits for its replacement. The message says why it was lost, and what the new "
        "pod waits for.",
        "Nothing: see [below](#when-a-worker-is-lost).",
    )
    MORE_STEPS = (
        "MoreSteps",
        "The training ended before it saw that `trainer.steps` had been raised.",
        "Nothing: the next attempt does the missing steps.",
    )
    SUSPENDING = "Suspending", "`spec.suspend` is true. The pods write a checkpoint and end.", "Wait."
    SUSPENDED = "Suspended", "`spec.suspend` is true, and no pod is left.", "Set `suspend: false`."


class Ended(Row):
    """Why an attempt ended. What follows is what that counts as."""

    INVALID_INPUT = (
        "InvalidInput",
        "The trainer cannot use the manifest, or something that it names. The message says what to fix.",
        Counts.JOB_FAILS,
    )
    FENCED = (
        "Fenced",
        "A newer start of this job has taken over its folder: [checkpoints.md](checkpoints.md#two-runs-on-one-folder).",
        Counts.JOB_FAILS,
    )
    GRADIENT_NOT_FINITE = (
        "GradientNotFinite",
        "Loss or gradient was not a finite number, three updates in a row.",
        Counts.JOB_FAILS,
    )
    POLICY_DRIFT = (
        "PolicyDrift",
        "Engine and trainer disagree about the same tokens. The job fails if that recurs after the same step on other "
        "nodes.",
        Counts.FAILURE,
    )
    STALE_ADAPTER = "StaleAdapter", "vLLM generated with an older adapter than the newest one.", Counts.FAILURE
    REWARD_SERVER_FAILED = (
        "RewardServerFailed",
        "The server of a `reward.server` gave too few scores, after all retries. The next attempt resumes.",
        Counts.FAILURE,
    )
    ROLLOUT_SERVER_FAILED = (
        "RolloutServerFailed",
        "None of `rollout.servers` or `rollout.separateEngines` generated with the newest adapter as the trainer "
        "computes it. The message says why, for each. What an engine printed is in its pod's log. The next attempt "
        "resumes.",
        Counts.FAILURE,
    )
    STORAGE_FAILED = (
        "StorageFailed",
        "The object store refused a request, or could not be reached before the retries ran out.",
        Counts.FAILURE,
    )
    WORKER_FAILED = "WorkerFailed", "A worker's process failed. The message has its last error.", Counts.FAILURE
    FAILED = "Failed", "The trainer failed in another way. The message says how.", Counts.FAILURE
    OUT_OF_MEMORY = (
        "OutOfMemory",
        "A GPU or a container ran out of memory, or a pod was evicted from a full node with more memory than it had "
        "requested.",
        Counts.FAILURE,
    )
    DISK_FULL = (
        "DiskFull",
        "A pod was evicted because its files took more disk than `cluster.diskPerNode`, or than the node had and the "
        "pod had requested.",
        Counts.FAILURE,
    )
    HEAD_EXITED = (
        "HeadExited",
        "Ray's container of the head exited by itself. The message has the end of its log.",
        Counts.FAILURE,
    )
    WORKER_EXITED = (
        "WorkerExited",
        "Ray's container of a worker exited by itself. The message has the end of its log. KubeRay replaces a worker "
        "that exits before the attempt runs, twice: Ray gives itself 30 s to start, which a busy machine exceeds.",
        Counts.FAILURE,
    )
    WORKER_UNREACHABLE = (
        "WorkerUnreachable",
        "The training has lost a worker for 75 s whose pod is sound by Kubernetes' account.",
        Counts.FAILURE,
    )
    CONTAINER_REFUSED = "ContainerRefused", "A container could not be started.", Counts.FAILURE
    INIT_FAILED = "InitFailed", "Three init containers failed.", Counts.FAILURE
    SUBMISSION_FAILED = "SubmissionFailed", "The training ended at its start.", Counts.FAILURE
    STALLED = "Stalled", "The training reported nothing for `progressDeadlineSeconds`.", Counts.FAILURE
    STOPPED = "Stopped", "Something other than lorarl stopped the Ray job.", Counts.FAILURE
    RAY_JOB_FAILED = (
        "RayJobFailed",
        "KubeRay reports that the RayJob failed, and nothing says why.",
        Counts.FAILURE,
    )
    POD_REFUSED = "PodRefused", "Nodes refused three pods, or one of a running attempt.", Counts.PREEMPTION
    POD_DELETED = "PodDeleted", "Something other than lorarl deleted a pod.", Counts.PREEMPTION
    RAY_JOB_DELETED = "RayJobDeleted", "Something other than lorarl deleted the RayJob.", Counts.PREEMPTION
    HEAD_LOST = "HeadLost", "The head's pod is gone, or its machine does not respond.", Counts.PREEMPTION
    NODE_LOST = (
        "NodeLost",
        "A worker's machine or pod is gone. Or those of all separate engines are, for longer than "
        "`rollout.serverTimeoutSeconds`, or all pods of `cluster.environments`, for longer than 10 minutes.",
        Counts.PREEMPTION,
    )
    INTERRUPTED = (
        "Interrupted",
        "The trainer was asked to end, and published a checkpoint first. If nothing in the cluster shows that, it is a "
        "failure: the job's own code may report anything.",
        Counts.PREEMPTION,
    )
    TWO_HEADS = "TwoHeads", "A busy KubeRay created two head pods, and handles neither from then on.", Counts.PREEMPTION
    PREEMPTED = (
        "Preempted",
        "A queue took its machines back. The attempt resumes in the same RayJob when there is room.",
        Counts.PREEMPTION,
    )
    QUEUE_STOPPED = (
        "QueueStopped",
        "An administrator stopped the job in its queue, and it waits until that ends. "
        "If its RayJob is deleted meanwhile, the job fails.",
        Counts.PREEMPTION,
    )
    QUEUE_TIME_LIMIT = (
        "QueueTimeLimit",
        "The job has trained as long as its queue allows (label `kueue.x-k8s.io/max-exec-time-seconds`).",
        Counts.JOB_FAILS,
    )
    QUEUE_GAVE_UP = (
        "QueueGaveUp",
        "Kueue has deactivated the job for good: too many starts without ready pods, or a refused admission check.",
        Counts.JOB_FAILS,
    )
    NO_PROGRESS = (
        "NoProgress",
        "`maxPreemptionsWithoutProgress` attempts in a row were preempted or lost before they got further than the "
        "ones before.",
        Counts.JOB_FAILS,
    )
    MULTI_KUEUE = (
        "MultiKueue",
        "The job's queue sends RayJobs to other clusters, where the pods would lack the job's ConfigMap, "
        "ServiceAccount and Secrets.",
        Counts.JOB_FAILS,
    )
    DEADLINE_EXCEEDED = "DeadlineExceeded", "`activeDeadlineSeconds` has passed.", Counts.JOB_FAILS
    START_DEADLINE_EXCEEDED = (
        "StartDeadlineExceeded",
        "`startDeadlineSeconds` has passed, or the operator's limit for jobs without it.",
        Counts.JOB_FAILS,
    )


type Reason = Waiting | Ended | News | Publishing | Sweeping | Scheduling | Foreign
