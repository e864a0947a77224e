"""Who may have a model, names that lead out of the cache, and where a token must not be."""

import logging
import os
from pathlib import Path

import pytest
from huggingface_hub import constants

from coldbench.study.lock import Pins, lock_path
from coldbench.study.models import Model

from .files import GOOD
from .server import SIGNATURE, HubServer
from .test_hub import REPO, error_of, model, prepared

# --- who may not --------------------------------------------------------------------------------


def test_each_refusal_has_its_own_message(
    server: HubServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = model(file="toy.gguf")
    server.commit(REPO, {"toy.gguf": GOOD})
    server.tokens = {"hf_known": {"someone/else"}, "hf_granted": {REPO}}
    repo = server.repos[REPO]

    def told(token: str | None) -> str:
        if token is None:
            monkeypatch.delenv("HF_TOKEN", raising=False)
        else:
            monkeypatch.setenv("HF_TOKEN", token)
        message = error_of(spec, cache)
        assert message.startswith(REPO)
        assert "hf_" not in message
        return message

    repo.access = "gated"
    assert "is gated; accept its terms on" in told(None)
    assert "your account has no access yet" in told("hf_known")
    repo.access = "private"
    assert "no such repository on" in told(None)
    assert "or it is private" in told(None)
    assert "that your account may see" in told("hf_known")
    assert "does not accept the token" in told("hf_expired")
    assert "does not accept the token" in told("hf_with\x01control")
    assert "cannot be sent; is the token" in told("hf_with\x0bcontrol")
    assert "cannot be sent; is the token" in told("hf_wïth")
    monkeypatch.setenv("HF_TOKEN", "hf_granted")
    assert prepared(spec, cache)["bytes"] == len(GOOD)
    assert server.leaks == []


def test_what_is_not_there_is_named(server: HubServer, cache: Path) -> None:
    server.commit(REPO, {"toy.gguf": GOOD})
    assert f"{REPO}: has no branch, tag or commit v2; see" in error_of(
        model(file="toy.gguf", revision="v2"), cache
    )
    other = Model.model_validate({"source": {"hf": {"repo": "no/body", "file": "a.gguf"}}})
    assert "no/body: there is no such repository" in error_of(other, cache)


def test_a_busy_or_absent_hub_is_told(
    server: HubServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.commit(REPO, {"toy.gguf": GOOD})
    server.api_statuses = [429]
    assert "limits your requests (429); try again in 7 s, or log in" in error_of(
        model(file="toy.gguf"), cache
    )
    server.api_statuses = [503]
    assert "answers 503; try again later" in error_of(model(file="toy.gguf"), cache)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "http://127.0.0.1:9 cannot be reached: is this machine offline" in error_of(
        model(file="toy.gguf"), cache
    )
    # What answers there is no hub: its answers make no sense.
    monkeypatch.setattr(constants, "ENDPOINT", f"{server.url}/files")
    assert error_of(model(file="toy.gguf"), cache).startswith(REPO)


# --- hostile names ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../../evil.gguf", "/etc/evil.gguf", "a/../../evil.gguf", "a\\b"])
def test_names_that_lead_out_are_refused_wherever_they_stand(
    server: HubServer, cache: Path, pins: Pins, tmp_path: Path, name: str
) -> None:
    with pytest.raises(ValueError, match=r"inside the repository|backslash"):
        model(file=name)
    hostile = name if name.endswith(".gguf") else f"{name}.gguf"
    server.commit(REPO, {hostile: GOOD})
    before = sorted(tmp_path.rglob("*"))
    message = error_of(model(pattern="*.gguf"), cache, pins)
    assert "the hub's" in message
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == [
        path for path in before if path.is_file()
    ]
    lock_path(pins.study).write_text(
        f"models:\n  toy:\n    hf: {{repo: {REPO}, file: toy.gguf, revision: main}}\n"
        f"    commit: {'0' * 40}\n"
        f"    files: [{{name: '{hostile}', size: 1, sha256: {'0' * 64}}}]\n"
    )
    assert f"{lock_path(pins.study)}:5: models.toy.files.0.name" in error_of(
        model(file="toy.gguf"), cache, pins
    )


@pytest.mark.parametrize(
    "repo", ["../..", "/etc/passwd", "a/../b", "a", "a/b/c", "a/-b", "a/b--c", "./b", "a/b.git"]
)
def test_a_repository_that_is_a_path_is_refused(repo: str) -> None:
    with pytest.raises(ValueError, match=r"hf\.repo"):
        Model.model_validate({"source": {"hf": {"repo": repo, "file": "a.gguf"}}})


@pytest.mark.parametrize("name", ["-rf.gguf", 'it\'s "a" $toy;.gguf', "a b/ü (1)?#%2F.gguf"])
def test_odd_names_are_only_names(
    server: HubServer, cache: Path, hub_cache: Path, name: str
) -> None:
    server.commit(REPO, {name: GOOD})
    path = Path(prepared(model(file=name), cache)["path"])
    assert str(path).endswith(f"/{name}")
    assert path.is_relative_to(hub_cache)
    assert os.path.isabs(path)


# --- the token ----------------------------------------------------------------------------------


@pytest.mark.parametrize("access", ["public", "gated", "private"])
def test_the_token_is_written_nowhere(
    server: HubServer,
    cache: Path,
    pins: Pins,
    tmp_path: Path,
    access: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    token = "hf_DoNotWriteThisAnywhere0123456789"
    monkeypatch.setenv("HF_TOKEN", token)
    caplog.set_level(logging.INFO)
    server.commit(REPO, {"toy.gguf": GOOD})
    server.repos[REPO].access = access
    server.tokens = {token: {REPO}}
    server.fault("toy.gguf", cut_after=200_000, cuts=1)
    record = prepared(model(file="toy.gguf"), cache, pins)
    server.tokens = {}
    messages = [error_of(model(file="other.gguf"), cache, pins)]
    said = [request for request in server.requests if "authorization" in request.headers]
    assert said  # it was used
    assert server.leaks == []  # and given to the hub alone
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    told = "".join([caplog.text, *capfd.readouterr(), repr(record), *messages])
    everything = b"".join([*written, told.encode()])
    assert token.encode() not in everything
    assert SIGNATURE.encode() not in everything
