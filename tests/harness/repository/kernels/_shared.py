"""What several operator files share; the underscore says that it is no operator itself."""

from warpwatch import Cost


def cost_per_element(case):
    """Two operations per element, which is read and written once."""
    return Cost(flops=2 * case["n"], bytes=2 * case.element_bytes * case["n"])
