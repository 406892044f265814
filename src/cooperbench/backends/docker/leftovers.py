"""What killed processes of ours left in an engine, and its removal. Nothing that is not labelled by us is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cooperbench.backends.docker.faults import NotThere, faults
from cooperbench.backends.docker.labels import OWNER, SESSION, owner_of
from cooperbench.backends.docker.sandbox import remove_container
from cooperbench.errors import InfraError
from cooperbench.sandbox.owner import is_dead

if TYPE_CHECKING:
    from collections.abc import Callable

    from cooperbench.backends.docker.engine import Engine


def remove_leftovers(engine: Engine) -> list[str]:
    """Remove the containers, networks and volumes of processes that are gone; returns their names."""
    return _remove(engine, OWNER, _is_leftover)


def remove_session(engine: Engine, session: str) -> list[str]:
    """Remove whatever one backend object has made and not removed itself."""
    return _remove(engine, f"{SESSION}={session}", lambda labels, _: labels.get(SESSION) == session)


def clean(executable: str | None = None) -> list[str]:
    """For `cooperbench clean --backend docker`: connect, remove leftovers, tell their names."""
    from cooperbench.backends.docker.engine import connect
    from cooperbench.backends.docker.settings import read_settings

    engine = connect(executable or read_settings().executable)
    try:
        return remove_leftovers(engine)
    finally:
        engine.close()


def _is_leftover(labels: dict[str, str], running: bool) -> bool:
    owner = owner_of(labels)
    return owner is not None and is_dead(owner, running=running)


def _remove(engine: Engine, label: str, wanted: Callable[[dict[str, str], bool], bool]) -> list[str]:
    removed = []
    filters = {"label": [label]}
    with faults("listing what is left over", engine.client):
        containers: list[dict[str, Any]] = engine.api.containers(all=True, filters=filters)
        networks: list[dict[str, Any]] = engine.api.networks(filters=filters)
        volumes: list[dict[str, Any]] = engine.api.volumes(filters=filters)["Volumes"] or []
    for found in containers:
        if wanted(found["Labels"] or {}, found["State"] in ("running", "paused", "restarting")):
            remove_container(engine, found["Id"])
            removed.append((found["Names"] or [found["Id"]])[0].lstrip("/"))
    for found, remove in [
        *((network, engine.api.remove_network) for network in networks),
        *((volume, engine.api.remove_volume) for volume in volumes),
    ]:
        # The label filter of old Podman matches by prefix, so the label itself is looked at too.
        labels = found["Labels"] or {}
        if label.partition("=")[0] in labels and wanted(labels, False):
            removed += _try_removal(engine, found["Name"], remove)
    return removed


def _try_removal(engine: Engine, name: str, remove: Callable[[str], None]) -> list[str]:
    try:
        with faults(f"removing {name}", engine.client):
            remove(name)
    except NotThere:
        return []
    except InfraError:
        return []  # still in use by somebody: the next start tries again
    return [name]
