"""What operator and trainer agree on about pods for a job's environment."""

ENVIRONMENT_RESOURCE = "lorarl_environment"
"""Ray's own resource, of which such a pod offers one. What plays there takes that, and no worker asks for any."""
