"""The planted breaks, and the rows that must notice each. Short anchors survive small changes of the source.

If an anchor is missing, ``tests/contracts/test_mutants.py`` fails: choose a new one, or remove the mutant and its code.
"""

from mutants import Edits, Mutant
from planted_more import MORE

NO_FILE_SYNC: Edits = (
    (
        "            _write_all(descriptor, memoryview(piece))\n        os.fsync(descriptor)\n",
        "            _write_all(descriptor, memoryview(piece))\n",
    ),
)
NO_FOLDER_SYNC: Edits = (
    (
        "    try:\n        os.fsync(descriptor)\n    finally:\n        os.close(descriptor)\n",
        "    os.close(descriptor)\n",
    ),
)
OLDER_FIRST: Edits = (
    (
        "        make_folder(self.folder)\n        self._sweep()\n",
        (
            "        make_folder(self.folder)\n        self._sweep()\n"
            "        for older in self._folders().values():\n            delete_folder(older)\n"
        ),
    ),
)
NO_TORCH_STATE: Edits = (('        torch.set_rng_state(state_dict["torch"])\n', ""),)
NO_OPTIMIZERS: Edits = (
    (
        "            _load(item, stored, path)\n",
        "            _ = isinstance(item, Optimizer) or _load(item, stored, path)\n",
    ),
)
ONE_MORE_VALUE: Edits = (
    (
        '            "python": random.getstate(),\n',
        '            "python": random.getstate(),\n            "unknown": 0,\n',
    ),
)

SAVING = (
    Mutant(
        name="no sync of a file",
        breaks="a checkpoint's files are not synced before the rename",
        file="base/files.py",
        edits=NO_FILE_SYNC,
        trial="order",
        rows=("P2 order of the system calls",),
    ),
    Mutant(
        name="no sync of the folder",
        breaks="the folder is not synced after a checkpoint is renamed",
        file="checkpoint/files.py",
        edits=(("    old.rename(new)\n    sync_folder(new.parent)\n", "    old.rename(new)\n"),),
        trial="order",
        rows=("P2 order of the system calls",),
    ),
    Mutant(
        name="named before written",
        breaks="a checkpoint is renamed before its files are written",
        file="checkpoint/store.py",
        edits=(
            (
                (
                    "            draft.write(temporary, threads=threads or HASH_THREADS)\n"
                    '            self.abandon_later(step, f"the run went back and saved step {step}")\n'
                    "            final = self._fresh_name(step)\n            rename_synced(temporary, final)\n"
                ),
                (
                    '            self.abandon_later(step, f"the run went back and saved step {step}")\n'
                    "            final = self._fresh_name(step)\n"
                    "            rename_synced(temporary, final)\n"
                    "            draft.write(final, threads=threads or HASH_THREADS)\n"
                ),
            ),
        ),
        trial="order",
        rows=("P2 order of the system calls",),
    ),
    Mutant(
        name="nothing is synced",
        breaks="neither files nor folders are synced",
        file="base/files.py",
        edits=(*NO_FILE_SYNC, *NO_FOLDER_SYNC),
        trial="power",
        rows=("P2 power cut", "P2 cuts at random times"),
    ),
    Mutant(
        name="older deleted first",
        breaks="older checkpoints are deleted before the new one is written",
        file="checkpoint/store.py",
        edits=OLDER_FIRST,
        trial="kills",
        rows=("P1 kill -9 in a loop of saves", "P1 kill -9 of a whole run", "P1 the same with 20 MB"),
    ),
    Mutant(
        name="older deleted first, call by call",
        breaks="older checkpoints are deleted before the new one is written",
        file="checkpoint/store.py",
        edits=OLDER_FIRST,
        trial="calls",
        rows=("P1 kill -9 at every", "P7 EIO"),
    ),
    Mutant(
        name="acknowledged too early",
        breaks="a checkpoint is acknowledged before it is written",
        file="run/saving.py",
        edits=(
            (
                "            path = self._checkpoints.write(draft, threads=spare_threads())\n",
                (
                    '            path = self._checkpoints.folder / f"step_{draft.step:010d}"\n'
                    "            self._outcomes.append(WrittenSave(save=save, path=path, took=0.0))\n"
                    "            time.sleep(0.05)\n"
                    "            self._checkpoints.write(draft, threads=1)\n            return\n"
                ),
            ),
        ),
        trial="kills",
        rows=("P1 kill -9 of a whole run", "P1 the same with 20 MB"),
    ),
    Mutant(
        name="training waits for the save",
        breaks="a step waits until its checkpoint is written",
        file="checkpoint/worker.py",
        edits=(("        self._queue.put(work)\n", "        self._queue.put(work)\n        self.wait()\n"),),
        trial="stall",
        rows=("P5 benchmarks/checkpoint_stall.py",),
    ),
    Mutant(
        name="no reservation",
        breaks="the space of a checkpoint is not reserved before it is written",
        file="checkpoint/files.py",
        edits=(("            os.posix_fallocate(descriptor, 0, size)\n", "            pass\n"),),
        trial="disk",
        rows=("P7 a save bigger than the disk",),
    ),
    Mutant(
        name="a failed save ends the run",
        breaks="a periodic save that meets a full disk ends the run",
        file="run/saving.py",
        edits=(
            (
                "        except (CheckpointError, OSError) as error:\n            self._outcomes.append(FailedSave(",
                "        except ZeroDivisionError as error:\n            self._outcomes.append(FailedSave(",
            ),
        ),
        trial="disk",
        rows=("P7 a run on a disk that is full",),
    ),
    Mutant(
        name="nothing can be set aside",
        breaks="a damaged checkpoint on a read-only disk prevents the fallback",
        file="checkpoint/store.py",
        edits=(
            (
                "        except OSError as error:\n            target = folder\n",
                "        except ZeroDivisionError as error:\n            target = folder\n",
            ),
        ),
        trial="disk",
        rows=("P7 a save to a read-only disk",),
    ),
)
DAMAGE = (
    Mutant(
        name="no hash check",
        breaks="the hashes of arrays are not compared",
        file="checkpoint/folder.py",
        edits=(("    if _sha256(raw) != entry.sha256:\n", "    if not entry.sha256:\n"),),
        trial="damage",
        rows=("P3 flipped bits", "P3 zeroed pages"),
    ),
    Mutant(
        name="no seal check",
        breaks="the hash of the manifest is not compared",
        file="checkpoint/folder.py",
        edits=(("    if read_small(folder / SEAL, 1024) != seal(text):\n", "    if not text:\n"),),
        trial="damage",
        rows=("P3 flipped bits", "P3 truncations"),
    ),
    Mutant(
        name="a silent fallback",
        breaks="the skipped checkpoint is not reported",
        file="checkpoint/store.py",
        edits=(
            (
                "            fell_back = tuple(self._set_aside(path, reason) for path, reason in damaged.items())\n",
                (
                    "            fell_back = tuple(self._set_aside(path, reason) for path, reason in damaged.items())"
                    "[:0]\n"
                ),
            ),
        ),
        trial="damage",
        rows=("P3 flipped bits", "P3 truncations", "P3 zeroed pages"),
    ),
)
RESUMING = (
    Mutant(
        name="torch's generator is not restored",
        breaks="torch's random state is not restored",
        file="checkpoint/random_state.py",
        edits=NO_TORCH_STATE,
        trial="states",
        rows=("P4 kinds of state",),
    ),
    Mutant(
        name="torch's generator is not restored, splats",
        breaks="torch's random state is not restored",
        file="checkpoint/random_state.py",
        edits=NO_TORCH_STATE,
        trial="resume splats",
        rows=("P4 splats fp32, in memory: stopped and resumed",),
    ),
    Mutant(
        name="numpy's generator is not restored",
        breaks="numpy's random state is not restored",
        file="checkpoint/random_state.py",
        edits=(('        np.random.set_state(state_dict["numpy"])', "        np.random.get_state()"),),
        trial="states",
        rows=("P4 kinds of state",),
    ),
    Mutant(
        name="python's generator is not restored",
        breaks="python's random state is not restored",
        file="checkpoint/random_state.py",
        edits=(('        random.setstate(state_dict["python"])\n', ""),),
        trial="states",
        rows=("P4 kinds of state",),
    ),
    Mutant(
        name="named generators are skipped",
        breaks="named generators are not restored",
        file="checkpoint/random_state.py",
        edits=(("            _set_state(name, generator, stored[name])\n", "            _state_of(generator)\n"),),
        trial="states",
        rows=("P4 kinds of state",),
    ),
    Mutant(
        name="the position in the data is not restored",
        breaks="a resumed run restarts its epoch",
        file="checkpoint/shuffled.py",
        edits=(('        self._cursor = state_dict["cursor"]\n        self._epoch = state_dict["epoch"]\n', ""),),
        trial="resume video streams",
        rows=("P4 video fp32, one thread decodes: stopped and resumed",),
    ),
    Mutant(
        name="the order of the data is not restored",
        breaks="a resumed run draws a new order for its epoch",
        file="checkpoint/shuffled.py",
        edits=(('        self._order = state_dict["order"].clone()\n', ""),),
        trial="resume splats streams",
        rows=("P4 splats fp32, one thread decodes: stopped and resumed",),
    ),
    Mutant(
        name="optimizers are not restored",
        breaks="an optimizer's moments are not restored",
        file="checkpoint/items.py",
        edits=NO_OPTIMIZERS,
        trial="resume video",
        rows=("P4 video fp32, in memory: stopped and resumed",),
    ),
    Mutant(
        name="optimizers are not restored, AMP",
        breaks="an optimizer's moments are not restored",
        file="checkpoint/items.py",
        edits=NO_OPTIMIZERS,
        trial="resume video AMP",
        rows=("P4 video AMP, in memory: stopped and resumed",),
    ),
    Mutant(
        name="optimizers are not restored, normals",
        breaks="an optimizer's moments are not restored",
        file="checkpoint/items.py",
        edits=NO_OPTIMIZERS,
        trial="resume normals",
        rows=("P4 normals fp32: stopped and resumed",),
    ),
    Mutant(
        name="tensors are not copied back",
        breaks="plain tensors are not restored",
        file="checkpoint/items.py",
        edits=(("                item.copy_(stored)\n", "                stored.shape\n"),),
        trial="states",
        rows=("P4 kinds of state",),
    ),
    Mutant(
        name="a value that nobody looks at",
        breaks="checkpoints contain a value without a control or a reason",
        file="checkpoint/random_state.py",
        edits=ONE_MORE_VALUE,
        trial="resume splats",
        rows=("P4 splats fp32, in memory, values with",),
    ),
    Mutant(
        name="a value that nobody looks at, video",
        breaks="checkpoints contain a value without a control or a reason",
        file="checkpoint/random_state.py",
        edits=ONE_MORE_VALUE,
        trial="resume video",
        rows=("P4 video fp32, in memory, values with",),
    ),
    Mutant(
        name="a value that nobody looks at, normals",
        breaks="checkpoints contain a value without a control or a reason",
        file="checkpoint/random_state.py",
        edits=ONE_MORE_VALUE,
        trial="resume normals",
        rows=("P4 normals fp32, values with",),
    ),
    Mutant(
        name="a generator that nothing draws from",
        breaks="the order of the data no longer comes from the saved generator, so its control proves nothing",
        file="checkpoint/shuffled.py",
        edits=(
            (
                "        return torch.randperm(self.length, generator=self._generator)\n",
                "        return torch.randperm(self.length, generator=torch.Generator().manual_seed(self._epoch))\n",
            ),
        ),
        trial="resume splats",
        rows=("P4 splats fp32, in memory: resumed without one part of its state",),
    ),
)
GUARDING = (
    Mutant(
        name="a bad update is applied",
        breaks="the guard steps the optimizer although the update was refused",
        file="guard/update.py",
        edits=(
            (
                "    if not bool(refused):\n        optimizer.step()\n",
                "    if bool(refused) or not bool(refused):\n        optimizer.step()\n",
            ),
        ),
        trial="injections",
        rows=("P8 step 1", "P8 mid", "P8 last", "P8 50 in a row"),
    ),
    Mutant(
        name="a bad update is applied, optimizers",
        breaks="the guard steps the optimizer although the update was refused",
        file="guard/update.py",
        edits=(
            (
                "    if not bool(refused):\n        optimizer.step()\n",
                "    if bool(refused) or not bool(refused):\n        optimizer.step()\n",
            ),
        ),
        trial="optimizers",
        rows=("P8 read on the host",),
    ),
    Mutant(
        name="the old values are not chosen",
        breaks="on a GPU, the new values are always chosen",
        file="guard/update.py",
        edits=(("torch.where(restore, old, container[key])", "torch.where(restore, container[key], container[key])"),),
        trial="optimizers",
        rows=("P8 chosen on the device",),
    ),
    Mutant(
        name="the flag does not reach the optimizer",
        breaks="on a GPU, a fused optimizer does not learn that the update was refused",
        file="guard/update.py",
        edits=(("    optimizer.found_inf = refused", "    optimizer.found_inf = refused * 0"),),
        trial="optimizers",
        rows=("P8 skipped by the optimizer",),
    ),
    Mutant(
        name="rates are not checked",
        breaks="a learning rate that is NaN does not refuse the update",
        file="guard/state.py",
        edits=(("                elif not math.isfinite(value):\n", "                elif value < 0:\n"),),
        trial="injections mid",
        rows=("P8 mid",),
    ),
    Mutant(
        name="refusals are miscounted",
        breaks="every other refusal is not recorded",
        file="guard/refusals.py",
        edits=(
            ("        self._report(event)\n", "        if self.count % 2 == 0:\n            self._report(event)\n"),
        ),
        trial="optimizers",
        rows=("P8 read on the host",),
    ),
    Mutant(
        name="the wrong culprit",
        breaks="a refusal names other groups than those that were not finite",
        file="guard/refusals.py",
        edits=(
            (
                "groups = list(tags.GROUP_NORM.parts(bad))\n",
                "groups = list(tags.GROUP_NORM.parts(set(block.columns) - set(bad)))\n",
            ),
        ),
        trial="injections mid",
        rows=("P8 mid",),
    ),
    Mutant(
        name="spikes are not detected",
        breaks="losses are not checked for spikes",
        file="run/run_record.py",
        edits=(("            self._spikes(block)\n", "            pass\n"),),
        trial="spikes",
        rows=("P9 a loss of 10,000 times its usual value for 12", "P9 a loss of 50 times", "P9 one gradient"),
    ),
    Mutant(
        name="a rollback restores nothing",
        breaks="a rollback does not restore the weights",
        file="checkpoint/store.py",
        edits=(
            (
                "            put_back(present, trees)\n",
                '            put_back(items, contents.items if step == "last" else gather(items))\n',
            ),
        ),
        trial="spikes",
        rows=("P9 a loss of 10,000 times its usual value for 12", "P9 a loss of 50 times", "P9 one gradient"),
    ),
    Mutant(
        name="nothing is skipped",
        breaks="a run repeats the bad updates after a rollback",
        file="run/rollback.py",
        edits=(("first <= step <= last for first, last", "first > last for first, last"),),
        trial="spikes",
        rows=("P9 a loss of 10,000 times its usual value for 12", "P9 a loss of 50 times", "P9 one gradient"),
    ),
    Mutant(
        name="every jump is a divergence",
        breaks="a run rolls back after a single high loss",
        file="guard/spikes.py",
        edits=(
            ("            if self._high_count == self._options.patience:\n", "            if self._high_count == 1:\n"),
        ),
        trial="spikes",
        rows=("P9 a loss of 10,000 times its usual value for 3",),
    ),
    Mutant(
        name="every loss is high",
        breaks="every finite loss counts as high",
        file="guard/spikes.py",
        edits=(("(ratio > self._options.factor)", "(ratio > -1.0)"),),
        trial="spikes",
        rows=("P9 a loss of 3 times",),
    ),
    Mutant(
        name="moments are not watched",
        breaks="a non-finite state is not detected",
        file="guard/spikes.py",
        edits=(("        self._read_state(block)\n", ""),),
        trial="injections mid",
        rows=("P8 mid",),
    ),
)
STOPPING = (
    Mutant(
        name="stop points ignore signals",
        breaks="a stop point ignores an overdue signal",
        file="run/stopping.py",
        edits=(
            (
                "        if self._request.received and self._request.overdue:\n",
                "        if self._request.received and not self._request.overdue and self._request.overdue:\n",
            ),
        ),
        trial="signals",
        rows=("P10 signals in an evaluation", "P10 signals in the products"),
    ),
    Mutant(
        name="a signal saves nothing",
        breaks="a run that is ended by a signal does not save",
        file="run/session.py",
        edits=(
            (
                "        self.finish_saving()\n        self.stop_point.end(signal)\n",
                "        self.stop_point.end(signal)\n",
            ),
        ),
        trial="signals",
        rows=("P10 signals in training", "P10 signals in a save"),
    ),
    Mutant(
        name="waits are not abandoned",
        breaks="a wait for data ignores an overdue signal",
        file="run/stopping.py",
        edits=(
            (
                "                with self._stop_point.waiting():\n                    item = next(iterator)\n",
                "                item = next(iterator)\n",
            ),
        ),
        trial="signals",
        rows=("P10 signals in a wait for data",),
    ),
    Mutant(
        name="the wrong exit code",
        breaks="a run that was stopped exits with 1",
        file="run/stopping.py",
        edits=(("        raise Interrupted(request.exit_code)\n", "        raise Interrupted(1)\n"),),
        trial="signals",
        rows=(
            "P10 signals in training",
            "P10 signals in a save",
            "P10 signals in an evaluation",
            "P10 signals in the products",
        ),
    ),
    Mutant(
        name="signals are handled late",
        breaks="signals end the process at once until the first step",
        file="run/session.py",
        edits=(
            ("        resources.enter_context(self.stop_point)\n", ""),
            (
                "        self._began = True\n        if self.stop_point.signal:\n",
                (
                    "        self._resources.enter_context(self.stop_point)\n"
                    "        self._began = True\n        if self.stop_point.signal:\n"
                ),
            ),
        ),
        trial="signals",
        rows=("P10 signals in warm-up",),
    ),
    Mutant(
        name="nohup has no effect",
        breaks="a run under nohup ends when its terminal is closed",
        file="checkpoint/signals.py",
        edits=(("is signal.SIG_IGN:\n", "is None:\n"),),
        trial="signals",
        rows=("P10 SIGHUP to a run under nohup",),
    ),
    Mutant(
        name="a second ctrl-C waits",
        breaks="a second ctrl-C does not end the run at once",
        file="checkpoint/signals.py",
        edits=(("                raise KeyboardInterrupt\n", "                pass\n"),),
        trial="signals",
        rows=("P10 ctrl-C twice",),
    ),
    Mutant(
        name="workers ignore SIGTERM",
        breaks="a forked worker ignores SIGTERM",
        file="checkpoint/signals.py",
        edits=(
            (
                "    if number == signal.SIGTERM:\n        signal.signal(number, signal.SIG_DFL)\n",
                "    if number == -1:\n        signal.signal(number, signal.SIG_DFL)\n",
            ),
        ),
        trial="signals",
        rows=("P10 signals to a forked worker",),
    ),
    Mutant(
        name="a signal ends with another code, video",
        breaks="a run that is ended by a signal exits with 1",
        file="run/stopping.py",
        edits=(("        raise Interrupted(request.exit_code)\n", "        raise Interrupted(1)\n"),),
        trial="video signals",
        rows=("P10 signals at any time of a video training",),
    ),
)
DYING = (
    Mutant(
        name="the wrong cause",
        breaks="the supervisor reports a segmentation fault as an abort",
        file="monitor/causes.py",
        edits=(('signal.SIGSEGV: ("segfault",', 'signal.SIGSEGV: ("abort",'),),
        trial="faults",
        rows=("P11 faults planted",),
    ),
    Mutant(
        name="no stacks at a segmentation fault",
        breaks="faulthandler is not enabled",
        file="run/watchdog.py",
        edits=(("            faulthandler.enable(self._stacks)\n", "            faulthandler.is_enabled()\n"),),
        trial="faults",
        rows=("P11 faults planted",),
    ),
    Mutant(
        name="no crash folder",
        breaks="an exception leaves no crash folder",
        file="run/session.py",
        edits=(
            (
                "                    leave_crash(error, ",
                "                    (lambda *_: None)(error, ",
            ),
        ),
        trial="faults",
        rows=("P11 faults planted",),
    ),
    Mutant(
        name="the watchdog never checks",
        breaks="missing heartbeats are not noticed",
        file="run/watchdog.py",
        edits=(
            (
                "            faulthandler.dump_traceback_later(seconds, repeat=True, file=self._stacks, exit=exits)\n",
                "            bool(exits)\n",
            ),
        ),
        trial="hangs",
        rows=("P12 hangs",),
    ),
    Mutant(
        name="the watchdog writes no stacks",
        breaks="a hang ends the process without its stacks",
        file="run/watchdog.py",
        edits=(
            ("repeat=True, file=self._stacks, exit=exits)", 'repeat=True, file=open("/dev/null", "w"), exit=exits)'),
        ),
        trial="hangs",
        rows=("P11 faults planted",),
    ),
    Mutant(
        name="a divergence is repeated",
        breaks="a diverged run is restarted",
        file="monitor/causes.py",
        edits=(('NOT_RETRIED: Final = ("finished", "diverged", ', 'NOT_RETRIED: Final = ("finished", '),),
        trial="faults",
        rows=("P11 faults planted",),
    ),
    Mutant(
        name="restarts without progress are not counted",
        breaks="a crash at every start is restarted three times as often",
        file="monitor/restarts.py",
        edits=(("if self._without_progress >= self._in_a_row:", "if self._without_progress >= 2 * self._in_a_row:"),),
        trial="crash loop",
        rows=("P16 the same crash at every start",),
    ),
)
SHRINKING = (
    Mutant(
        name="parts are not doubled",
        breaks="a step that ran out of memory is repeated in as many parts as before",
        file="run/micro_batches.py",
        edits=(
            (
                "        self.count = min(2 * self.count, self.most)\n",
                "        self.count = min(self.count, self.most)\n",
            ),
        ),
        trial="memory of video",
        rows=("P13 video: training", "P13 video: evaluation"),
    ),
    Mutant(
        name="generators are not put back",
        breaks="a step that ran out of memory is repeated with other random numbers",
        file="run/state_backup.py",
        edits=(('        torch.set_rng_state(state["torch"])\n', ""),),
        trial="memory of splats",
        rows=("P13 splats: training",),
    ),
    Mutant(
        name="what is named is not put back",
        breaks="a step that ran out of memory is repeated without undoing the first attempt",
        file="run/state_backup.py",
        edits=(("            item.load_state_dict(deepcopy(state))\n", "            deepcopy(state)\n"),),
        trial="memory of normals",
        rows=("P13 normals: training",),
    ),
    *(
        Mutant(
            name=f"memory ends an evaluation, {name}",
            breaks="an evaluation that runs out of memory is not repeated",
            file="run/retry.py",
            edits=(
                (
                    "                if advice:\n",
                    '                if advice or micro_batches.name == "evaluation":\n',
                ),
            ),
            trial=f"memory of {name}",
            rows=(f"P13 {name}: evaluation", *(("P13 normals: mesh extraction",) if name == "normals" else ())),
        )
        for name in ("video", "normals", "splats")
    ),
    *(
        Mutant(
            name=f"memory in an evaluation ends training, {name}",
            breaks="an evaluation that always runs out of memory ends the training",
            file="run/evaluation.py",
            edits=(
                (
                    "        return isinstance(error, self._failures) or shortage_of(error) is not None\n",
                    "        return isinstance(error, self._failures) and shortage_of(error) is None\n",
                ),
            ),
            trial=f"memory of {name}",
            rows=(f"P14 {name}: evaluation always out of memory",),
        )
        for name in ("video", "normals", "splats")
    ),
    Mutant(
        name="an evaluation draws",
        breaks="an evaluation changes the random states of the training",
        file="run/state_backup.py",
        edits=(("        self._generators.load_state_dict(self._random)\n", ""),),
        trial="validation",
        rows=("P14 evaluations that draw", "P14 evaluations that raise"),
    ),
    Mutant(
        name="an evaluation leaves its mode",
        breaks="the model stays in the mode of the evaluation",
        file="run/state_backup.py",
        edits=(("            submodule.training = training\n", "            bool(training)\n"),),
        trial="validation",
        rows=("P14 evaluations that draw",),
    ),
    Mutant(
        name="an evaluation changes buffers",
        breaks="an evaluation changes buffers",
        file="run/state_backup.py",
        edits=(("            buffer.copy_(copy)\n", "            copy.shape\n"),),
        trial="validation",
        rows=("P14 evaluations that draw",),
    ),
    Mutant(
        name="a failed evaluation ends the training",
        breaks="an error of an evaluation ends the training",
        file="run/evaluation.py",
        edits=(("        self.failed = True\n", "        self.failed = True\n        return False\n"),),
        trial="validation",
        rows=("P14 evaluations that raise",),
    ),
)
BUDGETS = (
    Mutant(
        name="the stall budget is ignored",
        breaks="the time of snapshots does not limit how often a run saves",
        file="checkpoint/interval.py",
        edits=(("        return self._stall / self.autosave.stall_budget\n", "        return 0.0\n"),),
        trial="intervals",
        rows=("P6 snapshots that take",),
    ),
    Mutant(
        name="the writer's share is ignored",
        breaks="the time of writing does not limit how often a run saves",
        file="checkpoint/interval.py",
        edits=(("self._writing / WRITING_SHARE", "0.0 / WRITING_SHARE"),),
        trial="intervals",
        rows=("P6 a quick disk",),
    ),
    Mutant(
        name="the loss limit is ignored",
        breaks="the work that a kill can cost is not limited",
        file="checkpoint/interval.py",
        edits=(("        latest = max(limit - self._writing, 0.0)", '        latest = float("inf")'),),
        trial="intervals",
        rows=("P6 a loss limit of 1 s, where the budget", "P6 a loss limit of 1 s, where a save was planned"),
    ),
    Mutant(
        name="a conflict is not reported",
        breaks="no event reports that the loss limit and the time budget cannot both hold",
        file="checkpoint/interval.py",
        edits=(
            (
                "        self._conflict_reported = True\n        return {",
                "        self._conflict_reported = True\n        return None and {",
            ),
        ),
        trial="intervals",
        rows=("P6 a loss limit of 1 s, where the budget",),
    ),
    Mutant(
        name="failed saves are retried at once",
        breaks="a failed save is retried at every step",
        file="checkpoint/interval.py",
        edits=(("        self._retry_at = self._clock() + pause\n", "        self._retry_at = self._clock()\n"),),
        trial="intervals",
        rows=("P6 a disk that has no room",),
    ),
)
KEEPING = (
    *(
        Mutant(
            name=f"retention forgets {what}",
            breaks=f"retention does not keep {what}",
            file="checkpoint/retention.py",
            edits=((old, new),),
            trial="retention",
            rows=("P18 random histories",),
        )
        for what, old, new in (
            ("the best", "self.ranked(candidates)[: self.best]", "self.ranked(candidates)[: self.best - 1]"),
            ("every n-th", "if self.every and step % self.every == 0", "if self.every and step % self.every == 1"),
            ("the pinned", "if candidate.pinned)", "if candidate.pinned and candidate.step < 0)"),
            ("the last but one", "{*steps[-self.last :], ", "{*steps[-1:], "),
        )
    ),
    Mutant(
        name="retention deletes nothing",
        breaks="checkpoints that no rule keeps are not deleted",
        file="checkpoint/store.py",
        edits=(("        for path in unwanted:\n", "        for path in unwanted[:0]:\n"),),
        trial="retention",
        rows=("P18 random histories",),
    ),
    Mutant(
        name="stored code is run",
        breaks="a checkpoint may hold pickled objects",
        file="checkpoint/unpack.py",
        edits=(
            (
                "            case form:\n",
                (
                    '            case "pickle":\n                value = __import__("pickle").loads('
                    'base64.b64decode(node["base64"]))\n            case form:\n'
                ),
            ),
        ),
        trial="hostile",
        rows=("P17 checkpoints with pickled code",),
    ),
    Mutant(
        name="a manifest of any size",
        breaks="a manifest of any size is read",
        file="checkpoint/files.py",
        edits=(("        if size > largest:\n", "        if size < 0:\n"),),
        trial="hostile",
        rows=("P17 checkpoints that claim to be huge",),
    ),
    Mutant(
        name="any format is read",
        breaks="a checkpoint of a newer format is read as one of this version",
        file="checkpoint/manifest.py",
        edits=(
            (
                "    if version not in LAYOUTS:\n",
                "    version = min(version, VERSION)\n    if version not in LAYOUTS:\n",
            ),
        ),
        trial="hostile",
        rows=("P17 checkpoints that claim to be huge",),
    ),
    Mutant(
        name="links are followed",
        breaks="a checkpoint's files may be links",
        file="checkpoint/files.py",
        edits=(("os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK", "os.O_RDONLY | os.O_NONBLOCK"),),
        trial="hostile",
        rows=("P17 checkpoints with links",),
    ),
)
LOGS = (
    Mutant(
        name="later rows stay valid",
        breaks="a resumed run does not invalidate the rows that it repeats",
        file="run/run_record.py",
        edits=(("            self._journal.segment(step)\n", ""),),
        trial="histories",
        rows=("P19 journal of a run",),
    ),
    Mutant(
        name="later rows stay valid, kills",
        breaks="a resumed run does not invalidate the rows that it repeats",
        file="run/run_record.py",
        edits=(("            self._journal.segment(step)\n", ""),),
        trial="kills",
        rows=("P19 journal after",),
    ),
    Mutant(
        name="later events stay valid",
        breaks="a resumed run does not invalidate the events that it repeats",
        file="run/run_record.py",
        edits=(("            self._events.segment(step)\n", ""),),
        trial="histories",
        rows=("P19 events of a run",),
    ),
    Mutant(
        name="a torn line is not cut",
        breaks="a resumed run appends to the torn last line",
        file="record/lines.py",
        edits=(("            os.ftruncate(self._file.fileno(), self._size)\n", "            self._file.fileno()\n"),),
        trial="histories",
        rows=("P19 journal of a run",),
    ),
    Mutant(
        name="sinks are not rewound",
        breaks="TensorBoard's files keep the repeated steps",
        file="run/sink_group.py",
        edits=(
            (
                "                sink.rewind(self._marks.get(_sink_key(number, sink)))\n",
                "                _sink_key(number, sink)\n",
            ),
        ),
        trial="histories",
        rows=("P19 event files",),
    ),
)
MUTANTS: tuple[Mutant, ...] = (
    *(*SAVING, *DAMAGE, *RESUMING, *BUDGETS, *GUARDING, *STOPPING, *DYING, *SHRINKING),
    *(*KEEPING, *LOGS, *MORE),
)
