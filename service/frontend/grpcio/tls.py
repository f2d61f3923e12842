"""TLS on gRPC's own library: every new connection gets the certificate that the files hold by then.

Connections that are there keep theirs. gRPC asks for h2 by ALPN itself.
"""

from __future__ import annotations

import grpc

from service.certificates import Certificates, Pem
from service.config import ServeConfig
from service.log import say


def server_credentials(config: ServeConfig) -> grpc.ServerCredentials:
    """Raises BadCertificate."""
    files = Certificates(config.grpc_server_cert, config.grpc_server_key, config.root_cert, say)
    return grpc.dynamic_ssl_server_credentials(
        configuration(files.newest()),
        lambda: configuration(files.newest()),
        require_client_authentication=config.grpc_use_ssl_mutual,
    )


def configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.root or None)
