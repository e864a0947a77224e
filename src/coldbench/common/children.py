"""Child processes that do not outlive the job that began them."""

import ctypes
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> Callable[[], object]:
    """Return a `preexec_fn` that has the child terminated when its parent dies: prctl(2).

    A killed job must not leave a program at work in a folder whose lock it held. To be called
    before the fork: afterwards nothing may be loaded.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
