import json

from fieldwatch.report.tab.reading import AccountReader, version_of


def test_a_second_reading_takes_in_what_is_new(tmp_path, write_run, add_rows):
    folder = write_run(tmp_path / "run", 20)
    reader = AccountReader(folder)
    account, error = reader.read()
    assert (account["run"]["last_step"], error) == (19, "")
    add_rows(folder, 20, 5)
    account, _ = reader.read()
    assert account["run"]["last_step"] == 24
    assert account["series"]["Loss/total"]["x"] == list(range(25))
    json.dumps(account, allow_nan=False)


def test_a_folder_that_is_gone_or_damaged_is_told_in_words(tmp_path, write_run):
    folder = write_run(tmp_path / "run")
    reader = AccountReader(folder)
    (folder / "journal.jsonl").write_bytes(b'{"layout": "broken"}\n[1,2]\nend\n')
    account, error = reader.read()
    assert error == ""
    (finding,) = [one for one in account["findings"] if one["rule"] == "DamagedRecord"]
    assert "journal.jsonl: 3 lines skipped" in finding["message"]
    (folder / "journal.jsonl").unlink()
    (folder / "run.json").write_text("{}")
    assert "run.json" in AccountReader(folder).read()[1]
    assert AccountReader(tmp_path / "none").read()[0] is None


def test_a_record_that_was_mended_is_read_again(tmp_path, write_run):
    folder = write_run(tmp_path / "run")
    whole = (folder / "journal.jsonl").read_bytes()
    (folder / "journal.jsonl").write_bytes(b"broken\n" + whole)
    reader = AccountReader(folder)
    assert "DamagedRecord" in [one["rule"] for one in reader.read()[0]["findings"]]
    (folder / "journal.jsonl").write_bytes(whole)
    account, error = reader.read()
    assert error == ""
    assert account["run"]["rows"] == 20


def test_the_version_follows_the_files(tmp_path, write_run, add_rows):
    folder = write_run(tmp_path / "run")
    before = version_of(folder)
    assert version_of(folder) == before
    add_rows(folder, 20)
    assert version_of(folder) != before
    assert version_of(tmp_path / "none") != before
