"""fieldwatch export: the file, what it costs, what it lost, and one message for each bad input."""

import pytest

from fieldwatch.recon.pipelines.video.bitstream import read_bitstream


def test_the_figures_are_those_of_the_file(run, answer):
    got = answer("export", run, "--to", "bitstream")
    path = run / "products" / "video-6.fwv"
    assert got["file"] == str(path.absolute())
    assert got["bytes"] == path.stat().st_size == sum(got["breakdown"].values())
    assert got["bpp"] == pytest.approx(8 * got["bytes"] / (8 * 32 * 64))
    assert got["ratio"] == pytest.approx(got["checkpoint_bytes"] / got["bytes"])
    assert got["ratio"] > 3
    for part in ("train", "val"):
        tag = f"Eval/Pooled/{part}_psnr"
        assert got["after"][tag] == pytest.approx(got["before"][tag], abs=0.05)
        assert got["after"][tag] != got["before"][tag]
    assert got["frames_per_second"] > 0
    assert got["clip_head"] is True
    config = read_bitstream(path).config
    assert (config["clip"], config["step"], config["split"]) == ("frames", 6, ["3_3_4", False])


def test_the_table_names_the_file_and_what_to_do_with_it(run, tmp_path, fieldwatch):
    path = tmp_path / "out" / "clip.fwv"
    code, out, _ = fieldwatch("export", run, "--to", "bitstream", "-o", path)
    assert code == 0
    for text in ("bits per pixel", "PSNR held out", "frames per second", "times smaller", str(path), "infer video"):
        assert text in out
    assert not (run / "products").exists()


def test_fewer_bits_make_smaller_and_worse_files(run, tmp_path, answer):
    got = {
        bits: answer("export", run, "--to", "bitstream", "--bits", bits, "-o", tmp_path / f"{bits}.fwv")
        for bits in (2, 4, 8)
    }
    assert got[2]["bytes"] < got[4]["bytes"] < got[8]["bytes"]
    tag = "Eval/Pooled/train_psnr"
    errors = {bits: abs(one["psnr_drop"]) for bits, one in got.items()}
    assert errors[2] > errors[8]
    assert got[2]["before"][tag] == got[8]["before"][tag]


def test_a_psnr_drop_is_kept_and_spares_the_semantic_head(run, tmp_path, answer):
    plain = answer("export", run, "--to", "bitstream", "-o", tmp_path / "plain.fwv")
    got = answer("export", run, "--to", "bitstream", "--psnr-drop", 0.3, "-o", tmp_path / "less.fwv")
    assert got["psnr_drop"] <= 0.3
    assert got["bytes"] < plain["bytes"]
    chosen = {name: bits for name, bits in got["bits"].items() if name != "default"}
    assert min(chosen.values()) < 8
    assert not any(name.startswith("clip_head") for name in chosen)
    assert got["after"]["Eval/Frame/val_clip_sim"] == pytest.approx(plain["after"]["Eval/Frame/val_clip_sim"], abs=0.1)


def test_a_drop_that_cannot_be_kept_is_a_finding(run, tmp_path, fieldwatch):
    words = ("export", run, "--to", "bitstream", "--bits", 1, "--psnr-drop", 1e-6, "-o", tmp_path / "clip.fwv")
    code, out, message = fieldwatch(*words)
    assert code == 1
    assert "--psnr-drop 1e-06" in message
    assert str(tmp_path / "clip.fwv") in out


def test_without_the_semantic_head_the_file_is_smaller(run, tmp_path, answer):
    whole = answer("export", run, "--to", "bitstream", "-o", tmp_path / "whole.fwv")
    blind = answer("export", run, "--to", "bitstream", "--no-clip-head", "-o", tmp_path / "blind.fwv")
    assert blind["bytes"] < whole["bytes"]
    assert not any("clip_sim" in name for name in blind["after"])
    untrained = answer("export", run, "--to", "bitstream", "--checkpoint", 3, "-o", tmp_path / "early.fwv")
    assert untrained["clip_head"] is False


def test_codes_of_frames_take_their_own_bits(trained_hnerv, tmp_path, answer):
    words = ("export", trained_hnerv, "--to", "bitstream", "-o")
    got = {bits: answer(*words, tmp_path / f"{bits}.fwv", "--embedding-bits", bits) for bits in (4, 8)}
    sizes = {bits: one["breakdown"]["payload/embeddings"] for bits, one in got.items()}
    assert sizes[4] < sizes[8]
    assert not any("encoder" in name for name in got[8]["breakdown"])
    assert abs(got[8]["psnr_drop"]) < 0.1
    less = answer(*words, tmp_path / "less.fwv", "--psnr-drop", 0.5)
    assert not any(name.startswith(("encoder", "clip_head")) for name in less["bits"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--bits", "13"), "bits must be 1 to 12 bits (8 is the default, 6 is visible), got 13"),
        (("--embedding-bits", "0"), "embedding_bits must be 1 to 12 bits (8 is the default, 6 is visible), got 0"),
        (("--psnr-drop", "0"), "the PSNR drop must be a finite number of dB greater than 0, e.g. 0.1, got 0.0"),
        (("--psnr-drop", "nan"), "greater than 0, e.g. 0.1, got nan"),
        (("--checkpoint", "12"), "there is no checkpoint of step 12"),
        (("-o", "."), ". is a folder: give a file"),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(run, refused, words, message):
    assert message in refused("export", run, "--to", "bitstream", *words)
    assert not (run / "products").exists()


def test_other_targets_are_refused(run, fieldwatch, refused, tmp_path):
    code, _, message = fieldwatch("export", run, "--to", "ply")
    assert code == 2
    assert "use --to bitstream or --to parquet or --to csv or --to tensorboard" in " ".join(message.split())
    assert "holds no run" in refused("export", tmp_path, "--to", "bitstream")


def test_help_shows_an_example(fieldwatch):
    code, out, _ = fieldwatch("export", "--help")
    assert code == 0
    assert "Example: fieldwatch export" in out
