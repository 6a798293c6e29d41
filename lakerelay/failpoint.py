"""Moments in which the fault tests end a program exactly, as `kill -9` would."""

import os
import signal

VARIABLE = "LAKERELAY_FAILPOINT"


def passed(point: str) -> None:
    """End the process at once where $LAKERELAY_FAILPOINT names this point: `committed shop.orders`, `loaded shop.orders`."""
    if os.environ.get(VARIABLE) == point:
        os.kill(os.getpid(), signal.SIGKILL)
