"""Addresses to listen on: how they are written, and why one cannot be had."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat


def join_address(host: str, port: int) -> str:
    """host:port, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def why_not_bound(host: str, port: int, flag: str) -> str:
    """One sentence on why this address cannot be listened on, found by trying; empty when it can.

    `flag` is the option that sets the port.
    """
    if full := _in_full(host):
        return (
            f"cannot listen on {host}: expected an address in full or a host name for --host, such as {full}"
        )
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                probe.listen(1)
    except UnicodeError:
        return f"cannot listen on '{host}': it is no host name; --host names an address of this machine"
    except socket.gaierror as error:
        return f"cannot listen on {host}: {error.strerror}; --host names an address of this machine"
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        if error.errno == errno.EADDRNOTAVAIL:
            return f"cannot listen on {host}: {why}; --host names an address of this machine"
        return f"cannot listen on {host} port {port}: {why}; {flag} chooses another port, 0 any free one"
    return ""


class SocketFile:
    """The file of a Unix-domain socket that somebody binds. `remove` removes that one alone."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._made: tuple[int, int] | None = None

    def clear(self) -> str:
        """Removes what a dead server has left; one sentence on why the path cannot be had, or nothing."""
        try:
            if not stat.S_ISSOCK(os.lstat(self.path).st_mode):
                return self._refusal("it is there and no socket")
            with socket.socket(socket.AF_UNIX) as probe:
                probe.setblocking(False)
                probe.connect(self.path)
        except FileNotFoundError as error:
            there = os.path.isdir(os.path.dirname(self.path) or ".")
            return "" if there else self._refusal(f"{error.strerror}, its folder is not there")
        except ConnectionRefusedError:
            return self._unlinked()
        except BlockingIOError:
            pass  # its backlog is full: somebody lives there
        except OSError as error:
            return f"cannot listen on {self.path}: {os.strerror(error.errno or 0)}"
        return self._refusal("another server does")

    def _refusal(self, why: str) -> str:
        return f"cannot listen on {self.path}: {why}; --grpc-unix-socket names another"

    def _unlinked(self) -> str:
        try:
            os.unlink(self.path)
        except OSError as error:
            return (
                f"cannot listen on {self.path}: what a server left there cannot be removed: {error.strerror}"
            )
        return ""

    def bound(self) -> None:
        """It is made."""
        found = os.lstat(self.path)
        self._made = found.st_dev, found.st_ino

    def remove(self) -> None:
        try:
            found = os.lstat(self.path)
            if self._made == (found.st_dev, found.st_ino):
                os.unlink(self.path)
        except OSError:
            pass  # gone already, or with its folder
        self._made = None


def _in_full(host: str) -> str:
    """The address that `host` is an old short form of, as 127.1 is of 127.0.0.1; empty when it is none.

    The system's resolver takes those, and gRPC's does not.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return ""  # no address at all
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return str(found[0][4][0])
    return ""
