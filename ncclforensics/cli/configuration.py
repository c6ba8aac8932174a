"""Find and read the configuration of a site, `ncclforensics.toml`, and load the rules that it names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import typer

from ncclforensics.data.names import printable
from ncclforensics.data.settings import Settings
from ncclforensics.errors import UsageError

NAME = "ncclforensics.toml"
CODE_KEY = "rule_folders"  # names code that is executed
MOST_BYTES = 1 << 20  # of a file; one that a folder of logs brought along may be a link to an endless device
GIVEN_BY_PROGRAM = ("files",)  # fields of the settings that no file sets


def configure(option: Path | None, *, quiet: bool = False) -> Settings:
    """Load the rules of installed packages and of configured folders; return the settings that hold here.

    `option`: the file given with `--config`, which replaces all others. Otherwise the user's file holds, and the
    nearest one upwards from the current folder, whose keys win; unless `quiet`, stderr says that it acts, because a
    folder with logs may bring one along. Such a file never loads code. Raises UsageError.
    """
    from ncclforensics.extensions.installed import is_any_installed

    settings = _settings(option, quiet=quiet)
    folders: list[str] = []
    if (is_installed := is_any_installed()) or settings.rule_folders:
        from ncclforensics.extensions.loading import load_folder, load_installed

        loaded = load_installed() if is_installed else []
        loaded += [load_folder(Path(folder)) for folder in settings.rule_folders]
        folders = [str(extension.folder) for extension in loaded]
    if settings.files:
        from ncclforensics.rules.registry import select_rules

        try:
            select_rules(everything=True, select=settings.select, ignore=settings.ignore)
        except UsageError as error:
            raise UsageError(f"{', '.join(settings.files)}: select or ignore: {error}") from error
    return settings._replace(rule_folders=tuple(folders))


def configured_paths(context: typer.Context, paths: list[str]) -> list[str]:
    """Return the paths of a command, or those of the configuration if none is given. Raises BadParameter."""
    if paths or context.resilient_parsing:  # which is completion
        return paths
    option = context.params.get("config")  # is read before this, if it is given
    configured = list(_settings(Path(option) if option else None, quiet=True).paths)
    if not configured:
        raise typer.BadParameter(f"give one, or set `paths` in {NAME}")
    return configured


def user_file() -> Path:
    """The configuration file of the user, whether it exists or not."""
    return Path(typer.get_app_dir("ncclforensics")) / NAME


def _settings(option: Path | None, *, quiet: bool) -> Settings:
    if option is not None:
        return _merged(Settings(), option, _read(option))
    settings = Settings()
    user = user_file()
    if _is_file(user):
        settings = _merged(settings, user, _read(user))
    nearest = _nearest_file()
    if nearest is None or (_is_file(user) and nearest.samefile(user)):
        return settings
    keys = _read(nearest)
    if keys.pop(CODE_KEY, None) is not None:
        typer.echo(
            printable(
                f"{nearest}: {CODE_KEY} is ignored, because a folder with logs may bring such a file along; "
                f"set it in {user}, or give --config {nearest}"
            ),
            err=True,
        )
    if not quiet and keys:
        typer.echo(printable(f"settings of {nearest} hold: {', '.join(keys)}"), err=True)
    return _merged(settings, nearest, keys)


def _nearest_file() -> Path | None:
    """The configuration file in the current folder, or in the nearest folder above it."""
    try:
        here = Path.cwd()
    except FileNotFoundError:  # the current folder was removed
        return None
    return next((folder / NAME for folder in (here, *here.parents) if _is_file(folder / NAME)), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # in a folder that may not be read
        return False


def _read(path: Path) -> dict[str, Any]:
    """Return the keys of a configuration file, with checked values. Raises UsageError, OSError."""
    import tomllib

    with open(path, "rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise UsageError(f"{path}: is larger than {MOST_BYTES >> 20} MiB")
    try:
        table = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error
    except RecursionError as error:
        raise UsageError(f"{path}: is nested too deeply") from error
    return _checked(table, Settings, str(path))


def _checked(table: Mapping[str, Any], kind: type, place: str) -> dict[str, Any]:
    """Return the values of a table as the fields of a class want them. Raises UsageError, with file and key."""
    types = {name: hint for name, hint in get_type_hints(kind).items() if name not in GIVEN_BY_PROGRAM}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in types:
            from difflib import get_close_matches

            similar = get_close_matches(key, types, n=1)
            hint = f"; perhaps {similar[0]} is meant" if similar else f"; there are {', '.join(types)}"
            raise UsageError(f"{place}: unknown key {key}{hint}")
        values[key] = _value(value, types[key], f"{place}: {key}")
    return values


def _value(value: Any, kind: Any, place: str) -> Any:
    if hasattr(kind, "_fields"):
        if not isinstance(value, dict):
            raise UsageError(f"{place} is a table: [{place.rpartition(' ')[2]}]")
        return _checked(value, kind, place)
    if get_origin(kind) is Mapping:
        if not isinstance(value, dict):
            raise UsageError(f"{place} is a table: [{place.rpartition(' ')[2]}]")
        return {name: _value(texts, get_args(kind)[1], f"{place}: {name}") for name, texts in value.items()}
    if str in get_args(kind):
        if not isinstance(value, list) or not all(map(_is_text, value)):
            raise UsageError(f"{place} is a list of texts")
        return tuple(value)
    is_whole = int in get_args(kind)
    if isinstance(value, bool) or not isinstance(value, int if is_whole else (int, float)) or not 0 < value < 1e9:
        raise UsageError(f"{place} is a {'whole ' * is_whole}number above 0")
    return value if is_whole else float(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != "" and "\0" not in value


def _merged(settings: Settings, path: Path, keys: Mapping[str, Any]) -> Settings:
    """Return the settings with those of a file in place of what they hold of the same keys."""
    if not keys:
        return settings
    values = dict(keys)
    for name in Settings._fields:
        if isinstance(value := values.get(name), dict):
            earlier = getattr(settings, name)
            values[name] = {**earlier, **value} if isinstance(earlier, Mapping) else earlier._replace(**value)
    for key in {CODE_KEY, "paths"} & set(values):
        values[key] = tuple(_relative_to(path.parent, text) for text in values[key])
    return settings._replace(**values, files=(*settings.files, str(path)))


def _relative_to(folder: Path, path: str) -> str:
    """A path of a configuration file, seen from its folder; URLs stay as they are."""
    from ncclforensics.inputs.remote import is_remote

    try:
        return path if is_remote(path) else str(folder / Path(path).expanduser())
    except RuntimeError as error:  # `~` and the name of a user who is unknown
        raise UsageError(f"{path}: {error}") from error
