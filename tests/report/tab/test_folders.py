import os

from fieldwatch.report.tab import folders
from fieldwatch.report.tab.folders import find_runs, roots_of


def found(logdir="", spec="", **options):
    return find_runs(roots_of(str(logdir), spec), **options)


def names(logdir="", spec="", **options):
    return [run.name for run in found(logdir, spec, **options).runs]


def test_a_run_folder_is_found_by_itself_and_by_its_event_files(tmp_path, write_run):
    folder = write_run(tmp_path / "bear")
    assert [run.folder for run in found(folder).runs] == [run.folder for run in found(folder / "tensorboard").runs]
    assert names(folder / "tensorboard") == names(folder) == ["bear"]


def test_runs_below_a_folder_have_tensorboards_names_in_natural_order(tmp_path, write_run):
    for name in ("b/run10", "b/run9", "a"):
        write_run(tmp_path / name)
    assert names(tmp_path) == ["a", "b/run9", "b/run10"]
    events = [run.events for run in found(tmp_path).runs]
    assert events == ["a/tensorboard", "b/run9/tensorboard", "b/run10/tensorboard"]


def test_a_list_of_folders_gives_names(tmp_path, write_run):
    one = write_run(tmp_path / "x" / "run")
    other = write_run(tmp_path / "y" / "run")
    spec = f"first:{one}/tensorboard,{other},gone:{tmp_path}/none,gs://bucket/run"
    assert [(run.name, run.events) for run in found("", spec).runs] == [
        ("first", "first/."),
        ("run", "tensorboard"),
    ]


def test_runs_of_one_name_are_told_apart(tmp_path, write_run):
    one = write_run(tmp_path / "x" / "run")
    other = write_run(tmp_path / "y" / "run")
    assert names("", f"{one},{other}") == [f"run ({one})", f"run ({other})"]


def test_a_run_is_listed_once_however_often_it_is_reached(tmp_path, write_run):
    folder = write_run(tmp_path / "runs" / "bear")
    (tmp_path / "runs" / "again").symlink_to(folder)
    (tmp_path / "runs" / "round").symlink_to(tmp_path / "runs")
    assert len(found(tmp_path).runs) == 1
    assert len(found("", f"a:{folder},b:{folder}/tensorboard").runs) == 1


def test_event_files_of_others_and_empty_folders_are_no_runs(tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "events.out.tfevents.1.host").touch()
    assert found(tmp_path).runs == found(tmp_path / "missing").runs == found("", "").runs == ()


def test_a_search_stops_and_says_so(tmp_path, write_run):
    for i in range(5):
        write_run(tmp_path / f"run{i}")
    assert "stopped after 4 folders" in found(tmp_path, most=4).note
    assert len(found(tmp_path, most=4).runs) == 3
    assert found(tmp_path, most=6).note == ""


def test_the_inside_of_a_run_is_not_searched(tmp_path, write_run):
    folder = write_run(tmp_path / "run")
    write_run(folder / "copy")
    assert names(tmp_path) == ["run"]


def test_a_folder_that_cannot_be_read_is_passed_over(tmp_path, write_run, monkeypatch):
    write_run(tmp_path / "open" / "run")
    write_run(tmp_path / "closed" / "run")
    look = os.scandir

    def scandir(folder):
        if folder.name == "closed":
            raise PermissionError(13, "Permission denied", str(folder))
        return look(folder)

    monkeypatch.setattr(folders.os, "scandir", scandir)
    assert names(tmp_path) == ["open/run"]


def test_ids_stay_and_hold_nothing_of_the_name(tmp_path, write_run):
    write_run(tmp_path / "<script>alert(1)</script>" / "..x")
    (one,) = found(tmp_path).runs
    assert one.name == "<script>alert(1)</script>/..x"
    assert one.id.isalnum()
    assert one.id == found(tmp_path).runs[0].id
