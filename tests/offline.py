"""No test reaches beyond this machine.

`python tests/offline.py SCRIPT` runs a script under the same rule.
"""

import runpy
import socket
import sys
from typing import Any

LOOPBACK = ("127.", "::1", "localhost")


class WentOnline(AssertionError):
    """Something that should run offline opened a connection to another machine."""


def forbid_network() -> None:
    """Refuse every connection to another machine, for the rest of this process."""
    connect = socket.socket.connect

    def connect_here(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not address[0].startswith(LOOPBACK):
            self.close()
            raise WentOnline(f"a connection to {address!r}")
        connect(self, address)

    socket.socket.connect = connect_here


if __name__ == "__main__":
    forbid_network()
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    runpy.run_path(script, run_name="__main__")
