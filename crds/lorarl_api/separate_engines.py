"""What operator and trainer agree on about pods for separate engines."""

ENGINE_RESOURCE = "lorarl_engine"
"""Ray's own resource, of which a pod for an engine offers one. Its engine takes that, and no worker asks for any."""
