"""JSON Web Tokens as a dependency: who issued them, whom they are for and how they are signed is pinned.

Decides what a token must say.  What it is and whether its signature holds is PyJWT's.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
from fastapi import Request

from outlive import errors
from outlive.http import auth
from outlive.principal import EVERYTHING, Principal, Scope

LEEWAY = 5.0
"""Seconds by which clocks may differ."""
READ_AGAIN = 5.0
"""Seconds between two looks at the file of keys."""
SHORTEST_SECRET = 32
SCOPE_MARK = "outlive:"
_BROKEN = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)
"""What reading a stranger's token may raise: whatever it is, the token does not hold."""
_KNOWN_KINDS = ("HS", "RS", "ES", "PS", "Ed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What a token must say to be taken.  ``tenant_claim`` names the claim with the tenant's name."""

    algorithms: tuple[str, ...]
    issuer: str
    audience: str
    tenant_claim: str = "tenant"


def tokens(
    *,
    algorithms: Sequence[str],
    issuer: str,
    audience: str,
    key: str | None = None,
    key_set: Path | None = None,
    tenant_claim: str = "tenant",
) -> auth.Dependency:
    """Return a dependency that takes ``Authorization: Bearer`` with a JSON Web Token.

    ``key`` is a shared secret or a public key in PEM; ``key_set`` is a file with a JSON Web Key Set instead,
    read again within ``READ_AGAIN`` seconds of a change.  A token must have ``exp``, ``iss``, ``aud``,
    ``sub`` and the tenant's claim.  Its ``scope``, if it has one, grants what it names: ``outlive:read``,
    ``outlive:write``; one without it may do everything.  An open stream ends with its token.

    Raises ``Misconfigured``.
    """
    rules = Rules(algorithms=tuple(algorithms), issuer=issuer, audience=audience, tenant_claim=tenant_claim)
    _check(rules, key, key_set)
    found = _OneKey(key) if key is not None else _KeySet(Path(str(key_set)))

    async def authenticate(request: Request) -> Principal:
        text = auth.bearer(request)
        claims = _claims(text, await found.of(text), rules)

        async def still_valid() -> bool:
            try:
                _claims(text, await found.of(text), rules)
            except errors.Unauthenticated:
                return False
            return True

        return Principal(
            tenant=claims[rules.tenant_claim],
            id=claims["sub"],
            scopes=_scopes(claims),
            expires_at=float(claims["exp"]) + LEEWAY,
            still_valid=still_valid,
        )

    return authenticate


def _check(rules: Rules, key: str | None, key_set: Path | None) -> None:
    if (key is None) == (key_set is None):
        raise errors.Misconfigured("Tokens are verified with a key or a key set.", hint="Give one of them.")
    if not (rules.algorithms and rules.issuer and rules.audience):
        raise errors.Misconfigured(
            "Tokens need pinned algorithms, an issuer and an audience.",
            hint="Set jwt_algorithms, jwt_issuer and jwt_audience.",
        )
    for name in rules.algorithms:
        if not name.startswith(_KNOWN_KINDS) or name not in jwt.algorithms.get_default_algorithms():
            raise errors.Misconfigured(f"{name!r} is no algorithm that a token may be signed with.")
    shared = [name for name in rules.algorithms if name.startswith("HS")]
    if shared and len(shared) < len(rules.algorithms):
        # Else somebody signs with the public key, which everybody has, as if it were the shared secret.
        raise errors.Misconfigured("Algorithms with a shared secret and with a public key cannot be mixed.")
    if shared and key is not None and ("-----BEGIN" in key or len(key.encode()) < SHORTEST_SECRET):
        raise errors.Misconfigured(
            f"The shared secret is a public key, or shorter than {SHORTEST_SECRET} bytes."
        )


class _OneKey:
    def __init__(self, key: str) -> None:
        self._key = key

    async def of(self, text: str) -> Any:
        """Return the key, whatever the token says."""
        del text
        return self._key


class _KeySet:
    """The keys of a file, which whoever issues the tokens may change at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = time.monotonic()
        try:
            self._keys = _load(path)
        except (OSError, ValueError, jwt.PyJWTError) as failure:
            raise errors.Misconfigured(
                f"The key set {path} cannot be used: {type(failure).__name__}.",
                hint="Name a file with a JSON Web Key Set.",
            ) from failure

    async def of(self, text: str) -> Any:
        """Return the key that the token names; raises ``Unauthenticated``."""
        await self._look_again()
        try:
            named = jwt.get_unverified_header(text).get("kid")
        except _BROKEN:
            raise errors.Unauthenticated("This is no token.") from None
        if named is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        if named not in self._keys:
            raise errors.Unauthenticated("The token was signed with a key that is not known here.")
        return self._keys[named]

    async def _look_again(self) -> None:
        now = time.monotonic()
        if now - self._read < READ_AGAIN:
            return
        self._read = now
        try:
            self._keys = await asyncio.to_thread(_load, self._path)
        except (OSError, ValueError, jwt.PyJWTError):
            return  # it is being replaced: what was known holds until the next look


def _load(path: Path) -> Mapping[str | None, jwt.PyJWK]:
    found = jwt.PyJWKSet.from_dict(json.loads(path.read_text("utf-8")))
    return {key.key_id: key for key in found.keys}


def _claims(text: str, key: Any, rules: Rules) -> dict[str, Any]:
    needed = ["exp", "iss", "aud", "sub", rules.tenant_claim]
    try:
        claims: dict[str, Any] = jwt.decode(
            text,
            key,
            algorithms=list(rules.algorithms),
            audience=rules.audience,
            issuer=rules.issuer,
            leeway=LEEWAY,
            options={"require": needed},
        )
    except _BROKEN as failure:
        raise errors.Unauthenticated(_why(failure)) from None
    for name in ("sub", rules.tenant_claim):
        if not isinstance(claims[name], str) or not claims[name]:
            raise errors.Unauthenticated(f"The token's claim {name} is no name.")
    return claims


def _why(failure: Exception) -> str:
    match failure:
        case jwt.ExpiredSignatureError():
            return "The token has expired."
        case jwt.MissingRequiredClaimError():
            return f"The token lacks the claim {failure.claim}."
        case jwt.InvalidAudienceError():
            return "The token is for somebody else."
        case jwt.InvalidIssuerError():
            return "The token was issued by somebody else."
        case jwt.InvalidAlgorithmError():
            return "The token is signed in a way that is not taken here."
    return "The token does not hold."


def _scopes(claims: Mapping[str, Any]) -> frozenset[Scope]:
    if "scope" not in claims:
        return EVERYTHING
    named = claims["scope"].split() if isinstance(claims["scope"], str) else []
    return frozenset(scope for scope in Scope if f"{SCOPE_MARK}{scope}" in named)
