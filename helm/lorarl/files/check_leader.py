"""The check of `helm test`: exactly one of the operator's replicas leads.

Arguments: the name of the metrics Service, and its port.
"""

import re
import socket
import sys
import time
import urllib.request

PATIENCE_SECONDS = 60  # A replica that starts or takes over may need the duration of a Lease.


def replicas(service: str, port: int) -> list[str]:
    """The addresses behind a headless Service."""
    return sorted({str(found[4][0]) for found in socket.getaddrinfo(service, port, proto=socket.IPPROTO_TCP)})


def leads(address: str, port: int) -> bool:
    """Whether the replica's metrics say that it leads."""
    host = f"[{address}]" if ":" in address else address
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=5) as answer:
        found = re.search(r"^lorarl_operator_leader(?:\{.*\})? (\S+)", answer.read().decode(), re.MULTILINE)
    if found is None:
        raise OSError(f"the metrics of {address} have no lorarl_operator_leader")
    return float(found[1]) == 1


def state(service: str, port: int) -> tuple[bool, str]:
    """Whether exactly one replica leads, and a description of what was found."""
    try:
        found = {address: leads(address, port) for address in replicas(service, port)}
    except OSError as error:
        return False, f"the metrics at {service}:{port} cannot be read: {error}"
    leaders = [address for address, leading in found.items() if leading]
    words = f"{len(found)} replicas answer, {len(leaders)} of them lead (expected 1): {' '.join(leaders)}"
    return len(leaders) == 1, words


def main(service: str, port: int) -> int:
    """Ask until one replica leads or the time is over. Return the exit code."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        good, words = state(service, port)
        if good or time.monotonic() > deadline:
            print(words if good else f"{words}. Read the logs of the operator's pods (kubectl logs).")
            return int(not good)
        time.sleep(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
