"""Starlette, FastAPI and sse-starlette: response bodies, background tasks, dependencies, disconnect polls.

A body that is an async generator is handed on in a wrapper whose awaitables delegate send and throw one to
one. That shows what is thrown in, and whether the clean-up gets to finish an await, and adds no suspension.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any

from . import tape  # noqa: TID252  (the directory runs under another name)

#: What is thrown into a stream when it is to end.
ENDINGS = {"CancelledError", "GeneratorExit"}


class Stream:
    """A response's async generator, delegating, with what happens to it noted."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator
        self._name = getattr(generator, "__qualname__", type(generator).__name__)
        self._items = tape.Often("item")
        self._thrown = False
        self._ended = False

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    def __anext__(self) -> Any:
        return _Step(self, self._generator.__anext__(), closes=False)

    def aclose(self) -> Any:
        tape.note("stream.aclose", stream=self._name)
        return _Step(self, self._generator.aclose(), closes=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)

    def threw(self, error: object) -> None:
        """Only what ends a stream from outside counts; a failed await inside is thrown in as well."""
        name = error.__name__ if isinstance(error, type) else type(error).__name__
        if name not in ENDINGS:
            return
        tape.note("stream.throw", stream=self._name, error=name, again=self._thrown)
        self._thrown = True

    def resumed(self) -> None:
        if self._thrown:
            tape.note("stream.cleaning", stream=self._name)

    def gave(self) -> None:
        self._items.note(stream=self._name)

    def left(self, error: BaseException) -> None:
        """An awaitable ended without an item: by exhaustion, by being closed, or with an error."""
        if self._generator.ag_frame is None and not self._ended:
            self._ended = True
            how = None if isinstance(error, StopAsyncIteration | StopIteration) else type(error).__name__
            tape.note("stream.end", stream=self._name, error=how)


class _Step:
    """One `__anext__` or `aclose`, delegated at the level at which an event loop drives it."""

    def __init__(self, stream: Stream, inner: Any, *, closes: bool) -> None:
        self._stream = stream
        self._inner = inner
        self._closes = closes

    def __await__(self) -> Generator[Any, Any, Any]:
        return self

    def __iter__(self) -> _Step:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        self._stream.resumed()
        return self._drive(self._inner.send, value)

    def throw(self, *error: Any) -> Any:
        self._stream.threw(error[0])
        return self._drive(self._inner.throw, *error)

    def close(self) -> None:
        self._inner.close()

    def _drive(self, step: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return step(*arguments)
        except StopIteration as exc:
            if self._closes:
                self._stream.left(exc)
            else:
                self._stream.gave()
            raise
        except BaseException as exc:
            self._stream.left(exc)
            raise


def patch_responses(module: types.ModuleType) -> None:
    """Wrap the body of every streaming response of this module at the end of its construction."""
    for name in ("StreamingResponse", "EventSourceResponse"):
        response = module.__dict__.get(name)
        if response is not None and response.__module__ == module.__name__ and "__init__" in vars(response):
            response.__init__ = _constructor(response.__init__)


def _constructor(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if inspect.isasyncgen(self.body_iterator):
            self.body_iterator = Stream(self.body_iterator)

    return noted


def patch_background(module: types.ModuleType) -> None:
    """Note when a response's background task starts and how it ends."""
    task = module.__dict__["BackgroundTask"]
    task.__call__ = _spanned(
        task.__call__, "background", lambda self: getattr(self.func, "__qualname__", "?")
    )


def patch_requests(module: types.ModuleType) -> None:
    """Note what each `is_disconnected()` answered."""
    request = module.__dict__["Request"]
    original = request.is_disconnected

    @functools.wraps(original)
    async def noted(self: Any) -> bool:
        answer = bool(await original(self))
        tape.note("poll", answer=answer)
        return answer

    request.is_disconnected = noted


def patch_dependencies(module: types.ModuleType) -> None:
    """Note how each dependency with `yield` is left: cleanly, or by an exception."""
    for name in ("asynccontextmanager", "contextmanager"):
        if name in module.__dict__:
            module.__dict__[name] = _managers(module.__dict__[name])


def _managers(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        name = getattr(function, "__qualname__", "?")
        return lambda *args, **kwargs: _Dependency(make(function)(*args, **kwargs), name)

    return noted


class _Dependency:
    """A dependency's context manager, delegating, with its exit noted."""

    def __init__(self, inner: Any, name: str) -> None:
        self._inner = inner
        self._name = name

    def __enter__(self) -> Any:
        return self._inner.__enter__()

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> Any:
        self._note(kind)
        return self._inner.__exit__(kind, *rest)

    async def __aenter__(self) -> Any:
        return await self._inner.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, *rest: Any) -> Any:
        self._note(kind)
        return await self._inner.__aexit__(kind, *rest)

    def _note(self, kind: type[BaseException] | None) -> None:
        tape.note("dependency.exit", dependency=self._name, error=kind.__name__ if kind else None)


def _spanned(original: Callable[..., Awaitable[None]], kind: str, name: Callable[[Any], str]) -> Any:
    @functools.wraps(original)
    async def noted(self: Any) -> None:
        tape.note(f"{kind}.start", name=name(self))
        error: str | None = None
        try:
            await original(self)
        except BaseException as exc:
            error = type(exc).__name__
            raise
        finally:
            tape.note(f"{kind}.end", name=name(self), error=error)

    return noted
