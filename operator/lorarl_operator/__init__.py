"""The operator: watches LoRARLJobs and owns a RayJob for each attempt. It knows nothing of torch."""
