"""Random requests on the wire: valid ones in every form the format allows, and damaged ones.

A message is a list of encoded fields that are shuffled, so that fields come in any order, repeated, and
split. Values are mostly ordinary and sometimes extreme. Nearly everything made here is accepted; `damage`
then breaks it.
"""

from __future__ import annotations

from random import Random

from codec_wire import BYTES, FIXED32, FIXED64, data, group, number, tag, varint

TEXTS = [
    "",
    "a",
    "timeout",
    "INPUT0",
    "model",
    "FP32",
    "triton_x",
    "größe",
    "\U0001f600" * 3,
    "x" * 130,
    "\0",
    "id",
]
BAD_TEXTS = [
    b"\xff",
    b"abcdefgh\xc3",
    b"\xed\xa0\x80",
    b"\xc0\x80",
    b"\xf4\x90\x80\x80",
    b"\xe2\x82",
    b"\x80",
]
NUMBERS = [0, 1, 2, 127, 128, 16383, 16384, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]


class Maker:
    """Makes requests from one source of randomness."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def chance(self, part: float) -> bool:
        return self.random.random() < part

    def _text(self) -> bytes:
        if self.chance(0.003):
            return self.random.choice(BAD_TEXTS)
        return self.random.choice(TEXTS).encode()

    def _varint(self) -> bytes:
        value = self.random.choice(NUMBERS) if self.chance(0.7) else self.random.getrandbits(64)
        return varint(value, self.random.choice([0, 0, 0, 0, 2, 5, 10]))

    def _tag(self, field: int, wire_type: int) -> bytes:
        return tag(field, wire_type, self.random.choice([5, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]))

    def _data(self, field: int, payload: bytes) -> bytes:
        length = varint(len(payload), self.random.choice([3, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]))
        return self._tag(field, BYTES) + length + payload

    def _unknown(self, depth: int = 0) -> bytes:
        field = self.random.choice([1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 1000, 2**29 - 1])
        kind = self.random.randrange(5 if depth < 3 else 4)
        if kind == 0:
            return self._tag(field, 0) + self._varint()
        if kind == 1:
            return self._tag(field, FIXED64) + self.random.randbytes(8)
        if kind == 2:
            return self._tag(field, FIXED32) + self.random.randbytes(4)
        if kind == 3:
            return self._data(
                self.random.choice([9, 15, 16, 1000]), self.random.randbytes(self.random.randrange(9))
            )
        return group(field, b"".join(self._unknown(depth + 1) for _ in range(self.random.randrange(3))))

    def _mix(self, fields: list[bytes], unknown: float = 0.08) -> bytes:
        while self.chance(unknown):
            fields.append(self._unknown())
        self.random.shuffle(fields)
        return b"".join(fields)

    def _some(self, most: int) -> range:
        return range(self.random.choice([0, 1, 1, 1, 2, most]))

    def _value(self) -> bytes:
        makers = [
            lambda: self._tag(1, 0) + self._varint(),
            lambda: self._tag(2, 0) + self._varint(),
            lambda: self._data(3, self._text()),
            lambda: self._tag(4, FIXED64) + self.random.randbytes(8),
            lambda: self._tag(5, 0) + self._varint(),
        ]
        return self._mix([self.random.choice(makers)() for _ in self._some(3)])

    def parameter(self, field: int) -> bytes:
        """One entry of a map of parameters."""
        fields = [self._data(1, self._text()) for _ in self._some(2)]
        fields += [self._data(2, self._value()) for _ in self._some(3)]
        return self._data(field, self._mix(fields, 0.04))

    def _packed(self, field: int) -> bytes:
        return self._data(field, b"".join(self._varint() for _ in self._some(5)))

    def _contents(self) -> bytes:
        makers = [
            lambda: self._packed(self.random.randint(1, 5)),
            lambda: self._tag(self.random.randint(1, 5), 0) + self._varint(),
            lambda: self._data(6, self.random.randbytes(4 * self.random.randrange(4))),
            lambda: self._tag(6, FIXED32) + self.random.randbytes(4),
            lambda: self._data(7, self.random.randbytes(8 * self.random.randrange(4))),
            lambda: self._tag(7, FIXED64) + self.random.randbytes(8),
            lambda: self._data(8, self.random.randbytes(self.random.randrange(9))),
        ]
        return self._mix([self.random.choice(makers)() for _ in self._some(6)])

    def _input(self) -> bytes:
        fields = [self._data(1, self._text()) for _ in self._some(2)]
        fields += [self._data(2, self._text()) for _ in self._some(2)]
        fields += [self._packed(3) for _ in self._some(3)]
        fields += [self._tag(3, 0) + self._varint() for _ in self._some(9)]
        fields += [self.parameter(4) for _ in self._some(3) if self.chance(0.4)]
        fields += [self._data(5, self._contents()) for _ in self._some(3) if self.chance(0.5)]
        return self._mix(fields)

    def _output(self) -> bytes:
        fields = [self._data(1, self._text()) for _ in self._some(2)]
        return self._mix(fields + [self.parameter(2) for _ in self._some(3) if self.chance(0.4)])

    def request(self) -> bytes:
        """A whole request, accepted by the library but for a rare bad text."""
        many = self.chance(0.02)
        fields = [self._data(field, self._text()) for field in (1, 2, 3) for _ in self._some(2)]
        fields += [self.parameter(4) for _ in self._some(5)]
        fields += [self._data(5, self._input()) for _ in (range(70) if many else self._some(4))]
        fields += [self._data(6, self._output()) for _ in (range(70) if many else self._some(4))]
        raws = range(70) if many else self._some(4)
        fields += [self._data(7, self.random.randbytes(self.random.choice([0, 1, 4, 200]))) for _ in raws]
        return self._mix(fields)

    def damage(self, wire: bytes) -> bytes:
        """The message with one to four random changes."""
        bad = bytearray(wire)
        for _ in range(self.random.choice([1, 1, 1, 2, 4])):
            self._damage_once(bad)
        return bytes(bad)

    def _damage_once(self, bad: bytearray) -> None:
        at, kind = self.random.randrange(len(bad) + 1), self.random.randrange(7)
        end = min(len(bad), at + self.random.choice([1, 1, 2, 5, 20]))
        if kind == 0:
            del bad[at:]
        elif kind == 1:
            del bad[at:end]
        elif kind == 2:
            bad[at:at] = self.random.randbytes(self.random.choice([1, 1, 2, 8]))
        elif kind == 3:
            bad[at:at] = bad[at:end]
        elif kind == 4:
            bad[at:at] = self._unknown()
        elif at < len(bad):
            bad[at] = self.random.choice([0, 0x7F, 0x80, 0xFF, bad[at] ^ 1 << self.random.randrange(8)])


def ordinary(name: str, payload: bytes) -> bytes:
    """The request of a client with nothing special about it: one FP32 input of [1, n]."""
    shape = data(3, varint(1) + varint(len(payload) // 4))
    tensor = data(1, b"INPUT0") + data(2, b"FP32") + shape
    final = data(1, b"triton_enable_empty_final_response") + data(2, number(1, 0))
    return (
        data(1, name.encode()) + data(3, b"request-1") + data(4, final) + data(5, tensor) + data(7, payload)
    )
