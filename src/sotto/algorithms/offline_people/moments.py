"""Contribution of one person: means of products of features over the person's own rows.

The releases are about different people (people are in random places).

1. A tenth of them give coarse *scales*: mean and covariance of observations, and a histogram of the
   sizes of their changes.
2. All others answer in rounds about *moments* (`rounds.py`). Let psi be all monomials of degree
   at most 2 of a scaled observation (and of a real action), and y the row's change of the
   observation, its reward, and whether the episode ended there. A row gives psi psi^T / |psi|^2
   and psi y^T / |psi|^2, which is least squares with public weights, separately for each category
   of action. A person's moments are the mean over their rows.

A row at which the horizon cut an episode has no known next observation, and is left out.

Guarantee:
    See `sotto.privacy.release.release`. The unit is everything that one person logged. A person is
    in one of the releases, and their contribution has a public clip norm (docs/privacy.md,
    section 23).
"""

import itertools
import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, Shaped

from sotto.algorithms.calibration import gaussian_multiplier
from sotto.algorithms.offline_people.config import OfflinePeopleConfig
from sotto.algorithms.settings import known
from sotto.privacy.claims import logs as claims
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Part
from sotto.privacy.units import Adjacency, Unit
from sotto.rl.envs.base import Box
from sotto.rl.networks import scaled

UNIT = Unit(kind="trajectory", adjacency=Adjacency.ZERO_OUT)
"""Everything that one person logged; the person is there, or their place is empty."""

BINS = 20
"""Bins of the size of a change: bin b holds sizes from 2^-b to 2^(1-b), in scaled units."""
LARGEST = 2.0
"""Bound of whitened observations."""
SHARE = 0.25
"""Norm of the part that counts the places with rows."""
FAR = 4.0
"""Bound of changes, in units of `Scales.spread`."""
MOST_FEATURES = 64
_DEGREE = 2
_ROWS = 50_000
"""Most rows of people that are mapped at once, so that arrays stay small."""


class Logged(NamedTuple):
    """Rows of one person, or of people with a leading axis."""

    observations: Float[Array, "T obs"]
    actions: Shaped[Array, " T *action"]
    rewards: Float[Array, " T"]
    present: Bool[Array, " T"]
    ends: Bool[Array, " T"]
    cut: Bool[Array, " T"]


class Scales(NamedTuple):
    """Functions of the first release: whitened = (x - centre) @ whitening, and sizes of changes."""

    centre: Float[Array, " obs"]
    whitening: Float[Array, "obs obs"]
    spread: Float[Array, " obs"]
    share: Float[Array, ""]
    """Share of places with rows."""


def products(config: OfflinePeopleConfig) -> tuple[tuple[int, ...], ...]:
    """Returns the factors of each monomial: first the constant, then the variables, then pairs.

    Raises:
        ValueError: there are too many observations and actions for pairs of them.
    """
    variables = len(known(config.low)) + (0 if config.actions else len(known(config.action_low)))
    found = tuple(
        chosen
        for degree in range(_DEGREE + 1)
        for chosen in itertools.combinations_with_replacement(range(variables), degree)
    )
    if len(found) > MOST_FEATURES:
        raise ValueError(
            f"{variables} observations and real actions have {len(found)} products, and at most "
            f"{MOST_FEATURES} can be learned; import the log with fewer columns"
        )
    return found


def monomials(
    values: Float[Array, "*batch n"], chosen: tuple[tuple[int, ...], ...]
) -> Float[Array, "*batch d"]:
    """Returns the products of the chosen columns."""
    one = jnp.ones_like(values[..., 0])
    columns = [math.prod((values[..., i] for i in row), start=one) for row in chosen]
    return jnp.stack(columns, axis=-1)


def whitened(x: Float[Array, "*batch obs"], scales: Scales) -> Float[Array, "*batch obs"]:
    """Returns whitened observations, within `LARGEST`."""
    return jnp.clip((x - scales.centre) @ scales.whitening, -LARGEST, LARGEST)


def inputs(
    config: OfflinePeopleConfig, x: Float[Array, "*batch obs"], actions: Array, scales: Scales
) -> Float[Array, "*batch n"]:
    """Returns the variables of the monomials: whitened observations, and scaled real actions."""
    seen, box = whitened(x, scales), config.action
    if not isinstance(box, Box):
        return seen
    assert box.centre is not None
    assert box.scale is not None
    acted = scaled(actions, tuple(1 / s for s in box.scale), box.centre)
    return jnp.concatenate([seen, jnp.clip(acted, -1, 1)], axis=-1)


def scaled_observations(
    config: OfflinePeopleConfig, observations: Float[Array, "*batch obs"]
) -> Float[Array, "*batch obs"]:
    """Returns observations in units in which the public bounds are -1 and 1."""
    return jnp.clip(scaled(observations, config.scale, config.centre), -1, 1)


def scales_norm(config: OfflinePeopleConfig) -> float:
    """Returns the clip norm of a person's scales. Few people's histograms are more concentrated."""
    return 0.6 * math.sqrt(len(known(config.low)))


def noise_multiplier(config: OfflinePeopleConfig, draws: int) -> float:
    """Returns the noise multiplier of a release that meets the target for its people.

    Args:
        config: settings.
        draws: how many numbers the release has.
    """
    return gaussian_multiplier(config.target_epsilon, known(config.delta), draws=draws)


def sigma(release: Release) -> float:
    """Returns the standard deviation of the noise in each number of the log of a release."""
    (part,) = release.parts.values()
    return part.clip_norm * part.noise_multiplier / release.divisor


def groups(config: OfflinePeopleConfig) -> tuple[slice, ...]:
    """Returns the places of the people of the releases: scales, and three rounds."""
    people = known(config.people)
    first = people // 10
    quarter = (people - first) // 4
    edges = (0, first, first + quarter, first + 2 * quarter, people)
    return tuple(slice(a, b) for a, b in itertools.pairwise(edges))


def scales_release(config: OfflinePeopleConfig) -> Release:
    """Returns the release of the scales; its log is [obs, 2 + obs + BINS].

    Row i has SHARE / sqrt(obs) times the share of places with rows, then the mean of x_i, then
    those of x_i x_j, and then the shares of the sizes of changes of x_i.
    """
    size = len(known(config.low))
    draws = size * (2 + size + BINS)
    person = partial(person_scales, config)
    return group_release(config, "scales", 0, person, scales_norm(config), draws)


def group_release(
    config: OfflinePeopleConfig, name: str, group: int, person: Any, norm: float, draws: int
) -> Release:
    """Returns the release of one group.

    Args:
        config: settings.
        name: name of the release and of its only part.
        group: which of the `groups`.
        person: function of the state, a person's rows and a key, that returns their contribution.
        norm: clip norm.
        draws: how many numbers are released.
    """
    places = groups(config)[group]
    slots = places.stop - places.start

    def server(state: Any, released: dict[str, Array]) -> tuple[Any, Array]:
        return state, released[name]

    most = max(1, _ROWS // known(config.horizon))
    return declared(
        config,
        name=f"offline {name}",
        local=lambda state, unit, key: ({name: person(state, unit, key)}, ()),
        server=server,
        parts={name: Part(clip_norm=norm, noise_multiplier=noise_multiplier(config, draws))},
        slots=slots,
        divisor=float(slots),
        horizon=1,
        microbatch=min(most, slots),
        protects=(claims.LEARNED_MODEL(),),
    )


def declared(config: OfflinePeopleConfig, **release: Any) -> Release:
    """Returns a release about the people of the log, with what its certificate says of them."""
    about = claims.about_log(config, claims.ONE_PERSON, claims.SETTINGS)
    return Release(
        unit=UNIT,
        population=config.population,
        does_not_protect=(claims.PATTERNS(), *about.does_not_protect),
        assumptions=about.assumptions,
        **release,
    )


def there(unit: Logged) -> Float[Array, ""]:
    """Returns 1 for somebody with rows that count, and 0 for everybody else."""
    return jnp.minimum(jnp.sum(_rows(unit)[0]), 1)


def _rows(unit: Logged) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
    """Returns 1 for rows that count, and 1 for those with a next observation."""
    counts = unit.present & ~unit.cut
    return counts.astype(jnp.float32), (counts & ~unit.ends).astype(jnp.float32)


def _changes(x: Float[Array, "T obs"], moves: Float[Array, " T"]) -> Float[Array, "T obs"]:
    after = jnp.concatenate([x[1:], x[-1:]])
    return (after - x) * moves[:, None]


def person_scales(
    config: OfflinePeopleConfig, _state: Array, unit: Logged, _key: PRNGKeyArray
) -> Float[Array, "obs k"]:
    """Returns one person's mean of 1, x and x x^T, and shares of the sizes of changes."""
    x = scaled_observations(config, unit.observations)
    counts, moves = _rows(unit)
    number = jnp.maximum(jnp.sum(counts), 1)
    size = x.shape[1]
    means = (counts @ x / number)[:, None]
    squares = (x * counts[:, None]).T @ x / number
    floor = jnp.maximum(jnp.abs(_changes(x, moves)), jnp.float32(2.0**-BINS))
    level = jnp.clip(jnp.ceil(-jnp.log2(floor)), 0, BINS - 1).astype(jnp.int32)
    hit = (level[..., None] == jax.lax.iota(jnp.int32, BINS)).astype(jnp.float32)
    shares = jnp.sum(hit * moves[:, None, None], axis=0) / jnp.maximum(jnp.sum(moves), 1)
    first = jnp.ones((size, 1), jnp.float32) * (there(unit) * SHARE / math.sqrt(size))
    return jnp.concatenate([first, means, squares, shares], axis=1)


def person_moments(
    config: OfflinePeopleConfig, scales: Scales, unit: Logged, _key: PRNGKeyArray
) -> Float[Array, "A d k"]:
    """Returns one person's mean weighted products of features with features and targets."""
    x = scaled_observations(config, unit.observations)
    counts, moves = _rows(unit)
    psi = monomials(inputs(config, x, unit.actions, scales), products(config))
    low, high = known(config.reward_bounds)
    targets = jnp.concatenate(
        [
            jnp.clip(_changes(x, moves) / scales.spread, -FAR, FAR),
            ((unit.rewards - low) / (high - low))[:, None],
            (unit.ends & ~unit.cut).astype(jnp.float32)[:, None],
        ],
        axis=1,
    )
    weight = counts / jnp.sum(jnp.square(psi), axis=1)
    both = jnp.concatenate([psi, targets], axis=1) * weight[:, None]
    number = jnp.maximum(jnp.sum(counts), 1)
    kinds = config.actions or 1
    taken = [
        (psi * ((unit.actions == a) if config.actions else True * unit.present)[:, None]).T @ both
        for a in range(kinds)
    ]
    return jnp.stack(taken) / number
