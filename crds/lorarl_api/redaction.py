"""Hides credentials in text by their form: in URIs, by known prefixes, and by the names before them.

Text of others reaches a job's status and Events: the end of a container's log, an exception of a reward, a message of
the API server. Who may read the status may not read the Secrets.
"""

from __future__ import annotations

import re

HIDDEN = "***"

_USER_INFO = re.compile(r"(://)(?:[^/\s]*|[^/\s:@]*:(?![0-9]{1,5}/)[^\s@?#\"']{0,200})@")
"""A secret key of S3 may have slashes; what only looks like one is a port."""
_OPEN_QUERY = re.compile(
    r"([?&;][^=&;\s]*(?:key|token|secret|sig|signature|password|credential)[^=&;\s]*=)[^&;\s]*", re.IGNORECASE
)
_TOKENS = re.compile(
    r"\b(?:hf_|sk-|gh[opsu]_|github_pat_|glpat-|xox[abp]-|AIza|ya29\.|AKIA|ASIA|eyJ)[A-Za-z0-9_\-/+.=]{8,}"
    r"|-----BEGIN[^-]*PRIVATE KEY.*",
    re.DOTALL,
)
_KEY_LINE = re.compile(
    r"^(?=[^\n]*[a-z])(?=[^\n]*[A-Z])(?=[^\n]*[0-9])[ \t\"']*[A-Za-z0-9+/]{60,}={0,2}[ \t\"',]*$", re.MULTILINE
)
"""A line of a private key whose first line is not there."""
_AUTHORIZATION = re.compile(
    r"((?:\b|[-_])authorization[\"']?\s*[:=]\s*[\"']?(?:(?:bearer|basic|token|digest|negotiate|apikey)\s+)?)[^\s\"',;}]+",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(\b(?:bearer|basic)\s+)(?=\S*[0-9=_])[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)

_SECRET = r"(?:secret|pass(?:word|wd|phrase)|pwd|(?<!image)credential)"
_KEYS = r"(?:api|access|secret|account|storage|private|shared|signing|license|encryption|auth)[_-]?key(?:[_-]?id)?"
_TOKEN = rf"(?:token|{_KEYS}|sharedaccesssignature|cookie|(?<=[_-])pass)"
_NAME = rf"(?<!credentials)(?<!credentials_)(?:{_SECRET}|(?P<token>{_TOKEN}))"
_NO_VALUE = r"(?!\*\*\*)"
_WHOLE = r"(?=[,;)\]}&|]|[.:!]?(?:[\s\"'\\<]|$))"
_WORD = rf"(?(token)(?!(?:[0-9]{{1,9}}(?:\.[0-9]+)?|(?-i:[a-z]+|None|null|True|False)){_WHOLE}))"
"""After the name of a token or key, a number or a plain word is none: `token: 512`, `access_key: missing`."""
_QUOTED = re.compile(
    rf"({_NAME}\\?[\"']?\]?\s*(?:=>|[:=])\s*)(?P<quote>\\?[\"']){_NO_VALUE}(?:(?!(?P=quote)).)+(?P=quote)",
    re.IGNORECASE,
)
_CONNECTION = re.compile(rf"({_NAME}=){_NO_VALUE}{_WORD}[^\s;\"']+(?=;[A-Za-z]+=)", re.IGNORECASE)
_ASSIGNED = re.compile(rf"({_NAME}\s?=>?\s?){_NO_VALUE}{_WORD}[^\s\"']+", re.IGNORECASE)
_VARIABLE = re.compile(
    r"((?:\b|_)(?:SECRET|PASSWORD|TOKEN|KEY|CREDENTIALS?)(?:_ID)?(?::\s+|=[\"']?))(?!\*\*\*)(?=\S*[0-9A-Z/+=_-])[^\s\"']{6,}"
)
_LAST_ON_LINE = re.compile(rf"({_NAME}:[ \t]+){_NO_VALUE}{_WORD}[^\s\"']+(?=[ \t\r]*$)", re.IGNORECASE | re.MULTILINE)
_OPTION = re.compile(rf"(--[a-z-]{{0,40}}{_NAME}[ \t]+){_NO_VALUE}{_WORD}[^\s\"'-][^\s\"']*", re.IGNORECASE)


def redacted(text: str) -> str:
    """`text` with `***` in place of credentials in URIs, of anything like a token, and of what secret names have."""
    text = _OPEN_QUERY.sub(rf"\1{HIDDEN}", _USER_INFO.sub(rf"\1{HIDDEN}@", text))
    text = _QUOTED.sub(rf"\1\g<quote>{HIDDEN}\g<quote>", text)
    for pattern in (_AUTHORIZATION, _BEARER, _CONNECTION, _ASSIGNED, _VARIABLE, _LAST_ON_LINE, _OPTION):
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return _KEY_LINE.sub(HIDDEN, _TOKENS.sub(HIDDEN, text))


def names_a_secret(name: str) -> bool:
    """Whether a variable or field of this name usually holds a credential."""
    return re.search(rf"{_NAME}$", name, re.IGNORECASE) is not None
