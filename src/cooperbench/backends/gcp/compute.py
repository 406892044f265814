"""Machines of Compute Engine: create, inspect, list and delete them."""

from __future__ import annotations

import logging
import secrets
import time
from contextlib import suppress
from importlib import resources
from typing import TYPE_CHECKING, Any

from cooperbench.backends.gcp.google_clients import (
    CALL_SECONDS,
    call,
    client_options,
    host_filter,
    resource_labels,
    retry_policy,
    translate,
    translated_errors,
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
"""A machine without a connection for this long shuts itself down."""
_OPERATION_SECONDS = 300.0
_log = logging.getLogger("cooperbench")


class Compute:
    """The machines of one project. Safe to share between threads."""

    def __init__(self, settings: GcpSettings) -> None:
        self._settings = settings
        with translated_errors("connecting to Compute Engine"):
            from google.cloud import compute_v1

            options = client_options()
            self._instances = compute_v1.InstancesClient(**options)
            self._types = compute_v1.MachineTypesClient(**options)
            self._operations = compute_v1.ZoneOperationsClient(**options)
        self._project: dict[str, Any] = {"project": settings.project}
        self._zone = self._project | {"zone": settings.zone}

    def machine_type(self, name: str) -> compute_v1.MachineType:
        """Return a machine type; UserError if it or a permission is missing."""
        machines = f"{name} machines in {self._settings.zone} of {self._settings.project}"
        machine_type = call(
            f"looking up {machines}", self._types.get, machine_type=name, **self._zone
        )
        if machine_type is None:
            raise UserError(
                f"Google has no {machines}: choose another type with cooperbench config gcp"
            )
        return machine_type

    def create(self, machine: compute_v1.Instance) -> None:
        """Create a machine and wait until Google has done so; it then boots.

        If it exists, an earlier attempt has created it: names are unique.
        """
        from google.api_core.exceptions import Conflict
        from google.cloud import compute_v1

        doing = f"creating the machine {machine.name} ({machine.machine_type})"
        deadline = time.monotonic() + _OPERATION_SECONDS
        with translated_errors(doing), suppress(Conflict):
            operation = self._instances.insert_unary(
                instance_resource=machine,
                **self._zone,
                timeout=CALL_SECONDS,
                retry=retry_policy(),
            )
            while operation.status != compute_v1.Operation.Status.DONE:
                if time.monotonic() >= deadline:
                    raise SandboxTimeout(f"{doing}: not done within {_OPERATION_SECONDS:.0f} s")
                operation = self._operations.wait(
                    operation=operation.name,
                    **self._zone,
                    timeout=CALL_SECONDS * 3,
                    retry=retry_policy(),
                )
            if operation.error.errors:
                first = operation.error.errors[0]
                raise translate(RuntimeError(f"{first.code}: {first.message}"), doing)

    def get(self, name: str) -> compute_v1.Instance:
        """Return the current description of a machine."""
        with translated_errors(f"reading the machine {name}"):
            return self._instances.get(
                instance=name, **self._zone, timeout=CALL_SECONDS, retry=retry_policy()
            )

    def guest_attributes(self, name: str) -> dict[str, str]:
        """Return what our startup script has reported so far."""
        from google.cloud import compute_v1

        request = compute_v1.GetGuestAttributesInstanceRequest(
            instance=name, query_path="cooperbench/", **self._zone
        )
        attributes = call(
            f"checking whether {name} is ready", self._instances.get_guest_attributes, request
        )
        if attributes is None:
            return {}
        return {str(item.key): str(item.value) for item in attributes.query_value.items}

    def delete(self, names: Iterable[str], zone: str = "") -> None:
        """Delete machines with their disks, without waiting; a failure does not stop the others."""
        location = dict(self._zone)
        if zone:
            location["zone"] = zone
        for name in names:
            try:
                call(
                    f"deleting the machine {name}",
                    self._instances.delete_unary,
                    instance=name,
                    **location,
                )
            except CooperBenchError as error:
                _log.warning("%s; cooperbench clean --backend gcp tries again", error)

    def remove_leftovers(self) -> list[str]:
        """Delete the machines of this user's and machine's dead processes; return their names."""
        from google.cloud import compute_v1

        remove_abandoned()
        request = compute_v1.AggregatedListInstancesRequest(filter=host_filter(), **self._project)
        with translated_errors("listing the machines"):
            zones = dict(
                self._instances.aggregated_list(request, timeout=CALL_SECONDS, retry=retry_policy())
            )
        removed = []
        for zone, part in zones.items():
            names = [
                machine.name
                for machine in part.instances
                # A machine that is stopping is left to the next start.
                if machine.status != "STOPPING"
                and is_leftover(machine.labels, running=machine.status != "TERMINATED")
            ]
            self.delete(names, zone.rpartition("/")[2])
            removed += names
        return removed


def describe_machine(
    settings: GcpSettings, session: str, run_name: str, lifetime_seconds: int, public_key: str
) -> compute_v1.Instance:
    """Return the description from which Compute Engine creates a machine."""
    from google.cloud import compute_v1

    name = f"cooperbench-{session}-{secrets.token_hex(3)}"
    zone = f"zones/{settings.zone}"
    labels = resource_labels(run_name, "agents")
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
        # Only the key of this run grants access.
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
                # Google deletes the machine even if the harness is gone.
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
