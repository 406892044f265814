"""The git server of a run: a small sandbox that nobody but agents with a credential gets anything from.

It is reached through a tunnel of Modal's, which ends TLS, at an address that cannot be guessed. Itself it reaches
nothing. What runs in it, and who may push what, is said in `cooperbench/sandbox/git_server.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cooperbench.backends.modal.order import Network, Resources
from cooperbench.backends.modal.settings import Share
from cooperbench.errors import SandboxError, SandboxTimeout
from cooperbench.sandbox.git_server import GitServer

if TYPE_CHECKING:
    from modal import Tunnel

    from cooperbench.backends.modal.account import Account
    from cooperbench.backends.modal.sandbox import ModalSandbox

PURPOSE = "git"
PORT = 8418
"""Every sandbox has ports of its own."""
RESOURCES = Resources(cpu=Share(0.25, 2.0), memory_mib=Share(512, 4096))
NETWORK = Network(cidrs=(), tunnel_ports=(PORT,))
WITHOUT = "COOPERBENCH_MODAL_GIT=carried needs no server"
_TUNNEL_SECONDS = 90


def serve(account: Account, sandbox: ModalSandbox) -> GitServer:
    """The server in a sandbox that was made for it; the sandbox is ended where that does not work."""
    try:
        tunnel = _tunnel_into(account, sandbox)
        reaches = (f"{tunnel.host}:{tunnel.port}",)
        return GitServer(sandbox, tunnel.url, host="0.0.0.0", port=PORT, reaches=reaches)  # noqa: S104
    except BaseException:
        sandbox.terminate()
        raise


def _tunnel_into(account: Account, sandbox: ModalSandbox) -> Tunnel:
    """How others get to the server's port; SandboxTimeout where Modal gives no tunnel in time."""
    import modal

    try:
        tunnels = account.insist(
            "opening a tunnel to the git server",
            lambda: sandbox.remote.tunnels.aio(timeout=_TUNNEL_SECONDS),
            _TUNNEL_SECONDS + 30.0,
        )
    except SandboxError as error:
        if isinstance(error.__cause__, modal.exception.TimeoutError):
            raise SandboxTimeout(
                f"the git server got no tunnel within {_TUNNEL_SECONDS} s; {WITHOUT}"
            ) from error
        raise
    if PORT not in tunnels:
        raise SandboxError(f"Modal opened no tunnel to port {PORT} of the git server")
    return tunnels[PORT]
