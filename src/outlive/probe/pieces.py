"""What a *chunk* of an answer is: an SSE event with data, a line of JSON, else a piece of the body.

Decides how bytes become chunks, in bounded memory and time whatever a service sends.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator

#: What comes without a separator for so long is cut into pieces of this size. Characters.
LONGEST = 1 << 20


def split(pieces: Iterator[bytes], content_type: str) -> Iterator[str]:
    """The chunks of an answer of this type, as they arrive. Bytes that are no UTF-8 become U+FFFD."""
    if content_type.startswith("text/event-stream"):
        yield from _events(pieces)
    elif "json" in content_type and "jsonl" not in content_type and "ndjson" not in content_type:
        yield from _whole(pieces)
    elif "jsonl" in content_type or "ndjson" in content_type:
        yield from (line for line in _separated(pieces, "\n") if line.strip())
    else:
        yield from _texts(pieces)


def _whole(pieces: Iterator[bytes]) -> Iterator[str]:
    """One chunk for all of it, of which the beginning is kept."""
    text = ""
    for piece in _texts(pieces):
        text = (text + piece)[:LONGEST] if len(text) < LONGEST else text
    yield text


def _events(pieces: Iterator[bytes]) -> Iterator[str]:
    for event in _separated(pieces, "\n\n"):
        if any(line.startswith("data") for line in event.splitlines()):
            yield event


def _separated(pieces: Iterator[bytes], mark: str) -> Iterator[str]:
    text = ""
    for piece in _lines_ended(_texts(pieces)):
        # Only the end of what is here can be the beginning of a mark: long events are not searched again.
        begin = max(len(text) - len(mark) + 1, 0)
        text += piece
        if mark in text[begin:]:
            *complete, text = text.split(mark)
            yield from complete
        elif len(text) > LONGEST:
            yield text
            text = ""
    if mark == "\n" and text:  # a last line may lack its end; an event without one is none
        yield text


def _lines_ended(texts: Iterator[str]) -> Iterator[str]:
    """With LF at every line's end, where CR and CRLF are allowed as well."""
    after_return = False
    for piece in texts:
        text = piece[1:] if after_return and piece.startswith("\n") else piece
        after_return = piece.endswith("\r") if piece else after_return
        yield text.replace("\r\n", "\n").replace("\r", "\n")


def _texts(pieces: Iterator[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    yield from (decoder.decode(piece) for piece in pieces)
