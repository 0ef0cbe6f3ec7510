"""Connections of a server that end where their client is slow: uvicorn has a time for idle ones, and none for heads.

    uvicorn.Config(app, http=connection_class())

A connection has ``seconds`` for the head of its next request, from its beginning or its last answer, whatever else it
sends. It has as long to take what is written to it. Bodies have their own time (app.py). Of connections without a
request ``most`` stay: one more ends the oldest, so however many are half open, a request is answered.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 30.0
MOST = 512


def connection_class(seconds: float = SECONDS, most: int = MOST) -> type[H11Protocol]:
    """Return the class of one server's connections, which count each other."""
    idle: dict[Connection, asyncio.TimerHandle] = {}  # those without a request, the oldest first

    class Connection(H11Protocol):
        _stalled: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
            super().connection_made(transport)
            self._look()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._look()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._look()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self.resume_writing()
            self._forget()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stalled = self.loop.call_later(seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._stalled is not None:
                self._stalled.cancel()
                self._stalled = None

        def _look(self) -> None:
            """Begin or end the time for the head of a request."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._forget()
            elif self not in idle and not self.transport.is_closing():
                idle[self] = self.loop.call_later(seconds, self.transport.abort)
                if len(idle) > most:
                    oldest = next(iter(idle))
                    oldest._forget()
                    oldest.transport.abort()

        def _forget(self) -> None:
            if (timer := idle.pop(self, None)) is not None:
                timer.cancel()

    return Connection
