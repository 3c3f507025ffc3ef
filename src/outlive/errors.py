"""The one tree of errors.

::

    OutliveError
    ├── Refused                  the caller asked for something that cannot be had
    │   ├── Unauthenticated      no credentials, or none that hold: 401
    │   ├── Forbidden            they hold, and do not reach that far: 403
    │   ├── NoTenant             the application let a request in without saying whose it is: 403
    │   ├── NotFound             no such run, thread or agent (or not yours): 404
    │   ├── Deleted              the thread was deleted while somebody followed it: 410
    │   ├── Pruned               the events after the cursor are not kept any more: 410
    │   ├── KeyConflict          same idempotency key, other body: 409
    │   ├── Conflict             there is one of that id already: 409
    │   ├── EffectConflict       same effect and key, other inputs: 409
    │   ├── AlreadySettled       what became of the effect is known: 409
    │   ├── NotApproved          the effect may not start, or not any more: 403
    │   ├── ThreadBusy           the thread has a live run and the policy is reject: 409
    │   ├── ThreadLeft           an earlier run left the thread part-way: 409
    │   │   ├── ThreadTorn       and the policy is to reject what would repeat it
    │   │   ├── FinishingFailed  and finishing it first failed: the message was not taken
    │   │   └── ThreadWaiting    and it waits for an answer, which this message is not
    │   ├── StateUnreadable      a checkpoint holds what this version of the application does not know: 409
    │   ├── ThreadUnsettled      what the thread's effects came to is open: 409
    │   ├── NothingToAnswer      the thread waits for no answer, or not any more: 409
    │   ├── BadRequest           it is put together wrongly: 400
    │   ├── InvalidInput         wrong type, unknown value, malformed JSON: 422
    │   │   ├── InvalidPolicy
    │   │   └── InvalidCursor    a cursor that is not of this run or beyond its end: 400
    │   ├── TooLarge             the body exceeds the limit: 413
    │   └── LimitReached         a principal or an agent has as much as it may: 429
    ├── Unavailable              try again: 503
    │   ├── StoreUnavailable     the database did not answer within the budget
    │   └── NotReady             starting, draining, or the database was down at start
    ├── Fenced                   this executor no longer holds the run; nothing was written
    ├── Stopping                 the run was asked to stop: it starts nothing more
    ├── EffectBusy               another run has yet to decide what becomes of the effect
    ├── EffectFailed             the effect was definitely not executed
    ├── EffectUnknown            it may have been executed, and nobody can tell
    └── Misconfigured            start-up refuses; the message names the command or setting that helps
        ├── SchemaMismatch
        └── UnsafeFileSystem

Each carries a stable ``code``, the HTTP ``status`` that fits it, and a ``hint``: what to do now.
Messages name the run and carry nothing internal: no path, no DSN, no SQL.
"""

from __future__ import annotations

from typing import ClassVar


class OutliveError(Exception):
    """Something went wrong in Outlive."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    default_hint: ClassVar[str] = "Look at the server's log for the run named here."

    def __init__(
        self,
        message: str | None = None,
        *,
        hint: str | None = None,
        run_id: str | None = None,
        effect_id: str | None = None,
        field: str | None = None,
    ) -> None:
        self.message = message or (type(self).__doc__ or "").splitlines()[0]
        self.hint = hint or self.default_hint
        self.run_id = run_id
        self.effect_id = effect_id
        self.field = field
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class Refused(OutliveError):
    """The request cannot be served as it stands."""

    code = "refused"
    status = 400


class Unauthenticated(Refused):
    """There are no credentials here that hold."""

    code = "unauthenticated"
    status = 401
    default_hint = "Send an Authorization header with a key or token that is neither expired nor revoked."


class Forbidden(Refused):
    """These credentials do not allow that."""

    code = "forbidden"
    status = 403
    default_hint = "Use credentials with the scope that the message names."


class NoTenant(Refused):
    """The application did not say whose request this is."""

    code = "no_tenant"
    status = 403
    default_hint = "The router's tenant dependency must return the tenant's name, or raise."


class NotFound(Refused):
    """There is no such thing here, or it is not yours."""

    code = "not_found"
    status = 404
    default_hint = "Check the id, the database and the tenant: a run is visible to its own tenant only."


class Deleted(Refused):
    """The thread was deleted, and its runs with it."""

    code = "deleted"
    status = 410
    default_hint = "Nothing follows: forget its id.  What its effects did is still in the ledger."


class Pruned(Refused):
    """The events after this cursor are not kept any more.

    ``oldest`` and ``latest`` are those that are; ``snapshot`` is where what they came to is found.
    """

    code = "pruned"
    status = 410
    default_hint = "Take up the snapshot, and go on from right before the oldest event."

    def __init__(self, *, oldest: int, latest: int | None, snapshot: str, run_id: str | None = None) -> None:
        super().__init__(run_id=run_id)
        self.oldest = oldest
        self.latest = latest
        self.snapshot = snapshot


class KeyConflict(Refused):
    """This idempotency key was used before with another body."""

    code = "key_conflict"
    status = 409
    default_hint = "Repeat the first body, or use a new key for a new intent."


class Conflict(Refused):
    """There is one of that id already."""

    code = "conflict"
    status = 409
    default_hint = "Use the one that is there, or another id."


class EffectConflict(Refused):
    """This effect was wished for before with the same key and other inputs."""

    code = "effect_conflict"
    status = 409
    default_hint = "Use the first inputs, or a key of its own for what is another effect."


class AlreadySettled(Refused):
    """What became of this effect is known already."""

    code = "already_settled"
    status = 409
    default_hint = "Read the record of the effect: what became of it stands there."


class NotApproved(Refused):
    """This effect may not start: nobody allowed it, or the permission is used or over."""

    code = "not_approved"
    status = 403
    default_hint = "Somebody must approve it first, by the name and the key of the effect."


class ThreadBusy(Refused):
    """The thread has a live run and its policy is to reject a second message."""

    code = "thread_busy"
    status = 409
    default_hint = "Wait for the run named here, stop it, or declare on_busy=enqueue."


class ThreadLeft(Refused):
    """An earlier run left the thread part-way.  ``position`` says how, ``run_id`` which run it was."""

    code = "thread_left"
    status = 409
    position: ClassVar[str] = "unknown"


class ThreadTorn(ThreadLeft):
    """The thread's last run was cut part-way and the policy is to reject a message then."""

    code = "thread_torn"
    position = "torn"
    default_hint = "Send the cut message again with its own key, or declare another on_torn for this one."


class FinishingFailed(ThreadLeft):
    """What an earlier run left part-way failed when it was finished first; this message was not taken."""

    code = "finishing_failed"
    position = "torn"
    default_hint = "Send the message with on_torn=restart or rollback, or again once what fails is mended."


class ThreadWaiting(ThreadLeft):
    """The thread waits for an answer, and this message is none."""

    code = "thread_waiting"
    position = "waiting"
    default_hint = "Answer the run named here, or send the message with on_torn=restart or rollback."


class StateUnreadable(Refused):
    """The thread's state holds an object of a class that this version of the application does not have."""

    code = "state_unreadable"
    status = 409
    default_hint = "Nothing was changed: deploy the class under its old name, then send the same again."


class ThreadUnsettled(Refused):
    """What became of an effect of this thread is open, and nobody may be left to find out."""

    code = "thread_unsettled"
    status = 409
    default_hint = "Settle what is named here, or delete the thread by force: the ledger keeps its effects."


class NothingToAnswer(Refused):
    """The thread waits for no answer, or not any more."""

    code = "nothing_to_answer"
    status = 409
    default_hint = "Read the thread: the question was answered, or its run has not come to it."


class BadRequest(Refused):
    """The request is put together wrongly."""

    code = "bad_request"
    status = 400
    default_hint = "See the description of the protocol."


class InvalidInput(Refused):
    """A field has a value that cannot be used."""

    code = "invalid_input"
    status = 422
    default_hint = "Correct the field and send the request again; nothing was stored."


class InvalidPolicy(InvalidInput):
    """A policy field has a value that cannot be used."""

    code = "invalid_policy"
    default_hint = "Correct the policy; see outlive.policy.RunPolicy for its fields."


class InvalidCursor(InvalidInput):
    """The cursor does not point into this run's events."""

    code = "invalid_cursor"
    status = 400
    default_hint = "Use an id that this run's stream gave, or leave the cursor out to read from the start."


class TooLarge(Refused):
    """The body exceeds the limit."""

    code = "too_large"
    status = 413
    default_hint = "Send a smaller body, or a reference to where the data lies."


class LimitReached(Refused):
    """There is as much under way as there may be.  ``retry_after``: seconds after which to ask again."""

    code = "limit_reached"
    status = 429
    default_hint = "Send the same request again after Retry-After seconds; nothing was made."

    def __init__(self, message: str | None = None, *, retry_after: int = 5) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class Unavailable(OutliveError):
    """The service cannot take this now."""

    code = "unavailable"
    status = 503
    default_hint = "Send the same request again with the same idempotency key."


class StoreUnavailable(Unavailable):
    """The database did not answer within the budget."""

    code = "store_unavailable"


class NotReady(Unavailable):
    """The service is starting or shutting down."""

    code = "not_ready"


class Fenced(OutliveError):
    """This executor no longer holds the run; nothing was written."""

    code = "fenced"
    status = 409
    default_hint = "Another attempt owns the run, or it has ended; read its record."


class Stopping(OutliveError):
    """The run was asked to stop; it starts no further effect."""

    code = "stopping"
    status = 409
    default_hint = "Nothing is to be done: the run ends as stopped."


class EffectBusy(OutliveError):
    """Another run has this effect executed, and it has yet to be seen whether it stays."""

    code = "effect_busy"
    status = 409
    default_hint = "Try again once that run has ended and what it has to undo is undone."


class EffectFailed(OutliveError):
    """The effect was definitely not executed."""

    code = "effect_failed"
    status = 502
    default_hint = "Pass again_after_failure=True to try it as a new one, once what was wrong is mended."


class EffectUnknown(OutliveError):
    """The effect may have been executed, and neither its provider nor a look-up can tell."""

    code = "effect_unknown"
    status = 409
    default_hint = "Ask the provider, then settle the effect by saying what happened."


class Misconfigured(OutliveError):
    """The service cannot start as configured."""

    code = "misconfigured"
    default_hint = "Correct the setting that the message names."


class SchemaMismatch(Misconfigured):
    """The database's schema is not the one this version needs."""

    code = "schema_mismatch"
    default_hint = "Run: outlive migrate --database URL"


class UnsafeFileSystem(Misconfigured):
    """SQLite's locks cannot be trusted on this file system."""

    code = "unsafe_file_system"
    default_hint = "Put the file on a local disk, or use PostgreSQL."
