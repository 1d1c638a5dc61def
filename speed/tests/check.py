"""A wheel on its platform: it imports, and a block that streamkit wrote comes back. Its other tests are streamkit's."""

import struct
import zlib

import streamkit_speed

KEYS, VALUES = [b"a", b"b"], [b"one", b""]
body = struct.pack("<4H", *map(len, KEYS + VALUES)) + b"".join(KEYS + VALUES)
rest = struct.pack("<BxxxII", 0, len(KEYS), len(body)) + body
block = streamkit_speed.decode_block(struct.pack("<I", zlib.crc32(rest, 5)) + rest, 5)
assert (block.keys(0, 2), block.values(0, 2), block.get(b"a"), block.get(b"c")) == (KEYS, VALUES, b"one", None)
assert streamkit_speed.decode_block(rest, 5) is None
assert streamkit_speed.decompress(b"\x28\xb5\x2f\xfd\x20\x03\x19\x00\x00abc", 3) == b"abc"
print(f"streamkit-speed {streamkit_speed.__version__}, interface {streamkit_speed.INTERFACE}")
