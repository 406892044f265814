"""What can be set about Google Cloud: by keyword, else by environment variable, else in config.json."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from cooperbench.backends.setting_fields import (
    matching,
    parsers_of,
    read_section,
    setting,
    whole_number,
)
from cooperbench.dataset.image_names import ENVIRONMENT_VARIABLE
from cooperbench.errors import UserError
from cooperbench.settings import load_settings

DEFAULT_REGION = "us-central1"


def _number(value: object) -> float:
    try:
        number = float(str(value))
    except ValueError:
        number = 0.0
    if not 0 < number < 100_000:
        raise ValueError(f"{str(value)!r} is not a number above 0")
    return number


def _yes_or_no(value: object) -> bool:
    word = str(value).strip().lower()
    if word not in ("1", "true", "yes", "on", "0", "false", "no", "off"):
        raise ValueError(f"{word!r} is not true or false")
    return word in ("1", "true", "yes", "on")


_image = matching(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*", "an image's name")
_network = matching(r"[A-Za-z0-9._/:-]+", "the name or path of a network")


@dataclass(frozen=True)
class GcpSettings:
    project: str = setting(
        "", matching(r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,61}[a-z0-9]", "like my-project-123")
    )
    region: str = setting("", matching(r"[a-z]+-[a-z]+[0-9]+", "like us-central1"))
    zone: str = setting("", matching(r"[a-z]+-[a-z]+[0-9]+-[a-z]", "like us-central1-a"))
    """Where machines for agents are."""
    bucket: str = setting(
        "", matching(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]", "3 or more of a-z, 0-9, . _ and -")
    )
    """For the inputs and results of evaluations."""
    machine_type: str = setting(
        "e2-standard-8", matching(r"[a-z0-9]+(-[a-z0-9]+)+", "like e2-standard-8")
    )
    disk_gb: int = setting(100, whole_number)
    disk_type: str = setting("pd-balanced", matching(r"[a-z]+(-[a-z]+)+", "like pd-balanced"))
    network: str = setting("", _network)
    """Of the VPC; empty: the project's default one."""
    subnetwork: str = setting("", _network)
    public_address: bool = setting(True, _yes_or_no)
    """Without one, machines need Cloud NAT to reach registries, and the harness has to run inside the VPC."""
    service_account: str = setting("", matching(r"[^@\s]+@[^@\s]+", "an e-mail address"))
    """Of evaluations' machines; empty: Batch's default. Agents' machines have none."""
    spot: bool = setting(False, _yes_or_no)
    """Cheaper machines that may be taken away."""
    idle_minutes: float = setting(10.0, _number)
    """A machine without sandboxes is kept for this long, as the next may want it."""
    image_template: str = setting("", str)
    """How task images are named; empty: the published names."""
    batch_image: str = setting(
        f"python:{sys.version_info.major}.{sys.version_info.minor}-bookworm", _image
    )
    """In which our package runs on machines of a Batch job: any image with Python 3.11 or later and git."""
    batch_cpus: float = setting(2.0, _number)
    """What one evaluation needs: it decides how many share a machine."""
    batch_memory_gb: float = setting(6.0, _number)
    batch_poll_seconds: float = setting(5.0, _number)
    batch_backend: str = setting("docker", str)
    """Which backend evaluates on machines of a Batch job."""

    @property
    def network_interface(self) -> dict[str, Any]:
        """As the APIs take it."""
        interface = {"network": _path(self.network or "default", "global/networks")}
        if self.subnetwork:
            interface["subnetwork"] = _path(self.subnetwork, f"regions/{self.region}/subnetworks")
        return interface


_PARSERS = parsers_of(GcpSettings)
VARIABLES = {name: f"GCP_{name.upper()}" for name in _PARSERS if not name.startswith("batch_")}
"""Those of `batch_…` have the usual names, COOPERBENCH_GCP_BATCH_…"""
VARIABLES |= {"project": "GOOGLE_CLOUD_PROJECT", "image_template": ENVIRONMENT_VARIABLE}
KEYS = {name: f"gcp_{name}" for name in _PARSERS} | {"project": "gcp_project_id"}
"""In config.json."""


def read_settings(**given: object) -> GcpSettings:
    """The settings in force; UserError for one that is missing, unknown or makes no sense."""
    content = load_settings()
    filed = {name: content[key] for name, key in KEYS.items() if key in content}
    values = read_section("gcp", _PARSERS, given, VARIABLES, filed)
    if "project" not in values:
        raise UserError(
            "no Google Cloud project is set: cooperbench config gcp, or set GOOGLE_CLOUD_PROJECT;"
            " or use --backend local or --backend docker"
        )
    if "subnetwork" in values and "network" not in values:
        raise UserError("GCP_SUBNETWORK is set without GCP_NETWORK: set both")
    region, zone = values.get("region", ""), values.get("zone", "")
    if region and zone and _region_of(zone) != region:
        # What is in the file gives way to what was said for this run.
        if zone == filed.get("zone"):
            zone = ""
        elif region == filed.get("region"):
            region = ""
        else:
            raise UserError(f"the zone {zone} is not in the region {region}: set both")
    values["region"] = region or _region_of(zone) or DEFAULT_REGION
    values["zone"] = zone or default_zone(values["region"])
    values.setdefault("bucket", default_bucket(values["project"]))
    return GcpSettings(**values)


def default_zone(region: str) -> str:
    """There is a zone `b` in nearly every region, but not an `a`."""
    return f"{region}-b"


def default_bucket(project: str) -> str:
    return f"cooperbench-eval-{project.rpartition(':')[2]}"


def _region_of(zone: str) -> str:
    return zone.rpartition("-")[0]


def _path(name: str, collection: str) -> str:
    return name if "/" in name else f"{collection}/{name}"
