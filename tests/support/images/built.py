"""Images as OCI layouts, made without any program: layers by hand, on a base from debootstrap."""

from __future__ import annotations

import gzip
import hashlib
import json
import platform
import shutil
import subprocess
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cooperbench.models import Task

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
ENV = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "FROM_IMAGE=yes")


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass
class Layout:
    """An OCI layout in a folder."""

    folder: Path
    _entries: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "blobs/sha256").mkdir(parents=True)
        (self.folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')

    def add_image(
        self,
        name: str,
        layers: Sequence[bytes | Path],
        config: Mapping[str, object] | None = None,
        architecture: str = ARCHITECTURE,
        *,
        zipped: bool = False,
    ) -> str:
        """Add an image of uncompressed tar files; return the digest of its manifest."""
        diff_ids = [_digest_of_layer(layer) for layer in layers]
        descriptors = [self._add_layer(layer, zipped=zipped) for layer in layers]
        document = {
            "architecture": architecture,
            "os": "linux",
            "config": {"Env": list(ENV), "WorkingDir": "/workspace", **(config or {})},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self._add(document, "application/vnd.oci.image.config.v1+json"),
            "layers": descriptors,
        }
        entry = self._add(manifest, MANIFEST)
        entry["platform"] = {"architecture": architecture, "os": "linux"}
        entry["annotations"] = {"org.opencontainers.image.ref.name": name}
        self._entries.append(entry)
        self._write_index()
        return str(entry["digest"])

    def add_index(self, name: str) -> str:
        """Replace the images by one index of all of them; return its digest."""
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": self._entries}
        entry = self._add(index, INDEX)
        entry["annotations"] = {"org.opencontainers.image.ref.name": name}
        self._entries = [entry]
        self._write_index()
        return str(entry["digest"])

    def packed(self, path: Path) -> Path:
        """Return the layout as a tar file."""
        subprocess.run(["tar", "-C", self.folder, "-cf", path, "."], check=True)
        return path

    def _write_index(self) -> None:
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": self._entries}
        (self.folder / "index.json").write_text(json.dumps(index))

    def _add(self, content: object, media_type: str) -> dict[str, Any]:
        data = json.dumps(content).encode()
        (self.folder / "blobs/sha256" / digest(data)[7:]).write_bytes(data)
        return {"mediaType": media_type, "digest": digest(data), "size": len(data)}

    def _add_layer(self, layer: bytes | Path, *, zipped: bool) -> dict[str, Any]:
        if isinstance(layer, Path):
            name = _digest_of_layer(layer)
            target = self.folder / "blobs/sha256" / name[7:]
            if not target.exists():
                shutil.copyfile(layer, target)
            return {"mediaType": LAYER, "digest": name, "size": layer.stat().st_size}
        data = gzip.compress(layer, mtime=0) if zipped else layer
        (self.folder / "blobs/sha256" / digest(data)[7:]).write_bytes(data)
        media_type = f"{LAYER}+gzip" if zipped else LAYER
        return {"mediaType": media_type, "digest": digest(data), "size": len(data)}


def _digest_of_layer(layer: bytes | Path) -> str:
    if isinstance(layer, bytes):
        return digest(layer)
    with layer.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def base_layer() -> Path:
    """Return a tar file of a Debian with git, Python and Node, or skip the running test."""
    # Not at the top: unit tests use this module without the client of an engine.
    from tests.support.docker.engines import root_file_system, skipped_without_engine

    with skipped_without_engine():
        return root_file_system()


def task_layer(task: Task, setup_script: Path | None = None) -> bytes:
    """Return a layer with the repository that a task's setup.sh makes, and its runner."""
    script = setup_script or task.setup_script
    with TemporaryDirectory() as folder:
        root = Path(folder)
        subprocess.run(
            ["bash", str(script), str(root / "workspace/repo")],
            check=True,
            capture_output=True,
        )
        (root / "usr/local/bin").mkdir(parents=True)
        shutil.copyfile(task.runner_script, root / "usr/local/bin/runner.sh")
        (root / "usr/local/bin/runner.sh").chmod(0o755)
        packed = root / "layer.tar"
        with tarfile.open(packed, "w") as archive:
            for name in ("usr", "workspace"):
                archive.add(root / name, name)
        return packed.read_bytes()


def task_archive(folder: Path, tasks: Mapping[str, Task]) -> Path:
    """Return an archive with the images of tasks, by name."""
    layout = Layout(folder / "layout")
    for name, task in tasks.items():
        layout.add_image(name, [base_layer(), task_layer(task)])
    return layout.packed(folder / "images.tar")
