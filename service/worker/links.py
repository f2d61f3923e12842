"""The worker's ends of its links, and the table of what it serves, which every front end has a copy of.

What is said on a link (`service.control`), whose end is the death of whoever was at the other end:

    front end   hello {lanes} + [lane memfd, input arena memfd, eventfd] per lane
                swapped {swap}                      it sends nothing any more to what is not in that table
                load {call, model, config, folder}  see control.py; folder is the worker's from then on
                unload {call, model}
    worker      ready {models: [{id, spec, device, bytes}], states, devices}
                      + [worker page memfd, output arena memfd, pidfd]
                models {swap, models}               what is served from now on
                state {model, versions}             as it changes: [version, state, reason] each
                done {call, code, message}          the call's end; code 0: it was done

By the pidfd the front end knows when this process has ended, and with it every copy from the input arenas
to a device. A worker that is no process of its own has none.

A table is swapped with acknowledgement: `swap` returns when every front end has said that it has the new one,
or has gone. What it sent to a model that is not in it lies in its lanes by then.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fastqueue import BatchFormer, QueueError
from service.control import Channel, Message, ProtocolError
from service.cuda.model import DeviceModel
from service.log import say
from service.worker.devices import Devices
from service.worker.models import LoadedModel

FDS_PER_LANE = 3

States = dict[str, list[list[str]]]  # of each model: [version, state, reason] rows


def described(model: LoadedModel) -> dict[str, Any]:
    """A row of the table, as a link has it: of a model on a device with its number, and its bytes there."""
    row = {"id": model.id, "spec": model.engine.spec.to_json()}
    if isinstance(model.engine, DeviceModel):
        row |= {"device": model.engine.memory.index, "bytes": model.engine.memory.held_bytes}
    return row


class Link:
    """One conversation with one incarnation of a front end."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.ready = False
        self.swapped = 0
        self._sending = threading.Lock()

    def send(self, kind: str, body: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Says something, unless nobody is there any more."""
        with self._sending:
            self.channel.send(kind, body, fds)


class Links:
    """All links of a worker. `on_call` gets each load and unload, and must not wait. `process_fd`: the pidfd
    of its process; None: it has none of its own.
    """

    def __init__(
        self,
        former: BatchFormer,
        devices: Devices,
        on_call: Callable[[Link, Message], None],
        process_fd: int | None = None,
    ) -> None:
        self._former = former
        self._devices = devices
        self._on_call = on_call
        self._fds = [former.page_fd, former.output_fd, *([] if process_fd is None else [process_fd])]
        self._changed = threading.Condition()  # guards what follows; never taken on the way of a request
        self._links: dict[Link, threading.Thread] = {}
        self._table: list[LoadedModel] = []
        self._states: States = {}
        self._swap = 0

    @property
    def table(self) -> list[LoadedModel]:
        """What is served."""
        with self._changed:
            return list(self._table)

    def swap(self, add: Sequence[LoadedModel], remove: Sequence[LoadedModel] = ()) -> None:
        """Serves other models from now on; returns when no front end sends to the removed ones any more."""
        with self._changed:
            self._table = [model for model in self._table if model not in remove] + list(add)
            self._swap = number = self._swap + 1
            self._tell("models", {"swap": number, "models": self._models()})
            self._changed.wait_for(lambda: all(link.swapped >= number for link in self._ready_links()))

    def tell_state(self, model: str, versions: list[list[str]]) -> None:
        """The state of a model's versions has changed; none: the model is forgotten."""
        with self._changed:
            if versions:
                self._states[model] = versions
            else:
                self._states.pop(model, None)
            self._tell("state", {"model": model, "versions": versions})

    def state(self, model: str) -> list[list[str]]:
        with self._changed:
            return self._states.get(model, [])

    def states(self) -> States:
        with self._changed:
            return dict(self._states)

    def _ready_links(self) -> list[Link]:
        return [link for link in self._links if link.ready]

    def _tell(self, kind: str, body: dict[str, Any]) -> None:
        for link in self._ready_links():
            link.send(kind, body)

    def _models(self) -> list[dict[str, Any]]:
        return [described(model) for model in self._table]

    # A link's life.

    def open(self, channel: Channel) -> None:
        """Serves a link on a thread of its own; the channel is the link's to close."""
        link = Link(channel)
        thread = threading.Thread(target=self._serve, args=(link,), name="link", daemon=True)
        with self._changed:
            self._links[link] = thread
            thread.start()

    def _serve(self, link: Link) -> None:
        lanes: list[int] = []
        try:
            if (hello := link.channel.receive()) is not None:
                self._attach(hello, lanes)
                self._say_ready(link)
                while (message := link.channel.receive()) is not None:
                    self._on_message(link, message)
        except (ProtocolError, QueueError, OSError) as error:
            say(f"worker: a link was closed: {error}")
        finally:
            with self._changed:
                link.ready = False  # a dead front end sends nothing: no swap waits for it
                self._changed.notify_all()
            for lane in lanes:
                self._former.detach_lane(lane, partial(self._devices.detached, lane))
            with self._changed:
                del self._links[link]
                self._changed.notify_all()
            link.channel.close()

    def _say_ready(self, link: Link) -> None:
        with self._changed:  # a table that is swapped meanwhile comes behind this one
            body = {"models": self._models(), "states": self._states, "devices": self._devices.names}
            link.send("ready", body, self._fds)
            link.ready = True
            link.swapped = self._swap

    def _on_message(self, link: Link, message: Message) -> None:
        if message.kind == "swapped":
            with self._changed:
                link.swapped = int(message.body["swap"])
                self._changed.notify_all()
        elif message.kind in ("load", "unload"):
            self._on_call(link, message)
        else:
            raise ProtocolError(f"expected swapped, load or unload, got {message!r}")

    def _attach(self, hello: Message, lanes: list[int]) -> None:
        """Attaches the lanes of a hello, and notes each in `lanes`. The former keeps what it needs of the
        fds.
        """
        fds = hello.take_fds()
        try:
            if hello.kind != "hello" or len(fds) != hello.body.get("lanes", 0) * FDS_PER_LANE:
                raise ProtocolError(
                    f"expected a hello with {FDS_PER_LANE} descriptors per lane, got {hello!r}"
                )
            for i in range(0, len(fds), FDS_PER_LANE):
                lanes.append(self._former.attach_lane(*fds[i : i + FDS_PER_LANE]))
                self._devices.attached(lanes[-1])
        finally:
            for fd in fds:
                os.close(fd)

    def close(self) -> list[threading.Thread]:
        """Ends every link. Its front end sees that at once; the threads end when what is launched has
        ended.
        """
        with self._changed:
            for link in self._links:
                link.channel.shutdown()
            return list(self._links.values())

    def __len__(self) -> int:
        with self._changed:
            return len(self._links)
