"""The documented import path of backends, no more: they are in `cooperbench.backends` and `cooperbench.sandbox`.

`get_backend` is looked up here by everything that needs a backend, so that replacing this attribute, as the
documentation shows, is enough to plug one in.
"""

from __future__ import annotations

from cooperbench.backends.registry import backend_names, get_backend, register

__all__ = ["backend_names", "get_backend", "register"]
