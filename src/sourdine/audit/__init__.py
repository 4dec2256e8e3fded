"""Attacks that prove what a mechanism gives away at least, and whether it keeps what it claims."""

from sourdine.audit.bound import Bound, Counts
from sourdine.audit.check import Finding, check_mechanism
from sourdine.audit.one_run import GaussianOneRun, OneRun, one_run_epsilon, p_value
from sourdine.audit.rates import (
    Rates,
    credible_epsilon,
    credible_interval,
    gaussian_rates_epsilon,
    rates_epsilon,
)
from sourdine.audit.rules import Bonferroni, Fixed, Split, lower_bound, usual_grid
from sourdine.audit.sampler import Drawn, check_sampler

__all__ = [
    "Bonferroni",
    "Bound",
    "Counts",
    "Drawn",
    "Finding",
    "Fixed",
    "GaussianOneRun",
    "OneRun",
    "Rates",
    "Split",
    "check_mechanism",
    "check_sampler",
    "credible_epsilon",
    "credible_interval",
    "gaussian_rates_epsilon",
    "lower_bound",
    "one_run_epsilon",
    "p_value",
    "rates_epsilon",
    "usual_grid",
]
