"""What a test of a service built on Outlive needs.

``check_store`` proves a store's promises; ``simulate_agent`` puts an agent through bad days in virtual time;
``postgres`` has a real server that a test may kill, freeze and restart; ``processes`` starts real processes
that serve runs, to be killed and frozen; ``hearing`` waits for happenings.
"""

from outlive.testing.conformance import check_store as check_store
from outlive.testing.simulation.application import PromiseBroken as PromiseBroken
from outlive.testing.simulation.application import simulate_agent as simulate_agent
