"""`python die_with_parent.py PID COMMAND...`: become COMMAND, which the kernel kills when its parent PID has ended.

It is a file, because a `preexec_fn` would run between fork and exec of a process with threads, where Python promises
nothing.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # prctl(2); it outlives exec

parent, *command = sys.argv[1:]
if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
    sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
if os.getppid() != int(parent):  # it has ended before it could be watched
    sys.exit(f"process {parent} has ended")
os.execvp(command[0], command)
