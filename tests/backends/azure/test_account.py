"""An Azure account by URL and environment. No service is needed."""

from __future__ import annotations

import pytest

import streamkit_azure
from streamkit_azure.account import account_of
from streamkit_azure.keys import LONGEST, decode_key, encode_bound, encode_key

KEY = "c2VjcmV0LWtleQ=="
SIGNATURE = "sig=very%2Bsecret"


class TestUrls:
    @pytest.mark.parametrize(
        ("url", "tables", "blobs", "prefix"),
        [
            ("azure://acct", "https://acct.table.core.windows.net", "https://acct.blob.core.windows.net", "streamkit"),
            ("azure://acct/app1/", "https://acct.table.core.windows.net", "https://acct.blob.core.windows.net", "app1"),
            (
                "azure://acct/app?endpoint_suffix=core.chinacloudapi.cn",
                "https://acct.table.core.chinacloudapi.cn",
                "https://acct.blob.core.chinacloudapi.cn",
                "app",
            ),
            (
                "azurite:///app",
                "http://127.0.0.1:10002/devstoreaccount1",
                "http://127.0.0.1:10000/devstoreaccount1",
                "app",
            ),
            (
                "azurite:///?host=azurite.test&blob_port=1&table_port=65535",
                "http://azurite.test:65535/devstoreaccount1",
                "http://azurite.test:1/devstoreaccount1",
                "streamkit",
            ),
        ],
    )
    def test_say_where_things_are(self, url: str, tables: str, blobs: str, prefix: str) -> None:
        account = account_of(url, {})
        assert (account.tables, account.blobs, account.prefix, account.container) == (tables, blobs, prefix, prefix)

    @pytest.mark.parametrize(
        ("url", "says"),
        [
            ("azure:///app", "name of a storage account"),
            ("azure://Account/app", "name of a storage account"),
            ("azure://ac.ct/app", "name of a storage account"),
            ("azure://acct:443/app", "name of a storage account"),
            ("azure://acct/a", "3 to 31 lower-case"),
            ("azure://acct/App", "3 to 31 lower-case"),
            ("azure://acct/1app", "3 to 31 lower-case"),
            ("azure://acct/a-b", "3 to 31 lower-case"),
            ("azure://acct/a/b", "3 to 31 lower-case"),
            ("azure://acct/" + "a" * 32, "3 to 31 lower-case"),
            ("azure://acct/app?blob_port=1", "unknown option 'blob_port'"),
            ("azure://acct/app?endpoint_suffix=x/y", "is a domain such as"),
            ("azure://acct/app#x", "no user, password or fragment"),
            ("azurite://acct/app", "expected azurite:///prefix"),
            ("azurite:///app?blob_port=0", "is a port"),
            ("azurite:///app?table_port=http", "is a port"),
            ("azurite:///app?host=a/b", "is a host name"),
            ("azurite:///app?blob_port=1&blob_port=2", "given twice"),
            ("s3://acct/app", "expected azure://"),
        ],
    )
    def test_that_mean_nothing_are_refused(self, url: str, says: str) -> None:
        with pytest.raises(ValueError, match=says):
            account_of(url, {})

    def test_with_credentials_in_them_are_refused_without_showing_them(self) -> None:
        for url in (f"azure://acct:{KEY}@host/app", f"azure://acct/app?{SIGNATURE}", f"azure://acct/app#{KEY}"):
            with pytest.raises(ValueError) as refused:
                account_of(url, {})
            assert KEY not in str(refused.value)
            assert "secret" not in str(refused.value)


class TestCredentials:
    CONNECTION = f"DefaultEndpointsProtocol=https;AccountName=acct;AccountKey={KEY};EndpointSuffix=core.windows.net"

    def test_come_from_a_connection_string_before_a_key_before_a_token(self) -> None:
        environ = {
            "AZURE_STORAGE_CONNECTION_STRING": self.CONNECTION,
            "AZURE_STORAGE_KEY": "b3RoZXI=",
            "AZURE_STORAGE_SAS_TOKEN": "?" + SIGNATURE,
        }
        assert account_of("azure://acct", environ).key == KEY
        del environ["AZURE_STORAGE_CONNECTION_STRING"]
        assert account_of("azure://acct", environ).key == "b3RoZXI="
        del environ["AZURE_STORAGE_KEY"]
        account = account_of("azure://acct", environ)
        assert (account.key, account.sas) == ("", SIGNATURE)
        account = account_of("azure://acct", {})
        assert (account.key, account.sas) == ("", "")

    def test_of_a_connection_string_come_with_its_endpoints(self) -> None:
        text = f"BlobEndpoint=https://b.test/;TableEndpoint=https://t.test/;SharedAccessSignature={SIGNATURE};"
        account = account_of("azure://acct", {"AZURE_STORAGE_CONNECTION_STRING": text})
        assert (account.blobs, account.tables, account.sas) == ("https://b.test", "https://t.test", SIGNATURE)
        account = account_of("azurite:///app", {"AZURITE_CONNECTION_STRING": text})
        assert (account.blobs, account.sas, account.prefix) == ("https://b.test", SIGNATURE, "app")

    def test_ports_in_the_url_go_before_the_connection_string(self) -> None:
        account = account_of("azurite:///app?blob_port=5", {"AZURITE_CONNECTION_STRING": self.CONNECTION})
        assert account.blobs == "http://127.0.0.1:5/devstoreaccount1"

    def test_the_usual_short_form_means_the_usual_ports(self) -> None:
        environ = {"AZURITE_CONNECTION_STRING": "UseDevelopmentStorage=true;"}
        assert account_of("azurite:///app", environ) == account_of("azurite:///app", {})

    @pytest.mark.parametrize(
        ("variable", "text", "says"),
        [
            ("AZURE_STORAGE_KEY", "not base64: secret", "AZURE_STORAGE_KEY is not base64"),
            ("AZURE_STORAGE_CONNECTION_STRING", "AccountName=acct;AccountKey=secret!", "is not base64"),
            ("AZURE_STORAGE_CONNECTION_STRING", "secret", "neither AccountKey nor SharedAccessSignature"),
            ("AZURE_STORAGE_CONNECTION_STRING", f"AccountName=other;AccountKey={KEY}", "for the account 'other'"),
            *(
                ("AZURE_STORAGE_CONNECTION_STRING", f"AccountKey={KEY};{endpoint}", "has an endpoint that is not")
                for endpoint in (
                    f"BlobEndpoint=https://acct.blob.core.windows.net/?sv=1&{SIGNATURE}",
                    "TableEndpoint=https://user:secret@acct.table.core.windows.net",
                    "BlobEndpoint=https://acct.blob.core.windows.net/#secret",
                    "TableEndpoint=secret",
                )
            ),
        ],
    )
    def test_that_cannot_be_used_are_named_and_not_shown(self, variable: str, text: str, says: str) -> None:
        with pytest.raises(ValueError, match=says) as refused:
            account_of("azure://acct", {variable: text})
        assert "secret" not in str(refused.value)
        assert KEY not in str(refused.value)

    def test_are_in_no_repr(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for variable, secret in (("AZURE_STORAGE_KEY", KEY), ("AZURE_STORAGE_SAS_TOKEN", SIGNATURE)):
            monkeypatch.setenv(variable, secret)
            driver = streamkit_azure.connect("azure://acct/app", timeout=1)
            for thing in (driver, driver._account, driver._service(), driver._service().account):
                assert secret not in repr(thing)


class TestKeys:
    SAMPLES = (
        [bytes([number]) * length for number in (0, 1, 0x7F, 0x80, 0xFF) for length in range(1, 12)]
        + [b"", b"order-4", b"order-42", b"order-4\x00", b"order-4\xff", "🎉".encode(), bytes(LONGEST)]
        + [bytes(range(start, 256)) for start in range(0, 256, 17)]
    )

    def test_come_back_in_the_order_of_their_bytes(self) -> None:
        assert [decode_key(text) for text in sorted(map(encode_key, self.SAMPLES))] == sorted(self.SAMPLES)

    def test_are_what_azure_accepts(self) -> None:
        for key in [*self.SAMPLES, b"\xff" * LONGEST]:
            text = encode_key(key)
            assert text.isascii()
            assert text.isalnum()
            assert len(text) <= 512

    def test_that_are_too_long_are_refused_but_bounds_may_be_longer(self) -> None:
        with pytest.raises(ValueError, match="at most 300 bytes, not 301"):
            encode_key(bytes(301))
        longest = encode_key(b"\xff" * LONGEST)
        assert longest < encode_bound(b"\xff" * LONGEST + b"\x00") <= encode_bound(b"\xff" * 1000)
        assert encode_bound(b"\xfe" * 1000) < longest
