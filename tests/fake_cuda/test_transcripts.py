"""The page about GPUs shows what the first commands say."""

import pytest

from fake_cuda import transcripts

pytestmark = pytest.mark.pretended


def test_the_page_has_what_the_commands_say():
    assert transcripts.transcripts() in transcripts.PAGE.read_text("utf-8")
