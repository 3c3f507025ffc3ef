"""The checks of ``outlive.testing.check_store``, one module per kind of promise."""

from __future__ import annotations

from outlive.testing.store_checks import (
    apart,
    guards,
    keys,
    ledger,
    moving,
    order,
    replies,
    taking,
    telling,
    watching,
)
from outlive.testing.store_checks.bench import CHECKS, Check

__all__ = [
    "CHECKS",
    "Check",
    "apart",
    "guards",
    "keys",
    "ledger",
    "moving",
    "order",
    "replies",
    "taking",
    "telling",
    "watching",
]
