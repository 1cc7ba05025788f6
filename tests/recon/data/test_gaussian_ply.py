"""Gaussians in PLY files: round trips, other column orders and formats, and errors for damaged files."""

import numpy as np
import pytest
import torch

from fieldwatch.recon.data import GaussianCloud, read_gaussian_ply, write_gaussian_ply, write_point_ply
from fieldwatch.recon.data.gaussians import PlyError, read_point_ply

FUNCTIONS = {0: 0, 1: 3, 2: 8, 3: 15}
PARTS = ("means", "log_scales", "quaternions", "opacity_logits", "constant", "rest")


def cloud(count=7, degree=3, **more):
    return GaussianCloud(
        means=torch.randn(count, 3),
        log_scales=torch.randn(count, 3),
        quaternions=torch.randn(count, 4),
        opacity_logits=torch.randn(count),
        constant=torch.randn(count, 3),
        rest=torch.randn(count, FUNCTIONS[degree], 3),
        **more,
    )


def same(one, other):
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in PARTS)


def ply(path, columns, rows, form="ascii", kind="float"):
    """Write a PLY file independently of the library."""
    properties = "".join(f"property {kind} {name}\n" for name in columns)
    header = f"ply\nformat {form} 1.0\ncomment by hand\nelement vertex {len(rows)}\n{properties}end_header\n"
    order = {"binary_little_endian": "<", "binary_big_endian": ">"}.get(form)
    lines = "".join(" ".join(repr(float(x)) for x in row) + "\n" for row in rows)
    width = {"float": "f4", "double": "f8"}[kind]
    body = lines.encode() if order is None else np.array(rows, order + width).tobytes()
    path.write_bytes(header.encode() + body)
    return path


def names_of(path):
    return [
        line.split()[-1]
        for line in path.read_bytes().split(b"end_header")[0].decode().splitlines()
        if "property" in line
    ]


NEEDED = "x y z f_dc_0 f_dc_1 f_dc_2 opacity scale_0 scale_1 scale_2 rot_0 rot_1 rot_2 rot_3".split()


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_what_is_written_is_read_again(tmp_path, degree):
    made = cloud(degree=degree)
    again = read_gaussian_ply(write_gaussian_ply(tmp_path / "deep" / "a.ply", made))
    assert same(made, again)
    assert (again.degree, again.filter_3d, dict(again.extra)) == (degree, None, {})


def test_the_columns_are_those_that_viewers_read(tmp_path):
    """Column order of 3DGS: positions, normals, f_dc, f_rest by channel, opacity, scales, rotation."""
    made = cloud()
    path = write_gaussian_ply(tmp_path / "a.ply", made)
    expected = ["x", "y", "z", "nx", "ny", "nz", "f_dc_0", "f_dc_1", "f_dc_2", *(f"f_rest_{i}" for i in range(45))]
    assert names_of(path) == [*expected, *NEEDED[6:]]
    data = path.read_bytes()
    assert data.startswith(b"ply\nformat binary_little_endian 1.0\nelement vertex 7\nproperty float x\n")
    rows = np.frombuffer(data[data.index(b"end_header\n") + 11 :], "<f4").reshape(7, 62)
    # channel-major: 15 of red, 15 of green, 15 of blue
    assert np.array_equal(rows[:, 9 + 15 + 2], made.rest[:, 2, 1].numpy())
    assert not rows[:, 3:6].any()


def test_mip_splattings_filter_and_unknown_columns_are_kept(tmp_path):
    made = cloud(filter_3d=torch.rand(7), extra={"label": torch.arange(7.0)})
    again = read_gaussian_ply(write_gaussian_ply(tmp_path / "a.ply", made))
    assert same(made, again)
    assert torch.equal(again.filter_3d, made.filter_3d)
    assert torch.equal(again.extra["label"], made.extra["label"])


@pytest.mark.parametrize("form", ["ascii", "binary_little_endian", "binary_big_endian"])
@pytest.mark.parametrize("kind", ["float", "double"])
def test_columns_may_stand_in_any_order_in_any_format(tmp_path, form, kind):
    generator = np.random.default_rng(0)
    names = [*NEEDED, *(f"f_rest_{i}" for i in range(9))]
    shuffled = list(generator.permutation(names))
    rows = generator.normal(size=(5, len(names))).astype(np.float32)
    own = read_gaussian_ply(ply(tmp_path / "a.ply", shuffled, rows, form, kind))
    column = {name: torch.from_numpy(rows[:, shuffled.index(name)]) for name in names}
    assert torch.equal(own.means, torch.stack([column[name] for name in ("x", "y", "z")], 1))
    assert torch.equal(own.quaternions, torch.stack([column[f"rot_{i}"] for i in range(4)], 1))
    assert torch.equal(own.opacity_logits, column["opacity"])
    assert torch.equal(own.rest[:, 1, 2], column["f_rest_7"])


def test_elements_before_and_after_the_vertices_are_skipped(tmp_path):
    made = cloud(3, degree=0)
    data = write_gaussian_ply(tmp_path / "a.ply", made).read_bytes()
    header, body = data.split(b"end_header\n")
    before = b"element camera 2\nproperty float a\nproperty uchar b\nelement vertex"
    after = b"element face 1\nproperty list uchar int vertex_indices\nend_header\n"
    (tmp_path / "b.ply").write_bytes(header.replace(b"element vertex", before) + after + bytes(10) + body + bytes(13))
    assert same(made, read_gaussian_ply(tmp_path / "b.ply"))


def test_windows_line_ends_are_read(tmp_path):
    path = ply(tmp_path / "a.ply", NEEDED, np.ones((2, 14)))
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert len(read_gaussian_ply(path)) == 2


def test_parameters_on_their_way_through_training_can_be_written(tmp_path):
    made = cloud()
    made.means.requires_grad_()
    assert same(made, read_gaussian_ply(write_gaussian_ply(tmp_path / "a.ply", made)))


def test_a_pointer_instead_of_a_model_says_how_to_get_it(real_data):
    with pytest.raises(PlyError, match=r"Git LFS pointer.*115570275 bytes.*git lfs pull"):
        read_gaussian_ply(real_data / "splat_files" / "lfs_pointer_point_cloud.ply")


def test_the_first_points_of_a_run_are_no_gaussians(real_data):
    path = real_data / "splat_files" / "snowmiku_input.ply"
    with pytest.raises(PlyError, match=r"f_dc_0.*25784 vertices.*point_cloud.ply"):
        read_gaussian_ply(path)
    points, colors = read_point_ply(path)
    assert points.shape == colors.shape == (25784, 3)
    assert colors[0].tolist() == [164, 164, 164]


COLUMNS = ["x", "scale_1", "rot_3", "f_dc_2", "f_rest_4"]
"""Columns that must be finite; infinite opacity logits are clamped instead."""


@pytest.mark.parametrize(
    ("column", "value"),
    [("opacity", np.nan), *((column, value) for column in COLUMNS for value in (np.nan, np.inf, -np.inf))],
)
def test_values_that_are_not_finite_are_counted_and_placed(tmp_path, column, value):
    names = [*NEEDED, *(f"f_rest_{i}" for i in range(9))]
    rows = np.ones((5, len(names)), np.float32)
    rows[[2, 4], names.index(column)] = value
    path = ply(tmp_path / "a.ply", names, rows, "binary_little_endian")
    with pytest.raises(PlyError, match=r"in 2 of 5 vertices.*row 2: .* earlier iteration"):
        read_gaussian_ply(path)


def test_opacities_of_0_and_1_are_brought_inside_and_that_is_said(tmp_path):
    rows = np.ones((5, len(NEEDED)), np.float32)
    rows[[1, 3], NEEDED.index("opacity")] = np.inf, -np.inf
    cloud = read_gaussian_ply(ply(tmp_path / "a.ply", NEEDED, rows, "binary_little_endian"))
    opacities = cloud.opacity_logits.sigmoid()
    assert opacities[[1, 3]].tolist() == pytest.approx([1 - 0.5 / 255, 0.5 / 255], abs=1e-6)
    assert cloud.opacity_logits[[0, 2, 4]].tolist() == [1, 1, 1]
    (note,) = cloud.notes
    assert "2 of 5" in note
    assert "8-bit" in note


def test_a_column_that_is_missing_is_named(tmp_path):
    path = ply(tmp_path / "a.ply", NEEDED[:-1], np.ones((2, 13)))
    with pytest.raises(PlyError, match=r"a.ply is missing rot_3"):
        read_gaussian_ply(path)


@pytest.mark.parametrize("rest", [[0, 1, 2], [*range(8), 9]])
def test_harmonics_of_no_degree_are_refused(tmp_path, rest):
    names = [*NEEDED, *(f"f_rest_{i}" for i in rest)]
    with pytest.raises(PlyError, match=r"columns f_rest_\*: expected 0, 9, 24, 45 .SH degree 0 to 3"):
        read_gaussian_ply(ply(tmp_path / "a.ply", names, np.ones((2, len(names)))))


def test_no_gaussian_at_all_is_refused(tmp_path):
    with pytest.raises(PlyError, match=r"contains no Gaussians \(0 vertices\)"):
        read_gaussian_ply(write_gaussian_ply(tmp_path / "a.ply", cloud(0)))


@pytest.mark.parametrize("form", ["ascii", "binary_little_endian"])
def test_a_file_that_is_cut_short_is_refused(tmp_path, form):
    path = ply(tmp_path / "a.ply", NEEDED, np.ones((5, 14)), form)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(PlyError, match="cut short"):
        read_gaussian_ply(path)


HEAD = b"ply\nformat ascii 1.0\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a PLY file"),
        (b"<html>not found</html>", r"not a PLY file \(it begins with b'<html>"),
        (b"ply\nformat ascii 1.0\nelement vertex 1\n", "not a PLY file"),
        (b"ply\nelement vertex 1\nproperty float x\nend_header\n1\n", "has no format line"),
        (
            HEAD + b"element face 1\nproperty list uchar int i\nend_header\n",
            "no vertices: expected an element named vertex",
        ),
        (HEAD + b"element vertex 1\nproperty list uchar int i\nend_header\n", "no lists in the elements before them"),
        (HEAD + b"element vertex 1\nproperty half x\nend_header\n", "invalid header line 'property half x'"),
        (HEAD + b"element vertex -1\nend_header\n", "invalid header line 'element vertex -1'"),
        (
            HEAD + b"element vertex 1\nproperty float x\nproperty float x\nend_header\n",
            "property x of element vertex twice",
        ),
        (HEAD + b"element vertex 1\nproperty float x\nend_header\none\n", "something other than numbers"),
        (HEAD + b"element vertex 99999999999\nproperty float x\nend_header\n1\n", "cut short"),
        (
            b"ply\nformat binary_little_endian 1.0\nelement vertex 99999999999999\nproperty float x\nend_header\n1",
            "cut short",
        ),
    ],
)
def test_what_is_no_splat_file_says_why(tmp_path, content, message):
    (tmp_path / "a.ply").write_bytes(content)
    with pytest.raises(PlyError, match=message):
        read_gaussian_ply(tmp_path / "a.ply")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(PlyError, match=r"gone.ply does not exist"):
        read_gaussian_ply(tmp_path / "gone.ply")


def test_any_damaged_byte_in_the_header_is_an_error_of_ours_or_read(tmp_path):
    path = write_gaussian_ply(tmp_path / "a.ply", cloud(3, degree=1))
    whole = path.read_bytes()
    generator = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        data = bytearray(whole)
        data[int(generator.integers(whole.index(b"end_header")))] = int(generator.integers(256))
        path.write_bytes(data)
        try:
            read_gaussian_ply(path)
        except PlyError:
            refused += 1
    assert refused > 150


def test_points_and_their_colors_are_written_and_read(tmp_path):
    points = torch.randn(9, 3)
    colors = torch.randint(0, 256, (9, 3), dtype=torch.uint8)
    again = read_point_ply(write_point_ply(tmp_path / "a.ply", points, colors))
    assert torch.equal(again[0], points)
    assert torch.equal(again[1], colors)


def test_points_without_color_are_white_and_without_place_refused(tmp_path):
    assert read_point_ply(ply(tmp_path / "a.ply", ["x", "y", "z"], np.ones((2, 3))))[1].unique().tolist() == [255]
    with pytest.raises(PlyError, match=r"b\.ply has no column"):
        read_point_ply(ply(tmp_path / "b.ply", ["x", "y"], np.ones((2, 2))))


def test_a_fused_cloud_has_the_filters_variance_and_less_opacity():
    made = cloud(filter_3d=torch.full((7,), 0.5))
    fused = made.fused()
    assert fused.filter_3d is None
    assert torch.allclose((2 * fused.log_scales).exp(), (2 * made.log_scales).exp() + 0.25)
    volume = (made.log_scales - fused.log_scales).sum(-1).exp()
    assert torch.allclose(fused.opacity_logits.sigmoid(), made.opacity_logits.sigmoid() * volume, rtol=1e-4)
    plain = cloud()
    assert plain.fused() is plain
