"""What was promised, from the ledger: draw it up, seal a run folder with it, verify one."""

from sourdine.certificate.check import Check, Verdict, verify
from sourdine.certificate.document import Certificate
from sourdine.certificate.draft import draft
from sourdine.certificate.facts import Access, guarantee, sampling
from sourdine.certificate.keys import public_key
from sourdine.certificate.sealing import seal

__all__ = [
    "Access",
    "Certificate",
    "Check",
    "Verdict",
    "draft",
    "guarantee",
    "public_key",
    "sampling",
    "seal",
    "verify",
]
