"""Names of rows on S3: they have the order of the keys, never collide and always fit."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import streamkit_s3
from streamkit.errors import MissingDependency
from streamkit_s3 import archive_place
from streamkit_s3.layout import LONGEST_PREFIX, decode, encode, is_own, label, listing

KEYS = st.binary(max_size=24)
SAFE = re.compile(r"[A-Za-z0-9!_.\-]+")
SPLIT = re.compile(r"[A-Za-z0-9!_.\-]+(/[A-Za-z0-9!_.\-]+)?")


@given(KEYS, KEYS)
@example(b"", b"\x00")
@example(b"\x00", b"\x00\x00")
@example(b"\xff", b"\xff\x00")
def test_names_are_in_the_order_of_keys(one: bytes, other: bytes) -> None:
    assert (encode(one) < encode(other)) == (one < other)
    assert (encode(one) == encode(other)) == (one == other)


@given(st.binary(max_size=300))
def test_a_name_tells_its_key(key: bytes) -> None:
    assert decode(encode(key)) == key
    assert SPLIT.fullmatch(encode(key))


LONG = st.builds(lambda start, rest: start * 94 + rest, st.binary(min_size=2, max_size=2), st.binary(max_size=110))


@given(LONG, LONG)
@example(b"a" * 189, b"a" * 190)
@example(b"a" * 188, b"a" * 189)
@example(b"a" * 190, b"a" * 189 + b"b")
def test_long_names_are_in_the_order_of_keys(one: bytes, other: bytes) -> None:
    assert (encode(one) < encode(other)) == (one < other)
    assert decode(encode(one)) == one


@given(st.binary(min_size=185, max_size=195) | LONG, st.binary(min_size=185, max_size=195) | LONG, st.lists(LONG))
def test_a_listing_of_long_keys_holds_the_range_and_nothing_else(start: bytes, end: bytes, keys: list[bytes]) -> None:
    if start >= end:
        return
    prefix, after, stop = listing(start, end)
    for key in [*keys, start, end, start + b"\x00", end[:-1], end + b"\x00", start[:189], end[:189]]:
        name = encode(key)
        assert (name.startswith(prefix) and after < name < stop) == (start <= key < end)


@given(st.lists(st.binary(max_size=300) | LONG, min_size=1), st.binary(max_size=300))
def test_no_part_of_a_name_is_longer_than_files_names_are_and_none_is_file_and_folder(
    keys: list[bytes], partition: bytes
) -> None:
    names = {f"{label(partition)}/{encode(key)}" for key in keys}
    assert max(len(part) for name in names for part in name.split("/")) <= 255
    folders = {name[:at] for name in names for at, letter in enumerate(name) if letter == "/"}
    assert not folders & names


@given(st.text(st.characters(codec="utf-8"), max_size=12))
@example("")
@example("!/")
@example("AA!/AA")
@example("A")
@example("AB")
@example("--1")
@example("a/b")
@example("index.html")
def test_a_foreign_name_is_no_key_unless_it_is_exactly_what_a_key_makes(name: str) -> None:
    key = decode(name)
    assert key is None or encode(key) == name


@given(KEYS, KEYS, st.lists(KEYS))
def test_a_listing_holds_the_range_and_nothing_else(start: bytes, end: bytes, keys: list[bytes]) -> None:
    if start >= end:
        return
    prefix, after, stop = listing(start, end)
    for key in [*keys, start, end, start + b"\x00", end[:-1], end + b"\x00"]:
        name = encode(key)
        assert (name.startswith(prefix) and after < name < stop) == (start <= key < end)


@given(st.binary(max_size=300), st.binary(max_size=300))
@example(b"a\x00b", b"a!00!b")
@example(b"\x00\x01", b"\x00\x02")
@example(b"", b"!")
def test_partitions_never_collide(one: bytes, other: bytes) -> None:
    assert (label(one) == label(other)) == (one == other)
    assert SAFE.fullmatch(label(one))
    assert is_own(label(one))


def test_a_partition_can_be_read_by_people() -> None:
    assert label(b"orders\x00" + bytes(8)) == "p.orders!000000000000000000!"


@pytest.mark.parametrize("byte", [b"\x00", b"\xff", b"a", b"!"])
def test_the_longest_row_under_the_longest_prefix_has_a_name_that_s3_takes(byte: bytes) -> None:
    store = "7d9f2c1e-0000-0000-0000-000000000000"
    name = f"{'p' * LONGEST_PREFIX}/{store}/{label(byte * 300)}/{encode(byte * 300)}"
    assert len(name) <= 1024


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("s3://", "names no bucket"),
        ("s3:///prefix", "names no bucket"),
        ("s4://bucket", "expected a URL such as"),
        ("s3://[bucket", "expected a URL such as"),
        ("s3://b!cket", "'!' is no character of a bucket's name"),
        ("s3://my bucket/x", "' ' is no character"),
        ("s3://bücket", "'ü' is no character"),
        ("s3://b%63ket", "'%' is no character"),
        ("s3://UPPER/prefix", "it has a capital letter"),
        ("s3://under_score", "it has an underscore"),
        ("s3://ab", "3 to 63 characters, this one has 2"),
        (f"s3://{'b' * 64}", "3 to 63 characters, this one has 64"),
        (f"s3://{'b' * 256}?endpoint_url=http://127.0.0.1:9000", "3 to 255 characters"),
        ("s3://-bucket", "begins and ends with"),
        ("s3://bucket.", "begins and ends with"),
        ("s3://_bucket?endpoint_url=http://127.0.0.1:9000", "begins and ends with"),
        ("s3://a..b", "two dots"),
        ("s3://192.168.0.1/prefix", "?endpoint_url=http://192.168.0.1"),
        ("s3://bucket#part", "write # as %23"),
        ("s3://bucket:80/x", "?endpoint_url=http://host:port"),
        ("s3://bucket?regoin=x", "unknown option 'regoin'"),
        ("s3://bucket?region=a&region=b", "given twice"),
        ("s3://bucket?region=EU%20west", "eu-central-1"),
        ("s3://bucket?endpoint_url=127.0.0.1:9000", "http"),
        ("s3://bucket?endpoint_url=ftp://127.0.0.1", "http"),
        ("s3://bucket?endpoint_url=http://", "http"),
        ("s3://bucket/a//b", "no empty"),
        ("s3://bucket/a/../b", "no empty"),
        ("s3://bucket/a%00b", "no empty"),
        (f"s3://bucket/{'a' * (LONGEST_PREFIX + 1)}", f"at most {LONGEST_PREFIX} bytes"),
        ("s3://bucket--use1-az4--x-s3/prefix", "directory bucket"),
    ],
)
def test_a_wrong_url_says_what_is_wrong(url: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        streamkit_s3.connect(url, timeout=10)


@pytest.mark.parametrize("bucket", ["abc", "b" * 63, "my.bucket-2", "123"])
def test_a_bucket_that_aws_takes_is_taken(bucket: str) -> None:
    assert f"s3://{bucket}/" in repr(streamkit_s3.connect(f"s3://{bucket}", timeout=10))


@pytest.mark.parametrize("bucket", ["UPPER", "under_score", "b" * 255, "a..b"])
def test_another_server_may_take_other_buckets(bucket: str) -> None:
    url = f"s3://{bucket}?endpoint_url=http://127.0.0.1:9000"
    assert f"s3://{bucket}/" in repr(streamkit_s3.connect(url, timeout=10))


@pytest.mark.parametrize(
    "url", ["s3://key:secret@bucket/prefix", "s3://bucket?endpoint_url=http://key:secret@127.0.0.1:9000"]
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="no credentials") as caught:
        streamkit_s3.connect(url, timeout=10)
    assert "secret" not in str(caught.value)


def test_without_boto3_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "boto3", None)
    with pytest.raises(MissingDependency, match=re.escape("pip install 'streamkit-store[s3]'")):
        streamkit_s3.connect("s3://bucket", timeout=10)


def test_opening_imports_no_sdk() -> None:
    import subprocess
    import sys

    script = (
        "import sys, uuid, streamkit_s3\n"
        "driver = streamkit_s3.connect('s3://bucket/prefix', timeout=10)\n"
        "driver.open(uuid.uuid4()).close(); driver.close()\n"
        "assert not {'boto3', 'botocore', 'urllib3'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_an_archive_is_in_the_service_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9999")
    _, options = archive_place("s3://bucket/prefix")
    assert (options["AWS_ENDPOINT_URL"], options["AWS_ALLOW_HTTP"]) == ("http://127.0.0.1:9999", "true")
    _, options = archive_place("s3://bucket/prefix?endpoint_url=https://other.example")
    assert options["AWS_ENDPOINT_URL"] == "https://other.example"
    assert "AWS_ALLOW_HTTP" not in options
