"""Addresses to listen on: how they are written, and why one cannot be had."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket


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
