"""Attacks that prove what a mechanism gives away at least, and whether it keeps what it claims."""

from sourdine.audit.check import Finding, check_mechanism

__all__ = ["Finding", "check_mechanism"]
