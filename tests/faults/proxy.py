"""A TCP proxy that makes a bad network, on loopback."""

import random
import socket
import threading
import time
from contextlib import suppress
from typing import Self


class Proxy:
    """Listens on `port`, hands on to `target`. A context manager.

    `delay`: seconds before each piece is handed on; `lifetime`: seconds after which a connection is reset, 0 = never; `frozen`: nothing is handed on, and no
    connection ends, as behind a firewall that forgot them.
    """

    def __init__(self, target: int) -> None:
        self.target, self.delay, self.lifetime, self.frozen = target, 0.0, 0.0, False
        self.connections = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listening.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    client.close()
                    continue
                self.connections += 1
                began, share = time.monotonic(), random.uniform(0.5, 1.5)
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=self._hand_on, args=(one, other, began, share), daemon=True).start()

    def _hand_on(self, one: socket.socket, other: socket.socket, began: float, share: float) -> None:
        one.settimeout(0.2)
        try:
            while not self.lifetime or time.monotonic() - began < share * self.lifetime:
                try:
                    piece = one.recv(1 << 16)
                except TimeoutError:
                    continue
                while self.frozen:
                    time.sleep(0.1)
                time.sleep(self.delay)
                if not piece:
                    break
                other.sendall(piece)
        except OSError:
            pass
        finally:
            for each in (one, other):
                with suppress(OSError):
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closed by a reset
                    each.shutdown(socket.SHUT_RDWR)
                with suppress(OSError):
                    each.close()
