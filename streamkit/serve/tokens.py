"""JWT bearer tokens, as another way to say what a caller may do. PyJWT verifies them.

The claim `scope` (text with spaces, or a list) has the scopes, and the stores: `streamkit::*` for all of them,
`streamkit::{uuid}` for one. The claims `streamkit_spaces` and `streamkit_segments` are lists of prefixes.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ..errors import MissingDependency
from .access import SCOPES, Access

__all__ = ["Tokens"]

_SHARED = ["HS256", "HS384", "HS512"]
_PUBLIC = ["RS256", "RS384", "RS512", "ES256", "ES384", "EdDSA", "PS256"]
_LEAST = 32


class Tokens:
    """Verifies tokens by a shared secret, or by the keys of a JWKS URL. Exactly one of them is given."""

    def __init__(self, *, secret: bytes | None = None, jwks: str | None = None, audience: str | None = None) -> None:
        try:
            import jwt
        except ImportError as error:
            raise MissingDependency("JWT needs PyJWT: pip install 'streamkit-store[jwt]'", name=error.name) from error
        if (secret is None) == (jwks is None):
            raise ValueError("tokens are verified by a secret, or by a JWKS URL: give one of them")
        if secret is not None and len(secret) < _LEAST:
            raise ValueError(f"the secret of tokens has {_LEAST} bytes or more, not {len(secret)}")
        self._jwt = jwt
        self._secret = secret
        self._keys = None if jwks is None else jwt.PyJWKClient(jwks, cache_keys=True, lifespan=300, timeout=10)
        self._audience = audience

    @property
    def is_remote(self) -> bool:
        """Whether `access` may ask another server: then it is called in a thread."""
        return self._keys is not None

    def access(self, token: str) -> Access | None:
        """The rights of a token; None if it is not valid or names no stores."""
        options: Any = {"require": ["exp"], "verify_aud": self._audience is not None}
        try:
            if self._keys is None:
                key: Any = self._secret
                algorithms = _SHARED
            else:
                key, algorithms = self._keys.get_signing_key_from_jwt(token).key, _PUBLIC
            claims = self._jwt.decode(token, key, algorithms=algorithms, audience=self._audience, options=options)
        except (self._jwt.PyJWTError, ValueError, TypeError):
            return None
        return access_of(claims)


def access_of(claims: dict[str, Any]) -> Access | None:
    """The rights of verified claims; None if they name no stores or no scopes."""
    said = claims.get("scope", ())
    words = said.split() if isinstance(said, str) else said if isinstance(said, list) else ()
    scopes = frozenset(word for word in words if word in SCOPES)
    named = [word.removeprefix("streamkit::") for word in words if isinstance(word, str) and "::" in word]
    spaces, segments = claims.get("streamkit_spaces", []), claims.get("streamkit_segments", [])
    try:
        stores = frozenset() if "*" in named else frozenset(map(UUID, named))
    except ValueError:
        return None
    if not scopes or not named or not _is_texts(spaces) or not _is_texts(segments):
        return None
    return Access(
        id=f"jwt:{claims.get('sub', '')}"[:100],
        scopes=scopes,
        stores=stores,
        spaces=tuple(spaces),
        segments=tuple(segments),
    )


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
