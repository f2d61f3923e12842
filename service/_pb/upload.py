"""The messages of ``proto/upload.proto``; the stub beside this file, made by the build, names them."""

from __future__ import annotations

from service._pb._pool import contents_of

globals().update(contents_of("upload.proto"))
