"""What is asked of Modal for one new sandbox: what it reserves, what it may reach, and its tags; and the asking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cooperbench.backends.modal.sandbox import FIRST_COMMAND

if TYPE_CHECKING:
    from collections.abc import Mapping

    import modal

    from cooperbench.backends.modal.account import Account
    from cooperbench.backends.modal.settings import ModalSettings, Share
    from cooperbench.sandbox.contract import SandboxOptions


@dataclass(frozen=True)
class Resources:
    cpu: Share
    memory_mib: Share
    gpu: str = ""


@dataclass(frozen=True)
class Network:
    """None for `domains` and `cidrs`: no limit; empty: nothing."""

    blocked: bool = False
    domains: tuple[str, ...] | None = None
    """Reached by TLS at port 443: Modal reads the name that the client asks for."""
    cidrs: tuple[str, ...] | None = None
    tunnel_ports: tuple[int, ...] = ()
    """Inside the sandbox, each reached through a tunnel with TLS. A sandbox that is blocked can have none."""


@dataclass(frozen=True)
class Order:
    name: str
    tags: Mapping[str, str]
    lifetime_seconds: int
    resources: Resources
    network: Network


def resources_of(settings: ModalSettings) -> Resources:
    return Resources(settings.cpu, settings.memory_mib, settings.gpu)


def network_of(options: SandboxOptions, settings: ModalSettings) -> Network:
    """With the policy `none` nothing but what it has to reach, and nothing at all where that is nothing."""
    hosts = tuple(place.rpartition(":")[0] for place in options.reaches)
    if options.network == "none":
        return Network(domains=hosts) if hosts else Network(blocked=True)
    if settings.allow_domains:
        return Network(domains=tuple(dict.fromkeys((*settings.allow_domains, *hosts))))
    return Network()


async def create(
    account: Account, image: modal.Image, order: Order, regions: tuple[str, ...]
) -> modal.Sandbox:
    import modal

    resources, network = order.resources, order.network
    cpu, memory = resources.cpu, resources.memory_mib
    try:
        return await modal.Sandbox.create.aio(
            *FIRST_COMMAND,
            app=account.app,
            client=account.client,
            name=order.name,
            tags=dict(order.tags),
            image=image,
            timeout=order.lifetime_seconds,
            workdir="/",
            gpu=resources.gpu or None,
            region=list(regions) or None,
            cpu=(cpu.reserved, cpu.most),
            memory=(int(memory.reserved), int(memory.most)),
            block_network=network.blocked,
            outbound_domain_allowlist=None if network.domains is None else list(network.domains),
            outbound_cidr_allowlist=None if network.cidrs is None else list(network.cidrs),
            encrypted_ports=list(network.tunnel_ports),
        )
    except modal.exception.AlreadyExistsError:
        # An earlier try has made it, and only its answer was lost.
        return await modal.Sandbox.from_name.aio(account.app_name, order.name, client=account.client)
