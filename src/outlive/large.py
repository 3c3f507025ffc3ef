"""Events that are too large to travel with the others: a reference stands for them, and the body is fetched.

Decides the sizes, and how a reference looks.  What an agent yields can never look like one: the encoding
writes a mapping with the key ``$outlive`` as pairs.
"""

from __future__ import annotations

import hashlib
import json

from outlive.encoding import TAG

INLINE_BYTES = 120 * 1024
"""Above this an event's body is stored by itself.  Common clients give up on a line of 128 KiB."""
MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Above this a placeholder is recorded, unless somebody sets another bound."""
_PREFIX = f'{{"{TAG}":"stored",'


def digest(body: str) -> str:
    """Return the name under which a body is stored: the same body has the same one."""
    return hashlib.sha256(body.encode("ascii")).hexdigest()


def reference(body: str) -> str:
    """Return the payload that stands for ``body``."""
    return f'{_PREFIX}"bytes":{len(body)},"sha256":"{digest(body)}"}}'


def digest_in(payload: str) -> str | None:
    """Return the digest in a payload that is a reference; None: it is none."""
    if not payload.startswith(_PREFIX):
        return None
    found: str = json.loads(payload)["sha256"]
    return found


def located(payload: str, run_id: str, seq: int) -> str:
    """Return a payload as clients get it: a reference says where the event is, below the router's root."""
    if not payload.startswith(_PREFIX):
        return payload
    return f'{_PREFIX}"ref":"/runs/{run_id}/events/{seq}",{payload[len(_PREFIX) :]}'


def placeholder(value: object, size: int, most: int) -> str:
    """Return the payload of an event that is larger than may be recorded."""
    kind = type(value)
    named = {TAG: "placeholder", "type": f"{kind.__module__}.{kind.__qualname__}"}
    return json.dumps(named | {"why": f"{size} bytes, of at most {most}"}, separators=(",", ":"))
