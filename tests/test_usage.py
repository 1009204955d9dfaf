"""What was typed wrong is told in one line, with exit code 2."""

from __future__ import annotations

import pytest

from mounting import shufflefs

WRONG = {
    "an option that does not exist": (["mount", "--bogus", "a.h5ad", "mnt"], "unexpected argument '--bogus' found"),
    "a value that is no number": (["plan", "--batch-size", "many", "a.h5ad"], "invalid value 'many' for '--batch-size"),
    "a missing argument": (["umount"], "the following required arguments were not provided"),
    "a choice that does not exist": (["plan", "--tail", "cut", "a.h5ad"], "--tail cut: expected keep, drop or pad"),
    "a command that does not exist": (["mouth", "a.h5ad"], "unrecognized subcommand 'mouth'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_usage_errors_are_one_line(case):
    arguments, expected = WRONG[case]
    result = shufflefs(*arguments)
    assert result.returncode == 2
    assert result.stderr.startswith("shufflefs: ") and expected in result.stderr
    assert result.stderr.count("\n") == 1 and result.stdout == ""


def test_a_config_error_names_its_line(tmp_path):
    config = tmp_path / "config.toml"
    config.write_text("batch-size = 64\n\nfetch-facto = \"8\"\n")
    result = shufflefs("plan", "--config", config, "a.h5ad")
    assert result.returncode == 2
    assert f"{config}: line 3: unknown field `fetch-facto`" in result.stderr
