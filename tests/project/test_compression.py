"""Decompressing is bounded before it begins: by the sizes in a frame, by its window, and piece by piece."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from streamkit.compression import compress, decompress, decompress_pieces, load_zstd


def zeros(size: int, **options: int) -> bytes:
    zstd = load_zstd()
    named = {getattr(zstd.CompressionParameter, name): value for name, value in options.items()}
    compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.compression_level: 1, **named})
    piece = bytes(1 << 16)
    return b"".join(compressor.compress(piece) for _ in range(size >> 16)) + compressor.flush()


def peak(act: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_frame_that_says_that_it_is_too_large_is_refused_before_it_is_decompressed() -> None:
    frame = compress(bytes(64 << 20))

    def refused() -> None:
        with pytest.raises(ValueError, match="larger than it may be"):
            decompress(frame, 32 << 20)

    assert peak(refused) < 1 << 20


def test_a_frame_that_does_not_say_how_large_it_is_gives_no_more_than_it_may() -> None:
    assert decompress(zeros(8 << 20), 1 << 20) == bytes(1 << 20)


def test_pieces_are_small_and_end_where_they_may_not_go_on() -> None:
    frame, sizes = zeros(64 << 20), []

    def read() -> None:
        with pytest.raises(ValueError, match="more than 8,388,608 bytes"):
            sizes.extend(map(len, decompress_pieces([frame], 8 << 20)))

    assert peak(read) < 4 << 20
    assert sizes == [1 << 20] * 8


def test_pieces_are_the_whole_however_the_frame_comes() -> None:
    data = bytes(range(256)) * 20_000
    frame = compress(data)
    for size in (1, 7, 1000, len(frame)):
        chunks = [frame[at : at + size] for at in range(0, len(frame), size)]
        assert b"".join(decompress_pieces(chunks, len(data))) == data
    for wrong in ([frame[:-1]], [], [b"nonsense" * 9], [frame[:100], b"\0" * 100]):
        with pytest.raises(ValueError):
            list(decompress_pieces(wrong, len(data)))


def test_a_frame_with_a_window_of_many_mebibytes_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be decompressed"):
        list(decompress_pieces([zeros(1 << 20, window_log=27)], 1 << 30))
