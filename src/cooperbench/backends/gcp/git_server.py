"""The git server of a run: a small machine of its own in the VPC, which only the run's machines reach.

It is made as agents' machines are. The server is a container on it, on the machine's own network, at its address inside
the VPC; who may push what is said in `cooperbench/team/gitserver.py`. It is never a spot machine: all pairs at work
would lose it together.

Who reaches it is decided by two firewall rules per backend object: one lets its machines in, one of lower priority
keeps out everybody else, whatever other rules of the network allow. Firewall rules have no labels, so whose they are
stands in their description.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from typing import TYPE_CHECKING, NamedTuple

from cooperbench.backends.gcp.compute import (
    CALL_SECONDS,
    SESSION,
    client_options,
    is_leftover,
    resource_labels,
    wait_for_operation,
)
from cooperbench.backends.gcp.engine import GIT_PORT
from cooperbench.backends.gcp.faults import NotFound, PermissionDenied, faults
from cooperbench.backends.gcp.machines import SPARE_SECONDS
from cooperbench.backends.gcp.settings import LONGEST_LIFETIME_HOURS
from cooperbench.errors import CooperBenchError, UserError
from cooperbench.sandbox.git_server import GitServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from google.cloud import compute_v1

    from cooperbench.backends.gcp.machines import CloudSession, Machine
    from cooperbench.backends.gcp.settings import GcpSettings

ADMIT_PRIORITY = 1
KEEP_OUT_PRIORITY = 2
"""The lower decides. Rules of users have 1000 unless they say otherwise, those that a network begins with 65534."""
ROLE = "roles/compute.securityAdmin"
_OURS = "cooperbench-"
_LIFETIMES = 4
"""Of agents' machines: pairs that begin late should not lose it in the middle."""
_log = logging.getLogger("cooperbench")


class GitMachines:
    """Of one backend object: one at a time, another one where it was lost."""

    def __init__(self, session: CloudSession) -> None:
        self._session = session
        self._settings = session.settings
        self._lock = threading.Lock()
        self._firewall: Firewall | None = None
        self._protected = False
        self._there: set[Machine] = set()

    def start(self, run_name: str) -> GitServer:
        """A server that answers, on a machine that is deleted when the server's sandbox ends. One call at a time."""
        self._protect()
        machine = self._new(run_name)
        try:
            machine.start()
            address = self._session.compute.internal_address(machine.name)
            sandbox = machine.engine.create_server(
                self._settings.git_image, self._lifetime_seconds - SPARE_SECONDS
            )
            where = f"{address}:{GIT_PORT}"
            return GitServer(sandbox, f"http://{where}", host=address, port=GIT_PORT, reaches=(where,))
        except UserError as error:
            self._delete(machine)
            words = f"the git server of --git: {error}; GCP_GIT=carried needs neither machine nor image"
            raise UserError(words) from error
        except BaseException:
            self._delete(machine)
            raise

    def close(self) -> None:
        """Delete what is there, and the rules that were set for it. Calling it again goes on with what is left."""
        with self._lock:
            machines = list(self._there)
        self._session.delete(machines)
        if self._firewall is not None:
            try:
                self._firewall.remove_session(self._session.name)
            except CooperBenchError as error:
                _log.warning("%s; cooperbench clean --backend gcp removes the firewall rules", error)
        with self._lock:
            self._there.clear()
            self._firewall, self._protected = None, False

    @property
    def _lifetime_seconds(self) -> int:
        hours = min(self._settings.lifetime_hours * _LIFETIMES, LONGEST_LIFETIME_HOURS)
        return max(int(hours * 3600), 2 * SPARE_SECONDS)

    def _protect(self) -> None:
        """Before there is anything to protect. Once: rules hold for every machine with the tag."""
        if self._protected:
            return
        if self._firewall is None:
            self._firewall = Firewall(self._settings)
        self._firewall.protect(self._session.name)
        self._protected = True

    def _new(self, run_name: str) -> Machine:
        machine = self._session.new_machine(
            run_name,
            "git",
            self._settings.git_machine_type,
            self._lifetime_seconds,
            spot=False,
            tag=git_tag(self._session.name),
            on_release=self._delete,
            metadata={"cooperbench-serve-port": str(GIT_PORT)},
        )
        with self._lock:
            self._there.add(machine)
        return machine

    def _delete(self, machine: Machine) -> None:
        with self._lock:
            there = machine in self._there
            self._there.discard(machine)
        if there:
            self._session.delete([machine])


class Rule(NamedTuple):
    """A firewall rule that is there."""

    name: str
    labels: Mapping[str, str]


class Firewall:
    """Of the network that machines are in, which may be another project's."""

    def __init__(self, settings: GcpSettings) -> None:
        self._settings = settings
        self._project = _project_of(settings.network or settings.subnetwork) or settings.project
        with faults("connecting to Compute Engine"):
            from google.cloud import compute_v1

            self._rules = compute_v1.FirewallsClient(**client_options())

    def protect(self, session: str) -> None:
        """Set both rules; UserError where we may not."""
        try:
            for rule in _rules(session, self._network()):
                self._insert(rule)
        except PermissionDenied as error:
            raise PermissionDenied(
                f"{error}; the git server of --git needs {ROLE}, or set GCP_GIT=carried, which needs no server"
            ) from error

    def listed(self) -> list[Rule]:
        """Those of ours, whoever's they are."""
        from google.cloud import compute_v1

        request = compute_v1.ListFirewallsRequest(project=self._project, filter=f'name eq "{_OURS}.*"')
        with faults("listing the firewall rules"):
            found = list(self._rules.list(request, timeout=CALL_SECONDS))
        return [Rule(rule.name, _labels_in(rule.description)) for rule in found]

    def remove_leftovers(self) -> list[str]:
        """Delete the rules of processes of this user and machine that are gone."""
        return self._remove(lambda rule: is_leftover(rule.labels))

    def remove_session(self, session: str) -> list[str]:
        return self._remove(lambda rule: rule.labels.get(SESSION) == session)

    def _remove(self, wanted: Callable[[Rule], bool]) -> list[str]:
        """Not waited for; the names of those that were there."""
        return [rule.name for rule in self.listed() if wanted(rule) and self._delete(rule.name)]

    def _delete(self, name: str) -> bool:
        """One that cannot be deleted does not keep the others from it."""
        try:
            with faults(f"deleting the firewall rule {name}"):
                self._rules.delete_unary(project=self._project, firewall=name, timeout=CALL_SECONDS)
        except NotFound:
            return False
        except CooperBenchError as error:
            _log.warning("%s", error)
            return False
        return True

    def _insert(self, rule: compute_v1.Firewall) -> None:
        """One that is there already is ours: its name was made for it."""
        from google.api_core.exceptions import Conflict
        from google.cloud import compute_v1

        doing = f"setting the firewall rule {rule.name}"
        with faults(doing):
            try:
                operation = self._rules.insert_unary(
                    project=self._project, firewall_resource=rule, timeout=CALL_SECONDS
                )
            except Conflict:
                return
            operations = compute_v1.GlobalOperationsClient(**client_options())
            wait_for_operation(
                operation,
                lambda name: operations.wait(project=self._project, operation=name, timeout=CALL_SECONDS * 3),
                doing,
            )

    def _network(self) -> str:
        """A rule names a network, settings may name a subnetwork alone."""
        from google.cloud import compute_v1

        settings = self._settings
        if settings.network or not settings.subnetwork:
            return settings.network_path or "global/networks/default"
        name = settings.subnetwork_path.rpartition("/")[2]
        region = re.search(r"regions/([^/]+)/", settings.subnetwork_path)
        with faults(f"asking for the network of {name}"):
            found = compute_v1.SubnetworksClient(**client_options()).get(
                project=self._project,
                region=region[1] if region else settings.region,
                subnetwork=name,
                timeout=CALL_SECONDS,
            )
        return found.network


def _rules(session: str, network: str) -> list[compute_v1.Firewall]:
    """The one that keeps out comes first: there is no moment without it."""
    from google.cloud import compute_v1

    ports = [str(GIT_PORT)]
    common = {
        "description": json.dumps(resource_labels("", "git", **{SESSION: session})),
        "network": network,
        "direction": "INGRESS",
        "target_tags": [git_tag(session)],
    }
    keep_out = compute_v1.Firewall(
        name=f"{_OURS}{session}-keep-out",
        priority=KEEP_OUT_PRIORITY,
        source_ranges=["0.0.0.0/0"],
        denied=[compute_v1.Denied(I_p_protocol="tcp", ports=ports)],
        **common,
    )
    admit = compute_v1.Firewall(
        name=f"{_OURS}{session}-admit",
        priority=ADMIT_PRIORITY,
        source_tags=[session_tag(session)],
        allowed=[compute_v1.Allowed(I_p_protocol="tcp", ports=ports)],
        **common,
    )
    return [keep_out, admit]


def session_tag(session: str) -> str:
    """The network tag of one backend object's machines for agents."""
    return f"cooperbench-{session}"


def git_tag(session: str) -> str:
    """That of its git server."""
    return f"cooperbench-{session}-git"


def _labels_in(description: str) -> dict[str, str]:
    """Nothing where it is not ours."""
    try:
        found = json.loads(description)
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _project_of(path: str) -> str:
    """Empty where it is the one of the machines."""
    found = re.search(r"projects/([^/]+)/", path)
    return found[1] if found else ""
