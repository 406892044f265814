"""The tasks' images: made once for each engine with packages from the index, then told where the index is now.

They have no labels of ours, like images that were pulled.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from typing import TYPE_CHECKING, Any

from tests.support.docker.engines import cache_folder, locked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cooperbench.backends.docker.engine import Engine
    from cooperbench.models import Task
    from tests.support.published.index import PackageIndex

_BUILD_SECONDS = 900
_BUILT_FROM = ("Dockerfile", "base", "runner.sh", "setup.sh")
_NO_RETRIES = {"PIP_RETRIES": "0", "UV_HTTP_RETRIES": "0", "npm_config_fetch_retries": "0"}
"""Without a network, installers would wait for it for up to a minute."""
ASKING = ("PIP_INDEX_URL", "PIP_TRUSTED_HOST", "UV_DEFAULT_INDEX", "npm_config_registry")


def asking(index: PackageIndex) -> dict[str, str]:
    """The variables by which installers ask this index."""
    simple = f"{index.url}/simple/"
    return dict(zip(ASKING, (simple, index.address, simple, f"{index.url}/npm/"), strict=True))


def load_image(engine: Engine, task: Task, name: str, *, base: str, index: PackageIndex) -> None:
    """The task's image under this name; it asks this index, so it is of no use to other processes."""
    context = _context(task)
    kept = f"cooperbench-test-{task.repo}:{hashlib.sha256(context).hexdigest()[:12]}"
    with locked(cache_folder() / f"published-{engine.client}.lock"):
        tags = {tag for image in engine.api.images() for tag in image["RepoTags"] or []}
        if not any(tag.endswith(kept) for tag in tags):
            _build(engine, context, kept, {"BASE_IMAGE": base, "INDEX": index.url, **asking(index)})
    variables = " ".join(
        f"{key}={value}" for key, value in {**asking(index), **_NO_RETRIES}.items()
    )
    _build(engine, _packed({"Dockerfile": f"FROM {kept}\nENV {variables}\n".encode()}), name, {})


def _build(engine: Engine, context: bytes, name: str, arguments: dict[str, str]) -> None:
    """In the network of this machine."""
    events: list[dict[str, Any]] = list(
        engine.api.build(
            fileobj=io.BytesIO(context),
            custom_context=True,
            tag=name,
            rm=True,
            forcerm=True,
            decode=True,
            timeout=_BUILD_SECONDS,
            buildargs=arguments,
            network_mode="host",
        )
    )
    said = "".join(str(event.get("stream") or event.get("error") or "") for event in events)
    assert not any("error" in event for event in events), said[-3000:]


def _context(task: Task) -> bytes:
    files = {
        path.relative_to(task.path).as_posix(): path.read_bytes()
        for name in _BUILT_FROM
        for path in sorted([task.path / name, *(task.path / name).rglob("*")])
        if path.is_file()
    }
    return _packed(files)


def _packed(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()
