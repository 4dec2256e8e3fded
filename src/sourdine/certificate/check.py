"""Verification: does a run folder hold together, and does its certificate recompute from its ledger?

What this shows: the files are those that were signed; the ledger is whole and counts the events that
the certificate states; our accountant and an independent one come to the epsilon it claims; nothing in
the document contradicts anything else.

What it can not show: that the training ran as stated. Whether lots were drawn, gradients clipped and
noise added as the events say, whether every access to the data is listed, whether the fingerprint is
of these data: all this is the signer's word. Pin a key that you trust; without one, anybody may have
made the whole folder, consistently. So a folder is "verified" only against a pinned key, and otherwise
"consistent". What the folder alone cannot show is not checked, and does not count as passed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sourdine.certificate import claims, keys, papers
from sourdine.certificate.document import Certificate
from sourdine.certificate.evidence import Evidence, NotChecked, collected
from sourdine.certificate.sealing import CERTIFICATE
from sourdine.errors import InputError, SourdineError

CHECKS: tuple[tuple[str, Callable[[Evidence], str]], ...] = (
    ("certificate", papers.readable),
    ("signature", papers.signature),
    ("signer", papers.signer),
    ("files", papers.files),
    ("no other files", papers.no_others),
    ("required files", papers.required),
    ("ledger", claims.ledger),
    ("terms", claims.terms),
    ("events", claims.events),
    ("epsilon", claims.epsilon),
    ("second accountant", claims.second_accountant),
    ("curve", claims.curve),
    ("mu", claims.mu),
    ("accesses", claims.accesses),
    ("sampling", claims.sampling),
    ("randomness", claims.randomness),
    ("delta", claims.delta),
    ("audit", claims.audit),
    ("metrics", papers.metrics),
    ("fingerprint", papers.fingerprint),
    ("not covered", papers.not_covered),
    ("date", papers.date),
)


@dataclass(frozen=True)
class Check:
    """One thing that was looked at, and what was found; passed is None for what was not checked."""

    name: str
    passed: bool | None
    sentence: str


@dataclass(frozen=True)
class Verdict:
    """All checks of one folder; certificate is None where it cannot be read.

    pinned: whether the signer's key was given, so that the signer check compared it.
    """

    checks: tuple[Check, ...]
    certificate: Certificate | None
    pinned: bool

    @property
    def passed(self) -> bool:
        """Whether nothing failed: the folder is consistent, whoever made it."""
        return not self.failed

    @property
    def verified(self) -> bool:
        """Whether nothing failed and the signer is the one whose key was pinned."""
        return self.passed and self.pinned

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the checks that failed."""
        return tuple(check.name for check in self.checks if check.passed is False)

    @property
    def not_checked(self) -> tuple[str, ...]:
        """The names of the checks that the folder alone does not allow."""
        return tuple(check.name for check in self.checks if check.passed is None)

    @property
    def signer(self) -> str:
        """Who signed, as far as that is known: "pinned", "your own key" or "UNKNOWN"."""
        known = any(check.name == "signer" and check.passed for check in self.checks)
        if not known:
            return "UNKNOWN"
        return "pinned" if self.pinned else "your own key"


def verify(folder: str | Path, *, key: str | None = None) -> Verdict:
    """Check a sealed run folder; see the top of this file for what that can and can not show.

    key: the signer's public key (64 hex digits, or a file that holds them); without it the signer is
    unknown, which is said but fails nothing. Every check runs, whatever the others say. Nothing in the
    folder is changed. A folder without a certificate is an InputError.
    """
    folder = Path(folder)
    if not (folder / CERTIFICATE).exists() and not (folder / CERTIFICATE).is_symlink():
        raise InputError(
            f"there is no certificate in {folder}: name the folder of a finished run, which holds "
            f"{CERTIFICATE}."
        )
    with collected(folder, None if key is None else keys.pinned(key)) as evidence:
        checks = tuple(_run(name, look, evidence) for name, look in CHECKS)
        return Verdict(checks, evidence.certificate, pinned=key is not None)


def _run(name: str, look: Callable[[Evidence], str], evidence: Evidence) -> Check:
    try:
        return Check(name, True, look(evidence))
    except NotChecked as reason:
        return Check(name, None, f"not checked: {reason}")
    except SourdineError as error:
        return Check(name, False, str(error))
    except (
        OSError,
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
        MemoryError,
    ) as error:
        # A document that was tampered with may hold anything.
        return Check(name, False, f"cannot be checked on what is there ({type(error).__name__}).")
