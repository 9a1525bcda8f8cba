"""What `helm test` runs: exactly one of the operator's replicas leads. Arguments: the metrics Service's name, and its port."""

import re
import socket
import sys
import time
import urllib.request

PATIENCE_SECONDS = 60  # a replica that starts or takes over may need a Lease's duration


def replicas(service: str, port: int) -> list[str]:
    """The addresses behind a Service without an address of its own."""
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
    """Whether all is well, and in words what was found."""
    try:
        found = {address: leads(address, port) for address in replicas(service, port)}
    except OSError as error:
        return False, f"the metrics at {service}:{port} cannot be read: {error}"
    leaders = [address for address, leading in found.items() if leading]
    return len(
        leaders
    ) == 1, f"{len(found)} replicas answer, {len(leaders)} of them lead (expected 1): {' '.join(leaders)}"


def main(service: str, port: int) -> int:
    """Ask until one leads or patience ends. Gives the exit code."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        well, words = state(service, port)
        if well or time.monotonic() > deadline:
            print(words if well else f"{words}; `kubectl logs` of the operator's pods says why")
            return int(not well)
        time.sleep(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
