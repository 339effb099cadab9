"""A connection's transport, with what the protocol wants to know about the client at the other end."""

import contextlib
import socket
import struct
import sys
from asyncio import Transport
from typing import Any

try:
    import fcntl
    import termios
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# Closes a socket without sending what the kernel still holds for it.
NO_LINGER = struct.pack("ii", 1, 0)
UNWATCHED_BYTES = 16_384


class AnswerTransport:
    """Writes an answer's head together with its body: one system call and one packet, not two."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        # Whether `close` waits for `end_lingering`. What arrives at a closed socket is answered with a reset, which may
        # destroy an answer before the client reads it.
        self.lingers = False
        self._head = b""
        self.is_closing = transport.is_closing  # asked at every request, and found faster than by `__getattr__`
        # More than this that the kernel does not take pauses the protocol, which then watches whether the client reads.
        # Not 0: uvloop holds every write until the end of its turn, so each answer would pause the protocol.
        transport.set_write_buffer_limits(high=UNWATCHED_BYTES)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data.endswith(b"\r\n\r\n") and data.startswith(b"HTTP/1.1 ") and data != CONTINUE:
            self._head = data
            return
        self._transport.write(data)

    def flush(self) -> None:
        """Writes the head of an answer that has no body."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def close(self) -> None:
        self.flush()
        if self.lingers:
            self.is_closing = _yes
        else:
            self._transport.close()

    def end_lingering(self) -> None:
        self.lingers = False
        if self.is_closing():
            self._transport.close()

    def discard(self) -> None:
        """Closes the connection at once, and frees what was written and not received, also in the kernel."""
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        self._transport.abort()

    def bytes_on_the_way(self) -> int:
        """What was written and the client's side has not acknowledged: it shrinks while the client reads."""
        waiting = self._transport.get_write_buffer_size()
        if fcntl is not None:
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, bytes(4))
                waiting += int.from_bytes(answer, sys.byteorder)
        return waiting

    def is_reset(self) -> bool:
        """Whether the client's side has answered that nobody reads there any more."""
        try:
            return bool(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        except OSError:
            return True

    @property
    def _socket(self) -> Any:
        return self._transport.get_extra_info("socket")


def _yes() -> bool:
    return True
