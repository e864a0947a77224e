"""The frame of a workflow job: its log, and errors that read as one line."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coldbench.common.errors import ColdbenchError, machine_fault


@contextmanager
def job(log_file: str | os.PathLike[str]) -> Iterator[None]:
    """Send the job's log to stderr and to `log_file`; end a ColdbenchError with one line, exit 1.

    Any other exception is a fault of ours: its traceback goes to both as well.
    """
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    unwritable: OSError | None = None
    try:
        path = Path(log_file)
        path.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(path, mode="a", encoding="utf-8"))
    except OSError as error:
        unwritable = error
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)
    # On a full disk the log file fails with everything else; stderr still says what happened.
    logging.raiseExceptions = False
    log = logging.getLogger("coldbench")
    try:
        if unwritable is not None:
            raise unwritable
        yield
    except ColdbenchError as error:
        log.error("error: %s", error)
        sys.exit(1)
    except KeyboardInterrupt:
        log.error("interrupted; the same command continues where this stopped")
        sys.exit(130)
    except Exception as error:
        if isinstance(error, OSError) and (told := machine_fault(error)):
            log.error("error: %s", told)
        else:
            log.exception("internal error (please report it with this log)")
        sys.exit(1)
