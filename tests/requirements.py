"""Every rule of the protocols' documents: what it asks of the gateway, and which room must keep it.

`L` are the rules of HUMA 0.1, `N` those of 0.2.0, `A` the places where the documents are silent or
contradict each other, with the reading we chose. `H` and `H-…` are Herm's rules and ambiguities, `OH`
those of OpenHands and `OV` those of its V1. A rule is live unless it says `deferred` (ours, but
not yet) or `not_ours` (it binds the HUMA server, the author of the application, or nobody). Tests name
live rules with `@pytest.mark.requirement("L40")`, vectors in their `requirements` list;
`test_requirements.py` holds both directions.
"""

from tests.rules.herm import HERM, OPEN
from tests.rules.huma_v0_1 import HUMA_0_1
from tests.rules.huma_v0_2 import AMBIGUOUS, HUMA_0_2
from tests.rules.openhands import OPENHANDS
from tests.rules.openhands_v1 import OPENHANDS_V1
from tests.rules.rule import Requirement as Requirement

REQUIREMENTS: dict[str, Requirement] = {
    **HUMA_0_1,
    **HUMA_0_2,
    **AMBIGUOUS,
    **HERM,
    **OPEN,
    **OPENHANDS,
    **OPENHANDS_V1,
}
