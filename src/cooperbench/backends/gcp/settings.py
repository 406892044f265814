"""What can be set about Google Cloud: by keyword, by environment variable, or in the user's config file.

A keyword comes first, then the variable, then the key in config.json, which `cooperbench config gcp` writes.
Credentials are Google's own business: `gcloud auth application-default login`, or GOOGLE_APPLICATION_CREDENTIALS.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any, Literal, cast

from cooperbench.errors import UserError
from cooperbench.sandbox.git_server import DEFAULT_IMAGE, GitSharing
from cooperbench.settings import config_file, load_settings

Reach = Literal["address", "iap"]

DEFAULT_REGION = "us-central1"
DEFAULT_MACHINE_TYPE = "e2-standard-8"
DEFAULT_GIT_MACHINE_TYPE = "e2-medium"
DEFAULT_BOOT_IMAGE = "projects/cos-cloud/global/images/family/cos-stable"
CPUS_PER_SANDBOX = 2
LONGEST_LIFETIME_HOURS = 24 * 120
"""Compute Engine's limit of a machine's maximum run duration."""
COMPUTE_ENDPOINT_VARIABLE = "COOPERBENCH_GCP_COMPUTE_ENDPOINT"
"""For tests: a server without TLS, which gets no credentials."""

VARIABLES = {
    "project": "GOOGLE_CLOUD_PROJECT",
    "region": "GCP_REGION",
    "zone": "GCP_ZONE",
    "bucket": "GCP_BUCKET",
    "machine_type": "GCP_MACHINE_TYPE",
    "disk_gb": "GCP_DISK_GB",
    "disk_type": "GCP_DISK_TYPE",
    "network": "GCP_NETWORK",
    "subnetwork": "GCP_SUBNETWORK",
    "public_address": "GCP_PUBLIC_ADDRESS",
    "service_account": "GCP_SERVICE_ACCOUNT",
    "spot": "GCP_SPOT",
    "boot_image": "GCP_BOOT_IMAGE",
    "reach": "GCP_REACH",
    "sandboxes_per_machine": "GCP_SANDBOXES_PER_MACHINE",
    "most_machines": "GCP_MOST_MACHINES",
    "lifetime_hours": "GCP_LIFETIME_HOURS",
    "idle_minutes": "GCP_IDLE_MINUTES",
    "git": "GCP_GIT",
    "git_machine_type": "GCP_GIT_MACHINE_TYPE",
    "git_image": "GCP_GIT_IMAGE",
}
KEYS = {name: "gcp_project_id" if name == "project" else f"gcp_{name}" for name in VARIABLES}
"""In config.json."""
_PATTERNS = {
    "project": (re.compile(r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,61}[a-z0-9]"), "like my-project-123"),
    "region": (re.compile(r"[a-z]+-[a-z]+[0-9]+"), "like us-central1"),
    "zone": (re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z]"), "like us-central1-a"),
    "bucket": (re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"), "3 or more of a-z, 0-9, . _ and -"),
    "machine_type": (re.compile(r"[a-z0-9]+(-[a-z0-9]+)+"), "like e2-standard-8"),
    "disk_type": (re.compile(r"[a-z]+(-[a-z]+)+"), "like pd-balanced"),
    "network": (re.compile(r"[A-Za-z0-9._/:-]+"), "a network's name or path"),
    "subnetwork": (re.compile(r"[A-Za-z0-9._/:-]+"), "a subnetwork's name or path"),
    "service_account": (re.compile(r"[^@\s]+@[^@\s]+|default"), "an e-mail address"),
    "boot_image": (
        re.compile(r"[A-Za-z0-9._/:-]+"),
        "like projects/cos-cloud/global/images/family/cos-stable",
    ),
    "reach": (re.compile(r"address|iap"), "address or iap"),
    "git": (re.compile(r"server|carried"), "server or carried"),
    "git_machine_type": (re.compile(r"[a-z0-9]+(-[a-z0-9]+)+"), "like e2-medium"),
    "git_image": (re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*"), "an image's name"),
}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True)
class GcpSettings:
    project: str
    region: str
    zone: str
    """Where machines for agents are."""
    bucket: str
    """For the inputs and results of evaluations."""
    machine_type: str = DEFAULT_MACHINE_TYPE
    disk_gb: int = 100
    disk_type: str = "pd-balanced"
    network: str = ""
    """Of the VPC; empty: the project's default one."""
    subnetwork: str = ""
    public_address: bool = True
    """Without one, machines need Cloud NAT to reach registries, and are reached inside the VPC or through IAP."""
    service_account: str = ""
    """On the machines; empty: none for agents' machines, Batch's default for evaluations."""
    spot: bool = False
    boot_image: str = DEFAULT_BOOT_IMAGE
    """Of agents' machines: Container-Optimized OS, or a Debian, on which Docker is then installed."""
    reach: Reach = "address"
    """How SSH gets to machines: at their address, or through Identity-Aware Proxy with gcloud."""
    sandboxes_per_machine: int = 4
    most_machines: int = 50
    lifetime_hours: float = 12.0
    """After this a machine is deleted by Google, whatever became of us."""
    idle_minutes: float = 10.0
    """A machine without sandboxes is kept for this long, as the next may want it."""
    git: GitSharing = "server"
    """What `--git` means: a git server on a machine of its own, or commits that the harness carries."""
    git_machine_type: str = DEFAULT_GIT_MACHINE_TYPE
    git_image: str = DEFAULT_IMAGE
    """What the git server runs in: any image with git and python3."""

    @property
    def project_path(self) -> str:
        return f"projects/{self.project}"

    @property
    def network_path(self) -> str:
        """As the APIs take it; empty: the default."""
        return _path(self.network, "global/networks")

    @property
    def subnetwork_path(self) -> str:
        return _path(self.subnetwork, f"regions/{self.region}/subnetworks")


def read_settings(**given: object) -> GcpSettings:
    """The settings in force; UserError for one that is missing, unknown or makes no sense."""
    unknown = sorted(set(given) - set(VARIABLES))
    if unknown:
        raise UserError(f"the gcp backend has no setting {unknown[0]!r}; there are: {', '.join(VARIABLES)}")
    source = _Source(given)
    project = source.text("project", "")
    if not project:
        raise UserError(
            "no Google Cloud project is set: cooperbench config gcp, or set GOOGLE_CLOUD_PROJECT;"
            " or use --backend local or --backend docker"
        )
    region, zone = _place(source)
    machine_type = source.text("machine_type", DEFAULT_MACHINE_TYPE)
    return GcpSettings(
        project=project,
        region=region,
        zone=zone,
        bucket=source.text("bucket", f"cooperbench-eval-{project.rpartition(':')[2]}"),
        machine_type=machine_type,
        disk_gb=source.whole("disk_gb", 100, least=20),
        disk_type=source.text("disk_type", "pd-balanced"),
        network=source.text("network", ""),
        subnetwork=source.text("subnetwork", ""),
        public_address=source.yes("public_address", True),
        service_account=source.text("service_account", ""),
        spot=source.yes("spot", False),
        boot_image=source.text("boot_image", DEFAULT_BOOT_IMAGE),
        reach=cast("Reach", source.text("reach", "address")),
        sandboxes_per_machine=source.whole("sandboxes_per_machine", room_on(machine_type)),
        most_machines=source.whole("most_machines", 50),
        lifetime_hours=source.number("lifetime_hours", 12.0, most=LONGEST_LIFETIME_HOURS),
        idle_minutes=source.number("idle_minutes", 10.0),
        git=cast("GitSharing", source.text("git", "server")),
        git_machine_type=source.text("git_machine_type", DEFAULT_GIT_MACHINE_TYPE),
        git_image=source.text("git_image", DEFAULT_IMAGE),
    )


def room_on(machine_type: str) -> int:
    """How many sandboxes a machine is large enough for, by the number of processors in its type's name."""
    custom = re.search(r"custom-([0-9]+)-", machine_type)
    usual = re.search(r"-([0-9]+)(g|-lssd)?$", machine_type)
    found = custom or usual
    return max(1, int(found[1]) // CPUS_PER_SANDBOX) if found else 1


class _Source:
    """Where values come from, and how sure their sources are of them: 0 a keyword, 1 a variable, 2 the file."""

    def __init__(self, given: dict[str, object]) -> None:
        self._given = given
        self._filed = load_settings()

    def value(self, name: str) -> tuple[Any, int, str]:
        if self._given.get(name) is not None:
            return self._given[name], 0, f"gcp setting {name}"
        if text := os.environ.get(VARIABLES[name]):
            return text, 1, VARIABLES[name]
        return self._filed.get(KEYS[name]), 2, f"{config_file()}: {KEYS[name]}"

    def text(self, name: str, default: str) -> str:
        value, _, where = self.value(name)
        text = str(value if value is not None else "").strip()
        if not text:
            return default
        pattern, shape = _PATTERNS[name]
        if not pattern.fullmatch(text):
            raise UserError(f"{where} is {text!r}; it is {shape}")
        return text

    def yes(self, name: str, default: bool) -> bool:
        value, _, where = self.value(name)
        word = str(value if value is not None else "").strip().lower()
        if word and word not in _TRUE + _FALSE:
            raise UserError(f"{where} is {word!r}; it is true or false")
        return word in _TRUE if word else default

    def number(self, name: str, default: float, *, most: float = 100_000) -> float:
        value, _, where = self.value(name)
        if value is None or value == "":
            return default
        try:
            number = float(str(value))
        except ValueError:
            number = 0.0
        if not 0 < number <= most:
            raise UserError(f"{where} is {str(value)!r}; it is a number above 0 and at most {most:g}")
        return number

    def whole(self, name: str, default: int, *, least: int = 1) -> int:
        value, _, where = self.value(name)
        if value is None or value == "":
            return default
        if not re.fullmatch(r"[0-9]{1,6}", str(value)) or int(value) < least:
            raise UserError(f"{where} is {str(value)!r}; it is a whole number, at least {least}")
        return int(value)


def _place(source: _Source) -> tuple[str, str]:
    """Region and zone belong together: the one that was said more expressly decides."""
    region, zone = source.text("region", ""), source.text("zone", "")
    if not region:
        region = zone.rpartition("-")[0] or DEFAULT_REGION
    elif zone and zone.rpartition("-")[0] != region:
        (_, region_rank, _), (_, zone_rank, _) = source.value("region"), source.value("zone")
        if region_rank == zone_rank:
            raise UserError(
                f"the zone {zone} is not in the region {region}: set both, e.g. with cooperbench config gcp"
            )
        region, zone = (zone.rpartition("-")[0], zone) if zone_rank < region_rank else (region, "")
    return region, zone or default_zone(region)


def default_zone(region: str) -> str:
    """There is a zone `b` in nearly every region, but not an `a`."""
    return f"{region}-b"


def _path(name: str, collection: str) -> str:
    """`name`, or `projects/…/name` where it is another project's."""
    return name if not name or "/" in name else f"{collection}/{name}"
