"""CUDA graphs of video networks: the same training with fewer launches, and errors where a capture would be wrong."""

import pytest
import torch
from torch import nn

from fake_cuda.conftest import share_trials
from fake_cuda.training import RUNS, draw_frames, train
from fieldwatch import InputError
from fieldwatch.cli import main
from fieldwatch.recon.pipelines.video.config import VideoConfig
from fieldwatch.recon.pipelines.video.graphs import GraphedNetwork, refuse_graphs
from fieldwatch.recon.pipelines.video.models import Prediction, Query, VideoGeometry, VideoModel, build_model
from fieldwatch.recon.pipelines.video.models.options import ModelOptions

pytestmark = pytest.mark.pretended
GRAPHS = ["--cuda-graphs", "--attribute-every", "7"]
EAGER = ["--attribute-every", "7"]
STOP = 11  # the semantic term begins at step 2, attribution is due in step 6


@pytest.fixture
def frames(tmp_path):
    return draw_frames(tmp_path / "frames")


@pytest.mark.parametrize("name", ["video", "video-hnerv"])
def test_a_training_with_graphs_is_that_without_to_the_bit_and_goes_on_after_a_kill(fake_cuda, frames, tmp_path, name):
    share_trials(fake_cuda)
    words = RUNS[name](tmp_path, frames)
    plain = train([*words, *EAGER], tmp_path / "plain", stop=STOP)
    graphed = train([*words, *GRAPHS], tmp_path / "graphed", stop=STOP)
    assert graphed.losses == plain.losses
    assert graphed.steady_counts()["launches"] < 0.55 * plain.steady_counts()["launches"]
    assert graphed.steady_counts()["waits"] == graphed.steady_counts()["unordered"] == 0
    killed = train([*words, *GRAPHS], tmp_path / "killed", stop=5)
    resumed = train([*words, *GRAPHS], tmp_path / "killed", stop=STOP)
    assert killed.losses + resumed.losses == plain.losses
    wanted = plain.weights()
    for found in (graphed.weights(), resumed.weights()):
        trained = [path for path in wanted if path.startswith(("/model", "/optimizer"))]
        assert len(trained) > 10
        assert all(torch.equal(found[path], wanted[path]) for path in trained)


class Small(VideoModel):
    """A network whose forward pass a test chooses."""

    unit = "frame"
    needs_frames = False

    def __init__(self, forward):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))
        self.register_buffer("seen", torch.zeros(()))
        self._chosen = forward

    def forward(self, query, *, embed=True):  # noqa: ARG002  as the interface has it
        return self._chosen(self, query)

    def groups(self):
        return {"decoder": self}


def drawn(model, query):
    return Prediction(rgb=(model.weight * query.t.float()[:, None]).square()[:, :, None, None], embedding=None)


def query(*times):
    t = torch.tensor(times, dtype=torch.float64)
    return Query(t=t.cuda(), x=(t + 0.5).cuda(), y=(t - 0.5).cuda())


def graphed(forward=drawn):
    return GraphedNetwork(Small(forward).cuda())


def test_replays_follow_inputs_and_parameters(fake_cuda):
    network = graphed()
    model = network._model
    for times in ((0.25, 0.5), (1.0, 0.125)):
        with torch.no_grad():
            model.weight.add_(0.5)
        rgb = network(query(*times)).rgb
        wanted = drawn(model, query(*times)).rgb
        assert torch.equal(rgb.cpu(), wanted.cpu())
        (found,) = torch.autograd.grad(rgb.sum(), model.weight)
        assert torch.equal(found.cpu(), torch.autograd.grad(wanted.sum(), model.weight)[0].cpu())
    before = fake_cuda.ledger.copy()
    network(query(0.5, 0.75)).rgb.sum().backward()
    assert fake_cuda.ledger.since(before).launches["graph"] == 2


def test_several_gradients_of_a_batch_are_apart(fake_cuda):
    network = graphed()
    rgb = network(query(0.25, 0.5)).rgb
    first, second = (
        torch.autograd.grad(by * rgb.sum(), network._model.weight, retain_graph=True)[0] for by in (1.0, 3.0)
    )
    assert torch.equal(3 * first.cpu(), second.cpu())


def test_gradients_of_several_batches_add_up(fake_cuda):
    network = graphed()
    weight = network._model.weight
    for times in ((0.25, 0.5), (1.0, 0.125)):
        network(query(*times)).rgb.sum().backward()
    found = weight.grad.cpu()
    weight.grad = None
    for times in ((0.25, 0.5), (1.0, 0.125)):
        drawn(network._model, query(*times)).rgb.sum().backward()
    assert torch.equal(found, weight.grad.cpu())


def test_parameters_in_other_memory_are_captured_again(fake_cuda):
    network = graphed()
    network(query(0.25, 0.5))
    network._model.weight.data = torch.tensor([3.0, 4.0, 5.0]).cuda()
    assert torch.equal(network(query(0.25, 0.5)).rgb.cpu(), drawn(network._model, query(0.25, 0.5)).rgb.cpu())


def reads(model, query):
    sign = 1 if float(query.t[0]) > 0 else -1
    return Prediction(rgb=sign * drawn(model, query).rgb, embedding=None)


def uploads(model, query):
    shift = torch.ones(1).pin_memory().to("cuda", non_blocking=True)
    return Prediction(rgb=drawn(model, query).rgb + shift, embedding=None)


def random(model, query):
    return Prediction(rgb=nn.functional.dropout(drawn(model, query).rgb), embedding=None)


def counts(model, query):
    model.seen += 1
    return drawn(model, query)


class Fresh:
    """Uses a tensor that the first call has made: a capture would keep it."""

    def __init__(self):
        self.kept = None

    def __call__(self, model, query):
        if self.kept is None or not torch.cuda.is_current_stream_capturing():
            self.kept = 2 * model.weight.detach() * query.t.float()[:, None]
        rgb = drawn(model, query).rgb + self.kept[:, :, None, None]
        return Prediction(rgb=rgb, embedding=None)


@pytest.mark.parametrize(
    "forward", [reads, uploads, random, counts, Fresh()], ids=["reads", "uploads", "random", "counts", "fresh"]
)
def test_what_cannot_be_captured_is_refused(fake_cuda, forward):
    with pytest.raises(InputError, match="--cuda-graphs"):
        graphed(forward)(query(0.25, 0.5))


def test_batches_of_other_sizes_are_refused(fake_cuda):
    network = graphed()
    network(query(0.25, 0.5))
    with pytest.raises(InputError, match="3 units after 2"):
        network(query(0.25, 0.5, 0.75))


def test_hooks_are_left_out_of_captures_and_kept(fake_cuda):
    called = []
    network = graphed()
    network._model.register_forward_hook(lambda *_: called.append(1))
    network(query(0.25, 0.5))
    assert called == []
    network._model(query(0.25, 0.5), embed=True)
    assert called == [1]


def test_forgotten_memory_of_a_capture_shows(fake_cuda):
    """A backward pass that frees what the forward pass has saved can be replayed once, not twice."""
    weight = torch.tensor([2.0, 3.0], device="cuda", requires_grad=True)
    forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    pool = torch.cuda.graph_pool_handle()
    with torch.cuda.graph(forward, pool=pool):
        out = weight.exp().exp()
    with torch.cuda.graph(backward, pool=pool):
        (gradient,) = torch.autograd.grad(out, weight, torch.ones(2, device="cuda"))
    assert gradient.cpu().isnan().all()  # nothing was computed yet
    forward.replay()
    backward.replay()
    assert gradient.cpu().isfinite().all()
    backward.replay()
    assert gradient.cpu().isnan().all()


def test_settings_that_exclude_graphs_are_refused(fake_cuda):
    gpu = torch.device("cuda")
    refuse_graphs(VideoConfig(cuda_graphs=True), gpu, 1)
    refuse_graphs(VideoConfig(amp=True), torch.device("cpu"), 2)
    wrong = (
        (VideoConfig(cuda_graphs=True), torch.device("cpu"), 1, "--device cuda"),
        (VideoConfig(cuda_graphs=True), gpu, 2, "got 2"),
        (VideoConfig(cuda_graphs=True, amp=True), gpu, 1, "--amp"),
        (VideoConfig(cuda_graphs=True, compile=True), gpu, 1, "--compile"),
    )
    for config, device, processes, said in wrong:
        with pytest.raises(InputError, match=said):
            refuse_graphs(config, device, processes)


def test_a_command_on_a_cpu_is_refused_and_writes_nothing(frames, tmp_path, capsys):
    words = RUNS["video"](tmp_path, frames)
    folder = tmp_path / "run"
    assert main([*words, "--cuda-graphs", "--device", "cpu", "--no-doctor", "--out", str(folder)]) == 2
    assert "--cuda-graphs" in capsys.readouterr().err
    assert not folder.exists()


def test_networks_of_all_kinds_can_be_captured(fake_cuda):
    geometry = VideoGeometry(frames=8, height=16, width=32, rows=1, columns=2)
    for name in ("grid", "hnerv", "nerv"):
        torch.manual_seed(0)
        model = build_model(name, geometry, ModelOptions(modelsize=0.04)).cuda()
        frames = torch.rand(2, 3, 16, 32).cuda() if model.needs_frames else None
        t = torch.tensor([0.25, 0.5], dtype=torch.float64).cuda()
        asked = Query(t=t, x=t, y=t, frames=frames)
        network = GraphedNetwork(model)
        for embed in (False, True):
            found = network(asked, embed=embed)
            wanted = model(asked, embed=embed)
            assert torch.equal(found.rgb.cpu(), wanted.rgb.cpu())
            assert embed == (found.embedding is not None)
