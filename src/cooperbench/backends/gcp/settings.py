"""What can be set about Google Cloud: by keyword, by environment variable, or in the user's config file.

A keyword comes first, then the variable, then the key in config.json, which `cooperbench config gcp` writes.
Credentials are Google's own business: `gcloud auth application-default login`, or GOOGLE_APPLICATION_CREDENTIALS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cooperbench.dataset.images import ENVIRONMENT_VARIABLE
from cooperbench.errors import UserError
from cooperbench.sandbox.git_server import DEFAULT_IMAGE
from cooperbench.settings import load_settings, matching, read_section, whole_number

if TYPE_CHECKING:
    from cooperbench.settings import Parser

DEFAULT_REGION = "us-central1"


@dataclass(frozen=True)
class GcpSettings:
    project: str
    region: str
    zone: str
    """Where machines for agents are."""
    bucket: str
    """For the inputs and results of evaluations."""
    machine_type: str = "e2-standard-8"
    disk_gb: int = 100
    disk_type: str = "pd-balanced"
    network: str = ""
    """Of the VPC; empty: the project's default one."""
    subnetwork: str = ""
    public_address: bool = True
    """Without one, machines need Cloud NAT to reach registries, and the harness has to run inside the VPC."""
    service_account: str = ""
    """Of evaluations' machines; empty: Batch's default. Agents' machines have none."""
    spot: bool = False
    """Cheaper machines that may be taken away."""
    sandboxes_per_machine: int = 0
    """0: one for every two processors of the machine type."""
    most_machines: int = 50
    idle_minutes: float = 10.0
    """A machine without sandboxes is kept for this long, as the next may want it."""
    image_template: str = ""
    """How task images are named; empty: the published names."""
    git_image: str = DEFAULT_IMAGE
    """What the git server runs in: any image with git and python3."""
    batch_image: str = "python:3.12-bookworm"
    """In which our package runs on machines of a Batch job: any image with Python 3.11 or later and git."""
    batch_cpus: float = 2.0
    """What one evaluation needs: it decides how many share a machine."""
    batch_memory_gb: float = 6.0
    batch_poll_seconds: float = 5.0
    batch_backend: str = "docker"
    """Which backend evaluates on machines of a Batch job."""

    @property
    def network_path(self) -> str:
        """As the APIs take it."""
        return _path(self.network or "default", "global/networks")

    @property
    def subnetwork_path(self) -> str:
        """Empty where none is set."""
        return _path(self.subnetwork, f"regions/{self.region}/subnetworks") if self.subnetwork else ""


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
_PARSERS: dict[str, Parser] = {
    "project": matching(r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,61}[a-z0-9]", "like my-project-123"),
    "region": matching(r"[a-z]+-[a-z]+[0-9]+", "like us-central1"),
    "zone": matching(r"[a-z]+-[a-z]+[0-9]+-[a-z]", "like us-central1-a"),
    "bucket": matching(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]", "3 or more of a-z, 0-9, . _ and -"),
    "machine_type": matching(r"[a-z0-9]+(-[a-z0-9]+)+", "like e2-standard-8"),
    "disk_gb": whole_number,
    "disk_type": matching(r"[a-z]+(-[a-z]+)+", "like pd-balanced"),
    "network": _network,
    "subnetwork": _network,
    "public_address": _yes_or_no,
    "service_account": matching(r"[^@\s]+@[^@\s]+", "an e-mail address"),
    "spot": _yes_or_no,
    "sandboxes_per_machine": whole_number,
    "most_machines": whole_number,
    "idle_minutes": _number,
    "image_template": str,
    "git_image": _image,
    "batch_image": _image,
    "batch_cpus": _number,
    "batch_memory_gb": _number,
    "batch_poll_seconds": _number,
    "batch_backend": str,
}
VARIABLES = {
    name: "GOOGLE_CLOUD_PROJECT" if name == "project" else f"GCP_{name.upper()}"
    for name in _PARSERS
    if not name.startswith("batch_")
}
"""Those of `batch_…` have the usual names, COOPERBENCH_GCP_BATCH_…"""
VARIABLES["image_template"] = ENVIRONMENT_VARIABLE
KEYS = {name: "gcp_project_id" if name == "project" else f"gcp_{name}" for name in _PARSERS}
"""In config.json."""
