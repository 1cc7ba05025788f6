"""Snapshots whose truth is known: a small caching allocator that records itself as torch's does."""

import pickle
import random

import pytest

MB = 1 << 20
TORCH = {"filename": "/env/lib/python3.11/site-packages/torch/nn/functional.py", "line": 77, "name": "conv2d"}
MAIN = {"filename": "/home/me/project/train.py", "line": 12, "name": "main"}


def rounded(size):
    """What the allocator takes for a request: multiples of 512 bytes."""
    return max(512, -(-size // 512) * 512)


class Allocator:
    """First fit in segments of a fixed size, every action recorded; frames and keys are shared as torch shares them."""

    def __init__(self, segment_mb=20):
        self.segment_size = segment_mb * MB
        self.segments = []
        self.events = []
        self.clock = 1_760_000_000_000_000
        self.phase = None

    def record(self, action, address, size, stack):
        self.clock += 40
        event = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": self.clock, "frames": stack}
        self.events.append(event | ({"user_metadata": self.phase} if self.phase else {}))

    def allocate(self, size, stack):
        """Return the block."""
        taken = rounded(size)
        fitting = [b for s in self.segments for b in s["blocks"] if b["state"] == "inactive" and b["size"] >= taken]
        block = min(fitting, key=lambda b: b["size"]) if fitting else self.grow(taken, stack)
        segment = next(s for s in self.segments if any(b is block for b in s["blocks"]))
        if block["size"] > taken:
            at = segment["blocks"].index(block)
            rest = {"address": block["address"] + taken, "size": block["size"] - taken, "requested_size": 0}
            segment["blocks"].insert(at + 1, rest | {"state": "inactive", "frames": []})
        block |= {"size": taken, "requested_size": size, "state": "active_allocated", "frames": stack}
        self.record("alloc", block["address"], size, stack)
        return block

    def grow(self, taken, stack):
        total = max(self.segment_size, taken)
        address = 0x7F0000000000 + sum(s["total_size"] for s in self.segments) + len(self.segments) * 4096
        block = {"address": address, "size": total, "requested_size": 0, "state": "inactive", "frames": []}
        segment = {"device": 0, "address": address, "total_size": total, "stream": 0, "segment_type": "large"}
        self.segments.append(segment | {"segment_pool_id": (0, 0), "is_expandable": False, "blocks": [block]})
        self.record("segment_alloc", address, total, stack)
        return block

    def free(self, block, stack):
        self.record("free_requested", block["address"], block["requested_size"], stack)
        self.record("free_completed", block["address"], block["requested_size"], stack)
        block |= {"state": "inactive", "requested_size": 0, "frames": []}
        for segment in self.segments:
            self.merge(segment)

    @staticmethod
    def merge(segment):
        blocks = [segment["blocks"][0]]
        for block in segment["blocks"][1:]:
            if block["state"] == blocks[-1]["state"] == "inactive":
                blocks[-1]["size"] += block["size"]
            else:
                blocks.append(block)
        segment["blocks"] = blocks

    def snapshot(self):
        """What ``_snapshot()`` would return."""
        for segment in self.segments:
            used = [b for b in segment["blocks"] if b["state"] != "inactive"]
            segment["allocated_size"] = sum(b["size"] for b in used if b["state"] == "active_allocated")
            segment["active_size"] = sum(b["size"] for b in used)
            segment["requested_size"] = sum(b["requested_size"] for b in used)
        settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False, "roundup_power2_divisions": {"1": 0}}
        return {
            "segments": self.segments,
            "device_traces": [self.events],
            "allocator_settings": settings,
            "external_annotations": [],
        }


def stack_of(name, line, module="model.py"):
    """A stack as torch records it: library calls innermost, the program outermost."""
    return [TORCH, {"filename": f"/home/me/project/{module}", "line": line, "name": name}, MAIN]


def training(steps=12, seed=0):
    """A run of the 3DGS kind: parameters, Adam, then steps of forward, backward, update; one densification."""
    chance = random.Random(seed)
    memory = Allocator()
    owners = ["means", "scales", "opacities", "harmonics"]
    rendering = ["project", "sort_tiles", "blend", "ssim"]
    forward = [stack_of(name, 40 + 7 * i, "render.py") for i, name in enumerate(rendering)]
    memory.phase = "setup"
    kept = [memory.allocate(MB * (3 + 5 * i) + 100, stack_of(f"make_{name}", 10 + i)) for i, name in enumerate(owners)]
    for step in range(steps):
        memory.phase = "forward"
        saved = [memory.allocate(chance.randrange(MB, 9 * MB), chance.choice(forward)) for _ in range(14)]
        memory.phase = "backward"
        gradients = []
        while saved:
            scratch = memory.allocate(chance.randrange(MB // 2, 2 * MB), [])
            memory.free(saved.pop(), [])
            memory.free(scratch, [])
            if len(gradients) < 4 and chance.random() < 0.4:
                gradients.append(memory.allocate(5 * MB, stack_of("backward", 90, "loss.py")))
        memory.phase = "update"
        if step == 0:
            kept += [memory.allocate(6 * MB, stack_of("init_moments", 33, "adam.py")) for _ in range(4)]
        if step == steps // 2:
            kept += [memory.allocate(9 * MB, stack_of("densify", 120, "strategy.py")) for _ in range(3)]
        for gradient in gradients:
            memory.free(gradient, stack_of("zero_grad", 95, "loss.py"))
    return memory.snapshot()


@pytest.fixture
def mosaic(real_data):
    """A real dump, of the project mosaic."""
    return real_data / "memory_snapshots" / "mosaic_output.pickle"


@pytest.fixture
def make_allocator():
    return Allocator


@pytest.fixture
def make_stack():
    return stack_of


@pytest.fixture
def make_training():
    return training


@pytest.fixture
def dump(tmp_path):
    """Write a value as a pickle and return the path."""

    def write(value, name="memory.pickle", protocol=pickle.DEFAULT_PROTOCOL):
        path = tmp_path / name
        path.write_bytes(value if isinstance(value, bytes) else pickle.dumps(value, protocol=protocol))
        return path

    return write
