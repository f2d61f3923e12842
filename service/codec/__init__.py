"""The wire codec: C that scans, validates and encodes messages, and a thin Cython face for tests.

The front ends call the C (``hr_*.h``) themselves; ``_codec`` shows it to Python as it is.
"""

from __future__ import annotations

from service.codec.errors import RequestError

__all__ = ["RequestError"]
