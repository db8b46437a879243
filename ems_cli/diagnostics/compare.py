"""Whether two processes name the same prefix alike: field by field, in words."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from ems.layout.key import Namespace, digest, key_prefix
from ems_cli.diagnostics.process_figures import process_figures
from ems_cli.diagnostics.saved import Document
from ems_cli.diagnostics.shape import layers_text
from ems_cli.diagnostics.typed import of_this_version

What = Literal["hash", "namespace"]

_MEANING: Final = {
    "access_id": "entries of another tenant are never found",
    "model_id": "entries of another model are never found",
    "llm_engine": "entries of another inference engine are never found",
    "tp_world_size": "the heads are split otherwise, so that an entry holds other bytes",
    "rank_in_tp_group": "each TP rank has its own heads, and finds only its own entries",
    "pp_world_size": "the layers are split otherwise, so that an entry holds other layers",
    "rank_in_pp_group": "each stage has its own layers, and finds only its own entries",
    "layer groups": "an entry holds the layers of one group",
    "layers": "the entries hold other layers",
    "tokens in a block": "the blocks of the cache have another size",
    "planes": "the bytes of an entry mean something else",
    "fingerprint": "the bytes of an entry mean something else",
    "bytes per token": "the entries have other sizes",
}
_UNKNOWN: Final = "?"


@dataclass(frozen=True, slots=True)
class Field:
    """One thing that is part of a key."""

    name: str
    first: str
    second: str
    same: bool | None
    """None where one of the files does not say."""
    meaning: str
    """What follows where it differs."""


@dataclass(frozen=True, slots=True)
class CompareReport:
    """Everything `ems-cli inspect hash` and `namespace` find."""

    what: What
    first: str
    second: str
    same: bool | None
    """Whether both name the same prefix alike; None where the files do not tell."""
    difference: str | None
    """The first field that differs, in words."""
    fields: tuple[Field, ...]
    first_keys: tuple[str, ...]
    """How the keys of each layer group begin; empty where the file does not tell."""
    second_keys: tuple[str, ...]
    warnings: tuple[str, ...]


def compare(what: What, first: Document, second: Document) -> CompareReport:
    """Return what is alike in two descriptions, and what is not.

    Raises:
        BadInput: one of them lacks what this version writes.
    """
    facts, keys = [], []
    for each in (first, second):
        with of_this_version(each.name, option="FILE"):
            _check_process(each)
            facts.append(_facts(what, each))
            keys.append(_keys(each) if what == "hash" else ())
    fields = tuple(_fields(*facts))
    verdicts = [field.same for field in fields]
    differing = next((field for field in fields if field.same is False), None)
    difference = None
    if differing is not None:
        difference = (
            f"{differing.name} differs, {differing.first} and {differing.second}: "
            f"{differing.meaning}"
        )
    return CompareReport(
        what,
        first.name,
        second.name,
        False if differing else None if None in verdicts else True,
        difference,
        fields,
        keys[0],
        keys[1],
        tuple(_warnings(first, second)),
    )


def _fields(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Field]:
    names = dict.fromkeys([*first, *second])
    for name in names:
        one, other = (facts.get(name, _UNKNOWN) for facts in (first, second))
        same = None if _UNKNOWN in (one, other) else one == other
        meaning = _MEANING.get(name.partition(": ")[2] or name, "")
        yield Field(name, _shown(one), _shown(other), same, meaning)


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)


def _check_process(document: Document) -> None:
    """Raise one of `UNREADABLE` if a process is not described as by this version."""
    if document.kind == "process":
        process_figures(document.content, file=Path(document.name), state="saved", now=0.0)


def _facts(what: What, document: Document) -> dict[str, Any]:
    if document.kind == "process":
        namespace = asdict(Namespace(**document.content["namespace"]))
        return namespace | (_layout(document.content) if what == "hash" else {})
    return _facts_of_registration(what, document.content)


def _layout(content: Mapping[str, Any]) -> dict[str, Any]:
    registration = content["registration"]
    if registration is None:
        return {"layer groups": _UNKNOWN}
    groups = registration["groups"]
    facts: dict[str, Any] = {"layer groups": len(groups)}
    for group in groups:
        where = "" if len(groups) == 1 else f"group {group['index']}: "
        members = set(group["layer_ids"])
        planes = [plane for plane in registration["planes"] if plane["layer"] in members]
        facts[f"{where}layers"] = layers_text(members)
        facts[f"{where}tokens in a block"] = group["block_size"]
        facts[f"{where}planes"] = _planes(planes)
        facts[f"{where}bytes per token"] = group["token_nbytes"]
        facts[f"{where}fingerprint"] = group["fingerprint"]
    return facts


def _planes(planes: list[Mapping[str, Any]]) -> str:
    """Return looks of planes with the layers that have them: "2 × 8 × 128 float16 (layers 0-3)"."""
    by_layer: dict[int, list[str]] = {}
    for plane in planes:
        look = f"{plane['heads']} × {plane['head_size']} {plane['dtype']}"
        by_layer.setdefault(plane["layer"], []).append(look)
    alike: dict[tuple[str, ...], list[int]] = {}
    for layer, looks in by_layer.items():
        alike.setdefault(tuple(looks), []).append(layer)
    return "; ".join(
        f"{' + '.join(looks)} (layers {layers_text(layers)})" for looks, layers in alike.items()
    )


def _facts_of_registration(what: What, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a report of `register` says; its names are made up, so they are not told."""
    names = [*Namespace.__dataclass_fields__]
    facts: dict[str, Any] = dict.fromkeys(names, _UNKNOWN)
    shape = content["devices"][0]["shape"]
    parallel = shape["parallel"]
    shared = shape["kvcache_type"] == "MLA"
    facts["tp_world_size"] = None if shared else parallel["tp"]
    facts["rank_in_tp_group"] = None if shared else shape["tp_rank"]
    facts["pp_world_size"] = parallel["pp"]
    facts["rank_in_pp_group"] = shape["pp_rank"]
    if what == "hash":
        facts["tokens in a block"] = shape["block_size"]
        facts["bytes per token"] = shape["token_nbytes"]
        facts["fingerprint"] = _UNKNOWN
    return facts


def _keys(document: Document) -> tuple[str, ...]:
    content = document.content
    if document.kind != "process" or content["registration"] is None:
        return ()
    namespace = Namespace(**content["namespace"])
    return tuple(
        key_prefix(namespace, group["index"], group["fingerprint"])
        for group in content["registration"]["groups"]
    )


def _warnings(first: Document, second: Document) -> Iterator[str]:
    processes = [one for one in (first, second) if one.kind == "process"]
    yield from _seed_warnings(processes)
    for one in processes:
        if one.content.get("namespace_digest") != digest(one.content["namespace"]):
            yield f"{one.name}: its namespace_digest is not that of its namespace; was it edited?"
    if len(processes) < len((first, second)):
        yield "a report of register has neither model_id nor fingerprint: only part is compared"
        return
    urls = [one.content.get("pool_url") or "memory://" for one in processes]
    if any(url.startswith("memory://") for url in urls):
        yield "memory:// is a pool inside each process: equal keys are not enough to meet there"
    elif urls[0] != urls[1]:
        yield f"the pools differ, {urls[0]} and {urls[1]}"
    versions = [(one.content.get("packages") or {}).get("ems") for one in processes]
    if versions[0] != versions[1]:
        yield f"the versions of ems differ, {versions[0]} and {versions[1]}"


def _seed_warnings(processes: list[Document]) -> Iterator[str]:
    seeds = {one.name: one.content.get("python_hash_seed") for one in processes}
    unset = [name for name, seed in seeds.items() if seed in (None, "", "random")]
    if unset:
        yield (
            f"PYTHONHASHSEED is not set in {' and '.join(unset)}: hashes made by Python's hash() "
            "differ in every process; PYTHONHASHSEED=0 on all nodes makes them alike"
        )
    elif len(set(seeds.values())) > 1:
        yield f"PYTHONHASHSEED differs, {' and '.join(map(str, seeds.values()))}"
