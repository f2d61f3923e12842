"""TLS of the native front end: the certificates that new connections get are those that the files hold."""

from __future__ import annotations

import asyncio

from service.certificates import Certificates, Pem
from service.errors import StartError
from service.frontend.native._native import Native
from service.log import say

LOOK_S = 1.0  # how often the files are looked at


class Watch:
    """Looks at the files until it is stopped, on the running loop. Connections that are there keep theirs."""

    def __init__(self, native: Native, files: Certificates) -> None:
        """Raises StartError: OpenSSL cannot use them."""
        self._native = native
        self._files = files
        self._used = files.newest()
        try:
            self._set(self._used)
        except ValueError as error:
            raise StartError(str(error)) from error
        self._task = asyncio.create_task(self._watch())

    def stop(self) -> None:
        self._task.cancel()

    def _set(self, pem: Pem) -> None:
        self._native.set_tls(pem.cert, pem.key, pem.root)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            newest = self._files.newest()
            if newest == self._used:
                continue
            self._used = newest  # when it cannot be used that is said once
            try:
                self._set(newest)
            except ValueError as error:
                say(f"the new certificate is not used, the one before goes on: {error}")
