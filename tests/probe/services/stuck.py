"""An application whose import never ends. Started by the probe, never imported."""

from __future__ import annotations

import threading

threading.Event().wait()
