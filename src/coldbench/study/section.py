"""The form of every mapping in a study file."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Discriminator


class Section(BaseModel):
    """One mapping of a study file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def one_of(*keys: str) -> Discriminator:
    """Tell the variants of a mapping apart by the one key that only they have."""

    def present(value: Any) -> str | None:
        found = [
            key
            for key in keys
            if (key in value if isinstance(value, dict) else hasattr(value, key))
        ]
        return found[0] if len(found) == 1 else None

    return Discriminator(
        present,
        custom_error_type="source",
        custom_error_message=f"needs exactly one of the keys {', '.join(keys)}",
    )
