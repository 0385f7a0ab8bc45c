"""What is known of a connection between two hosts, and what follows for transfers; without IO.

A link is as fast as the fastest recent transfer over it: a busy processor makes single transfers
look slow, and would have them compressed, which makes it busier. (BBR's filter: Cardwell et al.,
"BBR: Congestion-Based Congestion Control", ACM Queue 14:5, 2016.) And a codec is as fast as the
share of a processor that it would get allows: what compresses is soon done, and rarely interrupted,
but others wait for it.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

CHUNK_BYTES = 1 << 20
# A connection on which no message is completed for some seconds counts as dead. So chunks are small
# where a link is slow, as far as is known, or may be; it may also have many readers at once.
_SMALL_CHUNK_BYTES = 256 << 10
_FIRST_CHUNK_BYTES = 64 << 10  # which tells the reader soon that there is an answer
_FAST_BYTES_S = 16e6

CREDIT_MAX = 64
_CREDIT_MIN = 8
_TRANSFERS = 8  # whose fastest counts
_MEASURED_BYTES_MIN = 256 << 10  # less says more of the delay than of the bandwidth
_CODEC_BYTES_S = 500e6  # of lz4 on a processor, before it is measured: on the low side
_SHARE = 0.5  # of the bytes that are left, before it is measured
_AGAIN_EVERY = 16  # chunks after which incompressible data is tried again
_NEW = 0.25  # weight of the newest measurement
_UNPACKING = 0.25  # of the time that compressing takes
_GAIN = 0.9  # of the time at most: what compresses could do other work
_MEASURED_NS_MIN = 5_000_000
_IDLE = 0.75  # of the time in which it wants to, a thread runs on a host with little to do


def chunk_bytes(link_bytes_s: float, *, first: bool) -> int:
    """The size of the next chunk of a transfer, on a link of that bandwidth (0: not known)."""
    if first:
        return _FIRST_CHUNK_BYTES
    return CHUNK_BYTES if link_bytes_s >= _FAST_BYTES_S else _SMALL_CHUNK_BYTES


@dataclass(slots=True)
class Link:
    """What a reader knows of its connection to a service."""

    delay_s: float = math.inf  # the least time between a request and the first byte
    _rates: deque[float] = field(default_factory=lambda: deque(maxlen=_TRANSFERS))

    @property
    def bytes_s(self) -> float:
        """Its bandwidth in bytes per second; 0 if it is not known."""
        return max(self._rates, default=0.0)

    @property
    def credit(self) -> int:
        """The number of chunks in flight: twice what fills the link, in bounds."""
        if not self._rates or self.delay_s == math.inf:
            return _CREDIT_MIN
        chunk = chunk_bytes(self.bytes_s, first=False)
        filling = math.ceil(min(CREDIT_MAX, 2 * self.delay_s * self.bytes_s / chunk))
        return max(_CREDIT_MIN, filling)

    def answered(self, waited_s: float) -> None:
        """The first byte has come so long after the request."""
        self.delay_s = min(self.delay_s, waited_s)

    def transferred(self, wire_bytes: int, seconds: float) -> None:
        """Bytes have come in so many seconds, without the time in which none was requested."""
        if wire_bytes >= _MEASURED_BYTES_MIN and seconds > 0:
            self._rates.append(wire_bytes / seconds)


@dataclass(slots=True)
class Processor:
    """How busy the processors of a host are: what one of its threads has had of them lately."""

    _share: float = 1.0  # of the time in which it wanted to run
    _ran_ns: int = 0
    _waited_ns: int = 0

    @property
    def share(self) -> float:
        """The share of a processor that there is for one more thread, at most 1."""
        return min(1.0, self._share / _IDLE)

    def seen(self, ran_ns: int, waited_ns: int) -> None:
        """How long the thread has run so far, and waited for a processor (Linux' `schedstat`)."""
        ran, waited = ran_ns - self._ran_ns, waited_ns - self._waited_ns
        if ran + waited >= _MEASURED_NS_MIN:
            self._share += _NEW * (ran / (ran + waited) - self._share)
            self._ran_ns, self._waited_ns = ran_ns, waited_ns


@dataclass(slots=True)
class Compression:
    """Whether chunks of one transfer are compressed, by what compression has done to them so far.

    It pays while a byte takes clearly less time compressed, sent and unpacked than as it is:
    share/link + 1.25/codec < 0.9/link.
    """

    codec_bytes_s: float = _CODEC_BYTES_S  # how fast bytes are compressed, with a processor
    share: float = _SHARE  # of the bytes that is left
    _plain: int = 0  # chunks since the last one that was compressed

    def pays(self, link_bytes_s: float, processor: float = 1.0) -> bool:
        """Whether to compress the next chunk for a link of that bandwidth (0: not known).

        `processor` is the share of one that there is for it.
        """
        fastest = self.codec_bytes_s * processor / (1 + _UNPACKING)
        if not 0 < link_bytes_s < _GAIN * fastest:
            return False
        if link_bytes_s < (_GAIN - self.share) * fastest:
            return True
        self._plain += 1
        return self._plain % _AGAIN_EVERY == 0

    def compressed(self, before: int, after: int, seconds: float) -> None:
        """A chunk of `before` bytes was compressed to `after` in so many seconds of CPU time."""
        self.share += _NEW * (after / before - self.share)
        if seconds > 0:
            self.codec_bytes_s += _NEW * (before / seconds - self.codec_bytes_s)
