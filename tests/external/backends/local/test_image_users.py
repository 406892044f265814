"""Images as an ordinary user of the machine, and images whose own user is not root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import pytest

from tests.support.images.built import Layout, base_layer, task_layer
from tests.support.images.tarballs import Tarball
from tests.support.paths import ROOT
from tests.support.requirements import require_program, require_root

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cooperbench.models import Task

NOBODY = 65534
NAME = "cooperbench/tiny_task:task7"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may read; pytest's own are closed to others."""
    folder = Path(mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("user", ["", "dev"])
def test_an_ordinary_user_of_the_machine(
    user: str, folder: Path, image_task: Task, image_dataset: Path
) -> None:
    require_root()  # only root can become another user
    setpriv = require_program("setpriv", package="util-linux")
    layout = Layout(folder / "layout")
    passwd = b"root:x:0:0:root:/root:/bin/sh\ndev:x:1000:1000::/home/dev:/bin/sh\n"
    users = Tarball().add("etc/passwd", passwd).folder("home/dev", 0o700)
    layers: list[bytes | Path] = [
        base_layer(),
        task_layer(image_task, image_dataset.parent / "setup.sh"),
        users.data,
    ]
    layout.add_image(NAME, layers, {"User": user})
    shutil.copytree(image_dataset, folder / "dataset")
    (folder / "home").mkdir()
    os.chown(folder / "home", NOBODY, NOBODY)
    libraries = sysconfig.get_paths()["purelib"]
    done = subprocess.run(
        [
            setpriv,
            f"--reuid={NOBODY}",
            f"--regid={NOBODY}",
            "--clear-groups",
            "--inh-caps=-all",
            "/usr/bin/python3",
            "-m",
            "tests.support.images.as_user",
            str(layout.folder),
            str(folder / "home/cache"),
            str(folder / "dataset"),
        ],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder / "home"),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), libraries]),
        },
        cwd=folder / "home",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    uid, home = ("1000", "/home/dev") if user else ("0", "/root")
    assert json.loads(done.stdout) == {
        "outputs": [
            [f"{uid} {home} The past", uid, "", "/usr/lib/new 7"],
            [f"{uid} {home} Base", uid, "", "/usr/lib/new 7"],
        ],
        "owners": [NOBODY],
    }
