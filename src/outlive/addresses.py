"""Which addresses this service may be sent to by somebody else's words.

Decides what a receiver's URL may look like and which network addresses may be connected to: public ones, and
the networks that the operator names.  Does not resolve names: whoever connects asks about the very address
that the connection is made to, so that a name that resolves to another one a moment later gains nothing.
"""

from __future__ import annotations

import ipaddress
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass

from outlive import errors

LONGEST_URL = 2048
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Where a URL leads: an origin, and its parts."""

    url: str
    scheme: str
    host: str
    port: int

    @property
    def origin(self) -> str:
        """Scheme, host and port, each spelled out."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Read networks such as ``10.0.0.0/8``; raises ``Misconfigured``."""
    found: list[Network] = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError as wrong:
            raise errors.Misconfigured(f"{text!r} is no network: {wrong}.", hint="Like 10.0.0.0/8.") from None
    return tuple(found)


def allowed(text: str, ours: tuple[Network, ...]) -> bool:
    """Say whether ``text``, an address, may be connected to: it is public, or in a network of ours.

    An address that carries another one (mapped, NAT64, 6to4, Teredo) is judged by that one as well.
    """
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return all(_allowed(each, ours) for each in (address, *_carried(address)))


def own(text: str, ours: tuple[Network, ...]) -> bool:
    """Say whether ``text``, an address, lies in a network that the operator named."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return any(address in network for network in ours)


def _allowed(address: Address, ours: tuple[Network, ...]) -> bool:
    if any(address in network for network in ours):
        return True
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return True  # it is no address of its own: what it carries decides
    return address.is_global and not address.is_multicast


def _carried(address: Address) -> tuple[Address, ...]:
    if isinstance(address, ipaddress.IPv4Address):
        return ()
    nat64 = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None
    teredo = address.teredo[1] if address.teredo else None
    return tuple(each for each in (address.ipv4_mapped, address.sixtofour, teredo, nat64) if each is not None)


def read_url(url: object, ours: tuple[Network, ...], field: str) -> Target:
    """Take a receiver's URL apart; raises ``InvalidInput`` for one that could never be sent to.

    ``http`` is for networks of the operator's own only: what travels through others is to be encrypted.
    """
    try:
        if not isinstance(url, str) or not _printable(url):
            raise ValueError(f"it is not up to {LONGEST_URL} printable ASCII characters")
        target = _parsed(url)
    except ValueError as wrong:
        raise errors.InvalidInput(f"{field} is no URL to send to: {wrong}.", field=field) from None
    if target.scheme == "http" and not ours:
        raise errors.InvalidInput(f"{field} must begin with https.", field=field)
    if _is_address(target.host) and not allowed(target.host, ours):
        raise errors.InvalidInput(f"{field} names an address that nothing is sent to.", field=field)
    return target


def _printable(url: str) -> bool:
    return len(url) <= LONGEST_URL and all(" " < ch < "\x7f" for ch in url)


def _parsed(url: str) -> Target:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("https", "http"):
        raise ValueError("it is neither https nor http")
    if parts.username is not None or parts.password is not None:
        raise ValueError("it holds a user or a password")
    if parts.fragment:
        raise ValueError("it has a fragment")
    if not parts.hostname:
        raise ValueError("it names no host")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    same = parts.scheme + url[len(parts.scheme) :]  # but for capitals, which not every client of HTTP knows
    return Target(url=same, scheme=parts.scheme, host=parts.hostname, port=port)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
