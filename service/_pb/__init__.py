"""The messages of ``proto/``, in a descriptor pool of their own.

Generated protobuf modules register every message in one pool per process, and tritonclient registers the
same names there (``inference.ModelInferRequest`` ...): whichever comes second raises. So nothing is
generated as Python code. The build compiles ``proto/*.proto`` to a descriptor set, ``messages.binpb``; here
it is read into ``POOL``, which nobody else uses, and the message classes are made from that. A descriptor
set also has no opinion on the version of the protobuf runtime, as generated code has.

``inference``, ``model_config`` and ``upload`` hold what generated modules of those names would: message
classes, enums, enum values and ``DESCRIPTOR``. Their type stubs come from the same build. ``POOL`` is what
reflection should serve.
"""

from __future__ import annotations

from service._pb import inference, model_config, upload
from service._pb._pool import POOL

__all__ = ["POOL", "inference", "model_config", "upload"]
