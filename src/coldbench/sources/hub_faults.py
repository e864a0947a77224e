"""What a hub's refusals and nonsense mean to a user: one line each, none of the library's texts.

Those are long, quote addresses that may be signed, and one quotes the header with the token.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
from huggingface_hub import constants, get_token
from huggingface_hub.errors import (
    EntryNotFoundError,
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from coldbench.common.errors import ColdbenchError
from coldbench.study.models import HubFiles

_NONSENSE = (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What the library makes of an answer that is none of a hub."""


@contextmanager
def telling(asked: HubFiles, name: str | None) -> Iterator[None]:
    """Turn the library's errors about the file `name` (if any) into a ColdbenchError."""
    hub = constants.ENDPOINT
    page = f"{hub}/{asked.repo}"
    try:
        yield
    except ColdbenchError:
        raise
    except GatedRepoError as error:
        raise ColdbenchError(_gated(asked.repo, page, _status(error))) from None
    except RevisionNotFoundError:
        raise ColdbenchError(
            f"{asked.repo}: has no branch, tag or commit {asked.revision}; see {page}/tree/main"
        ) from None
    except RepositoryNotFoundError as error:
        raise ColdbenchError(_no_repository(asked.repo, hub, _status(error))) from None
    except LocalEntryNotFoundError:
        raise ColdbenchError(_unreachable(asked.repo, hub)) from None
    except EntryNotFoundError:
        raise ColdbenchError(f"{asked.repo}: has no file {name} at {asked.revision}") from None
    except OfflineModeIsEnabled:
        raise ColdbenchError(
            f"{asked.repo}: HF_HUB_OFFLINE is set and the lock does not say what {asked.revision} "
            "is; run once without that"
        ) from None
    except FileMetadataError:
        raise ColdbenchError(
            f"{asked.repo}: {hub} answers, but not as a hub does; see HF_ENDPOINT and the proxy"
        ) from None
    except HfHubHTTPError as error:
        raise ColdbenchError(_refused(asked.repo, hub, error)) from None
    except (httpx2.LocalProtocolError, UnicodeEncodeError):
        raise ColdbenchError(
            f"{asked.repo}: the request cannot be sent; is the token (HF_TOKEN) free of spaces and "
            "control characters?"
        ) from None
    except httpx2.TooManyRedirects:
        raise ColdbenchError(
            f"{asked.repo}: the redirects of {hub} lead nowhere; see HF_ENDPOINT and the proxy"
        ) from None
    except httpx2.TimeoutException:
        raise ColdbenchError(f"{asked.repo}: {hub} does not answer; try again later") from None
    except (httpx2.HTTPError, httpx2.InvalidURL):
        raise ColdbenchError(_unreachable(asked.repo, hub)) from None
    except _NONSENSE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise ColdbenchError(
                f"{error.filename or constants.HF_HUB_CACHE}: {error.strerror}; mend that, or set "
                "HF_HOME to another folder"
            ) from None
        raise ColdbenchError(
            f"{asked.repo}: {hub} gave an answer that makes no sense ({type(error).__name__}); see "
            "HF_ENDPOINT, or try again"
        ) from None


def _status(error: HfHubHTTPError) -> int:
    return int(error.response.status_code)


def _logged_in() -> bool:
    return get_token() is not None


def _gated(repo: str, page: str, status: int) -> str:
    if _logged_in() and status != 401:
        return (
            f"{repo}: is gated and your account has no access yet; ask for it on {page}, and check "
            "that the token may read gated repositories"
        )
    return (
        f"{repo}: is gated; accept its terms on {page}, then log in (hf auth login, or HF_TOKEN in "
        "the environment)"
    )


def _no_repository(repo: str, hub: str, status: int) -> str:
    if status == 401 and not _logged_in():
        return (
            f"{repo}: there is no such repository on {hub}, or it is private; correct the name, or "
            "log in (hf auth login, or HF_TOKEN in the environment)"
        )
    return (
        f"{repo}: there is no such repository on {hub} that your account may see; correct the name"
    )


def _refused(repo: str, hub: str, error: HfHubHTTPError) -> str:
    match _status(error):
        case 401:
            return f"{repo}: {hub} does not accept the token; renew it (hf auth login, or HF_TOKEN)"
        case 403:
            return (
                f"{repo}: {hub} forbids it to your token (403); give it the right to read this "
                "repository"
            )
        case 429:
            after = error.response.headers.get("Retry-After", "")
            known = after.isascii() and after.isdigit() and len(after) < 7
            when = f"in {after} s" if known else "in some minutes"
            login = "" if _logged_in() else ", or log in, which raises the limit"
            return f"{repo}: {hub} limits your requests (429); try again {when}{login}"
        case status:
            return f"{repo}: {hub} answers {status}; try again later"


def _unreachable(repo: str, hub: str) -> str:
    return (
        f"{repo}: {hub} cannot be reached: is this machine offline, or the proxy or HF_ENDPOINT "
        "wrong?"
    )
