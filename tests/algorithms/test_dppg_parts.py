"""Extra parts of a release: an adaptive clip norm, observation statistics, private returns."""

import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from sotto.algorithms.dppg import noise, parts
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.dppg.parts import (
    AdaptiveClip,
    ObservationMoments,
    ObservationStatistics,
    PrivateReturn,
)
from sotto.algorithms.dppg.presets import preset
from sotto.algorithms.dppg.training import (
    DPPGTraining,
    Progress,
    create_ledger,
    initial_states,
    policies,
    training_environment,
)
from sotto.cli import main
from sotto.privacy.accounting.composition import Gaussian, compose
from sotto.privacy.certificates.derive import derive
from sotto.privacy.ledger.ledger import Ledger
from sotto.rl.rollout import Trajectory, rollout

USERS, STEPS = 8, 16
NUMBERS = 4 * 32 + 32 + 32 * 2 + 2
PARTS: dict[str, Any] = {
    "adaptive_clip": 0.5,
    "observation_statistics": True,
    "private_return": (0.0, 20.0),
}


def tiny(updates: int = 20, **changes: Any) -> DPPGConfig:
    settings: dict[str, Any] = {
        "users_per_update": USERS,
        "steps_per_user": STEPS,
        "total_steps": USERS * STEPS * updates,
        "hidden": (32,),
        "evaluation_episodes": 0,
        "delta": 1e-5,
        "correlated_noise": False,
    }
    env_id = changes.pop("env_id", "CartPole-v1")
    return preset("sotto", env_id, **(settings | PARTS | changes))


def trajectories(count: int, seed: int = 0) -> Trajectory:
    """Users with observations and rewards of every size, some of them short."""
    rng = np.random.default_rng(seed)
    shape = (count, STEPS)
    seen = jnp.asarray(10 ** rng.uniform(-3, 3, (*shape, 4)) * rng.choice([-1, 1], (*shape, 4)))
    seen = seen.astype(jnp.float32)
    alive = jnp.arange(STEPS) < rng.integers(1, STEPS + 1, (count, 1))
    flags = jnp.zeros(shape, bool)
    rewards = jnp.asarray(rng.normal(0, 10, shape), jnp.float32)
    return Trajectory(seen, jnp.zeros(shape, jnp.int32), rewards, seen, flags, flags, alive)


# --- what a user contributes ---------------------------------------------------------------------


def test_no_contribution_exceeds_what_the_door_is_told() -> None:
    """The bounds hold by construction (the door clips nothing), and are attained."""
    config = tiny()
    env = training_environment(config)
    policy = jax.tree.map(lambda x: x[0], initial_states(config, [0]).policy)
    many = trajectories(500)
    for part in parts.extra_parts(config, env):
        found = np.asarray(jax.vmap(lambda t, p=part: p.contribution(p.initial(), t, policy))(many))
        assert found.shape == (500, part.size)
        norms = np.linalg.norm(found, axis=1)
        assert norms.max() <= part.clip_norm * (1 + 1e-6)
    # All observations at one end of their range: a mean of 1, and a mean square of 1.
    far = many._replace(observations=jnp.full_like(many.observations, 1e6))
    statistics = ObservationStatistics((1.0,) * 4, None, 5.0)
    extreme = statistics.contribution(
        statistics.initial(), jax.tree.map(lambda x: x[0], far), policy
    )
    assert np.linalg.norm(extreme) == pytest.approx(statistics.clip_norm, rel=1e-6)


def test_centred_at_one_statistics_have_norm_at_most_one_for_each_observation() -> None:
    """Against all means and mean squares of steps in [-1, 1]; 1/2 would need sqrt(5/4)."""
    mean, square = np.meshgrid(np.linspace(-1, 1, 201), np.linspace(0, 1, 201))
    possible = mean**2 <= square

    def largest(centre: float) -> float:
        return float(np.hypot(mean, square - centre)[possible].max())

    statistics = ObservationStatistics((1.0,) * 3, None, 5.0)
    assert statistics.clip_norm == pytest.approx(largest(1.0) * math.sqrt(3))
    assert largest(0.5) == pytest.approx(1.118 * largest(1.0), rel=1e-3)
    assert all(largest(centre) > largest(1.0) for centre in (0.0, 0.5, 0.9, 1.1))


def test_what_was_stated_with_another_bound_is_not_gone_on_with(tmp_path: Path) -> None:
    """Statistics of earlier versions were centred at 1/2, which takes a larger bound."""
    settings: dict[str, Any] = {"population_size": 200, "one_episode": False}
    config = tiny(**settings)
    old = ObservationStatistics.clip_norm
    try:
        bound = property(lambda part: float((1.25 * len(part.scale)) ** 0.5))
        ObservationStatistics.clip_norm = bound  # type: ignore[assignment, method-assign]
        ledger = create_ledger(config, tmp_path / "ledger.sqlite")
        training = DPPGTraining(config, [0], [ledger])
        training.advance()
        training.close()
    finally:
        ObservationStatistics.clip_norm = old  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"observations are bounded by 2\.23607 .* by 2;"):
        DPPGTraining(config, [0], [Ledger.open(tmp_path / "ledger.sqlite")], training.states, 1)


def test_noise_of_the_bit_and_of_the_update_are_those_of_the_theory() -> None:
    """Theory notes, section 6: z = 5 with sigma_b = 10 (sensitivity 1/2) leaves 5.16."""
    update = (5**-2 - (2 * 10) ** -2) ** -0.5
    assert update == pytest.approx(5.16, abs=5e-3)
    config = tiny(
        target_epsilon=None,
        noise_multiplier=5.0,
        observation_statistics=False,
        private_return=None,
        adaptive_clip_noise_ratio=20 / update,
    )
    multipliers = noise.part_multipliers(config, 5.0)
    assert multipliers["policy"] == pytest.approx(update)
    assert multipliers["clip"] == pytest.approx(2 * 10)
    assert set(tiny().noise_ratios) == {"policy", "clip", "observations", "return"}
    every = noise.part_multipliers(tiny(), 3.0)
    assert sum(z**-2 for z in every.values()) == pytest.approx(3.0**-2)


def test_the_clip_norm_finds_the_quantile() -> None:
    norms = np.random.default_rng(0).lognormal(0.0, 1.0, 1000)
    for quantile in (0.2, 0.5, 0.9):
        part = AdaptiveClip(first=0.01, quantile=quantile, rate=0.2)
        public, contributed = part.initial(), []
        for _ in range(200):
            update = jnp.asarray(norms[:, None], jnp.float32)
            bits = jax.vmap(part.contribution, in_axes=(None, None, 0))(public, None, update)
            contributed = np.unique(np.asarray(bits)).tolist()
            public, log = part.after(public, bits.mean(axis=0))
        assert set(contributed) == {-0.5, 0.5}
        assert float(public) == pytest.approx(np.quantile(norms, quantile), rel=0.05)
        assert float(log["share_within_clip_norm"]) == pytest.approx(quantile, abs=0.02)


def test_statistics_are_those_of_the_observations() -> None:
    """Means of users' means, and what they make of observations (a public centre included)."""
    rng = np.random.default_rng(1)
    mean, deviation, scale, centre = np.array([1.0, -2.0]), np.array([0.5, 0.2]), (2.0, 0.5), (3, 4)
    seen = centre + (mean + deviation * rng.normal(size=(64, STEPS, 2))) / scale
    alive = np.ones((64, STEPS), bool)
    part = ObservationStatistics(scale, tuple(map(float, centre)), 5.0)
    users = Trajectory(*[jnp.zeros((64, STEPS))] * 7)._replace(  # type: ignore[arg-type]
        observations=jnp.asarray(seen, jnp.float32), alive=jnp.asarray(alive)
    )
    one = jax.vmap(lambda t: part.contribution(part.initial(), t, None))(users).mean(axis=0)  # type: ignore[arg-type]
    public = part.initial()
    assert np.allclose(public.standardised(users.observations), users.observations, atol=1e-5)
    for _ in range(2000):  # the prior then weighs little
        public, log = part.after(public, one)
        assert log == {}
    found_mean, found_deviation = public.mean_and_deviation()
    np.testing.assert_allclose(found_mean, mean, atol=0.06)
    np.testing.assert_allclose(found_deviation, deviation, atol=0.06)
    inputs = (np.asarray(public.standardised(users.observations)) - centre) * scale
    np.testing.assert_allclose(inputs.mean(axis=(0, 1)), 0, atol=0.1)
    np.testing.assert_allclose(inputs.std(axis=(0, 1)), 1, atol=0.25)
    noisy = ObservationMoments(jnp.full(4, -1e4), jnp.float32(1), scale, None, 5.0)
    assert np.all(np.asarray(noisy.mean_and_deviation()[1]) >= 0.1)


def test_returns_are_averaged_over_releases() -> None:
    part = PrivateReturn(low=-10.0, high=30.0, decay=0.5)
    reward = jnp.array([[5.0, 7.0], [100.0, 0.0], [-100.0, 0.0]])
    alive = jnp.array([[True, True], [True, False], [True, True]])
    users = Trajectory(*[reward] * 7)._replace(alive=alive)  # type: ignore[arg-type]
    each = jax.vmap(lambda t: part.contribution(part.initial(), t, None))(users)  # type: ignore[arg-type]
    np.testing.assert_allclose(each[:, 0], [0.1, 1.0, -1.0], rtol=1e-6)
    public, log = part.after(part.initial(), each[0])
    assert float(log["private_return"]) == pytest.approx(12.0)
    assert float(public) == pytest.approx((-10 + 12) / 2)


# --- training ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loud(tmp_path_factory: pytest.TempPathFactory) -> tuple[DPPGConfig, list[Progress], Ledger]:
    """With so much noise in the policy's update that nothing else of it matters."""
    config = tiny(
        target_epsilon=None,
        noise_multiplier=100.0,
        observation_noise_ratio=1.0,
        private_return_noise_ratio=0.01,
        adaptive_clip_noise_ratio=0.01,
    )
    ledger = create_ledger(config, tmp_path_factory.mktemp("loud") / "ledger.sqlite")
    return config, list(DPPGTraining(config, [0], [ledger])), ledger


def test_all_parts_are_one_event(loud: tuple[DPPGConfig, list[Progress], Ledger]) -> None:
    config, _, ledger = loud
    certificate = derive(ledger)
    assert certificate.status == "proved"
    (stream,) = certificate.streams
    assert isinstance(stream.event, Gaussian)
    assert stream.event.noise_multiplier == pytest.approx(100.0)
    assert certificate.epsilon == pytest.approx(
        compose([Gaussian(noise_multiplier=100.0)]).epsilon(1e-5), rel=1e-6
    )
    said = stream.statement.parts
    assert said["policy"].clip_norm == 1.0
    assert said["clip"].clip_norm == 0.5
    assert stream.statement.dimensions == {
        "policy": NUMBERS, "clip": 1, "observations": 8, "return": 1
    }  # fmt: skip
    assert config.is_proved


def test_noise_follows_the_public_clip_norm(
    loud: tuple[DPPGConfig, list[Progress], Ledger],
) -> None:
    """The update's spread is z C_t / K with the C_t of the release; a fixed C is rejected."""
    config, chunks, _ = loud
    norms = np.concatenate([chunk.released["update_norm"][0] for chunk in chunks])
    clips = np.concatenate([chunk.released["clip_norm"][0] for chunk in chunks])
    z = noise.part_multipliers(config, 100.0)["policy"]
    squares = np.square(norms * USERS / (z * clips)).sum()

    def p_value(scale: float) -> float:
        lower = stats.chi2.cdf(squares / scale**2, NUMBERS * norms.size)
        return float(2 * min(lower, 1 - lower))

    assert p_value(1.0) > 1e-7
    assert p_value(0.9) < 1e-9
    assert p_value(1.1) < 1e-9
    ratio = clips[1:] / clips[:-1]
    shares = np.concatenate([chunk.released["share_within_clip_norm"][0] for chunk in chunks])
    np.testing.assert_allclose(ratio, np.exp(-0.2 * (shares[:-1] - 0.5)), rtol=1e-4)
    assert clips[0] == pytest.approx(config.clip_norm)
    assert np.ptp(clips) > 0


def test_noise_of_the_returns_is_that_of_the_statement(tmp_path: Path) -> None:
    """Returns of everybody are 16 here, so that what varies is the noise."""
    config = tiny(
        updates=100,
        hidden=(),
        target_epsilon=None,
        noise_multiplier=4.0,
        adaptive_clip=None,
        observation_statistics=False,
        one_episode=False,
        private_return_noise_ratio=1.0,
    )
    ledger = create_ledger(config, tmp_path / "ledger.sqlite")
    chunks = list(DPPGTraining(config, [0], [ledger]))
    released = np.concatenate([chunk.released["private_return"][0] for chunk in chunks])
    half = 10.0  # of the range, which is the unit
    unit = noise.part_multipliers(config, 4.0)["return"] * half / USERS
    squares = float(np.square((released - STEPS) / unit).sum())

    def p_value(scale: float) -> float:
        lower = stats.chi2.cdf(squares / scale**2, released.size)
        return float(2 * min(lower, 1 - lower))

    assert p_value(1.0) > 1e-7
    assert p_value(0.3) < 1e-9
    average = np.concatenate([chunk.released["private_return_average"][0] for chunk in chunks])
    expected = 0.0
    for value in released:
        expected = 0.98 * expected + 0.02 * float(value)
    assert average[-1] == pytest.approx(expected, rel=1e-3)


def test_the_released_policy_standardises_as_its_users_did(
    loud: tuple[DPPGConfig, list[Progress], Ledger],
) -> None:
    config, chunks, _ = loud
    state = jax.tree.map(lambda x: x[0], chunks[-1].states)
    env = training_environment(config)
    acting = parts.actor(state.extras, state.policy)
    seen = rollout(env, env.default_params, acting, jax.random.key(0), STEPS, True)
    as_seen = parts.as_seen(state.extras, seen)
    assert not np.allclose(as_seen.observations, seen.observations)
    inside = state.policy(as_seen.observations).log_prob(seen.actions)
    outside = acting(seen.observations).log_prob(seen.actions)
    np.testing.assert_allclose(inside, outside, rtol=1e-4, atol=1e-5)
    released = jax.tree.map(lambda x: x[0], policies(chunks[-1].states)["last"])
    np.testing.assert_allclose(
        released(seen.observations).log_prob(seen.actions), outside, rtol=1e-4, atol=1e-5
    )


def test_a_training_stops_on_released_returns_and_pays_for_what_it_released(
    tmp_path: Path,
) -> None:
    config = tiny(
        stop_at_return=2.0,
        ema_decay=0.9,
        adaptive_clip=None,
        observation_statistics=False,
        private_return_noise_ratio=0.1,
        target_epsilon=50.0,
        hidden=(),
    )
    ledger = create_ledger(config, tmp_path / "ledger.sqlite")
    training = DPPGTraining(config, [0], [ledger])
    chunks = list(training)
    # Returns are at least 8 on average, and their noise is below 1: two to four releases.
    assert 1 <= chunks[-1].updates < config.num_updates
    assert float(chunks[-1].released["private_return_average"][0, -1]) >= 2.0
    certificate = derive(ledger)
    assert certificate.streams[0].releases == chunks[-1].updates
    assert 49 < certificate.epsilon <= 50
    with pytest.raises(ValueError, match="stopped after"):
        DPPGTraining(config, [0], [ledger], states=training.states, done=training.done)


def test_real_users_leave_nothing_without_noise(
    loud: tuple[DPPGConfig, list[Progress], Ledger],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is logged, printed or saved of them is on a list of functions of releases."""
    _, chunks, _ = loud
    functions_of_releases = {
        "update_norm", "clip_norm", "share_within_clip_norm",
        "private_return", "private_return_average",
    }  # fmt: skip
    assert set(chunks[0].released) == functions_of_releases
    config = tiny(updates=2, env_id="clinics:TestClinic-v0", population="real")
    ledger = create_ledger(config, tmp_path / "ledger.sqlite")
    met = list(DPPGTraining(config, [0], [ledger]))
    assert all(set(chunk.released) == functions_of_releases for chunk in met)
    assert all(chunk.diagnostics is None for chunk in met)
    out = tmp_path / "real"
    flags = "--env-id clinics:TestClinic-v0 --population real --private-return 0 20 --hidden 4"
    flags += f" --users-per-update {USERS}"
    flags += f" --steps-per-user {STEPS} --total-steps {USERS * STEPS * 4} --evaluation-episodes 2"
    assert main(["train", "dppg", *flags.split(), "--out", str(out)]) == 0
    for line in (out / "metrics.jsonl").read_text().splitlines():
        written = json.loads(line)
        assert written["simulated"] == {}
        assert set(written["released"]) == functions_of_releases - {
            "clip_norm", "share_within_clip_norm",
        }  # fmt: skip
    printed = capsys.readouterr().out
    assert "per user" not in printed
    assert "released return" in printed
    assert main(["report", str(out)]) == 0
    assert (out / "figures" / "returns.png").stat().st_size > 1000
    assert main(["certificate", str(out), "--verify"]) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adaptive_clip": 1.0}, "adaptive_clip must be in"),
        ({"adaptive_clip_rate": 0.0}, "adaptive_clip_rate must be in"),
        ({"adaptive_clip_noise_ratio": 0.0}, "adaptive_clip_noise_ratio must be in"),
        ({"clip_norm_from": "l2-quantile"}, "leave clip_norm_from out"),
        ({"local_update": "adam"}, "use local_update one-step"),
        ({"critic": "private", "joint_clip": True}, "clipped separately"),
        ({"unit": "segment", "one_episode": False}, "start from a reset"),
        ({"observation_range": math.inf}, "observation_range"),
        ({"private_return": (3.0, 3.0)}, "its lower end"),
        ({"private_return": None, "stop_at_return": 1.0}, "give private_return"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny(**changes)
