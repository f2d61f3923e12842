"""Whether a port that is taken is a Headrace's that runs: it is asked, for a moment."""

from __future__ import annotations

import http.client
import urllib.request
from collections.abc import Mapping

from service.config import DEFAULT_SERVER_NAME
from service.frontend.addresses import join_address

ASK_LIMIT_S = 2.0
_MARK = b"headrace_"  # how each of its metrics begins


def headraces(host: str, busy: Mapping[str, int]) -> list[str]:
    """Which of the ports, by the flags that set them, a Headrace has. One whose gRPC port cannot be asked
    (TLS), or that calls itself otherwise, is known by its metrics port.
    """
    has_metrics = "--metrics-port" in busy and _has_metrics(join_address(host, busy["--metrics-port"]))
    has_grpc = "--grpc-port" in busy and (has_metrics or _answers(join_address(host, busy["--grpc-port"])))
    return ["--grpc-port"] * has_grpc + ["--metrics-port"] * has_metrics


def _answers(address: str) -> bool:
    from service.client import Client, ClientError

    try:
        with Client(address, timeout_s=ASK_LIMIT_S) as client:
            return client.server_metadata().name == DEFAULT_SERVER_NAME
    except ClientError:
        return False


def _has_metrics(address: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{address}/metrics", timeout=ASK_LIMIT_S) as answer:
            return _MARK in answer.read()
    except (OSError, http.client.HTTPException):
        return False
