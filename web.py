"""The one door to HTTP: sessions with time-outs, a name, and bounded retries for passing faults."""

from __future__ import annotations

from typing import Any

import requests
from requests.adapters import HTTPAdapter

TIMEOUT_S = (10.0, 60.0)
"""Seconds to connect, and between two bytes."""


class _Session(requests.Session):
    certificates: str | None = None

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        kwargs.setdefault("timeout", TIMEOUT_S)
        if self.certificates is not None:  # per request: else REQUESTS_CA_BUNDLE would win
            kwargs.setdefault("verify", self.certificates)
        return super().request(*args, **kwargs)


def session(*, pool: int = 10, local: bool = False, certificates: str | None = None) -> requests.Session:
    """A session whose every request has a time-out.

    Args:
        pool: connections kept per host.
        local: True for servers of our own on loopback: proxies and `.netrc` of the environment do
            not apply.
        certificates: file of trusted certificates instead of the default ones.
    """
    made = _Session()
    made.certificates = certificates
    made.headers["User-Agent"] = "haloforge"
    made.trust_env = not local
    adapter = HTTPAdapter(pool_connections=pool, pool_maxsize=pool)
    made.mount("http://", adapter)
    made.mount("https://", adapter)
    return made
