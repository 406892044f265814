"""How Go and Rust projects are installed and tested.

The functions run in a worker process with limits.
"""

from __future__ import annotations

import re

from cooperbench.author.languages.snapshot import Snapshot, get_table
from cooperbench.author.project import Project


def is_go_test(path: str) -> bool:
    """Whether Go would find tests in a file, by its name."""
    return path.endswith("_test.go")


def is_rust_test(path: str) -> bool:
    """Whether Cargo would find tests in a file, by its name."""
    return bool(re.fullmatch(r"(?:.*/)?tests/[^/]+\.rs", path))


def read_go_project(snapshot: Snapshot) -> Project | str:
    """Return how a Go module is tested, or why it is not supported."""
    if "go.mod" not in snapshot.files:
        return _explain_missing(snapshot, "go.mod")
    text = snapshot.text("go.mod")
    version = re.search(r"(?m)^go\s+(\d+\.\d+)", text)
    return Project(
        language="go",
        framework="go",
        install=("go mod download",) if re.search(r"(?m)^require\b", text) else (),
        test_command="go test ./...",
        base_image=f"golang:{version[1] if version else '1'}",
        sources={"framework": "go.mod", "install": "go.mod"},
    )


def read_rust_project(snapshot: Snapshot) -> Project | str:
    """Return how a crate is tested, or why it is not supported."""
    if "Cargo.toml" not in snapshot.files:
        return _explain_missing(snapshot, "Cargo.toml")
    document = snapshot.toml("Cargo.toml")
    version = get_table(document, "package").get("rust-version")
    is_workspace = "workspace" in document
    options = "--workspace" if is_workspace else ""
    image = f"rust:{version}-slim" if isinstance(version, str) else "rust:1-slim"
    return Project(
        language="rust",
        framework="cargo",
        # The target folder is kept, so that no test run compiles the dependencies again.
        install=(
            'export CARGO_TARGET_DIR="$(dirname "$DEST")/target"',
            f"cargo test -q --no-run {options}".strip(),
        ),
        test_command=f"cargo test {options}".strip(),
        test_options=options,
        base_image=image,
        sources={"framework": "Cargo.toml", "install": "Cargo.toml"},
    )


def _explain_missing(snapshot: Snapshot, name: str) -> str:
    folders = [path.rpartition("/")[0] for path in snapshot.paths if path.endswith(f"/{name}")]
    if folders:
        return f"there is no {name} at its top; name a part with --path, e.g. --path {folders[0]}"
    return f"there is no {name} at its top"
