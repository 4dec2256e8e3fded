"""What a passage is about, by plain rules: contacts, addresses, names, numbers, code.

The rules look at signs alone and know no language model. They miss names in small letters, single
first names, and whatever is not written as in most Western text; they take headings for names. They
sort passages for a reader; nothing may rest on them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

KINDS = ("contact", "address", "name", "number", "code", "other")

_MAIL = r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"
_LINK = r"(?:https?://|www\.)[^\s<>\"')]+"
_PHONE = (  # begins with +, 0 or a bracket, or is cut by hyphens or dots; others may be any number
    r"(?<![\w.])(?:(?:\+\d{1,3}[ .-]?(?:\(\d{1,5}\)[ .-]?)?|\(\d{1,5}\)[ .-]?|0)"
    r"\d{1,5}(?:[ .-]\d{2,5}){1,4}|\d{3}[-.]\d{3,4}[-.]\d{4})(?!\w)"
)
_CALL = r"(?<!\w)\+\d{8,15}(?!\d)"
_WORD = r"[^\W\d_a-zß-öø-ÿ][^\W\d_]+"  # begins with a capital
_STREETS = (
    "Street|St|Road|Rd|Avenue|Ave|Lane|Ln|Drive|Dr|Boulevard|Blvd|Way|Square|Court|Ct|Place|Terrace"
)
_STREET = rf"(?<!\w)\d{{1,5}}[A-Za-z]?,? (?:{_WORD} ){{1,3}}(?:{_STREETS})\b\.?"
_STRASSE = rf"{_WORD[:-1]}*(?:straße|strasse|str\.|weg|platz|gasse|allee) \d{{1,4}}[a-z]?\b"
_BOX = r"\bP\.? ?O\.? Box \d+"
_STARTERS = (  # words that begin sentences, not names
    "A|After|All|Also|An|And|As|At|Before|But|By|Can|Dear|Did|Do|Does|For|From|Has|Have|He|Hello|Her|Here|"
    "Hi|His|How|I|If|In|Is|It|Its|May|My|No|Not|Now|Of|On|Or|Our|She|So|Some|That|The|Their|Then|There|"
    "These|They|This|Those|To|Today|Tomorrow|We|What|When|Where|Which|While|Who|Why|Will|With|Yes|"
    "Yesterday|You|Your"
)
TITLES = ("Mr", "Mrs", "Ms", "Miss", "Dr", "Prof", "Herr", "Frau", "Mme", "Sir", "Lady")
_TITLE = rf"\b(?:{'|'.join(TITLES)})\.? "
_LINKING = r"(?:van der |van |von der |von |de la |de |del |di |bin |O'|Mc)?"
_FIRST, _LAST = rf"\b(?!(?:{_STARTERS})\b){_WORD}", rf"(?:[A-Z]\. )?{_LINKING}{_WORD}(?:-{_WORD})?"
_NAME = rf"{_TITLE}{_LAST}(?: {_LAST})?|{_FIRST} (?:{_WORD} )?{_LAST}"
_NUMBER = r"(?<!\w)\d(?:[\d .,:/-]*\d)?(?!\w)|\b[0-9a-f]{16,}\b"

_RULES = (
    ("contact", re.compile(rf"{_MAIL}|{_LINK}|{_CALL}|{_PHONE}")),
    ("address", re.compile(rf"{_STREET}|{_STRASSE}|{_BOX}")),
    ("name", re.compile(_NAME)),
    ("number", re.compile(_NUMBER)),
)
_DIGITS = 4
"""Digits below which a number says little about anyone."""
_CODE = tuple(
    re.compile(sign)
    for sign in (
        r"[{};]",
        r"\w\([^)]{0,200}\)",
        r"==|!=|->|=>|::|\+=|:=|&&|\|\|",
        r"</?\w+[^>]{0,200}>",
        r"\b(?:def|return|import|function|var|const|class|public|void|null|None|elif|SELECT|WHERE)\b",
        r"\b[a-z]+(?:_[a-z]+)+\b|\b[a-z]+[A-Z]\w*\b",
        r"\b[0-9a-f]{16,}\b",
        r"\w\[\w+\]|\w\.\w+\(",
    )
)
_SIGNS = 3
"""Different signs of code from which on a passage is code."""


@dataclass(frozen=True)
class Span:
    """A stretch of a text that a rule knows."""

    kind: str
    start: int
    end: int


def spans(text: str) -> list[Span]:
    """What the rules know of a text, in its order; where two overlap, the earlier rule wins."""
    found: list[Span] = []
    taken = bytearray(len(text))
    for kind, rule in _RULES:
        for match in rule.finditer(text):
            start, end = match.span()
            if not any(taken[start:end]):
                taken[start:end] = b"\x01" * (end - start)
                found.append(Span(kind, start, end))
    return sorted(found, key=lambda span: span.start)


def kinds(text: str) -> tuple[str, ...]:
    """All kinds that a passage has something of, in the order of KINDS; "other" where there is none."""
    met = {
        span.kind
        for span in spans(text)
        if span.kind != "number" or sum(map(str.isdigit, text[span.start : span.end])) >= _DIGITS
    }
    if sum(bool(sign.search(text)) for sign in _CODE) >= _SIGNS:
        met.add("code")
    return tuple(kind for kind in KINDS if kind in met) or ("other",)
