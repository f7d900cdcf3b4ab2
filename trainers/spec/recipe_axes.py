"""`RecipeAxes`: the fields of `Recipe`, each with its declaration."""

import dataclasses
from typing import TYPE_CHECKING, Literal, TypeAlias

from trainers.spec import adapters
from trainers.spec.axis import AxisValues, axis
from trainers.spec.codec import shortened
from trainers.spec.model import ModelSpec
from trainers.spec.workload import Workload

Optimizer = Literal["adamw", "adafactor"]
Precision = Literal["fp32", "tf32", "bf16", "fp16", "fp8_tensorwise", "fp8_rowwise"]
StatePrecision = Literal["fp32", "bf16"]
Compression = Literal[
    "none", "bf16", "powersgd_1", "powersgd_2", "powersgd_4", "powersgd_8", "powersgd_16", "powersgd_32"
]
DataOrder = Literal["file", "shuffled"]
AttentionMask = Literal["causal", "document", "prefix"]
Decay = Literal["all", "matrices"]
Routing = Literal["learned", "balanced"]
BalanceLoss = Literal["none", "aux", "bias"]
# fmt: off
Adapter = Literal[
    "none",
    "lora_4", "lora_8", "lora_16", "lora_32", "lora_64", "lora_128", "lora_256",
    "qlora_4", "qlora_8", "qlora_16", "qlora_32", "qlora_64", "qlora_128", "qlora_256",
]
# fmt: on
TrainedTokens = Literal["all", "marked"]

# A workload's recipe has no model. Code that needs one (engines, kernels, the cost model) gets only recipes that have
# one, so type checkers may take it as always set.
if TYPE_CHECKING:
    Model: TypeAlias = ModelSpec
else:
    Model = ModelSpec | None

LARGEST_BATCH = 10**12
"""Largest number of tokens in a sequence, of sequences in a batch, and of micro-batches."""
STREAM = "stream"
"""Value of `Recipe.data` for the seeded, learnable stream."""
INCLUDED = "included"
"""Value of `Recipe.data` for the text in `trainers/text/`, read byte by byte."""


def check_number(field: str, number: int) -> None:
    """Raises ValueError if a number of tokens, sequences or micro-batches is below 1 or above `LARGEST_BATCH`."""
    if number < 1:
        raise ValueError(f"{field} must be at least 1, got {number}")
    if number > LARGEST_BATCH:
        raise ValueError(f"{field} must be at most 10^12, got {shortened(number)}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeAxes(AxisValues):
    """The fields of a recipe; `Recipe` checks them."""

    model: Model
    """The model; None if a `workload` trains."""
    seq_len: int = axis(label="length {}", always_shown=True, about="Tokens in one sequence.")
    global_batch: int = axis(
        about="Sequences in one optimizer step, over all ranks; 0 where `grad_accum` fixes the accumulation."
    )
    optimizer: Optimizer = axis(
        "adamw",
        label="{}",
        always_shown=True,
        about="`adafactor` is that of transformers with a fixed learning rate, no first moment and updates clipped"
        " at 1.",
    )
    compute_precision: Precision = axis(
        "bf16",
        label="{} compute",
        always_shown=True,
        table="precision",
        about="Type of the matrix products; `tf32` is fp32 storage with TF32 products; `fp8_...` is bf16 with the"
        " blocks' linear layers in FP8, a scale for each tensor or row.",
    )
    state_precision: StatePrecision = axis(
        "fp32",
        label="{} states",
        always_shown=True,
        about="Type of master weights, optimizer states and sums of gradients.",
    )
    compression: Compression = axis(
        "none",
        label="{} compression",
        about="Form of gradients in exchanges: bf16, or PowerSGD's factors of that rank (arXiv 1905.13727).",
    )
    learning_rate: float = axis(1e-4, about="Size of an optimizer step.")
    weight_decay: float = axis(0.1, about="Decoupled weight decay, of the parameters that `decay` names.")
    beta1: float = axis(0.9, about="Decay of the first moment, of AdamW alone.")
    beta2: float = axis(0.95, about="Decay of the second moment, of AdamW alone.")
    epsilon: float = axis(1e-8, about="Added to the root of the second moment, of AdamW alone.")
    grad_clip: float = axis(1.0, about="Largest global gradient norm; 0 for no clipping.")
    data: str = axis(
        STREAM,
        about="`stream` (seeded, learnable), `included` (a text, byte by byte), or the path of a Parquet file or folder"
        " with a column of token ids.",
    )
    seed: int = axis(0, about="Seed of weights and data.")
    data_order: DataOrder = axis(
        "file",
        later=True,
        about="Order of a file's sequences in an epoch: file order, or shuffled by seed and epoch.",
    )
    grad_accum: int = axis(
        0,
        later=True,
        table="fixed_grad_accum",
        parameter=False,
        about="Micro-steps of an optimizer step, from which `global_batch` follows; 0: they follow from it.",
    )

    attention_mask: AttentionMask = axis(
        "causal",
        later=True,
        label="{} mask",
        about="Tokens that a token sees: all before it, those in its document, or also all of a prefix without loss.",
    )
    document_tokens: int = axis(
        0,
        later=True,
        label="documents of {}",
        about="Mean length of the stream's documents under a document mask; 0 for a quarter of a sequence.",
    )
    decay: Decay = axis(
        "all",
        later=True,
        label="decay of {}",
        about="Parameters that decay: all, norms and biases too, or matrices alone, embeddings and experts' stacked"
        " biases among them.",
    )
    workload: Workload | None = dataclasses.field(default=None, metadata={"later": True})
    """The user's own training, in place of a model of this project."""

    routing: Routing = axis(
        "learned",
        later=True,
        label="{} routing",
        about="Experts of a token: those that its router chooses, or for measurements drawn ones with the same number"
        " of tokens each (forced balance); gates and trainings have learned routing.",
    )
    trained_tokens: TrainedTokens = axis(
        "all",
        later=True,
        label="loss of {} tokens",
        about="Tokens that have a loss: all, or those that the data mark, as an assistant's in chats.",
    )

    adapter: Adapter = axis(
        "none",
        later=True,
        label="{}",
        about="What trains: the whole model, or low-rank adapters of that rank beside its frozen linear layers (arXiv"
        " 2106.09685), in the states' type; the frozen weights have the type of the products, under `qlora_...` those"
        " of the blocks' linear layers 4 bits (NF4, arXiv 2305.14314).",
    )
    lora_targets: str = axis(
        adapters.ALL_LINEAR,
        later=True,
        label="on {}",
        about="The linear layers of each block that have adapters: all, or names joined by +, such as q_proj+v_proj.",
    )
    lora_alpha: float = axis(
        32.0,
        later=True,
        label="alpha {:g}",
        about="Factor of what adapters add, divided by their rank.",
    )

    balance_loss: BalanceLoss = axis(
        "none",
        later=True,
        label="{} balance",
        about="Method that balances routers over the tokens of a whole step: none, the gradient of a loss beside the"
        " model's (`aux`, arXiv 2501.11873), or biases of their choice (`bias`, arXiv 2408.15664).",
    )
    balance_rate: float = axis(
        0.0,
        later=True,
        label="balance rate {:g}",
        about="Factor of the `aux` loss, or what a step adds to a `bias` or takes from it; 0 for the model's"
        " `router_aux_loss_coef`, and for 0.001 where it has none and for biases.",
    )
