"""The one kind of error a user is meant to read."""


class ColdbenchError(Exception):
    """Something the user can mend.

    The message is one line that names the file, key, build or arm at fault and says what to
    do about it. The command line and the workflow's jobs print it without a traceback.
    """
