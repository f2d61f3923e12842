"""What the first bytes of a plan say, where TensorRT refuses it and says less.

A plan begins with four letters, its kind, and at VERSION_AT has the four numbers of the TensorRT that built
it. NVIDIA documents neither; both are as seen in plans of TensorRT 10.6 and TensorRT-RTX 1.7. So they refuse
nothing but plans of TensorRT-RTX: a plan that may run elsewhere (VERSION_COMPATIBLE) is TensorRT's to judge.
"""

from __future__ import annotations

VERSION_AT = 24
_KINDS = {b"ftrt": "TensorRT", b"vtrt": "TensorRT-RTX"}


def built_with(plan: bytes) -> tuple[str, str]:
    """The library that built a plan and its version, as in ("TensorRT", "10.6.0.26"); two empty texts where
    the bytes are none of a known kind.
    """
    kind = _KINDS.get(plan[:4], "")
    numbers = plan[VERSION_AT : VERSION_AT + 4]
    if not kind or len(numbers) < 4:
        return "", ""
    return kind, ".".join(str(number) for number in numbers)


def foreign(plan: bytes) -> str:
    """Why TensorRT need not be asked at all; "" where it must be."""
    kind, version = built_with(plan)
    if kind == "TensorRT-RTX":
        return (
            f"it was built with TensorRT-RTX {version}, and is served with TensorRT: build it without "
            "--compute-capability, on the device that it is for"
        )
    return ""


def why_refused(plan: bytes, running: str) -> str:
    """What to do about a plan that TensorRT `running` did not take."""
    kind, version = built_with(plan)
    if not kind:
        return "it does not begin as a plan does: build one with 'headrace build', or trtexec"
    if version.split(".")[:3] != running.split(".")[:3]:
        return f"built with {kind} {version}, running {running}: build it again with the one that runs here"
    return "a plan runs on the version and the kind of device that it was built for: build it again here"
