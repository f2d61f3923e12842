"""The files of TLS: read and checked together before anybody uses them, and looked at again for changes.

    certificates = Certificates(cert, key, root)
    certificates.newest()       what the files hold now, or held when they last made sense
    read_client_certificates    those of a client of ours, once

A file that cannot be used is said by its flag. After the start that is no reason to end: what was read last
goes on, and is replaced when the files make sense again (a key is often written a moment after its
certificate).
"""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Callable
from dataclasses import dataclass

CERT, KEY, ROOT = "--grpc-server-cert", "--grpc-server-key", "--grpc-root-cert"
CLIENT_CERT, CLIENT_KEY, CLIENT_ROOT = "--ssl-client-cert", "--ssl-client-key", "--ssl-root-cert"


class BadCertificate(Exception):
    """One sentence that names the flag of the file, and what is wrong with it."""


@dataclass(frozen=True)
class Pem:
    """What the files hold, as they are on disk; empty where there is none. root: who signs the others'
    certificates.
    """

    cert: bytes
    key: bytes
    root: bytes


def read_certificates(cert: str, key: str, root: str = "") -> Pem:
    """Reads and checks the files; `root` may be "". Raises BadCertificate."""
    pem = Pem(_read(CERT, cert), _read(KEY, key), _read(ROOT, root) if root else b"")
    _check_certificates(CERT, cert, pem.cert)
    if root:
        _check_certificates(ROOT, root, pem.root)
    _check_key((CERT, cert), (KEY, key), pem)
    return pem


def read_client_certificates(cert: str, key: str, root: str) -> Pem:
    """Reads and checks a client's files, each of which may be "". Raises BadCertificate."""
    if bool(cert) != bool(key):
        given, missing = (CLIENT_CERT, CLIENT_KEY) if cert else (CLIENT_KEY, CLIENT_CERT)
        raise BadCertificate(f"{given} '{cert or key}' needs {missing} too: they go together")
    flags = {CLIENT_CERT: cert, CLIENT_KEY: key, CLIENT_ROOT: root}
    pem = Pem(*(_read(flag, path) if path else b"" for flag, path in flags.items()))
    if root:
        _check_certificates(CLIENT_ROOT, root, pem.root)
    if cert:
        _check_certificates(CLIENT_CERT, cert, pem.cert)
        _check_key((CLIENT_CERT, cert), (CLIENT_KEY, key), pem)
    return pem


class Certificates:
    """The files of a server that runs. `say` is told of a change that cannot be used, once."""

    def __init__(self, cert: str, key: str, root: str, say: Callable[[str], None]) -> None:
        self._paths = (cert, key, root)
        self._say = say
        self._stamps = self._look()
        self._pem = read_certificates(cert, key, root)

    def newest(self) -> Pem:
        """What the files hold, when it can be used; else what was used last."""
        stamps = self._look()
        if stamps != self._stamps:
            self._stamps = stamps
            try:
                self._pem = read_certificates(*self._paths)
            except BadCertificate as error:
                self._say(f"the new certificate is not used, the one before goes on: {error}")
        return self._pem

    def _look(self) -> list[tuple[int, ...]]:
        return [_stamp(path) for path in self._paths if path]


def _stamp(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _read(flag: str, path: str) -> bytes:
    try:
        # Without waiting: of a pipe in its place nothing may ever come.
        with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadCertificate(f"{flag} '{path}' cannot be read: expected a regular file")
            return file.read()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadCertificate(f"{flag} '{path}' cannot be read: {why}") from error


def _check_certificates(flag: str, path: str, data: bytes) -> None:
    try:
        text = data.decode("ascii", "ignore")  # what stands between certificates is in any language
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise BadCertificate(f"{flag} '{path}' holds no certificate: expected PEM text") from error


def _no_password() -> str:
    raise ValueError("encrypted")


def _check_key(cert: tuple[str, str], key: tuple[str, str], pem: Pem) -> None:
    """Reads exactly the bytes that will be used: a file may change between two looks. `cert` and `key` are
    a flag and its file.
    """
    cert_file, key_file = f"'{cert[1]}'", f"{key[0]} '{key[1]}'"
    fd = os.memfd_create("headrace-certificates")
    try:
        os.write(fd, pem.key + b"\n" + pem.cert)
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(f"/proc/self/fd/{fd}", password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise BadCertificate(f"{key_file} does not belong to {cert[0]} {cert_file}") from error
        why = f" ({error.reason})" if error.reason else ""
        raise BadCertificate(
            f"{key_file} holds no private key for {cert_file}: expected PEM text{why}"
        ) from error
    except ValueError as error:
        raise BadCertificate(f"{key_file} is encrypted: expected a key without a password") from error
    finally:
        os.close(fd)
