"""Names, shapes and numbers of parameters of every structure, as in the checkpoints of earlier versions.

    python tests/support/frozen.py

This command adds the structures that have a test file and are not in the list. It never changes entries, because
existing checkpoints contain these names.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "stored"
NAMES = FOLDER / "state_dict_names.json"  # {variant: {name: shape}}; names that all variants share are under COMMON
COUNTS = FOLDER / "parameter_counts.json"  # {variant: number of parameters}
COMMON = "every variant"
COMMAND = "python tests/support/frozen.py"


def read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))


def shapes_by_name(model: Any) -> dict[str, list[int]]:
    """Return the shapes in a state dict by name, without the buffers that only 0.12.2 stores."""
    state = model.state_dict()
    return {key: list(value.shape) for key, value in state.items() if not key.endswith("_float_tensor")}


def text_of_names(names: dict[str, dict[str, list[int]]]) -> str:
    """Return the names as JSON text with one name per line."""
    variants = []
    for variant, shapes in names.items():
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(shape)}" for name, shape in shapes.items())
        inner = f"{{\n{lines}\n }}" if shapes else "{}"
        variants.append(f" {json.dumps(variant, ensure_ascii=False)}: {inner}")
    return "{\n" + ",\n".join(variants) + "\n}\n"


def add() -> list[str]:
    """Add the missing variants; return their labels."""
    from support import models, structures

    names, counts = read(NAMES), read(COUNTS)
    added = []
    for label, (name, options) in structures.variants().items():
        if label in names and label in counts:
            continue
        model = models.build(residual=name, **options)
        shapes = shapes_by_name(model)
        names.setdefault(label, {key: shape for key, shape in shapes.items() if key not in names[COMMON]})
        counts.setdefault(label, models.parameters(model))
        added.append(label)
    NAMES.write_text(text_of_names(names), encoding="utf-8")
    COUNTS.write_text(json.dumps(counts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return added


def main() -> int:
    """Add the missing structures, and print their labels."""
    for folder in (FOLDER.parent, FOLDER.parent.parent):
        sys.path.insert(0, str(folder))
    added = add()
    print(f"added: {', '.join(added)}" if added else "nothing to add: every structure with a test file is listed")
    from support import structures

    untested = [name for name in structures.registered() if not structures.has_file(name)]
    for name in untested:
        print(f"{name}: left out: it has no test file, tests/structures/{name}.py", file=sys.stderr)
    return 1 if untested else 0


if __name__ == "__main__":
    sys.exit(main())
