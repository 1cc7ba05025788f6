"""benchmarks/reading.py in short: every reader is asked for the same numbers, and ours shows the one odd step."""

import pytest

ROWS = 400


@pytest.mark.parametrize("way", ["ours", "default", "unlimited"])
def test_the_spike_and_the_hole_are_looked_for(benchmark, tmp_path, way):
    reading = benchmark("reading")
    reading.write(tmp_path, ROWS)
    found = reading.read(way, tmp_path, ROWS)
    assert (found["spike"], found["nan"]) == (True, True)
    assert found["points"] == found["rows"] == (ROWS // 10 if way == "unlimited" else ROWS)


def test_what_a_sample_of_the_points_loses_is_seen(benchmark, tmp_path, monkeypatch):
    reading = benchmark("reading")
    reading.write(tmp_path, ROWS)
    monkeypatch.setattr(reading, "spike_of", lambda rows: rows - 1)  # another step than the one of the spike
    found = reading.read("ours", tmp_path, ROWS)
    assert (found["spike"], found["nan"]) == (False, False)


def test_the_table_names_every_reader(benchmark, tmp_path, capsys):
    reading = benchmark("reading")
    reading.write(tmp_path, ROWS)
    found = [reading.read(way, tmp_path, ROWS) for way in reading.WAYS]
    reading.show(found, reading.also(tmp_path, ROWS))
    out = capsys.readouterr().out
    assert all(name in out for name in reading.WAYS.values())
    assert "10^7 rows take" in out
