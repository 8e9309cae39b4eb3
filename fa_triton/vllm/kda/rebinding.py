"""Replace functions of modules, now or as soon as the modules are imported.

An engine's plugin runs early, and most processes never load the model whose functions it wants to
replace. So modules are not imported for it: those that are loaded already are changed, others when
their import ends, before their importer takes names from them.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

# What replaces a function, made from the function.
Replacement = Callable[[Callable[..., Any]], Callable[..., Any]]


def rebind_functions(
    module_name: str, replacements: dict[str, Replacement], users: Sequence[str]
) -> None:
    """Replace functions of a module.

    Args:
        module_name: Full name of the module that defines them.
        replacements: By name of the function. Names that the module lacks are skipped: versions
            differ.
        users: Packages whose loaded modules may have taken the functions under their own name; they
            are changed too.

    Notes:
        Idempotent: a module that was rebound, or waits for it, is left alone.
    """
    if module_name in _WATCHER.known:
        return
    _WATCHER.known.add(module_name)
    module = sys.modules.get(module_name)
    if module is None:
        _WATCHER.waiting[module_name] = replacements
        if _WATCHER not in sys.meta_path:
            sys.meta_path.insert(0, _WATCHER)
        return
    for original, new in _replace(module, replacements):
        _replace_in_users(original, new, users)


def _replace(
    module: ModuleType, replacements: dict[str, Replacement]
) -> list[tuple[Callable[..., Any], Callable[..., Any]]]:
    done = []
    for name, replacement in replacements.items():
        original = getattr(module, name, None)
        if original is None:
            continue
        new = replacement(original)
        setattr(module, name, new)
        done.append((original, new))
    return done


def _replace_in_users(
    original: Callable[..., Any], new: Callable[..., Any], users: Sequence[str]
) -> None:
    prefixes = tuple(f"{user}." for user in users)
    for module_name, module in list(sys.modules.items()):
        if not module_name.startswith(prefixes) or not isinstance(module, ModuleType):
            continue
        for name, value in list(vars(module).items()):
            if value is original:
                setattr(module, name, new)


class _Watcher(importlib.abc.MetaPathFinder):
    """Finds the modules that are waited for, with a loader that rebinds after loading."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.waiting: dict[str, dict[str, Replacement]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.waiting:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _RebindingLoader(spec.loader, self.waiting[fullname])
        return spec


class _RebindingLoader(importlib.abc.Loader):
    """Loads as the loader it stands for, then replaces functions and leaves no trace."""

    def __init__(self, loader: importlib.abc.Loader, replacements: dict[str, Replacement]) -> None:
        self.loader = loader
        self.replacements = replacements

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # tools that read sources ask the module for its own loader
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        _replace(module, self.replacements)


_WATCHER = _Watcher()
