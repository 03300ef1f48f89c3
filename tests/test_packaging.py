"""What a package index and pip read of the project."""

import platform
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

pytest.importorskip("hatchling")
import hatch_build  # noqa: E402


def package_page() -> dict[str, object]:
    metadata: dict[str, object] = {}
    hatch_build.PackagePage(str(ROOT), {}).update(metadata)
    return metadata


def test_extras_name_the_distribution_itself_and_extras_that_are_there() -> None:
    extras = PROJECT["optional-dependencies"]
    own = [wanted for extra in extras.values() for wanted in extra if "secateur" in wanted]
    assert own
    for wanted in own:
        name, named = re.fullmatch(r"([\w-]+)\[([\w,]+)\]", wanted).groups()
        assert name == PROJECT["name"] == "torch-secateur"
        assert set(named.split(",")) <= set(extras)


def test_the_page_of_a_release_has_no_relative_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://host.example")
    monkeypatch.setenv("GITHUB_REPOSITORY", "owner/secateur")
    metadata = package_page()
    address = "https://host.example/owner/secateur"
    links = re.findall(r"(!?)\[[^]]*\]\(([^)#]+)", metadata["readme"]["text"])
    assert metadata["urls"]["Source"] == address
    for picture, link in links:
        found = re.fullmatch(rf"{address}/{'raw' if picture else 'blob'}/HEAD/(.+)", link)
        assert found, link
        assert (ROOT / found[1]).exists(), link


def test_a_build_that_knows_no_address_invents_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    metadata = package_page()
    assert metadata["urls"] == {}
    assert metadata["readme"]["text"] == (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("oldest", "runs", "machine", "tag"),
    [
        ("11.0", "15.3.1", "arm64", "macosx_11_0_arm64"),
        ("", "15.3.1", "arm64", "macosx_15_0_arm64"),
        ("10.15", "14.2", "x86_64", "macosx_10_15_x86_64"),
    ],
)
def test_the_wheel_of_a_mac_is_for_one_processor(
    oldest: str, runs: str, machine: str, tag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MACOSX_DEPLOYMENT_TARGET", oldest)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "mac_ver", lambda: (runs, ("", "", ""), machine))
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert hatch_build.platform_tag() == tag
