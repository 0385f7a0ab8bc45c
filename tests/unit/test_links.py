"""What is measured of links, and when compression pays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minishark.cluster.links import CHUNK_BYTES, CREDIT_MAX, Compression, Link, Processor

MB = 1_000_000


def test_a_link_is_as_fast_as_its_fastest_transfer() -> None:
    """A busy processor makes transfers slow, not the link; what is small tells nothing of it."""
    link = Link()
    assert 0 == link.bytes_s
    for seconds in (0.1, 0.02, 0.5):
        link.transferred(MB, seconds)
    link.transferred(1000, 1e-6)
    assert 50 * MB == pytest.approx(link.bytes_s)
    for _ in range(8):
        link.transferred(MB, 0.1)
    assert 10 * MB == pytest.approx(link.bytes_s), "a link may have become slower"


def test_credit_fills_the_link() -> None:
    """Twice what is on its way: few chunks on short links, many on long fat ones, in bounds."""
    found = []
    for delay_s, rate in ((0.0001, 1e9), (0.02, 125e6), (0.1, 125e6), (1.0, 1e9)):
        link = Link()
        link.answered(delay_s)
        link.transferred(CHUNK_BYTES, CHUNK_BYTES / rate)
        found.append(link.credit)
    assert [8, 8, 24, CREDIT_MAX] == found


def test_slow_links_get_compressed_chunks() -> None:
    """A link as fast as the codec does not, nor one that nothing is known of."""
    links = {0.0: False, 10e6: True, 125e6: True, 300e6: False, 5e9: False}
    assert links == {link: Compression().pays(link) for link in links}


def test_what_does_not_shrink_is_sent_as_it_is() -> None:
    """After some chunks without effect; one is tried now and then, as data change."""
    compression = Compression()
    for _ in range(20):
        compression.compressed(MB, MB, 0.002)
    assert [15] == [i for i in range(16) if compression.pays(125e6)]
    for _ in range(20):
        compression.compressed(MB, MB // 4, 0.002)
    assert compression.pays(125e6)


def test_a_slow_codec_is_noticed() -> None:
    """It may be the processor that is short, not the network."""
    compression = Compression()
    for _ in range(20):
        compression.compressed(MB, MB // 2, 0.05)
    assert not compression.pays(125e6)


def test_busy_processors_do_not_compress() -> None:
    """Not for a link that is faster than what is left of them; an idle host does, soon after."""
    processor = Processor()
    for second in range(1, 21):
        processor.seen(second * 20_000_000, second * 980_000_000)
    assert 0.02 / 0.75 == pytest.approx(processor.share, rel=0.2)
    assert not Compression().pays(25e6, processor.share)
    assert Compression().pays(1e6, processor.share)
    processor.seen(400_000_001, 19_600_000_001)
    assert 0.02 / 0.75 == pytest.approx(processor.share, rel=0.2), "it has hardly run since"
    for second in range(1, 11):
        processor.seen(400_000_000 + second * 20_000_000, 19_600_000_000)
    assert Compression().pays(25e6, processor.share)


@given(st.floats(1e3, 1e11), st.floats(1e6, 1e10), st.floats(0.01, 0.99))
def test_compression_is_never_slower(link: float, codec: float, share: float) -> None:
    """Where it pays, a byte takes less time compressed than as it is."""
    if Compression(codec_bytes_s=codec, share=share).pays(link):
        assert share / link + 1.25 / codec <= (0.9 + 1e-9) / link
