"""What a test of a service built on Outlive needs.

``check_store`` proves a store's promises; ``postgres`` has a real server that a test may kill, freeze and
restart; ``processes`` starts real processes that serve runs, to be killed and frozen; ``hearing`` waits for
happenings.
"""

from outlive.testing.conformance import check_store as check_store
