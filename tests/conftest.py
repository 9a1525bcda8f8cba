"""Shared by every tier."""

import contextlib
import signal

# A shell lets what it starts in the background ignore Ctrl-C, which tests press.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A GPU machine may lack hypothesis, which only unit tests use.
with contextlib.suppress(ImportError):
    from hypothesis import HealthCheck, settings

    # On a busy machine an example or its data may take long, which is no fault of the code.
    settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any machine")
