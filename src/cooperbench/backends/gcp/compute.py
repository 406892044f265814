"""Compute Engine, as the harness uses it: machines made, looked at, listed and deleted.

Everything that we make at Google has labels, by which it is found again, and only by which: what has none of ours is
never touched.
"""

from __future__ import annotations

import logging
import os
import re
import time
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any

from cooperbench.backends.gcp.faults import NotFound, faults, translated
from cooperbench.errors import CooperBenchError, SandboxTimeout
from cooperbench.processes import start_of
from cooperbench.sandbox.ownership import Owner, is_dead, this_owner
from cooperbench.temporary import remove_abandoned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from google.cloud import compute_v1

    from cooperbench.backends.gcp.settings import GcpSettings

OURS = "cooperbench"
RUN = "cooperbench-run"
PURPOSE = "cooperbench-purpose"
HOST = "cooperbench-host"
BOOT = "cooperbench-boot"
PROCESS = "cooperbench-process"
SESSION = "cooperbench-session"
"""The names of labels."""
COMPUTE_ENDPOINT_VARIABLE = "COOPERBENCH_GCP_COMPUTE_ENDPOINT"
SSH_USER = "cooperbench"
ABANDONED_MINUTES = 15
"""A machine that nobody is connected to for this long shuts itself down."""
CALL_SECONDS = 60.0
_OPERATION_SECONDS = 300.0
_LONGEST_LABEL = 63
_STOPPING, _SHUT_DOWN = "STOPPING", "TERMINATED"
_log = logging.getLogger("cooperbench")


@dataclass(frozen=True)
class ListedMachine:
    """A machine that is there."""

    name: str
    zone: str
    status: str
    labels: Mapping[str, str]


@dataclass(frozen=True)
class MachineSpec:
    """A machine that is to be made. Its disk and its network are those of the settings."""

    name: str
    machine_type: str
    spot: bool
    lifetime_seconds: int
    labels: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    """By which firewall rules know it."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """For the start-up script, beside what it gets on every machine."""


class Compute:
    """The machines of one project. Safe to share between threads."""

    def __init__(self, settings: GcpSettings) -> None:
        self._settings = settings
        with faults("connecting to Compute Engine"):
            from google.cloud import compute_v1

            options = client_options()
            self._instances = compute_v1.InstancesClient(**options)
            self._operations = compute_v1.ZoneOperationsClient(**options)
            self._zones = compute_v1.ZonesClient(**options)

    def check_zone(self) -> None:
        """UserError where the project, the zone or the right to use them is missing."""
        settings = self._settings
        with faults(f"asking for the zone {settings.zone} of {settings.project}"):
            self._zones.get(project=settings.project, zone=settings.zone, timeout=CALL_SECONDS)

    def create(self, spec: MachineSpec, public_key: str) -> None:
        """Until Google has made the machine; it then boots."""
        settings = self._settings
        instance = instance_of(settings, spec, public_key)
        doing = f"making the machine {spec.name} ({spec.machine_type} in {settings.zone})"
        with faults(doing):
            operation = self._instances.insert_unary(
                project=settings.project, zone=settings.zone, instance_resource=instance, timeout=CALL_SECONDS
            )
            self._wait(operation, doing)

    def address(self, name: str) -> str:
        """The public one where there is one, else the one inside the VPC."""
        interface = self._get(name).network_interfaces[0]
        public = [config.nat_i_p for config in interface.access_configs if config.nat_i_p]
        return str(public[0] if public else interface.network_i_p)

    def internal_address(self, name: str) -> str:
        """The one inside the VPC."""
        return str(self._get(name).network_interfaces[0].network_i_p)

    def status(self, name: str) -> str:
        """RUNNING, STOPPING, TERMINATED, …; empty for one that is gone."""
        try:
            return str(self._get(name).status)
        except NotFound:
            return ""

    def _get(self, name: str) -> compute_v1.Instance:
        settings = self._settings
        with faults(f"asking for the machine {name}"):
            return self._instances.get(
                project=settings.project, zone=settings.zone, instance=name, timeout=CALL_SECONDS
            )

    def attributes(self, name: str) -> dict[str, str]:
        """What our start-up script has told so far."""
        from google.cloud import compute_v1

        request = compute_v1.GetGuestAttributesInstanceRequest(
            project=self._settings.project, zone=self._settings.zone, instance=name, query_path="cooperbench/"
        )
        try:
            with faults(f"asking what {name} has to say"):
                found = self._instances.get_guest_attributes(request, timeout=CALL_SECONDS)
        except NotFound:
            return {}
        return {str(item.key): str(item.value) for item in found.query_value.items}

    def listed(self, wanted: str) -> list[ListedMachine]:
        """The machines of all zones that pass a filter, as the API takes it."""
        from google.cloud import compute_v1

        request = compute_v1.AggregatedListInstancesRequest(project=self._settings.project, filter=wanted)
        found = []
        with faults("listing the machines"):
            for place, part in self._instances.aggregated_list(request, timeout=CALL_SECONDS):
                zone = place.rpartition("/")[2]
                found += [
                    ListedMachine(item.name, zone, item.status, dict(item.labels)) for item in part.instances
                ]
        return found

    def delete(self, name: str, zone: str = "") -> bool:
        """Its disk goes with it. Not waited for; False for one that is gone already."""
        try:
            with faults(f"deleting the machine {name}"):
                self._instances.delete_unary(
                    project=self._settings.project,
                    zone=zone or self._settings.zone,
                    instance=name,
                    timeout=CALL_SECONDS,
                )
        except NotFound:
            return False
        return True

    def _delete_all(self, machines: Iterable[ListedMachine]) -> list[str]:
        """The names of those that were there. One that cannot be deleted does not keep the others from it."""
        removed = []
        for machine in machines:
            try:
                if self.delete(machine.name, machine.zone):
                    removed.append(machine.name)
            except CooperBenchError as error:
                _log.warning("%s", error)
        return removed

    def remove_leftovers(self) -> list[str]:
        """Delete the machines of processes of this user and machine that are gone; their disks go with them."""
        remove_abandoned()
        return self._delete_all(
            machine
            for machine in self.listed(host_filter())
            # One that is being deleted or shuts down is left to the next start.
            if machine.status != _STOPPING
            and is_leftover(machine.labels, running=machine.status != _SHUT_DOWN)
        )

    def remove_session(self, session: str) -> list[str]:
        """Delete whatever one backend object has made and not deleted itself."""
        return self._delete_all(
            machine
            for machine in self.listed(f'labels.{SESSION}="{session}"')
            if machine.status != _STOPPING and machine.labels.get(SESSION) == session
        )

    def _wait(self, operation: compute_v1.Operation, doing: str) -> None:
        settings = self._settings
        wait_for_operation(
            operation,
            lambda name: self._operations.wait(
                project=settings.project, zone=settings.zone, operation=name, timeout=CALL_SECONDS * 3
            ),
            doing,
        )


def wait_for_operation(
    operation: compute_v1.Operation, wait: Callable[[str], compute_v1.Operation], doing: str
) -> None:
    """`wait` is the client's, which returns after a while in any case."""
    from google.cloud import compute_v1

    deadline = time.monotonic() + _OPERATION_SECONDS
    while operation.status != compute_v1.Operation.Status.DONE:
        if time.monotonic() >= deadline:
            raise SandboxTimeout(f"{doing}: Google did not do it in time")
        operation = wait(operation.name)
    if operation.error.errors:
        first = operation.error.errors[0]
        raise translated(RuntimeError(f"{first.code}: {first.message}"), doing)


def instance_of(settings: GcpSettings, spec: MachineSpec, public_key: str) -> compute_v1.Instance:
    """As Compute Engine wants to have it described."""
    from google.cloud import compute_v1

    zone = f"zones/{settings.zone}"
    disk = compute_v1.AttachedDisk(
        boot=True,
        auto_delete=True,
        initialize_params=compute_v1.AttachedDiskInitializeParams(
            source_image=settings.boot_image,
            disk_size_gb=settings.disk_gb,
            disk_type=f"{zone}/diskTypes/{settings.disk_type}",
            labels=dict(spec.labels),
        ),
    )
    interface = compute_v1.NetworkInterface()
    if settings.network or not settings.subnetwork:
        interface.network = settings.network_path or "global/networks/default"
    if settings.subnetwork:
        interface.subnetwork = settings.subnetwork_path
    if settings.public_address:
        interface.access_configs = [compute_v1.AccessConfig(name="External NAT", type_="ONE_TO_ONE_NAT")]
    scheduling = compute_v1.Scheduling(
        # Whatever becomes of us, it ends by itself, and nothing is left to pay for.
        max_run_duration=compute_v1.Duration(seconds=spec.lifetime_seconds),
        instance_termination_action="DELETE",
        provisioning_model="SPOT" if spec.spot else "STANDARD",
        automatic_restart=False,
    )
    if spec.spot:
        scheduling.on_host_maintenance = "TERMINATE"
    account = settings.service_account
    scopes = ["https://www.googleapis.com/auth/devstorage.read_only"]
    return compute_v1.Instance(
        name=spec.name,
        machine_type=f"{zone}/machineTypes/{spec.machine_type}",
        labels=dict(spec.labels),
        tags=compute_v1.Tags(items=list(spec.tags)),
        disks=[disk],
        network_interfaces=[interface],
        scheduling=scheduling,
        service_accounts=[compute_v1.ServiceAccount(email=account, scopes=scopes)] if account else [],
        metadata=compute_v1.Metadata(
            items=[
                compute_v1.Items(key=key, value=value)
                for key, value in {
                    "startup-script": resources.files(__package__).joinpath("startup.sh").read_text("utf-8"),
                    "ssh-keys": f"{SSH_USER}:{public_key} {SSH_USER}",
                    # Only the key of this run opens it.
                    "block-project-ssh-keys": "TRUE",
                    "enable-oslogin": "FALSE",
                    "enable-guest-attributes": "TRUE",
                    "cooperbench-idle-seconds": str(ABANDONED_MINUTES * 60),
                    **spec.metadata,
                }.items()
            ]
        ),
    )


def client_options(variable: str = COMPUTE_ENDPOINT_VARIABLE) -> dict[str, Any]:
    """For Google's clients. An endpoint without TLS is a server for tests: it gets no credentials."""
    endpoint = os.environ.get(variable, "")
    if not endpoint:
        return {}
    from google.api_core.client_options import ClientOptions
    from google.auth import credentials

    nobody: Any = credentials.AnonymousCredentials
    anonymous = {"credentials": nobody()} if endpoint.startswith("http:") else {}
    return {"client_options": ClientOptions(api_endpoint=endpoint), **anonymous}


def resource_labels(run_name: str, purpose: str, **others: str) -> dict[str, str]:
    """For a job, a machine or a disk of this process; `run_name` is empty where there is none."""
    owner = this_owner()
    labels = {
        OURS: "1",
        RUN: run_name or "-",
        PURPOSE: purpose,
        HOST: f"{owner.machine}-{owner.user}",
        BOOT: owner.boot,
        PROCESS: f"{owner.namespace}-{owner.pid}-{_fit(owner.start)}",
        **others,
    }
    return {name: _fit(value) for name, value in labels.items()}


def host_filter() -> str:
    """As the APIs take it: what this user has made from this machine."""
    owner = this_owner()
    return f'labels.{OURS}="1" AND labels.{HOST}="{_fit(f"{owner.machine}-{owner.user}")}"'


def is_leftover(labels: Mapping[str, str], *, running: bool = True) -> bool:
    """Is it ours, and its maker certainly gone?"""
    owner = owner_of(labels)
    return owner is not None and is_dead(owner, running=running)


def owner_of(labels: Mapping[str, str]) -> Owner | None:
    """None for what is not ours."""
    host, process = labels.get(HOST, "").split("-"), labels.get(PROCESS, "").split("-", 2)
    if labels.get(OURS) != "1" or len(host) != 2 or len(process) != 3 or not process[1].isdecimal():
        return None
    namespace, pid, start = process
    try:
        now = start_of(int(pid))
    except OSError:
        now = ""
    # A start time may have lost characters in the label.
    if now and _fit(now) == start:
        start = now
    return Owner(host[0], _boot(labels), namespace, host[1], int(pid), start)


def _boot(labels: Mapping[str, str]) -> str:
    boot, mine = labels.get(BOOT, ""), this_owner().boot
    return mine if boot == _fit(mine) else boot


def _fit(text: str) -> str:
    """Google takes small letters, digits, `_` and `-`."""
    return re.sub(r"[^a-z0-9_-]+", "-", text.lower())[:_LONGEST_LABEL].strip("-") or "-"
