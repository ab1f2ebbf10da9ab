import pytest

from sotto.algorithms.baselines.presets import a2c_preset, ppo_preset


@pytest.mark.parametrize("preset", [ppo_preset, a2c_preset])
def test_presets_fit_and_can_be_changed(preset):
    default = preset("CartPole-v1")
    assert default == type(default)()
    cheetah = preset("HalfCheetah-v5", seed=3)
    assert (cheetah.env_id, cheetah.seed, cheetah.total_steps) == ("HalfCheetah-v5", 3, 1_000_000)
    assert preset("Hopper-v4", num_steps=32).num_steps == 32
