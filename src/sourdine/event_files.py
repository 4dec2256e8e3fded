"""Reading event files, in this version or an older one, and saying what is wrong with others."""

from __future__ import annotations

import json

from sourdine.errors import EventFileError
from sourdine.events import FORMAT, KINDS, VERSION, ComposedEvent, Event, repeat


def read(text: str) -> Event:
    """The event in a document that `Event.to_json` wrote."""
    try:
        document = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        raise EventFileError(
            "this is not a complete JSON document: the file was cut short or is something "
            "else; write it again with Event.to_json()."
        ) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise EventFileError(
            f'this JSON document is no event: an event file says "format": "{FORMAT}".'
        )
    version = document.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise EventFileError(f"this event file has no valid version (found {version!r}).")
    if version > VERSION:
        raise EventFileError(
            f"this event file has version {version}, newer than the version {VERSION} that this "
            "sourdine reads: update sourdine."
        )
    try:
        return _event(document.get("event"))
    except RecursionError:
        raise EventFileError(
            "the events in this file are nested too deeply to be a real plan."
        ) from None


def _event(plain: object) -> Event:
    if not isinstance(plain, dict) or "kind" not in plain:
        raise EventFileError("an event in this file has no kind: the file is damaged.")
    kind = plain["kind"]
    if not isinstance(kind, str) or kind not in KINDS:
        raise EventFileError(f"this file holds an event of the unknown kind {kind!r}: update sourdine.")
    given = {name: value for name, value in plain.items() if name != "kind"}
    if kind == ComposedEvent.kind:
        return repeat(_items(given.get("items")))
    if "event" in given:
        given["event"] = _event(given["event"])
    if isinstance(given.get("events"), list):
        given["events"] = [_event(part) for part in given["events"]]
    for name, value in given.items():
        if isinstance(value, list):
            given[name] = tuple(value)
    try:
        return KINDS[kind](**given)
    except TypeError:
        raise EventFileError(
            f"an event of kind {kind!r} in this file has wrong fields: the file is damaged."
        ) from None


def _items(plain: object) -> list[tuple[Event, int]]:
    found = []
    for item in plain if isinstance(plain, list) else [plain]:
        given = item if isinstance(item, dict) else {}
        count = given.get("count")
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise EventFileError(
                "a composed event in this file is damaged: a count is no number above 0."
            )
        found.append((_event(given.get("event")), count))
    return found
