"""No credential that lorarl accepts is left in a text, and ordinary words are."""

from __future__ import annotations

import json

import pytest

from lorarl_api.redaction import redacted
from lorarl_api.v1alpha1.stores import STORES

VALUE = "wJ7mDq3/xYt+K9aPzR5vLbE2nH8cUoS4gFfT1iQk"
PEM_LINE = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
PUBLIC = (
    "REGION",
    "ENDPOINT",
    "ACCOUNT_NAME",
    "CLIENT_ID",
    "TENANT",
    "STYLE",
    "SKIP",
    "AUTHORITY",
    "EMULATOR",
    "USE_",
    "_FILE",
    "_URL",
)
NAMES = sorted(
    {name for place in STORES.values() for name in place.keys if not any(part in name for part in PUBLIC)}
    - {"GOOGLE_SERVICE_ACCOUNT", "GOOGLE_APPLICATION_CREDENTIALS"}  # the path of a file, or JSON
    | {"WANDB_API_KEY", "OPENAI_API_KEY", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD", "HF_TOKEN"}
)
FORMS = (
    "{name}={value}",
    "export {name}='{value}'",
    '{name}="{value}" lorarl run',
    "{name}: {value}",
    "  {name}: {value}\n  other: 1",
    '{{"{name}": "{value}", "step": 3}}',
    "environ({{'{name}': '{value}', 'HOME': '/tmp'}})",
    '"{{\\"{name}\\": \\"{value}\\"}}"',
    "declare -x {name}={value}",
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", FORMS)
def test_the_value_of_a_secret_is_hidden_by_its_name(name: str, form: str) -> None:
    text = redacted(form.format(name=name, value=VALUE))
    assert VALUE not in text and VALUE[:12] not in text and VALUE[-12:] not in text
    assert "***" in text and name in text


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", ["team-deadbeef-0042", "1234-abcd-5678", "a.b.c.9", "session=abc9", "12:abcdef"])
def test_a_key_that_begins_like_a_word_or_a_number_is_hidden_whole(value: str, form: str) -> None:
    assert value[-4:] not in redacted(form.format(name="WANDB_API_KEY", value=value))


@pytest.mark.parametrize(
    "text",
    [
        "password=hunter2",
        "s3://AKID:wJal/rXhunter2@bucket/folder",
        "OPENAI_KEY=Xhunter2",
        "AZURE_STORAGE_KEY='Xhunter2'",
        "export DB_PASS=hunter2",
        'os.environ["API_TOKEN"] = "hunter2"',
        "db_password => hunter2",
        "password = hunter2",
        "Password: hunter2",
        "db_password: hunter2\nnext",
        "kwargs: {'password': 'hunter2'}",
        "mysql://root:hunter2@db/x",
        "--password hunter2 --port 3",
        "--api-key hunter2 run",
        "Authorization: Bearer hunter2",
        "authorization: hunter2",
        "{'Authorization': 'Basic hunter2'}",
        '"authorization": "Bearer hunter2"',
        "Proxy-Authorization: Basic hunter2=",
        "X-Api-Key: hunter2",
        "X-Auth-Token: hunter2\r\n",
        "curl -H 'Authorization: token hunter2' https://example.com",
        "sent with Bearer hunter2hunter2",
        "DefaultEndpointsProtocol=https;AccountName=team;AccountKey=hunter2==;EndpointSuffix=core.windows.net",
        "SharedAccessSignature=hunter2",
        "AZURE_STORAGE_SAS_TOKEN=sv=2024&sig=hunter2",
        "https://team.blob.core.windows.net/x?sv=2024&sig=hunter2&se=1",
        "client_secret=hunter2",
        "aws_secret_access_key = hunter2",
        '"private_key_id": "hunter2"',
        'GOOGLE_SERVICE_ACCOUNT_KEY={"private_key_id": "hunter2"}',
        "-----BEGIN RSA PRIVATE KEY-----\nhunter2",
        "Set-Cookie: hunter2",
    ],
)
def test_other_forms(text: str) -> None:
    assert "hunter2" not in redacted(text)


def test_a_service_account_of_google() -> None:
    key = {"type": "service_account", "private_key_id": "0a1b2c3d4e5f", "client_email": "a@b.iam"}
    key["private_key"] = f"-----BEGIN PRIVATE KEY-----\n{PEM_LINE}\n-----END PRIVATE KEY-----\n"
    for indent in (None, 2):
        text = redacted(json.dumps(key, indent=indent))
        assert PEM_LINE not in text and "0a1b2c3d4e5f" not in text
    assert PEM_LINE not in redacted(f"{PEM_LINE}\n{PEM_LINE}\nvalue")  # the log was cut before its first line


@pytest.mark.parametrize("name", ["hf_", "sk-proj-", "ghp_", "gho_", "glpat-", "AIza", "eyJ", "AKIA"])
def test_a_token_with_a_known_beginning(name: str) -> None:
    assert "a1b2c3d4e5f6" not in redacted(f"the server refuses {name}a1b2c3d4e5f6.")


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens: 512",
        "max_tokens=512, tokens=3",
        "keys=3",
        "key=12 value=13",
        "KeyError: 'answer'",
        "token: 512",
        "token=13 of 40",
        "Unexpected token: identifier",
        "pad_token_id=151643",
        "tokens/s 512.3, step 12 of 200",
        "spec.checkpoint.credentialsSecret: got 's3-keys', expected a folder. Create it.",
        "credentialsSecret: s3-keys",
        "--set spec.model.credentialsSecret=hub",
        'secret "hf" not found',
        "Secret s3-keys does not exist in namespace team. Create it.",
        "SecretMissing: Create it",
        "secretName: s3-keys",
        "tokensPerMicroBatch: 4096",
        "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "primary_key=id",
        "AWS_REGION=us-east-1 AWS_ENDPOINT_URL=http://minio:9000",
        "access_key: missing",
        "basic authentication failed",
        "The bearer must act",
        "HF_TOKEN is not set. Set HF_TOKEN: it gives access to the model.",
        "OPENAI_API_KEY=*** was refused",
        "https://registry:4873/@scope/name",
        "forward_pass=0.25, first_pass: slow",
        "max_tokens=512,top_p=1",
    ],
)
def test_ordinary_words_stay(text: str) -> None:
    assert redacted(text) == text
