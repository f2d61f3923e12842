"""The times of the native front end's connections, as `native_lifetime.c` has them."""

from __future__ import annotations

from dataclasses import dataclass

from service.config import NEVER_MS, ServeConfig
from service.frontend import tls

HEADERS_S = 10.0  # how long a client may take for headers that it has begun
NOTICE_S = 1.0  # how long a client may take to hear that its connection ends
LINGER_S = 10.0  # and then to close its own end


@dataclass(frozen=True)
class Lifetime:
    """hr_lifetime of native.h, which explains it."""

    handshake_ms: int
    headers_ms: int
    keepalive_ms: int
    keepalive_timeout_ms: int
    keepalive_without_calls: bool
    ping_interval_ms: int
    ping_strikes: int
    max_age_ms: int
    max_age_grace_ms: int
    notice_ms: int
    linger_ms: int


def lifetime(config: ServeConfig) -> Lifetime:
    """What the flags say, and what no flag changes."""
    keepalive_ms = config.grpc_keepalive_time_ms
    return Lifetime(
        handshake_ms=round(tls.HANDSHAKE_S * 1000),
        headers_ms=round(HEADERS_S * 1000),
        keepalive_ms=0 if keepalive_ms == NEVER_MS else keepalive_ms,
        keepalive_timeout_ms=config.grpc_keepalive_timeout_ms,
        keepalive_without_calls=config.grpc_keepalive_permit_without_calls,
        ping_interval_ms=config.grpc_http2_min_recv_ping_interval_without_data_ms,
        ping_strikes=config.grpc_http2_max_ping_strikes,
        max_age_ms=config.grpc_max_connection_age_ms,
        max_age_grace_ms=config.grpc_max_connection_age_grace_ms,
        notice_ms=round(NOTICE_S * 1000),
        linger_ms=round(LINGER_S * 1000),
    )
