"""Streaming agent runs that outlive the request on purpose, never by accident."""

__version__ = "0.1.0"
