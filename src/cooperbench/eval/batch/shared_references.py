"""References that the tasks of one remote evaluation share: what one task has found, others take from the bucket.

Tasks that begin at the same time may both make the same reference run; that costs time and nothing else.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

from cooperbench.eval.batch.store import REFERENCES
from cooperbench.eval.reference import Reference, ReferenceStore, file_name

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.eval.batch.store import Store
    from cooperbench.eval.testrun import Conditions


class SharedReferences(ReferenceStore):
    """Begins with those that were sent along."""

    def __init__(self, store: Store, folder: Path) -> None:
        super().__init__(folder)
        self._store = store
        self.add(json.loads(store.get(REFERENCES)))

    def load(self, question: str, image_digest: str, conditions: Conditions) -> Reference | None:
        name = file_name(question, image_digest, conditions)
        if not (self.folder / name).is_file():
            # Not there yet is the rule; a bucket that does not answer costs a test run.
            with suppress(OSError, ValueError):
                found = Reference.from_json(json.loads(self._store.get(f"references/{name}")))
                if found is not None:
                    super().save(found)
        return super().load(question, image_digest, conditions)

    def save(self, reference: Reference) -> None:
        super().save(reference)
        name = file_name(reference.question, reference.image_digest, reference.conditions)
        with suppress(OSError):
            self._store.put(f"references/{name}", json.dumps(reference.to_json()).encode())
