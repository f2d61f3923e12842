"""Where a server is, and how it is spoken to: the address as people write it, and the files of TLS."""

from __future__ import annotations

import contextlib
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from service.certificates import BadCertificate, read_client_certificates
from service.client.errors import ClientError
from service.config import SOCKET_PATH_BYTES

UNIX = "unix:"
_WANTED = "--url is HOST:PORT of a gRPC port, for example localhost:8001, or unix:FILE of a socket"
# Where distributions have the certificates of public authorities, when OpenSSL was not built to know.
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/cert.pem", "/etc/ssl/ca-bundle.pem")
_GRPC_ROOTS = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"  # gRPC's own name for another file


@dataclass(frozen=True)
class Tls:
    """TLS to the server: files of PEM, each of which may be "".

    Attributes:
        root_cert: who signs the server's certificate; "": the authorities that this system trusts.
        client_cert, client_key: what the client shows; both or neither.
    """

    root_cert: str = ""
    client_cert: str = ""
    client_key: str = ""

    def credentials(self) -> grpc.ChannelCredentials:
        """As gRPC takes them. Raises ClientError, which names flag and file."""
        try:
            pem = read_client_certificates(self.client_cert, self.client_key, self.root_cert)
        except BadCertificate as error:
            raise ClientError(str(error)) from None
        return grpc.ssl_channel_credentials(pem.root or _system_roots(), pem.key or None, pem.cert or None)


def _system_roots() -> bytes | None:
    """The authorities that this system trusts; None: those that gRPC brings, or is told of."""
    if os.environ.get(_GRPC_ROOTS):
        return None
    for path in (ssl.get_default_verify_paths().cafile, *_BUNDLES):
        with contextlib.suppress(OSError):
            if path:
                return Path(path).read_bytes()
    return None


def target_of(url: str) -> str:
    """Checks HOST:PORT, unix:PATH or unix:///PATH and returns what gRPC dials. Raises ClientError.

    People paste http:// URLs, which gRPC would take for the name of a resolver.
    """
    if url.startswith(UNIX):
        return _unix_target(url)
    scheme, separator, rest = url.partition("://")
    if separator and scheme not in ("grpc", "dns"):
        raise ClientError(f"{_WANTED}; got '{url}', try '{rest.rstrip('/')}'")
    target = rest if separator else url
    host, colon, port = target.rpartition(":")
    if not colon or not host or not port.isdigit():
        instead = f", try '{UNIX}{url}'" if "/" in url else ""
        raise ClientError(f"{_WANTED}; got '{url}'{instead}")
    return target


def _unix_target(url: str) -> str:
    """unix:PATH, or unix:///PATH of an absolute one; after two slashes gRPC would expect a host."""
    path = url.removeprefix(UNIX)
    path = path.removeprefix("//") if path.startswith("///") else path
    if path.startswith("//"):
        raise ClientError(f"{_WANTED}; got '{url}', try '{UNIX}/{path.lstrip('/')}'")
    if not path.strip("/"):
        raise ClientError(f"{_WANTED}; got '{url}', which names no file")
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES:
        raise ClientError(f"--url: a socket's path has at most {SOCKET_PATH_BYTES} bytes; got '{url}'")
    return url
