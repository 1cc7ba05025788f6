"""Ray as started by `train-many`: none of its sockets is reachable from other machines."""

import ipaddress
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("ray", reason="needs the extra ray: pip install 'fieldwatch[ray]'")
if not Path("/proc/net/tcp").exists():
    pytest.skip("needs /proc/net", allow_module_level=True)

HERE = Path(__file__).parent
DRIVER = """
import sys
from pathlib import Path
from fieldwatch.many import Driver, Ledger, PlannedScene, RayExecutor
out, program = Path(sys.argv[1]), ("-I", "-S", sys.argv[2])
scene = PlannedScene(name="one", pipeline="video", flags={"steps": ("--steps=2000",), "pause": ("--pause=0.02",)})
with Ledger(out) as ledger:
    driver = Driver([scene], out, RayExecutor(None, 1), ledger, place=out, program=program)
    driver.run((out / "stop").exists, lambda _: None)
print([(one.state, one.cause) for one in driver.statuses[0].attempts])
"""


def inodes_of(pid):
    """Return the inode numbers of the sockets that a process holds."""
    folder = Path(f"/proc/{pid}/fd")
    for path in folder.iterdir() if folder.exists() else ():
        try:
            found = re.fullmatch(r"socket:\[(\d+)\]", str(path.readlink()))
        except OSError:  # closed meanwhile
            continue
        if found:
            yield found[1]


def address_of(digits):
    """Parse an address of /proc/net, which consists of words in native byte order."""
    words = [digits[at : at + 8] for at in range(0, len(digits), 8)]
    address = ipaddress.ip_address(b"".join(bytes.fromhex(word)[::-1] for word in words))
    return getattr(address, "ipv4_mapped", None) or address


def addresses_of(tree):
    """Return the local address and process name of all TCP and UDP sockets of some processes."""
    holders = {inode: process.name() for process in tree for inode in inodes_of(process.pid)}
    for family in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{family}").read_text().splitlines()[1:]:
            words = line.split()
            if words[9] in holders:
                local, _, port = words[1].partition(":")
                yield address_of(local), int(port, 16), holders[words[9]], words[3] == "0A"


def wait_for(true, process):
    deadline = time.monotonic() + 60
    while not true():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_every_socket_of_a_driver_on_ray_is_on_the_loopback_address(tmp_path):
    line = [sys.executable, "-c", DRIVER, str(tmp_path), str(HERE / "trainer.py")]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as driver:
        wait_for((tmp_path / "one" / "saved.json").exists, driver)
        me = psutil.Process(driver.pid)
        found = sorted(set(addresses_of([me, *me.children(recursive=True)])), key=str)
        (tmp_path / "stop").touch()
        told = driver.communicate(timeout=60)[0]
    assert "stopped" in told
    names = {name for _, _, name, listening in found if listening}
    assert {"gcs_server", "raylet"} <= names  # the sockets belong to Ray and are listening
    assert [one for one in found if not one[0].is_loopback] == []


def test_a_ray_that_would_listen_elsewhere_is_refused():
    program = """
import os, ray
from fieldwatch.many import NoRay, RayExecutor
try:
    RayExecutor(None, 1)
    print("it started on", ray.nodes()[0]["NodeManagerAddress"])
except NoRay as error:
    assert not ray.is_initialized()
    print(error)
"""
    switched_on = {**os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=switched_on, check=True)
    if "it started on 127.0.0.1" in ran.stdout:
        pytest.skip("this machine has no address besides the loopback one")
    assert "127.0.0.1 only, got" in ran.stdout
    assert "--ray off" in ran.stdout
