"""An image as the system of sandboxes: environment, user and shell, as Docker would have them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cooperbench.backends.images.merged import find_file
from cooperbench.backends.images.store import StoredImage
from cooperbench.backends.local.rootfs import ImageRoot
from cooperbench.errors import UserError
from cooperbench.sandbox.contract import NEEDED_TOOLS
from cooperbench.text import printable

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BIN_DIR = "/cooperbench/bin"
_MAX_TABLE_BYTES = 1 << 20
_MAX_ID = 2**32 - 2


class ImageUser(NamedTuple):
    """The user that commands run as."""

    uid: int = 0
    gid: int = 0
    home: str = "/root"


def make_image_root(image: StoredImage, layers: tuple[Path, ...]) -> ImageRoot:
    """Return an image as the system of sandboxes.

    Args:
        image: The image.
        layers: Folders of its layers, the top one first.

    Raises:
        UserError: It has no bash, or its user does not exist in it.
    """
    env = _environment(image)
    path = env.get("PATH") or _DEFAULT_PATH
    shell = _find_program(layers, "bash", path)
    if shell is None:
        raise missing_tool(image, "bash")
    user = find_user(layers, image.config.user or "")
    env = {
        "HOME": user.home,
        # Only one user exists inside: unpacking must not try to give files to others.
        "TAR_OPTIONS": "--no-same-owner",
        **env,
        "PATH": f"{_BIN_DIR}:{path}",
    }
    return ImageRoot(
        key=hashlib.sha256(" ".join(image.layers).encode()).hexdigest()[:16],
        layers=layers,
        shell=shell,
        env=tuple(env.items()),
        uid=user.uid,
        gid=user.gid,
    )


def missing_tool(image: StoredImage, tool: str) -> UserError:
    """Return the error for an image that cannot be used."""
    return UserError(f"the image {image.name} cannot be used: {tool} is missing; {NEEDED_TOOLS}")


def find_user(layers: Sequence[Path], text: str) -> ImageUser:
    """Return the user that an image names: NAME, UID, NAME:GROUP or UID:GID."""
    name, _, group = text.partition(":")
    user = _look_up_user(layers, name or "0")
    if group.isdecimal():
        return user._replace(gid=_checked_id(group))
    for fields in _table(layers, "/etc/group"):
        if group and fields[0] == group and fields[2].isdecimal():
            return user._replace(gid=_checked_id(fields[2]))
    return user


def _look_up_user(layers: Sequence[Path], name: str) -> ImageUser:
    for fields in _table(layers, "/etc/passwd"):
        has_numbers = len(fields) >= 6 and fields[2].isdecimal() and fields[3].isdecimal()
        if has_numbers and name in (fields[0], fields[2]):
            return ImageUser(_checked_id(fields[2]), _checked_id(fields[3]), fields[5] or "/")
    if name in ("0", "root"):
        return ImageUser()
    if not name.isdecimal():
        raise UserError(
            f"the image runs as {printable(name)[:80]!r}, a user that its /etc/passwd does not have"
        )
    return ImageUser(_checked_id(name), 0, "/")


def _checked_id(text: str) -> int:
    number = int(text[:20])
    if number > _MAX_ID:
        raise UserError(f"the image names the user or group {number}, which is too large")
    return number


def _environment(image: StoredImage) -> dict[str, str]:
    """Return those variables of an image that can be variables at all."""
    variables: dict[str, str] = {}
    for entry in image.config.env or []:
        name, equals, value = entry.partition("=")
        if name and equals and "\0" not in entry:
            variables[name] = value
    return variables


def _find_program(layers: Sequence[Path], name: str, path: str) -> Path | None:
    for folder in [*path.split(":"), *_DEFAULT_PATH.split(":")]:
        program = find_file(layers, f"{folder}/{name}")
        if program is not None:
            return program
    return None


def _table(layers: Sequence[Path], path: str) -> list[list[str]]:
    """Return the fields of the lines of a file such as /etc/passwd."""
    file = find_file(layers, path)
    if file is None or file.stat().st_size > _MAX_TABLE_BYTES:
        return []
    rows = [line.split(":") for line in file.read_text("utf-8", "replace").splitlines()]
    return [row for row in rows if len(row) >= 3]
