"""Typed access to the fields of a Hugging Face `config.json`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ems.common.exception import shown
from ems_cli.diagnostics.bad_input import BadInput

_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
_LARGEST = 1 << 31
MOST_LAYERS = 4096


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of the language model, with the file's own beside them.

    A field that is null counts as absent, as it does for transformers.
    """

    source: str
    """The file or name to blame in an error."""
    text: Mapping[str, Any]
    """The language model's fields; of a multimodal model those under `text_config`."""
    whole: Mapping[str, Any]

    @classmethod
    def of(cls, whole: Mapping[str, Any], source: str) -> "Fields":
        """Return the fields of `whole`, found under `text_config` where a model nests them.

        Raises:
            BadInput: the fields have another project's names.
        """
        text = whole
        while nested := _nested_in(text):
            text = nested
        fields = cls(source, text, whole)
        fields._refuse_foreign_names()
        return fields

    def count(self, *names: str) -> int | None:
        """Return the first of `names` that is there, a positive integer.

        Raises:
            BadInput: it is something else.
        """
        for name in names:
            value = self.text.get(name)
            if value is None:
                continue
            if type(value) is not int or not 0 < value < _LARGEST:
                raise self.wrong(name, "is not a positive integer")
            return value
        return None

    def count_or_zero(self, *names: str) -> int:
        """Return the first of `names` that is there, or 0; 0 itself is allowed.

        Raises:
            BadInput: it is something else.
        """
        if all(self.text.get(name) in (None, 0) for name in names):
            return 0
        return self.count(*(name for name in names if self.text.get(name) != 0)) or 0

    def needed(self, name: str) -> int:
        """Return `name`, a positive integer.

        Raises:
            BadInput: it is absent or something else.
        """
        value = self.count(name)
        if value is None:
            raise BadInput(f"{self.source}: the field {name} is missing", option="--model")
        return value

    def layers(self) -> int:
        """Return the number of layers.

        Raises:
            BadInput: it is absent, or no model has so many.
        """
        layers = self.needed("num_hidden_layers")
        if layers > MOST_LAYERS:
            raise self.wrong("num_hidden_layers", f"is more than {MOST_LAYERS}")
        return layers

    def names_per_layer(self, name: str, layers: int) -> tuple[str, ...] | None:
        """Return the list `name` with one word for each of `layers`; None when it is absent.

        Raises:
            BadInput: it is something else.
        """
        value = self.text.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.wrong(name, "is not a list of words")
        if len(value) < layers:
            raise self.wrong(name, f"has {len(value)} entries for {layers} layers")
        if not all(isinstance(word, str) for word in value[:layers]):  # not all of a giant list
            raise self.wrong(name, "is not a list of words")
        return tuple(value[:layers])

    def flag(self, name: str, *, default: bool) -> bool:
        """Return the truth of `name`."""
        value = self.text.get(name)
        return default if value is None else bool(value)

    def word(self, *names: str) -> str | None:
        """Return the first of `names` that is a text, of the language model or else of the file."""
        for fields in (self.text, self.whole):
            for name in names:
                if isinstance(fields.get(name), str):
                    return str(fields[name])
        return None

    def has(self, name: str) -> bool:
        """Whether the language model or the file says something about `name`."""
        return self.text.get(name) is not None or self.whole.get(name) is not None

    def wrong(self, name: str, what: str) -> BadInput:
        """Return the error that the field `name` deserves."""
        value = shown(self.text.get(name))
        return BadInput(f"{self.source}: {name} {what}: {value}", option="--model")

    def _refuse_foreign_names(self) -> None:
        if "num_hidden_layers" in self.text or not {"n_layers", "dim"} & self.text.keys():
            return
        found = ", ".join(name for name in ("n_layers", "n_heads", "dim") if name in self.text)
        owner = (
            "DeepSeek's own inference/configs" if "kv_lora_rank" in self.text else "a params.json"
        )
        raise BadInput(
            f"{self.source} is not a Hugging Face config.json: {found} are the names of {owner}."
            " Give the config.json that lies beside the weights.",
            option="--model",
        )


def _nested_in(fields: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for name in _NESTED:
        nested = fields.get(name)
        if isinstance(nested, Mapping) and nested:
            return nested
    return None
