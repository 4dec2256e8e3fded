"""How much may be given away about one person, and what counts as one person."""

from __future__ import annotations

from dataclasses import dataclass

from sourdine import checks, notebook


@dataclass(frozen=True)
class Budget:
    """An upper limit (epsilon, delta) on what all releases together give away about one unit.

    unit: "example" protects one record, "user" all records of one person.
    adjacency: what it means to be absent. "zero-out" replaces the unit by nothing while the number
    of records stays public; "add-remove" keeps that number private too; "replace-one" exchanges
    the unit for any other.
    """

    epsilon: float
    delta: float = 1e-6
    unit: str = "example"
    adjacency: str = "zero-out"

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checks.epsilon(self.epsilon))
        object.__setattr__(self, "delta", checks.delta(self.delta))
        checks.one_of("unit", self.unit, checks.UNITS)
        checks.adjacency(self.adjacency)

    def _repr_html_(self) -> str:
        return notebook.budget(self)
