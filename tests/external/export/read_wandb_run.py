"""Prints what is in the log of an offline run of wandb; runs in an environment that has wandb.

The log has the format of LevelDB: after a header of 7 bytes, blocks of 32 KiB with chunks.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from wandb.proto.wandb_internal_pb2 import Record

BLOCK = 32 * 1024
HEADER = 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def chunks(data: bytes) -> Iterator[tuple[int, bytes]]:
    position = HEADER
    while position + HEADER <= len(data):
        if BLOCK - position % BLOCK < HEADER:
            position += BLOCK - position % BLOCK
            continue
        _, size, kind = struct.unpack_from("<IHB", data, position)
        if not kind:
            return
        yield kind, data[position + HEADER : position + HEADER + size]
        position += HEADER + size


def records(data: bytes) -> Iterator[Record]:
    parts = b""
    for kind, chunk in chunks(data):
        parts = chunk if kind in (FULL, FIRST) else parts + chunk
        if kind in (FULL, LAST):
            yield Record.FromString(parts)


def main() -> None:
    (path,) = Path(sys.argv[1]).rglob("run-*.wandb")
    config: dict[str, object] = {}
    summary: dict[str, object] = {}
    name = ""
    for record in records(path.read_bytes()):
        if record.HasField("run"):
            name = record.run.display_name
            config |= {
                entry.key: json.loads(entry.value_json) for entry in record.run.config.update
            }
        if record.HasField("summary"):
            for entry in record.summary.update:
                key = entry.key or "/".join(entry.nested_key)
                summary[key] = json.loads(entry.value_json)
    tables = {
        table.name.rsplit("_", 2)[0]: json.loads(table.read_text())
        for table in Path(sys.argv[1]).rglob("*.table.json")
    }
    print(json.dumps({"name": name, "config": config, "summary": summary, "tables": tables}))


main()
