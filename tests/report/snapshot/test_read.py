"""The numbers of a snapshot, against the sample of another project and against states whose truth is known."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldwatch.report.snapshot import Frame, read_snapshot
from fieldwatch.report.snapshot.allocations import follow
from fieldwatch.report.snapshot.parse import parse_snapshot
from fieldwatch.report.snapshot.stacks import site_frames
from fieldwatch.report.snapshot.timeline import timeline_of

MB = 1 << 20


def segment(*blocks, total=None, address=1 << 30, **changes):
    """A large segment of blocks (state, size, requested)."""
    made = []
    at = address
    for state, size, requested in blocks:
        made.append({"address": at, "size": size, "requested_size": requested, "state": state, "frames": []})
        at += size
    used = [block for block in made if block["state"] != "inactive"]
    return {
        "device": 0,
        "address": address,
        "total_size": at - address if total is None else total,
        "allocated_size": sum(b["size"] for b in used if b["state"] == "active_allocated"),
        "active_size": sum(b["size"] for b in used),
        "requested_size": sum(b["requested_size"] for b in used),
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "blocks": made,
    } | changes


def event(action, address, size, name="f", **changes):
    frames = [{"filename": "/home/me/train.py", "line": 7, "name": name}] if name else []
    return {"action": action, "addr": address, "size": size, "stream": 0, "frames": frames} | changes


LIVE = "active_allocated"
WAITING = "active_awaiting_free"
FREE = "inactive"
STATE = [
    segment((LIVE, 4 * MB, 4 * MB - 100), (FREE, 6 * MB, 0), (WAITING, 2 * MB, 2 * MB), (FREE, 8 * MB, 0)),
    segment((FREE, 20 * MB, 0), address=2 << 30),
    segment((LIVE, MB, MB), (FREE, MB, 0), address=3 << 30, segment_pool_id=(1, 7), stream=5, segment_type="small"),
]


@pytest.fixture
def state(dump):
    (device,) = read_snapshot(dump(STATE)).devices
    return device


def test_the_sample_of_mosaic_has_the_numbers_of_its_note(mosaic):
    snapshot = read_snapshot(mosaic)
    (device,) = snapshot.devices
    totals = device.totals
    assert (totals.segments, totals.blocks, len(device.trace)) == (5, 17, 1040)
    assert (totals.reserved, totals.allocated) == (262_144_000, 174_716_640)
    assert totals.uncovered == 262_144_000 - 8_704
    assert [phase.name for phase in device.phases] == ["Annotation1", "Annotation3"]
    assert snapshot.settings == {}


def test_the_history_of_mosaic_is_that_of_a_plain_walk_over_its_events(mosaic):
    value = pickle.loads(mosaic.read_bytes())  # noqa: S301  the sample is part of the shared data
    now = sum(block["requested_size"] for segment in value["segments"] for block in segment["blocks"])
    walked = []
    for step in value["device_traces"][0]:
        now += step["size"] if step["action"] == "alloc" else -step["size"]
        walked.append(now)
    (device,) = read_snapshot(mosaic).devices
    assert device.timeline.requested.tolist() == walked
    assert device.timeline.peak.requested == max(walked) == 2_255_398_598
    assert {found.what: found.count for found in device.inconsistencies} == {
        "blocks do not fill their segment": 5,
        "allocated_size is not the sum of the blocks": 5,
        "free_completed without free_requested": 520,
        "more was requested than reserved": sum(size > 262_144_000 for size in walked),
    }


def test_every_kind_of_free_memory_is_told_apart(state):
    totals = state.totals
    assert totals.reserved == 42 * MB
    assert totals.allocated == 5 * MB
    assert totals.active == 7 * MB
    assert totals.awaiting_free == 2 * MB
    assert totals.requested == 7 * MB - 100
    assert totals.rounding == 100
    assert totals.not_returnable == 15 * MB
    assert totals.returnable == 20 * MB
    assert totals.free == 35 * MB
    assert totals.largest_free == 20 * MB
    assert totals.fragmentation == pytest.approx(1 - 20 / 35)
    assert totals.uncovered == 0
    assert state.inconsistencies == ()


def test_pools_are_counted_on_their_own(state):
    assert [(use.pool, use.kind, use.stream, use.totals.reserved) for use in state.pools] == [
        ((0, 0), "large", 0, 40 * MB),
        ((1, 7), "small", 5, 2 * MB),
    ]
    assert state.pools[1].totals.not_returnable == MB
    assert state.pools[1].totals.fragmentation == 0


def test_without_free_memory_there_is_no_fragmentation(dump):
    (device,) = read_snapshot(dump([segment((LIVE, MB, MB))])).devices
    assert device.totals.fragmentation is None
    assert device.timeline.peak is None
    assert device.timeline.before == MB


def test_the_parts_of_a_training_add_up_to_the_reserved_memory(dump, make_training):
    (device,) = read_snapshot(dump(make_training())).devices
    totals = device.totals
    parts = (totals.allocated, totals.awaiting_free, totals.not_returnable, totals.returnable, totals.uncovered)
    assert sum(parts) == totals.reserved
    assert device.inconsistencies == ()
    assert int(device.timeline.requested[-1]) == totals.requested
    assert device.timeline.reserved[-1] == totals.reserved


def test_the_timeline_and_the_peak_are_those_that_were(dump, make_allocator, make_stack):
    memory = make_allocator()
    means = memory.allocate(3 * MB, make_stack("means", 1))
    image = memory.allocate(5 * MB, make_stack("image", 2))
    memory.phase = "backward"
    gradient = memory.allocate(4 * MB, make_stack("gradient", 3))
    memory.free(image, [])
    memory.phase = None
    memory.free(gradient, [])
    small = memory.allocate(MB, make_stack("means", 1))
    (device,) = read_snapshot(dump(memory.snapshot())).devices
    assert (device.timeline.requested // MB).tolist() == [0, 3, 8, 12, 7, 7, 3, 3, 4]
    assert set(device.timeline.reserved.tolist()) == {20 * MB}
    peak = device.timeline.peak
    assert (peak.requested, peak.event, peak.phase) == (12 * MB, 3, "backward")
    assert peak.time == memory.events[3]["time_us"]
    uses = {use.site: (use.now, use.at_peak, use.churn, use.count) for use in device.sites}
    assert uses == {
        "model.py:1 means": (4 * MB, 3 * MB, 4 * MB, 2),
        "model.py:2 image": (0, 5 * MB, 5 * MB, 1),
        "model.py:3 gradient": (0, 4 * MB, 4 * MB, 1),
    }
    assert [use.site.split()[1] for use in device.sites] == ["image", "means", "gradient"]
    assert device.sites[1].stack == ("model.py:1 means", "train.py:12 main")
    assert [(p.name, p.events, p.churn, p.peak) for p in device.phases] == [("backward", 3, 4 * MB, 12 * MB)]
    assert means["address"] != small["address"]


@pytest.mark.parametrize("cut", [1, 5, 200, 900, 1100])
def test_a_bounded_history_ends_at_the_same_state(dump, make_training, cut):
    whole = make_training()
    (full,) = read_snapshot(dump(whole)).devices
    whole["device_traces"][0] = whole["device_traces"][0][cut:]
    (part,) = read_snapshot(dump(whole)).devices
    assert (part.timeline.requested == full.timeline.requested[cut:]).all()
    assert (part.timeline.reserved == full.timeline.reserved[cut:]).all()
    assert part.timeline.before == full.timeline.requested[cut - 1]
    assert part.timeline.peak.requested == full.timeline.requested[cut - 1 :].max()
    assert part.totals == full.totals


def test_what_was_there_before_the_history_is_said_so(dump):
    live = segment((LIVE, MB, MB), (FREE, 19 * MB, 0))
    history = [event("free_requested", 7 << 30, 3 * MB), event("free_completed", 7 << 30, 3 * MB)]
    (device,) = read_snapshot(dump({"segments": [live], "device_traces": [history]})).devices
    assert device.timeline.before == 4 * MB
    assert device.timeline.requested.tolist() == [MB, MB]
    assert (device.timeline.peak.event, device.timeline.peak.requested) == (-1, 4 * MB)
    assert [(use.site, use.now, use.at_peak) for use in device.sites] == [("(before the history began)", MB, 4 * MB)]


def test_requests_that_failed_are_kept_with_their_numbers(dump):
    history = [
        event("alloc", 1 << 30, MB, name="fits"),
        event("oom", 0, 1 << 62, name="render", device_free=3 * MB) | {"time_us": 5},
    ]
    del history[1]["addr"]
    state = [segment((LIVE, MB, MB))]
    snapshot = read_snapshot(dump({"segments": state, "device_traces": [history]}))
    (failed,) = snapshot.devices[0].out_of_memory
    assert (failed.event, failed.requested, failed.device_free) == (1, 1 << 62, 3 * MB)
    assert snapshot.stacks[failed.stack][0].name == "render"
    assert snapshot.devices[0].timeline.requested.tolist() == [MB, MB]


ODD = {
    "allocated twice without a free in between": [event("alloc", 8, 4), event("alloc", 8, 6)],
    "freed twice without an allocation in between": [event("free_requested", 8, 4), event("free_requested", 8, 4)],
    "freed with a different size than allocated": [event("alloc", 8, 4), event("free_requested", 8, 5)],
    "live in the history, but in no block": [event("alloc", 8, 4)],
    "unknown action": [event("defragment", 8, 4)],
    "free_completed without free_requested": [event("alloc", 8, 4), event("free_completed", 8, 4)],
    "time runs backwards": [event("snapshot", 0, 0, time_us=9), event("snapshot", 0, 0, time_us=8)],
    "a block and its allocation differ in size": [event("alloc", 1 << 30, 4)],
    "more was released than reserved": [event("segment_alloc", 8, 99 * MB)],
}


@pytest.mark.parametrize("what", ODD)
def test_what_does_not_fit_is_reported_once_with_its_count(dump, what):
    value = {"segments": [segment((LIVE, MB, MB))], "device_traces": [ODD[what]]}
    (device,) = read_snapshot(dump(value)).devices
    assert {found.what: found.count for found in device.inconsistencies}[what] == 1


@pytest.mark.parametrize(
    ("state", "what"),
    [
        (segment((LIVE, MB, MB), total=2 * MB), "blocks do not fill their segment"),
        (segment((LIVE, MB, MB), allocated_size=3), "allocated_size is not the sum of the blocks"),
        (segment((LIVE, MB, 2 * MB)), "blocks are smaller than their request"),
        (segment((LIVE, MB, MB), (FREE, MB, 0), total=MB), "blocks are outside their segment or overlap"),
    ],
)
def test_a_state_that_contradicts_itself_is_reported(dump, state, what):
    (device,) = read_snapshot(dump([state])).devices
    assert what in {found.what for found in device.inconsistencies}


def test_a_sound_state_has_no_contradiction(dump):
    assert read_snapshot(dump(STATE)).devices[0].inconsistencies == ()


def test_a_label_and_a_span_for_every_event_cost_no_more_than_their_number(dump):
    count = 3000
    history = [event("alloc", 8 * i, 1, time_us=10 * i + 1, user_metadata=f"step {i}") for i in range(count)]
    marks = [
        {"stage": stage, "name": f"span {i}", "device": 0, "time_us": 10 * i + at}
        for i in range(count)
        for stage, at in (("START", 0), ("END", 5))
    ]
    (device,) = read_snapshot(dump({"device_traces": [history], "external_annotations": marks})).devices
    labels = {phase.name: phase for phase in device.phases if phase.source == "metadata"}
    spans = {phase.name: phase for phase in device.phases if phase.source == "annotation"}
    assert [labels[f"step {i}"].peak for i in range(count)] == list(range(1, count + 1))
    assert {(phase.events, phase.churn) for phase in (*labels.values(), *spans.values())} == {(1, 1)}
    assert len(spans) == 1000
    assert {found.what: found.count for found in device.inconsistencies}["too many spans"] == count


def test_devices_are_kept_apart(dump):
    states = [segment((LIVE, MB, MB), device=1), segment((LIVE, 2 * MB, 2 * MB), device=3)]
    traces = [[], [event("alloc", 1 << 30, MB)], [event("free_requested", 5, 7)], []]
    devices = read_snapshot(dump({"segments": states, "device_traces": traces})).devices
    assert [(d.device, d.totals.reserved, len(d.trace)) for d in devices] == [(1, MB, 1), (2, 0, 1), (3, 2 * MB, 0)]


def test_an_empty_snapshot_has_no_devices(dump):
    assert read_snapshot(dump({"segments": [], "device_traces": [[], []]})).devices == ()
    assert read_snapshot(dump([])).devices == ()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_reads_the_same(dump, make_training, protocol):
    snapshot = read_snapshot(dump(make_training(steps=2), protocol=protocol))
    assert snapshot.devices[0].totals == read_snapshot(dump(make_training(steps=2))).devices[0].totals


def test_the_forms_of_older_versions_are_read(dump):
    """Torch 1.13: no addresses of blocks, no requested_size, frames in the history of a block, another state name."""
    frames = [{"filename": "/home/me/old.py", "line": 3, "name": "g"}]
    blocks = [
        {"size": 1024, "state": LIVE, "history": [{"addr": 4096, "real_size": 1000, "frames": frames}]},
        {"size": 512, "state": "active_pending_free", "history": []},
        {"size": 512, "state": FREE},
    ]
    old = {"address": 4096, "total_size": 2048, "stream": 0, "segment_type": "small", "blocks": blocks}
    (device,) = read_snapshot(dump([old])).devices
    assert [block.address for block in device.segments[0].blocks] == [4096, 5120, 5632]
    assert (device.totals.allocated, device.totals.awaiting_free) == (1024, 512)
    assert device.totals.requested is None
    assert device.totals.rounding is None
    assert [(use.site, use.now) for use in device.sites] == [("old.py:3 g", 1000)]


def test_blocks_that_wait_for_a_stream_are_not_in_use_where_requests_are_recorded(dump):
    state = [segment((LIVE, MB, MB), (WAITING, MB, MB))]
    first = 1 << 30
    second = (1 << 30) + MB
    requested = [event("alloc", first, MB), event("alloc", second, MB), event("free_requested", second, MB)]
    (device,) = read_snapshot(dump({"segments": state, "device_traces": [requested]})).devices
    assert device.timeline.requested.tolist() == [MB, 2 * MB, MB]
    assert device.inconsistencies == ()


@pytest.mark.parametrize(
    ("filename", "generic"),
    [
        ("/env/lib/python3.11/site-packages/torch/nn/modules/module.py", True),
        ("C:\\env\\Lib\\site-packages\\torch\\nn\\functional.py", True),
        ("/usr/lib/python3.11/contextlib.py", True),
        ("/pytorch/aten/src/ATen/native/Empty.cpp", True),
        ("<frozen importlib._bootstrap>", True),
        ("??", True),
        ("", True),
        ("/env/lib/python3.11/site-packages/gsplat/rendering.py", False),
        ("/env/lib/python3.11/site-packages/fieldwatch/recon/pipelines/splats.py", False),
        ("/home/me/torch_experiments/train.py", False),
        ("train.py", False),
    ],
)
def test_a_site_is_the_first_call_that_says_who_wanted_it(filename, generic):
    call = Frame(filename=filename, line=1, name="f")
    main = Frame(filename="/home/me/main.py", line=2, name="main")
    assert call.is_generic == generic
    assert site_frames((call, main))[0] == (main if generic else call)
    assert site_frames((call,)) == (call,)


def test_names_are_made_fit_to_be_shown(dump):
    frame = {"filename": "/home/me/\x1b[31mred.py", "line": 1, "name": "\ud800" + "x" * 5000}
    live = segment((LIVE, MB, MB))
    live["blocks"][0]["frames"] = [frame]
    (use,) = read_snapshot(dump([live])).devices[0].sites
    assert use.site.isprintable()
    assert len(use.site) < 450
    assert "\x1b" not in use.filename


ACTIONS = st.sampled_from(["alloc", "free_requested", "free_completed"])


@given(moves=st.lists(st.tuples(st.integers(0, 3), ACTIONS, st.integers(1, 9)), max_size=25))
def test_any_history_ends_at_the_bytes_that_are_live(moves):
    """Whatever the events say, the timeline starts at what was there before and adds up, event by event."""
    trace = [event(action, 8 * place + 8, size) for place, action, size in moves]
    ((recorded,), _, _) = parse_snapshot({"segments": [segment((LIVE, MB, MB))], "device_traces": [trace]}, 100_000)
    known, _ = follow(recorded)
    assert (known.start < known.end).all()
    alive = [int(known.size[(known.start <= at) & (known.end > at)].sum()) for at in range(-1, len(trace))]
    timeline = timeline_of(recorded, known)
    assert [timeline.before, *timeline.requested.tolist()] == alive
    assert min(alive) >= MB
    assert int(known.size[known.live].sum()) == MB
