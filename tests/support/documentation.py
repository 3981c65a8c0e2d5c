"""What the blocks of code in the documentation say: commands, YAML and Python, each held against what there is.

Nothing is executed. What is wrong is said in words; a list of them is empty where nothing is.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import importlib
import inspect
import io
import itertools
import json
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import duckdb
import jsonschema
import yaml
from snakemake.cli import get_argument_parser
from tests.support.paths import CONFIG, REPOSITORY, SCRIPTS, rule_files
from typer import TyperException
from typer.core import TyperGroup
from typer.main import get_group

from kveval.workflow.campaign_source import SITE
from kveval.workflow.command.main import app
from pcp_parquet.tool import options

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
# A table of targets: its first column goes on where the head's command stops.
TABLE = re.compile(
    r"^\| `((?:snakemake|kveval) [^`]*)\.\.\.` .*\n\|[-| :]*\n((?:\|.*\n)+)",
    re.MULTILINE,
)
SPAN = re.compile(r"`((?:snakemake|kveval|bash|python|pcp-parquet) [^`\n]*)`")
# Of other programs only the repository's files among their arguments are looked at: they need a cluster, another host,
# or a reader's files.
OTHER_PROGRAMS = {
    "vllm",
    "[",
    "apptainer",
    "cat",
    "chgrp",
    "chmod",
    "cp",
    "exit",
    "export",
    "git",
    "kubectl",
    "ln",
    "mkdir",
    "oc",
    "openssl",
    "pip",
    "pytest",
    "rsync",
    "source",
    "split",
    "tar",
    "timeout",
}
# What a reader is told to make.
READERS_FILES = {
    "site.yaml",
    "mine.yaml",
    "config/campaigns/mine.yaml",
    "config/campaigns/llm-d-0.4.0.yaml",
}
READERS_FILES |= {
    f"config/traces/{name}.jsonl.gz" for name in ("agents", "coding", "ours", "qwen")
}
COMMANDS = get_group(app).commands
HERE_DOCUMENT = re.compile(r"^([^\n]*)<<'(\w+)'\n.*?^\2$", re.MULTILINE | re.DOTALL)
PATH = re.compile(
    r"(?:benchmarks|config|docs|envs|manifests|profiles|scripts|tests)/[\w./-]+"
)
PLACEHOLDER = re.compile(r"\.\.\.|(?<![A-Za-z0-9])[A-Z][A-Z_]+(?![a-z0-9])")
# Tools whose parsers read the documented words themselves.
PARSERS: dict[str, Callable[..., Any]] = {
    "pcp-parquet": options.parse,
    "pcp_parquet": options.parse,
}


@dataclass(frozen=True)
class Block:
    """A block of code of a page, with the language it is marked as."""

    line: int
    language: str
    text: str


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, and each command in its prose and its tables as a block of its own."""
    result = [
        Block(text.count("\n", 0, at.start()) + 1, at[2], at[3])
        for at in FENCE.finditer(text)
    ]
    prose = FENCE.sub(lambda fenced: "\n" * fenced[0].count("\n"), text)
    for table in TABLE.finditer(prose):
        targets = re.findall(r"^\| `([^`]+)`", table[2], re.MULTILINE)
        result += [
            Block(prose.count("\n", 0, table.start()) + 1, "bash", table[1] + target)
            for target in targets
        ]
    return result + [
        Block(prose.count("\n", 0, at.start()) + 1, "bash", at[1])
        for at in SPAN.finditer(prose)
    ]


def prose(text: str) -> str:
    """A page without its code and the targets of its links, line by line; each word of code is a word of its own."""
    text = FENCE.sub(lambda fenced: "\n" * fenced[0].count("\n"), text)
    text = re.sub(r"^(#+ .*)$", r"\1.", text, flags=re.MULTILINE)
    count = itertools.count()
    return re.sub(
        r"`[^`\n]+`", lambda _: f"code{next(count)}", re.sub(r"\]\([^)]*\)", "]", text)
    )


def wrong_sql(text: str) -> list[str]:
    """What is wrong in SQL, as DuckDB reads it; whether its tables exist is not looked at."""
    try:
        duckdb.extract_statements(text)
    except duckdb.Error as error:
        return [str(error)]
    return []


def wrong_in(text: str) -> list[str]:
    """What is wrong in the blocks of a page, with its lines."""
    aliases: dict[str, list[str]] = {}
    lines = []
    for block in blocks(text):
        match block.language:
            case "bash":
                wrong = [
                    line
                    for words in commands(block.text)
                    for line in _command(words, aliases)
                ]
            case "yaml":
                wrong = wrong_yaml(yaml.safe_load(block.text))
            case "python":
                wrong = wrong_python(block.text)
            case "sql":
                wrong = wrong_sql(block.text)
            case "" if re.search(
                r"^(snakemake|kveval|bash|python|pcp-parquet) ",
                block.text,
                re.MULTILINE,
            ):
                wrong = ["commands in a block without a language"]
            case "" | "snakemake":
                wrong = []
            case other:
                wrong = [f"blocks of {other} are not checked"]
        lines += [f"line {block.line}: {line}" for line in wrong]
    return lines


def commands(text: str) -> Iterator[list[str]]:
    """The simple commands of a script: without comments, assignments before them, and files that they write to."""
    for line in HERE_DOCUMENT.sub(r"\1", text).replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        before = ""
        for token in [*lexer, ";"]:
            if set(token) <= set("();<>|&"):
                if words:
                    yield words
                words, before = [], token
            elif before in (">", ">>"):
                before = ""
            elif words or not re.match(r"[A-Za-z_]+=", token):
                words.append(token)


def _command(words: Sequence[str], aliases: dict[str, list[str]]) -> list[str]:
    program, *arguments = [*aliases.get(words[0], words[:1]), *words[1:]]
    named = [path for word in arguments for path in PATH.findall(word)]
    wrong = [
        f"there is no {path}"
        for path in named
        if not (_free(path) or (REPOSITORY / path).exists())
    ]
    match program, arguments:
        case "alias", [definition]:
            name, _, meaning = definition.partition("=")
            aliases[name] = shlex.split(meaning)
            return wrong + _command([name], aliases)
        case (("snakemake" | "kveval"), _):
            return wrong + (_snakemake if program == "snakemake" else _kveval)(
                arguments
            )
        case "bash", [script, *rest]:
            return wrong + _script(script, rest)
        case ("python", ["-m", name, *rest]) | ("python", [name, *rest]):
            return wrong + _tool(name, rest)
        case "pcp-parquet", _:
            return wrong + _tool(program, arguments)
    return (
        wrong
        if program in OTHER_PROGRAMS
        else [*wrong, f"{program}: a command that is not known here"]
    )


def _free(path: str) -> bool:
    return path in READERS_FILES or PLACEHOLDER.search(path) is not None


def _read(parse: Callable[..., Any], words: Sequence[str]) -> tuple[Any, list[str]]:
    """What a parser of arguments makes of the words, and what it says against them."""
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output):
            return parse(words), []
    except SystemExit:
        return None, [output.getvalue().strip().splitlines()[-1]]


def _snakemake(words: Sequence[str]) -> list[str]:
    parsed, refused = _read(get_argument_parser().parse_args, words)
    if refused:
        return refused
    profiles = [
        *(parsed.profile or []),
        *([parsed.workflow_profile] if parsed.workflow_profile else []),
    ]
    files = [
        *map(str, parsed.configfile),
        *(f"{profile}/config.yaml" for profile in profiles),
    ]
    files += [
        text.removeprefix("site=")
        for text in parsed.config or []
        if text.startswith("site=")
    ]
    wrong = [
        f"there is no {file}"
        for file in files
        if not (_free(file) or (REPOSITORY / file).is_file())
    ]
    keys = {*_schema()["properties"], SITE}
    wrong += [
        f"--config {text}: no such key"
        for text in parsed.config or []
        if text.partition("=")[0] not in keys
    ]
    return wrong + [
        f"nothing makes {name}"
        for name in parsed.targets
        if name != "..." and not _is_made(name)
    ]


def _kveval(arguments: Sequence[str]) -> list[str]:
    """A command of kveval, read by its own parser; one that is named alone or goes on may lack what it requires."""
    # A number is told as N.
    name, *words = ["1" if word == "N" else word for word in arguments]
    if name in ("...", "--help", "--version", "--install-completion"):
        return []
    command = COMMANDS.get(name)
    if command is None:
        return [f"kveval has no command {name}"]
    while isinstance(command, TyperGroup) and words and words[0] in command.commands:
        name, *words = words
        command = command.commands[name]
    goes_on = not words or words[-1] == "..."
    try:
        values = {} if goes_on else command.make_context(name, words).params
    except TyperException as error:
        return [f"kveval {name}: {error.format_message()}"]
    files = [values.get("campaign"), values.get("site")]
    wrong = [
        f"there is no {file}"
        for file in map(str, filter(None, files))
        if not (
            _free(file)
            or (REPOSITORY / file).is_file()
            or (CONFIG / "campaigns" / f"{file}.yaml").is_file()
        )
    ]
    keys = [change.partition("=")[0] for change in values.get("changes") or ()]
    return wrong + [
        f"--set {key}: no such key"
        for key in keys
        if key not in _schema()["properties"]
    ]


def _is_made(target: str) -> bool:
    rules, paths = _targets()
    return target in rules or any(path.fullmatch(target) for path in paths)


@functools.cache
def _targets() -> tuple[list[str], list[re.Pattern[str]]]:
    """The names of the workflow's rules, and patterns of the paths that they make."""
    text = "\n".join(file.read_text(encoding="utf-8") for file in rule_files())
    constants = dict(re.findall(r'^([A-Z_]+) = f"(.*)"', text, re.MULTILINE))
    outputs = "".join(
        lines
        for _, lines in re.findall(
            r"^( *)output:\n((?:\1    .*\n)+)", text, re.MULTILINE
        )
    )
    patterns = []
    for path in re.findall(r'f"([^"]+)"', outputs):
        while named := re.search(r"(?<!\{)\{(?!RESULTS)([A-Z_]+)\}(?!\})", path):
            path = path.replace(named[0], constants[named[1]])  # noqa: PLW2901
        path = re.escape(path.replace("{{so_far}}", ""))  # noqa: PLW2901
        path = path.replace(r"\{RESULTS\}", r"results(?:/campaigns/[\w.-]+)?")  # noqa: PLW2901
        patterns.append(re.compile(re.sub(r"(?:\\\{)+\w+(?:\\\})+", "[^/]+", path)))
    return re.findall(
        r"^ *(?:rule|use rule \w+ as) (\w+)", text, re.MULTILINE
    ), patterns


def _script(name: str, arguments: Sequence[str]) -> list[str]:
    """A script of bash: its usage names the options and words.

    run.sh hands them on to snakemake or kveval, test.sh to pytest.
    """
    if not (REPOSITORY / name).is_file():
        return [f"there is no {name}"]
    if name == "scripts/run.sh":
        return (
            _kveval(arguments)
            if arguments and arguments[0] in COMMANDS
            else _snakemake(arguments)
        )
    if name == "scripts/test.sh":
        return []
    comments = re.findall(
        r"^# (.*)", (REPOSITORY / name).read_text(encoding="utf-8"), re.MULTILINE
    )
    known = set(re.findall(r"[\w-]+", " ".join(comments)))
    words = [
        word
        for word in arguments
        if word.startswith("--")
        or (name == "scripts/setup.sh" and "--from" not in arguments)
    ]
    return [f"{name}: its usage has no {word}" for word in words if word not in known]


def _tool(name: str, words: Sequence[str]) -> list[str]:
    """A program in Python, by file, module or command: its parser reads the words, or its source has the options."""
    if name in PARSERS and words:
        return _read(functools.partial(_parsed_only, PARSERS[name]), words)[1]
    modules = [folder / name.replace(".", "/") for folder in (SCRIPTS, REPOSITORY)]
    files = [
        REPOSITORY / name,
        *(
            place
            for module in modules
            for place in (module.with_suffix(".py"), module / "__main__.py")
        ),
    ]
    source = next(
        (file.read_text(encoding="utf-8") for file in files if file.is_file()), None
    )
    if source is None:
        return [f"there is no {name}"]
    return [
        f"{name} has no {word}"
        for word in words
        if word.startswith("-") and f'"{word}"' not in source
    ]


def _parsed_only(main: Callable[..., Any], words: Sequence[str]) -> None:
    """Let a program read its arguments, and end it there."""

    class Read(BaseException):
        pass

    def parse_args(parser: argparse.ArgumentParser, *args: Any) -> None:
        parser.parse_known_args(*args)[1] and parser.error("unrecognized arguments")
        raise Read

    with (
        mock.patch.object(argparse.ArgumentParser, "parse_args", parse_args),
        contextlib.suppress(Read),
    ):
        main(list(words))


@functools.cache
def _schema() -> dict[str, Any]:
    """The schema of a campaign and of the catalogues, with no key required: blocks are fragments."""
    text = (CONFIG / "schema.json").read_text(encoding="utf-8")
    return json.loads(
        text,
        object_hook=lambda entry: {
            k: v for k, v in entry.items() if k != "required" or isinstance(v, dict)
        },
    )


def wrong_yaml(fragment: Any) -> list[str]:
    """What keeps a fragment from being part of a campaign, a site or a catalogue, at any level."""
    if isinstance(fragment, dict) and "jobs" in fragment:
        # A workflow of GitHub's.
        return []
    schema = _schema()
    places = [
        schema,
        *(
            {"$ref": f"#/$defs/{name}", "$defs": schema["$defs"]}
            for name in schema["$defs"]
        ),
    ]
    errors = [
        list(jsonschema.Draft202012Validator(place).iter_errors(fragment))
        for place in places
    ]
    return (
        []
        if [] in errors
        else [f"{error.json_path}: {error.message}" for error in errors[0]]
    )


def wrong_python(text: str) -> list[str]:
    """Which names that a block imports do not exist, and which calls of them do not fit."""
    tree = ast.parse(text)
    imports = [
        (node.module, name.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    ]
    there = {
        name: getattr(importlib.import_module(str(module)), name, None)
        for module, name in imports
    }
    wrong = [f"there is no {name}" for name, value in there.items() if value is None]
    for call in (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ):
        try:
            inspect.signature(there[call.func.id]).bind(
                *call.args, **{str(keyword.arg): keyword for keyword in call.keywords}
            )
        except (KeyError, TypeError) as error:
            wrong.append(f"{ast.unparse(call)}: {error}")
    return wrong
