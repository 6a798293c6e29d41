"""Asking the stack's servers over HTTP."""

from functools import cache

import httpx


@cache
def client() -> httpx.Client:
    """One for the process: each new one reads all CA certificates, half a second of CPU, which a loop that waits would take from what it waits for."""
    return httpx.Client(timeout=5)
