"""The contract of all models."""

import pytest
import torch

from fieldwatch.recon.pipelines.video.models import ModelOptions, Query, VideoGeometry, VideoModel, build_model

GEOMETRY = VideoGeometry(frames=6, height=64, width=128)
MODELS = ("grid", "dual", "hnerv", "nerv")
SMALL = ModelOptions(fc_dim=8, lower_width=4, clip_dim=16)


def built(name, options=SMALL):
    torch.manual_seed(0)
    return build_model(name, GEOMETRY, options)


def query(model):
    generator = torch.Generator().manual_seed(1)
    t, x, y = torch.rand(3, 2, dtype=torch.float64, generator=generator)
    frames = torch.rand(2, 3, 64, 128, generator=generator) if model.needs_frames else None
    return Query(t=t, x=x, y=y, frames=frames)


@pytest.mark.parametrize("name", MODELS)
def test_shapes_and_ranges(name):
    model = built(name)
    prediction = model(query(model))
    size, patches = ((32, 32), 1) if model.unit == "patch" else ((64, 128), 8)
    assert prediction.rgb.shape == (2, 3, *size)
    assert prediction.embedding.shape == (2, patches, 16)
    assert 0 <= prediction.rgb.min() <= prediction.rgb.max() <= 1
    torch.testing.assert_close(prediction.embedding.norm(dim=-1), torch.ones(2, patches))


@pytest.mark.parametrize("name", MODELS)
def test_groups_hold_every_parameter_once(name):
    model = built(name)
    groups = model.groups()
    grouped = [id(p) for module in groups.values() for p in module.parameters()]
    assert list(groups) == ["decoder", "rgb_head", "clip_head"]
    assert sorted(grouped) == sorted(id(p) for p in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_without_embedding_the_clip_head_stays_out_of_the_graph(name):
    model = built(name)
    prediction = model(query(model), embed=False)
    prediction.rgb.sum().backward()
    assert prediction.embedding is None
    assert all(p.grad is None for p in model.groups()["clip_head"].parameters())
    assert all(p.grad is not None for part in ("decoder", "rgb_head") for p in model.groups()[part].parameters())


@pytest.mark.parametrize("name", MODELS)
def test_same_seed_same_picture_and_state_dict_carries_it(name):
    first = built(name)
    again = built(name)
    other = build_model(name, GEOMETRY, SMALL)
    asked = query(first)
    assert torch.equal(first(asked).rgb, again(asked).rgb)
    assert not torch.equal(first(asked).rgb, other(asked).rgb)
    other.load_state_dict(first.state_dict())
    assert torch.equal(first(asked).rgb, other(asked).rgb)


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_autocast_stays_close(name):
    model = built(name)
    asked = query(model)
    with torch.no_grad():
        exact = model(asked)
        with torch.autocast("cpu", torch.bfloat16):
            rough = model(asked)
    assert (exact.rgb - rough.rgb.float()).abs().max() < 0.02
    assert (exact.embedding * rough.embedding.float()).sum(-1).min() > 0.99


@pytest.mark.parametrize("name", MODELS)
def test_runs_without_reading_a_value_on_the_host(name):
    # meta tensors hold no values: a branch on one, or a host read (which would also break a compiled graph), raises
    model = built(name).to("meta")
    asked = query(model)
    on_meta = {field: None if value is None else value.to("meta") for field, value in vars(asked).items()}
    assert model(Query(**on_meta)).rgb.is_meta


@pytest.mark.parametrize("name", MODELS)
def test_can_be_trained_in_double_precision(name):
    model = built(name).double()
    assert model(query(model)).rgb.dtype == torch.float64


def test_units():
    assert {name: built(name).unit for name in MODELS} == {
        "grid": "frame",
        "dual": "patch",
        "hnerv": "frame",
        "nerv": "frame",
    }


def test_a_half_written_model_cannot_be_built():
    class Half(VideoModel):
        def forward(self, query, *, embed=True):
            return query if embed else None

    with pytest.raises(TypeError, match="groups"):
        Half()
