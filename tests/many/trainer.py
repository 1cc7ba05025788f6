"""Fake of `fieldwatch`: writes a run folder and ends as its flags specify, without slow imports.

Flags: --steps=N, --pause=S between steps, --end=CODE after the last step, --crash-at=STEP (kills itself there, at its
first start only), --state=WORD in run.json at the end, --found=SEVERITY of a finding, --stubborn=1 (ignores SIGTERM),
--full=N (the first N starts find a full disk).
"""

import json
import os
import signal
import sys
import time
from pathlib import Path


def flag(name, default):
    values = [word.partition("=")[2] for word in sys.argv if word.startswith(f"--{name}=")]
    return values[-1] if values else default


def say(**words):
    """Report the exit reason to the parent process, as `fieldwatch` does."""
    told = json.loads(os.environ["FIELDWATCH_SUPERVISED"])
    assert told["supervisor"] == os.getppid()
    os.write(told["channel"], json.dumps({"missing": False, **words}).encode() + b"\n")


class Folder:
    def __init__(self, place):
        self.place = place
        place.mkdir(parents=True, exist_ok=True)
        stored = json.loads((place / "run.json").read_text()) if (place / "run.json").exists() else {"segments": []}
        self.earlier = stored["segments"]
        self.start = json.loads((place / "saved.json").read_text()) if self.earlier else 0

    def note(self, state):
        segments = [*self.earlier, {"step": self.start, "pid": os.getpid()}]
        stored = {"config": {}, "windows": {}, "phases": [], "segments": segments, "state": state}
        draft = self.place / ".run.json"
        draft.write_text(json.dumps(stored | {"about": {"pipeline": "video"}}))
        draft.replace(self.place / "run.json")

    def save(self, done):
        draft = self.place / ".saved.json"
        draft.write_text(str(done))
        draft.replace(self.place / "saved.json")

    def add(self, name, line):
        with (self.place / name).open("a") as file:
            file.write(json.dumps(line) + "\n")

    def begin(self, total):
        for name in ("journal.jsonl", "events.jsonl") if self.earlier else ():
            self.add(name, {"segment": len(self.earlier) + 1, "resume": self.start, "started": "now"})
        self.add("events.jsonl", {"kind": "plan", "step": self.start, "steps": total})
        self.add("journal.jsonl", {"layout": self.start, "axis": "step", "names": ["Loss/total"], "float32": 0})


def main():
    folder = Folder(Path(sys.argv[sys.argv.index("--out") + 1]))
    told = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(128 + number))
    full = int(flag("full", "0"))  # number of starts that find a full disk
    if full > len(list(folder.place.glob("full-*"))):
        (folder.place / f"full-{os.getpid()}").touch()
        say(cause="disk", detail="OSError: [Errno 28] No space left on device")
        return 2
    if flag("end", "0") == "2":
        say(cause="bad-input", detail="no photos there: give a folder that holds some")
        sys.stderr.write("no photos there: give a folder that holds some\n")
        return 2
    folder.note("running")
    folder.begin(int(flag("steps", "5")))
    for step in range(folder.start, int(flag("steps", "5"))):
        folder.add("journal.jsonl", [folder.start, step, step, step, [], 1 / (step + 1)])
        folder.save(step + 1)
        if step == int(flag("crash-at", "-1")) and not folder.earlier:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(float(flag("pause", "0")))
        if told and not flag("stubborn", ""):
            return told[0]
    if flag("found", ""):
        finding = {"rule": "R", "severity": flag("found", ""), "message": "m", "remedy": "r"}
        folder.add("events.jsonl", {"kind": "finding", "step": 0, **finding})
    folder.note(flag("state", "finished"))
    return int(flag("end", "0"))


if __name__ == "__main__":
    sys.exit(main())
