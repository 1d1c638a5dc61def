"""JWT by the keys of a URL: rotation, outages, forgeries, and the rights that claims give."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from fix_serve import Reply, Served

from streamkit import Record
from streamkit.serve import Tokens
from streamkit.serve.server import Options, make_application
from streamkit.testing import ManualClock

ENTRIES = "spaces/s/segments/a/entries"
EVERYTHING = "read write delete admin streamkit::*"


class Signer:
    """A private key, and its public half as a JWK."""

    def __init__(self, kid: str, kind: str = "RSA") -> None:
        self.kid = kid
        self.key: Any
        if kind == "RSA":
            self.key, self.algorithm = rsa.generate_private_key(65537, 2048), "RS256"
            jwk = jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        elif kind == "EC":
            self.key, self.algorithm = ec.generate_private_key(ec.SECP256R1()), "ES256"
            jwk = jwt.algorithms.ECAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        else:
            self.key, self.algorithm = ed25519.Ed25519PrivateKey.generate(), "EdDSA"
            jwk = jwt.algorithms.OKPAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        self.jwk = {**jwk, "kid": kid, "use": "sig", "alg": self.algorithm}

    def token(self, *, kid: str | None = None, algorithm: str | None = None, **claims: Any) -> str:
        claims = {"exp": time.time() + 60, "scope": EVERYTHING, **claims}
        return jwt.encode(claims, self.key, algorithm or self.algorithm, headers={"kid": kid or self.kid})


class Provider:
    """An identity provider: it serves `keys`, counts how often it was asked, and answers wrongly if told to."""

    def __init__(self) -> None:
        self.keys: list[Any] = []
        self.asked = 0
        self.answer: bytes | None = None
        self.status = 200
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked += 1
                body = provider.answer
                if body is None:
                    body = json.dumps({"keys": provider.keys}).encode()
                self.send_response(provider.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/jwks.json"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def provider() -> Iterator[Provider]:
    found = Provider()
    yield found
    found.close()


class World:
    """A server that trusts the keys of `provider`, on a clock of its own."""

    def __init__(self, serve: Callable[..., Served], provider: Provider, **options: Any) -> None:
        self.clock = ManualClock()
        self.served = serve(tokens=Tokens(jwks=provider.url, clock=self.clock, **options))
        self.served.store.produce("s", "a", [Record(b"1")])

    def ask(self, token: str, method: str = "GET", path: str = ENTRIES, body: Any = None) -> Reply:
        return self.served.ask(method, path, body, {"Authorization": f"Bearer {token}"})


OLD, NEW = Signer("old"), Signer("new", "EC")


@pytest.fixture
def world(serve: Callable[..., Served], provider: Provider) -> World:
    provider.keys = [OLD.jwk]
    return World(serve, provider)


@pytest.mark.parametrize("kind", ["RSA", "EC", "Ed25519"])
def test_a_key_of_each_kind_verifies(serve: Callable[..., Served], provider: Provider, kind: str) -> None:
    signer = Signer("k", kind)
    provider.keys = [signer.jwk]
    assert World(serve, provider).ask(signer.token()).status == 200


def test_the_keys_are_fetched_once_for_many_requests(world: World, provider: Provider) -> None:
    for _ in range(5):
        assert world.ask(OLD.token()).status == 200
    assert provider.asked == 1


def test_a_new_key_is_fetched_when_a_token_names_it(world: World, provider: Provider) -> None:
    assert world.ask(OLD.token()).status == 200
    provider.keys = [OLD.jwk, NEW.jwk]
    world.clock.sleep(11)
    assert world.ask(NEW.token()).status == 200
    assert world.ask(OLD.token()).status == 200


def test_a_key_that_was_withdrawn_is_refused_after_ten_minutes(world: World, provider: Provider) -> None:
    assert world.ask(OLD.token()).status == 200
    provider.keys = [NEW.jwk]
    world.clock.sleep(601)
    assert world.ask(OLD.token()).status == 401
    assert world.ask(NEW.token()).status == 200


def test_unknown_keys_do_not_flood_the_provider(world: World, provider: Provider) -> None:
    assert world.ask(OLD.token()).status == 200
    for number in range(20):
        assert world.ask(OLD.token(kid=f"unknown-{number}")).status == 401
    assert provider.asked == 1
    world.clock.sleep(11)
    for number in range(20):
        assert world.ask(OLD.token(kid=f"unknown-{number}")).status == 401
    assert provider.asked == 2


BAD_ANSWERS = [
    (503, None),
    (404, b"gone"),
    (200, b""),
    (200, b"<html>"),
    (200, b"[]"),
    (200, b'{"keys":{}}'),
    (200, b'{"keys":[]}'),
    (200, b'{"keys":[{"kty":"RSA","kid":"old"}]}'),
    (200, b"[" * 200_000),
    (200, b'{"keys":[' + b" " * (2 << 20) + b"]}"),
]


@pytest.mark.parametrize(("status", "answer"), BAD_ANSWERS)
def test_without_keys_a_token_may_be_sent_again_later(
    world: World, provider: Provider, status: int, answer: bytes | None
) -> None:
    provider.status, provider.answer = status, answer
    refused = world.ask(OLD.token())
    assert (refused.status, refused.json["type"]) == (503, "urn:streamkit:token-keys-unavailable"), refused
    assert refused.json["retryable"] is True
    assert int(refused.headers["retry-after"]) >= 1
    provider.status, provider.answer = 200, None
    world.clock.sleep(2)
    assert world.ask(OLD.token()).status == 200


def test_a_provider_that_is_down_is_not_asked_by_every_request(world: World, provider: Provider) -> None:
    provider.status = 503
    for _ in range(5):
        assert world.ask(OLD.token()).status == 503
    assert provider.asked == 1


def test_known_keys_outlast_an_outage_of_an_hour(world: World, provider: Provider) -> None:
    assert world.ask(OLD.token()).status == 200
    provider.status = 503
    world.clock.sleep(3_000)
    assert world.ask(OLD.token()).status == 200
    world.clock.sleep(1_000)
    assert world.ask(OLD.token()).status == 503


def test_a_provider_that_cannot_be_reached_is_told_apart_from_a_wrong_token(serve: Callable[..., Served]) -> None:
    provider = Provider()
    world = World(serve, provider)
    provider.close()
    assert world.ask(OLD.token()).status == 503
    assert world.ask("no.to.ken").status == 401
    assert world.ask("x").status == 401


def _raw(header: Any, claims: Any = None, signature: bytes = b"") -> str:
    def part(value: Any) -> str:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    claims = {"exp": time.time() + 60, "scope": EVERYTHING} if claims is None else claims
    return f"{part(header)}.{part(claims)}.{part(signature)}"


def _by_public_key() -> str:
    """A token that is signed with the public key as the secret of an HMAC."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = OLD.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    header = {"alg": "HS256", "typ": "JWT", "kid": "old"}
    signed = _raw(header).rpartition(".")[0]
    made = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(signed.encode(), public)
    return f"{signed}.{base64.urlsafe_b64encode(made).rstrip(b'=').decode()}"


FORGED = {
    "none": lambda: _raw({"alg": "none", "kid": "old"}),
    "None": lambda: _raw({"alg": "None", "kid": "old"}),
    "no algorithm": lambda: _raw({"kid": "old"}),
    "no key": lambda: _raw({"alg": "RS256"}, signature=b"x"),
    "another key": lambda: NEW.token(kid="old"),
    "another algorithm": lambda: OLD.token(algorithm="PS256"),
    "the public key as a secret": _by_public_key,
    "expired": lambda: OLD.token(exp=time.time() - 1),
    "not yet valid": lambda: OLD.token(nbf=time.time() + 60),
    "for ever": lambda: jwt.encode({"scope": EVERYTHING}, OLD.key, "RS256", headers={"kid": "old"}),
    "an endless time": lambda: OLD.token(exp=float("inf")),
    "no time": lambda: OLD.token(exp="soon"),
    "a header that is nested deeply": lambda: _raw(b"[" * 10_000),
    "claims that are nested deeply": lambda: _raw({"alg": "RS256", "kid": "old"}, b"[" * 10_000, b"x"),
    "a kid that is no text": lambda: _raw({"alg": "RS256", "kid": {"a": 1}}, signature=b"x"),
    "a header of its own key": lambda: _raw({"alg": "RS256", "kid": "old", "jwk": NEW.jwk}, signature=b"x"),
    "a critical extension": lambda: _raw({"alg": "RS256", "kid": "old", "crit": ["b64"], "b64": False}, signature=b"x"),
    "text that is not ASCII": lambda: "é.ü.ö",
    "dots": lambda: "...",
    "claims that are a list": lambda: _raw({"alg": "RS256", "kid": "old"}, [], b"x"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_token_is_refused(world: World, name: str) -> None:
    refused = world.ask(FORGED[name]())
    assert (refused.status, refused.json["type"]) == (401, "urn:streamkit:unauthenticated"), refused


@pytest.mark.parametrize(
    "jwk",
    [
        {"kty": "oct", "k": base64.urlsafe_b64encode(b"x" * 32).decode(), "kid": "old"},
        {"kty": "oct", "k": base64.urlsafe_b64encode(b"x" * 32).decode(), "kid": "old", "alg": "HS256"},
        {**OLD.jwk, "use": "enc"},
        {**OLD.jwk, "alg": "none"},
    ],
)
def test_a_key_that_is_for_something_else_verifies_nothing(
    serve: Callable[..., Served], provider: Provider, jwk: Any
) -> None:
    provider.keys = [jwk, NEW.jwk]
    world = World(serve, provider)
    claims = {"exp": time.time() + 60, "scope": EVERYTHING}
    assert world.ask(jwt.encode(claims, b"x" * 32, "HS256", headers={"kid": "old"})).status == 401
    assert world.ask(OLD.token()).status == 401
    assert world.ask(NEW.token()).status == 200


def test_a_key_without_an_algorithm_verifies_those_of_its_kind(
    serve: Callable[..., Served], provider: Provider
) -> None:
    provider.keys = [{name: value for name, value in OLD.jwk.items() if name not in ("alg", "use")}]
    world = World(serve, provider)
    assert world.ask(OLD.token()).status == 200
    assert world.ask(OLD.token(algorithm="PS256")).status == 200


def test_the_audience_and_the_issuer_are_checked(serve: Callable[..., Served], provider: Provider) -> None:
    provider.keys = [OLD.jwk]
    world = World(serve, provider, audience="streamkit", issuer="https://login.example")
    right = {"aud": ["other", "streamkit"], "iss": "https://login.example"}
    assert world.ask(OLD.token(**right)).status == 200
    for wrong in (
        {"aud": "other"}, {"aud": []}, {"aud": 7}, {"aud": None}, {"iss": "https://evil.example"},
        {"iss": "https://login.example/"}, {"iss": None},
    ):  # fmt: skip
        claims = {name: value for name, value in {**right, **wrong}.items() if value is not None}
        assert world.ask(OLD.token(**claims)).status == 401, wrong


def test_claims_give_rights(world: World) -> None:
    def status(method: str, path: str, body: Any = None, **claims: Any) -> int:
        return world.ask(OLD.token(**claims), method, path, body).status

    own, other = world.served.id, uuid4()
    for scope in (f"read streamkit::{own}", ["read", f"streamkit::{other}", f"streamkit::{own}"], "read streamkit::*"):
        assert status("GET", ENTRIES, scope=scope) == 200, scope
        assert status("POST", ENTRIES, {"text": "x"}, scope=scope) == 403, scope
    assert status("GET", ENTRIES, scope=f"read streamkit::{other}") == 403
    # Scopes of other programs, in the same token, give nothing and take nothing.
    assert status("GET", ENTRIES, scope=f"openid other::* read other::x streamkit::{own}") == 200
    assert status("GET", ENTRIES, scope="read other::*") == 401
    for prefixes, expected in ((["s"], 200), (["other", "s"], 200), (["other"], 403), ([""], 200), ([], 401)):
        assert status("GET", ENTRIES, streamkit_spaces=prefixes) == expected, prefixes
    for prefixes, expected in ((["a"], 200), (["b"], 403), ([], 401)):
        assert status("GET", ENTRIES, streamkit_segments=prefixes) == expected, prefixes
    for scope in ("read streamkit::", "read streamkit::x", "streamkit::*", "read", "", None, 7, {"read": 1}, [[]]):
        assert status("GET", ENTRIES, scope=scope) == 401, scope


def test_a_url_of_keys_is_http(provider: Provider) -> None:
    for wrong in ("file:///etc/passwd", "ftp://a/b", "data:,x", "x", "", "https://"):
        with pytest.raises(ValueError, match="https://"):
            Tokens(jwks=wrong)


def test_the_command_checks_issuer_and_audience(provider: Provider) -> None:
    provider.keys = [OLD.jwk]
    options = Options(url="memory://x", jwks=provider.url, audience="a", issuer="i", host="0.0.0.0")
    served = Served("memory://x", tokens=make_application(options).service.tokens)
    try:
        for claims, expected in (({"aud": "a", "iss": "i"}, 200), ({"aud": "a"}, 401), ({"iss": "i"}, 401)):
            headers = {"Authorization": f"Bearer {OLD.token(**claims)}"}
            assert served.ask("GET", "spaces", headers=headers).status == expected
    finally:
        served.close()
