"""A person's side of a campaign: takes a place, lives one trajectory, and gives it.

Example:
    with Person("https://study.example.org", token) as me:
        me.live(world)

The world is any object with `reset() -> observation` and `step(action) -> (observation, reward,
ended)`. Every request may be repeated safely, so a failed one is sent again.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import httpx
import numpy as np

from sotto.people.policy import NumpyPolicy
from sotto.serving.patient import PATIENCE_SECONDS, PatientHttp, fields_of, message_of

if TYPE_CHECKING:
    from sotto.people.device import Device


class CampaignUnavailable(OSError):
    """The campaign could not be reached within the patience of the client."""


class CampaignRefused(ValueError):
    """The campaign refuses a request.

    Attributes:
        code: kind of the refusal, such as "no-place" or "finished".
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class OwnWorld(Protocol):
    """The world that a person lives in."""

    def reset(self) -> Sequence[float]:
        """Returns the first observation."""

    def step(self, action: Any) -> tuple[Sequence[float], float, bool]:
        """Returns the next observation, the reward, and whether the trajectory ended there."""


class Person:
    """One person's device. Close it after use, or use it in a `with` block.

    Args:
        url: address of the campaign's service.
        token: this person's token.
        seed: seed of sampled actions; by default every device samples differently.
        patience_seconds: time during which a failed request is repeated.
        transport: transport of httpx, for tests.

    Raises:
        ValueError: the URL is not valid.
        CampaignUnavailable: no service answers at the URL.
        CampaignRefused: the token is not accepted.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        seed: int | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = PatientHttp(
            "campaign", url, token, CampaignUnavailable, patience_seconds, transport
        )
        self._rng = np.random.default_rng(seed)
        self._policy: NumpyPolicy | None = None
        self._given: dict[str, Any] | None = None
        self._device: Device | None = None
        try:
            self.campaign = self._ask("GET", "v1/campaign")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Person":
        """Returns this person."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the connection."""
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self._http.close()

    def policy(self) -> NumpyPolicy:
        """Returns the current policy, and reads it only if it has changed."""
        held = {} if self._policy is None else {"If-None-Match": f'"{self._policy.version}"'}
        response = self._http.request("GET", "v1/policy", headers=held)
        if response.status_code == 304 and self._policy is not None:
            return self._policy
        self._policy = NumpyPolicy(_understood(response))
        return self._policy

    def result(self) -> NumpyPolicy:
        """Returns the moving average of the released policies, which is the campaign's result."""
        return NumpyPolicy(self._ask("GET", "v1/result"))

    def take_place(self) -> dict[str, Any]:
        """Takes a place in the open release; returns place, release, version and seconds_left.

        Raises:
            CampaignRefused: there is no place now ("no-place"), this person took part as often as
                is allowed ("took-part"), withdrew ("withdrew"), or the campaign has ended
                ("finished").
        """
        return self._ask("POST", "v1/places", {})

    def live(self, world: OwnWorld) -> dict[str, Any]:
        """Takes a place, lives one trajectory in `world`, gives it, and returns the answer.

        In a campaign of updates it computes the update here, and gives that in place of the
        trajectory.

        Raises:
            CampaignRefused: as `take_place`; or the place expired meanwhile ("place-closed").
        """
        device = self._own_device()
        place = self.take_place()
        policy = None if self.campaign["acts"] == "server" else self._policy_of(place["version"])
        state = b"" if device is None else self._state_of(place["version"])
        seen = [np.asarray(world.reset(), float).tolist()]
        actions: list[Any] = []
        rewards: list[float] = []
        ended = False
        while not ended and len(rewards) < self.campaign["steps"]:
            action = self._action(place["place"], len(rewards), seen[-1], policy)
            observation, reward, ended = world.step(action)
            actions.append(action)
            rewards.append(float(reward))
            seen.append(np.asarray(observation, float).tolist())
        given: dict[str, Any] = {
            "place": place["place"],
            "observations": seen,
            "rewards": rewards,
            "terminated": bool(ended),
        }
        if policy is not None:
            given["actions"] = actions
        if device is not None:
            update = device.update(state, given, int(self._rng.integers(2**31)))
            given = {"place": place["place"], "update": update}
        self._given = given
        return self.give_again()

    def give_again(self) -> dict[str, Any]:
        """Sends the last contribution again, for example after a crash of the network."""
        if self._given is None:
            raise ValueError("this person has given nothing yet")
        return self._ask("POST", "v1/contributions", self._given)

    def withdraw(self) -> dict[str, Any]:
        """Ends this person's part; returns a receipt and what it means."""
        return self._ask("POST", "v1/withdrawals", {})

    def me(self) -> dict[str, Any]:
        """Returns what was collected about this person, and what it cost."""
        return self._ask("GET", "v1/me")

    def _policy_of(self, version: int) -> NumpyPolicy:
        """Returns the policy of a version.

        Raises:
            CampaignRefused: its release was made meanwhile.
        """
        policy = self.policy()
        if policy.version != version:
            raise _closed()
        return policy

    def _own_device(self) -> "Device | None":
        """Returns the computation of updates; None in a campaign of trajectories."""
        if self.campaign["gives"] == "trajectory":
            return None
        if self._device is None:
            from sotto.people.device import Device  # it needs JAX, and other devices do not

            self._device = Device(self.campaign)
        return self._device

    def _state_of(self, version: int) -> bytes:
        """Returns the public state of a version.

        Raises:
            CampaignRefused: its release was made meanwhile.
        """
        response = self._http.request("GET", "v1/state")
        if response.status_code != 200:
            _understood(response)
        if response.headers.get("etag") != f'"{version}"':
            raise _closed()
        return response.content

    def _action(self, place: str, step: int, seen: list[float], policy: NumpyPolicy | None) -> Any:
        if policy is not None:
            return policy.action(np.asarray(seen), self._rng)
        asked = {"place": place, "step": step, "observation": seen}
        return self._ask("POST", "v1/actions", asked)["action"]

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        what = {} if body is None else {"json": body}
        return _understood(self._http.request(method, path, **what))


def _closed() -> CampaignRefused:
    return CampaignRefused("place-closed", "the release was made before this place was used")


def _understood(response: httpx.Response) -> dict[str, Any]:
    """Returns the JSON object of a response.

    Raises:
        CampaignRefused: it is a refusal, or no JSON object.
    """
    fields = fields_of(response)
    if response.status_code != 200 or not fields:
        raise CampaignRefused(str(fields.get("error", "not-understood")), message_of(response))
    return fields
