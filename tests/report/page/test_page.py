"""One file: whole or not there, what is embedded stays data, and nothing may be loaded."""

import base64
import hashlib
import json
import re

import pytest

from fieldwatch.report.page import is_page, report_page, write_page


def embedded(page):
    return re.findall(r'<script type="application/json" id="account">(.*?)</script>', page, re.DOTALL)


def test_what_is_embedded_is_the_account(account):
    (text,) = embedded(report_page(account))
    assert json.loads(text) == account


def test_nothing_in_an_account_can_end_its_element(account, evil):
    page = report_page(account)
    (text,) = embedded(page)
    assert not set(text) & {"<", ">", "&"}
    assert text.isascii()
    assert evil not in page
    assert page.count("<script") == 2
    title = re.search(r"<title>(.*?)</title>", page, re.DOTALL)[1]
    assert title.startswith("&lt;img src=x")
    assert title.isprintable()


def test_a_name_that_is_no_valid_text_is_written(account):
    account["run"]["folder"] = "runs/\udcff"
    (text,) = embedded(report_page(account))
    assert json.loads(text)["run"]["folder"] == "runs/\udcff"


def test_the_policy_names_script_and_style_by_their_hashes_and_forbids_the_rest(account):
    page = report_page(account)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1]
    parts = dict(part.split(" ", 1) for part in policy.split("; "))
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)[1]
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    for name, text in (("script-src", script), ("style-src", style)):
        assert parts[name] == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
    assert parts["default-src"] == "'none'"
    assert parts["img-src"] == "data:"


def test_a_page_names_no_place_in_the_network(account):
    page = report_page(account)
    without_comments = re.sub(r"/\*.*?\*/", "", page, flags=re.DOTALL)
    assert set(re.findall(r"https?://[^\s\"')]+", without_comments)) == {"http://www.w3.org/2000/svg"}
    assert re.findall(r"\b(?:src|href)=\"(?!#)", page) == []


def test_values_that_json_does_not_know_are_refused_and_nothing_is_left(account, tmp_path):
    account["series"]["Loss/total"]["y"][0] = float("nan")
    with pytest.raises(ValueError, match="JSON"):
        write_page(account, tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_a_page_is_written_into_a_new_folder_and_over_an_older_page(account, tmp_path):
    path = tmp_path / "new" / "report.html"
    write_page(account, path)
    account["verdict"]["title"] = "again"
    write_page(account, path)
    assert is_page(path)
    assert json.loads(embedded(path.read_text())[0])["verdict"]["title"] == "again"
    assert [each.name for each in path.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize("text", ["", "<html><head><title>fieldwatch report</title></head></html>", "x" * 5000])
def test_another_file_is_no_page(text, tmp_path):
    (tmp_path / "other.html").write_text(text)
    assert not is_page(tmp_path / "other.html")
