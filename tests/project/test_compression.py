"""Decompressing is bounded before it begins: by the sizes in a frame, by its window, and piece by piece."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from harness.codecs import using
from harness.mutations import mutated
from streamkit import compression
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


def blocks(dice: Random) -> bytes:
    """Content that shrinks, of 0 to 140,000 bytes."""
    size = dice.choice((0, 1, 255, 256, 257, 8192, 65_535, 65_791, 65_792, 140_000))
    return (dice.randbytes(size // 3) + b"like the others " * (size // 16 + 1))[:size]


def test_a_decompressor_is_used_for_many_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    zstd, made = load_zstd(), []

    def make() -> Any:
        made.append(1)
        return zstd.ZstdDecompressor()

    monkeypatch.setattr(compression, "_spare", type(compression._spare)(maxlen=4))
    monkeypatch.setattr(compression, "_zstd", SimpleNamespace(**{**vars(zstd), "ZstdDecompressor": make}))
    dice = Random(1)
    with using("python"):
        for _ in range(50):
            content = dice.randbytes(300) + bytes(dice.choice((500, 8000, 65_000)))
            assert decompress(compress(content), len(content)) == content
    assert len(made) == 1, "a decompressor does not begin anew after an error"


def test_frames_after_damaged_ones_are_what_a_new_decompressor_makes_of_them() -> None:
    zstd, dice = load_zstd(), Random(2)

    def fresh(data: bytes, most: int) -> bytes | None:
        """The content; None if the frame is refused."""
        try:
            if most >= 1 << 16 and (zstd.get_frame_info(data).decompressed_size or 0) > most:
                return None
            found: bytes = zstd.ZstdDecompressor().decompress(data, max_length=most)
        except zstd.ZstdError:
            return None
        return found

    def reused(data: bytes, most: int) -> bytes | None:
        try:
            return decompress(data, most)
        except ValueError:
            return None

    outcomes = set()
    with using("python"):
        for case in range(3000):
            content = blocks(dice)
            data = compress(content) + dice.choice((b"", bytes(9)))
            if case % 2:
                data = mutated(dice, data) if case % 4 == 1 else changed(dice, data)
            most = max(1, len(content) + dice.choice((0, 0, 0, -1, 1)))
            wanted = fresh(data, most)
            assert reused(data, most) == wanted, f"case {case}"
            outcomes.add(wanted is None)
    assert outcomes == {True, False}


def changed(dice: Random, data: bytes) -> bytes:
    """Another byte among the first ones, which say the sizes of content and block."""
    at = dice.randrange(4, min(14, len(data)))
    return data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :]


def test_threads_decompress_at_once() -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        dice = Random(seed)
        for _ in range(200):
            content = dice.randbytes(3000) + bytes(dice.randrange(50_000))
            if decompress(compress(content), len(content)) != content:
                wrong.append(seed)

    with using("python"):
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
