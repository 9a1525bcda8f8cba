"""A world with Kueue: it preempts and admits RayJobs, and administrators and limits stop them."""

from __future__ import annotations

from unit.operator.observed_world import Raw, condition
from unit.operator.world import World


class QueueWorld(World):
    """A world whose RayJobs have Workloads, if the job names a queue."""

    def _in_queue(self) -> tuple[Raw, Raw | None]:
        """The live RayJob and its Workload, if there are both and it has not ended."""
        ray_job = self.current or {"metadata": {"uid": ""}, "status": {}}
        ended = ray_job["status"].get("jobDeploymentStatus") in ("Complete", "Failed")
        return ray_job, None if ended else self.workloads.get(ray_job["metadata"]["uid"])

    def kueue_stops(self, reason: str, *, active: bool) -> None:
        """Kueue takes the machines of the live RayJob back, if it has any."""
        ray_job, workload = self._in_queue()
        if workload is None:
            return
        workload["spec"]["active"] = active
        if ray_job["spec"]["suspend"] and active:
            return  # It waits already.
        self.lose()
        workload["status"] = {"conditions": [condition("Evicted", True, reason, "as told")]}
        ray_job["spec"]["suspend"] = True
        for pod in self.here(ray_job["status"].get("rayClusterName", "")):
            self.ask_to_go(pod)
        ray_job["status"] |= {"jobDeploymentStatus": "Suspended", "jobStatus": ""}

    def kueue_admits(self) -> None:
        """Kueue lets the RayJob go, if no one has stopped it."""
        ray_job, workload = self._in_queue()
        if workload is None or not workload["spec"]["active"] or not ray_job["spec"]["suspend"]:
            return
        workload["status"] = {"conditions": [condition("Admitted", True)]}
        ray_job["spec"]["suspend"] = False
        kept = {"failed": ray_job["status"].get("failed", 0)}
        ray_job["status"] = {"rayClusterName": f"{ray_job['status'].get('rayClusterName', '')}x", **kept}

    def stopped_by(self) -> str:
        """Why Kueue keeps the live RayJob from ever starting; empty if it does not."""
        workload = self._in_queue()[1]
        if workload is None or workload["spec"]["active"]:
            return ""
        return str(workload.get("status", {}).get("conditions", [{}])[0].get("reason", ""))

    def reactivate(self) -> None:
        """An administrator starts all Workloads again."""
        for workload in self.workloads.values():
            workload["spec"]["active"] = True

    def retention(self) -> None:
        """Kueue deletes a Workload that it gave up, and with it the RayJob."""
        ray_job, workload = self._in_queue()
        if workload is None or workload["spec"]["active"]:
            return
        evicted = workload.get("status", {}).get("conditions", [{}])[0]
        if evicted.get("reason", "").startswith("DeactivatedDueTo"):
            del self.workloads[ray_job["metadata"]["uid"]]
            self.delete_ray_job(ray_job["metadata"]["name"])
