"""`sotto audit` finds every leak of the catalogue in a user's code, and none in honest code."""

import jax
import pytest
from planted import PLANTED

import sotto
from sotto.privacy.audits.leaks import CATALOGUE
from sotto.privacy.audits.own import audit_own
from sotto.privacy.release.purity import ImpureFunction
from sotto.privacy.statements import Gap

SAMPLES = 1_000


def test_every_leak_is_planted():
    assert set(PLANTED) == {leak.name for leak in CATALOGUE}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_leak_is_found_and_the_honest_code_is_not_refuted(name):
    leaky, honest = (audit_own(PLANTED[name](how), SAMPLES, 0, 0.95) for how in (True, False))
    assert leaky.refuted
    assert not honest.refuted


# --- leaks that the door refuses -----------------------------------------------------------------


def declared(local, **changed):
    given = {
        "name": "update",
        "local": local,
        "server": lambda state, released: (state, released),
        "unit": sotto.Unit(kind="trajectory", adjacency="zero-out"),
        "parts": {"policy": sotto.Part(clip_norm=1.0, noise_multiplier=5.0)},
        "slots": 4,
        "divisor": 4.0,
        "horizon": 1,
        "population": "real",
    }
    return sotto.Release(**(given | changed))


@pytest.mark.parametrize(
    "name", ["critic", "observation normaliser", "value head", "KL coefficient", "mean reward"]
)
def test_a_statistic_of_real_people_without_noise_is_refused_by_name(name):
    with pytest.raises(ValueError, match=f"real people's {name} would leave without noise"):
        declared(lambda *_: ({}, ()), unprotected={name: Gap(name=name, why="it has no noise")})


def test_keys_that_draw_for_a_whole_batch_are_refused():
    def local(_state, unit, _key):
        side = jax.random.bernoulli(jax.random.key(0, impl="rbg"))
        return {"policy": unit * side}, ()

    shape = jax.ShapeDtypeStruct((), "float32")
    with pytest.raises(ImpureFunction, match="threefry2x32"):
        declared(local).traced(shape, shape)


def test_a_part_that_nobody_declared_is_refused_by_name():
    def local(_state, unit, _key):
        return {"policy": unit, "return": unit}, ()

    shape = jax.ShapeDtypeStruct((), "float32")
    with pytest.raises(ValueError, match=r"local returns the parts \['policy', 'return'\]"):
        declared(local).traced(shape, shape)
