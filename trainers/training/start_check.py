"""Checks whether a folder's weights fit a recipe's model. Runs as a process of its own, without a device:

    python -m trainers.training.start_check < QUESTION.json

The question has the recipe's `ModelSpec` as "recipe", the `ModelSpec` of the folder's `config.json` as "held", and
"folder". Prints `{"reason": ""}`, or a clause as the reason if they do not fit.
"""

import json
import sys
from pathlib import Path

from trainers.spec.codec import from_json, json_object
from trainers.spec.model import ModelSpec
from trainers.startup import import_stubs

with import_stubs.imports():
    from trainers.models import model
    from trainers.models.same_model import clause, differences
    from trainers.training.initial_weights import WeightFiles


def reason_against(recipe: ModelSpec, held: ModelSpec, folder: Path) -> str:
    """Returns the reason why the weights in `folder`, which has the model `held`, do not fit the recipe's; empty if
    they do. States every difference of the mathematics, otherwise the first tensor that does not fit.
    """
    if differing := differences(held, recipe):
        clauses = "; ".join(map(clause, differing))
        return (
            f"{folder} holds another model than the recipe: {clauses}: search the folder's own model (python -m"
            f" platform.search {folder}), or give another folder"
        )
    try:
        WeightFiles(folder).check(model.build(recipe, attention="eager").module)
    except ValueError as error:
        return str(error)
    return ""


def main() -> None:
    """Reads the question from standard input, and prints the reason as a line of JSON."""
    question = json_object(sys.stdin.read())
    recipe, held = (from_json(ModelSpec, question[name]) for name in ("recipe", "held"))
    print(json.dumps({"reason": reason_against(recipe, held, Path(question["folder"]))}))


if __name__ == "__main__":
    main()
