"""The application of the documentation, with pages of the tests', and for pages of other origins."""

from __future__ import annotations

import importlib
import pathlib

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles
from starlette.middleware.cors import CORSMiddleware

app: FastAPI = importlib.import_module("app").app
app.mount("/pages", StaticFiles(directory=pathlib.Path(__file__).with_name("pages")))
app.add_middleware(
    CORSMiddleware,
    allow_origins=["*"],
    allow_methods=["GET", "POST"],
    allow_headers=["Idempotency-Key", "Last-Event-ID"],
    expose_headers=["Outlive-Run", "Outlive-Admitted", "Retry-After", "Date"],
)
