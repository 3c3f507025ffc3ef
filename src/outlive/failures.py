"""What is recorded and told of an agent that raised.

Decides what everybody may read of it and what only whoever runs the service finds.  Does not decide whether
an attempt has failed.
"""

from __future__ import annotations

import traceback
from typing import Any

from outlive import encoding, errors
from outlive.model import Verdict
from outlive.states import State


def verdict(run_id: str, code: str, failure: BaseException) -> Verdict:
    """Build the verdict: the public part names the kind, never the text.

    An exception's text may hold a DSN, a path or a customer's data, so it goes to the private detail.
    """
    kind = type(failure).__name__
    public: dict[str, Any] = {
        "code": code,
        "type": kind,
        "message": f"The agent ended with {kind}.",
        "hint": f"Whoever runs the service finds the cause under the run {run_id}.",
    }
    if isinstance(failure, errors.StateUnreadable):
        public.update(code=failure.code, message=failure.message, hint=failure.hint)
    if isinstance(failure, errors.ThreadLeft):  # ours, and the same that a submit would have been told
        public.update(code=failure.code, message=failure.message, hint=failure.hint)
        public.update(run_id=failure.run_id, position=failure.position)
    error = encoding.encode(public).text
    return Verdict(state=State.FAILED, error=error, detail=_detail(failure), failure=kind)


def _detail(failure: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(failure))
    except Exception as broken:
        text = f"{type(failure).__name__}, whose text could not be read: {type(broken).__name__}"
    return text[-20_000:].encode("ascii", "backslashreplace").decode("ascii").replace("\0", "\\0")
