"""Sharing an export on the Hugging Face hub: a model card, and the upload."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from interventions.apply import Intervention
from interventions.errors import UserError

Form = Literal["peft", "checkpoint"]


def model_card(
    intervention: Intervention, *, form: Form, base_model: str, facts: Mapping[str, str], repo: str = "DIR"
) -> str:
    """Text of a README.md: YAML front matter, what was done to which model, and how to run it.

    Args:
        intervention: What was exported.
        form: Which export it is.
        base_model: Name of the base model.
        facts: Further rows of the table, label → value (relation, language, data version, …).
        repo: Where the export lies, for the commands that it shows.
    """
    mask = intervention.mask
    provenance = mask.provenance
    rows = {
        "Base model": base_model,
        "Base weights": f"fingerprint `{mask.model.fingerprint[:16]}`",
        **facts,
        "Method": str(provenance.get("method", provenance.get("operation", "unknown"))),
        "Units": f"{len(mask):,} (" + ", ".join(f"{kind} {n:,}" for kind, n in mask.kinds().items()) + ")",
        "Mode": intervention.mode
        + (f" by {intervention.factor:g}" if intervention.factor is not None else ""),
        "Mask": f"sha256 `{mask.digest[:16]}`",
    }
    if "k" in provenance:
        rows["k"] = f"{provenance['k']}"
    table = "\n".join(f"| {label} | {value} |" for label, value in rows.items())
    library = "peft" if form == "peft" else "transformers"
    how = _how_to_run(form, base_model, repo)
    front = {
        "base_model": base_model,
        "library_name": library,
        "pipeline_tag": "text-generation",
        "tags": ["relbench", "neuron-mask", "interpretability"],
    }
    # JSON strings are YAML strings, whatever a name holds.
    header = "\n".join(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in front.items())
    return (
        f"---\n{header}\n---\n\n"
        f"# {base_model} with {len(mask):,} neurons changed\n\n"
        "A neuron mask made with relbench, to study where a language model keeps a relation. The model is\n"
        "damaged on purpose and fit for nothing else. Compare it with the baseline and with random masks of\n"
        "the same size before reading anything into a number.\n\n"
        f"| | |\n|---|---|\n{table}\n\n"
        f"## How to run it\n\n```\n{how}\n```\n\n"
        "`relbench_mask.json` holds the units and how they were chosen; `relbench mask import DIR` makes a\n"
        "mask file of it again.\n"
    )


def _how_to_run(form: Form, base_model: str, repo: str) -> str:
    """Shell lines that evaluate the export with an unmodified lm-eval."""
    run = "lm_eval run --model hf --tasks … --model_args"
    if form == "checkpoint":
        return f"{run} pretrained={repo}"
    lines = [f"hf download {repo} --local-dir DIR"] if repo != "DIR" else []
    lines += [
        f"{run} pretrained={base_model},peft=DIR",
        "# the baseline to compare with: the same model through an adapter of ones",
        f"{run} pretrained={base_model},peft=DIR/baseline",
    ]
    return "\n".join(lines)


def push(folder: str | Path, repo: str, *, private: bool = False) -> str:
    """Upload an export to the hub with the user's own login.

    Args:
        folder: What `export_peft` or `export_checkpoint` wrote.
        repo: `user/name`; made when it does not exist.
        private: Make it private when it is made.

    Returns:
        The address of the repository.

    Raises:
        UserError: Not logged in, no network, no right to write there, or huggingface_hub is missing.
    """
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError
    except ImportError:
        raise UserError("pushing to the hub needs huggingface_hub: pip install huggingface_hub") from None
    api = HfApi()
    try:
        address = api.create_repo(repo, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repo, folder_path=str(folder), commit_message="Upload a relbench neuron mask"
        )
    except (HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OSError, ValueError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"cannot push to {repo}: {first}; the export is in {folder}, push it again later"
        ) from None
    return str(address)
