"""JWT bearer tokens: another way to carry a caller's permissions. PyJWT verifies them.

The claim `scope` (text with spaces, or a list) has the scopes, and the stores: `streamkit::*` for all of them,
`streamkit::{uuid}` for one. The claims `streamkit_spaces` and `streamkit_segments` are lists of prefixes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import MissingDependency
from .access import SCOPES, Access

if TYPE_CHECKING:
    from .jwks import KeySet

__all__ = ["TOKEN", "Tokens"]

TOKEN = "jwt:"
"""The id of a caller with a token begins so."""

_SHARED = ("HS256", "HS384", "HS512")
_LEAST = 32
_STORE = "streamkit::"


class Tokens:
    """A verifier of tokens, by a shared secret or by the keys at a JWKS URL. Give exactly one of them.

    `audience`, `issuer`: the required claims `aud` and `iss`; None: any. `clock`: the clock for the age of the URL's
    keys.
    """

    def __init__(
        self,
        *,
        secret: bytes | None = None,
        jwks: str | None = None,
        audience: str | None = None,
        issuer: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        try:
            import jwt
        except ImportError as error:
            raise MissingDependency("JWT needs PyJWT: pip install 'streamkit-store[jwt]'", name=error.name) from error
        if (secret is None) == (jwks is None):
            raise ValueError("tokens are verified by a secret, or by a JWKS URL: give one of them")
        if secret is not None and len(secret) < _LEAST:
            raise ValueError(f"the secret of tokens has {_LEAST} bytes or more, not {len(secret)}")
        self._jwt = jwt
        # A token of the wrong form raises more than the errors of PyJWT.
        self._refused: tuple[type[Exception], ...] = (
            jwt.PyJWTError,
            ValueError,
            TypeError,
            OverflowError,
            RecursionError,
        )
        self._secret = secret
        self._keys: KeySet | None = None
        if jwks is not None:
            from .jwks import KeySet

            self._keys = KeySet(jwks, clock)
        self._audience = audience
        self._issuer = issuer

    async def access(self, token: str) -> Access | None:
        """The rights of a token; None if it is not valid or names no stores. A Problem if its key cannot be had."""
        key: Any = self._secret
        algorithms: tuple[str, ...] = _SHARED
        if self._keys is not None:
            kid = self._kid(token)
            found = None if kid is _INVALID else await self._keys.find(kid)
            if found is None:
                return None
            key, algorithms = found.key, found.algorithms
        options: Any = {
            "require": ["exp"],
            "verify_aud": self._audience is not None,
            "verify_iss": self._issuer is not None,
        }
        try:
            claims = self._jwt.decode(
                token, key, algorithms=algorithms, audience=self._audience, issuer=self._issuer, options=options
            )
        except self._refused:
            return None
        return access_of(claims)

    def _kid(self, token: str) -> Any:
        """The id of the key that a token names, None if it names none; _INVALID if it is no token."""
        try:
            return self._jwt.get_unverified_header(token).get("kid")
        except self._refused:
            return _INVALID


_INVALID = object()


def access_of(claims: dict[str, Any]) -> Access | None:
    """The rights of verified claims; None if they name no stores or no scopes."""
    said = claims.get("scope", ())
    words = said.split() if isinstance(said, str) else said if isinstance(said, list) else ()
    if not _is_texts(list(words)):
        return None
    scopes = frozenset(word for word in words if word in SCOPES)
    named = [word.removeprefix(_STORE) for word in words if word.startswith(_STORE)]
    spaces, segments = claims.get("streamkit_spaces"), claims.get("streamkit_segments")
    try:
        stores = frozenset() if "*" in named else frozenset(map(UUID, named))
    except ValueError:
        return None
    if not scopes or not named or not _is_bound(spaces) or not _is_bound(segments):
        return None
    return Access(
        id=f"{TOKEN}{claims.get('sub', '')}"[:100],
        scopes=scopes,
        stores=stores,
        spaces=tuple(spaces or ()),
        segments=tuple(segments or ()),
        expires=float(claims["exp"]),
    )


def _is_bound(value: Any) -> bool:
    """True if the value is absent or a list of prefixes. An empty list is a mistake: it must not mean everything."""
    return value is None or (_is_texts(value) and value != [])


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
