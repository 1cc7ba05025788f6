"""Devices of restored tensors. The second device is torch's "meta", which is available on every machine."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from fieldwatch.checkpoint import Checkpoints
from fieldwatch.checkpoint.items import put_back
from fieldwatch.recon.pipelines.splats.last_visible import LastVisible
from fieldwatch.recon.pipelines.splats.neighborhood import Neighborhood
from fieldwatch.recon.render import DensificationStatistics

META = torch.device("meta")
CPU = torch.device("cpu")


class Taker:
    """Loads stored tensors without copying, as many classes do."""

    def __init__(self, state, **attributes):
        self.state = state
        self.__dict__.update(attributes)

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def restored(item, tree):
    put_back({"item": item}, {"item": tree})
    return item.state


def test_each_tensor_goes_to_the_device_of_the_one_it_replaces():
    own = {"sums": torch.zeros(2, device=META), "rng": torch.zeros(3), "deep": [{"x": torch.zeros(1, device=META)}, 3]}
    stored = {"sums": torch.ones(5), "rng": torch.ones(3), "deep": [{"x": torch.ones(4)}, 7]}
    found = restored(Taker(own), stored)
    assert (found["sums"].device, found["sums"].shape) == (META, (5,))
    assert found["rng"].device == CPU
    assert torch.equal(found["rng"], torch.ones(3))
    assert found["deep"][0]["x"].device == META
    assert found["deep"][1] == 7


def test_dtypes_stay_as_stored():
    found = restored(Taker({"x": torch.zeros(1, device=META)}), {"x": torch.ones(2, dtype=torch.float16)})
    assert found["x"].dtype == torch.float16


def test_a_tensor_without_a_counterpart_goes_to_the_state_device_of_its_item():
    stored = {"late": torch.ones(2), "pair": (torch.ones(1), None)}
    found = restored(Taker({"late": None}, state_device=META), stored)
    assert found["late"].device == found["pair"][0].device == META
    assert restored(Taker({"late": None}), stored)["late"].device == CPU


def test_two_names_of_one_tensor_stay_two_names_of_one():
    one = torch.ones(2)
    zeros = torch.zeros(2, device=META)
    found = restored(Taker({"a": zeros, "b": zeros}), {"a": one, "b": one})
    assert found["a"] is found["b"]


def test_ordered_mappings_stay_ordered_with_their_versions():
    stored = OrderedDict(b=torch.ones(1), a=torch.ones(1))
    stored._metadata = {"": {"version": 2}}
    found = restored(Taker(OrderedDict(b=torch.zeros(1, device=META))), stored)
    assert list(found) == ["b", "a"]
    assert found._metadata == {"": {"version": 2}}


class WithExtra(nn.Linear):
    def __init__(self):
        super().__init__(1, 1)
        self.extra = torch.zeros(2, device=META)

    def get_extra_state(self):
        return {"extra": self.extra}

    def set_extra_state(self, state):
        self.extra = state["extra"]


def test_the_extra_state_of_a_module_is_placed_too():
    module = WithExtra()
    put_back({"m": module}, {"m": {**nn.Linear(1, 1).state_dict(), "_extra_state": {"extra": torch.ones(3)}}})
    assert module.extra.device == META
    assert module.weight.device == CPU


def test_the_sums_of_growth_come_back_to_the_device_of_the_gaussians():
    statistics = DensificationStatistics(2, META)
    put_back({"statistics": statistics}, {"statistics": DensificationStatistics(5).state_dict()})
    assert {values.device for values in statistics.state_dict().values()} == {META}
    assert len(statistics.gradients) == 5


def test_the_table_of_neighbors_comes_back_to_the_device_of_the_gaussians():
    trained = Neighborhood(2)
    trained.at(0, torch.randn(6, 3))
    neighborhood = Neighborhood(2, META)
    put_back({"neighbors": neighborhood}, {"neighbors": trained.state_dict()})
    assert {values.device for values in neighborhood.tables.values()} == {META}


def test_a_search_that_was_under_way_begins_again_for_the_device_of_the_gaussians(monkeypatch):
    trained = Neighborhood(2)
    trained.start_search(0, torch.randn(6, 3))
    neighborhood = Neighborhood(2, META)
    asked = []
    monkeypatch.setattr(neighborhood, "_start", lambda *given: asked.append(given))
    put_back({"neighbors": neighborhood}, {"neighbors": trained.state_dict()})
    ((points, due, device),) = asked
    assert due == trained.state_dict()["due"]
    assert device == META
    assert points.shape == (6, 3)


def test_the_steps_of_the_last_sight_come_back_to_the_device_of_the_gaussians():
    trained = LastVisible(3)
    trained.add(torch.tensor([0, 2]), 4, 7)
    resumed = LastVisible(3, META)
    put_back({"seen": resumed}, {"seen": trained.state_dict()})
    assert resumed.state_dict()["steps"].device == META
    resumed.restart()
    assert resumed.state_dict()["steps"].device == META


def test_a_mapping_of_modules_that_can_be_saved_can_be_restored(tmp_path):
    def parts(value):
        net = nn.Linear(2, 1)
        nn.init.constant_(net.weight, value)
        return {"nets": {"a": net, "scale": torch.full((2,), value)}}

    trained = parts(3.0)
    fresh = parts(0.0)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(1, trained)
    checkpoints.restore(fresh)
    assert torch.equal(fresh["nets"]["a"].weight, trained["nets"]["a"].weight)
    assert fresh["nets"]["scale"].tolist() == [3.0, 3.0]


def test_what_cannot_be_put_back_is_refused_by_name():
    with pytest.raises(RuntimeError, match=r"items\['x'\]\['y'\] is a int"):
        put_back({"x": {"y": 3}}, {"x": {"y": 3}})
