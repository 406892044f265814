"""What belongs to the tests by its path: it comes from the dataset, never from an agent.

An agent's own tests stay in its patch and are reported, but the tree that is judged is without them. What a golden
patch touches is the feature's, whatever it is called.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from cooperbench.diff import PatchError, paths_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from cooperbench.eval.trees import BaseTree
    from cooperbench.models import Feature

TestSideReason = Literal["test_file", "compiled_file", "shadows_module"]

_TEST_FILE = re.compile(
    r"(?:.*/)?(?:"
    r"(?:tests?|__tests__|__mocks__|__snapshots__|__fixtures__|testdata)/.*"
    r"|test_[^/]*\.pyi?|[^/]*_tests?\.py|tests?\.py"
    r"|[^/]*_test\.go"
    r"|[^/]*\.(?:test|spec)\.[cm]?[jt]sx?|[^/]*\.snap"
    r")",
    re.DOTALL | re.IGNORECASE,
)
_RUST_MODULE = re.compile(r"(?:.*/)?src/.*\.rs", re.DOTALL)
"""Test modules of a crate's own source: the crate does not compile without them, and they can do no more than it."""
_COMPILED = re.compile(
    r"(?:.*/)?(?:__pycache__/.*|[^/]*\.(?:py[cod]|so|dylib|dll|node))", re.DOTALL | re.IGNORECASE
)
_PYTHON_FILE = re.compile(r".*\.(?:pyi?|so)", re.DOTALL)


@dataclass(frozen=True)
class TestSide:
    """What an agent's patch is held against."""

    __test__ = False

    hidden: frozenset[str]
    """Paths of the hidden tests."""
    golden: frozenset[str] = frozenset()
    """Paths that golden patches touch."""
    base: Collection[str] = field(default=(), repr=False)
    """Paths of the base commit."""
    installed: Callable[[], frozenset[str]] = field(default=frozenset, repr=False)
    """Names of the Python modules in the image; asked for only when a patch adds one at an import root."""

    def reason_to_drop(self, path: str) -> TestSideReason | None:
        if path in self.golden:
            return None
        if _TEST_FILE.fullmatch(path) and not _RUST_MODULE.fullmatch(path):
            return "test_file"
        if _COMPILED.fullmatch(path):
            return "compiled_file"
        return "shadows_module" if self._shadows(path) else None

    def _shadows(self, path: str) -> bool:
        """A new Python module whose name, at an import root, is that of another one."""
        if not _PYTHON_FILE.fullmatch(path) or path in self.base:
            return False
        parts = path.split("/")
        for depth in range(len(parts)):
            root = "".join(f"{part}/" for part in parts[:depth])
            if f"{root}__init__.py" in self.base:
                return False  # inside of a package
            name = parts[depth].partition(".")[0]
            places = (f"{root}{name}/", f"{root}{name}.py")
            if any(one.startswith(places) for one in self.base):
                continue
            if name in sys.stdlib_module_names or name in self.installed():
                return True
        return False


def test_side_of(features: Iterable[Feature], base: BaseTree) -> TestSide:
    """For patches that are to implement these features."""
    features = tuple(features)
    return TestSide(
        frozenset(path for one in features for path in paths_of(one.tests.read_bytes())),
        frozenset(path for one in features for path in _paths_of_golden(one)),
        base.listing(),
        getattr(base, "installed_modules", frozenset),
    )


test_side_of.__test__ = False  # type: ignore[attr-defined]


def _paths_of_golden(feature: Feature) -> tuple[str, ...]:
    try:
        return paths_of(feature.patch.read_bytes())
    except PatchError:
        return ()
