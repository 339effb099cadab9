"""Flags before environment before file before defaults; wrong values are named."""

from pathlib import Path
from typing import Any

import pytest

from service.errors import SettingsError
from service.settings import Settings, load_settings, unknown_variables


def test_flags_go_before_environment_before_file(tmp_path: Path) -> None:
    """Each source only fills in what the ones before it leave open."""
    file = tmp_path / "confgate.toml"
    file.write_text("port = 1\nmax_batch = 2\nthreads = 3\n")
    environ = {"CONFGATE_PORT": "10", "CONFGATE_MAX_BATCH": "20"}
    settings = load_settings({"port": "100", "max_batch": None}, environ, file)
    assert (settings.port, settings.max_batch, settings.threads) == (100, 20, 3)
    assert settings.max_images == Settings.model_fields["max_images"].default


@pytest.mark.parametrize(
    ("flags", "environ", "message"),
    [
        ({"max_batch": "x"}, {}, "--max-batch: 'x' is not allowed: Input should be a valid integer"),
        ({}, {"CONFGATE_MAX_BATCH": "0"}, "CONFGATE_MAX_BATCH: '0' is not allowed: Input should be greater than"),
        ({"device": "tpu"}, {}, "--device: 'tpu' is not allowed: Input should be 'auto', 'cuda' or 'cpu'"),
        ({}, {"CONFGATE_PORT": "tcp://10.0.0.1:8000"}, "CONFGATE_PORT: 'tcp://10.0.0.1:8000' is not allowed"),
        ({"drain_seconds": "nan"}, {}, "--drain-seconds: 'nan' is not allowed: Input should be a finite number"),
        ({"allow_anonymous": "maybe"}, {}, "--allow-anonymous: 'maybe' is not allowed: Input should be 'auto', 'true'"),
        ({"max_images": "600"}, {}, r"max_images \(600\) must not be more than max_queue_images \(512\)"),
    ],
)
def test_a_wrong_value_is_named(flags: dict[str, Any], environ: dict[str, str], message: str) -> None:
    """The message has the key as it was written, the value, and what is allowed."""
    with pytest.raises(SettingsError, match=message):
        load_settings(flags, environ)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 8000", "prot is no setting; allowed: models, "),
        ("port = 'x'", r"port in .*confgate.toml: 'x' is not allowed"),
        ("port", "is not TOML"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    """A settings file with an unknown key, a wrong value or broken syntax is refused by its name."""
    file = tmp_path / "confgate.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=message):
        load_settings({}, {}, file)
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings({}, {}, tmp_path / "nope.toml")


def test_the_environment_is_only_read_where_it_is_given() -> None:
    """Settings made in code are not changed by variables that happen to be set."""
    assert load_settings({}, {}).port == Settings().port == 8000


def test_misspelt_variables_are_found() -> None:
    """CONFGATE_ variables that set nothing are listed, others are not."""
    assert unknown_variables({"CONFGATE_PROT": "1", "CONFGATE_PORT": "1", "HOME": "/"}) == ["CONFGATE_PROT"]


def test_every_setting_is_explained() -> None:
    """Each setting has a sentence for `confgate serve --help`."""
    assert all((field.description or "").endswith(".") for field in Settings.model_fields.values())
