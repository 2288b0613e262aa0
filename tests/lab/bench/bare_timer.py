"""The least that a kopf operator can do for each resource: `kopf run` this file.

It imports nothing but kopf, so that its memory is what any operator made with kopf begins with.
"""

from typing import Any

import kopf

SECONDS = 30.0
"""As often as kvmedic looks at a fleet without a run (`pace.idle`)."""


@kopf.on.login()
def login(**given: Any) -> kopf.ConnectionInfo | None:
    return kopf.login_with_kubeconfig(**given)


@kopf.timer("kvmedic.io", "v1alpha1", "kvremediations", interval=SECONDS)
def do_nothing(**_: Any) -> None:
    """Return at once."""
