"""Compute Engine, as the harness uses it: machines made, looked at, listed and deleted."""

from __future__ import annotations

import logging
import secrets
import time
from contextlib import suppress
from importlib import resources
from typing import TYPE_CHECKING, Any

from cooperbench.backends.gcp.google_clients import (
    CALL_SECONDS,
    ask,
    client_options,
    faults,
    host_filter,
    patient,
    resource_labels,
    translated,
)
from cooperbench.backends.ownership import is_leftover
from cooperbench.errors import CooperBenchError, SandboxTimeout, UserError
from cooperbench.temporary import remove_abandoned

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.cloud import compute_v1

    from cooperbench.backends.gcp.settings import GcpSettings

SSH_USER = "cooperbench"
_BOOT_IMAGE = "projects/cos-cloud/global/images/family/cos-stable"
_ABANDONED_SECONDS = 900
"""A machine that nobody is connected to for this long shuts itself down."""
_OPERATION_SECONDS = 300.0
_log = logging.getLogger("cooperbench")


class Compute:
    """The machines of one project. Safe to share between threads."""

    def __init__(self, settings: GcpSettings) -> None:
        self._settings = settings
        with faults("connecting to Compute Engine"):
            from google.cloud import compute_v1

            options = client_options()
            self._instances = compute_v1.InstancesClient(**options)
            self._types = compute_v1.MachineTypesClient(**options)
            self._operations = compute_v1.ZoneOperationsClient(**options)
        self._project: dict[str, Any] = {"project": settings.project}
        self._zone = self._project | {"zone": settings.zone}

    def machine_type(self, name: str) -> compute_v1.MachineType:
        """UserError where the project, the zone, the type or the right to use them is missing."""
        what = f"{name} machines in {self._settings.zone} of {self._settings.project}"
        found = ask(f"asking for {what}", self._types.get, machine_type=name, **self._zone)
        if found is None:
            raise UserError(f"Google knows no {what}: choose others with cooperbench config gcp")
        return found

    def create(self, machine: compute_v1.Instance) -> None:
        """Until Google has made the machine; it then boots. One that is there already is ours: its name is."""
        from google.api_core.exceptions import Conflict
        from google.cloud import compute_v1

        doing = f"making the machine {machine.name} ({machine.machine_type})"
        deadline = time.monotonic() + _OPERATION_SECONDS
        with faults(doing), suppress(Conflict):
            operation = self._instances.insert_unary(
                instance_resource=machine, **self._zone, timeout=CALL_SECONDS, retry=patient()
            )
            while operation.status != compute_v1.Operation.Status.DONE:
                if time.monotonic() >= deadline:
                    raise SandboxTimeout(f"{doing}: Google did not do it in time")
                operation = self._operations.wait(
                    operation=operation.name,
                    **self._zone,
                    timeout=CALL_SECONDS * 3,
                    retry=patient(),
                )
            if operation.error.errors:
                first = operation.error.errors[0]
                raise translated(RuntimeError(f"{first.code}: {first.message}"), doing)

    def get(self, name: str) -> compute_v1.Instance:
        with faults(f"asking for the machine {name}"):
            return self._instances.get(
                instance=name, **self._zone, timeout=CALL_SECONDS, retry=patient()
            )

    def attributes(self, name: str) -> dict[str, str]:
        """What our start-up script has told so far."""
        from google.cloud import compute_v1

        request = compute_v1.GetGuestAttributesInstanceRequest(
            instance=name, query_path="cooperbench/", **self._zone
        )
        found = ask(
            f"asking whether {name} is ready", self._instances.get_guest_attributes, request
        )
        return {str(item.key): str(item.value) for item in found.query_value.items} if found else {}

    def delete(self, names: Iterable[str], zone: str = "") -> None:
        """Their disks go with them; not waited for. One that cannot be deleted does not keep the others from it."""
        place = self._zone | ({"zone": zone} if zone else {})
        for name in names:
            try:
                ask(
                    f"deleting the machine {name}",
                    self._instances.delete_unary,
                    instance=name,
                    **place,
                )
            except CooperBenchError as error:
                _log.warning("%s; cooperbench clean --backend gcp tries again", error)

    def remove_leftovers(self) -> list[str]:
        """Delete the machines of processes of this user and machine that are gone; their names."""
        from google.cloud import compute_v1

        remove_abandoned()
        request = compute_v1.AggregatedListInstancesRequest(filter=host_filter(), **self._project)
        with faults("listing the machines"):
            zones = dict(
                self._instances.aggregated_list(request, timeout=CALL_SECONDS, retry=patient())
            )
        removed = []
        for zone, part in zones.items():
            names = [
                machine.name
                for machine in part.instances
                # One that is being deleted or shuts down is left to the next start.
                if machine.status != "STOPPING"
                and is_leftover(machine.labels, running=machine.status != "TERMINATED")
            ]
            self.delete(names, zone.rpartition("/")[2])
            removed += names
        return removed


def machine_of(
    settings: GcpSettings, session: str, run_name: str, lifetime_seconds: int, public_key: str
) -> compute_v1.Instance:
    """As Compute Engine wants to have it described."""
    from google.cloud import compute_v1

    name = f"cooperbench-{session}-{secrets.token_hex(3)}"
    zone, labels = f"zones/{settings.zone}", resource_labels(run_name, "agents")
    interface = settings.network_interface
    if settings.public_address:
        interface["access_configs"] = [{"name": "External NAT", "type_": "ONE_TO_ONE_NAT"}]
    disk = {
        "source_image": _BOOT_IMAGE,
        "disk_size_gb": settings.disk_gb,
        "disk_type": f"{zone}/diskTypes/{settings.disk_type}",
        "labels": labels,
    }
    metadata = {
        "startup-script": resources.files(__package__).joinpath("startup.sh").read_text("utf-8"),
        # Only the key of this run opens it.
        "ssh-keys": f"{SSH_USER}:{public_key}",
        "block-project-ssh-keys": "TRUE",
        "enable-oslogin": "FALSE",
        "enable-guest-attributes": "TRUE",
        "cooperbench-idle-seconds": str(_ABANDONED_SECONDS),
    }
    return compute_v1.Instance(
        {
            "name": name,
            "machine_type": f"{zone}/machineTypes/{settings.machine_type}",
            "labels": labels,
            "disks": [{"boot": True, "auto_delete": True, "initialize_params": disk}],
            "network_interfaces": [interface],
            "scheduling": {
                # Whatever becomes of us, it ends by itself, and nothing is left to pay for.
                "max_run_duration": {"seconds": lifetime_seconds},
                "instance_termination_action": "DELETE",
                "provisioning_model": "SPOT" if settings.spot else "STANDARD",
                "automatic_restart": False,
            },
            "metadata": {
                "items": [{"key": key, "value": value} for key, value in metadata.items()]
            },
        }
    )
