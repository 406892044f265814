"""What users read if a Ray cluster cannot be used."""

from __future__ import annotations

from cooperbench.runner.executors.ray_cluster import connection_failure


def test_the_reason_that_ray_hides_in_the_cause_is_shown() -> None:
    error = ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379")
    error.__cause__ = RuntimeError(
        "Failed to connect to GCS. Last connection error: Traceback (most recent call last):\n"
        '  File "ray/_private/node.py", line 996, in _init_gcs_client\n'
        "ray.exceptions.RpcError: InvalidAuthToken: Authentication token is missing or incorrect\n"
    )
    assert connection_failure(error) == (
        "Failed to connect to Ray cluster at 10.0.0.1:6379: ray.exceptions.RpcError:"
        " InvalidAuthToken: Authentication token is missing or incorrect"
    )


def test_a_reason_without_a_cause_is_one_line() -> None:
    assert connection_failure(RuntimeError("no\n  cluster")) == "no cluster"
