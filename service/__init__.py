"""Headrace: a gRPC inference service whose C queue forms batches while requests are still arriving.

The sub-packages, from the outside in: ``cli`` and ``client`` (what people run), ``supervisor`` (starts and
watches the processes), ``frontend`` and ``worker`` (the processes), ``engines``, ``models`` and
``telemetry`` (what they use), ``config`` and ``errors`` (what everybody knows). An import goes inwards
only; import-linter checks it.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__"]

try:
    __version__ = version("headrace")
except PackageNotFoundError:  # imported from a source tree that nobody installed
    __version__ = "0+source"
