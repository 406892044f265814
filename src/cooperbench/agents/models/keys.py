"""Whether a model can be asked at all, before anything is started: its provider is known, its key is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cooperbench import redaction
from cooperbench.agents.models.library import load
from cooperbench.errors import UserError
from cooperbench.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

_CREDENTIAL_KWARGS = (
    "api_key", "api_base", "base_url", "azure_ad_token", "vertex_credentials", "aws_access_key_id", "aws_profile_name",
)  # fmt: skip
_AMBIENT = {
    "vertex_ai": (
        (
            "GOOGLE_APPLICATION_CREDENTIALS",
            "VERTEXAI_CREDENTIALS",
            "VERTEXAI_PROJECT",
            "GOOGLE_CLOUD_PROJECT",
        ),
        Path("~/.config/gcloud/application_default_credentials.json"),
        "`gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS and VERTEXAI_PROJECT",
    ),
    "bedrock": (
        (
            "AWS_ACCESS_KEY_ID",
            "AWS_PROFILE",
            "AWS_BEARER_TOKEN_BEDROCK",
            "AWS_ROLE_ARN",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
        ),
        Path("~/.aws"),
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    ),
}
"""Providers whose credentials may lie in several places: variables, a file, and what to do without any."""


def check_model(model: str, kwargs: Mapping[str, Any]) -> None:
    """Raise UserError for a model of no known provider, or one that there is no key for.

    `kwargs` is what the agent config adds to every call: an `api_key` or `api_base` there is the user's own
    responsibility. Whether the provider has the model is known with the first answer only.
    """
    litellm = load()
    remember_secrets(kwargs)
    try:
        _, provider, *_ = litellm.get_llm_provider(
            model, api_base=kwargs.get("api_base") or kwargs.get("base_url")
        )
    except Exception as error:
        raise UserError(
            f"model {printable(model)!r}: LiteLLM knows no provider of it; put the provider first, e.g. "
            f"openai/{printable(model)} or gemini/{printable(model)} (https://docs.litellm.ai/docs/providers)"
        ) from error
    if any(kwargs.get(name) for name in _CREDENTIAL_KWARGS):
        return
    if provider in _AMBIENT:
        variables, file, advice = _AMBIENT[provider]
        if not any(os.environ.get(name) for name in variables) and not file.expanduser().exists():
            raise UserError(f"model {printable(model)!r}: there are no credentials for {provider}: {advice}")
        return
    absent = litellm.validate_environment(model)["missing_keys"]
    keys = [name for name in absent if redaction.is_secret_name(name)]
    if keys:
        raise UserError(
            f"model {printable(model)!r} needs {' or '.join(keys)}: set it in the environment or in .env, "
            "or model.model_kwargs.api_key in the agent config"
        )


def remember_secrets(kwargs: Mapping[str, Any]) -> None:
    """Have the secrets among settings of an agent config redacted from now on."""
    for name, value in kwargs.items():
        if isinstance(value, dict):
            remember_secrets({str(key): inner for key, inner in value.items()})
        elif isinstance(value, str) and (redaction.is_secret_name(name) or name.lower() == "authorization"):
            redaction.remember(value.removeprefix("Bearer "), name)
