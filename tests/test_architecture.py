"""The layers and the sizes of modules, kept by looking."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import ems

ROOT = Path(ems.__file__).parent.parent
SOURCES = sorted(
    path.relative_to(ROOT).as_posix()
    for package in ("ems", "ems_cli")
    for path in (ROOT / package).rglob("*.py")
)
LONGEST = 300


def test_every_import_contract_is_kept():
    # in a process of its own: it disables the loggers that there are
    code = "from importlinter.cli import lint_imports as run; raise SystemExit(run(no_cache=True))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("source", SOURCES)
def test_a_module_has_one_reason_to_exist_and_fits_on_a_few_screens(source):
    assert len((ROOT / source).read_text().splitlines()) <= LONGEST


@pytest.mark.parametrize("source", SOURCES)
def test_what_a_module_offers_is_sorted_and_there(source):
    names = _offered(ast.parse((ROOT / source).read_text()))
    if names is None:
        return
    assert names == sorted(names, key=_constants_classes_others)
    module = import_module(source.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    assert [name for name in names if not hasattr(module, name)] == []


def _constants_classes_others(name):
    return (not name.isupper(), not name[0].isupper(), name)


def _offered(tree):
    """Return the literal `__all__` of a module, or None."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__all__" for target in statement.targets
        ):
            return ast.literal_eval(statement.value)
    return None
