"""Settings of Google Cloud: keywords, else environment variables, else config.json."""

from __future__ import annotations

import sys
from collections.abc import Mapping
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
    """All settings of the `gcp` backend."""

    project: str = setting(
        "", matching(r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,61}[a-z0-9]", "like my-project-123")
    )
    """The project that pays. Required."""
    region: str = setting("", matching(r"[a-z]+-[a-z]+[0-9]+", "like us-central1"))
    """Region of evaluations; empty for `us-central1`, or that of the zone."""
    zone: str = setting("", matching(r"[a-z]+-[a-z]+[0-9]+-[a-z]", "like us-central1-a"))
    """Zone of the machines for agents; empty for zone `b` of the region."""
    bucket: str = setting(
        "", matching(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]", "3 or more of a-z, 0-9, . _ and -")
    )
    """Bucket for the inputs and results of evaluations, created at first use; empty for
    `cooperbench-eval-PROJECT`."""
    machine_type: str = setting(
        "e2-standard-8", matching(r"[a-z0-9]+(-[a-z0-9]+)+", "like e2-standard-8")
    )
    """Type of the machines, also a custom one such as `n2-custom-6-8192`."""
    disk_gb: int = setting(100, whole_number)
    """Size of a machine's persistent disk in GB."""
    disk_type: str = setting("pd-balanced", matching(r"[a-z]+(-[a-z]+)+", "like pd-balanced"))
    """Type of that disk."""
    network: str = setting("", _network)
    """Name of the VPC network; empty for the project's default network."""
    subnetwork: str = setting("", _network)
    """Name of its subnetwork; needs a network, too."""
    public_address: bool = setting(True, _yes_or_no)
    """Whether machines have a public address. Without one, they need Cloud NAT, and the harness
    has to run inside the VPC."""
    service_account: str = setting("", matching(r"[^@\s]+@[^@\s]+", "an e-mail address"))
    """Service account of evaluations; empty for the default. Machines for agents have none."""
    spot: bool = setting(False, _yes_or_no)
    """Whether to use spot machines, which are cheaper and can be preempted."""
    idle_minutes: float = setting(10.0, _number)
    """Minutes for which a machine without sandboxes is kept."""
    image_template: str = setting("", str)
    """Names of task images: a text with {repo}, {short} and {task_id}; empty for the published
    names. Also `--image-template`."""
    batch_image: str = setting(
        f"python:{sys.version_info.major}.{sys.version_info.minor}-bookworm", _image
    )
    """Image in which the package runs in a Batch job: any with Python 3.11 or later and git; by
    default with the Python version of the harness. With another version, `msgspec` is installed
    from the package index."""
    batch_cpus: float = setting(2.0, _number)
    """Processors for one evaluation: an `e2-standard-8` runs four at once."""
    batch_memory_gb: float = setting(6.0, _number)
    """Memory for one evaluation in GB."""
    batch_poll_seconds: float = setting(5.0, _number)
    """Seconds between two polls of a Batch job."""
    batch_backend: str = setting("docker", str)
    """Backend that evaluates on the machines of a Batch job."""

    @property
    def network_interface(self) -> dict[str, Any]:
        """The network interface in the format of the APIs."""
        interface = {"network": _path(self.network or "default", "global/networks")}
        if self.subnetwork:
            interface["subnetwork"] = _path(self.subnetwork, f"regions/{self.region}/subnetworks")
        return interface


_PARSERS = parsers_of(GcpSettings)
VARIABLES = {name: f"GCP_{name.upper()}" for name in _PARSERS if not name.startswith("batch_")}
"""Environment variables; `batch_…` settings have the usual names, COOPERBENCH_GCP_BATCH_…"""
VARIABLES |= {"project": "GOOGLE_CLOUD_PROJECT", "image_template": ENVIRONMENT_VARIABLE}
KEYS = {name: f"gcp_{name}" for name in _PARSERS} | {"project": "gcp_project_id"}
"""Keys in config.json."""


def read_settings(**keywords: object) -> GcpSettings:
    """Return the settings in force; UserError if one is missing, unknown or invalid."""
    content = load_settings()
    from_file = {name: content[key] for name, key in KEYS.items() if key in content}
    values = read_section("gcp", _PARSERS, keywords, VARIABLES, from_file)
    if "project" not in values:
        raise UserError(
            "no Google Cloud project is set: cooperbench config gcp, or set GOOGLE_CLOUD_PROJECT;"
            " or use --backend local or --backend docker"
        )
    if "subnetwork" in values and "network" not in values:
        raise UserError("GCP_SUBNETWORK is set without GCP_NETWORK: set both")
    values["region"], values["zone"] = _region_and_zone(values, from_file)
    values.setdefault("bucket", default_bucket(values["project"]))
    return GcpSettings(**values)


def _region_and_zone(values: Mapping[str, Any], from_file: Mapping[str, object]) -> tuple[str, str]:
    """Return a region and a zone that fit together; settings of this run override the file."""
    region = values.get("region", "")
    zone = values.get("zone", "")
    if region and zone and _region_of(zone) != region:
        if zone == from_file.get("zone"):
            zone = ""
        elif region == from_file.get("region"):
            region = ""
        else:
            raise UserError(f"the zone {zone} is not in the region {region}: set both")
    region = region or _region_of(zone) or DEFAULT_REGION
    return region, zone or default_zone(region)


def default_zone(region: str) -> str:
    """Return zone `b`, which exists in nearly every region, unlike `a`."""
    return f"{region}-b"


def default_bucket(project: str) -> str:
    """Return the name of a project's bucket for evaluations."""
    return f"cooperbench-eval-{project.rpartition(':')[2]}"


def _region_of(zone: str) -> str:
    return zone.rpartition("-")[0]


def _path(name: str, collection: str) -> str:
    return name if "/" in name else f"{collection}/{name}"
