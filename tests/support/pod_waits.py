"""Waiting for a pod that no controller looks after: the product has none, tests have."""

from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.kinds import POD, Document
from kveval.engines.kubernetes.wait.diagnosis import Patience, Trouble, is_ready
from kveval.engines.kubernetes.wait.rollout import WaitState, WaitTarget, wait
from kveval.engines.protocol import Log


def wait_for_pod(
    api: Api,
    namespace: str,
    name: str,
    timeout_s: float,
    say: Log | None = None,
    patience: Patience | None = None,
) -> Document:
    """Wait until a pod that no controller looks after is ready; return it. Raises RolloutError."""
    target = WaitTarget(api, POD, namespace, name, patience or Patience())

    def look() -> WaitState:
        pod = target.read()
        if pod is None:
            return WaitState(False, "is not there")
        target.check([pod])
        phase = (pod.get("status") or {}).get("phase")
        if phase == "Succeeded":
            raise target.failed(
                Trouble("Completed", "ended, with success, instead of staying"), pod
            )
        return WaitState(is_ready(pod), f"is {phase}", [pod])

    return wait(target, look, timeout_s, say)[0]
