"""One module per engine tool: its command line, and what its output means."""

from coldbench.drivers.registry import DRIVERS, driver_for

__all__ = ["DRIVERS", "driver_for"]
