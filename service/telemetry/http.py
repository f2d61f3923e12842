"""The metrics port: /metrics and the health probes, over plain HTTP, on a thread of their own.

    /metrics                        the Prometheus exposition
    /healthz, /v2/health/live       200 while the process answers
    /readyz, /v2/health/ready       200 while every model can be used, else 503

At most `max_connections` clients at once; one more is hung up on. A thread apart, so that a probe is answered
while the front end is busy; it reads what others write and writes nothing.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from service.telemetry.metrics import CONTENT_TYPE, Metrics

LIVE = ("/healthz", "/v2/health/live")
READY = ("/readyz", "/v2/health/ready")
MAX_CONNECTIONS = 128
_IDLE_LIMIT_S = 30.0  # a client that connects and says nothing holds a thread no longer than this


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_LIMIT_S
    server: _Server

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(200, CONTENT_TYPE, self.server.metrics.text())
        elif path in LIVE:
            self._answer(200, "text/plain", b"live\n")
        elif path in READY:
            ready = self.server.is_ready()
            self._answer(200 if ready else 503, "text/plain", b"ready\n" if ready else b"not ready\n")
        else:
            self._answer(404, "text/plain", f"known: /metrics {' '.join(LIVE + READY)}\n".encode())

    do_HEAD = do_GET

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Probes come every second; they are not news."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = MAX_CONNECTIONS

    def __init__(
        self, host: str, port: int, metrics: Metrics, is_ready: Callable[[], bool], max_connections: int
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.metrics = metrics
        self.is_ready = is_ready
        self._room = threading.Semaphore(max_connections)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Without the base class's look-up of the host's name, which may take seconds and is not used."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def verify_request(self, request: object, client_address: object) -> bool:
        return self._room.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is not news; anything else is."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class MetricsPort:
    """Listens at once; OSError when it cannot. `port` is the one it got, where 0 was asked for."""

    def __init__(
        self,
        host: str,
        port: int,
        metrics: Metrics,
        is_ready: Callable[[], bool],
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._server = _Server(host, port, metrics, is_ready, max_connections)
        self.port: int = self._server.server_port
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="metrics port", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._closed:
            self._server.handle_request()  # serve_forever would wake up twice a second to look for its end

    def close(self) -> None:
        self._closed = True
        self._server.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.server_close()
