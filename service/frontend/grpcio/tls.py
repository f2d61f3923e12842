"""TLS on gRPC's own library: every new connection gets the certificate that the files hold by then.

Connections that are there keep theirs. gRPC asks for h2 by ALPN itself.

gRPC asks for the certificate in each handshake. It is told of changes alone: what it is given replaces what
it has, and gRPC 1.85.3 then crashes now and then when clients hang up in the middle of their handshakes.
Given the same again in each, a few hundred such clients were enough. What is left: under two thousand of
them a second, one change in some hundreds ends the process. The native front end is free of it.
"""

from __future__ import annotations

import grpc

from service.certificates import Certificates, Pem
from service.config import ServeConfig
from service.frontend.tls import server_certificates


def server_credentials(config: ServeConfig) -> grpc.ServerCredentials:
    """For one listening address. Raises StartError."""
    files = server_certificates(config)
    pem = files.newest()
    return grpc.dynamic_ssl_server_credentials(
        configuration(pem),
        Changes(files, pem),  # type: ignore[arg-type]  # the stubs know of no None, which gRPC's words do
        require_client_authentication=config.grpc_use_ssl_mutual,
    )


class Changes:
    """Called for what the files hold now: None when it is what was given last."""

    def __init__(self, files: Certificates, given: Pem) -> None:
        self._files = files
        self._given = given

    def __call__(self) -> grpc.ServerCertificateConfiguration | None:
        newest = self._files.newest()
        if newest == self._given:
            return None
        self._given = newest
        return configuration(newest)


def configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.root or None)
