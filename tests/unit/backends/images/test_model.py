"""Names of images, and the choice of the image for this machine."""

from __future__ import annotations

import platform

import pytest

from cooperbench.backends.images.model import (
    Descriptor,
    ManifestDocument,
    NoSuchImage,
    Platform,
    choose_manifest,
    parse_reference,
)
from cooperbench.errors import UserError

DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("name", "full_name"),
    [
        ("python", "docker.io/library/python:latest"),
        ("python:3.11", "docker.io/library/python:3.11"),
        ("akhatua/cooperbench-typst:task1", "docker.io/akhatua/cooperbench-typst:task1"),
        ("localhost:5000/a/b", "localhost:5000/a/b:latest"),
        ("registry.example/a:1", "registry.example/a:1"),
        (f"registry.example/a:1@{DIGEST}", f"registry.example/a@{DIGEST}"),
    ],
)
def test_names(name: str, full_name: str) -> None:
    assert str(parse_reference(name)) == full_name


@pytest.mark.parametrize(
    "name",
    ["", "UPPER/case", "a b", "a:tag!", "http://a/b", "a@sha256:1", "a\n", "registry.example/"],
)
def test_texts_that_are_not_names(name: str) -> None:
    with pytest.raises(UserError, match="is not an image name") as caught:
        parse_reference(name)
    assert "\n" not in str(caught.value)


def index_of(*platforms: tuple[str, str]) -> ManifestDocument:
    manifests = [
        Descriptor(
            digest=f"sha256:{number:064}",
            size=1,
            platform=Platform(os=system, architecture=architecture),
        )
        for number, (system, architecture) in enumerate(platforms)
    ]
    return ManifestDocument(manifests=manifests)


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 1), ("aarch64", 2)])
def test_the_manifest_for_this_machine(
    machine: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    index = index_of(("windows", "amd64"), ("linux", "amd64"), ("linux", "arm64"))
    assert choose_manifest(index, "a").digest == f"sha256:{number:064}"


def test_no_manifest_for_this_machine() -> None:
    index = index_of(("linux", "riscv64"), ("unknown", "unknown"))
    with pytest.raises(NoSuchImage, match=r"no manifest for linux/.*; it has: linux/riscv64$"):
        choose_manifest(index, "a")
