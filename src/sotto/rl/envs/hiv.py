"""HIV-v0: structured treatment interruption, a decision every 20 days, for 50 decisions.

The model is that of Adams et al. (2004), and the rewards and the first state are those of Ernst et
al. (2006). The state has healthy and infected cells of two kinds, free virus and immune effectors;
a patient starts at the non-healthy equilibrium. The reward depends on the next state. The constants
are those of RLPy's HIVTreatment, except that a step has 20 days as in Sharma et al. (2024) and not
5.

The equations are stiff: the second kind of cells is infected at up to 142 per day. Each decision
therefore takes 2,000 Runge-Kutta steps; 1,000 are at the edge of stability and 400 diverge. The
undiscounted return is 8.58e5 without treatment, and 1.757e6 with both drugs all the time.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from sotto.rl.envs.base import ActionSpace, Coins, Discrete, Environment, Scalar, flip, toss
from sotto.rl.envs.runge_kutta import integrated

LAMBDA_1, LAMBDA_2 = 1e4, 31.98  # cells per ml and day
D_1 = D_2 = 0.01  # per day
K_1, K_2 = 8e-7, 1e-4  # ml per virion and day
F = 0.34  # fraction of the first drug's efficacy that reaches the second kind of cells
DELTA = 0.7  # per day
M_1 = M_2 = 1e-5  # ml per cell and day
N_T = 100.0  # virions per cell
C = 13.0  # per day
RHO_1 = RHO_2 = 1.0  # virions per cell
LAMBDA_E = 1.0  # cells per ml and day
B_E, K_B = 0.3, 100.0  # per day; cells per ml
D_E, K_D = 0.25, 500.0  # per day; cells per ml
DELTA_E = 0.1  # per day

START = (163573.0, 5.0, 11945.0, 46.0, 63919.0, 24.0)
RTI_EFFICACY, PI_EFFICACY = 0.7, 0.3


class HIVParams(eqx.Module):
    """Parameters of the treatment; every field may be traced."""

    rti_penalty: Scalar = 20_000.0
    """Penalty per squared efficacy of the reverse transcriptase inhibitor (R1)."""
    pi_penalty: Scalar = 2_000.0
    """Penalty per squared efficacy of the protease inhibitor (R2)."""
    efficacy_noise: Scalar = 0.0
    """Standard deviation of a given drug's efficacy, drawn anew for each decision.

    The penalty uses the nominal efficacy, since it is a penalty on the dose."""


class HIVState(NamedTuple):
    """State of the patient, and the random numbers of the next steps."""

    cells: Float[Array, "6"]
    """Concentrations per ml of blood: healthy cells of the first kind (CD4+) and of the second
    (macrophages), infected cells of the first and second kind, free virions, immune effectors."""
    coins: Coins


_ACTIONS = Discrete(4)
_PARAMS = HIVParams()


@dataclass(frozen=True, kw_only=True)
class HIV(Environment[HIVState, HIVParams]):
    """Treat with no drug (0), RTI (1), PI (2) or both (3); choose every `days` days."""

    id: str = "HIV-v0"
    observation_size: int = 6
    action: ActionSpace = _ACTIONS
    default_params: HIVParams = _PARAMS
    reset_size: int = 1
    max_episode_steps: int = 50
    observation_scale: tuple[float, ...] = (0.25,) * 6
    reward_per_step: float = 20_000.0
    days: float = 20.0
    substeps: int = 2_000
    """Number of Runge-Kutta steps per decision."""

    def reset(self, uniforms: Float[Array, "1"], params: HIVParams) -> HIVState:
        """Returns the non-healthy equilibrium; only the coins are random."""
        del params
        cells = jnp.stack([jnp.float32(concentration) for concentration in START])
        return HIVState(cells, toss(uniforms[0]))

    def step(
        self, state: HIVState, action: Int[Array, ""], params: HIVParams
    ) -> tuple[HIVState, Float[Array, ""], Bool[Array, ""]]:
        """Simulates `days` days with the same drugs; no state ends an episode."""
        rti = RTI_EFFICACY * (action % 2).astype(jnp.float32)
        pi = PI_EFFICACY * (action // 2).astype(jnp.float32)
        coins, normals = _two_normals(state.coins)
        taken_rti, taken_pi = (
            jnp.where(nominal > 0, nominal + params.efficacy_noise * normal, 0.0)
            for nominal, normal in zip((rti, pi), normals, strict=True)
        )
        slopes = partial(_derivative, rti=taken_rti, pi=taken_pi)
        cells = integrated(slopes, state.cells, self.days, self.substeps)
        virus, effectors = cells[4], cells[5]
        penalty = params.rti_penalty * jnp.square(rti) + params.pi_penalty * jnp.square(pi)
        reward = 1000.0 * effectors - 0.1 * virus - penalty
        return HIVState(cells, coins), reward, jnp.zeros((), bool)

    def observe(self, state: HIVState, params: HIVParams) -> Float[Array, "6"]:
        """Returns base-10 logarithms of the six concentrations."""
        del params
        return jnp.log10(state.cells)


def _derivative(
    cells: Float[Array, "6"], rti: Float[Array, ""], pi: Float[Array, ""]
) -> Float[Array, "6"]:
    """Returns time derivatives per day: the six equations of Adams et al. 2004."""
    t1, t2, infected_1, infected_2, virus, effectors = (cells[i] for i in range(6))
    met_1 = (1 - rti) * K_1 * virus * t1
    met_2 = (1 - F * rti) * K_2 * virus * t2
    infected = infected_1 + infected_2
    killed = effectors * (B_E * infected / (infected + K_B) - D_E * infected / (infected + K_D))
    slopes = [
        LAMBDA_1 - D_1 * t1 - met_1,
        LAMBDA_2 - D_2 * t2 - met_2,
        met_1 - DELTA * infected_1 - M_1 * effectors * infected_1,
        met_2 - DELTA * infected_2 - M_2 * effectors * infected_2,
        (1 - pi) * N_T * DELTA * infected - C * virus - RHO_1 * met_1 - RHO_2 * met_2,
        LAMBDA_E + killed - DELTA_E * effectors,
    ]
    return jnp.stack(slopes)


def _two_normals(coins: Coins) -> tuple[Coins, tuple[Float[Array, ""], Float[Array, ""]]]:
    """Draws two standard normals (Box and Muller); a uniform of zero counts as 2^-25."""
    coins, radius = flip(coins)
    coins, angle = flip(coins)
    length = jnp.sqrt(-2.0 * jnp.log(jnp.maximum(radius, 2.0**-25)))
    turn = 2 * math.pi * angle
    return coins, (length * jnp.cos(turn), length * jnp.sin(turn))
