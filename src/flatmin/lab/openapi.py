"""The server's endpoints as an OpenAPI document."""

from __future__ import annotations

from typing import Any

from flatmin.lab.session import MESSAGES
from flatmin.lab.settings import Setting

_JSON = "application/json"


def _answer(words: str, schema: dict[str, Any], kind: str = _JSON) -> dict[str, Any]:
    return {"description": words, "content": {kind: {"schema": schema}}}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _text() -> dict[str, Any]:
    return {"type": "string"}


_REFUSALS = {
    "401": _answer("A token is needed and was not given.", _ref("Complaint")),
    "403": _answer("The Host or Origin is not this server's.", _ref("Complaint")),
}
_WRONG = {
    "400": _answer("The body is not what was asked for.", _ref("Complaint")),
    "413": _answer("The body is too large.", _ref("Complaint")),
    "422": _answer("A setting is wrong: which, its value, what is expected.", _ref("Complaint")),
}


def _get(words: str, schema: dict[str, Any], kind: str = _JSON, name: str = "") -> dict[str, Any]:
    answers = {"200": _answer(words, schema, kind), **_REFUSALS}
    found: dict[str, Any] = {"summary": words, "responses": answers}
    if name:
        answers["404"] = _answer("There is none of this name.", _ref("Complaint"))
        found["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    return {"get": found}


def _post(words: str, schema: dict[str, Any], kind: str = _JSON) -> dict[str, Any]:
    body = {
        "type": "object",
        "required": ["settings"],
        "properties": {"settings": _ref("Setting")},
    }
    return {
        "post": {
            "summary": words,
            "requestBody": {"required": True, "content": {_JSON: {"schema": body}}},
            "responses": {"200": _answer(words, schema, kind), **_WRONG, **_REFUSALS},
        }
    }


def document(version: str) -> dict[str, Any]:
    """The document; the settings are those of a study, as its models have them."""
    model = Setting.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas = model.pop("$defs", {}) | {
        "Setting": model,
        "Complaint": {
            "type": "object",
            "required": ["message"],
            "properties": {"message": _text()},
        },
        "Table": {
            "type": "object",
            "required": ["key", "name", "columns"],
            "properties": {
                "key": _text(),
                "name": _text(),
                "columns": {"type": "array", "items": _text()},
            },
        },
    }
    anything = {"type": "object"}
    table = _post("Take a text table of at most 20 MB.", _ref("Table"))
    table["post"]["requestBody"] = {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
    table["post"]["parameters"] = [{"name": "name", "in": "query", "schema": _text()}]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "flatmin lab",
            "version": version,
            "description": "Runs are streamed over the WebSocket /socket. A message is a JSON "
            "object with a `type`: " + ", ".join(MESSAGES) + ".",
        },
        "paths": {
            "/": _get("The page.", _text(), "text/html"),
            "/static/{name}": _get("A file of the page.", _text(), "text/javascript", "name"),
            "/statements/{id}": _get("A statement of the ledger.", _text(), "text/html", "id"),
            "/openapi.json": _get("This document.", anything),
            "/api/start": _get("What the page offers.", anything),
            "/api/check": _post("What is known of settings before any step.", anything),
            "/api/code": _post("A run as Python and as a command.", anything),
            "/api/csv": _post("The records of a run.", _text(), "text/csv"),
            "/api/table": table,
        },
        "components": {"schemas": schemas},
    }
