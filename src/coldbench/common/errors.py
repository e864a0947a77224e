"""The one kind of error a user is meant to read."""

import errno
import os

from coldbench.common.text import visible


class ColdbenchError(Exception):
    """Something the user can mend.

    The message is one line that names the file, key, build or arm at fault and says what to
    do about it. The command line and the workflow's jobs print it without a traceback; it may
    quote any text, since control characters are shown, not sent, to the terminal.
    """

    def __str__(self) -> str:
        """Return the message, safe to print."""
        return visible(super().__str__())


_OF_THE_MACHINE = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO),
        errno.EEXIST,  # a file where a folder has to be
        *(errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EMFILE, errno.ENFILE),
        *(errno.ENOMEM, errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.ENOTCONN),
    }
)


def machine_fault(error: OSError) -> ColdbenchError | None:
    """Return what to tell the user about a full disk, a missing permission and their like.

    None for errors that rather point to a fault of ours.
    """
    if error.errno not in _OF_THE_MACHINE:
        return None
    place = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
    return ColdbenchError(f"{place}{error.strerror}; mend that and run the same command again")
