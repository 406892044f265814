"""Google's clients for Batch and Cloud Storage, made when they are needed.

An endpoint without TLS is a server for tests: it gets no credentials.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cooperbench.backends.gcp.faults import faults

if TYPE_CHECKING:
    from google.auth.credentials import Credentials
    from google.cloud.batch_v1 import BatchServiceClient

    from cooperbench.backends.gcp.settings import GcpSettings

BATCH_ENDPOINT_VARIABLE = "COOPERBENCH_GCP_BATCH_ENDPOINT"
STORAGE_ENDPOINT_VARIABLE = "STORAGE_EMULATOR_HOST"
"""The client's own variable."""


def storage_endpoint() -> str:
    """Empty for Google's own."""
    return os.environ.get(STORAGE_ENDPOINT_VARIABLE, "")


def batch_client() -> BatchServiceClient:
    with faults("connecting to Batch"):
        from google.api_core.client_options import ClientOptions
        from google.cloud.batch_v1 import BatchServiceClient

        endpoint = os.environ.get(BATCH_ENDPOINT_VARIABLE, "")
        return BatchServiceClient(
            credentials=_credentials(endpoint),
            transport="rest",
            client_options=ClientOptions(api_endpoint=endpoint) if endpoint else None,
        )


def storage_client(settings: GcpSettings) -> Any:
    with faults("connecting to Cloud Storage"):
        return import_module("google.cloud.storage").Client(
            project=settings.project, credentials=_credentials(storage_endpoint())
        )


def _credentials(endpoint: str) -> Credentials | None:
    if not endpoint.startswith("http:"):
        return None
    anonymous: Credentials = import_module("google.auth.credentials").AnonymousCredentials()
    return anonymous
