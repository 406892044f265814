"""A collector on loopback that reads OTLP over HTTP with the official messages."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as a backend would see it; ids as bytes."""

    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    name: str
    kind: int
    seconds: float
    attributes: Mapping[str, Any]
    events: list[tuple[str, Mapping[str, Any]]]
    links: list[bytes]
    is_error: bool
    resource: Mapping[str, Any]


@dataclass
class Received:
    """What a collector has received so far."""

    url: str
    spans: list[ReceivedSpan] = field(default_factory=list)
    requests: int = 0
    paths: list[str] = field(default_factory=list)

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name.startswith(name)]


def value_of(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(item) for item in value.array_value.values]
    return getattr(value, kind)


def attributes_of(message: Any) -> dict[str, Any]:
    names = [pair.key for pair in message.attributes]
    assert len(names) == len(set(names))
    return {pair.key: value_of(pair.value) for pair in message.attributes}


def spans_of(request: Any) -> Iterator[ReceivedSpan]:
    """Yield the spans of an ExportTraceServiceRequest or a TracesData."""
    for resource_spans in request.resource_spans:
        resource = attributes_of(resource_spans.resource)
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                assert span.end_time_unix_nano >= span.start_time_unix_nano > 0
                assert (len(span.trace_id), len(span.span_id)) == (16, 8)
                yield ReceivedSpan(
                    trace_id=span.trace_id,
                    span_id=span.span_id,
                    parent_id=span.parent_span_id,
                    name=span.name,
                    kind=span.kind,
                    seconds=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                    attributes=attributes_of(span),
                    events=[(event.name, attributes_of(event)) for event in span.events],
                    links=[link.span_id for link in span.links],
                    is_error=span.status.code == 2,
                    resource=resource,
                )


@contextmanager
def collector(status: int = 200) -> Iterator[Received]:
    """A collector that answers every request with a status."""
    received = Received("")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            received.requests += 1
            received.paths.append(self.path)
            if status == 200:
                received.spans += spans_of(ExportTraceServiceRequest.FromString(body))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
