"""`secateur sensitivity`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from secateur.commands.one_sentence import command_line, errors_in_one_sentence, users_errors_in_one_sentence

AMOUNTS = ["25%", "50%", "75%"]


def sensitivity(
    task: Annotated[str, typer.Argument(help="A Python file, or package.module, with model() and eval_data().")],
    weights: Annotated[
        Path | None,
        typer.Option(
            "--from", help="A file of trained weights (safetensors, torch.save); FILE:ema for those called ema."
        ),
    ] = None,
    amounts: Annotated[
        list[str], typer.Option("--amount", help="How much of each group to remove. May be repeated.")
    ] = AMOUNTS,
    finetune: Annotated[
        float, typer.Option(help="Epochs, such as 0.25, to fine-tune after each cut before it is judged.", min=0)
    ] = 0,
    at_once: Annotated[
        int | None,
        typer.Option(help="Copies to fine-tune side by side, with Ray. By default as many as cores allow.", min=1),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file for the numbers.", dir_okay=False)] = Path(
        "sensitivity.json"
    ),
    html: Annotated[
        Path | None, typer.Option(help="A file for the chart, a page that needs no network.", dir_okay=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Cut each group of coupled layers alone, and see what that costs the model: which layers, what ratio?

    If it is interrupted, the same command continues where it stopped.

    Example: secateur sensitivity task.py --from model.safetensors --finetune 0.25 --html sensitivity.html
    """
    with errors_in_one_sentence(debug, f"Stopped. `{command_line()}` continues after the last finished evaluation."):
        from secateur.commands.task_file import load_task
        from secateur.studies import sensitivity as find_sensitivity

        source = load_task(task)
        with users_errors_in_one_sentence():
            model = source.build_model(weights) if weights else source.build_trained_model(0, "train it first")
            found = find_sensitivity(
                model,
                source.example_inputs(),
                source.eval_data(),
                metric=source.metric,
                amounts=amounts,
                finetune=finetune,
                train_data=source.train_data() if finetune else None,
                loss=source.loss,
                cache=out.with_suffix(".cache.json"),
                at_once=at_once,
            )
        found.save(out)
        if html is not None:
            from secateur.pages import report

            report(found, out=html)
        if as_json:
            import json

            print(json.dumps(found.to_json(), indent=2))
        else:
            print(found)
            print(f"\nThe numbers are in {out}{f', the chart is {html}' if html else ''}.")
