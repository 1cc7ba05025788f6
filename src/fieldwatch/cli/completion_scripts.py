"""The scripts that complete the program's words in bash, zsh and fish; they know all flags and start no program.

Names of folders reach the shell's answer as they are, never through an expansion: a name like ``$(date)`` stays a name.
"""

import re
from collections.abc import Collection, Mapping, Sequence

from fieldwatch.cli.completion_table import Flag

SHELLS = ("bash", "zsh", "fish")
Flags = Mapping[str, Sequence[Flag]]

_BASH = r"""# Tab completion of fieldwatch in bash; written by: fieldwatch completion bash
__SHARED__
_fieldwatch_fill() {  # offer those of some words that begin like the present one
  local word
  for word in $1; do [[ $word == "$cur"* ]] && COMPREPLY+=("$word"); done
}

_fieldwatch_places() {  # offer run folders; with "all" also other folders and files
  local found
  for found in "$cur"*/run.json "$cur"*/*/run.json; do
    [[ -e $found ]] && COMPREPLY+=("${found%/run.json}")
  done
  for found in "$cur"*; do
    [[ -e $found/run.json ]] && continue
    [[ -d $found || ( $1 == all && -e $found ) ]] && COMPREPLY+=("$found")
  done
}

_fieldwatch() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command found
  COMPREPLY=()
  if [[ $cur == = ]]; then cur=; elif [[ $prev == = ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi
  cur=${cur//\\/}
  if ((COMP_CWORD == 1)); then
    _fieldwatch_fill "__FIRST__"
    return
  fi
  found=$(_fieldwatch_second "${COMP_WORDS[1]}")
  if [[ -n $found ]] && ((COMP_CWORD == 2)); then
    _fieldwatch_fill "$found"
    return
  fi
  command=${COMP_WORDS[1]}
  if [[ -n $found && $command != completion ]]; then command+=" ${COMP_WORDS[2]}"; fi
  if [[ $cur == -* ]]; then
    _fieldwatch_fill "$(_fieldwatch_flags "$command")"
    return
  fi
  found=$(_fieldwatch_values "$command $prev")
  case $found in
    @path) _fieldwatch_places all ;;
    @value) ;;
    '') if _fieldwatch_takes_runs "$command"; then _fieldwatch_places; else _fieldwatch_places all; fi ;;
    *) _fieldwatch_fill "$found" ;;
  esac
}
complete -o filenames -F _fieldwatch fieldwatch
"""

_ZSH = r"""#compdef fieldwatch
# Tab completion of fieldwatch in zsh; written by: fieldwatch completion zsh
__SHARED__
_fieldwatch_runs() {  # offer run folders, and folders to go on into
  local -a runs
  runs=( "${(Q)words[CURRENT]}"*/run.json(N:h) "${(Q)words[CURRENT]}"*/*/run.json(N:h) )
  (( $#runs )) && compadd -f -- $runs
  _files -/
}

_fieldwatch() {
  local cur=${words[CURRENT]} prev=${words[CURRENT-1]} command found
  if (( CURRENT == 2 )); then
    compadd -- __FIRST__
    return
  fi
  found=$(_fieldwatch_second "$words[2]")
  if [[ -n $found ]] && (( CURRENT == 3 )); then
    compadd -- ${=found}
    return
  fi
  command=$words[2]
  if [[ -n $found && $command != completion ]]; then command+=" $words[3]"; fi
  if [[ $cur == -* ]]; then
    compadd -- ${=$(_fieldwatch_flags "$command")}
    return
  fi
  found=$(_fieldwatch_values "$command $prev")
  case $found in
    @path) _files ;;
    @value) ;;
    '') if _fieldwatch_takes_runs "$command"; then _fieldwatch_runs; else _files; fi ;;
    *) compadd -- ${=found} ;;
  esac
}
if [[ $funcstack[1] == _fieldwatch ]]; then _fieldwatch "$@"; else compdef _fieldwatch fieldwatch; fi
"""

_FISH = r"""# Tab completion of fieldwatch in fish; written by: fieldwatch completion fish
function __fieldwatch_at  # whether the command is this one
    set -l words (commandline -opc)
    set -l last (math (count $argv) + 1)
    test (count $words) -ge $last; and test "$words[2..$last]" = "$argv"
end
function __fieldwatch_first
    test (count (commandline -opc)) -eq 1
end
function __fieldwatch_after
    set -l words (commandline -opc)
    test (count $words) -eq 2; and test "$words[2]" = "$argv[1]"
end
function __fieldwatch_runs  # run folders under what was typed
    set -l typed (commandline -ct)
    for found in $typed*/run.json $typed*/*/run.json
        string replace -r '/run\.json$' '' -- $found
    end
end
"""


def bash_script(flags: Flags, take_runs: Collection[str]) -> str:
    """The script for bash.

    Args:
        flags: by command.
        take_runs: commands whose first word is a run folder.
    """
    return _filled(_BASH, flags, take_runs)


def zsh_script(flags: Flags, take_runs: Collection[str]) -> str:
    """The script for zsh; arguments as of `bash_script`."""
    return _filled(_ZSH, flags, take_runs)


def fish_script(flags: Flags, take_runs: Collection[str]) -> str:
    """The script for fish; arguments as of `bash_script`."""
    lines = [_FISH]
    lines += [f"complete -c fieldwatch -n __fieldwatch_first -f -a '{word}'" for word in _first(flags)]
    for group, words in _second(flags).items():
        lines.append(f"complete -c fieldwatch -n '__fieldwatch_after {group}' -f -a '{' '.join(words)}'")
    for command, command_flags in flags.items():
        at = f"complete -c fieldwatch -n '__fieldwatch_at {command}'"
        if command in take_runs:
            lines.append(f"{at} -a '(__fieldwatch_runs)'")
        lines += [f"{at} {_fish_flag(flag)}" for flag in command_flags if _plain(flag.name)]
    return "\n".join(lines) + "\n"


def _fish_flag(flag: Flag) -> str:
    name = f"-l {flag.name[2:]}" if flag.name.startswith("--") else f"-o {flag.name[1:]}"
    if isinstance(flag.takes, tuple):
        return f"{name} -x -a '{' '.join(word for word in flag.takes if _plain(word))}'"
    return {"nothing": name, "path": f"{name} -r -F", "value": f"{name} -x"}[flag.takes]


def _filled(text: str, flags: Flags, take_runs: Collection[str]) -> str:
    return text.replace("__SHARED__", _shared_functions(flags, take_runs)).replace("__FIRST__", " ".join(_first(flags)))


def _shared_functions(flags: Flags, take_runs: Collection[str]) -> str:
    """What bash and zsh say alike: words for a command, for a flag."""
    second = {group: " ".join(words) for group, words in _second(flags).items()}
    names = {
        command: " ".join(flag.name for flag in command_flags if _plain(flag.name))
        for command, command_flags in flags.items()
    }
    values = {
        f"{command} {flag.name}": _value(flag)
        for command, command_flags in flags.items()
        for flag in command_flags
        if flag.takes != "nothing" and _plain(flag.name)
    }
    runs = "|".join(f"'{command}'" for command in take_runs)
    takes_runs = f"_fieldwatch_takes_runs() {{\n  case $1 in {runs}) return 0 ;; esac\n  return 1\n}}\n"
    return "\n".join([_function("second", second), _function("flags", names), _function("values", values), takes_runs])


def _value(flag: Flag) -> str:
    if isinstance(flag.takes, tuple):
        return " ".join(word for word in flag.takes if _plain(word))
    return f"@{flag.takes}"


def _function(name: str, answers: Mapping[str, str]) -> str:
    """A shell function that answers one word with some; questions with one answer share a line."""
    questions: dict[str, list[str]] = {}
    for question, answer in answers.items():
        questions.setdefault(answer, []).append(f"'{question}'")
    cases = "".join(f"    {'|'.join(group)}) echo '{answer}' ;;\n" for answer, group in questions.items())
    return f"_fieldwatch_{name}() {{\n  case $1 in\n{cases}  esac\n}}\n"


def _first(flags: Flags) -> list[str]:
    return [*dict.fromkeys(command.split()[0] for command in flags)]


def _second(flags: Flags) -> dict[str, tuple[str, ...]]:
    groups: dict[str, tuple[str, ...]] = {}
    for group, _, word in (command.partition(" ") for command in flags):
        if word:
            groups[group] = (*groups.get(group, ()), word)
    return groups | {"completion": SHELLS}


def _plain(word: str) -> bool:
    """Whether a word needs no quoting in any shell."""
    return re.fullmatch(r"[\w.+:-]+", word) is not None
