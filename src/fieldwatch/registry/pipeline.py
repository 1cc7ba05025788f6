"""`Pipeline`: the object that registers a pipeline with the toolkit."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from fieldwatch.base import missing_package
from fieldwatch.record.config import config_of_run, preset_of_run

Reference = str
"""Reference to code as ``package.module:name``, imported on demand."""

# A name is a word of a command line: no upper case, no underscore, no leading dash.
_NAME = re.compile(r"[a-z][a-z0-9-]*")
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def resolve(reference: Reference) -> Any:
    """Import and return the object that a reference names.

    Raises:
        ImportError: the module does not exist.
        AttributeError: the module has no such name.
        MissingPackageError: it imports a package that an extra of fieldwatch installs.
    """
    module, _, name = reference.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        # A package that lies in `...commands.splats...` asks for the extra of that name, if there is one.
        missing = missing_package(error, preferred=module.split("."))
        if missing is None:
            raise
        raise missing from error


@dataclass(frozen=True, kw_only=True)
class Command:
    """An additional subcommand of ``fieldwatch``.

    Attributes:
        run: reference to ``run(arguments) -> exit code``.
        about: one-line help for ``fieldwatch --help``.
        flags: reference to the dataclass of its flags, or to ``flags(arguments) -> dataclass``. ``--help`` and tab
            completion import this module alone, which should load no torch. If empty, ``--help`` calls ``run``.
        takes_run: whether the first argument is a run folder, so that tab completion suggests run folders.
    """

    run: Reference
    about: str
    flags: Reference = ""
    takes_run: bool = False


@dataclass(frozen=True, kw_only=True)
class DataKind:
    """A kind of data that ``fieldwatch doctor --data PATH`` checks.

    Attributes:
        name: value for ``--kind``.
        title: short description of the data.
        wanted: expected layout of the data, for messages.
        recognize: reference to ``recognize(path) -> int``: 0 for other data, otherwise a score that is higher the more
            specific the match is; the highest score wins. The built-in kinds return 1 for any images, and 2 to 4 for
            folder layouts.
        report: reference to ``report(path, options) -> DataReport``; ``options`` is None if the kind has none.
        options: reference to a dataclass of further flags.
    """

    name: str
    title: str
    wanted: str
    recognize: Reference
    report: Reference
    options: Reference = ""


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """Arguments of ``fieldwatch train NAME`` after a pipeline has translated its alternative flags.

    Attributes:
        arguments: flags as listed by ``fieldwatch train NAME --help``.
        config: config that the flags modify; None for the preset.
        out: default run folder if ``--out`` is not given.
        notes: messages to the user, printed at the start.
    """

    arguments: Sequence[str]
    config: Any = None
    out: Path | None = None
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A pipeline: its name, and references to the code for each command.

    A package provides it through an entry point in the group ``fieldwatch.pipelines`` with the name of the pipeline.
    All commands then support it. Only ``name``, ``about``, ``config`` and ``prepare`` are required.

    Attributes:
        name: argument of ``fieldwatch train``, and ``about["pipeline"]`` of its runs.
        about: one-line help for ``fieldwatch --help``.
        config: frozen dataclass of settings. Each field is a flag, its docstring the help text. The fields ``name``
            (name of the data, for logs) and ``threads`` (number of CPU threads, 0 for torch's default) are required.
        prepare: ``prepare(config) -> Job`` reads and checks the input, and raises `InputError` if it is invalid.
        convert: ``convert(config, folder) -> (config, make) | None`` recognizes input that ``prepare`` cannot read,
            such as a film, but that can be made into data inside the run folder. It returns the config with the path of
            these data, and a function without arguments that writes them; None for any other input.
        presets: mapping from names to functions that return a config; ``default`` is required.
        former_presets: current names of renamed presets by their former names, which ``--preset`` accepts unlisted.
        help: text of ``fieldwatch train NAME --help``; it should contain an example.
        trained_by: command that starts a training if it is not ``fieldwatch train NAME``.
        command_line: ``command_line(arguments) -> CommandLine`` translates alternative flags.
        flags: dataclass of further flags of ``fieldwatch train NAME``, which ``command_line`` reads.
        main_flags: settings that ``fieldwatch train NAME --help`` lists, by the title of their group; ``--help-all``
            lists the others, too. If empty, ``--help`` lists all.
        inputs: flags that name files or folders which must exist.
        longer: flag that extends a training.
        check_resumable: ``check_resumable(folder, config)`` raises `InputError` if this machine cannot continue the
            run.
        evaluate: ``evaluate(request) -> Scores``, for ``fieldwatch eval``.
        evaluate_options: dataclass of further flags of ``fieldwatch eval``.
        exports: formats of a trained model for ``fieldwatch export --to``.
        export: ``export(run_flags, to, out, options) -> exit code`` writes one of these formats.
        export_options: dataclass of further flags of ``fieldwatch export``.
        rank: ``rank(folder, device, options, tell) -> CheckpointRanking``, for ``fieldwatch compare --checkpoints``.
        rank_options: dataclass of further flags of ``fieldwatch compare --checkpoints``.
        rules: health rules for its runs.
        metrics: catalogue of its declared metrics.
        measured: prefixes of the tags of its quality metrics.
        quality: ``quality(metrics) -> table`` for the terminal; by default a table of all metrics.
        population: plural noun for the primitives that the model adds and prunes, such as Gaussians or cells.
        commands: additional subcommands by name.
        data: kinds of data that ``fieldwatch doctor`` checks.
        machine_check: ``machine_check() -> MachineCheck``, for ``fieldwatch doctor``.
        libraries: libraries that ``fieldwatch doctor`` checks: distribution, purpose, install command.
    """

    name: str
    about: str
    config: Reference
    prepare: Reference
    convert: Reference = ""
    presets: Reference = ""
    former_presets: Mapping[str, str] = field(default_factory=dict[str, str])
    help: str = ""
    trained_by: str = ""
    command_line: Reference = ""
    flags: Reference = ""
    main_flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    inputs: tuple[str, ...] = ("data",)
    longer: str = "--steps"
    check_resumable: Reference = ""
    evaluate: Reference = ""
    evaluate_options: Reference = ""
    exports: tuple[str, ...] = ()
    export: Reference = ""
    export_options: Reference = ""
    rank: Reference = ""
    rank_options: Reference = ""
    rules: Reference = "fieldwatch:GENERAL"
    metrics: Reference = ""
    measured: tuple[str, ...] = ("Eval/",)
    quality: Reference = ""
    population: str = "primitives"
    commands: Mapping[str, Command] = field(default_factory=dict[str, Command])
    data: tuple[DataKind, ...] = ()
    machine_check: Reference = ""
    libraries: tuple[tuple[str, str, str], ...] = ()

    def __post_init__(self) -> None:
        """Check the form of names and references.

        Raises:
            ValueError: a name or a reference is malformed.
        """
        # The name is typed on the command line and stored in run.json, so it must need no quoting.
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name {self.name!r}: expected a lower-case word of letters, digits and '-'")
        # Check only the form of references, since importing them would load torch.
        for field_name in _REFERENCES:
            reference = getattr(self, field_name)
            if reference and not _REFERENCE.fullmatch(reference):
                raise ValueError(f"{field_name} {reference!r} of {self.name}: expected 'package.module:name'")

    @property
    def start_command(self) -> str:
        """Command that starts a training."""
        return self.trained_by or f"train {self.name}"

    def load(self, field_name: str) -> Any:
        """Import and return the object that a field refers to; None if the field is empty."""
        reference: Reference = getattr(self, field_name)
        return resolve(reference) if reference else None

    def load_presets(self) -> Mapping[str, Any]:
        """Return the functions that create a config, by name of the preset."""
        # Without presets, the defaults of the config's fields are the only preset.
        return self.load("presets") or {"default": self.load("config")}

    def stored_config(self, folder: Path) -> Any:
        """Return the config that a run was started with.

        Raises:
            NotARun: the folder holds no run, a run of another pipeline, or a damaged run.json.
        """
        return config_of_run(folder, self.name, self.load("config"))

    def stored_preset(self, folder: Path) -> Any:
        """Return the preset that the config of a run was derived from.

        Raises:
            NotARun: as in :meth:`stored_config`.
        """
        return preset_of_run(folder, self.name, self.load("config"))


# Fields with references, whose form `Pipeline` checks.
_REFERENCES = (
    "config", "prepare", "convert", "presets", "command_line", "flags", "check_resumable", "evaluate",
    "evaluate_options", "export", "export_options", "rank", "rank_options", "rules", "metrics", "quality",
    "machine_check",
)  # fmt: skip
