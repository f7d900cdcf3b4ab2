"""Models by their id on the Hugging Face hub, asked of a little hub on loopback."""

from collections.abc import Generator
from pathlib import Path

import pytest

import search_spaces
from platform.search.__main__ import parse
from platform.search.setup.request import read_request
from search_spaces import hub
from tests.search_spaces.stub_hub import COMMIT, Hub, serving

TOKEN = "hf_SECRET"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[Hub]:
    """Returns a hub that this process asks, with a cache of its own and no token."""
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    hub.fetch.cache_clear()
    with serving() as elsewhere, serving(elsewhere) as first:
        monkeypatch.setenv("HF_ENDPOINT", first.endpoint)
        yield first
    hub.fetch.cache_clear()


def refusal(model: str) -> str:
    with pytest.raises(ValueError, match=r"^acme/") as raised:
        search_spaces.load(model)
    assert "\n" not in str(raised.value) and TOKEN not in str(raised.value)
    return str(raised.value)


def test_the_config_alone_is_fetched_and_its_commit_is_told(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    space = search_spaces.load("acme/open")
    assert space.name == "open" and space.recipe.model.num_layers == 2
    assert f"the config.json of acme/open is that of commit {COMMIT[:12]} at {server.endpoint}" in space.model_remarks
    assert {path for path, _ in server.requests} == {"/acme/open/resolve/main/config.json"}
    pinned = search_spaces.pinned("acme/open")
    assert pinned == f"acme/open@{COMMIT}"
    server.requests.clear()
    hub.fetch.cache_clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # from the cache, without a network
    assert search_spaces.load(pinned).recipe == space.recipe and search_spaces.load("acme/open").recipe == space.recipe
    assert server.requests == [] and search_spaces.pinned(pinned) == pinned


@pytest.mark.parametrize("address", ["https://huggingface.co/acme/open", "hf.co/acme/open/blob/main/config.json"])
def test_an_address_is_answered_by_its_id(address: str) -> None:
    with pytest.raises(ValueError, match=r"is an address: the model's id on the hub is acme/open$"):
        search_spaces.load(address)


def test_an_address_of_no_model_has_no_id() -> None:
    with pytest.raises(ValueError, match="is not there: give a space's name"):
        search_spaces.load("https://huggingface.co/datasets/acme")


def test_a_file_or_folder_of_the_name_comes_first(server: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "acme/open").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert "has no config.json" in refusal("acme/open") and search_spaces.pinned("acme/open") == "acme/open"
    assert server.requests == []


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("gated", "acme/gated is no file here, and the model is gated: accept its terms at {0}/acme/gated and use a"
         " token (hf auth login, or HF_TOKEN)"),
        ("none", "acme/none is no file here, and the model is not at {0}/acme/none, or is private and no token is set"),
        ("open@v9", "acme/open@v9 is no file here, and the model has no revision v9 at {0}/acme/open"),
        ("empty", "acme/empty is no file here, and the model has no config.json at {0}/acme/empty"),
        ("broken", "acme/broken is no file here, and the model cannot be fetched: {0}/acme/broken answers 403"),
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_told_in_a_sentence(server: Hub, model: str, sentence: str) -> None:
    assert refusal(f"acme/{model}") == sentence.format(server.endpoint)


def test_a_token_is_sent_to_the_hub_alone(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert "use a token of an account that may read it" in refusal("acme/gated")
    assert {token for _, token in server.requests} == {f"Bearer {TOKEN}"}
    with serving() as elsewhere, serving(elsewhere) as first:
        monkeypatch.setenv("HF_ENDPOINT", first.endpoint)
        assert search_spaces.load("acme/elsewhere").recipe.model.num_layers == 2
        assert elsewhere.requests and {token for _, token in elsewhere.requests} == {""}


def test_without_a_network_or_an_answer_the_command_that_downloads_is_told(
    server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "hf download acme/other config.json --local-dir other, then give other/config.json here"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert refusal("acme/other").endswith(f"and HF_HUB_OFFLINE is set: with a network, {command}")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(hub, "LONGEST_S", 4.0)
    assert "the hub did not answer within 4 s" in refusal("acme/slow")


def test_a_token_in_the_clear_is_warned_of() -> None:
    config = hub.HubConfig(model="a/b", path=Path(), commit=COMMIT, endpoint="http://h", warning="in the clear")
    assert config.remarks[1] == "in the clear"


def test_a_study_keeps_the_commit_and_goes_on_by_the_same_command(server: Hub) -> None:
    options = parse(["acme/open", "--set", "global_batch=8"])
    stored = read_request(options).options
    assert stored.space == f"acme/open@{COMMIT}" and stored.files() == ()
    assert options.study.differences(stored) == []
    assert parse([f"acme/open@{'b' * 40}", "--set", "global_batch=8"]).study.differences(stored) == ["the space"]
