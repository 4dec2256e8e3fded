"""What an event costs: curves with two-sided bounds, named theorems, Rényi costs, calibration."""

from sourdine.accounting.calibration import Plan, calibrate, least_noise
from sourdine.accounting.composition import (
    Promise,
    advanced,
    advanced_tanh,
    amplified,
    basic,
    gaussian_sigma,
    gaussian_sigma_classic,
    group,
    group_simple,
    optimal,
    optimal_delta,
)
from sourdine.accounting.curves import Interval, PrivacyCurve, curve
from sourdine.accounting.loss import PrivacyLoss
from sourdine.accounting.rdp import Renyi, moments_epsilon, renyi, zcdp_epsilon
from sourdine.accounting.selection import calibrate_trial

__all__ = [
    "Interval",
    "Plan",
    "PrivacyCurve",
    "PrivacyLoss",
    "Promise",
    "Renyi",
    "advanced",
    "advanced_tanh",
    "amplified",
    "basic",
    "calibrate",
    "calibrate_trial",
    "curve",
    "gaussian_sigma",
    "gaussian_sigma_classic",
    "group",
    "group_simple",
    "least_noise",
    "moments_epsilon",
    "optimal",
    "optimal_delta",
    "renyi",
    "zcdp_epsilon",
]
