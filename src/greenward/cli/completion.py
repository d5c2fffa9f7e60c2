"""Completion in shells: what a recipe and an override may be, and the scripts that ask for it.

The scripts differ from click's in these ways. Files are offered beside names in bash, and not in their place.
Bash takes `=` as the end of a word; the line as it was typed is read here. No space follows `key=`.
"""

from __future__ import annotations

import os

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ZshComplete,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from greenward.common.terminal import echo

_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' kind value reply files=0
    reply=$(COMP_TYPED="${COMP_LINE:0:COMP_POINT}" COMP_PART="$2" %(complete_var)s=bash_complete "$1")
    COMPREPLY=()
    for value in $reply; do
        kind=${value%%%%,*} value=${value#*,}
        if [[ $kind == plain ]]; then
            COMPREPLY+=("$value")
        else
            files=1
            COMPREPLY+=($(compgen -A "${kind/dir/directory}" -- "$2"))
        fi
    done
    if (( files )); then
        compopt -o filenames
    elif [[ ${COMPREPLY[*]} == *= ]]; then
        compopt -o nospace
    fi
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

_ZSH = """\
#compdef %(prog_name)s
%(complete_func)s() {
    local -a reply keys described
    local kind value about
    (( $+commands[%(prog_name)s] )) || return 1
    reply=("${(@f)$(COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1)) \\
        %(complete_var)s=zsh_complete %(prog_name)s)}")
    for kind value about in "${reply[@]}"; do
        if [[ $kind != plain ]]; then
            continue
        elif [[ $value == *= ]]; then
            keys+=("$value${about:+:$about}")
        else
            described+=("$value${about:+:$about}")
        fi
    done
    (( $#keys )) && _describe -V key keys -S ''
    (( $#described )) && _describe -V value described
    if (( $reply[(Ie)file] )); then
        compset -P '*='
        _files
    elif (( $reply[(Ie)dir] )); then
        compset -P '*='
        _files -/
    fi
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
    compdef %(complete_func)s %(prog_name)s
fi
"""

_FISH = """\
function %(complete_func)s
    set -l typed (commandline -ct)
    set -l begun (string match -r '^.*=' -- $typed)
    for line in (COMP_WORDS=(commandline -cp) COMP_CWORD=$typed %(complete_var)s=fish_complete %(prog_name)s)
        set -l found (string split -m 1 , -- $line)
        switch $found[1]
            case plain
                echo $found[2]
            case file
                for path in (__fish_complete_path (string replace -r '^.*=' '' -- $typed))
                    echo "$begun$path"
                end
            case dir
                for path in (__fish_complete_directories (string replace -r '^.*=' '' -- $typed))
                    echo "$begun$path"
                end
        end
    end
end
complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


class _Bash(BashComplete):
    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        typed = os.environ["COMP_TYPED"]
        words = split_arg_string(typed)
        incomplete = words.pop() if len(words) > 1 and not typed[-1:].isspace() else ""
        self.begun = incomplete.removesuffix(os.environ["COMP_PART"])
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem[str]) -> str:
        return f"{item.type},{item.value.removeprefix(self.begun)}"  # bash keeps what it took for other words


class _Zsh(ZshComplete):
    source_template = _ZSH

    def format_completion(self, item: CompletionItem[str]) -> str:
        value = item.value.replace("\\", "\\\\").replace(":", "\\:")
        return f"{item.type}\n{value}\n{item.help or ''}"


class _Fish(FishComplete):
    source_template = _FISH


for _shell in (_Bash, _Zsh, _Fish):
    add_completion_class(_shell)


def complete_recipe(
    _context: click.Context, _parameter: click.Parameter, typed: str
) -> list[CompletionItem[str]]:
    """The shipped recipes, and files."""
    from greenward.config.loading import about_recipe, shipped_recipes

    found = {name: file for name, file in shipped_recipes().items() if name.startswith(typed)}
    names = [CompletionItem(name, help=about_recipe(file)) for name, file in found.items()]
    return [*names, CompletionItem(typed, type="file")]


def complete_override(
    context: click.Context, _parameter: click.Parameter, typed: str
) -> list[CompletionItem[str]]:
    """The keys of the recipe that was named before, and after `=` the values of the key, or files."""
    from greenward.config.completion import keys_of_override, values_of_override

    given = context.params.get("recipe"), context.params.get("overrides") or ()
    key, equals, value = typed.partition("=")
    if not equals:
        return [CompletionItem(found, help=about) for found, about in keys_of_override(*given, typed)]
    values = values_of_override(*given, key)
    if values is None:
        return [CompletionItem(typed, type="file")]
    return [CompletionItem(f"{key}={one}") for one in values if one.startswith(value)]


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a completion script for a shell.

    \b
    bash: greenward completion bash >> ~/.bashrc
    zsh:  greenward completion zsh >> ~/.zshrc
    fish: greenward completion fish > ~/.config/fish/completions/greenward.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None  # the choices above are those of this module
    echo(kind(context.find_root().command, {}, "greenward", "_GREENWARD_COMPLETE").source())
