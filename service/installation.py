"""What this installation has: whether the native front end is in it and can be loaded, and if not, why.

The build leaves the reason in NATIVE_MISSING when it leaves the native front end out. Nothing of it is
imported here: the library is loaded as one, which is how it is found out that another one that it needs is
not on this machine.
"""

from __future__ import annotations

import ctypes
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

PACKAGE = Path(__file__).parent
NATIVE = "frontend/native/_native"
NATIVE_MISSING = "native_missing.txt"  # in PACKAGE: written by setup.py
OPENSSL_FULL_VERSION_STRING = 7  # of openssl/crypto.h


def native_path() -> Path | None:
    """The native front end's library; None when it was not built."""
    paths = (PACKAGE / f"{NATIVE}{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next((path for path in paths if path.exists()), None)


def why_no_native() -> str:
    """Why the native front end cannot be taken, and what to do; empty when it can."""
    path = native_path()
    if path is None:
        return _why_not_built()
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        packages = "libnghttp2-14, libssl3, zlib1g"
        return f"it cannot be loaded ({error}); install what is named there (Debian: {packages})"
    return ""


def default_frontend() -> str:
    """The front end that is taken when none is named."""
    return "grpcio" if why_no_native() else "native"


def _why_not_built() -> str:
    try:
        return (PACKAGE / NATIVE_MISSING).read_text().strip()
    except OSError:
        return "it was left out when headrace was built; install headrace again, and see what its build says"


class _Nghttp2Info(ctypes.Structure):
    _fields_ = [("age", ctypes.c_int), ("number", ctypes.c_int), ("text", ctypes.c_char_p)]


def native_libraries() -> list[str]:
    """The libraries that the native front end runs with, and their versions. Raises OSError without it."""
    library = ctypes.CDLL(str(native_path()))
    library.nghttp2_version.restype = ctypes.POINTER(_Nghttp2Info)
    library.OpenSSL_version.restype = library.zlibVersion.restype = ctypes.c_char_p
    nghttp2 = library.nghttp2_version(0).contents.text.decode()
    openssl = library.OpenSSL_version(OPENSSL_FULL_VERSION_STRING).decode()
    return [f"libnghttp2 {nghttp2}", f"OpenSSL {openssl}", f"zlib {library.zlibVersion().decode()}"]
