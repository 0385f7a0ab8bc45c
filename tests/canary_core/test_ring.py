"""Rings in shared memory: what is written is read, once and in order, however it wraps around."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canary_core.runtime.ring import IS_SUPPORTED, RingReader, RingWriter

pytestmark = pytest.mark.skipif(not IS_SUPPORTED, reason="rings need Linux on x86-64")
CAPACITY = 1 << 12


@pytest.fixture
def path() -> Iterator[Path]:
    """Where a ring may be made."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder, "a.ring")


@given(
    st.lists(
        st.one_of(
            st.lists(st.binary(max_size=1500), min_size=1, max_size=4),
            st.integers(0, 3),
        ),
        max_size=60,
    )
)
def test_a_ring_is_a_queue(steps: list[list[bytes] | int]) -> None:
    """A list is a message to write, a number how many to read; what is refused has not entered."""
    with tempfile.TemporaryDirectory() as folder:
        writer = RingWriter(Path(folder, "a.ring"), CAPACITY)
        reader = RingReader(Path(folder, "a.ring"))
        queue: list[list[bytes]] = []
        for step in steps:
            if isinstance(step, int):
                found: list[list[memoryview]] = []
                reader.take(found, step)
                assert queue[:step] == [[bytes(frame) for frame in each] for each in found]
                del queue[:step]
            elif writer.write(step):
                queue.append(step)
            else:
                assert queue or sum(map(len, step)) > CAPACITY - 100  # an empty ring has room
            assert reader.has_more == bool(queue)
        writer.close()
        reader.close()


def test_nothing_is_left_behind(path: Path) -> None:
    """Neither if the reader has opened the ring, which removes its name, nor if it has not."""
    writer = RingWriter(path, CAPACITY)
    reader = RingReader(path)
    assert not path.exists()
    assert not reader.is_abandoned
    assert writer.write([b"a"])
    writer.close()
    assert reader.is_abandoned
    found: list[list[memoryview]] = []
    reader.take(found, 10)
    assert [[b"a"]] == found
    reader.close()
    RingWriter(path, CAPACITY).close()
    assert not path.exists()


def test_a_full_disk_is_an_error_when_the_ring_is_made(path: Path) -> None:
    """Not a signal that kills the process when it writes."""
    with pytest.raises(OSError, match=r"space|large"):
        RingWriter(path, 1 << 60)
    assert not path.exists()


def test_only_a_sleeper_is_woken(path: Path) -> None:
    """Once for each time that it has said that it sleeps."""
    writer = RingWriter(path, CAPACITY)
    reader = RingReader(path)
    assert not writer.must_wake()
    reader.sleep()
    assert [True, False] == [writer.must_wake(), writer.must_wake()]
    reader.sleep()
    reader.awake()
    assert not writer.must_wake()
    writer.close()
    reader.close()


def test_the_writer_sees_whether_it_is_awaited(path: Path) -> None:
    """Awake or asleep, until the reader has something to do."""
    writer = RingWriter(path, CAPACITY)
    reader = RingReader(path)
    assert not writer.is_awaited
    reader.wait()
    assert writer.is_awaited
    assert not writer.must_wake()
    reader.sleep()
    assert writer.is_awaited
    assert writer.must_wake()
    assert writer.is_awaited
    reader.awake()
    assert not writer.is_awaited
    writer.close()
    reader.close()
