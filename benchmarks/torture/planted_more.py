"""More planted breaks: locks, data loaders, restarts, links, and faults that only a long run reveals."""

from mutants import Edits, Mutant

NO_TORCH_STATE: Edits = (('        torch.set_rng_state(state_dict["torch"])\n', ""),)
NO_FOLDER_LOCK: Edits = (("            if not _lock_folder(folder):\n", "            if folder < 0:\n"),)
SEEDED_BY_EPOCH: Edits = (
    (
        "torch.randperm(self.length, generator=self._generator)",
        "torch.randperm(self.length, generator=torch.Generator().manual_seed(self._epoch))",
    ),
)
POSIX_LOCK: Edits = (
    (
        "            fcntl.fcntl(file, _SET_LOCK, _WHOLE_FILE)\n",
        "            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
    ),
)
RECORDED = (
    Mutant(
        name="rows without checksums",
        breaks="the checksum of a row is not verified",
        file="record/rows.py",
        edits=(
            ("        return sums[:-1] == [row[-1] for row in rows]\n", "        return bool(sums)\n"),
            (
                "        if layout.has_checksums and row[-1] != checksum_of(line):\n",
                "        if layout.has_checksums and not line:\n",
            ),
        ),
        trial="logs",
        rows=("P3 random mutations of journal.jsonl",),
    ),
    Mutant(
        name="events without checksums",
        breaks="the checksum of an event, a layout or a segment is not verified",
        file="record/lines.py",
        edits=(("        if found.pop(CHECKSUM) != checksum_of(line):\n", "        if not found.pop(CHECKSUM):\n"),),
        trial="logs",
        rows=("P3 random mutations of events.jsonl",),
    ),
    Mutant(
        name="run.json without its hash",
        breaks="the hash of run.json is not verified",
        file="record/manifest.py",
        edits=(("    if seal is not None and seal != _hash(stored):\n", "    if seal is not None and not seal:\n"),),
        trial="logs",
        rows=("P3 random mutations of run.json",),
    ),
    Mutant(
        name="no copy of run.json",
        breaks="checkpoints contain no copy of run.json",
        file="checkpoint/folder.py",
        edits=(("        self._run = text\n", "        self._run = text[:0]\n"),),
        trial="logs",
        rows=("P3 random mutations of run.json",),
    ),
    Mutant(
        name="step 0 in any folder",
        breaks="a folder that held checkpoints is started at step 0",
        file="run/incidents.py",
        edits=(("        if not self._start_allowed:\n", "        if self._start_allowed is None:\n"),),
        trial="logs",
        rows=("P3 a run that lost",),
    ),
)
WRITING = (
    Mutant(
        name="no lock",
        breaks="neither the folder nor the file in it is locked",
        file="checkpoint/lock.py",
        edits=(*NO_FOLDER_LOCK, ("            if not _lock_file(file):\n", "            if file < 0:\n")),
        trial="writers",
        rows=("P15 a second process on a folder in use",),
    ),
    Mutant(
        name="only the file is locked",
        breaks="only the file in the folder is locked",
        file="checkpoint/lock.py",
        edits=NO_FOLDER_LOCK,
        trial="writers",
        rows=(
            "P15 a second process after the lock's file was deleted",
            "P15 a second process after the lock's file was replaced",
        ),
    ),
    Mutant(
        name="a lock of the process",
        breaks="the lock belongs to the process, and any closed descriptor releases it",
        file="checkpoint/lock.py",
        edits=(*NO_FOLDER_LOCK, *POSIX_LOCK),
        trial="writers",
        rows=(
            "P15 a second process after the owner opened and closed",
            "P15 a second process after the owner copied the run folder",
        ),
    ),
    Mutant(
        name="workers keep the lock",
        breaks="a forked worker keeps its parent's lock",
        file="checkpoint/lock.py",
        edits=(("        for lock in cls._instances:\n            lock.release()\n", ""),),
        trial="writers",
        rows=("P15 taking over after kill -9",),
    ),
    Mutant(
        name="workers unlock the folder",
        breaks="a forked worker releases its parent's lock",
        file="checkpoint/lock.py",
        edits=(
            (
                "            if descriptor is not None:\n                os.close(descriptor)\n        self._file",
                (
                    "            if descriptor is not None:\n                fcntl.flock(descriptor, fcntl.LOCK_UN)\n"
                    "                os.close(descriptor)\n        self._file"
                ),
            ),
            ("            fcntl.fcntl(file, _SET_LOCK, _WHOLE_FILE)\n", "            pass\n"),
        ),
        trial="writers",
        rows=("P15 a second process after a worker of the owner",),
    ),
    Mutant(
        name="the owner is not named",
        breaks="the lock does not name its owner",
        file="checkpoint/lock.py",
        edits=(("_rewrite(file, _owner_json())\n", '_rewrite(file, b"")\n'),),
        trial="writers",
        rows=("P15 a second process on a folder in use",),
    ),
    Mutant(
        name="the lock is not given back",
        breaks="leaving does not release the folder",
        file="checkpoint/lock.py",
        edits=(("        self.release()\n        self._instances.discard(self)\n", ""),),
        trial="writers",
        rows=("P15 the same process takes the folder again",),
    ),
    Mutant(
        name="links in a run folder are followed",
        breaks="files and folders of a run folder may be links to any place",
        file="run/session.py",
        edits=(("        refuse_links(plan.folder)\n", ""),),
        trial="links",
        rows=("P17 run folders with links",),
        also=(("base/files.py", (("os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK", "os.O_CLOEXEC | os.O_NONBLOCK"),)),),
    ),
)
NOTHING_FROM_RESERVE: Edits = (
    ("        if self._size <= self._final_bytes:\n            return False\n", "        return nbytes < 0\n"),
)
"""Rows go to the reserve first; without it, they wait at once."""
RESUMING = (
    Mutant(
        name="a loader loses its position",
        breaks="a data loader restarts its epoch",
        file="checkpoint/loader.py",
        edits=(('        self._position.batch = int(state_dict["batch"])\n', ""),),
        trial="loaders",
        rows=("P4 ResumableLoader, 0 workers", "P4 ResumableLoader, 2 workers", "P4 data loaders"),
    ),
    Mutant(
        name="workers draw on their own",
        breaks="the random numbers of a data set depend on worker and time",
        file="checkpoint/loader.py",
        edits=(("            _seed_all(seed_of(self._seed, epoch, number), self._generators)\n", ""),),
        trial="loaders",
        rows=("P4 ResumableLoader, 2 workers",),
    ),
    Mutant(
        name="a plain loader is not named",
        breaks="a data loader that cannot be resumed is not reported",
        file="run/checkpoint_coverage.py",
        edits=(('            self._warn_once("DataLoader", _PLAIN_LOADER)\n', "            str(_PLAIN_LOADER)\n"),),
        trial="loaders",
        rows=("P4 plain torch DataLoader",),
    ),
    Mutant(
        name="a generator that nothing draws from, video",
        breaks="the order of the data no longer comes from the saved generator, so its control proves nothing",
        file="checkpoint/shuffled.py",
        edits=SEEDED_BY_EPOCH,
        trial="resume video",
        rows=("P4 video fp32, in memory: resumed without one part of its state",),
    ),
    Mutant(
        name="rays are drawn without their generator",
        breaks="rays no longer come from the saved generator, so its control proves nothing",
        file="recon/pipelines/normals/batches.py",
        edits=(
            (
                "        options = self._options\n",
                "        self._generator.manual_seed(0)\n        options = self._options\n",
            ),
        ),
        trial="resume normals",
        rows=("P4 normals fp32: resumed without one part of its state",),
    ),
    Mutant(
        name="optimizers are not restored, disturbed",
        breaks="an optimizer's moments are not restored",
        file="checkpoint/items.py",
        edits=(
            (
                "            _load(item, stored, path)\n",
                "            _ = isinstance(item, Optimizer) or _load(item, stored, path)\n",
            ),
        ),
        trial="resume disturbed",
        rows=("P4 normals fp32, disturbed: stopped and resumed",),
    ),
    Mutant(
        name="rollbacks are not counted",
        breaks="rollbacks are not counted, so their control proves nothing",
        file="recon/pipelines/normals/recovery.py",
        edits=(("        self.total[kind] += 1\n", ""),),
        trial="resume disturbed",
        rows=("P4 normals fp32, disturbed: resumed without one part of its state",),
    ),
)
FULL = (
    Mutant(
        name="rows do not wait",
        breaks="a row that a full disk refuses ends the record",
        file="record/disk/backlog.py",
        edits=(
            ("                self._begin_pause()\n            else:\n", "                raise\n            else:\n"),
        ),
        trial="last byte",
        rows=("P7 a run with the default sinks on a disk",),
    ),
    Mutant(
        name="waiting writes are dropped",
        breaks="writes that a full disk refuses are lost",
        file="record/disk/backlog.py",
        edits=(("        queue.pending.append(write)\n        self._count(write, 1)\n", ""),),
        trial="last byte",
        rows=("P7 a run with the default sinks on a disk",),
        also=(("record/disk/reserve.py", NOTHING_FROM_RESERVE),),
    ),
    Mutant(
        name="waiting writes lose their order",
        breaks="waiting writes lose their order",
        file="record/disk/backlog.py",
        edits=(("        queue.pending.append(write)\n", "        queue.pending.appendleft(write)\n"),),
        trial="last byte",
        rows=("P7 a run with the default sinks on a disk",),
        also=(("record/disk/reserve.py", NOTHING_FROM_RESERVE),),
    ),
    Mutant(
        name="no reserve for the record",
        breaks="no space is reserved for rows and the end of the run",
        file="record/disk/reserve.py",
        edits=(("            os.posix_fallocate(self._file, 0, self._whole + beyond)\n", "            pass\n"),),
        trial="last byte",
        rows=("P7 SIGTERM while the disk is full, and no process takes",),
    ),
)
RESTARTING = (
    Mutant(
        name="restarts are not limited",
        breaks="a crash that advances one step each time is restarted three times as often as allowed",
        file="monitor/restarts.py",
        edits=(("        if self.recent >= self._per_hour:\n", "        if self.recent >= 3 * self._per_hour:\n"),),
        trial="crash loop",
        rows=("P16 a crash that gets one step further",),
    ),
    Mutant(
        name="no pause between restarts",
        breaks="a training is restarted at once, however often it crashed",
        file="monitor/restarts.py",
        edits=(("        return min(self._pause * 2.0", "        return 0.0 * min(self._pause * 2.0"),),
        trial="crash loop",
        rows=("P16 a crash that gets one step further",),
    ),
    Mutant(
        name="the default waits too long",
        breaks="under the default timeout, a hang is noticed after two minutes at the earliest",
        file="run/watchdog.py",
        edits=(("MIN_TIMEOUT: Final = 60.0\n", "MIN_TIMEOUT: Final = 120.0\n"),),
        trial="default hang",
        rows=("P12 a hang after 30 steps under the default timeout",),
    ),
)
LONG = (
    Mutant(
        name="torch's generator is not restored, by fork",
        breaks="torch's random state is not restored",
        file="checkpoint/random_state.py",
        edits=NO_TORCH_STATE,
        trial="soak by fork",
        rows=("P20 INT), by fork",),
    ),
    Mutant(
        name="nothing is saved",
        breaks="neither steps nor signals save",
        file="run/saving.py",
        edits=(
            (
                "        if not self._items:\n            return False\n",
                "        if self._items:\n            return False\n",
            ),
            ("        if self._saved_at < done:\n", "        if self._saved_at > done:\n"),
        ),
        trial="soak by fork",
        rows=("P20 what that costs: 12,000 steps",),
    ),
    Mutant(
        name="torch's generator is not restored, supervised",
        breaks="torch's random state is not restored",
        file="checkpoint/random_state.py",
        edits=NO_TORCH_STATE,
        trial="soak",
        rows=("P20 (SIGKILL, SIGSEGV, SIGABRT, SIGTERM, hang",),
    ),
)
STARTING = (
    Mutant(
        name="run.json is not synced",
        breaks="run.json is renamed before its bytes are on the disk",
        file="base/files.py",
        edits=(("            write_synced(draft, [data])\n", "            draft.write_bytes(data)\n"),),
        trial="start",
        rows=("P2 run.json at every time",),
    ),
    Mutant(
        name="run.json's name is not synced",
        breaks="the folder is not synced after run.json is renamed",
        file="base/files.py",
        edits=(("    if durable:\n        sync_folder(path.parent)\n", ""),),
        trial="start",
        rows=("P2 run.json at every time",),
    ),
    Mutant(
        name="the rehearsal reads the page cache",
        breaks="the rehearsal reads from the page cache",
        file="checkpoint/files.py",
        edits=(("        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)\n", "        pass\n"),),
        trial="start",
        rows=("P2 where the rehearsal",),
    ),
    Mutant(
        name="the rehearsal reads nothing back",
        breaks="the rehearsal writes a checkpoint and does not read it",
        file="checkpoint/preflight.py",
        edits=(("            verify_folder(draft_folder)\n", ""),),
        trial="start",
        rows=("P2 where the rehearsal",),
    ),
)
MORE = (*STARTING, *RECORDED, *WRITING, *RESUMING, *FULL, *RESTARTING, *LONG)
