"""code.zip: what is kept of a program, and how it is read again."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fieldwatch.record.source_code import SOURCE, SourceCode, read_source_code

SRC = Path(__file__).parents[3] / "src"
STEP_0 = SourceCode(main="train.py", files={"train.py": "import model\n", "parts/model.py": "x = 1\n"})
KEEP = """
import json, sys
import numpy, orjson
import helper
import parts.model
from fieldwatch.record.source_code import SourceCode
source = SourceCode.of_this_process()
print(json.dumps(None if source is None else [source.main, sorted(source.files)]))
"""


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / "parts").mkdir(parents=True)
    (folder / "train.py").write_text(KEEP)
    (folder / "helper.py").write_text("")
    (folder / "unused.py").write_text("")
    (folder / "parts" / "__init__.py").write_text("")
    (folder / "parts" / "model.py").write_text("")
    return folder


def found_by(*words, at, **settings):
    command = [sys.executable, *map(str, words)]
    environment = {"PYTHONPATH": str(SRC), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=at, env=environment, capture_output=True, text=True, check=True, **settings)
    return json.loads(done.stdout)


def test_it_holds_the_script_and_the_modules_that_it_imported_from_its_folder(project, tmp_path):
    expected = ["train.py", ["helper.py", "parts/__init__.py", "parts/model.py", "train.py"]]
    assert found_by("train.py", at=project) == expected
    assert found_by(project / "train.py", at=tmp_path) == expected


def test_a_project_behind_a_link_and_a_linked_script(project, tmp_path):
    (tmp_path / "link").symlink_to(project, target_is_directory=True)
    (tmp_path / "start.py").symlink_to(project / "train.py")
    expected = ["train.py", ["helper.py", "parts/__init__.py", "parts/model.py", "train.py"]]
    assert found_by(tmp_path / "link" / "train.py", at=tmp_path) == expected
    assert found_by("start.py", at=tmp_path) == expected


def test_packages_of_an_environment_inside_of_the_project_are_none_of_its_files(project):
    package = project / ".venv" / "lib" / "site-packages" / "installed"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (project / "train.py").write_text(f"import sys\nsys.path.append({str(package.parent)!r})\nimport installed\n{KEEP}")
    assert found_by("train.py", at=project)[1] == ["helper.py", "parts/__init__.py", "parts/model.py", "train.py"]


def test_of_a_module_that_was_started_with_m_the_folder_is_the_one_above_its_package(project):
    (project / "parts" / "run.py").write_text(KEEP)
    main, files = found_by("-m", "parts.run", at=project)
    assert (main, files) == ("parts/run.py", ["helper.py", "parts/__init__.py", "parts/model.py", "parts/run.py"])


def test_a_script_whose_name_is_no_text_is_kept(project):
    name = b"tr\xffin.py"
    Path(os.fsdecode(bytes(project) + b"/" + name)).write_text(
        f"{KEEP}\nsource.keep(__import__('pathlib').Path('.'), 0)"
    )
    assert found_by(os.fsdecode(name), at=project)[0] == name.decode(errors="replace")
    assert read_source_code(project).main == name.decode(errors="replace")


def test_what_is_no_script_of_the_user_has_no_source(project):
    assert found_by("-c", KEEP, at=project) is None
    assert found_by(at=project, input=KEEP) is None
    # The tests themselves are started by an installed command.
    assert SourceCode.of_this_process() is None


def test_a_script_that_is_gone_by_then_is_no_error(project):
    (project / "train.py").write_text(f"import os\nos.remove(__file__)\n{KEEP}")
    assert found_by("train.py", at=project) is None


def test_large_modules_are_left_out_and_the_script_is_kept(project):
    (project / "helper.py").write_text("#" * (5 << 20))
    main, files = found_by("train.py", at=project)
    assert main == "train.py"
    assert "train.py" in files
    assert "helper.py" not in files


def test_it_is_read_as_it_was_kept(tmp_path):
    STEP_0.keep(tmp_path, 0)
    assert read_source_code(tmp_path) == STEP_0


def test_the_same_source_has_the_same_bytes_and_is_written_once(tmp_path):
    STEP_0.keep(tmp_path, 0)
    path = tmp_path / SOURCE
    before = path.read_bytes(), path.stat().st_mtime_ns
    STEP_0.keep(tmp_path, 40)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert [each.name for each in tmp_path.iterdir()] == [SOURCE]


def test_a_run_that_was_resumed_with_other_code_keeps_both(tmp_path):
    STEP_0.keep(tmp_path, 0)
    later = SourceCode(main="train.py", files={"train.py": "import model, other\n"})
    later.keep(tmp_path, 40)
    assert read_source_code(tmp_path) == later
    with zipfile.ZipFile(tmp_path / "code_until_0000000040.zip") as archive:
        assert archive.read("train.py").decode() == STEP_0.files["train.py"]


def test_a_run_that_starts_again_from_step_0_keeps_the_later_code(tmp_path):
    STEP_0.keep(tmp_path, 0)
    SourceCode(main="a.py", files={"a.py": ""}).keep(tmp_path, 0)
    assert [each.name for each in tmp_path.iterdir()] == [SOURCE]


def zipped(path, name, text, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(name, text)


def test_an_archive_that_cannot_be_read_has_no_source(tmp_path):
    assert read_source_code(tmp_path) is None
    path = tmp_path / SOURCE
    zipped(path, "train.py", "x = 1\n" * 1000)
    whole = path.read_bytes()
    for damage in (b"", b"no archive", whole[: len(whole) // 2], whole[:40] + b"\xff" * 8 + whole[48:]):
        path.write_bytes(damage)
        assert read_source_code(tmp_path) is None


def test_an_archive_that_unpacks_to_gigabytes_is_not_unpacked(tmp_path):
    zipped(tmp_path / SOURCE, "train.py", "#" * (8 << 20))
    assert read_source_code(tmp_path) is None


def test_links_in_the_place_of_the_archive_are_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    run = tmp_path / "run"
    run.mkdir()
    (run / SOURCE).symlink_to(outside)
    with pytest.raises(Exception, match="link"):
        STEP_0.keep(run, 0)
    assert outside.read_text() == "mine"
