"""Free loopback ports."""

import random
import socket

# Below Linux' ephemeral range (32768-60999): no outgoing connection takes one between the look and the use.
FIRST, LAST = 20000, 32000
_random = random.SystemRandom()


def free_ports(count: int) -> list[int]:
    """`count` different loopback ports that nobody listens on at this moment."""
    found: list[int] = []
    while len(found) < count:
        port = _random.randrange(FIRST, LAST)
        if port not in found and _is_free(port):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
