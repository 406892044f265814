"""A program for an ordinary user: import an image, prepare a task in it, and look at the sandboxes.

Usage: python -m tests.support.images.as_user LAYOUT CACHE_DIR DATASET_DIR     prints JSON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cooperbench.backends.images.archives import import_images
from cooperbench.backends.images.pull import NoProgress
from cooperbench.backends.local import LocalBackend
from cooperbench.dataset.discovery import load_tasks

SCRIPT = """
echo "$(id -u) $HOME $(git -C /workspace/repo log --all --format=%s)"
rm /usr/bin/env && touch /usr/lib/new && ! ls /usr/bin/env 2>/dev/null && stat -c %u /etc/passwd
"""


def main() -> None:
    layout, cache_dir, dataset_dir = (Path(argument) for argument in sys.argv[1:])
    backend = LocalBackend(cache_dir=cache_dir)
    (image,) = import_images(backend.images.store, layout, None, NoProgress())
    (task,) = load_tasks(dataset_dir)
    prepared = backend.prepare(task)
    outputs = []
    for ref in (prepared.ref, prepared.agent_ref or ""):
        sandbox = backend.create_sandbox(ref)
        outputs.append(sandbox.run(["bash", "-c", SCRIPT]).stdout_read().split("\n"))
        last = sandbox.run_last(["bash", "-c", "ls /usr/lib/new; exit 7"], timeout_seconds=60)
        outputs[-1].append(f"{last.stdout_read().strip()} {last.returncode}")
    owners = {path.stat().st_uid for path in backend.images.store.layer_folders(image)[0].iterdir()}
    backend.close()
    print(json.dumps({"outputs": outputs, "owners": sorted(owners)}))


if __name__ == "__main__":
    main()
