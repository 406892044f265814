"""The documented import path of backends. The code is in `cooperbench.backends`.

Everything that needs a backend looks up `get_backend` here. So replacing this attribute, as the
documentation shows, is enough to plug in another backend.
"""

from __future__ import annotations

from cooperbench.backends.registry import backend_names, get_backend, register

__all__ = ["backend_names", "get_backend", "register"]
