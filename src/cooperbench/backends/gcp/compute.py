"""Compute Engine, as the harness uses it: machines and firewall rules made, looked at, listed and deleted."""

from __future__ import annotations

import json
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from cooperbench.backends.gcp.api import (
    SESSION,
    NotFound,
    PermissionDenied,
    client_options,
    faults,
    host_filter,
    is_leftover,
    patient,
    resource_labels,
    translated,
)
from cooperbench.errors import CooperBenchError, SandboxTimeout, UserError
from cooperbench.temporary import remove_abandoned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from google.cloud import compute_v1

    from cooperbench.backends.gcp.settings import GcpSettings

GIT_PORT = 8418
SSH_USER = "cooperbench"
FIREWALL_ROLE = "roles/compute.securityAdmin"
_BOOT_IMAGE = "projects/cos-cloud/global/images/family/cos-stable"
_ABANDONED_SECONDS = 900
"""A machine that nobody is connected to for this long shuts itself down."""
_CALL_SECONDS = 60.0
_OPERATION_SECONDS = 300.0
_STOPPING, _SHUT_DOWN = "STOPPING", "TERMINATED"
_log = logging.getLogger("cooperbench")


class MachineSize(NamedTuple):
    vcpus: int
    gib: float


@dataclass(frozen=True)
class MachineSpec:
    """A machine that is to be made. Its disk and its network are those of the settings."""

    name: str
    machine_type: str
    spot: bool
    lifetime_seconds: int
    labels: Mapping[str, str] = field(default_factory=dict)
    tag: str = "cooperbench"
    """By which firewall rules know it."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """For the start-up script, beside what it gets on every machine."""


class Compute:
    """The machines of one project. Safe to share between threads."""

    def __init__(self, settings: GcpSettings) -> None:
        self._settings = settings
        self._sizes: dict[str, MachineSize] = {}
        with faults("connecting to Compute Engine"):
            from google.cloud import compute_v1

            options = client_options()
            self._instances = compute_v1.InstancesClient(**options)
            self._operations = compute_v1.ZoneOperationsClient(**options)
            self._types = compute_v1.MachineTypesClient(**options)
            self._place: dict[str, Any] = {"project": settings.project, "zone": settings.zone}
            self._patiently: dict[str, Any] = {"timeout": _CALL_SECONDS, "retry": patient()}

    def size_of(self, machine_type: str) -> MachineSize:
        """Asked once. UserError where the project, the zone, the type or the right to use them is missing."""
        if machine_type not in self._sizes:
            zone, project = self._settings.zone, self._settings.project
            try:
                with faults(f"asking for {machine_type} machines in {zone} of {project}"):
                    found = self._types.get(machine_type=machine_type, **self._place, **self._patiently)
            except NotFound as error:
                raise UserError(f"{error}; choose others with cooperbench config gcp") from error
            self._sizes[machine_type] = MachineSize(found.guest_cpus, found.memory_mb / 1024)
        return self._sizes[machine_type]

    def create(self, spec: MachineSpec, public_key: str) -> None:
        """Until Google has made the machine; it then boots."""
        doing = f"making the machine {spec.name} ({spec.machine_type} in {self._settings.zone})"
        instance = instance_of(self._settings, spec, public_key)
        with faults(doing):
            operation = self._instances.insert_unary(
                instance_resource=instance, **self._place, timeout=_CALL_SECONDS
            )
            wait_for_operation(operation, lambda **call: self._operations.wait(**self._place, **call), doing)

    def get(self, name: str) -> compute_v1.Instance | None:
        """None for one that is gone."""
        try:
            with faults(f"asking for the machine {name}"):
                return self._instances.get(instance=name, **self._place, **self._patiently)
        except NotFound:
            return None

    def attributes(self, name: str) -> dict[str, str]:
        """What our start-up script has told so far."""
        from google.cloud import compute_v1

        request = compute_v1.GetGuestAttributesInstanceRequest(
            instance=name, query_path="cooperbench/", **self._place
        )
        try:
            with faults(f"asking whether {name} is ready"):
                found = self._instances.get_guest_attributes(request, **self._patiently)
        except NotFound:
            return {}
        return {str(item.key): str(item.value) for item in found.query_value.items}

    def delete(self, name: str, zone: str = "") -> bool:
        """Its disk goes with it. Not waited for; False for one that is gone already."""
        place = self._place | ({"zone": zone} if zone else {})
        try:
            with faults(f"deleting the machine {name}"):
                self._instances.delete_unary(instance=name, **place, **self._patiently)
        except NotFound:
            return False
        return True

    def remove_leftovers(self) -> list[str]:
        """Delete the machines of processes of this user and machine that are gone; their disks go with them."""
        remove_abandoned()
        return self._remove(
            host_filter(),
            lambda machine: is_leftover(machine.labels, running=machine.status != _SHUT_DOWN),
        )

    def remove_session(self, session: str) -> None:
        """Delete whatever one backend object has made and not deleted itself."""
        self._remove(f'labels.{SESSION}="{session}"', lambda machine: machine.labels[SESSION] == session)

    def _remove(self, wanted: str, is_wanted: Callable[[compute_v1.Instance], bool]) -> list[str]:
        """The names of those that were there, in whatever zone; `wanted` is a filter as the API takes it."""
        from google.cloud import compute_v1

        request = compute_v1.AggregatedListInstancesRequest(project=self._settings.project, filter=wanted)
        with faults("listing the machines"):
            zones = {
                machine.name: place.rpartition("/")[2]
                for place, part in self._instances.aggregated_list(request, **self._patiently)
                for machine in part.instances
                # One that is being deleted or shuts down is left to the next start.
                if machine.status != _STOPPING and is_wanted(machine)
            }
        return _delete_all(zones, lambda name: self.delete(name, zones[name]))


def _delete_all(names: Iterable[str], delete: Callable[[str], bool]) -> list[str]:
    """The names of those that were there. One that cannot be deleted does not keep the others from it."""
    removed = []
    for name in names:
        try:
            if delete(name):
                removed.append(name)
        except CooperBenchError as error:
            _log.warning("%s", error)
    return removed


def wait_for_operation(
    operation: compute_v1.Operation, wait: Callable[..., compute_v1.Operation], doing: str
) -> None:
    """`wait` is the client's, which returns after a while in any case."""
    from google.cloud import compute_v1

    deadline = time.monotonic() + _OPERATION_SECONDS
    while operation.status != compute_v1.Operation.Status.DONE:
        if time.monotonic() >= deadline:
            raise SandboxTimeout(f"{doing}: Google did not do it in time")
        operation = wait(operation=operation.name, timeout=_CALL_SECONDS * 3, retry=patient())
    if operation.error.errors:
        first = operation.error.errors[0]
        raise translated(RuntimeError(f"{first.code}: {first.message}"), doing)


def instance_of(settings: GcpSettings, spec: MachineSpec, public_key: str) -> compute_v1.Instance:
    """As Compute Engine wants to have it described."""
    from google.cloud import compute_v1

    zone = f"zones/{settings.zone}"
    interface: dict[str, Any] = {"network": settings.network_path, "subnetwork": settings.subnetwork_path}
    if settings.public_address:
        interface["access_configs"] = [{"name": "External NAT", "type_": "ONE_TO_ONE_NAT"}]
    disk = {
        "source_image": _BOOT_IMAGE,
        "disk_size_gb": settings.disk_gb,
        "disk_type": f"{zone}/diskTypes/{settings.disk_type}",
        "labels": dict(spec.labels),
    }
    metadata = {
        "startup-script": resources.files(__package__).joinpath("startup.sh").read_text("utf-8"),
        "ssh-keys": f"{SSH_USER}:{public_key} {SSH_USER}",
        # Only the key of this run opens it.
        "block-project-ssh-keys": "TRUE",
        "enable-oslogin": "FALSE",
        "enable-guest-attributes": "TRUE",
        "cooperbench-idle-seconds": str(_ABANDONED_SECONDS),
        "cooperbench-git-port": str(GIT_PORT),
        **spec.metadata,
    }
    return compute_v1.Instance(
        {
            "name": spec.name,
            "machine_type": f"{zone}/machineTypes/{spec.machine_type}",
            "labels": dict(spec.labels),
            "tags": {"items": [spec.tag]},
            "disks": [{"boot": True, "auto_delete": True, "initialize_params": disk}],
            "network_interfaces": [{name: value for name, value in interface.items() if value}],
            "scheduling": {
                # Whatever becomes of us, it ends by itself, and nothing is left to pay for.
                "max_run_duration": {"seconds": spec.lifetime_seconds},
                "instance_termination_action": "DELETE",
                "provisioning_model": "SPOT" if spec.spot else "STANDARD",
                "automatic_restart": False,
                **({"on_host_maintenance": "TERMINATE"} if spec.spot else {}),
            },
            "metadata": {"items": [{"key": key, "value": value} for key, value in metadata.items()]},
        }
    )


class Firewall:
    """The rules of git servers: who reaches their port.

    Firewall rules have no labels, so whose they are stands in their description.
    """

    def __init__(self, settings: GcpSettings) -> None:
        self._settings = settings
        with faults("connecting to Compute Engine"):
            from google.cloud import compute_v1

            self._rules = compute_v1.FirewallsClient(**client_options())
            self._operations = compute_v1.GlobalOperationsClient(**client_options())
            self._patiently: dict[str, Any] = {
                "project": settings.project,
                "timeout": _CALL_SECONDS,
                "retry": patient(),
            }

    def protect(self, session: str) -> None:
        """Let a session's machines reach its git server, and nobody else, whatever other rules of the network allow."""
        try:
            for rule in _git_server_rules(session, self._settings.network_path):
                self._insert(rule)
        except PermissionDenied as error:
            raise PermissionDenied(f"{error}; the git server of --git needs {FIREWALL_ROLE}") from error

    def remove_leftovers(self) -> list[str]:
        """Delete the rules of processes of this user and machine that are gone."""
        return self._remove(is_leftover)

    def remove_session(self, session: str) -> None:
        self._remove(lambda labels: labels.get(SESSION) == session)

    def listed(self) -> dict[str, dict[str, str]]:
        """The labels of all rules that may be ours, by name."""
        from google.cloud import compute_v1

        request = compute_v1.ListFirewallsRequest(
            project=self._settings.project, filter='name eq "cooperbench-.*"'
        )
        with faults("listing the firewall rules"):
            found = list(self._rules.list(request, timeout=_CALL_SECONDS))
        return {rule.name: _labels_in(rule.description) for rule in found}

    def _remove(self, wanted: Callable[[dict[str, str]], bool]) -> list[str]:
        names = [name for name, labels in self.listed().items() if wanted(labels)]
        return _delete_all(names, self._delete)

    def _delete(self, name: str) -> bool:
        """Not waited for."""
        try:
            with faults(f"deleting the firewall rule {name}"):
                self._rules.delete_unary(firewall=name, **self._patiently)
        except NotFound:
            return False
        return True

    def _insert(self, rule: compute_v1.Firewall) -> None:
        """One that is there already is ours: its name was made for it."""
        from google.api_core.exceptions import Conflict

        project, doing = self._settings.project, f"setting the firewall rule {rule.name}"
        with faults(doing), suppress(Conflict):
            operation = self._rules.insert_unary(firewall_resource=rule, **self._patiently)
            wait_for_operation(
                operation, lambda **call: self._operations.wait(project=project, **call), doing
            )


def session_tag(session: str) -> str:
    """The network tag of one backend object's machines for agents."""
    return f"cooperbench-{session}"


def git_tag(session: str) -> str:
    """That of its git server."""
    return f"cooperbench-{session}-git"


def _git_server_rules(session: str, network: str) -> list[compute_v1.Firewall]:
    """The one that keeps out comes first: there is no moment without it."""
    from google.cloud import compute_v1

    ports = [{"I_p_protocol": "tcp", "ports": [str(GIT_PORT)]}]
    common = {
        "description": json.dumps(resource_labels("", "git", **{SESSION: session})),
        "network": network,
        "direction": "INGRESS",
        "target_tags": [git_tag(session)],
    }
    # The lower priority decides. Rules of users have 1000 unless they say otherwise.
    keep_out = {"priority": 2, "source_ranges": ["0.0.0.0/0"], "denied": ports}
    admit = {"priority": 1, "source_tags": [session_tag(session)], "allowed": ports}
    return [
        compute_v1.Firewall({"name": f"cooperbench-{session}-keep-out", **keep_out, **common}),
        compute_v1.Firewall({"name": f"cooperbench-{session}-admit", **admit, **common}),
    ]


def _labels_in(description: str) -> dict[str, str]:
    """Nothing where it is not ours."""
    try:
        found = json.loads(description)
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}
