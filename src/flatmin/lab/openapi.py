"""The server's endpoints as an OpenAPI document."""

from __future__ import annotations

from typing import Any

from flatmin.lab.session import MESSAGES
from flatmin.lab.settings import Setting

_JSON = "application/json"
_TEXT: dict[str, Any] = {"type": "string"}
_ANYTHING: dict[str, Any] = {"type": "object"}
_REFUSALS = {
    "401": "A token is needed and was not given.",
    "403": "The Host or Origin is not this server's.",
}
_NONE = {"404": "There is none of this name."}
_WRONG = {
    "400": "The body is not what was asked for.",
    "413": "The body is too large.",
    "422": "A setting is wrong: which, its value, what is expected.",
}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _record(**properties: Any) -> dict[str, Any]:
    """An object that has these properties."""
    return {"type": "object", "required": list(properties), "properties": properties}


def _content(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {kind: {"schema": schema}}}


def _answers(
    words: str, schema: dict[str, Any], kind: str, complaints: dict[str, str]
) -> dict[str, Any]:
    """What an endpoint is for, and its answers."""
    found = {"200": {"description": words, **_content(kind, schema)}}
    for status, why in (complaints | _REFUSALS).items():
        found[status] = {"description": why, **_content(_JSON, _ref("Complaint"))}
    return {"summary": words, "responses": found}


def _get(words: str, schema: dict[str, Any], kind: str = _JSON, name: str = "") -> dict[str, Any]:
    if not name:
        return {"get": _answers(words, schema, kind, {})}
    given = {"name": name, "in": "path", "required": True, "schema": _TEXT}
    return {"get": {"parameters": [given], **_answers(words, schema, kind, _NONE)}}


def _post(words: str, schema: dict[str, Any], kind: str = _JSON) -> dict[str, Any]:
    body = {"required": True, **_content(_JSON, _record(settings=_ref("Setting")))}
    return {"post": {"requestBody": body, **_answers(words, schema, kind, _WRONG)}}


def document(version: str) -> dict[str, Any]:
    """The document; the settings are those of a study, as its models have them."""
    model = Setting.model_json_schema(ref_template="#/components/schemas/{model}")
    columns = {"type": "array", "items": _TEXT}
    schemas = model.pop("$defs", {}) | {
        "Setting": model,
        "Complaint": _record(message=_TEXT),
        "Table": _record(key=_TEXT, name=_TEXT, columns=columns),
    }
    table = _post("Take a text table of at most 20 MB.", _ref("Table"))
    file = _content("application/octet-stream", {"type": "string", "format": "binary"})
    table["post"]["requestBody"] = {"required": True, **file}
    table["post"]["parameters"] = [{"name": "name", "in": "query", "schema": _TEXT}]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "flatmin lab",
            "version": version,
            "description": "Runs are streamed over the WebSocket /socket. A message is a JSON "
            "object with a `type`: " + ", ".join(MESSAGES) + ".",
        },
        "paths": {
            "/": _get("The page.", _TEXT, "text/html"),
            "/static/{name}": _get("A file of the page.", _TEXT, "text/javascript", "name"),
            "/statements/{id}": _get("A statement of the ledger.", _TEXT, "text/html", "id"),
            "/openapi.json": _get("This document.", _ANYTHING),
            "/api/start": _get("What the page offers.", _ANYTHING),
            "/api/check": _post("What is known of settings before any step.", _ANYTHING),
            "/api/code": _post("A run as Python and as a command.", _ANYTHING),
            "/api/csv": _post("The entries of a run.", _TEXT, "text/csv"),
            "/api/table": table,
        },
        "components": {"schemas": schemas},
    }
