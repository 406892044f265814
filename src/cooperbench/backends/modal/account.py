"""The user's account at Modal: the client, the app that our sandboxes belong to, and a check that both work."""

from __future__ import annotations

import random
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from cooperbench.backends.modal.faults import NO_TOKEN, NOT_INSTALLED, RateLimited, Unavailable, faults
from cooperbench.backends.modal.loop import the_loop
from cooperbench.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    import modal

    from cooperbench.errors import InfraError

T = TypeVar("T")

CALL_SECONDS = 120.0
"""For what Modal answers at once, with its client's own retries."""
PATIENCE_SECONDS = 20.0
"""How long a request is made again that Modal did not want, or could not carry out."""
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 5.0
_IMPATIENT_SECONDS = 60.0


def require_client() -> None:
    """UserError where the client or a token is missing. Nothing is connected to."""
    if find_spec("modal") is None:
        raise UserError(NOT_INSTALLED)
    with faults("reading Modal's configuration"):
        from modal.config import config

        tokens = ("token_id", "token_secret"), ("oauth_refresh_token", "oauth_client_id")
        if not any(all(config.get(name) for name in names) for names in tokens):
            raise UserError(NO_TOKEN)


class Account:
    """Connected. Of one process."""

    def __init__(self, app_name: str) -> None:
        require_client()
        self.loop = the_loop()
        self.app_name = app_name
        from modal.config import config

        self._environment = str(config.get("environment") or "")
        self._impatient_until = 0.0
        self.client, self.app = self.insist("connecting to Modal", self._connect)

    def call(self, doing: str, work: Coroutine[Any, Any, T], limit_seconds: float = CALL_SECONDS) -> T:
        """Everything that is asked of Modal goes through here: with a time limit, and with errors of ours."""
        with faults(doing, self._environment):
            return self.loop.call(work, limit_seconds)

    def insist(
        self,
        doing: str,
        make_work: Callable[[], Coroutine[Any, Any, T]],
        limit_seconds: float = CALL_SECONDS,
        *,
        passing: tuple[type[InfraError], ...] = (RateLimited, Unavailable),
    ) -> T:
        """`call` for what does no harm when it is asked for twice: again while the trouble may pass.

        Where it did not pass, nothing else is waited for either for a while: with Modal out of reach, ending a hundred
        sandboxes must not take a hundred times as long.
        """
        deadline, pause_seconds = time.monotonic() + PATIENCE_SECONDS, _FIRST_PAUSE_SECONDS
        while True:
            try:
                return self.call(doing, make_work(), limit_seconds)
            except passing:
                now = time.monotonic()
                if now < self._impatient_until:
                    raise
                if now + pause_seconds >= deadline:
                    self._impatient_until = now + _IMPATIENT_SECONDS
                    raise
            time.sleep(pause_seconds * random.uniform(0.5, 1.0))  # noqa: S311  # jitter
            pause_seconds = min(pause_seconds * 2, _LONGEST_PAUSE_SECONDS)

    async def _connect(self) -> tuple[modal.Client, modal.App]:
        import modal

        client = await modal.Client.from_env.aio()
        app = await modal.App.lookup.aio(self.app_name, client=client, create_if_missing=True)
        return client, app


def check(app_name: str = "cooperbench") -> str:
    """For `cooperbench doctor`: ask Modal; what there is in a few words, or the UserError or InfraError of it."""
    from importlib.metadata import version

    account = Account(app_name)
    where = f", environment {account._environment}" if account._environment else ""
    return f"client {version('modal')}, the token is good, app {app_name}{where}"
