"""How long connections live, in gRPC's words."""

from __future__ import annotations

from service.config import ServeConfig
from service.frontend import tls


def lifetime(config: ServeConfig) -> list[tuple[str, int]]:
    """The server's options."""
    strikes_ms = config.grpc_http2_min_recv_ping_interval_without_data_ms
    options = {
        "grpc.server_handshake_timeout_ms": round(tls.HANDSHAKE_S * 1000),
        "grpc.keepalive_time_ms": config.grpc_keepalive_time_ms,
        "grpc.keepalive_timeout_ms": config.grpc_keepalive_timeout_ms,
        "grpc.http2.ping_timeout_ms": config.grpc_keepalive_timeout_ms,  # or it hangs up after a minute
        "grpc.keepalive_permit_without_calls": int(config.grpc_keepalive_permit_without_calls),
        "grpc.http2.max_pings_without_data": config.grpc_http2_max_pings_without_data,
        "grpc.http2.min_recv_ping_interval_without_data_ms": strikes_ms,
        "grpc.http2.max_ping_strikes": config.grpc_http2_max_ping_strikes,
    }
    ages = {
        "grpc.max_connection_age_ms": config.grpc_max_connection_age_ms,
        "grpc.max_connection_age_grace_ms": config.grpc_max_connection_age_grace_ms,
    }
    return [*options.items(), *((name, value) for name, value in ages.items() if value)]
