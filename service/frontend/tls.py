"""What TLS is to both front ends: whose files, and how long a handshake may take, without TLS too."""

from __future__ import annotations

from service.certificates import BadCertificate, Certificates
from service.config import ServeConfig
from service.errors import StartError
from service.log import say

HANDSHAKE_S = 10.0  # until HTTP/2's SETTINGS: then a client that has not finished its part is hung up on


def server_certificates(config: ServeConfig) -> Certificates:
    """The files that the gRPC port is served with. Raises StartError."""
    try:
        return Certificates(config.grpc_server_cert, config.grpc_server_key, config.root_cert, say)
    except BadCertificate as error:
        raise StartError(str(error)) from error
