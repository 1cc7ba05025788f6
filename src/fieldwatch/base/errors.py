"""`InputError`, the base class of all errors caused by user input rather than by a bug."""


class InputError(ValueError):
    """Base class for errors about unusable input: a file, a folder, a flag, or a value in one of them.

    Raise it (or a subclass) where input is read, with a message that says what was expected, what was found and what
    to do. The command line prints the message and exits with code 2. Any other exception is a bug and keeps its
    traceback.
    """


class MissingPathError(InputError, FileNotFoundError):
    """A given file or folder is missing; also a FileNotFoundError."""


class ExistingPathError(InputError, FileExistsError):
    """A file or folder already exists where output would be written; also a FileExistsError."""


class MissingPackageError(InputError, ImportError):
    """An optional package required by the user's options is not installed; also an ImportError."""
